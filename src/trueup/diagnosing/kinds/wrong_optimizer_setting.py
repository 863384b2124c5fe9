"""The update follows another rule: learning rate, betas, eps, decay and of what, bias correction,
precision."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from trueup.diagnosing.evidence import Evidence, ParameterStep
from trueup.diagnosing.evidence.facts import Plain
from trueup.diagnosing.evidence.vectors import length
from trueup.diagnosing.kinds.fitting import at_most, explained, fit, rank_of
from trueup.diagnosing.kinds.rule import EvidenceNeeds, Fact, Found, KindRule, origin_reason
from trueup.diagnosing.kinds.thresholds import (
    BETA_APART,
    CHANGE_LEAVES,
    FEW_NUMBERS,
    NEAR_ONE,
    REPRODUCED,
    SETTINGS_EQUAL,
    SOLVED_APART,
    SOLVED_RESIDUAL,
    UNCHANGED_SHARE,
)
from trueup.diagnosing.kinds.updates import SideUpdate, solve
from trueup.diagnosing.optimizer_fit import FittedConstant, UpdateFit, fit_moment
from trueup.diagnosing.thresholds import SOLVED_Z
from trueup.types.arrays import Floats
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason, SettingReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode
from trueup.types.reason import Reason, reason

SETTINGS = [
    "lr",
    "betas",
    "eps",
    "weight_decay",
    "momentum",
    "dampening",
    "nesterov",
    "amsgrad",
    "maximize",
    "decoupled_weight_decay",
    "correct_bias",
    "bias_correction",
    "alpha",
    "centered",
]
"""names under which optimizers keep what their update depends on"""

Setting = Plain | tuple[float, ...]
_CAUSES = (CauseCode.OTHER_OPTIMIZER_DEFAULT, CauseCode.PARAMETER_GROUPS, CauseCode.SCHEDULE_OFF)


def _facts(evidence: Evidence) -> ParameterStep | None:
    return evidence.parameter if evidence.origin.phase == "optimizer" else None


def _found(evidence: Evidence, rank: EvidenceRank, code: KindReason, *parts: Reason, **facts: Fact) -> Found:
    parameter = evidence.parameter
    assert parameter is not None
    shapes = [k.shape for k in (parameter.before.target, parameter.before.reference) if k is not None]
    small = bool(shapes) and len(shapes[0]) < 2  # decay rules turn on that
    sentence = origin_reason(evidence, code, *parts, parameter=parameter.fqn, one_dimensional=small, **facts)
    return Found(rank=rank, sentence=sentence)


# -- as recorded ------------------------------------------


def _recorded(evidence: Evidence) -> Found | None:
    """Settings of the parameter's group that differ as recorded."""
    facts = _facts(evidence)
    target, reference = ({}, {}) if facts is None else (facts.target_settings, facts.reference_settings)
    if not target or not reference:
        return None
    parts = []
    classes = target.get("class"), reference.get("class")
    other_class = None not in classes and classes[0] != classes[1]
    if other_class:
        parts.append(reason(SettingReason.CLASS, target=str(classes[0]), reference=str(classes[1])))
    parts += [
        _setting(key, target[key], reference[key])
        for key in SETTINGS
        if key in target and key in reference and not _equal(target[key], reference[key])
    ]
    if not parts:
        return None
    rank = EvidenceRank.FITTED if other_class and len(parts) == 1 else EvidenceRank.STATED
    return _of_settings(_found(evidence, rank, KindReason.SETTINGS_DIFFER, *parts))


def _setting(key: str, target: Plain, reference: Plain) -> Reason:
    return reason(SettingReason.VALUE, setting=key, target=_plain(target), reference=_plain(reference))


def _of_settings(found: Found) -> Found:
    """Without a schedule as the cause, where the learning rate is none of the settings that differ."""
    rates = any(part.place("setting") == "lr" for part in found.sentence.parts)
    return found if rates else replace(found, without=(CauseCode.SCHEDULE_OFF,))


def _equal(a: Setting, b: Setting) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=SETTINGS_EQUAL, abs_tol=0.0)
    return bool(a == b)


def _plain(value: Setting) -> str:
    return ", ".join(map(_plain, value)) if isinstance(value, (list, tuple)) else str(value)


