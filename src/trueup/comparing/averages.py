"""Averaged copies of the weights that both runs keep (moving averages, target networks), as steps left them.

They are no part of a step's calls, and training does not read them: judged where everything else agrees. With
a the average, w the weights it is made of and a' = d a + (1 - d) w, in each tensor

    ||a'_t - a'_r|| <= ||a_t - a_r|| + m max(||w_t - w_r|| before, after the update) + 4 u ||a'_r||,

each difference on the right as measured and accepted; m is the share of the weights that the reference takes
up, min(1, 2 ||a' - a|| / ||w - a||): twice, since it may have averaged before the update, when the weights
were nearer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from trueup.comparing.average_fit import Averaged, AverageFit, AverageForm, decays_differ, fit_of, rounding_of
from trueup.comparing.thresholds import AVERAGE_CLEAR, AVERAGE_ROUNDINGS, AVERAGE_SHARE
from trueup.numerics.dtypes import DTYPES, rounded_to
from trueup.store import StepView, TraceSource, step_view
from trueup.store.view import WEIGHT
from trueup.types.arrays import Bools, Floats
from trueup.types.codes import EvidenceCode, NoteCode, VerdictCode
from trueup.types.reason import Number, Place, Reason, reason
from trueup.types.trace import AverageFacts

_OWN = "weight"
"""the slot of what the model itself holds then"""
_MOST_COPIES = 4
_MOST_NUMBERS = 1 << 22
"""of a copy, beyond which sketches are read in place of values: costs memory"""
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageGap:
    """The first step after which averaged weights differ by more than rounding."""

    step: int
    names: tuple[str, ...]
    """of the tensors that do, the furthest beyond its tolerance first"""
    rel_l2: float
    tolerance: float
    """of that, relative"""
    headline: Reason
    evidence: tuple[Reason, ...]
    """what each side's numbers fit"""
    is_explained: bool = False
    """each run's own numbers say so"""
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageGaps:
    """What the averaged weights of two runs tell."""

    gap: AverageGap | None = None
    notes: tuple[Reason, ...] = ()
    equal: int = 0
    """averaged tensors of all steps that are bit-identical"""
    within: int = 0
    """those that differ within what they are made of and rounding explain, or are not known to be the same"""


class _Side:
    """Averaged weights of one run."""

    def __init__(self, source: TraceSource, rank: int) -> None:
        self.source = source
        self.rank = rank
        facts = source.rank_facts(self.rank)
        self.is_known = "averages" in facts
        self.copies: dict[str, AverageFacts] = {one["slot"]: one for one in facts.get("averages") or []}
        self._books: dict[int, StepView | None] = {}

    def book(self, step: int) -> StepView | None:
        """The averaged weights of a step; None where none were recorded."""
        if step not in self._books:
            tables = step_view(self.source, step, self.rank).tables if step in self.source.steps() else None
            averages = None if tables is None else tables.averages
            self._books[step] = None if averages is None else StepView(self.source, averages)
        return self._books[step]

    def of_step(self, step: int, slot: str) -> _Step | None:
        """One copy as a step left it."""
        book = self.book(step)
        if book is None:
            return None
        records: dict[str, dict[str, int]] = {}
        for record, call in enumerate(book.record_call):
            records.setdefault(book.name[call], {})[book.slot[record]] = record  # the last that was made
        held = {fqn: of for fqn, of in records.items() if slot in of and _OWN in of}
        return _Step(side=self, step=step, slot=slot, book=book, records=held) if held else None


