"""English of a mismatch between training and inference."""

from __future__ import annotations

from trueup.types.codes import MismatchCode as M
from trueup.wording.phrase import Phrase, ReasonFacts, clause, count, listed

_LAYER = {"name": "model.layers.3.self_attn", "rel_l2": 0.12, "bound": 0.05, "dtype": "bfloat16"}
_GROWTH = {"first": 0.001, "last": 0.01, "begin": "0-3", "end": "44-47"}


def _not_identical(facts: ReasonFacts) -> str:
    return facts.fill(
        "{name} are the first that are not bit-identical: {different} of {total:count token} differ"
        if facts["name"] == "log-probs"
        else "{name} is the first layer that is not bit-identical: {different} of {total:count token} differ"
    )


def _neighbour(facts: ReasonFacts) -> str:
    """Whose log-prob stands at a token; 1: what belongs to it stands one token later."""
    return "previous" if facts["by"] > 0 else "next"


def _moved(facts: ReasonFacts) -> str:
    where = _neighbour(facts)
    return facts.fill(
        "training log-probs are those of the {where} token: their RMS difference is {moved:.2g} there and "
        "{own:.3g} at their own token",
        where=where,
    )


def _moved_headline(facts: ReasonFacts) -> str:
    return f"Training log-probs are shifted by one token: they belong to the {_neighbour(facts)} token"


def _few(facts: ReasonFacts) -> str:
    return (
        f"{count(facts['num'], 'sequence')} of {facts['total']:,} hold 90 % of the squared difference: "
        f"{'number' if facts['num'] == 1 else 'numbers'} {listed(facts['sequences'])}"
    )


def _bound(facts: ReasonFacts) -> str:
    return facts.fill("{metric} is {value:.4g}, beyond the bound {bound:g}")


