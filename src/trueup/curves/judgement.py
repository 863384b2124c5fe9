"""Which case of the accuracy guide a pair of curves is, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trueup.curves.local_norms import LocalNorms
from trueup.curves.standard import Criterion, Met
from trueup.curves.statistics.centred import Centre
from trueup.curves.statistics.envelope import Envelope
from trueup.curves.statistics.excursions import Excursions
from trueup.curves.statistics.factor import Factor
from trueup.curves.statistics.frozen import FrozenRun
from trueup.curves.statistics.health import Health, Rates
from trueup.curves.statistics.late import Late
from trueup.curves.statistics.onset import Onset
from trueup.curves.statistics.parts import PartLoss
from trueup.curves.statistics.passing import Passing
from trueup.curves.statistics.spikes import Spikes
from trueup.curves.thresholds import (
    CONVERGED,
    EARLY,
    LATE_LEVEL,
    MEAN_ABS,
    MEAN_REL,
    ONSET_INTERVAL,
    PLATEAU_HIGH,
    SPIKE_AT_ONSET,
    SYSTEMATIC,
)
from trueup.types.codes import Code, CriterionCode
from trueup.types.codes import CurvesCode as Curves
from trueup.types.reason import Number, Reason, reason
from trueup.types.status import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveEvidence:
    """All that was measured of one target."""

    criteria: tuple[Criterion, ...]
    centre: Centre | None
    onset: Onset | None
    late: Late | None
    envelope: Envelope | None
    spikes: Spikes | None
    norm_spikes: Spikes | None
    rates: Rates | None
    frozen: FrozenRun | None
    target_health: Health
    reference_health: Health
    limit_abs: float
    """how far the mean may be off: the standard's, or the reference's own fluctuation"""
    limit_rel: float
    level: float
    """mean loss of the reference"""
    num_steps: int
    rises: bool
    """whether the target's loss is higher at the end than around the onset, by more than an offset is"""
    mean_size: float
    """mean |difference|, without outliers"""
    learned: float
    """how far the reference's loss fell"""
    excursions: Excursions | None
    passing: Passing | None
    """a difference that goes again"""
    repeats_frozen: FrozenRun | None
    """a repeat against the reference, where no weight is updated"""
    local_norms: LocalNorms | None
    """of the first step"""
    factor: Factor | None = None
    """the number that the target's loss is the reference's times"""
    reference_excursions: Excursions | None = None
    """spikes of the reference that the target has not"""
    is_steady: bool = True
    """whether the difference keeps its size over stretches of the run"""
    part_losses: tuple[PartLoss, ...] = ()
    """parts of the loss, printed by themselves, that differ"""
    under_way: tuple[str, int, int] | None = None
    """the side that trained before the first common step, that step, and where its log begins; in the
    target's numbers"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveJudgement:
    """The verdict on one target."""

    outcome: Outcome
    case: str
    headline: Reason
    reasons: tuple[Reason, ...]
    """why, most telling first"""
    remarks: tuple[Reason, ...]
    """what does not change the outcome and should be known"""
    advice: tuple[Reason, ...]
    """the guide's next steps"""
    step: int | None
    """the step to look at"""

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "outcome": self.outcome.value,
            "case": self.case,
            "headline": self.headline,
            "reasons": list(self.reasons),
            "remarks": list(self.remarks),
            "advice": list(self.advice),
            "step": self.step,
        }


@dataclass(frozen=True, slots=True)
class _Case:
    """A case of the guide, before it is known whether all criteria are proved."""

    name: str
    headline: Reason
    step: int | None = None
    advice: tuple[Reason, ...] = ()


