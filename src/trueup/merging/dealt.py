"""Which rows of a step each process and microbatch is given, and whether two runs deal out the same rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from trueup.matching.same_rows import MASK, num_rows, row_keys, spans_of
from trueup.merging.trace import MergedTrace
from trueup.store import StepView, Trace, TraceSource, step_view
from trueup.store.given import root_inputs, whole_numbers
from trueup.types.arrays import Ints

Rows = frozenset[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """The rows of one step of one run."""

    to_ranks: tuple[Rows, ...]
    """to each process that is given any"""
    to_microbatches: tuple[Rows, ...]
    """to each microbatch, of all processes together"""

    @classmethod
    def of(cls, source: TraceSource, step: int) -> Dealt:
        """Read from the ids that were kept: nothing where none were."""
        ranks, microbatches = [], defaultdict[int, set[bytes]](set)
        for rank in source.steps().get(step, []):
            held = _rows(step_view(source, step, rank))
            if held:
                ranks.append(frozenset().union(*held.values()))
            for microbatch, rows in held.items():
                microbatches[microbatch] |= rows
        ordered = (frozenset(microbatches[number]) for number in sorted(microbatches))
        return cls(to_ranks=tuple(ranks), to_microbatches=tuple(ordered))

    def folded(self, number: int) -> tuple[Rows, ...]:
        """Rows of so many microbatches at a time."""
        whole = self.to_microbatches
        return tuple(frozenset().union(*whole[at : at + number]) for at in range(0, len(whole), number))


def dealt_otherwise(sources: Sequence[TraceSource]) -> tuple[Dealt, Dealt] | None:
    """How both runs deal out the rows of their first common step, where those are the same rows dealt out to
    other processes or microbatches; else None."""
    if any(isinstance(source, MergedTrace) or not isinstance(source, Trace) for source in sources):
        return None
    step = min(set(sources[0].steps()) & set(sources[1].steps()), default=None)
    if step is None or _is_the_same(sources, step):
        return None
    target, reference = (Dealt.of(source, step) for source in sources)
    whole = [frozenset().union(*one.to_microbatches) for one in (target, reference)]
    if not whole[0] or whole[0] != whole[1]:
        return None
    if target == reference:
        return None
    return target, reference


def _is_the_same(sources: Sequence[TraceSource], step: int) -> bool:
    """Whether the first process was given the same in both runs."""
    digests = [
        next((line.get("batch_digest") for line in source.scalars(0) if line.get("step") == step), None)
        for source in sources
    ]
    return None in digests or digests[0] == digests[1]


def _rows(view: StepView) -> dict[int, set[bytes]]:
    """Microbatch -> its rows: those of the first input of token ids of each call, without their padding."""
    found: dict[int, set[bytes]] = {}
    calls: dict[int, dict[str, Ints]] = {}
    of_call: dict[int, int] = {}
    for microbatch, slot, record in root_inputs(view):
        ids = whole_numbers(view, record)
        if ids is not None and ids.ndim == 2:
            calls.setdefault(view.record_call[record], {})[slot] = ids
            of_call[view.record_call[record]] = microbatch
    for call, given in calls.items():
        tokens = next((slot for slot in given if MASK not in slot), None)
        if tokens is not None and num_rows(given) is not None:
            spans = spans_of(given, without_padding=True)
            found.setdefault(of_call[call], set()).update(row_keys({"": given[tokens]}, spans))
    return found
