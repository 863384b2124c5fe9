"""What an Adam that a program writes itself did in its first step, told from weights and gradients alone.

From a new state both moments are of one gradient g, so that bias correction leaves

    d = w1 - w0 = -rate g / (|g| + eps) - pull w0,    pull = rate * decay,

whatever the betas are. Times |g| + eps this is linear in what is not known,

    d |g| = -eps d - rate g - pull w0 |g| - (pull eps) w0,

and rows over |g| + eps leave the roundings of w1 alike in all of them. eps is in units of the gradient as it
is recorded: what a program divides it by afterwards (a loss scale, clipping) divides that too. Of two runs
with one gradient the quotient of both is known all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trueup.diagnosing.optimizer_fit import FittedConstant
from trueup.diagnosing.thresholds import EPS_FEWEST, UPDATE_APART
from trueup.types.arrays import Floats

_PASSES = 4
"""weights of rows follow from eps, which the rows give"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAdam:
    """The constants of one weight's first step."""

    rate: FittedConstant
    eps: FittedConstant
    pull: FittedConstant


def own_adam(moved: Floats, gradient: Floats, before: Floats, rounding: float) -> OwnAdam | None:
    """The constants; None where the move is no such step, or of too few elements.

    Args:
        moved: (N,), weights after the step less those before.
        gradient: (N,), as backward left it, with any factor.
        before: (N,), weights before.
        rounding: of one element of ``moved``, as the root of its mean square.
    """
    d, g, w = (one.ravel() for one in (moved, gradient, before))
    live = g != 0
    d, g, w = d[live], g[live], w[live]
    size = float(np.sqrt(np.mean(np.square(d)))) if d.size else 0.0
    if d.size < EPS_FEWEST or not size > 0 or not all(np.isfinite(one).all() for one in (d, g, w)):
        return None
    top, eps = np.abs(g), 0.0
    columns = np.stack([-d, -g, -w * top, -w])
    for _ in range(_PASSES):
        rows = 1.0 / (top + max(eps, 0.0))
        scaled = columns * rows
        lengths = np.linalg.norm(scaled, axis=1)
        used = lengths > 0
        found = np.zeros(len(columns))
        solved, *_ = np.linalg.lstsq((scaled[used] / lengths[used, None]).T, d * top * rows, rcond=None)
        found[used] = solved / lengths[used]
        eps = float(found[0])
    rate, pull = float(found[1]), float(found[2])
    if not rate > 0 or eps < -UPDATE_APART * float(top.max()):
        return None
    left = d + rate * g / (top + max(eps, 0.0)) + pull * w
    if float(np.sqrt(np.mean(np.square(left)))) > max(rounding, UPDATE_APART * size):
        return None
    matrix = (scaled[used] / lengths[used, None]) @ (scaled[used] / lengths[used, None]).T
    errors = np.full(len(columns), np.inf)
    errors[used] = rounding * np.sqrt(np.maximum(np.diag(np.linalg.pinv(matrix)), 0.0)) / lengths[used]
    return OwnAdam(
        rate=FittedConstant(value=rate, error=float(errors[1])),
        eps=FittedConstant(value=eps, error=float(errors[0])),
        pull=FittedConstant(value=pull, error=float(errors[2])),
    )