def judge(evidence: CurveEvidence) -> CurveJudgement:
    """Decide. A decisive criterion that is not met, a loss that is not finite in the target alone, or a gap
    larger than the standard allows that the noise does not explain makes the runs differ; what could not be
    proved, and what somebody must look at first, leaves them undecided."""
    failed = [c for c in evidence.criteria if c.decisive and c.status is Met.NOT_MET]
    open_ = [c for c in evidence.criteria if c.decisive and c.status is Met.UNDECIDED]
    case = _case(evidence, failed)
    headline = case.headline
    if failed or case.name in _DIFFERING:
        outcome = Outcome.DIFFER
    elif case.name in FINDINGS:
        outcome = Outcome.UNDECIDED
    elif open_:
        outcome = Outcome.UNDECIDED
        headline = reason(Curves.NOT_PROVED, headline, criteria=[c.key for c in open_])
    else:
        outcome = Outcome.AGREE
    return CurveJudgement(
        outcome=outcome,
        case=case.name,
        headline=headline,
        reasons=(*map(_failed, failed), *_reasons(evidence, case.name)),
        remarks=tuple(_remarks(evidence, outcome, case.name)),
        advice=case.advice,
        step=case.step,
    )


_DIFFERING = {
    "not_finite",
    "first_step_gap",
    "second_step_gap",
    "does_not_converge",
    "plateau_too_high",
    "loss_diffusion",
    "late_difference",
    "steady_offset",
    "learning_rates_differ",
    "passing_difference",
}
_MAY_PASS = {"loss_diffusion", "late_difference", "steady_offset", "fluctuation"}
"""cases that say that a difference stays, or is scatter"""
_COLUMNS = {"grad_norm": "gradient norm"}
_STUCK = {"does_not_converge", "plateau_too_high"}
FINDINGS = {"spike", "local_norm", "part_loss"}
"""cases that do not reject a run, and do not let it be accepted before somebody looked"""
_DATA_ADVICE: tuple[Reason, ...] = (
    reason(Curves.LOOK_AT_BATCHES),
    reason(Curves.LEAVE_BATCH_OUT),
    reason(Curves.LOOK_FOR_OVERFLOW),
)
_FORWARD_ADVICE: tuple[Reason, ...] = (
    reason(Curves.COMPARE_FIRST_FORWARD),
    reason(Curves.DIAGNOSE_FIRST_STEP),
)
_OPTIMIZER_ADVICE: tuple[Reason, ...] = (reason(Curves.CHECK_OPTIMIZER), reason(Curves.CHECK_PRECISION))


def _case(e: CurveEvidence, failed: Sequence[Criterion]) -> _Case:
    case = _standing(e, failed)
    if e.passing is None or case.name not in _MAY_PASS or _late_gap(e):
        return case
    advice = (*_DATA_ADVICE, *_OPTIMIZER_ADVICE)
    return _Case("passing_difference", _passes(e.passing), e.passing.first_step, advice)


def _standing(e: CurveEvidence, failed: Sequence[Criterion]) -> _Case:
    """The case of a difference that stays, or that is scatter."""
    names = {c.key for c in failed}
    broken = _not_finite(e, failed)
    if broken is not None:
        return broken
    if e.frozen is not None:
        return _of_frozen(e, e.frozen, failed)
    scaled = _of_factor(e, names)
    if scaled is not None:
        return scaled
    if "first_loss" in names:
        return _of_first(e, failed)
    late_gap = _late_gap(e)
    systematic = "mean_loss" in names and _to_one_side(e)
    gap = e.centre is not None and not e.centre.is_centred and (systematic or _beyond(e, e.centre.mean))
    first_rate = None if e.rates is None else e.rates.first_different
    differ = "mean_loss" in names or late_gap or gap
    if first_rate is not None and differ and not _began_before(e, first_rate):
        headline = reason(Curves.LEARNING_RATES, step=first_rate)
        return _Case("learning_rates_differ", headline, first_rate, _OPTIMIZER_ADVICE[:1])
    return (
        _of_plateau(e, late_gap=late_gap)
        or _of_training(e, late_gap=late_gap, gap=gap, systematic=systematic)
        or _of_findings(e)
        or _missing(failed)
        or _of_standard(e, names, failed)
    )


