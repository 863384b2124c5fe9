"""Which case of the accuracy guide a pair of curves is, in plain language, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trueup.curves.standard import MEAN_ABS, MEAN_REL, Criterion, Met, absolute, percent
from trueup.curves.statistics.centred import Centre
from trueup.curves.statistics.envelope import Envelope
from trueup.curves.statistics.frozen import Frozen
from trueup.curves.statistics.health import Health, Rates
from trueup.curves.statistics.late import Late
from trueup.curves.statistics.onset import Onset
from trueup.curves.statistics.spikes import Spikes
from trueup.types.status import Outcome

_EARLY = 0.1
"""A difference that begins within this share of the steps was there from the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that was measured of one target."""

    criteria: tuple[Criterion, ...]
    centre: Centre | None
    onset: Onset | None
    late: Late | None
    envelope: Envelope | None
    spikes: Spikes | None
    norm_spikes: Spikes | None
    rates: Rates | None
    frozen: Frozen | None
    target_health: Health
    reference_health: Health
    limit_abs: float
    """how far the mean may be off: the standard's, or the reference's own fluctuation"""
    limit_rel: float
    level: float
    """mean loss of the reference"""
    num_steps: int
    rises: bool
    """whether the target's loss is higher at the end than around the onset"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict on one target."""

    outcome: Outcome
    case: str
    headline: str
    reasons: tuple[str, ...]
    """why, most telling first"""
    remarks: tuple[str, ...]
    """what does not change the outcome and should be known"""
    advice: tuple[str, ...]
    """the guide's next steps"""
    step: int | None
    """the step to look at"""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"outcome": self.outcome.value}


def judge(evidence: Evidence) -> Judgement:
    """Decide. A decisive criterion that is not met, a loss that is not finite in the target alone, or a gap
    beyond the standard that the noise does not explain makes the runs differ; what could not be proved leaves
    them undecided."""
    failed = [c for c in evidence.criteria if c.decisive and c.status is Met.NOT_MET]
    open_ = [c for c in evidence.criteria if c.decisive and c.status is Met.UNDECIDED]
    case, headline, step, advice = _case(evidence, failed)
    differs = bool(failed) or case in _DIFFERING
    if differs:
        outcome = Outcome.DIFFER
    elif open_:
        outcome = Outcome.UNDECIDED
        headline = (
            f"{headline}; not accepted yet: {_names(open_)} {'is' if len(open_) == 1 else 'are'} not proved"
        )
    else:
        outcome = Outcome.AGREE
    return Judgement(
        outcome=outcome,
        case=case,
        headline=headline,
        reasons=tuple([f"{c.title}: {c.value}, wanted {c.threshold}" for c in failed] + _reasons(evidence)),
        remarks=tuple(_remarks(evidence, outcome)),
        advice=tuple(advice),
        step=step,
    )


_DIFFERING = {
    "not_finite",
    "first_step_gap",
    "loss_diffusion",
    "late_difference",
    "steady_offset",
    "learning_rates_differ",
}
_DATA_ADVICE = (
    "decode the batches around the step: is there abnormal data?",
    "leave that batch out and train again: if the loss then behaves, it was the data",
    "look for overflow around the step, and for a weight whose local norm is abnormal",
)
_OPTIMIZER_ADVICE = (
    "check what belongs to the optimizer: its type, the learning rate's course, weight decay and which "
    "weights "
    "it applies to (one-dimensional ones and biases are not decayed by default on one side)",
    "check mixed precision operation by operation against the reference",
)


