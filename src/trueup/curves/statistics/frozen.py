"""The learning-rate-0 test: no weight moves, so every step is a first step and can be judged alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.curves.thresholds import OUTLYING, OUTLYING_LEAST
from trueup.types.arrays import Floats

_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenRun:
    """Differences step by step while no weight is updated."""

    num_steps: int
    mean_loss_diff: float
    max_loss_diff: float
    max_loss_step: int
    num_beyond: int
    """steps beyond the standard's first-loss threshold"""
    mean_norm_diff: float | None
    mean_norm_rel_diff: float | None
    max_norm_diff: float | None
    outlying_steps: tuple[int, ...]
    """steps whose loss or gradient norm differs ten times more than is usual here: to be looked at alone"""

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def frozen(
    *,
    loss: tuple[Floats, Floats],
    norm: tuple[Floats, Floats] | None,
    steps: NDArray[np.int64],
    threshold_abs: float,
    threshold_rel: float,
) -> FrozenRun:
    """Compare target and reference (``loss``, ``norm``) step by step."""
    target, reference = loss
    apart = np.abs(target - reference)
    known = np.isfinite(apart)
    beyond = known & (apart >= threshold_abs) & (apart >= threshold_rel * np.abs(reference))
    out = _outlying(apart)
    norms = None
    if norm is not None:
        norms = np.abs(norm[0] - norm[1])
        out |= _outlying(norms)
    at = int(np.argmax(np.where(known, apart, -1.0)))
    found = np.isfinite(norms) if norms is not None else None
    good_norms = norms[found] if norms is not None and found is not None and found.any() else None
    relative = None
    if norm is not None and good_norms is not None and found is not None:
        relative = float((good_norms / np.maximum(np.abs(norm[1][found]), 1e-30)).mean())
    return FrozenRun(
        num_steps=int(known.sum()),
        mean_loss_diff=float(apart[known].mean()) if known.any() else float("nan"),
        max_loss_diff=float(apart[at]),
        max_loss_step=int(steps[at]),
        num_beyond=int(beyond.sum()),
        mean_norm_diff=None if good_norms is None else float(good_norms.mean()),
        mean_norm_rel_diff=relative,
        max_norm_diff=None if good_norms is None else float(good_norms.max()),
        outlying_steps=tuple(steps[out][:_LISTED].tolist()),
    )


def _outlying(apart: Floats) -> NDArray[np.bool_]:
    known = apart[np.isfinite(apart)]
    if not len(known):
        return np.zeros(len(apart), bool)
    usual = float(np.median(known))
    out: NDArray[np.bool_] = np.nan_to_num(apart, nan=0.0) > max(OUTLYING * usual, OUTLYING_LEAST)
    return out