def _of_factor(e: CurveEvidence, names: set[str]) -> _Case | None:
    """A loss that is the reference's times one number."""
    if e.factor is None or not names & {"first_loss", "mean_loss"}:
        return None
    headline = reason(Curves.FACTOR, factor=e.factor.factor, residual=e.factor.residual)
    return _Case("first_step_gap", headline, None, (reason(Curves.CHECK_REDUCTION), *_FORWARD_ADVICE))


def _not_finite(e: CurveEvidence, failed: Sequence[Criterion]) -> _Case | None:
    """NaN or infinity of the target where the reference has none."""
    health = e.target_health
    lost = any(c.note is not None and c.note.code is CriterionCode.LOST_LOSSES for c in failed)
    if health.num_not_finite <= e.reference_health.num_not_finite and not (lost and health.not_finite):
        return None
    at = health.not_finite[0]
    advice: tuple[Reason, ...] = (reason(Curves.OVERFLOW_CHECK), *_DATA_ADVICE[:2])
    column, what = health.broke_as or ("loss", "NaN")
    shown = _COLUMNS.get(column, column)
    headline = reason(Curves.NOT_FINITE, step=at, column=shown, what=what, again=health.finite_again)
    return _Case("not_finite", headline, at, advice)


def _of_first(e: CurveEvidence, failed: Sequence[Criterion]) -> _Case:
    """The first loss differs, or one log has none there. In the middle of a run the weights may be what
    differs: a run that goes on from a checkpoint."""
    missing = _missing([c for c in failed if c.key == "first_loss"])
    if missing is not None:
        return missing
    if e.under_way is not None:
        side, step, begins = e.under_way
        headline = reason(Curves.FIRST_COMMON, side=side, step=step, begins=begins)
        return _Case("first_step_gap", headline, None, (reason(Curves.COMPARE_CHECKPOINT),))
    return _Case("first_step_gap", reason(Curves.FIRST_LOSS), None, _FORWARD_ADVICE)


def _began_before(e: CurveEvidence, step: int) -> bool:
    """Whether the losses parted before a step: what differs from there on did not part them."""
    return e.onset is not None and e.onset.is_sure and e.onset.grows and e.onset.latest < step


def _missing(failed: Sequence[Criterion]) -> _Case | None:
    """Losses that one log does not have: they neither differ nor fluctuate around anything."""
    for c in failed:
        lost = c.note is not None and c.note.code is CriterionCode.LOST_LOSSES
        unknown = c.key == "first_loss" and math.isnan(dict(c.numbers).get("abs") or 0.0)
        if lost or (unknown and c.note is not None):
            has = c.note is not None and c.note.facts.get("target") is not None
            side = "reference" if unknown and has else "target"
            return _Case("conditions", reason(Curves.LOSSES_MISSING, side=side))
    return None


def _passes(found: Passing) -> Reason:
    facts = {"first": found.first_step, "last": found.last_step, "largest": found.largest}
    return reason(Curves.PASSES, from_the_start=found.from_the_start, **facts)


def _late_gap(e: CurveEvidence) -> bool:
    """Whether the last part is off by more than the standard allows, of the loss there."""
    late = e.late
    if late is None or not late.p_value < LATE_LEVEL:
        return False
    return abs(late.gap) >= e.limit_abs and abs(late.relative_gap) >= e.limit_rel


def _to_one_side(e: CurveEvidence) -> bool:
    """Whether most of the difference is an offset, not scatter to both sides."""
    return e.centre is not None and abs(e.centre.mean) > SYSTEMATIC * e.mean_size