@dataclass(frozen=True, kw_only=True)
class _Step:
    side: _Side
    step: int
    slot: str
    book: StepView
    records: Mapping[str, Mapping[str, int]]

    @cached_property
    def before(self) -> _Step | None:
        """The same copy a step earlier, where that was recorded."""
        return self.side.of_step(self.step - 1, self.slot)

    @cached_property
    def weights_before(self) -> StepView:
        """The step's own records: it begins with the weights before its update."""
        return step_view(self.side.source, self.step, self.side.rank)

    @cached_property
    def is_small(self) -> bool:
        """Whether values are read, where they are stored."""
        shapes = (self.book.shape(of[self.slot]) or () for of in self.records.values())
        return sum(map(math.prod, shapes)) <= _MOST_NUMBERS

    def numbers(self, book: StepView, record: int) -> Floats | None:
        """Stored values, else the sketch; in one dimension."""
        value = book.value(record) if self.is_small else None
        return book.sketch(record) if value is None else value.reshape(-1)

    def average(self, fqn: str) -> Floats | None:
        """Values or sketch."""
        return self.numbers(self.book, self.records[fqn][self.slot])

    def weight(self, fqn: str) -> Floats | None:
        """What the model held then."""
        return self.numbers(self.book, self.records[fqn][_OWN])

    def average_before(self, fqn: str) -> Floats | None:
        """What the average was before the step: of the step before, else what it was found as."""
        if self.before is not None:
            return self.before.average(fqn) if fqn in self.before.records else None
        held = self.side.copies[self.slot]["held"]
        if held is None or held > self.step or any(self.side.book(s) for s in range(held, self.step)):
            return None
        return self._weight_at(held, fqn)

    def held(self, fqn: str) -> Floats | None:
        """Stored values alone, not a sketch."""
        value = self.book.value(self.records[fqn][self.slot])
        return None if value is None or not self.is_small else value.reshape(-1).astype(np.float64)

    def held_before(self, fqn: str) -> Floats | None:
        """The same of the step before, or of the weights it was found as."""
        if self.before is not None:
            return self.before.held(fqn) if fqn in self.before.records else None
        before = self.average_before(fqn)
        return None if before is None or self.held(fqn) is None else before.astype(np.float64)

    def weight_before(self, fqn: str) -> Floats | None:
        """w0."""
        if self.before is not None and fqn in self.before.records:
            return self.before.weight(fqn)
        return self._weight_at(self.step, fqn)

    def _weight_at(self, step: int, fqn: str) -> Floats | None:
        if step not in self.side.source.steps():
            return None
        book = step_view(self.side.source, step, self.side.rank)
        record = book.parameter(fqn, *WEIGHT)
        return None if record is None else self.numbers(book, record)

    def rounding(self, fqn: str) -> float:
        """Of one average, as a length."""
        record = self.records[fqn][self.slot]
        return rounding_of(self.book.norm(record) or 0.0, _roundoff(self.book.dtype(record)))

    def fit(self) -> AverageFit | None:
        """By the parameters whose numbers are all known."""
        parts, parameters = [], self.weights_before.of_parameter
        for fqn in self.records:
            if fqn not in parameters:  # a buffer, of which no trace holds what it was
                continue
            before, after, weight = self.average_before(fqn), self.average(fqn), self.weight(fqn)
            if (
                before is None
                or after is None
                or weight is None
                or len({one.shape for one in (before, after, weight)}) > 1
            ):
                continue
            old = self.weight_before(fqn)
            old = old if old is None or old.shape == after.shape else None
            parts.append(
                Averaged(
                    before=before, after=after, weight=weight, weight_before=old, rounding=self.rounding(fqn)
                )
            )
        return fit_of(parts)


def average_gaps(target: TraceSource, reference: TraceSource, steps: Mapping[int, int]) -> AverageGaps:
    """Of every rank where both runs have the same ones, else of the first; ``steps``: target step ->
    reference step. What a trace does not keep differs in nothing."""
    ranks = [min(source.steps().values(), default=[0]) for source in (target, reference)]
    pairs = list(zip(*ranks, strict=True)) if ranks[0] == ranks[1] else [(ranks[0][0], ranks[1][0])]
    lacking = ranks_without_average(target, reference)
    found = [
        _of_rank((_Side(target, own), _Side(reference, other)), steps)
        for own, other in pairs
        if lacking is None or own not in lacking[1]
    ]
    gaps = [one.gap for one in found if one.gap is not None]
    notes = tuple(dict.fromkeys(note for one in found for note in one.notes))
    equal, within = sum(one.equal for one in found), sum(one.within for one in found)
    if lacking is not None:
        side, without = lacking
        notes += (reason(NoteCode.AVERAGES_OF_RANKS, side=side, ranks=list(map(str, without))),)
    elif not gaps and equal + within:
        notes += (reason(NoteCode.AVERAGES_AGREE, equal=equal, within=within),)
    first = min(gaps, key=lambda gap: gap.step, default=None)
    return AverageGaps(gap=first, notes=notes, equal=equal, within=within)


