"""Usual causes of a difference by the role and phase of the call that introduces it, and what to check."""

from collections.abc import Mapping

from trueup.types.codes.suspect import SuspectCode as Suspect
from trueup.wording.phrase import Phrase, ReasonFacts, Template

_STATES: tuple[Mapping[str, object], ...] = ({"earlier_phase_differs": 0}, {"earlier_phase_differs": 1})


def _causes(sentence: str, advice: Template, *samples: Mapping[str, object]) -> Phrase:
    return Phrase(sentence=sentence, advice=advice, samples=samples or ({},))


def _after_forward(facts: ReasonFacts) -> str:
    if facts.get("earlier_phase_differs"):
        return "the forward pass differs too, and gradients follow from it: resolve that first"
    return (
        "the forward pass agrees: check custom autograd functions and activation checkpointing of this module"
    )


def _after_gradients(facts: ReasonFacts) -> str:
    if facts.get("earlier_phase_differs"):
        return "the gradients differ too, and updates follow from them: resolve that first"
    return "the gradients agree: compare every hyperparameter of this parameter group and the update formula"


PHRASES = {
    Suspect.WEIGHT: _causes(
        "the two runs do not start from the same weights",
        "compare how both checkpoints were made and loaded, and the conversion map between them; look for a "
        "transposed, split or fused weight (q/k/v, gate/up) and for a tied weight that was loaded twice",
    ),
    Suspect.NORM: _causes(
        "different eps, eps inside or outside the root, statistics or weight in lower precision, LayerNorm "
        "instead of RMSNorm",
        "print eps, class and weight dtype on both sides; see in the precision table whether only one side "
        "computes the norm in float32",
    ),
    Suspect.ROTARY: _causes(
        "angles computed or stored in lower precision, different base, interleaved instead of half-split "
        "order, positions shifted by one",
        "compare the cosine and sine tables at the first and last position; keep frequencies and angles in "
        "float32 on both sides",
    ),
    Suspect.SOFTMAX: _causes(
        "different attention scale, different mask (off by one, different fill value), softmax in lower "
        "precision, different fused kernel",
        "compare the scale argument and the mask, shape and values, at the first row; run the reference "
        "once without its fused attention kernel and see whether the difference stays",
    ),
    Suspect.EMBEDDING: _causes(
        "different token or position ids, a padded vocabulary, different scale of the embedding",
        "compare the batch digests of both runs first; then the ids at the input of this call",
    ),
    Suspect.DROPOUT: _causes(
        "random numbers differ, or dropout is active in one run only",
        "set every dropout probability to 0 in both runs, or use the same seed on the same device",
    ),
    Suspect.ACTIVATION: _causes(
        "different variant of the activation (exact or tanh GELU), gate and up halves swapped",
        "compare the approximate argument and the order of the halves",
    ),
    Suspect.LINEAR: _causes(
        "the weight or its dtype differs, the product is accumulated in different precision (TF32, bf16 "
        "reduction), a missing bias",
        "see whether the weight agrees in phase param, then whether both sides cast it before use; disable "
        "reduced-precision accumulation on both sides and compare again",
    ),
    Suspect.FORWARD: _causes(
        "different order of operations, a cast in one run only, a scalar argument that differs",
        "compare dtype and arguments of this call on both sides, and the source lines",
    ),
    Suspect.LOSS: _causes(
        "different reduction or normalization of the loss, labels shifted twice or not at all, an ignored "
        "index that is counted",
        "compare labels, their shift, ignore_index, reduction, and the number of tokens that divides the sum",
    ),
    Suspect.BACKWARD: _causes(
        "custom backward formula (fused kernel), recomputation that does not repeat the forward pass, a "
        "gradient that is cast or scaled",
        _after_forward,
        *_STATES,
    ),
    Suspect.PARAMETER_GRADIENT: _causes(
        "the weight gradient is accumulated in different precision or order, summed instead of averaged, or "
        "counted twice for a tied weight",
        "compare gradients before reduction (slot local) with those after it (slot accumulated), then after "
        "clipping; check the loss scale, the divisor over microbatches and ranks, and the clipping norm",
    ),
    Suspect.COLLECTIVE: _causes(
        "different reduction operation, process group or order of ranks, reduction in lower precision",
        "compare the process groups and the dtype of the reduced buffer",
    ),
    Suspect.OPTIMIZER: _causes(
        "different hyperparameters (weight decay, betas, eps, learning rate), decay applied to biases and "
        "norms, different state precision",
        _after_gradients,
        *_STATES,
    ),
    Suspect.OTHER: _causes(
        "the calls of both sides do not compute the same function",
        "compare dtype, arguments and source lines of this call on both sides",
    ),
}