def _of_plateau(e: CurveEvidence, *, late_gap: bool) -> _Case | None:
    """A target that learns nothing, or no more, far above the reference."""
    health = e.target_health
    if not late_gap or e.late is None or e.late.relative_gap < PLATEAU_HIGH or e.rises:
        return None
    jumps = e.onset is not None and e.onset.is_sure and e.onset.shape == "jump"
    if jumps and e.onset is not None and e.onset.index >= EARLY * e.num_steps:
        return None
    if health.plateau_from is None or health.plateau_level is None or health.fell is None:
        return None
    at, level = health.plateau_from, health.plateau_level
    facts = {"step": at, "level": level, "gap": e.late.gap, "reference": level_of(e.late)}
    advice = (*_OPTIMIZER_ADVICE, reason(Curves.DIAGNOSE_FIRST_STEP))
    if health.fell < CONVERGED * e.learned:
        return _Case("does_not_converge", reason(Curves.NO_CONVERGENCE, **facts), at, advice)
    return _Case("plateau_too_high", reason(Curves.PLATEAU_HIGH, **facts), at, advice)


def level_of(late: Late) -> float:
    """The reference's mean loss in the last part."""
    return abs(late.gap / late.relative_gap) if late.relative_gap else 0.0


def _of_training(e: CurveEvidence, *, late_gap: bool, gap: bool, systematic: bool) -> _Case | None:
    """A divergence, a late difference or an offset that the repeats do not explain."""
    onset = e.onset if e.onset is not None and e.onset.is_sure and not e.onset.comes_back else None
    if onset is not None and not _explained(e, onset.after) and onset.grows:
        begun_early = onset.index < EARLY * e.num_steps and onset.shape == "jump"
        if not begun_early and (_beyond(e, onset.after) or late_gap or systematic):
            return _diverged(e, onset)
    if late_gap and e.late is not None and not _explained(e, e.late.gap) and not gap:
        return _Case(
            "late_difference", _late_headline(e, e.late.first_step), e.late.first_step, _late_advice(e)
        )
    if gap and e.centre is not None and not _explained(e, e.centre.mean):
        advice = (*_OPTIMIZER_ADVICE, reason(Curves.COMPARE_LOCAL_NORMS))
        headline = reason(Curves.OFFSET, mean=e.centre.mean, steady=e.is_steady)
        return _Case("steady_offset", headline, None, advice)
    return None


def _of_findings(e: CurveEvidence) -> _Case | None:
    """What somebody must look at, although the curves agree otherwise."""
    norms = e.local_norms
    if norms is not None and norms.finding is not None:
        name, target, reference, _ = norms.finding
        headline = reason(
            Curves.LOCAL_NORM,
            name=name,
            step=norms.step,
            rel=_apart(target, reference),
            rel_square=_apart(target**2, reference**2),
            num=norms.num_beyond,
            total=norms.num_pairs,
        )
        advice: tuple[Reason, ...] = (reason(Curves.COMPARE_LOCAL_NORMS), reason(Curves.DIAGNOSE_FIRST_STEP))
        return _Case("local_norm", headline, norms.step, advice)
    if e.part_losses:
        part = e.part_losses[0]
        advice = (reason(Curves.CHECK_ROUTER), reason(Curves.DIAGNOSE_FIRST_STEP))
        return _Case("part_loss", _part(part), part.step, advice)
    if e.excursions is not None and e.excursions.stands_out:
        one = e.excursions.largest
        headline = reason(
            Curves.SPIKE, height=one.height, first=one.first_step, last=one.last_step, num=e.excursions.num
        )
        return _Case("spike", headline, one.first_step, _DATA_ADVICE)
    return None


def _part(part: PartLoss) -> Reason:
    facts = {"target": part.target, "reference": part.reference, "relative": part.relative}
    return reason(Curves.PART_LOSS, column=part.column, step=part.step, **facts)


def _apart(target: float, reference: float) -> float:
    return abs(target - reference) / abs(reference) if reference else math.inf


