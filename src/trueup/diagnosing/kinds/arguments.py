"""What the calls of a module were given besides tensors, on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trueup.diagnosing.evidence import Evidence, NeighbourCall
from trueup.diagnosing.evidence.facts import TENSOR, Plain
from trueup.matching.arguments import CASTS, LAYOUT_FUNCTIONS, WITHOUT_EFFECT, NotGiven, arguments_apart
from trueup.matching.names import family
from trueup.types.codes.kinds import KindReason
from trueup.types.reason import Reason, reason

MASK_ARGUMENTS = ("is_causal", "diagonal", "window_size", "sliding_window")
MASK_FUNCTIONS = ("triu", "tril", "masked_fill")
RANDOM_FUNCTIONS = frozenset(
    ["dropout", "rand", "randn", "bernoulli", "multinomial", "normal", "uniform", "alpha_dropout", "rrelu"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentDifference:
    """One argument of one call that both sides make."""

    call: NeighbourCall
    name: str
    target: Plain | NotGiven
    reference: Plain | NotGiven

    @property
    def reason(self) -> Reason:
        """``layer_norm eps: 1e-06 (target), 1e-05 (reference)``."""
        return reason(
            KindReason.ARGUMENT,
            call=short_name(self.call),
            argument=plain_name(self.name),
            target=repr(self.target),
            reference=repr(self.reference),
        )


def short_name(call: NeighbourCall) -> str:
    """``torch.nn.functional.layer_norm`` is ``layer_norm``."""
    return call.name.rpartition(".")[2] or call.name


def plain_name(slot: str) -> str:
    """``input.eps`` is ``eps``; a positional one is called by its number."""
    rest = slot.partition(".")[2] or slot
    return f"argument {rest}" if rest.replace(".", "").isdigit() else rest


def relevant_calls(evidence: Evidence) -> Iterator[NeighbourCall]:
    """Calls that can have made the origin's tensor: its own, or those of its module up to it."""
    around = evidence.surroundings
    own = [c for c in around.neighbours if c.own]
    if around.kind == "loss":  # made by functions of which none is recorded with its values
        own = [c for c in around.neighbours if c.own or (c.before and c.is_by_name)]
    if around.kind != "module" and own:
        return iter(own)
    return (c for c in around.neighbours if c.before or c.own)


def argument_differences(evidence: Evidence) -> list[ArgumentDifference]:
    """Arguments that differ, those without effect left out."""
    return [one for call in relevant_calls(evidence) for one in _differing(call)]


def is_mask(difference: ArgumentDifference) -> bool:
    """Whether the argument says what a mask hides."""
    name = difference.name.rpartition(".")[2]
    return name in MASK_ARGUMENTS or family(difference.call.name) in MASK_FUNCTIONS


def is_layout(call: NeighbourCall) -> bool:
    """Whether the call only lays the same numbers out anew."""
    return call.kind == "api" and family(call.name) in LAYOUT_FUNCTIONS


def is_cast(call: NeighbourCall) -> bool:
    """Whether the call changes the dtype."""
    return call.kind == "api" and family(call.name) in CASTS


def _differing(call: NeighbourCall) -> Iterator[ArgumentDifference]:
    """What both sides are known to have been given, and is not the same."""
    if call.target is None or call.reference is None:
        return
    for pair in arguments_apart(call.name, call.target, call.reference, call.reference_name):
        if (
            TENSOR not in (pair.target, pair.reference)
            and pair.name.partition(".")[2] not in WITHOUT_EFFECT
            and (pair.is_known or (call.arguments_recorded and call.kind != "loss"))
        ):
            yield ArgumentDifference(call=call, name=pair.name, target=pair.target, reference=pair.reference)


def calls_apart(evidence: Evidence) -> list[NeighbourCall]:
    """Functions up to the origin that one side alone calls, where the calls of both are known; those that lay
    numbers out anew, or change the dtype, left out."""
    return [
        call
        for call in relevant_calls(evidence)
        if call.kind == "api"
        and call.arguments_recorded
        and (call.target is None) is not (call.reference is None)
        and not (is_layout(call) or is_cast(call))
    ]


def layout_differences(evidence: Evidence) -> list[Reason]:
    """How the layout calls of the module differ; empty where calls of other sorts do too."""
    found: list[Reason] = []
    for call in evidence.surroundings.neighbours:
        if not (call.before or call.own) or is_cast(call):
            continue
        if call.target is None or call.reference is None:
            if not is_layout(call) or not call.arguments_recorded:
                return []
            code = KindReason.EXTRA_CALL if call.reference is None else KindReason.MISSING_CALL
            found.append(reason(code, call=short_name(call)))
            continue
        for one in _differing(call):
            if not is_layout(call):
                return []
            found.append(one.reason)
    return found