def ranks_without_average(target: TraceSource, reference: TraceSource) -> tuple[str, list[int]] | None:
    """Which run writes no copy of the weights on some ranks, where it does on others, and the other run on
    all of the same ranks; None where there is none."""
    ranks = [min(source.steps().values(), default=[0]) for source in (target, reference)]
    if ranks[0] != ranks[1] or len(ranks[0]) < 2:
        return None
    facts = [[source.rank_facts(rank) for rank in ranks[0]] for source in (target, reference)]
    if not all("averages" in one for of in facts for one in of):
        return None
    held = [[bool(one["averages"]) for one in of] for of in facts]
    for side, own, other in (("target", held[0], held[1]), ("reference", held[1], held[0])):
        if all(other) and any(own) and not all(own):
            return side, [rank for rank, has in zip(ranks[0], own, strict=True) if not has]
    return None


def _of_rank(sides: tuple[_Side, _Side], steps: Mapping[int, int]) -> AverageGaps:
    if not all(side.is_known for side in sides) or not any(side.copies for side in sides):
        return AverageGaps()
    counts = [len(side.copies) for side in sides]
    if 0 in counts:
        own = ("reference", "target")[counts[1] == 0]
        kinds = [one["kind"] for one in sides[counts[0] == 0].copies.values()]
        return AverageGaps(notes=(reason(NoteCode.AVERAGES_OF_ONE_SIDE, side=own, kinds=kinds),))
    if counts[0] != counts[1] or counts[0] > _MOST_COPIES:
        code = NoteCode.AVERAGES_NOT_PAIRED
        return AverageGaps(notes=(reason(code, target=counts[0], reference=counts[1]),))
    found = [_gap_of(sides, pair, steps) for pair in _paired(sides, steps)]
    gaps = [replace(one.gap, rank=sides[0].rank) for one in found if one.gap is not None]
    return AverageGaps(
        gap=min(gaps, key=lambda gap: gap.step, default=None),
        notes=tuple(dict.fromkeys(note for one in found for note in one.notes)),
        equal=sum(one.equal for one in found),
        within=sum(one.within for one in found),
    )


def _paired(sides: tuple[_Side, _Side], steps: Mapping[int, int]) -> list[tuple[str, str]]:
    """Copies of both runs, each with the one that it is nearest to, all together."""
    target_copies, reference_copies = (list(side.copies) for side in sides)
    if len(target_copies) == 1:
        return [(target_copies[0], reference_copies[0])]
    orders = [
        list(zip(target_copies, order, strict=True)) for order in itertools.permutations(reference_copies)
    ]

    def apart(pairs: list[tuple[str, str]]) -> tuple[float, float]:
        single, lengths = zip(*(_distance(sides, pair, steps) for pair in pairs), strict=True)
        return sum(single), sum(lengths)

    return min(orders, key=apart)


def _distance(
    sides: tuple[_Side, _Side], pair: tuple[str, str], steps: Mapping[int, int]
) -> tuple[float, float]:
    """How many tensors one copy alone holds, and how far the others are apart, after the last step that has
    both."""
    for step, other in sorted(steps.items(), reverse=True):
        one, two = sides[0].of_step(step, pair[0]), sides[1].of_step(other, pair[1])
        if one is not None and two is not None:
            lengths = (_apart(one, two, fqn, own=False) for fqn in one.records if fqn in two.records)
            return len(one.records.keys() ^ two.records.keys()), sum(one or 0.0 for one in lengths)
    return math.inf, 0.0