def _of_standard(e: CurveEvidence, names: set[str], failed: Sequence[Criterion]) -> _Case:
    """What the criteria alone say."""
    if "mean_loss" in names:
        left = None if e.envelope is None else e.envelope.first_exceedance
        if left is not None and not _is_known(e.centre):
            advice = (*_OPTIMIZER_ADVICE, reason(Curves.DIAGNOSE_FIRST_STEP))
            first = any(c.key == "first_loss" and c.status is Met.MET for c in e.criteria)
            headline = reason(Curves.SECOND_LOSS, step=left, first_agrees=first)
            return _Case("second_step_gap", headline, left, advice)
        advice = (reason(Curves.REPEAT_REFERENCE), reason(Curves.FREEZE_WEIGHTS))
        centred = e.centre is None or e.centre.is_centred
        return _Case("fluctuation", reason(Curves.FLUCTUATES if centred else Curves.SCATTERS), None, advice)
    return _unlike(failed) if failed else _Case("aligned", _aligned(e))


def _unlike(failed: Sequence[Criterion]) -> _Case:
    """Nothing but what comes before any step is not as the standard asks."""
    notes = tuple(c.note for c in failed if c.note is not None)
    return _Case("conditions", reason(Curves.CONDITIONS, criteria=[c.key for c in failed]), None, notes)


def _diverged(e: CurveEvidence, onset: Onset) -> _Case:
    spike = e.spikes is not None and any(abs(s - onset.step) <= SPIKE_AT_ONSET for s in e.spikes.target_only)
    if onset.shape == "jump" or spike or e.rises:
        headline = reason(
            Curves.JUMP, step=onset.step, before=onset.before, after=onset.after, shape=onset.shape
        )
        return _Case("loss_diffusion", headline, onset.step, _DATA_ADVICE)
    if e.late is None or e.late.trend == "grows":
        facts = {"step": onset.step, "before": onset.before, "after": onset.after}
        return _Case(
            "late_difference", reason(Curves.GROWS, shape=onset.shape, **facts), onset.step, _late_advice(e)
        )
    early = onset.index < EARLY * e.num_steps
    return _Case("late_difference", _late_headline(e, onset.step, early=early), onset.step, _late_advice(e))


def _late_headline(e: CurveEvidence, step: int, *, early: bool = False) -> Reason:
    assert e.late is not None
    code = Curves.EARLY_GAP if early else Curves.LATE
    return reason(code, gap=e.late.gap, relative=e.late.relative_gap, step=step)


def _late_advice(e: CurveEvidence) -> tuple[Reason, ...]:
    small = e.late is not None and abs(e.late.relative_gap) < MEAN_REL
    return (*_OPTIMIZER_ADVICE, reason(Curves.DOWNSTREAM)) if small else _OPTIMIZER_ADVICE


def _of_frozen(e: CurveEvidence, f: FrozenRun, failed: Sequence[Criterion]) -> _Case:
    cause = _cause_of_frozen(e, f, failed)
    if f.num_beyond:
        headline = reason(Curves.FROZEN_DIFFERS, *cause, num=f.num_beyond, total=f.num_steps)
        advice: tuple[Reason, ...] = (reason(Curves.FORWARD_ONLY), reason(Curves.RUN_ONE_BATCH))
        if cause:
            advice = (reason(Curves.TURN_DETERMINISM_ON), *advice)
        return _Case("first_step_gap", headline, f.max_loss_step, advice)
    if cause:
        headline = reason(Curves.FROZEN_CAUSE, *cause)
        notes = tuple(c.note for c in failed if c.note is not None)
        return _Case("conditions", headline, None, notes or (reason(Curves.TURN_DETERMINISM_ON),))
    if failed:
        return _unlike(failed)
    norms = f.mean_norm_diff is not None
    if f.outlying_steps:
        advice = (reason(Curves.ANALYSE_OUTLIER),)
        return _Case("aligned", reason(Curves.FROZEN_OUTLIERS, norms=norms), f.outlying_steps[0], advice)
    return _Case("aligned", reason(Curves.FROZEN_AGREES, norms=norms), None, (reason(Curves.LONG_TEST),))


