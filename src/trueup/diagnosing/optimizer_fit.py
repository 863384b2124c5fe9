"""The constants of an optimizer's step, fitted to what the step changed: the one fit of this kind.

Adam's update is linear in two known directions, ``after - before = -lr * d - lr * decay * before`` with
``d = m' / (sqrt(v') + eps)``; the moments are linear in the gradient. Least squares gives each constant with
its error, so that two runs can be compared by what their optimizers *did*, with any gradients and
any declared settings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trueup.diagnosing.thresholds import (
    APART_AT_LEAST,
    APART_ERRORS,
    COUPLED_REST,
    COUPLED_ROUNDINGS,
    COUPLED_SHARE,
    EPS_FEWEST,
    EPS_SHARE,
    FIT_ROUNDOFF,
    PARALLEL,
    UNKNOWN_ROUNDOFF,
    UPDATE_APART,
    UPDATE_ROUNDINGS,
    UPDATE_SHARE,
)
from trueup.numerics.dtypes import DTYPES, dtype_from_name
from trueup.types.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstant:
    """A constant of the update, and how far rounding may have moved it."""

    value: float
    error: float

    def apart(self, other: FittedConstant) -> float:
        """How many errors two are apart; a thousandth of the value counts as no difference."""
        gap = abs(self.value - other.value)
        allowed = APART_ERRORS * (self.error + other.error) + APART_AT_LEAST * abs(other.value)
        return gap / allowed if allowed > 0 else (0.0 if gap == 0 else np.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFit:
    """``after - before = -rate * direction - pull * before``, by least squares."""

    rate: FittedConstant
    pull: FittedConstant
    """decoupled weight decay times the rate; its error is infinite where direction and weights are
    parallel or the weights are zero"""
    residual: float
    """norm of what the fit leaves open, over the norm of the update"""


def fit_update(
    moved: Floats, direction: Floats, before: Floats, *, noise: float | None = None
) -> UpdateFit | None:
    """Rate and pull of an update; None for a zero direction or update.

    Errors are those that ``noise`` (rounding, for each element) leaves; without it, those of the residual.
    """
    a, b, c = float(direction @ direction), float(direction @ before), float(before @ before)
    if not a or not np.any(moved):
        return None
    along, across = -float(direction @ moved), -float(before @ moved)
    determinant = a * c - b * b
    apart = c > 0 and determinant > PARALLEL * a * c
    if apart:
        rate, pull = (along * c - across * b) / determinant, (across * a - along * b) / determinant
        spread = float(np.sqrt(c / determinant)), float(np.sqrt(a / determinant))
    else:  # of one direction, as ones and signs: how much of it is decay cannot be told
        rate, pull = along / a, 0.0
        spread = (np.inf if c > 0 else float(1 / np.sqrt(a))), np.inf
    left = float(np.linalg.norm(moved + rate * direction + pull * before))
    error = left / float(np.sqrt(max(len(moved) - 2, 1))) if noise is None else noise
    errors = [e if np.isinf(e) else error * e for e in spread]
    return UpdateFit(
        rate=FittedConstant(value=rate, error=errors[0]),
        pull=FittedConstant(value=pull, error=errors[1]),
        residual=left / float(np.linalg.norm(moved)),
    )


def fit_moment(
    new: Floats, old: Floats | None, added: Floats, *, roundoff: float = 0.0
) -> tuple[FittedConstant, float] | None:
    """beta of ``new = beta * old + (1 - beta) * added`` and the residual over the norm of ``new``.

    None where ``new`` or ``old - added`` is zero.
    """
    base, step = new - added, (-added if old is None else old - added)
    square, norm = float(step @ step), float(np.linalg.norm(new))
    if not square or not norm:
        return None
    beta = float(base @ step) / square
    residual = float(np.linalg.norm(base - beta * step)) / norm
    error = max(roundoff, residual) * norm / np.sqrt(square)
    return FittedConstant(value=beta, error=float(error)), residual


def adam_directions(
    first: Floats, second: Floats, *, count: float, betas: tuple[float, float]
) -> dict[bool, tuple[Floats, Floats]]:
    """Numerator and denominator (without eps) of Adam's direction, with and without bias correction."""
    with np.errstate(divide="ignore", invalid="ignore"):
        hats = first / (1 - betas[0] ** count), np.sqrt(np.maximum(second / (1 - betas[1] ** count), 0))
        return {True: hats, False: (first, np.sqrt(np.maximum(second, 0)))}


