"""One target against its references: aligned, measured, judged."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from trueup.curves.aligning import Alignment, align
from trueup.curves.columns import GRAD_NORM, LEARNING_RATE, LOSS, LOSS_SCALE, PART_LOSSES, SKIPPED
from trueup.curves.commands import Command, commands
from trueup.curves.conditions import ASSUMABLE, Condition, conditions, proofs
from trueup.curves.curve import Curve
from trueup.curves.judgement import CurveEvidence, CurveJudgement, judge, limits
from trueup.curves.local_norms import LocalNorms, compare_local_norms, norm_notes
from trueup.curves.pairing import CurveSide, PairedCurves, References, Shared, pair
from trueup.curves.standard import ADVISORY, Met, criteria
from trueup.curves.statistics.centred import centre
from trueup.curves.statistics.envelope import (
    Band,
    band,
    band_spread,
    envelope,
    mean_around,
    repeat_distances,
)
from trueup.curves.statistics.excursions import Excursions, excursions, spikes_of_reference
from trueup.curves.statistics.factor import Factor, factor
from trueup.curves.statistics.frozen import FrozenRun, frozen
from trueup.curves.statistics.health import Health, Plateau, health, overflows, plateaus, rates
from trueup.curves.statistics.late import late
from trueup.curves.statistics.noise import outliers
from trueup.curves.statistics.onset import Onset, moved, onset
from trueup.curves.statistics.parts import PartLoss, part_loss
from trueup.curves.statistics.passing import Passing, passing
from trueup.curves.statistics.spikes import Spikes, heights, spikes
from trueup.curves.statistics.trend import trended
from trueup.curves.thresholds import (
    DECIMALS_EXACT,
    DECIMALS_EXACT_REL,
    DECIMALS_FEWEST,
    FIRST_ABS,
    FIRST_REL,
    RISE,
)
from trueup.errors import NothingCompared
from trueup.types.arrays import Floats, Ints
from trueup.types.codes import CurvesCode as Curves
from trueup.types.reason import Reason, reason

VERSION = 2
_STRETCHES, _FEWEST_OF_A_STRETCH = 40, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a person may say of a comparison."""

    offset: int | None = None
    """target's step number minus the reference's; found where not given"""
    assumed: frozenset[str] = frozenset()
    stated: dict[str, str] = field(default_factory=dict)
    """conditions of the standard, as changed"""
    target_trace: Path | None = None
    reference_trace: Path | None = None
    program: str | None = None
    """the target's training command, for the commands to run next"""
    first: int | None = None
    last: int | None = None
    """only these steps, in the target's numbers"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveComparison:
    """The result: what reports are made of."""

    target: Curve
    references: tuple[Curve, ...]
    alignments: tuple[Alignment, ...]
    paired: PairedCurves
    band: Band | None
    evidence: CurveEvidence
    judgement: CurveJudgement
    conditions: tuple[Condition, ...]
    commands: tuple[Command, ...]
    local_norms: LocalNorms | None
    notes: tuple[Reason, ...]

    def difference(self, column: str) -> Floats | None:
        """target - mean of the references, (S,)."""
        target, reference = self.paired.target.get(column), self.paired.references.centre(column)
        return None if target is None or reference is None else target - reference

    def statistics(self) -> dict[str, dict[str, object] | None]:
        """Every number that was measured, by what it is about; None where it was not."""
        e = self.evidence
        parts = {
            "centre": e.centre,
            "onset": e.onset,
            "late": e.late,
            "envelope": e.envelope,
            "excursions": e.excursions,
            "passing": e.passing,
            "spikes": e.spikes,
            "grad_norm_spikes": e.norm_spikes,
            "learning_rates": e.rates,
            "learning_rate_0": e.frozen,
            "target_health": e.target_health,
            "reference_health": e.reference_health,
            "local_norms": self.local_norms,
        }
        found: dict[str, dict[str, object] | None] = {
            name: None if p is None else p.to_json() for name, p in parts.items()
        }
        return found | {one.column: one.to_json() for one in e.part_losses}

    def to_json(self) -> dict[str, object]:
        """The document of curves.json, but for the curves themselves."""
        return {
            "version": VERSION,
            "outcome": self.judgement.outcome.value,
            "exit_code": self.judgement.outcome.exit_code,
            "target": self.target.to_json(),
            "references": [curve.to_json() for curve in self.references],
            "alignments": [alignment.to_json() for alignment in self.alignments],
            "num_steps": len(self.paired.steps),
            "judgement": self.judgement.to_json(),
            "criteria": [criterion.to_json() for criterion in self.evidence.criteria],
            "statistics": self.statistics(),
            "conditions": [condition.to_json() for condition in self.conditions],
            "next": [command.to_json() for command in self.commands],
            "notes": list(self.notes),
            "standard": ADVISORY,
        }


def compare_curves(
    target: Curve,
    references: Sequence[Curve],
    options: Options | None = None,
    *,
    shared: Shared | None = None,
) -> CurveComparison:
    """Judge a run by its reference and the reference's repeats.

    ``shared``: an empty dictionary, given again with every target of the same references: saves work.

    Raises:
        NothingCompared: no reference, no step in common, or no loss and no gradient norm on both sides.
    """
    options = options or Options()
    if not references:
        raise NothingCompared("there is no reference to compare with")
    alignments = tuple(align(target, reference, offset=options.offset) for reference in references)
    paired = _cut(pair(target, references, alignments, shared), options)
    first = compare_local_norms(target, references[0], int(paired.steps[0]), alignments[0].offset, first=True)
    evidence, found_band = _evidence(paired, target, references, options, first, alignments[0].offset)
    judgement = judge(evidence)
    trace = options.target_trace or target.trace
    at = judgement.step if judgement.step is not None else int(paired.steps[0])
    norms = compare_local_norms(target, references[0], at, alignments[0].offset)
    return CurveComparison(
        target=target,
        references=tuple(references),
        alignments=alignments,
        paired=paired,
        band=found_band,
        evidence=evidence,
        judgement=judgement,
        conditions=tuple(conditions(trace, options.stated)),
        commands=tuple(commands(judgement, target, program=options.program, proved=_is_proved(evidence))),
        local_norms=norms,
        notes=(
            *_notes(target, references, alignments, paired),
            *norm_notes(target, references[0], norms),
        ),
    )


def _is_proved(evidence: CurveEvidence) -> bool:
    """Whether no proof is open that traces could give."""
    return not any(c.status is Met.UNDECIDED and c.key in ASSUMABLE for c in evidence.criteria)


def _cut(paired: PairedCurves, options: Options) -> PairedCurves:
    if options.first is None and options.last is None:
        return paired
    low = -math.inf if options.first is None else options.first
    high = math.inf if options.last is None else options.last
    keep = (paired.steps >= low) & (paired.steps <= high)
    if not keep.any():
        first, last = paired.steps[0], paired.steps[-1]
        raise NothingCompared(f"--steps leaves nothing: the common steps are {first} to {last}")

    def cut(side: CurveSide) -> CurveSide:
        return CurveSide(columns={name: values[keep] for name, values in side.columns.items()})

    return PairedCurves(
        steps=paired.steps[keep],
        target=cut(paired.target),
        references=References(steps=paired.steps[keep], sides=tuple(map(cut, paired.references.sides))),
        notes=paired.notes,
    )


def _evidence(
    paired: PairedCurves,
    target: Curve,
    references: Sequence[Curve],
    options: Options,
    norms: LocalNorms | None,
    offset: int,
) -> tuple[CurveEvidence, Band | None]:
    column = (
        LOSS
        if paired.target.get(LOSS) is not None and paired.references.centre(LOSS) is not None
        else GRAD_NORM
    )
    target_values, reference_values, repeats = (
        paired.target.get(column),
        paired.references.centre(column),
        paired.references.stacked(column),
    )
    if target_values is None or reference_values is None or repeats is None:
        raise NothingCompared(
            f"{target.name} and {references[0].name} have neither a loss nor a gradient norm in common"
        )
    steps, difference = paired.steps, target_values - reference_values
    found_rates = rates(
        paired.target.get(LEARNING_RATE), paired.references.sides[0].get(LEARNING_RATE), steps
    )
    still = _frozen(paired) if found_rates is not None and found_rates.all_zero else None
    from_the_first = options.first is None or options.first <= target.span[0]
    found = criteria(paired, target, references, frozen=still is not None, from_the_first=from_the_first)
    found += proofs(
        options.target_trace or target.trace,
        options.reference_trace or references[0].trace,
        assumed=options.assumed,
    )
    limit_abs, limit_rel = limits(found)
    spread = paired.references.once("spread", column, lambda: band_spread(repeats, reference_values))
    room = band(difference, reference_values, spread, floor_abs=limit_abs, floor_rel=limit_rel)
    gone_and_back, spiked = excursions(difference, reference_values, steps, len(repeats))
    reference_spikes, dipped = spikes_of_reference(difference, reference_values, steps)
    bad = outliers(np.where(spiked | dipped, np.nan, difference))
    if still is not None:
        gone_and_back = reference_spikes = None
    known = _known_until(difference)
    begin = int(np.argmax(np.isfinite(difference)))
    noise = None if bad.all() else trended(difference[begin:known], ~bad[begin:known])
    parting = None if still is not None else onset(difference[:known], steps[:known], bad[:known], noise)
    level = reference_values[np.isfinite(reference_values)]
    seen = envelope(
        target_values,
        repeats,
        room,
        steps,
        paired.references.once("apart", column, lambda: repeat_distances(repeats)),
    )
    under_way = _under_way(target, references[0], int(steps[0]), offset, from_the_first)
    flat = _plateaus(paired, trains=still is None)
    evidence = CurveEvidence(
        criteria=tuple(found),
        centre=centre(difference, bad, noise),
        onset=_no_later(parting, seen.first_exceedance, difference[:known], steps),
        late=None
        if still is not None
        else late(difference[:known], reference_values[:known], steps[:known], bad[:known]),
        envelope=seen,
        excursions=gone_and_back,
        passing=_passing(still, gone_and_back or reference_spikes, room, steps),
        factor=_loss_factor(paired),
        reference_excursions=reference_spikes,
        spikes=_spikes(paired, column),
        norm_spikes=_spikes(paired, GRAD_NORM),
        rates=found_rates,
        frozen=still,
        target_health=_health(paired.target, steps, target.broken_steps(), flat[0]),
        reference_health=_health(
            paired.references.sides[0],
            steps,
            {column: at + offset for column, at in references[0].broken_steps().items()},
            flat[1],
        ),
        limit_abs=limit_abs,
        limit_rel=limit_rel,
        level=float(level.mean()) if len(level) else math.nan,
        num_steps=len(steps),
        rises=parting is not None and _rises(target_values[:known], parting.index),
        mean_size=float(np.abs(difference[~bad]).mean()) if not bad.all() else math.nan,
        learned=_learned(reference_values),
        repeats_frozen=_frozen_repeats(paired, still),
        local_norms=norms,
        is_steady=_is_steady(difference[~bad]),
        under_way=under_way,
        part_losses=tuple(_part_losses(paired, under_way, from_the_first=from_the_first)),
    )
    return evidence, room


def _plateaus(paired: PairedCurves, *, trains: bool) -> tuple[Plateau | None, Plateau | None]:
    """Where the target's loss, and the reference's, stops falling although the other's goes on."""
    target, reference = paired.target.get(LOSS), paired.references.sides[0].get(LOSS)
    if not trains or target is None or reference is None:
        return None, None
    return plateaus(target, reference, paired.steps)


