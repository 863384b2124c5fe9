"""Buffers of both runs: what they held when capture first saw them, and what steps left in them.

A buffer that differs from the start (rotary frequencies in another dtype) is a cause of what its module
makes. One that a step writes and training does not read (running statistics) shows in no record: its norm is
compared, and a sum that signs and order change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose

from trueup.comparing.attributes import Attributes
from trueup.comparing.first import First
from trueup.comparing.thresholds import BUFFER_APART, BUFFER_APART_OF_EQUAL, SAME_NORM
from trueup.store import TraceSource
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.reason import Number, Place, Reason, reason
from trueup.types.trace import BufferFacts, ScalarLine

_MOST_RANKS = 64
"""that are looked at: costs time"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBuffer:
    """A buffer that a step left with another norm, or of the same norm with other contents."""

    fqn: str
    step: int
    target: float
    reference: float
    by_norm: bool = True
    """else by the weighted sum"""
    rank: int | None = None
    """None: the first"""

    @property
    def module(self) -> str:
        """Whose buffer it is."""
        return self.fqn.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferGaps:
    """Buffers that differ, by name."""

    initial: Mapping[str, tuple[BufferFacts, BufferFacts]]
    written: Sequence[WrittenBuffer]
    nearly: Sequence[WrittenBuffer] = ()
    """that a step left less far apart, and further than rounding does where all records are bit-identical"""
    before: Sequence[WrittenBuffer] = ()
    """that differ as a step after the first begins"""
    follow: tuple[Reason, ...] = ()
    """the run whose other ranks take the first one's buffers, where one does alone"""

    @property
    def in_other_dtypes(self) -> dict[str, tuple[BufferFacts, BufferFacts]]:
        """Of the initial ones those of floating dtypes that are not the same."""
        return {
            fqn: (one, other)
            for fqn, (one, other) in self.initial.items()
            if one["dtype"] != other["dtype"] and "float" in one["dtype"] and "float" in other["dtype"]
        }


# In one piece: one table of gaps, of which each field reads the same lines of both runs.
def buffer_gaps(target: TraceSource, reference: TraceSource, steps: Mapping[int, int]) -> BufferGaps:
    """Of the first rank, and what steps left also of the others where both runs have the same. ``steps``:
    target step -> reference step. What a trace does not keep differs in nothing."""
    ranks = [min(trace.steps().values(), default=[0])[0] for trace in (target, reference)]
    tables = [
        {one["fqn"]: one for one in trace.rank_facts(rank).get("buffers") or []}
        for trace, rank in zip((target, reference), ranks, strict=True)
    ]
    lines = [
        {line.get("step"): line for line in trace.scalars(rank)}
        for trace, rank in zip((target, reference), ranks, strict=True)
    ]
    elsewhere = list(_written_on_other_ranks(target, reference, steps))
    types = ({fqn: one["dtype"] for fqn, one in table.items()} for table in tables)
    fine = {
        fqn for fqn, dtype in set.intersection(*(set(one.items()) for one in types)) if dtype == "float32"
    }
    side = follows_first_rank(elsewhere, target, reference, steps) if elsewhere else None
    return BufferGaps(
        follow=() if side is None else (_follow_reason(side, elsewhere[0]),),
        initial={
            fqn: (one, tables[1][fqn])
            for fqn, one in tables[0].items()
            if fqn in tables[1] and _apart(one, tables[1][fqn])
        },
        written=[
            *(
                gap
                for step, other in sorted(steps.items())
                if step in lines[0] and other in lines[1]
                for gap in _written(step, lines[0][step], lines[1][other])
            ),
            *elsewhere,
        ],
        nearly=[
            gap
            for step, other in sorted(steps.items())
            if step in lines[0] and other in lines[1]
            for gap in _written(step, lines[0][step], lines[1][other], apart=BUFFER_APART_OF_EQUAL)
            if gap.fqn in fine
        ],
        before=[
            gap
            for step, other in sorted(steps.items())[1:]
            if step in lines[0] and other in lines[1]
            for gap in _written(step, lines[0][step], lines[1][other], when="_before")
        ],
    )


def _written_on_other_ranks(
    target: TraceSource, reference: TraceSource, steps: Mapping[int, int]
) -> Iterator[WrittenBuffer]:
    """A process that computes its own statistics, or is sent the first one's, may do otherwise alone."""
    for step, other in sorted(steps.items()):
        ranks = [sorted(trace.steps().get(at, [])) for trace, at in ((target, step), (reference, other))]
        if ranks[0] != ranks[1]:
            return
        for rank in ranks[0][1:_MOST_RANKS]:
            lines = [
                next((line for line in trace.scalars(rank) if line.get("step") == at), None)
                for trace, at in ((target, step), (reference, other))
            ]
            if lines[0] is not None and lines[1] is not None:
                yield from (replace(gap, rank=rank) for gap in _written(step, lines[0], lines[1]))


def _follow_reason(side: str, gap: WrittenBuffer) -> Reason:
    return reason(EvidenceCode.BUFFERS_FOLLOW, side=side, ranks=(str(gap.rank),), step=gap.step)