def _case(e: Evidence, failed: Sequence[Criterion]) -> tuple[str, str, int | None, list[str]]:
    names = {c.key for c in failed}
    own = e.target_health
    if own.num_not_finite and not e.reference_health.num_not_finite:
        at = own.not_finite[0]
        return (
            "not_finite",
            f"The target's loss or gradient norm is not finite from step {at}",
            at,
            [
                "run it again with --task overflow_check: it names the first call that makes NaN or infinity",
                *_DATA_ADVICE[:2],
            ],
        )
    if e.frozen is not None:
        return _of_frozen(e, e.frozen)
    if "first_loss" in names:
        return (
            "first_step_gap",
            "The very first loss differs: the forward pass is not the same",
            None,
            [
                "nothing was updated yet: compare structure, weights, data and precision of the first "
                "forward pass",
                "capture step 1 on both sides and let trueup diagnose name the module",
            ],
        )
    rates = e.rates
    found = e.onset if e.onset is not None and e.onset.is_sure else None
    late_gap = e.late is not None and e.late.p_value < 0.01 and _beyond(e, e.late.gap)
    gap = e.centre is not None and not e.centre.is_centred and _beyond(e, e.centre.mean)
    if rates is not None and rates.first_different is not None and (failed or late_gap or gap):
        return (
            "learning_rates_differ",
            (f"The learning rates are not the same from step {rates.first_different}, and the losses part"),
            rates.first_different,
            [_OPTIMIZER_ADVICE[0]],
        )
    if found is not None and _beyond(e, found.after) and not _explained(e, found.after):
        begun_early = found.index < _EARLY * e.num_steps and found.shape == "jump"
        if not begun_early and found.grows:
            return _parted(e, found)
    if late_gap and e.late is not None and not _explained(e, e.late.gap) and not gap:
        return (
            "late_difference",
            (
                f"The runs agree at first; late in training the loss differs by {_signed(e.late.gap)} "
                f"({percent(e.late.relative_gap)})"
            ),
            e.late.first_step,
            list(_OPTIMIZER_ADVICE),
        )
    if gap and e.centre is not None and not _explained(e, e.centre.mean):
        return (
            "steady_offset",
            (
                f"The loss is {'higher' if e.centre.mean > 0 else 'lower'} by a steady "
                f"{absolute(abs(e.centre.mean))}"
            ),
            None,
            [
                *_OPTIMIZER_ADVICE,
                "compare the local norms of step 1 weight by weight: an embedding computed in another "
                "precision "
                "shows there",
            ],
        )
    if "mean_loss" in names:
        return (
            "fluctuation",
            ("The losses scatter more than the standard allows, to both sides of zero alike"),
            None,
            [
                "repeat the reference at least twice with determinism off: if it scatters as much, that "
                "is the measure",
                "set the learning rate to 0 and compare step by step: what then differs is forward and "
                "backward alone",
            ],
        )
    if failed:
        return "conditions", "The runs were not set up alike", None, [c.note for c in failed if c.note]
    return "aligned", _aligned(e), None, []


def _parted(e: Evidence, found: Onset) -> tuple[str, str, int | None, list[str]]:
    spike = e.spikes is not None and any(abs(s - found.step) <= 20 for s in e.spikes.target_only)
    size = f"to {_signed(found.after)} at the end" if found.shape == "slope" else f"to {_signed(found.after)}"
    if found.shape == "jump" or spike or e.rises:
        headline = (
            f"The loss parts at step {found.step}: the difference goes from {_signed(found.before)} {size}"
        )
        return "loss_diffusion", headline, found.step, list(_DATA_ADVICE)
    headline = f"From step {found.step} on the difference grows, {size}"
    advice = list(_OPTIMIZER_ADVICE)
    if e.late is not None and abs(e.late.relative_gap) < MEAN_REL:
        advice.append("the late gap is below 1 %: acceptance may go to the evaluation of downstream tasks")
    return "late_difference", headline, found.step, advice


def _of_frozen(e: Evidence, f: Frozen) -> tuple[str, str, int | None, list[str]]:
    if f.num_beyond:
        return (
            "first_step_gap",
            (f"With the learning rate at 0, {f.num_beyond:,} of {f.num_steps:,} steps have another loss"),
            f.max_loss_step,
            [
                "no weight was updated: each of these batches shows a difference of the forward pass by "
                "itself",
                "run one of them alone and compare forward and backward",
            ],
        )
    if f.outlying_steps:
        return (
            "aligned",
            ("With the learning rate at 0 forward and backward agree; a few steps stand out"),
            f.outlying_steps[0],
            ["use the data of such a step alone to analyse forward and backward"],
        )
    return (
        "aligned",
        "With the learning rate at 0 forward and backward agree step by step",
        None,
        ["now set the learning rate above 0 and run the long test"],
    )


def _aligned(e: Evidence) -> str:
    c = e.centre
    if c is not None and c.mean == c.standard_error == 0 and not c.num_outliers:
        return "The curves are equal at every step"
    if e.centre is None or e.centre.is_centred:
        return "The curves agree: their difference fluctuates around zero within what is allowed"
    if e.envelope is not None and _explained(e, e.centre.mean) and _beyond(e, e.centre.mean):
        return "The curves agree: their steady difference is within the reference's own repeats"
    return "The curves agree within the standard"


def _beyond(e: Evidence, gap: float) -> bool:
    """Whether a gap is beyond the standard, absolutely and relatively."""
    return abs(gap) >= e.limit_abs and abs(gap) >= e.limit_rel * abs(e.level)


