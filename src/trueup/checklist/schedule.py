"""Learning rate and weight decay of every step, computed from a configuration's canonical fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trueup.checklist.configuration import Configuration

Curve = npt.NDArray[np.float64]
MAX_POINTS = 200_000
_CLOSE = 1e-6
_NEEDS_SPAN = ("cosine", "linear", "polynomial", "inverse_sqrt", "wsd", "cosine_restarts", "sqrt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One side: values at ``steps`` (counted from 0); None where its fields do not determine them."""

    steps: npt.NDArray[np.int64]
    learning_rate: Curve | None
    weight_decay: Curve | None
    missing: str = ""
    """the field that is wanting"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedules:
    """Both sides over the same steps, and how far apart they are."""

    target: Schedule
    reference: Schedule | None
    learning_rate_gap: float | None
    """largest difference over the largest learning rate; None where a side is not determined"""
    weight_decay_gap: float | None
    first_step_apart: int | None

    @property
    def same(self) -> bool | None:
        """Whether the learning rates agree at every step drawn."""
        gap = self.learning_rate_gap
        return None if gap is None or np.isnan(gap) else gap <= _CLOSE


@np.errstate(invalid="ignore", over="ignore", divide="ignore")  # of settings that are not finite
def schedules(target: Configuration, reference: Configuration | None) -> Schedules:
    """Both schedules over the longer of the two runs, at every step up to 200,000, beyond that at as many."""
    sides = [target] if reference is None else [target, reference]
    spans = [_span(side) for side in sides]
    last = max([span for span in spans if span and span > 0] or [100])
    steps = np.unique(np.linspace(0, last - 1, min(last, MAX_POINTS)).round().astype(np.int64))
    computed = [_schedule(side, steps, span or last) for side, span in zip(sides, spans, strict=True)]
    if len(computed) == 1:
        return Schedules(
            target=computed[0],
            reference=None,
            learning_rate_gap=None,
            weight_decay_gap=None,
            first_step_apart=None,
        )
    rates = computed[0].learning_rate, computed[1].learning_rate
    gap, first = _gap(*rates, steps)
    decay_gap, _ = _gap(computed[0].weight_decay, computed[1].weight_decay, steps)
    return Schedules(
        target=computed[0],
        reference=computed[1],
        learning_rate_gap=gap,
        weight_decay_gap=decay_gap,
        first_step_apart=first,
    )


def _gap(
    left: Curve | None, right: Curve | None, steps: npt.NDArray[np.int64]
) -> tuple[float | None, int | None]:
    if left is None or right is None:
        return None, None
    largest = max(float(np.abs(left).max()), float(np.abs(right).max()))
    if largest == 0:
        return 0.0, None
    apart = np.abs(left - right) / largest
    beyond = np.flatnonzero(apart > _CLOSE)
    return float(apart.max()), int(steps[beyond[0]]) if beyond.size else None


def _span(side: Configuration) -> int | None:
    return next(
        (side.values[key].whole for key in ("train_steps", "decay_steps") if key in side.values), None
    )


def _schedule(side: Configuration, steps: npt.NDArray[np.int64], span: int) -> Schedule:
    values = {key: value.value for key, value in side.values.items()}
    kind = values.get("lr_schedule")
    missing = ""
    if "learning_rate" not in values or kind is None:
        missing = "learning_rate" if "learning_rate" not in values else "lr_schedule"
    elif kind in _NEEDS_SPAN and "decay_steps" not in values and "train_steps" not in values:
        missing = "train_steps"
    elif kind not in (*_NEEDS_SPAN, "constant"):
        missing = f"lr_schedule {kind}, which is not known here"
    rate = None if missing else learning_rate(values, steps)
    return Schedule(
        steps=steps, learning_rate=rate, weight_decay=weight_decay(values, steps, span), missing=missing
    )


def learning_rate(values: Mapping[str, Any], steps: npt.NDArray[np.int64]) -> Curve:
    """The learning rate the optimizer uses at each step, counted from 0.

    ``values`` are canonical fields: learning_rate, lr_schedule, min_lr, warmup_steps, warmup_init_lr,
    warmup_offset, decay_steps, stable_decay_steps, stable_decay_style. Decay spans ``decay_steps`` less the
    warmup, as in Megatron-LM, transformers, MindFormers and torchtitan; beyond it stays ``min_lr``.
    """
    peak, low = float(values["learning_rate"]), float(values.get("min_lr", 0.0))
    kind = str(values["lr_schedule"])
    warmup = int(values.get("warmup_steps", 0))
    begin = float(values.get("warmup_init_lr", 0.0))
    offset = int(values.get("warmup_offset", 0))
    total = int(values.get("decay_steps") or values.get("train_steps") or 0)
    step = steps.astype(np.float64)
    done = np.clip((step - warmup) / max(1, total - warmup), 0.0, 1.0) if total else np.zeros_like(step)
    rate = low + (peak - low) * _decay(kind, done, step, warmup, total, values)
    if kind == "inverse_sqrt":
        rate = np.maximum(low, peak * np.sqrt(max(1, warmup) / np.maximum(step, max(1, warmup))))
    if warmup:
        rising = begin + (peak - begin) * (step + offset) / warmup
        rate = np.where(step + offset < warmup, rising, np.where(step < warmup, peak, rate))
    return np.asarray(rate, dtype=np.float64)


def _decay(kind: str, done: Curve, step: Curve, warmup: int, total: int, values: Mapping[str, Any]) -> Curve:
    """The share of the way from ``min_lr`` up to the peak."""
    if kind == "cosine":
        return np.asarray(0.5 * (1.0 + np.cos(np.pi * done)))
    if kind in ("linear", "polynomial"):
        return 1.0 - done
    if kind == "sqrt":
        return 1.0 - np.sqrt(done)
    if kind == "wsd":
        last = int(values.get("stable_decay_steps") or max(1, total - warmup))
        late = np.clip((step - (total - last)) / last, 0.0, 1.0)
        return _late(str(values.get("stable_decay_style", "linear")), late)
    return np.ones_like(step)


def _late(style: str, late: Curve) -> Curve:
    if style == "cosine":
        return np.asarray(0.5 * (1.0 + np.cos(np.pi * late)))
    if style in ("exponential",):
        return np.asarray(2.0 * np.power(0.5, late) - 1.0)
    if style in ("sqrt", "minus_sqrt", "1-sqrt"):
        return 1.0 - np.sqrt(late)
    return 1.0 - late


def weight_decay(values: Mapping[str, Any], steps: npt.NDArray[np.int64], span: int) -> Curve | None:
    """Weight decay at each step: constant, or rising linearly or by a cosine over the run."""
    if "weight_decay" not in values:
        return None
    start = float(values["weight_decay"])
    end = float(values.get("weight_decay_end", start))
    done = np.clip(steps / max(1, span), 0.0, 1.0)
    style = values.get("weight_decay_schedule", "constant")
    if style == "linear":
        return np.asarray(start + (end - start) * done)
    if style == "cosine":
        return np.asarray(start + (end - start) * 0.5 * (np.cos(np.pi * (1.0 - done)) + 1.0))
    return np.full(steps.shape, start, dtype=np.float64)