# In one piece: one quotient of four numbers, any of which may be missing.
def follows_first_rank(
    gaps: Sequence[WrittenBuffer], target: TraceSource, reference: TraceSource, steps: Mapping[int, int]
) -> str | None:
    """The run in which another rank's buffers begin a step as the first rank's left the one before, where the
    other run's begin as its own: None where that is not so, or cannot be told.

    An average with momentum m keeps 1 - m of what it begins with, whatever is added: of weighted sums, which
    are linear, what the runs' ranks are apart is 1 - m times what the first rank and this one were.
    """
    first = gaps[0]
    before = max((step for step in steps if step < first.step), default=None)
    if first.rank is None or before is None:
        return None
    now = [
        _sums(trace, first.rank, at) for trace, at in ((target, first.step), (reference, steps[first.step]))
    ]
    for side, trace, at in (("target", target, before), ("reference", reference, steps[before])):
        own, main = _sums(trace, first.rank, at), _sums(trace, min(trace.steps().get(at, [0])), at)
        shares = []
        for gap in gaps:
            sums = [held.get(gap.fqn) for held in (*now, own, main)]
            if gap.rank != first.rank or gap.step != first.step or None in sums or sums[3] == sums[2]:
                continue
            apart = (sums[0] or 0.0) - (sums[1] or 0.0)
            shares.append((apart if side == "target" else -apart) / ((sums[3] or 0.0) - (sums[2] or 0.0)))
        if len(shares) > 1 and 0 < shares[0] < 1 and max(shares) - min(shares) <= BUFFER_APART * shares[0]:
            return side
    return None


def _sums(trace: TraceSource, rank: int, step: int) -> Mapping[str, float | None]:
    return next(
        (_numbers(line, "buffer_sums") for line in trace.scalars(rank) if line.get("step") == step), {}
    )


def _apart(one: BufferFacts, other: BufferFacts) -> bool:
    known = one["content"] is not None and other["content"] is not None
    return one["dtype"] != other["dtype"] or (known and one["content"] != other["content"])


def _written(
    step: int, line: ScalarLine, other: ScalarLine, when: str = "", apart: float = BUFFER_APART
) -> list[WrittenBuffer]:
    found, (held, there) = [], (_numbers(one, f"buffers{when}") for one in (line, other))
    for fqn, target in held.items():
        reference = there.get(fqn)
        if target is None or reference is None:
            continue
        allowed = apart * max(target, reference)
        sums = [_numbers(side, f"buffer_sums{when}").get(fqn) for side in (line, other)]
        if abs(target - reference) > allowed:
            found.append(WrittenBuffer(fqn=fqn, step=step, target=target, reference=reference))
        elif sums[0] is not None and sums[1] is not None and abs(sums[0] - sums[1]) > allowed:
            found.append(WrittenBuffer(fqn=fqn, step=step, target=sums[0], reference=sums[1], by_norm=False))
    return found


def _numbers(line: ScalarLine, key: str) -> Mapping[str, float | None]:
    found = line.get(key)
    return found if isinstance(found, Mapping) else {}


def without_unfelt(gaps: BufferGaps, unfelt: Collection[tuple[float, float]]) -> BufferGaps:
    """The gaps without those of buffers that a module was given, as they are, and that come out nowhere (a
    mask that hides with another large number). What no record shows is read by no captured step, and may be
    by what is still to come.

    Args:
        gaps: where all records of the runs agree.
        unfelt: norms on both sides of the records that differ and come out nowhere.
    """

    def is_unfelt(gap: WrittenBuffer) -> bool:
        pairs = [((gap.target, one), (gap.reference, other)) for one, other in unfelt]
        return gap.by_norm and any(all(isclose(*side, rel_tol=SAME_NORM) for side in pair) for pair in pairs)

    return replace(gaps, written=[gap for gap in gaps.written if not is_unfelt(gap)])


def explain_by_buffers(origin: First, gaps: BufferGaps) -> None:
    """Note in ``origin`` the buffers of its module that differ from the start; the first becomes its headline
    unless something closer is known."""
    if origin.owner is None or origin.row.phase not in ("forward", "loss", "backward"):
        return
    for gap in gaps.before:
        if gap.step == origin.step and gap.module == origin.owner and origin.row.phase == "forward":
            facts: dict[str, Number | Place] = {
                "name": gap.fqn.rpartition(".")[2],
                "module": gap.module,
                "step": gap.step,
            }
            numbers: dict[str, Number | Place] = {"target": gap.target, "reference": gap.reference}
            begins = reason(EvidenceCode.BUFFER_BEGINS, by_norm=gap.by_norm, **facts, **numbers)
            origin.arguments.append(begins)
            origin.argument = origin.argument or reason(VerdictCode.BUFFER_BEGINS, **facts)
    for fqn, (target, reference) in gaps.initial.items():
        module, _, name = fqn.rpartition(".")
        if module != origin.owner:
            continue
        sides = {"target": target["dtype"], "reference": reference["dtype"]}
        numbers = {"target_numbers": _first(target), "reference_numbers": _first(reference)}
        differs = reason(EvidenceCode.BUFFER_DIFFERS, name=name, module=module, **sides, **numbers)
        origin.arguments.append(differs)
        origin.argument = origin.argument or reason(
            VerdictCode.BUFFER_DIFFERS, name=name, module=module, **sides
        )


def _first(buffer: BufferFacts) -> tuple[str, ...]:
    """Its first numbers, where the trace keeps them, and dots for more."""
    values = buffer.get("values") or ()
    return (*(f"{one:.4g}" for one in values[:_SHOWN]), *(["…"] if len(values) > _SHOWN else []))


_SHOWN = 4
"""of a buffer that one line shows"""


def settings_of_writers(gaps: BufferGaps, target: Attributes, reference: Attributes) -> list[Reason]:
    """Attributes that differ, of the modules whose buffers a step left different; each once."""
    found: dict[Reason, None] = {}
    for gap in gaps.written:
        own, others = target.get(gap.module, {}), reference.get(gap.module, {})
        for name, value in own.items():
            if name in others and value != others[name]:
                one = reason(
                    EvidenceCode.ARGUMENT_DIFFERS, name=name, target=str(value), reference=str(others[name])
                )
                found.setdefault(one)
    return list(found)
