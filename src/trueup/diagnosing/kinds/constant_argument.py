"""A constant of the computation is another one: eps, scale, theta, p, approximate."""

from __future__ import annotations

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.arguments import (
    ArgumentDifference,
    argument_differences,
    calls_apart,
    is_cast,
    is_layout,
    is_mask,
)
from trueup.diagnosing.kinds.constants import fitted_constants
from trueup.diagnosing.kinds.rule import EvidenceNeeds, Found, KindRule, origin_reason
from trueup.diagnosing.kinds.solved import solved
from trueup.diagnosing.kinds.wrong_scale import given_number
from trueup.matching.names import family
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode, Stage

_PHASES = ("forward", "loss", "backward", "param_grad")
_FACTORS = ("mul", "div")
_SHOWN = 3


def _arguments(evidence: Evidence) -> Found | None:
    """An argument differs in the call, or in a call of its module."""
    phase = evidence.origin.phase
    differences = [d for d in argument_differences(evidence) if _counts(d)] if phase in _PHASES else []
    if not differences:
        return None
    own = [d for d in differences if d.call.own]
    if not own and calls_apart(evidence):
        return None  # calls of two formulas: which of them is the other's is not known
    chosen = own or differences
    rank = EvidenceRank.STATED_NEARBY
    if evidence.origin.stage is Stage.LOSS and all(map(_divides, chosen)):
        rank = EvidenceRank.FITTED  # how a loss is divided is a matter of scale
    elif own and evidence.surroundings.kind != "module" and phase not in ("backward", "param_grad"):
        rank = EvidenceRank.STATED
    parts = dict.fromkeys(d.reason for d in chosen[:_SHOWN])
    return Found(rank=rank, sentence=origin_reason(evidence, KindReason.OTHER_ARGUMENTS, *parts))


def _given(evidence: Evidence) -> Found | None:
    """A number given to the model, of no factor that the run knows."""
    found = given_number(evidence)
    return found if found is not None and found.factor is None else None


def _divides(difference: ArgumentDifference) -> bool:
    """Whether the argument says by what a loss is divided."""
    return family(difference.call.name) in _FACTORS or difference.name.rpartition(".")[2] == "reduction"


def _counts(difference: ArgumentDifference) -> bool:
    """Layouts, masks and dtypes have kinds of their own."""
    if is_mask(difference) or is_layout(difference.call) or is_cast(difference.call):
        return False
    return not any(
        isinstance(v, str) and v.startswith("torch.") for v in (difference.target, difference.reference)
    )


def _fitted(evidence: Evidence) -> Found | None:
    """A constant solved for from the values."""
    return next(fitted_constants(evidence), None) if evidence.origin.phase in _PHASES else None


RULE = KindRule(
    code=KindCode.CONSTANT_ARGUMENT,
    family=KindClass.MODEL,
    needs=EvidenceNeeds.NOTHING,
    looks=(_given, _arguments, solved(KindCode.CONSTANT_ARGUMENT), _fitted),
    causes=(CauseCode.OTHER_DEFAULT, CauseCode.NOT_PASSED_ON),
    advice=AdviceCode.SET_ARGUMENT,
    place="a factor that was passed as an argument is a scale too; the argument is what to change",
)