@dataclass(slots=True)
class _Accepted:
    """Differences that steps so far left, by tensor."""

    averages: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    equal: int = 0
    within: int = 0


def _gap_of(sides: tuple[_Side, _Side], pair: tuple[str, str], steps: Mapping[int, int]) -> AverageGaps:
    accepted, fits = _Accepted(), []
    first: AverageGap | None = None
    notes: dict[Reason, None] = {}
    for step, other in sorted(steps.items()):
        one, two = sides[0].of_step(step, pair[0]), sides[1].of_step(other, pair[1])
        if one is None or two is None:
            continue
        if not one.records.keys() & two.records.keys():  # two implementations, by other names
            notes.setdefault(reason(NoteCode.AVERAGES_NOT_PAIRED, target=1, reference=1))
            continue
        fits.append((step, one.fit(), two.fit()))
        for side, own_step, other_step in (("target", one, two), ("reference", two, one)):
            if unpaired := [fqn for fqn in own_step.records if fqn not in other_step.records]:
                notes.setdefault(
                    reason(NoteCode.AVERAGED_IN_ONE, side=side, num=len(unpaired), name=unpaired[0])
                )
        first = first or _beyond(one, two, accepted) or _lost(one, two)
    if first is not None and not first.is_explained:
        constant = [{*side.copies[slot]["constant"]} for side, slot in zip(sides, pair, strict=True)]
        made = [
            [one for at in numbers if (one := side.of_step(at, slot)) is not None]
            for side, slot, numbers in zip(sides, pair, (sorted(steps), sorted(steps.values())), strict=True)
        ]
        first = _explained(first, fits, constant, made)
    return AverageGaps(gap=first, notes=tuple(notes), equal=accepted.equal, within=accepted.within)


def _beyond(one: _Step, two: _Step, accepted: _Accepted) -> AverageGap | None:
    """What differs by more than it may after a step; what may is accepted."""
    beyond: list[tuple[float, str, float, float]] = []
    for fqn in one.records:
        difference = _apart(one, two, fqn, own=False) if fqn in two.records else None
        weights = _apart(one, two, fqn, own=True) if fqn in two.records else None
        if difference is None or weights is None:
            continue
        norm = two.book.norm(two.records[fqn][two.slot]) or 0.0
        allowed = accepted.averages.get(fqn, 0.0) + max(one.rounding(fqn), two.rounding(fqn))
        allowed += _taken_up(two, fqn) * max(weights, accepted.weights.get(fqn, 0.0))
        same = difference == 0 and _is_same(one, two, fqn)
        accepted.equal += same
        accepted.within += not same and difference <= allowed
        if difference > allowed:
            score = difference / allowed if allowed else math.inf
            beyond.append(
                (score, fqn, difference / norm if norm else math.inf, allowed / norm if norm else 0.0)
            )
        accepted.averages[fqn], accepted.weights[fqn] = difference, weights
    if not beyond:
        return None
    beyond.sort(key=lambda found: -found[0])
    _, name, rel_l2, tolerance = beyond[0]
    num = len(beyond)
    return AverageGap(
        step=one.step,
        names=tuple(fqn for _, fqn, _, _ in beyond),
        rel_l2=rel_l2,
        tolerance=tolerance,
        headline=reason(VerdictCode.AVERAGES_DIFFER, num=num, step=one.step, name=name),
        evidence=(
            reason(
                EvidenceCode.AVERAGES_APART,
                num=num,
                step=one.step,
                name=name,
                rel_l2=rel_l2,
                tolerance=tolerance,
            ),
        ),
    )


