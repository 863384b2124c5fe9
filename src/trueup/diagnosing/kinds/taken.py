"""The target's value is, bit for bit, another tensor of the reference: which, and whether it leads here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trueup.diagnosing.evidence import Evidence, Known
from trueup.diagnosing.kinds.thresholds import MIN_NUMBERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What the target has in place of the reference's value."""

    other: Known
    """the reference's tensor of these bits"""
    usual: Known | None
    """the output of the reference's call that made its own value, where one at hand did"""
    is_beside: bool
    """made beside the usual one (from the same input, or after it), so that nothing was left out between"""
    is_usual_before: bool
    """the reference's own value was at hand before the other: that is made of it, and leaves out nothing"""


def taken(evidence: Evidence) -> Taken | None:
    """Of all tensors at hand the first that has the target's bits, the reference's own value not."""
    t, r = evidence.target, evidence.reference
    if t is None or r is None or not evidence.same_shape or t.numel < MIN_NUMBERS:
        return None
    others = [known for known in _of_reference(evidence) if known.same_bits(r) is False]
    other = next((known for known in others if known.shape == t.shape and t.same_bits(known)), None)
    if other is None:
        return None
    usual = next((k for k in _of_reference(evidence) if _is_output(k) and k.same_bits(r)), None)
    before = list(_of_reference(evidence))
    return Taken(
        other=other,
        usual=usual,
        is_beside=usual is not None and _beside(evidence, other, usual),
        is_usual_before=any(known.same_bits(r) for known in before[: before.index(other)]),
    )


def _beside(evidence: Evidence, other: Known, usual: Known) -> bool:
    """Whether the two are outputs of calls that were given the same, or the other was made later."""
    if not _is_output(other) or call_of(other) == call_of(usual):
        return False
    own_inputs, other_inputs = (_given(evidence, call_of(known)) for known in (usual, other))
    if any(one.same_bits(other) for one in own_inputs):
        return False
    order = [call_of(known) for known in _of_reference(evidence)]
    later = order.index(call_of(other)) > order.index(call_of(usual))
    return later or any(one.same_bits(known) for one in own_inputs for known in other_inputs)


def _of_reference(evidence: Evidence) -> Iterator[Known]:
    around = evidence.surroundings
    return (known for p in (*around.inputs, *around.nearby) if (known := p.reference) is not None)


def _given(evidence: Evidence, call: str) -> list[Known]:
    return [k for k in _of_reference(evidence) if call_of(k) == call and is_input(k)]


def call_of(known: Known) -> str:
    """The call that a tensor at hand belongs to."""
    return known.name.rpartition(", ")[0]


def is_input(known: Known) -> bool:
    """Whether a tensor at hand is what its call was given."""
    return _slot(known).startswith("input")


def _is_output(known: Known) -> bool:
    return _slot(known).startswith("output")


def _slot(known: Known) -> str:
    return known.name.rpartition(", ")[2]