def _loss_factor(paired: PairedCurves) -> Factor | None:
    """The number that the target's loss is the reference's times."""
    target, reference = paired.target.get(LOSS), paired.references.centre(LOSS)
    return None if target is None or reference is None else factor(target, reference)


def _part_losses(
    paired: PairedCurves, under_way: tuple[str, int, int] | None, *, from_the_first: bool
) -> Iterator[PartLoss]:
    """Parts of the loss that both sides print, and that differ."""
    untrained = from_the_first and under_way is None
    for column in PART_LOSSES:
        target, references = paired.target.get(column), paired.references.stacked(column)
        if target is not None and references is not None:
            found = part_loss(column, target, references, paired.steps, from_the_first=untrained)
            yield from () if found is None else (found,)


def _passing(still: FrozenRun | None, spikes: Excursions | None, room: Band, steps: Ints) -> Passing | None:
    """A difference that goes again, which is no spike; nothing passes while no weight is updated."""
    return None if still is not None or spikes is not None else passing(room, steps)


def _no_later(found: Onset | None, left: int | None, difference: Floats, steps: Ints) -> Onset | None:
    """Nothing begins after the step from which on the thresholds are left for good."""
    if found is None or left is None or not found.is_sure or not found.grows or found.step <= left:
        return found
    return moved(found, difference, steps, int(np.searchsorted(steps, left)))


