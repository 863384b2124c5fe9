"""The update follows another rule: learning rate, betas, eps, decay and of what, bias correction,
precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trueup.diagnosing.evidence import Evidence, ParameterFacts
from trueup.diagnosing.evidence.vectors import length
from trueup.diagnosing.kinds.fitting import explained, fit, sureness, weight
from trueup.diagnosing.kinds.naming import named, number, percent, rule_book
from trueup.diagnosing.kinds.updates import Solved, solve
from trueup.diagnosing.optimizer_fit import Floats, Measured, UpdateFit, fit_moment
from trueup.types.finding import Kind

_UNLIKE = 1e-6
_STANDARD_ERRORS = 6.0


def rule(evidence: Evidence) -> Kind | None:
    """The strongest of: settings that differ as recorded, rates solved for from the update, a difference
    along the weights or along the update, moments that start anew, updates lost to rounding."""
    if evidence.origin.phase != "optimizer" or evidence.parameter is None:
        return None
    facts = evidence.parameter
    checks = (_recorded, _schedule, _solved, _directions, _moments, _lost, _counts)
    found = [check(evidence, facts) for check in checks]
    return max((k for k in found if k is not None), key=lambda k: k.confidence, default=None)


# -- as recorded ------------------------------------------


def _recorded(evidence: Evidence, facts: ParameterFacts) -> Kind | None:
    mine, theirs = facts.target_settings, facts.reference_settings
    if not mine or not theirs:
        return None
    said = []
    if mine.get("class") != theirs.get("class"):
        said.append(f"optimizer {mine.get('class')} for {theirs.get('class')}")
    for key, words in rule_book().settings.items():
        if key in mine and key in theirs and not _equal(mine[key], theirs[key]):
            said.append(f"{words} {_plain(mine[key])} for {_plain(theirs[key])}")
    if not said:
        return None
    confidence = 0.96 if len(said) > 1 or mine.get("class") == theirs.get("class") else 0.85
    return named("wrong_optimizer_setting", confidence, f"{_whose(facts)}: {', '.join(said)}", evidence)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=0.0)
    return bool(a == b)


def _plain(value: Any) -> str:
    return ", ".join(map(_plain, value)) if isinstance(value, (list, tuple)) else str(value)


def _whose(facts: ParameterFacts) -> str:
    """The parameter, and what sort it is where decay rules turn on that."""
    shapes = [k.shape for k in (facts.before.target, facts.before.reference) if k is not None]
    if shapes and len(shapes[0]) < 2:
        return f"{facts.fqn} (a bias or a norm's weight: one dimension)"
    return facts.fqn


def _schedule(evidence: Evidence, facts: ParameterFacts) -> Kind | None:
    """Learning rates of the step differ; perhaps the schedule is a step early or late."""
    step = evidence.origin.step
    mine, run = evidence.target_run.learning_rate, evidence.reference_run
    if not mine or not run.learning_rate or _equal(list(mine), list(run.learning_rate)):
        return None
    said = f"the learning rate at step {step} is {_plain(list(mine))} for {_plain(list(run.learning_rate))}"
    for other in (step - 1, step + 1):
        rates = run.learning_rates.get(other)
        if rates and _equal(list(mine), list(rates)):
            said += f": the reference's of step {other}, so the schedule is off by one"
            break
    return named("wrong_optimizer_setting", 0.965, said, evidence)


def _counts(evidence: Evidence, facts: ParameterFacts) -> Kind | None:
    """The state has seen another number of updates."""
    pair = facts.after("state.step")
    if pair is None or pair.target is None or pair.reference is None:
        return None
    t, r = pair.target.statistic("maximum"), pair.reference.statistic("maximum")
    if not (np.isfinite(t) and np.isfinite(r)) or t == r:
        return None
    said = f"{facts.fqn} has seen {number(t)} updates, in the reference {number(r)}"
    if evidence.target_run.microbatches and t == r * evidence.target_run.microbatches:
        said += ": one a microbatch instead of one a step"
    return named("wrong_optimizer_setting", 0.93, said, evidence, causes=("state lost or kept on resume",))


# -- as solved for ------------------------------------------


def _solved(evidence: Evidence, facts: ParameterFacts) -> Kind | None:
    mine, theirs = solve(evidence, "target"), solve(evidence, "reference")
    if mine is None or theirs is None:
        return None
    said = _apart(mine, theirs)
    if not said:
        return None
    return named(
        "wrong_optimizer_setting", 0.94, f"{_whose(facts)}: {', '.join(said)} (solved for)", evidence
    )


def _apart(mine: Solved, theirs: Solved) -> list[str]:
    said = []
    a, b = mine.fit, theirs.fit
    if mine.corrected is not None and theirs.corrected is not None and mine.corrected != theirs.corrected:
        words = {True: "bias correction", False: "no bias correction"}
        said.append(f"{words[mine.corrected]} where the reference has {words[theirs.corrected]}")
    elif _differ(a.rate, b.rate):
        said.append(f"learning rate {number(a.rate.value)} for {number(b.rate.value)}")
    if _differ(a.pull, b.pull):
        said.append(f"weight decay {_decay(a)} for {_decay(b)}")
    return said


def _differ(a: Measured, b: Measured) -> bool:
    gap, largest = abs(a.value - b.value), max(abs(a.value), abs(b.value))
    return gap > _STANDARD_ERRORS * math.hypot(a.error, b.error) and gap > 1e-3 * largest


def _decay(fit: UpdateFit) -> str:
    """Decay as it is configured: over the learning rate; what is not clear of zero is none."""
    if abs(fit.pull.value) <= _STANDARD_ERRORS * fit.pull.error or not fit.rate.value:
        return "none"
    return f"{fit.pull.value / fit.rate.value:.3g}"


# -- along what ------------------------------------------


def _directions(evidence: Evidence, facts: ParameterFacts) -> Kind | None:
    """t - r along the weights: decay; along the reference's update: its size."""
    vectors = evidence.vectors
    if vectors is None or evidence.origin.slot != "param" or vectors.num_values < 8:
        return None
    before = vectors.like(facts.before.reference)
    if before is None or vectors.difference == 0:
        return None
    difference, update = vectors.target - vectors.reference, vectors.reference - before
    best: tuple[float, str] | None = None
    for x, words in (
        (before, "the weights: decay on one side only, or another one (times {} of them)"),
        (update, "the reference's update: a step {} times as large"),
    ):
        found = fit(difference, x)
        if found is None:
            continue
        share = explained(evidence, vectors, found.residual, z=found.z)
        factor = found.factor if x is before else 1 + found.factor
        if factor > -1 and (best is None or share > best[0]):
            best = share, words.format(number(factor))
    if best is None:
        return None
    share, words = best
    sure = 0.9 * sureness(share, start=0.6) * weight(vectors)
    if sure <= 0:
        return None
    return named("wrong_optimizer_setting", sure, f"{_whose(facts)} differs along {words}", evidence)