def _lost(one: _Step, two: _Step) -> AverageGap | None:
    """What a step moves less than half the spacing of the dtype that one run alone keeps averages in, and
    which stays there: most of what the step moves. With m the share of the weights that is taken up, such an
    average stops u / m away from them, which is no rounding of one average where m is less than a fourth."""
    for coarse, fine, side in ((one, two, "target"), (two, one, "reference")):
        moved = lost = 0
        dtypes: dict[str, None] = {}
        for fqn in coarse.records:
            parts = _in_two_dtypes(coarse, fine, fqn)
            if parts is None:
                continue
            dtype, kept, stayed, step = parts
            lost += int((stayed & (step != 0) & (rounded_to(kept + step, dtype) == kept)).sum())
            moved += int(np.count_nonzero(step))
            dtypes[dtype] = None
        if not 2 * lost > moved:
            continue
        facts: dict[str, Number | Place] = {
            "side": side,
            "dtype": next(iter(dtypes)),
            "step": one.step,
            "share": lost / moved,
        }
        names = tuple(fqn for fqn in one.records if fqn in two.records)
        return AverageGap(
            step=one.step,
            names=names,
            rel_l2=0.0,
            tolerance=0.0,
            headline=reason(VerdictCode.AVERAGES_LOSE_CHANGES, **facts),
            evidence=(reason(EvidenceCode.AVERAGES_STAY, num=lost, total=moved, **facts),),
            is_explained=True,
        )
    return None


def _in_two_dtypes(coarse: _Step, fine: _Step, fqn: str) -> tuple[str, Floats, Bools, Floats] | None:
    """Dtype of a coarse average, its numbers before the step, whether each stays, and what the other run's
    step adds to each; None of others, and where an average takes up a fourth of the weights or more."""
    if fqn not in fine.records:
        return None
    dtype = coarse.book.dtype(coarse.records[fqn][coarse.slot])
    weight = coarse.book.dtype(coarse.records[fqn][_OWN])
    other = fine.book.dtype(fine.records[fqn][fine.slot])
    if dtype not in ("float16", "bfloat16") or not _roundoff(dtype) > max(
        _roundoff(weight), _roundoff(other)
    ):
        return None
    numbers = [coarse.held_before(fqn), coarse.held(fqn), fine.held_before(fqn), fine.held(fqn)]
    weights = fine.weight(fqn)
    if any(one is None or weights is None or one.shape != weights.shape for one in numbers):
        return None
    before, after, start, end = (one for one in numbers if one is not None)
    assert weights is not None
    kept, step = rounded_to(before, dtype), end - start
    if AVERAGE_ROUNDINGS * float(np.linalg.norm(step)) >= float(np.linalg.norm(weights - start)):
        return None
    return dtype, kept, kept == after, step


def _apart(one: _Step, two: _Step, fqn: str, *, own: bool) -> float | None:
    """||t - r|| of a tensor, exact from values, else from sketches or norms; None where nothing tells."""
    slots = (_OWN, _OWN) if own else (one.slot, two.slot)
    a, b = one.records[fqn][slots[0]], two.records[fqn][slots[1]]
    if one.book.shape(a) != two.book.shape(b):
        return None
    digest, alike = one.book.digest(a), one.book.dtype(a) == two.book.dtype(b)
    if digest is not None and alike and digest == two.book.digest(b):
        return 0.0
    x, y = one.numbers(one.book, a), two.numbers(two.book, b)
    if x is not None and y is not None and x.shape == y.shape:
        return float(np.linalg.norm(x - y))
    norms = one.book.norm(a), two.book.norm(b)
    return None if norms[0] is None or norms[1] is None else abs(norms[0] - norms[1])


def _is_same(one: _Step, two: _Step, fqn: str) -> bool:
    """Whether an average has the same bits in both: norms, sketches and values of two dtypes do not tell."""
    a, b = one.records[fqn][one.slot], two.records[fqn][two.slot]
    if one.book.dtype(a) != two.book.dtype(b):
        return False
    digests = one.book.digest(a), two.book.digest(b)
    if None not in digests:
        return digests[0] == digests[1]
    values = one.book.value(a), two.book.value(b)
    return values[0] is not None and values[1] is not None and np.array_equal(values[0], values[1])


def _taken_up(step: _Step, fqn: str) -> float:
    before, after, weight = step.average_before(fqn), step.average(fqn), step.weight(fqn)
    if before is None or after is None or weight is None or not before.shape == after.shape == weight.shape:
        return 1.0
    return taken_up(before, after, weight)