def _is_steady(difference: Floats) -> bool:
    """Whether the difference keeps its size: the means over stretches scatter by less than half of theirs."""
    parts = np.array_split(difference, max(1, min(_STRETCHES, len(difference) // _FEWEST_OF_A_STRETCH)))
    means = np.array([part.mean() for part in parts]) if len(difference) else np.zeros(1)
    return float(means.std()) <= abs(float(means.mean())) / 2


def _under_way(
    target: Curve, reference: Curve, first: int, offset: int, from_the_first: bool
) -> tuple[str, int, int] | None:
    """The side whose log has steps before the first common one, ``first``; both numbered as the target's.

    A run that counts from 0 has one step more than one that counts from 1: that step trains nothing before.
    """
    begins = {"target": target.span[0], "reference": reference.span[0] + offset}
    side = min(begins, key=lambda name: begins[name])
    interval = max(target.interval, reference.interval)
    if not from_the_first or first - begins[side] <= interval:
        return None
    return side, first, begins[side]


def _known_until(difference: Floats) -> int:
    """Steps before the runs have no finite difference any more: nothing is told of those after."""
    finite = np.flatnonzero(np.isfinite(difference))
    return int(finite[-1]) + 1 if len(finite) else len(difference)


def _spikes(paired: PairedCurves, column: str) -> Spikes | None:
    target, reference = paired.target.get(column), paired.references.centre(column)
    if target is None or reference is None:
        return None
    return spikes(
        heights(target), paired.references.once("heights", column, lambda: heights(reference)), paired.steps
    )


def _rises(loss: Floats, index: int) -> bool:
    """Whether a loss is higher at its end than around ``index``, by more than a late offset makes it."""
    num, window = len(loss), max(8, len(loss) // 50)
    before = mean_around(loss, max(0, index - window // 2), window)
    return mean_around(loss, num - 1, window) - before > RISE * abs(before)


def _learned(loss: Floats) -> float:
    """How far a loss fell from its first to its last steps."""
    num, window = len(loss), max(8, len(loss) // 50)
    return mean_around(loss, 0, min(window, 8)) - mean_around(loss, num - 1, window)


def _frozen_repeats(paired: PairedCurves, still: FrozenRun | None) -> FrozenRun | None:
    """A repeat of the reference against the reference, while no weight is updated."""
    sides = paired.references.sides
    return None if still is None or len(sides) < 2 else _frozen(replace(paired, target=sides[1]))


def _frozen(paired: PairedCurves) -> FrozenRun | None:
    target, reference = paired.target.get(LOSS), paired.references.sides[0].get(LOSS)
    if target is None or reference is None:
        return None
    norms = paired.target.get(GRAD_NORM), paired.references.sides[0].get(GRAD_NORM)
    return frozen(
        loss=(target, reference),
        norm=None if norms[0] is None or norms[1] is None else (norms[0], norms[1]),
        steps=paired.steps,
        threshold_abs=FIRST_ABS,
        threshold_rel=FIRST_REL,
    )


def _health(side: CurveSide, steps: Ints, broken: Mapping[str, Ints], flat: Plateau | None) -> Health:
    """``broken``: steps that logged NaN or infinity; what is missing before the first number is none."""
    bad = np.zeros(len(steps), bool)
    broke_as = finite_again = None
    for column in (GRAD_NORM, LOSS):
        values = side.get(column)
        if values is not None:
            known = np.isfinite(values)
            first = int(np.argmax(known)) if known.any() else len(steps)
            wrong = ~known
            wrong[:first] &= np.isin(steps[:first], broken.get(column, ()))
            if not wrong.any():
                continue
            bad |= wrong
            at = int(np.argmax(bad))
            if wrong[at]:
                broke_as = (column, "NaN" if np.isnan(values[at]) else "infinite")
                finite_again = next(iter(steps[at:][~wrong[at:]].tolist()), None)
    overflow = overflows(side.get(LOSS_SCALE), side.get(SKIPPED))
    return health(
        steps=steps, bad=bad, overflow=overflow, plateau=flat, broke_as=broke_as, finite_again=finite_again
    )


def _notes(
    target: Curve, references: Sequence[Curve], alignments: Collection[Alignment], paired: PairedCurves
) -> Iterator[Reason]:
    for reference, alignment in zip(references, alignments, strict=True):
        if alignment.offset or alignment.basis == "assumed":
            names = {"target": target.name, "reference": reference.name}
            yield reason(Curves.ALIGNED, alignment.reason, **names)
    yield from paired.notes
    for curve in (target, *references):
        yield from (reason(Curves.OF_CURVE, note, curve=curve.name) for note in curve.notes)
        for restart in curve.restarts:
            yield reason(
                Curves.RESTARTED,
                curve=curve.name,
                step=restart.step,
                num=restart.num_steps,
                max_loss_diff=restart.max_loss_diff,
            )
        places = decimals(curve.values(LOSS))
        if places is not None and places <= 3:
            yield reason(Curves.FEW_DECIMALS, curve=curve.name, places=places, unseen=0.5 * 10**-places)


def decimals(values: Floats | None) -> int | None:
    """How many decimals the numbers were printed with, if 5 or fewer.

    Told by the numbers that are not the one before them: how often one is printed again tells nothing more.
    """
    if values is None:
        return None
    some = values[np.isfinite(values)][:200]
    some = some[np.diff(some, prepend=np.inf) != 0]
    if len(some) < DECIMALS_FEWEST:
        return None
    for places in range(6):
        scaled = some * 10**places
        if np.abs(scaled - np.round(scaled)).max() < DECIMALS_EXACT + DECIMALS_EXACT_REL * float(
            np.abs(scaled).max()
        ):
            return places
    return None
