"""The schedules that two configurations lead to: what they say, and their plots."""

from __future__ import annotations

import numpy as np

from trueup.checklist.check import Checklist
from trueup.reporting.document import Plot, Series

_POINTS = 400


def schedule_plots(checklist: Checklist) -> tuple[Plot, ...]:
    """Learning rate and weight decay of both sides, over the steps of the longer run."""
    found, plots = checklist.schedules, []
    for name in ("learning_rate", "weight_decay"):
        lines = []
        for role, side in (("reference", found.reference), ("target", found.target)):
            values = None if side is None else getattr(side, name)
            if side is not None and values is not None:
                last = len(side.steps) - 1
                chosen = np.unique(np.linspace(0, last, min(_POINTS, last + 1)).round().astype(int))
                lines.append(Series(name=role, role=role, x=side.steps[chosen], y=np.asarray(values)[chosen]))
        apart = name == "learning_rate" and checklist.rates_part and found.first_step_apart is not None
        words = name.replace("_", " ")
        if lines:
            plots.append(
                Plot(
                    key=name,
                    title=words.capitalize(),
                    y_title=words,
                    lines=tuple(lines),
                    marks=((found.first_step_apart, f"diverges at step {found.first_step_apart:,}"),)
                    if apart and found.first_step_apart is not None
                    else (),
                )
            )
    return tuple(plots)


def schedule_sentence(checklist: Checklist) -> str:
    """Whether both sides use the same learning rate at every step; empty where the optimizer is left out."""
    found = checklist.schedules
    if checklist.reference is None:
        return "What the optimizer uses at every step, computed from the configuration."
    if not checklist.weighs_schedules:
        return ""
    if found.same:
        return "The computed learning rates are the same at every step."
    if found.same is None:
        sides = (("target", found.target), ("reference", found.reference))
        missing = [f"the {name} ({side.missing})" for name, side in sides if side and side.missing]
        return f"The learning rate cannot be computed for {' and '.join(missing)}." if missing else ""
    gap = found.learning_rate_gap or 0.0
    share = f"{gap:.1%}" if gap >= 1e-3 else f"{gap:.1e}"
    step = found.first_step_apart or 0
    return f"The computed learning rates diverge at step {step:,}, by up to {share} of the peak."