def _schedule(evidence: Evidence) -> Found | None:
    """Learning rates of the step differ; perhaps the schedule is a step early or late."""
    step = evidence.origin.step
    target, run = evidence.target_run.learning_rate, evidence.reference_run
    if _facts(evidence) is None or not target or not run.learning_rate:
        return None
    if _equal(target, run.learning_rate):
        return None
    beside = [run.learning_rates.get(s) for s in (step - 1, step + 1)]
    others = (step + n for n, r in zip((-1, 1), beside, strict=True) if r and _equal(target, r))
    of_step = next(others, None)
    found = _found(
        evidence,
        EvidenceRank.STATED,
        KindReason.LEARNING_RATE,
        step=step,
        target=_plain(target),
        reference=_plain(run.learning_rate),
        of_step=of_step,
    )
    if of_step is not None:
        return replace(found, causes=(CauseCode.SCHEDULE_OFF,))
    return replace(found, without=(CauseCode.SCHEDULE_OFF,) if all(beside) else ())


def _counts(evidence: Evidence) -> Found | None:
    """The state has seen another number of updates."""
    facts = _facts(evidence)
    pair = None if facts is None else facts.after("state.step")
    if pair is None or pair.target is None or pair.reference is None:
        return None
    t, r = pair.target.statistic("maximum"), pair.reference.statistic("maximum")
    if not (np.isfinite(t) and np.isfinite(r)) or t == r:
        return None
    if t and t == r * (evidence.target_run.microbatches or 0):
        code = KindReason.UPDATES_PER_MICROBATCH
        found = _found(evidence, EvidenceRank.STATED_NEARBY, code, target=t, reference=r)
        return replace(found, without=_CAUSES)  # of settings, which make no updates
    found = _found(evidence, EvidenceRank.STATED_NEARBY, KindReason.UPDATES_COUNTED, target=t, reference=r)
    return replace(found, causes=(CauseCode.STATE_ON_RESUME,))


# -- as solved for ------------------------------------------


def _solved(evidence: Evidence) -> Found | None:
    """Rates solved for from the update. They are no settings where both runs have one learning rate, or where
    the rule leaves over what the difference is made of: another rule has made the updates."""
    if _facts(evidence) is None:
        return None
    target, reference = solve(evidence, "target"), solve(evidence, "reference")
    if target is None or reference is None or _is_another_rule(evidence, target, reference):
        return None
    parts = _apart(target, reference)
    if not parts:
        return None
    return _of_settings(_found(evidence, EvidenceRank.EVERY_ELEMENT, KindReason.SETTINGS_SOLVED, *parts))


def _is_another_rule(evidence: Evidence, target: SideUpdate, reference: SideUpdate) -> bool:
    rates = evidence.target_run.learning_rate, evidence.reference_run.learning_rate
    if all(rates) and _equal(*rates) and _differ(target.fit.rate, reference.fit.rate):
        return True
    vectors = evidence.vectors
    if vectors is None or not vectors.exact or evidence.origin.slot != "param":
        return False
    return math.hypot(target.left, reference.left) > CHANGE_LEAVES * vectors.difference


def _apart(target: SideUpdate, reference: SideUpdate) -> list[Reason]:
    parts, a, b = [], target.fit, reference.fit
    if None not in (target.corrected, reference.corrected) and target.corrected != reference.corrected:
        parts.append(reason(SettingReason.BIAS_CORRECTION, corrected=target.corrected))
    elif _differ(a.rate, b.rate):
        parts.append(_solved_setting("lr", a.rate.value, b.rate.value))
    if _differ(a.pull, b.pull):
        parts.append(_solved_setting("weight_decay", _decay(a), _decay(b)))
    return parts


def _solved_setting(name: str, target: float, reference: float) -> Reason:
    return reason(SettingReason.SOLVED, setting=name, target=target, reference=reference)


def _differ(a: FittedConstant, b: FittedConstant) -> bool:
    gap, largest = abs(a.value - b.value), max(abs(a.value), abs(b.value))
    return gap > SOLVED_Z * math.hypot(a.error, b.error) and gap > SOLVED_APART * largest


def _decay(fit: UpdateFit) -> float:
    """Decay as it is configured: over the learning rate; what is not clear of zero is none."""
    if abs(fit.pull.value) <= SOLVED_Z * fit.pull.error or not fit.rate.value:
        return 0.0
    return fit.pull.value / fit.rate.value


# -- along what ------------------------------------------


def _directions(evidence: Evidence) -> Found | None:
    """t - r along the weights: decay; along the reference's update: its size."""
    facts, vectors = _facts(evidence), evidence.vectors
    if facts is None or vectors is None or evidence.origin.slot != "param":
        return None
    before = vectors.like(facts.before.reference)
    if before is None or vectors.difference == 0 or vectors.num_values < FEW_NUMBERS:
        return None
    best: tuple[float, KindReason, float] | None = None
    difference, update = vectors.target - vectors.reference, vectors.reference - before
    for x, code, whole in ((before, KindReason.ALONG_WEIGHTS, 0.0), (update, KindReason.ALONG_UPDATE, 1.0)):
        found = fit(difference, x)
        if found is None or found.factor + whole <= -1:
            continue
        share = explained(evidence, vectors, found.residual, z=found.z)
        if best is None or share > best[0]:
            best = share, code, found.factor + whole
    rank = None if best is None else rank_of(best[0], vectors)
    if best is None or rank is None:
        return None
    found_along = _found(evidence, at_most(rank, EvidenceRank.FITTED), best[1], factor=best[2])
    of_decay = best[1] is KindReason.ALONG_WEIGHTS
    return replace(found_along, without=(CauseCode.SCHEDULE_OFF,) if of_decay else ())