def fit_coupled_moment(
    m: Floats, g: Floats, p: Floats, m0: Floats | None, *, roundoff: float = 0.0
) -> tuple[FittedConstant, FittedConstant] | None:
    """beta1 and weight decay where a multiple of the weights went into the first moment, of ``roundoff``,
    beside the gradient."""
    columns = np.stack([g, p] if m0 is None else [g, p, m0], 1)
    solved, *_ = np.linalg.lstsq(columns, m, rcond=None)
    norm = float(np.linalg.norm(m))
    rest = float(np.linalg.norm(m - columns @ solved)) / norm
    share = abs(float(solved[1])) * float(np.linalg.norm(p)) / norm
    rounded = roundoff > COUPLED_REST
    most, least = (roundoff, COUPLED_ROUNDINGS * roundoff) if rounded else (COUPLED_REST, COUPLED_SHARE)
    if rest > most or share < least or not solved[0]:
        return None
    decay = float(solved[1] / solved[0])
    return FittedConstant(value=1 - float(solved[0]), error=rest), FittedConstant(
        value=decay, error=abs(decay) * rest / share
    )


def fit_steady_update(
    moved: Floats, top: Floats, bottom: Floats, eps: float, p: Floats, noise: float
) -> UpdateFit | None:
    """The fit to those elements whose direction eps touches least."""
    known = bottom[bottom > 0]
    if not len(known) or not np.any(moved):
        return None
    steady = bottom >= float(np.quantile(known, 0.5))
    if steady.sum() < 2:
        return None
    return fit_update(moved[steady], top[steady] / (bottom[steady] + eps), p[steady], noise=noise)


def fit_eps(
    moved: Floats, top: Floats, bottom: Floats, p: Floats, lr: float, decay: float, noise: float
) -> FittedConstant | None:
    """eps, from the elements where it matters most against rounding."""
    if lr <= 0:
        return None
    quotient = -(moved + lr * decay * p) / lr
    with np.errstate(divide="ignore", invalid="ignore"):
        found = top / quotient - bottom
        of_quotient = noise / lr + FIT_ROUNDOFF * np.abs(quotient)
        error = np.abs(top / (quotient * quotient)) * of_quotient + FIT_ROUNDOFF * bottom
    good = np.isfinite(found) & np.isfinite(error) & (quotient != 0) & (top != 0) & (bottom > 0)
    if good.sum() < EPS_FEWEST:
        return None
    best = np.argsort(error[good])[: max(EPS_FEWEST, int(good.sum() * EPS_SHARE))]
    return FittedConstant(
        value=float(np.median(found[good][best])), error=float(np.median(error[good][best]))
    )


def roundoff_of(dtype: str | None) -> float:
    """The unit roundoff of a dtype by name; float32's where it has none."""
    return dtype_from_name(dtype).eps if dtype in DTYPES else UNKNOWN_ROUNDOFF


def near_updates(target: Floats, reference: Floats, before: Floats, roundoff: float) -> bool:
    """Whether two weights after one update of ``before`` differ by rounding alone. An update that is made of
    the whole gradient (orthogonalised, preconditioned) rounds by a share of its own size everywhere, also
    where it moves little."""
    sizes = abs(before) + abs(reference)
    moved = abs(reference - before)
    size = float(np.sqrt(np.mean(np.square(moved)))) if moved.size else 0.0
    allowed = UPDATE_ROUNDINGS * roundoff * sizes + UPDATE_APART * np.maximum(moved, size)
    return bool((abs(target - reference) <= allowed).mean() > UPDATE_SHARE)