PHRASES = {
    M.IDENTICAL: Phrase(
        sentence="rollout and training log-probs are bit-identical: {num_tokens:count token}",
        headline="Rollout and training log-probs are bit-identical: {num_tokens:count token}",
        samples=({"num_tokens": 96},),
    ),
    M.NOT_IDENTICAL: Phrase(
        sentence=_not_identical,
        headline=lambda facts: facts.fill("Not bit-identical from {name} on"),
        samples=(
            {"name": "log-probs", "different": 3, "total": 96},
            {"name": "model.layers.0.self_attn", "different": 1, "total": 96},
        ),
    ),
    M.WITHIN_BOUNDS: Phrase(
        sentence="within the bounds given for {metrics:list}",
        headline="Rollout and training are within the bounds given for {metrics:list}",
        samples=({"metrics": ["k3", "max_abs_diff"]},),
    ),
    M.BEYOND_BOUND: Phrase(
        sentence=_bound, headline=_bound, samples=({"metric": "k3", "value": 0.02, "bound": 0.001},)
    ),
    M.WITHIN_NOISE: Phrase(
        sentence="the RMS difference {rms_diff:.3g} is {times:times} that of the benign variant, {noise:.3g}",
        headline="Rollout and training differ by no more than the measured noise",
        samples=({"rms_diff": 0.012, "noise": 0.01, "times": 1.2},),
    ),
    M.BEYOND_NOISE: Phrase(
        sentence="the RMS difference {rms_diff:.3g} is {times:times} that of the benign variant, {noise:.3g}",
        headline="Rollout and training differ by {times:times} the measured noise",
        samples=({"rms_diff": 0.12, "noise": 0.01, "times": 12.0},),
    ),
    M.NOISE_IN_DOUBT: Phrase(
        sentence="the RMS difference {rms_diff:.3g} is {times:times} that of the benign variant, "
        "{noise:.3g}: more than it explains, and no proof of a fault",
        headline="Rollout and training differ by {times:times} the measured noise: cannot be decided",
        samples=({"rms_diff": 0.03, "noise": 0.01, "times": 3.0},),
    ),
    M.LAYER_IN_DOUBT: Phrase(
        sentence="the relative L2 error of {name} is {rel_l2:percent}; {bound:percent} are explained: more "
        "than rounding usually gives, and no proof of a fault",
        headline="{name} may differ beyond rounding: cannot be decided",
        samples=({**_LAYER, "rel_l2": 0.07},),
    ),
    M.ROUNDING: Phrase(
        sentence="the errors of {num_layers:count layer} are what rounding to {dtype} gives: "
        "{first:percent} at the first, {last:percent} at the last",
        headline="Rollout and training differ by rounding to {dtype}",
        samples=({"dtype": "bfloat16", "first": 0.007, "last": 0.012, "num_layers": 28},),
    ),
    M.LAYER: Phrase(
        sentence="the relative L2 error of {name} is {rel_l2:percent}; rounding to {dtype} and the "
        "error of preceding "
        "layers explain {bound:percent}",
        headline="{name} differs beyond rounding to {dtype}",
        samples=(_LAYER,),
    ),
    M.LAYER_NOISE: Phrase(
        sentence="the relative L2 error of {name} is {rel_l2:percent}; the measured noise explains "
        "{bound:percent}",
        headline="{name} differs beyond the measured noise",
        samples=(_LAYER,),
    ),
    M.LAYER_SHAPE: Phrase(
        sentence="{name} has different shapes in rollout and training",
        headline="{name} has different shapes in rollout and training",
        samples=({"name": "lm_head"},),
    ),
    M.HEAD: Phrase(
        sentence="the relative error of log-probs is {log_probs:percent}, that of {name}, the last "
        "layer compared, "
        "{rel_l2:percent}: what follows it is computed differently",
        headline="Log-probs differ by more than {name}, the last layer compared, explains",
        advice="compare what follows it: output projection and its dtype, temperature, softmax, and "
        "which logit is "
        "gathered",
        samples=({"name": "model.norm", "rel_l2": 0.012, "log_probs": 0.3},),
    ),
    M.NOT_FINITE: Phrase(
        sentence="{num:count log-prob} {num:verb are} not finite ({sides:list}), first at token {position} "
        "of sequence {sequence}",
        headline="Log-probs that are not finite: {sides:list}",
        advice="a sampled token has a finite log-prob: look for filtered logits (top-p, top-k) and overflow",
        samples=({"num": 2, "sides": ["rollout"], "sequence": 3, "position": 7},),
    ),
    M.SHIFTED: Phrase(
        sentence=_moved,
        headline=_moved_headline,
        advice="logits at position t are of token t + 1: check the slice of logits and of the response",
        samples=({"by": 1, "own": 2.1, "moved": 0.01}, {"by": -1, "own": 2.1, "moved": 0.01}),
    ),
    M.REORDERED: Phrase(
        sentence="step {step}: training log-probs of {num} of {total:count sequence} are those of other "
        "sequences; "
        "sequence {row} has the rollout's log-probs of sequence {is_row}",
        headline="Sequences are in different orders in rollout and training",
        advice="align rows by their token ids before they are compared or trained on",
        samples=({"step": 1, "num": 30, "total": 32, "row": 0, "is_row": 5},),
    ),
    M.NOT_SAMPLED: Phrase(
        sentence="the mean importance ratio is {mean_ratio:.4g}, {z:.0f} standard errors from 1: tokens "
        "were not drawn "
        "from the distribution of the rollout's log-probs, or training gives probability to tokens that "
        "it never draws",
        headline="Mean importance ratio is {mean_ratio:.4g}, not 1",
        advice="check top-p, top-k and temperature: whether log-probs of both sides are taken after them",
        samples=({"mean_ratio": 0.95, "z": 20.0},),
    ),
    M.SPREAD: Phrase(
        sentence="training log-probs vary {factor:.3g} times as much as the rollout's, with correlation "
        "{correlation:.3f}: as with a temperature on one side only",
        headline="Training log-probs are the rollout's scaled, as by a temperature",
        advice="apply the rollout's temperature to the training log-probs, or take the rollout's before it",
        samples=({"factor": 0.7, "correlation": 0.99},),
    ),
    M.UNEXPLAINED: Phrase(
        sentence="the RMS difference of {num_tokens:count log-prob} is {rms_diff:.3g}, k3 {k3:.3g}: no "
        "layer outputs and "
        "no noise were given that could explain it",
        headline="Rollout and training differ; whether rounding explains it cannot be decided",
        samples=({"num_tokens": 96, "rms_diff": 0.012, "k3": 1e-4},),
    ),
    M.NO_NOISE: clause(
        "the benign variant is bit-identical to the trainer's own forward: it measures no noise"
    ),
    M.ROUNDED: clause(
        "log-probs of {side} are rounded to {dtype}, which alone gives an RMS difference of {rms_diff:.3g}",
        {"side": "training", "dtype": "bfloat16", "rms_diff": 0.009},
    ),
    M.FEW_SEQUENCES: clause(
        _few,
        {"num": 1, "total": 64, "sequences": ["3"]},
        {"num": 2, "total": 64, "sequences": ["3", "17"]},
    ),
    M.GROWS_POSITION: clause(
        "the difference grows along the response: RMS {first:.3g} at {begin}, {last:.3g} at {end}", _GROWTH
    ),
    M.GROWS_STEPS: clause(
        "the difference grows over steps: RMS {first:.3g} at step {begin}, {last:.3g} at step {end}",
        {**_GROWTH, "begin": "0", "end": "40"},
    ),
    M.EQUAL_UNTIL: clause(
        "log-probs are bit-identical before step {step} and not from it on: were all weights sent to "
        "the rollout?",
        {"step": 1},
    ),
    M.LAYERS_EQUAL: clause(
        "layers are bit-identical up to {last}; {first} is the first that is not",
        {"last": "embed_tokens", "first": "layers.0.self_attn"},
    ),
    M.LAYERS_OF: clause("layers are known of {num} of {total:count token}", {"num": 10, "total": 96}),
    M.GIVE_LAYERS: clause(
        lambda facts: (
            "add layer outputs of both forwards"
            + (
                ""
                if facts.get("has_noise")
                else ", or log-probs of a benign variant (the trainer's forward in the rollout's dtype) as "
                "noise_log_probs"
            )
            + ": docs/rl.md"
        ),
        {"has_noise": False},
        {"has_noise": True},
    ),
    M.GIVE_NOISE: clause(
        "add noise/ arrays (the trainer's forward in the rollout's dtype): measured noise is a closer bound"
    ),
    M.COMPARE_LAYER: clause(
        "compare {name} of both engines: its kernel, dtype, weights, mask and positions",
        {"name": "layers.3.self_attn"},
    ),
}
