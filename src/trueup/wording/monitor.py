"""English of the monitor's alarms."""

from __future__ import annotations

import math

from trueup.types.codes import MonitorCode as M
from trueup.wording.phrase import ReasonFacts, clause

_FIND_CALL = "find the call that produces it: trueup capture --task overflow_check"
_RULES = {
    "nan": ("NaN", _FIND_CALL),
    "overflow": ("overflow", _FIND_CALL),
    "spike": (
        "spike",
        "look at the batches of this step and the preceding one: trueup export --format batches",
    ),
    "vanishing": (
        "vanishing gradient",
        "find where the gradient is lost: trueup capture at level L0, then trueup inspect",
    ),
    "exploding": (
        "exploding gradient",
        "find where it grows: trueup capture at level L0, then trueup inspect; is clipping on?",
    ),
    "frozen": (
        "frozen weight",
        "is it given to the optimizer, and is its gradient cut off? in a coarse dtype, are updates lost in "
        "rounding: trueup check-run",
    ),
    "all_zero": (
        "all zeros",
        "possible causes: a unit that is always off, a mask over everything, or an unused branch",
    ),
    "no_learning": (
        "no learning",
        "check the learning rate, and whether labels belong to inputs: trueup check, trueup check-run",
    ),
    "mismatch": (
        "rollout mismatch",
        "capture some steps and see where and why: trueup mismatch RUN",
    ),
    "replicas_parted": (
        "replicas differ",
        "were they equal before training, and are gradients reduced: trueup check-run",
    ),
}
_SUBJECTS = {"loss": "loss", "grad_norm": "gradient norm"}


def _alarm(facts: ReasonFacts) -> str:
    value, bound, unit = facts["value"], facts["threshold"], facts["unit"]
    known = "" if value is None else f" {'NaN' if math.isnan(value) else f'{value:.6g}'}"
    subject = _SUBJECTS.get(facts["subject"], facts["subject"]) + known + (f" {unit}" if unit else "")
    limit = "" if bound is None else f", bound {bound:.6g}"
    more = f", and {facts['more']} more" if facts["more"] else ""
    rule = facts["rule"]
    return f"{_RULES[rule][0] if rule in _RULES else rule}: {subject}{limit}{more}"


_ALARM: dict[str, object] = {
    "rule": "spike",
    "subject": "loss",
    "value": 5.0,
    "threshold": 3.0,
    "unit": "",
    "more": 0,
}

PHRASES = {
    M.ALARM: clause(
        _alarm,
        _ALARM,
        {**_ALARM, "rule": "nan", "value": math.nan, "threshold": None},
        {**_ALARM, "rule": "frozen", "subject": "no gradient of 1.up.weight", "value": None, "more": 2},
        {**_ALARM, "rule": "nan", "subject": "weight a.weight", "unit": "NaN", "threshold": None},
    ),
    M.ADVICE: clause(
        lambda facts: _RULES[facts["rule"]][1] if facts["rule"] in _RULES else "see trueup monitor RUN",
        *({"rule": rule} for rule in _RULES),
    ),
}