def _cause_of_frozen(e: CurveEvidence, f: FrozenRun, failed: Sequence[Criterion]) -> tuple[Reason, ...]:
    """What was not fixed on a side, as traces show it; or that the reference's repeats differ as much."""
    shown = next((c.value for c in failed if c.key == "randomness"), None)
    if shown is not None:
        return (shown,)
    again = e.repeats_frozen
    if again is not None and again.num_beyond and again.num_beyond >= f.num_beyond / 2:
        return (reason(Curves.REPEATS_DIFFER, num=again.num_beyond, total=again.num_steps),)
    return ()


def _aligned(e: CurveEvidence) -> Reason:
    c = e.centre
    if c is not None and c.mean == c.standard_error == 0 and not c.num_outliers:
        return reason(Curves.IDENTICAL)
    if _is_known(c) and c is not None and c.is_centred and e.passing is None:
        return reason(Curves.CENTRED, **_of_finite(e, c))
    if c is not None and e.envelope is not None and _explained(e, c.mean) and _beyond(e, c.mean):
        return reason(Curves.WITHIN_REPEATS, **_of_finite(e, c))
    return reason(Curves.WITHIN_STANDARD, **_of_finite(e, c))


def _of_finite(e: CurveEvidence, c: Centre | None) -> dict[str, int]:
    """How many steps agree, where a loss of one run is not finite at others."""
    broken = e.target_health.num_not_finite or e.reference_health.num_not_finite
    return {"finite": c.num_steps} if broken and c is not None else {}


def _is_known(centre: Centre | None) -> bool:
    """Whether there are steps enough to say around what a difference fluctuates."""
    return centre is not None and not math.isnan(centre.standard_error)


def _beyond(e: CurveEvidence, gap: float) -> bool:
    """Whether a gap is larger than the standard allows, absolutely and relatively."""
    return abs(gap) >= e.limit_abs and abs(gap) >= e.limit_rel * abs(e.level)


def _explained(e: CurveEvidence, gap: float) -> bool:
    """Whether the reference's repeats are as far from each other."""
    apart = None if e.envelope is None else e.envelope.largest_offset
    return apart is not None and abs(gap) <= apart


def _failed(c: Criterion) -> Reason:
    """A criterion not met; one that is not for the losses that are missing says so."""
    if c.note is not None and c.note.code is CriterionCode.LOST_LOSSES:
        apart = dict(c.numbers)["abs"]
        known = apart is not None and math.isfinite(apart)
        return reason(Curves.FAILED_BY_LOST, c.title, c.value, c.note, criterion=c.key, known=known)
    return _criterion(c)


def _criterion(c: Criterion, code: Code = Curves.FAILED) -> Reason:
    note = () if c.note is None else (c.note,)
    return reason(code, c.title, c.value, c.threshold, *note, criterion=c.key)


def _is_vague(found: Onset, num_steps: int) -> bool:
    """Whether the steps do not tell the onset to a hundredth of the run."""
    return found.latest - found.earliest > ONSET_INTERVAL * num_steps


def _reasons(e: CurveEvidence, case: str) -> Iterator[Reason]:
    """Of a loss that is not finite only what was before it."""
    c, o, v = e.centre, e.onset, e.envelope
    diverged = o is not None and o.is_sure and not o.comes_back and not _is_times(e, case)
    if c is not None and math.isfinite(c.standard_error) and not diverged:
        yield _mean(c, e.target_health.num_not_finite)
    if o is not None and diverged:
        facts = {"step": o.step, "before": o.before, "after": o.after}
        vague = {"latest": o.latest} if _is_vague(o, e.num_steps) else {}
        yield reason(Curves.ONSET, shape=o.shape, earliest=o.earliest, **facts, **vague)
    if case == "not_finite":
        return
    if e.late is not None and e.late.p_value < LATE_LEVEL:
        yield reason(
            Curves.LATE_GAP,
            gap=e.late.gap,
            standard_error=e.late.standard_error,
            relative=e.late.relative_gap,
            trend=e.late.trend,
        )
    if v is not None and v.first_exceedance is not None:
        yield reason(Curves.LEAVES_BAND, step=v.first_exceedance, band=v.origin)