# -- moments ------------------------------------------


# In one piece: one rule; what must hold is asked in the order in which it becomes known.
def _moments(evidence: Evidence) -> Found | None:
    """A moment that starts from nothing, or grows by another beta."""
    facts, slot, vectors = _facts(evidence), evidence.origin.slot, evidence.vectors
    gradient = None if facts is None else facts.gradient()
    if facts is None or vectors is None or not slot.startswith("state.exp_avg") or gradient is None:
        return None
    g, squared = vectors.like(gradient.reference), slot == "state.exp_avg_sq"
    if g is None or (squared and not vectors.exact):
        return None
    fresh = np.square(g) if squared else g
    past = next((p for p in facts.state_before if p.slot == slot), None)
    known = None if past is None else vectors.like(past.reference)
    before = np.zeros_like(fresh) if known is None else known
    target, reference = (_beta(v, before, fresh) for v in (vectors.target, vectors.reference))
    # where the reference's own moment looks like this step's gradient, nothing tells what it holds of others
    if _is_fresh(vectors.target, fresh) and reference is not None and not _is_fresh(vectors.reference, fresh):
        lost = _found(evidence, EvidenceRank.EVERY_ELEMENT, KindReason.MOMENT_STARTS_ANEW, state=slot)
        return replace(lost, causes=(CauseCode.STATE_NOT_RESTORED_ON_RESUME,))
    if target is None or reference is None:
        return None
    if abs(target - reference) < BETA_APART * (1 - reference):
        return None
    which = "beta2" if squared else "beta1"
    part = _solved_setting(which, target, reference)
    found = _found(evidence, EvidenceRank.EVERY_ELEMENT, KindReason.SETTINGS_SOLVED, part, state=slot)
    return _of_settings(found)


def _is_fresh(moment: Floats, fresh: Floats) -> bool:
    """Whether a moment is a multiple of what this step adds."""
    found = fit(moment, fresh)
    return found is not None and found.residual < SOLVED_RESIDUAL * length(moment)


def _beta(moment: Floats, before: Floats, fresh: Floats) -> float | None:
    """b of ``moment = b before + (1 - b) fresh``; None where nothing near fits."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = fit_moment(moment, before, fresh)
    if found is None or found[1] > REPRODUCED:
        return None
    beta = found[0].value
    return beta if -NEAR_ONE <= beta <= 1 + NEAR_ONE else None


# -- precision of the update ------------------------------------------


def _lost(evidence: Evidence) -> Found | None:
    """Many elements keep their bits through an update that moves the reference's: no master weights."""
    facts = _facts(evidence)
    after = None if facts is None else facts.after("param")
    if facts is None or after is None or after.target is None or evidence.origin.slot != "param":
        return None
    if after.target.dtype not in ("bfloat16", "float16"):
        return None
    shares = []
    for known in ((facts.before.target, after.target), (facts.before.reference, after.reference)):
        a, b = map(evidence.values_of, known)
        same = a is not None and b is not None and a.shape == b.shape and a.size
        shares.append(float((a == b).mean()) if same else None)  # type: ignore[union-attr]
    target, reference = shares
    if target is None or not UNCHANGED_SHARE <= target < 1:
        return None
    has_master = after.reference is not None and after.reference.dtype == "float32"
    if not has_master and (reference is None or target < reference + UNCHANGED_SHARE):
        return None
    code, dtype = KindReason.UPDATE_LOST, after.target.dtype
    found = _found(evidence, EvidenceRank.STATED, code, dtype=dtype, target=target, reference=reference)
    return replace(found, causes=(CauseCode.NO_MASTER_WEIGHTS,))


RULE = KindRule(
    code=KindCode.WRONG_OPTIMIZER_SETTING,
    family=KindClass.MODEL,
    needs=EvidenceNeeds.PARAMETER,
    looks=(_schedule, _recorded, _lost, _moments, _solved, _counts, _directions),
    causes=_CAUSES,
    advice=AdviceCode.PRINT_GROUPS,
    place="before a scale and a term, which an update along the weights or along itself is too",
)