def taken_up(before: Floats, after: Floats, weight: Floats) -> float:
    """m: the largest share of the weights that an average may have taken up in a step."""
    length = float(np.linalg.norm(weight - before))
    return min(1.0, AVERAGE_SHARE * float(np.linalg.norm(after - before)) / length) if length else 1.0


def _roundoff(dtype: str | None) -> float:
    return DTYPES[dtype].eps if dtype in DTYPES else 0.0


# -- why ------------------------------------------


def _explained(
    gap: AverageGap,
    fits: Sequence[tuple[int, AverageFit | None, AverageFit | None]],
    constant: Sequence[set[str]],
    made: Sequence[Sequence[_Step]],
) -> AverageGap:
    """With the cause that each side's own numbers tell; ``made``: the copies of either side, step by step."""
    for at, side in enumerate(("target", "reference")):
        own_constants, other_constants = constant[at], constant[1 - at]
        if gap.names and all(fqn in own_constants - other_constants for fqn in gap.names):
            if any(_moves_elsewhere(one, fqn) for one in made[1 - at] for fqn in gap.names):
                return gap  # no average on the other side either
            num, shown = len(gap.names), gap.names[:_SHOWN]
            constants_kept = reason(EvidenceCode.AVERAGE_CONSTANT, side=side, names=shown, num=num)
            headline = reason(VerdictCode.AVERAGE_LEAVES_OUT, side=side, num=num, name=gap.names[0])
            return replace(
                gap, headline=headline, evidence=(*gap.evidence, constants_kept), is_explained=True
            )
    fitted = [
        (_cause(one, two, step), _fit_reasons(one, two, step))
        for step, one, two in fits
        if one is not None and two is not None and AverageForm.OPEN not in (one.form, two.form)
    ]
    for cause, both in fitted:
        if cause is not None:
            return replace(gap, headline=cause, evidence=(*gap.evidence, *both), is_explained=True)
    return replace(gap, evidence=(*gap.evidence, *fitted[-1][1])) if fitted else gap


def _moves_elsewhere(step: _Step, fqn: str) -> bool:
    """Whether a buffer moves in a step, and not towards the model's: running statistics of a copy that is
    called itself are no average."""
    before, after, weight = step.average_before(fqn), step.average(fqn), step.weight(fqn)
    if fqn in step.weights_before.of_parameter or before is None or after is None or weight is None:
        return False
    if not before.shape == after.shape == weight.shape:
        return False
    moved, towards = after - before, weight - before
    square = float(towards @ towards)
    left = moved - (float(moved @ towards) / square * towards if square else 0.0)
    return float(np.linalg.norm(left)) > AVERAGE_CLEAR * step.rounding(fqn)


def _cause(one: AverageFit, two: AverageFit, step: int) -> Reason | None:
    """What the forms of both sides, or what they keep, differ by; None where one does not move, as before the
    first update."""
    forms = one.form, two.form
    if AverageForm.UNMOVED in forms:
        return None
    if forms[0] is not forms[1]:
        if AverageForm.BOTH in forms:
            side = "target" if one.form is AverageForm.BOTH else "reference"
            return reason(VerdictCode.AVERAGES_TWICE, side=side)
        side = "target" if one.form is AverageForm.BEFORE else "reference"
        return reason(VerdictCode.AVERAGES_BEFORE_UPDATE, side=side)
    if not decays_differ(one, two):
        return None
    return reason(VerdictCode.AVERAGE_DECAY_DIFFERS, step=step, target=one.decay, reference=two.decay)


def _fit_reasons(one: AverageFit, two: AverageFit, step: int) -> tuple[Reason, ...]:
    return tuple(
        reason(
            EvidenceCode.AVERAGED_AS,
            side=side,
            step=step,
            decay=fit.decay,
            new=fit.new,
            old=fit.old,
            error=fit.error,
        )
        for side, fit in (("target", one), ("reference", two))
    )