# -- moments ------------------------------------------


def _moments(evidence: Evidence, facts: ParameterFacts) -> Kind | None:
    """A moment that starts from nothing, or grows by another beta."""
    slot = evidence.origin.slot
    vectors = evidence.vectors
    gradient = facts.gradient()
    if vectors is None or not slot.startswith("state.exp_avg") or gradient is None:
        return None
    g = vectors.like(gradient.reference)
    past = next((p for p in facts.state_before if p.slot == slot), None)
    before = None if past is None else vectors.like(past.reference)
    if g is None:
        return None
    fresh = np.square(g) if slot == "state.exp_avg_sq" else g
    if slot == "state.exp_avg_sq" and not vectors.exact:
        return None
    if before is None:
        before = np.zeros_like(fresh)
    betas = [_beta(v, before, fresh) for v in (vectors.target, vectors.reference)]
    found = fit(vectors.target, fresh)
    alone = found is not None and found.residual < 0.05 * length(vectors.target)
    if length(before) > 0 and alone and betas[1] is not None:
        said = f"{facts.fqn}: {slot} holds nothing of the steps before, as after a resume without it"
        causes = ("the optimizer's state is not restored",)
        return named("wrong_optimizer_setting", 0.93, said, evidence, causes=causes)
    if betas[0] is None or betas[1] is None or abs(betas[0] - betas[1]) < _UNLIKE + 1e-3 * (1 - betas[1]):
        return None
    which = "beta1" if slot == "state.exp_avg" else "beta2"
    said = f"{facts.fqn}: {which} is {betas[0]:.4g} for {betas[1]:.4g} (solved for from {slot})"
    return named("wrong_optimizer_setting", 0.95, said, evidence)


def _beta(moment: Floats, before: Floats, fresh: Floats) -> float | None:
    """b of ``moment = b before + (1 - b) fresh``; None where nothing near fits."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = fit_moment(moment, before, fresh)
    if found is None or found[1] > 0.02 or not -0.01 <= found[0].value <= 1.01:
        return None
    return found[0].value


# -- precision of the update ------------------------------------------


def _lost(evidence: Evidence, facts: ParameterFacts) -> Kind | None:
    """Many elements keep their bits through an update that moves the reference's: no master weights."""
    after = facts.after("param")
    if after is None or evidence.origin.slot != "param":
        return None
    values = [
        (evidence.values_of(a), evidence.values_of(b))
        for a, b in ((facts.before.target, after.target), (facts.before.reference, after.reference))
    ]
    shares = [
        float((a == b).mean()) if a is not None and b is not None and a.shape == b.shape and a.size else None
        for a, b in values
    ]
    mine, theirs = shares
    known = after.target
    if mine is None or known is None or known.dtype not in ("bfloat16", "float16") or mine >= 1:
        return None
    other = after.reference
    master = other is not None and other.dtype == "float32"
    if mine < 0.1 or (not master and (theirs is None or mine < theirs + 0.1)):
        return None
    said = f"{percent(mine)} of {facts.fqn} keep their bits through the update: it is lost to rounding in "
    said += known.dtype
    if theirs is not None:
        said += f" (reference: {percent(theirs)})"
    return named(
        "wrong_optimizer_setting", 0.96, said, evidence, causes=("no float32 master weights are kept",)
    )
