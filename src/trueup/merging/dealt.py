"""Which rows of a step each process and microbatch is given, and whether two runs deal out the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trueup.merging.trace import MergedTrace
from trueup.store import StepView, Trace, TraceSource, step_view
from trueup.store.given import root_inputs, whole_numbers
from trueup.store.same_rows import MASK, num_rows, row_keys, spans_of
from trueup.types.arrays import Ints
from trueup.types.layout import Layout

Rows = frozenset[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """The rows of one step of one run."""

    parts: Mapping[tuple[int, int], Rows]
    """rank and microbatch -> its rows"""

    @classmethod
    def of(cls, source: TraceSource, step: int) -> Dealt:
        """Read from the ids that were kept: nothing where none were."""
        ranks = source.steps().get(step, [])
        held = {rank: _rows(step_view(source, step, rank)) for rank in ranks}
        return cls(parts={(rank, m): frozenset(rows) for rank, of in held.items() for m, rows in of.items()})

    @property
    def whole(self) -> Rows:
        """All rows of the step."""
        return frozenset().union(*self.parts.values())

    def folded(self, layout: Layout, number: int) -> tuple[Rows, ...]:
        """Rows of so many microbatches at a time, those of all ranks counted as ``Layout.batch`` counts
        them."""
        of: dict[int, Rows] = {}
        for (rank, microbatch), rows in self.parts.items():
            at = microbatch * layout.num_batches + layout.batch_index(layout.coordinate(rank))
            of[at // number] = of.get(at // number, frozenset()) | rows
        return tuple(of[at] for at in sorted(of))


def order_beside(target: TraceSource, reference: TraceSource, step: int) -> dict[int, int] | None:
    """Each microbatch of one process, and the reference's that was given its rows; None where not every one
    has its own, or each has the one of its number."""
    own, other = ({m: rows for (_, m), rows in Dealt.of(s, step).parts.items()} for s in (target, reference))
    numbers = {rows: number for number, rows in other.items()}
    order = {number: numbers.get(rows, -1) for number, rows in own.items()}
    is_order = bool(order) and sorted(order.values()) == sorted(other)
    return order if is_order and order != {number: number for number in own} else None


def dealt_otherwise(sources: Sequence[TraceSource]) -> tuple[Dealt, Dealt] | None:
    """How both runs deal out the rows of their first common step, where those are the same rows dealt out to
    other processes or microbatches; else None."""
    if any(isinstance(source, MergedTrace) or not isinstance(source, Trace) for source in sources):
        return None
    step = min(set(sources[0].steps()) & set(sources[1].steps()), default=None)
    if step is None or _is_the_same(sources, step):
        return None
    target, reference = (Dealt.of(source, step) for source in sources)
    if not target.whole or target.whole != reference.whole or target == reference:
        return None
    both = target, reference
    one_process = all(len({rank for rank, _ in one.parts}) == 1 for one in both)
    if one_process and len({sum(map(len, one.parts.values())) for one in both}) > 1:
        return None  # one run goes through the same rows more often
    return both


def _is_the_same(sources: Sequence[TraceSource], step: int) -> bool:
    """Whether the first process was given the same in both runs."""
    digests = [
        next((line.get("batch_digest") for line in source.scalars(0) if line.get("step") == step), None)
        for source in sources
    ]
    return None in digests or digests[0] == digests[1]


def _rows(view: StepView) -> dict[int, set[bytes]]:
    found: dict[int, set[bytes]] = {}
    for microbatch, given in given_to_calls(view):
        found.setdefault(microbatch, set()).update(rows_of(given))
    return found


def given_to_calls(view: StepView) -> list[tuple[int, dict[str, Ints]]]:
    """Microbatch and whole numbers of two dims that each training call of the model is given, by slot."""
    calls: dict[int, tuple[int, dict[str, Ints]]] = {}
    for microbatch, slot, record in root_inputs(view):
        ids = whole_numbers(view, record)
        if ids is not None and ids.ndim == 2:
            calls.setdefault(view.record_call[record], (microbatch, {}))[1][slot] = ids
    return list(calls.values())


def rows_of(given: Mapping[str, Ints]) -> list[bytes]:
    """The rows of the first input of token ids, without their padding."""
    tokens = next((slot for slot in given if MASK not in slot), None)
    if tokens is None or num_rows(given) is None:
        return []
    return row_keys({"": given[tokens]}, spans_of(given, without_padding=True))