def _is_times(e: CurveEvidence, case: str) -> bool:
    """Whether a factor is the finding: the difference then changes as the loss does."""
    return e.factor is not None and case == "first_step_gap"


def _mean(c: Centre, num_not_finite: int) -> Reason:
    facts = {"mean": c.mean, "standard_error": c.standard_error, "low": c.low, "high": c.high}
    if num_not_finite:
        return reason(Curves.FINITE_MEAN, num=c.num_steps, **facts)
    return reason(Curves.MEAN, is_centred=c.is_centred, **facts)


# In one piece: one branch a remark.
def _remarks(e: CurveEvidence, outcome: Outcome, case: str) -> Iterator[Reason]:
    yield from (_criterion(c, Curves.WARNED) for c in e.criteria if c.status is Met.WARNING)
    c, late = e.centre, e.late
    if outcome is not Outcome.DIFFER and c is not None and not c.is_centred and e.frozen is None:
        yield reason(Curves.SYSTEMATIC, mean=c.mean, standard_error=c.standard_error)
    if e.excursions is not None and case != "spike":
        one = e.excursions.largest
        yield reason(
            Curves.SPIKE, height=one.height, first=one.first_step, last=one.last_step, num=e.excursions.num
        )
    if e.reference_excursions is not None:
        one = e.reference_excursions.largest
        yield reason(
            Curves.SPIKE_REFERENCE,
            height=one.height,
            first=one.first_step,
            last=one.last_step,
            num=e.reference_excursions.num,
        )
    if e.passing is not None and case == "aligned":
        yield _passes(e.passing)
    yield from (_part(one) for one in e.part_losses[case == "part_loss" :])
    yield from _of_curves(e, case)
    if late is not None and late.p_value < LATE_LEVEL and 0 < abs(late.relative_gap) < MEAN_REL:
        yield reason(Curves.LATE_BELOW_1_PERCENT, relative=abs(late.relative_gap))


def _of_curves(e: CurveEvidence, case: str) -> Iterator[Reason]:
    """What is to be seen in one curve by itself."""
    for name, s in (("loss", e.spikes), ("gradient norm", e.norm_spikes)):
        if s is not None and s.target_only:
            yield reason(Curves.SPIKES_TARGET, column=name, **_steps(s.target_only))
        if s is not None and s.both:
            yield reason(Curves.SPIKES_BOTH, column=name, **_steps(s.both))
    for side, h in (("target", e.target_health), ("reference", e.reference_health)):
        if h.num_overflow_steps:
            facts = _steps(h.overflow_steps, h.num_overflow_steps)
            yield reason(Curves.OVERFLOWS, side=side, **facts)
        if h.num_not_finite:
            yield reason(Curves.NOT_FINITE_STEPS, side=side, **_steps(h.not_finite, h.num_not_finite))
        if h.plateau_from is not None and case not in _STUCK and not e.rises:
            yield reason(Curves.PLATEAU, side=side, step=h.plateau_from)
    if e.rates is not None and e.rates.first_different is not None:
        yield reason(Curves.LOGGED_RATES, step=e.rates.first_different, relative=e.rates.max_rel_diff)


def _steps(steps: Sequence[int], num: int | None = None) -> dict[str, Number | tuple[str, ...]]:
    return {"num": len(steps) if num is None else num, "steps": tuple(map(str, steps))}


def limits(criteria: Sequence[Criterion]) -> tuple[float, float]:
    """The absolute and relative limit of a mean difference, as the mean-loss criterion has them."""
    for c in criteria:
        if c.key == "mean_loss":
            numbers = dict(c.numbers)
            return float(numbers["threshold_abs"] or MEAN_ABS), MEAN_REL
    return MEAN_ABS, MEAN_REL
