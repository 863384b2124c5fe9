"""Two evaluations compared: each difference against its standard error and the standard's 1 %."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from trueup.accepting.evaluation import Evaluation, Score
from trueup.accepting.item import State
from trueup.curves.thresholds import MEAN_REL
from trueup.errors import NothingCompared
from trueup.types.codes import AcceptCode as Code
from trueup.types.reason import Reason, reason

LEVEL = 0.05
"""chance that any one score of two equal models is called different"""
TOGETHER_Z = NormalDist().inv_cdf(1 - LEVEL / 2)
"""standard errors from which on the mean over all tasks differs"""
COARSEST = 0.20
"""Where two standard errors are more than this share of the score, the task had too few samples to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One metric of one task on both sides."""

    task: str
    metric: str
    target: float | None
    reference: float | None
    difference: float | None
    """target - reference"""
    relative: float | None
    standard_error: float | None
    """of the difference, sqrt(se_target^2 + se_reference^2): the same questions were asked, so that it is an
    upper bound"""
    z: float | None
    state: State
    why: Reason
    num_tasks: int | None = None
    """of the mean over tasks; None of a single task"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """All of two evaluations."""

    rows: tuple[Compared, ...]
    together: Compared | None
    """the mean over tasks of their main metric; None of fewer than two with a standard error"""
    limit_z: float
    """standard errors from which on a difference is one, for the number of scores judged"""


def compare_evaluations(target: Evaluation, reference: Evaluation) -> Scores:
    """Compare score by score.

    Raises:
        NothingCompared: no task and metric is in both.
    """
    shared = [key for key in target.scores if key in reference.scores]
    if not shared:
        raise NothingCompared(
            f"{target.path} and {reference.path} have no task and metric in common: "
            f"{', '.join(_tasks(target))} against {', '.join(_tasks(reference))}"
        )
    judged = [k for k in shared if _error(target.scores[k], reference.scores[k]) is not None]
    limit = NormalDist().inv_cdf(1 - LEVEL / 2 / max(1, len(judged)))
    rows = [_row(key, target, reference, limit) for key in shared]
    rows += [_one_sided(target.scores[key], "target") for key in target.scores if key not in reference.scores]
    rows += [
        _one_sided(reference.scores[key], "reference") for key in reference.scores if key not in target.scores
    ]
    return Scores(rows=tuple(rows), together=_together(target, reference, shared), limit_z=limit)


def _tasks(evaluation: Evaluation) -> list[str]:
    names = list(dict.fromkeys(task for task, _ in evaluation.scores))
    return names if len(names) <= 4 else [*names[:4], "..."]


def _error(one: Score, other: Score) -> float | None:
    errors = one.standard_error, other.standard_error
    return None if errors[0] is None or errors[1] is None else math.hypot(errors[0], errors[1])


def _row(key: tuple[str, str], target: Evaluation, reference: Evaluation, limit: float) -> Compared:
    actual, expected = target.scores[key], reference.scores[key]
    difference, error = actual.value - expected.value, _error(actual, expected)
    relative = difference / abs(expected.value) if expected.value else math.inf if difference else 0.0
    z = (
        difference / error
        if error
        else math.copysign(math.inf, difference)
        if difference and error == 0
        else None
    )
    state, why = _judged(actual, expected, relative, error, z, limit)
    if broken := _not_finite(actual, expected):
        state = State.FAILED if broken == ["target"] else State.NOT_SHOWN
        why = reason(Code.SCORE_NOT_FINITE, sides=broken)
    other = _other_settings(target, reference, actual.task)
    if other is not None:
        state, why = State.NOT_SHOWN, other
    return Compared(
        task=actual.task,
        metric=actual.metric,
        target=actual.value,
        reference=expected.value,
        difference=difference,
        relative=relative,
        standard_error=error,
        z=z,
        state=state,
        why=why,
    )


def _not_finite(target: Score, reference: Score) -> list[str]:
    sides = (("target", target), ("reference", reference))
    return [side for side, score in sides if not math.isfinite(score.value)]


def _judged(
    target: Score, reference: Score, relative: float, error: float | None, z: float | None, limit: float
) -> tuple[State, Reason]:
    if abs(relative) < MEAN_REL:
        return State.PASSED, reason(Code.BELOW_1_PERCENT)
    worse = (relative < 0) is reference.higher_is_better
    if error is None:
        return _STATES[worse], reason(Code.NO_ERROR, is_worse=worse)
    if z is not None and abs(z) > limit:
        return _STATES[worse], reason(Code.BEYOND, is_worse=worse, z=abs(z), limit=limit)
    if reference.value and 2 * error > COARSEST * abs(reference.value):
        return State.NOT_SHOWN, reason(Code.TOO_FEW_SAMPLES, share=COARSEST)
    return State.PASSED, reason(Code.WITHIN, z=abs(z or 0.0), limit=limit)


_STATES = {True: State.FAILED, False: State.WARNING}
"""whether the target is worse -> what a significant difference is"""


def _other_settings(target: Evaluation, reference: Evaluation, task: str) -> Reason | None:
    actual, expected = target.settings.get(task, {}), reference.settings.get(task, {})
    names = [name for name in actual if actual[name] != expected.get(name, actual[name])]
    if not names:
        return None
    values = {"target": [str(actual[n]) for n in names], "reference": [str(expected[n]) for n in names]}
    return reason(Code.OTHER_SETTINGS, names=names, **values)


def _one_sided(score: Score, side: str) -> Compared:
    other = "reference" if side == "target" else "target"
    return Compared(
        task=score.task,
        metric=score.metric,
        target=score.value if side == "target" else None,
        reference=score.value if side == "reference" else None,
        difference=None,
        relative=None,
        standard_error=None,
        z=None,
        state=State.NOT_SHOWN,
        why=reason(Code.ONE_SIDED, side=other),
    )


def _together(target: Evaluation, reference: Evaluation, shared: list[tuple[str, str]]) -> Compared | None:
    """A small loss everywhere, which no task shows by itself."""
    tasks = dict.fromkeys(task for task, _ in shared)
    keys = [(task, metric) for task in tasks if (metric := reference.primary(task)) is not None]
    keys = [k for k in keys if k in shared and _other_settings(target, reference, k[0]) is None]
    pairs = [(target.scores[k], reference.scores[k]) for k in keys]
    pairs = [p for p in pairs if p[1].higher_is_better and _error(*p) is not None and not _not_finite(*p)]
    if len(pairs) < 2:
        return None
    actual, expected = (sum(pair[side].value for pair in pairs) / len(pairs) for side in (0, 1))
    error = math.sqrt(sum((_error(*pair) or 0.0) ** 2 for pair in pairs)) / len(pairs)
    main = [
        Score(task="", metric="", value=v, standard_error=0.0, higher_is_better=True)
        for v in (actual, expected)
    ]
    relative = (actual - expected) / abs(expected) if expected else 0.0
    z = (actual - expected) / error if error else None
    state, why = _judged(main[0], main[1], relative, error, z, TOGETHER_Z)
    return Compared(
        task=f"all {len(pairs)} tasks together",
        metric="mean of their main metric",
        target=actual,
        reference=expected,
        difference=actual - expected,
        relative=relative,
        standard_error=error,
        z=z,
        state=state,
        why=why,
        num_tasks=len(pairs),
    )