def _explained(e: Evidence, gap: float) -> bool:
    """Whether the reference's repeats are as far from each other."""
    apart = None if e.envelope is None else e.envelope.largest_offset
    return apart is not None and abs(gap) <= apart


def _reasons(e: Evidence) -> list[str]:
    found = []
    c, o = e.centre, e.onset
    parted = o is not None and o.is_sure
    if c is not None and math.isfinite(c.standard_error) and not parted:
        word = "within" if c.is_centred else "beyond"
        found.append(
            f"signed mean difference {_signed(c.mean)} ± {absolute(c.standard_error)}: {word} its noise "
            f"(interval {_signed(c.low)} to {_signed(c.high)})"
        )
    if o is not None and parted:
        found.append(
            f"the difference changes at step {o.step} "
            f"({'a jump' if o.shape == 'jump' else 'the beginning of a slope'}"
            f", {_signed(o.before)} before, {_signed(o.after)} "
            f"{'after' if o.shape == 'jump' else 'at the end'})"
        )
    if e.late is not None and e.late.p_value < 0.01:
        found.append(
            f"last fifth of the steps: {_signed(e.late.gap)} ± {absolute(e.late.standard_error)} "
            f"({percent(e.late.relative_gap)}), {e.late.trend}"
        )
    v = e.envelope
    if v is not None and v.first_exceedance is not None:
        band = "the band of the repeats" if v.origin == "repeats" else "the standard's thresholds"
        found.append(f"leaves {band} for good at step {v.first_exceedance}")
    return found


def _remarks(e: Evidence, outcome: Outcome) -> list[str]:
    found = [
        f"{c.title}: {c.value}, {c.note or 'wanted ' + c.threshold}"
        for c in e.criteria
        if c.status is Met.WARNING
    ]
    c = e.centre
    if outcome is not Outcome.DIFFER and c is not None and not c.is_centred and e.frozen is None:
        found.append(
            f"small but systematic: the difference is not centred on zero ({_signed(c.mean)} ± "
            f"{absolute(c.standard_error)}), which rounding alone rarely makes"
        )
    found += _spike_remarks(e)
    found += _health_remarks(e)
    r = e.rates
    if r is not None and r.first_different is not None:
        found.append(
            f"the logged learning rates differ from step {r.first_different} (by up to "
            f"{percent(r.max_rel_diff)})"
        )
    late = e.late
    if late is not None and late.p_value < 0.01 and 0 < abs(late.relative_gap) < MEAN_REL:
        found.append(
            f"the late gap is {percent(abs(late.relative_gap))}, below 1 %: acceptance may go to the "
            "evaluation of "
            "downstream tasks"
        )
    return found


def _spike_remarks(e: Evidence) -> list[str]:
    found = []
    for name, s in (("loss", e.spikes), ("gradient norm", e.norm_spikes)):
        if s is None:
            continue
        if s.target_only:
            found.append(
                f"{len(s.target_only)} spike{'s' if len(s.target_only) > 1 else ''} of the {name} in the "
                "target alone, "
                f"at {_steps(s.target_only)}"
            )
        if s.both:
            found.append(
                f"{len(s.both)} spike{'s' if len(s.both) > 1 else ''} of the {name} in both, at "
                f"{_steps(s.both)}: the data's"
            )
    return found


def _health_remarks(e: Evidence) -> list[str]:
    found = []
    for side, h in (("target", e.target_health), ("reference", e.reference_health)):
        if h.num_overflow_steps:
            found.append(
                f"the {side} overflowed at {h.num_overflow_steps:,} steps: {_steps(h.overflow_steps)}"
            )
        if h.num_not_finite:
            found.append(f"the {side} is not finite at {h.num_not_finite:,} steps: {_steps(h.not_finite)}")
        if h.plateau_from is not None:
            found.append(f"the {side}'s loss no longer falls from step {h.plateau_from}, the other's does")
    return found


def _steps(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps[:5])) + (" ..." if len(steps) > 5 else "")


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{absolute(abs(value))}"


def _names(criteria: Sequence[Criterion]) -> str:
    words = [c.title[:1].lower() + c.title[1:] for c in criteria]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def limits(criteria: Sequence[Criterion]) -> tuple[float, float]:
    """The absolute and relative limit of a mean difference, as the mean-loss criterion has them."""
    for c in criteria:
        if c.key == "mean_loss":
            numbers = dict(c.numbers)
            return float(numbers["threshold_abs"] or MEAN_ABS), MEAN_REL
    return MEAN_ABS, MEAN_REL
