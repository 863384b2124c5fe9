"""A constant of the computation is another one: eps, scale, theta, p, approximate."""

from __future__ import annotations

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.arguments import (
    ArgumentDifference,
    argument_differences,
    is_cast,
    is_layout,
    is_mask,
)
from trueup.diagnosing.kinds.constants import fitted_constants
from trueup.diagnosing.kinds.fitting import close
from trueup.diagnosing.kinds.naming import named
from trueup.diagnosing.kinds.solved import solved
from trueup.matching.names import family
from trueup.types.finding import Kind, Stage

_FACTORS = ("mul", "div")


def rule(evidence: Evidence) -> Kind | None:
    """The strongest of: an argument that differs in the call or its module, a constant solved for from the
    values."""
    if evidence.origin.phase not in ("forward", "loss", "backward", "param_grad"):
        return None
    found = (_arguments(evidence), _fitted(evidence), _scores(evidence))
    return max((k for k in found if k is not None), key=lambda k: k.confidence, default=None)


def _arguments(evidence: Evidence) -> Kind | None:
    differences = [d for d in argument_differences(evidence) if _counts(d)]
    if not differences:
        return None
    own = [d for d in differences if d.call.own]
    chosen = own or differences
    confidence = 0.96 if own and evidence.surroundings.kind != "module" else 0.93
    if evidence.origin.phase in ("backward", "param_grad"):
        confidence -= 0.03
    if evidence.origin.stage is Stage.LOSS and all(family(d.call.name) in _FACTORS for d in chosen):
        confidence = 0.85  # how a loss is divided is a matter of scale
    said = "; ".join(dict.fromkeys(d.sentence for d in chosen[:3]))
    return named("constant_argument", confidence, f"another argument: {said}", evidence)


def _counts(difference: ArgumentDifference) -> bool:
    """Layouts, masks and dtypes have kinds of their own."""
    if is_mask(difference) or is_layout(difference.call) or is_cast(difference.call):
        return False
    return not any(
        isinstance(v, str) and v.startswith("torch.") for v in (difference.target, difference.reference)
    )


def _fitted(evidence: Evidence) -> Kind | None:
    turned = solved(evidence, "constant_argument")
    if turned is not None:
        return named("constant_argument", turned.confidence, turned.sentence, evidence)
    best = max(fitted_constants(evidence), key=lambda c: c.confidence, default=None)
    return None if best is None else named("constant_argument", best.confidence, best.sentence, evidence)


def _scores(evidence: Evidence) -> Kind | None:
    """Out of causal attention only the first position, which sees nothing but itself, agrees: the scores of
    the others are scaled or rotated otherwise."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.ndim < 3 or t.shape[-2] < 4:
        return None
    around = evidence.surroundings
    if not any(
        w in (around.module + around.name + (around.type or "")).lower() for w in ("attn", "attention")
    ):
        return None
    same = close(t, r, max(evidence.roundoff, 1e-9)).mean(axis=-1).reshape(-1, t.shape[-2]) > 0.9
    if not same[:, 0].all() or float(same[:, 1:].mean()) > 0.05:
        return None
    said = (
        "the first position, which sees only itself, agrees and all others differ: the attention scores have "
        "another scale, or q and k are rotated by other angles"
    )
    return named(
        "constant_argument", 0.6, said, evidence, causes=("another attention scale", "another rotary theta")
    )
