"""The interval of one who is told how the simulated differences of ``curves_coverage.py`` are made.

Told: the five shapes, their size of 0.1, how their places and lengths are drawn, and that noise is AR(1) with
one of the six coefficients. Not told: which of them it is this time, the place, the level and the noise's
size. By Bayes' rule no other interval does better on average over these cases: where this one is wide, or
misses, the steps do not say which noise it is.

``told_less``: neither the size nor the six coefficients, as of runs that were not simulated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trueup.curves.statistics.trend import Trended
from trueup.types.arrays import Floats

COEFFICIENTS = (0.0, 0.5, 0.9, 0.97, 0.99, 1.0)
_PLACES = np.linspace(0.1, 0.5, 41)
_LENGTHS = np.linspace(0.1, 0.4, 13)
_LEAST_WEIGHT = 1e-4
_SIZES = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)
_BETWEEN = (0.0, 0.5, 0.8, 0.9, 0.94, 0.96, 0.97, 0.978, 0.984, 0.99, 0.994, 0.998, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """All that may have been drawn, for runs of one length."""

    num: int
    coefficients: tuple[float, ...]
    shapes: tuple[Floats, ...]
    """(S, N) made independent, of each coefficient"""
    means: Floats
    """(S,) of each shape"""
    log_prior: Floats
    """(S,): each of the five shapes is as likely, whatever its place"""

    def interval(self, values: Floats) -> Trended:
        """What is known of the mean, weighed over coefficients and shapes."""
        found = [
            self._of(values, coefficient, shapes)
            for coefficient, shapes in zip(self.coefficients, self.shapes, strict=True)
        ]
        logs, centres, errors = (np.concatenate(one) for one in zip(*found, strict=True))
        weights = np.exp(logs - logs.max())
        kept = weights > _LEAST_WEIGHT
        return Trended(
            probability=0.0,
            weights=weights[kept] / weights[kept].sum(),
            centres=centres[kept] - float(values.mean()),
            errors=errors[kept],
            freedom=np.full(int(kept.sum()), self.num - 2.0),
        )

    def _of(self, values: Floats, coefficient: float, shapes: Floats) -> tuple[Floats, Floats, Floats]:
        """Of every shape: logarithm of the likelihood, integrated over level and size of the noise; estimate
        and error of the mean."""
        ones = _pushes(np.ones(self.num), coefficient)
        length = float(ones @ ones)
        rest = _pushes(values, coefficient) - shapes
        levels = rest @ ones / length
        squares = np.einsum("sn,sn->s", rest, rest) - levels**2 * length
        logs = self.log_prior - (self.num - 1) / 2 * np.log(squares)
        start = 0.5 * math.log(1 - coefficient**2) if coefficient < 1 else 0.0
        errors = np.sqrt(squares / (self.num - 1) / length)
        return logs + start - 0.5 * math.log(length), levels + self.means, errors


def told_less(num: int) -> Told:
    """For runs of ``num`` steps: sizes from half to twice the true one, of either sign, and coefficients
    between the six too."""
    return told(num, _SIZES, _BETWEEN)


def told(num: int, sizes: tuple[float, ...] = (1.0,), coefficients: tuple[float, ...] = COEFFICIENTS) -> Told:
    """For runs of ``num`` steps; ``sizes`` in units of the true one."""
    at = np.arange(num) / num
    drawn: tuple[list[Floats], ...] = (
        [0.1 * at],
        [0.1 * np.clip((at - begin) / long, 0, 1) for begin in _PLACES for long in _LENGTHS],
        [0.1 * -np.expm1(-np.maximum(at - begin, 0) * 8) for begin in _PLACES],
        [0.1 * (np.arange(num) >= begin) for begin in range(num // 10, num // 2 + 1)],
    )
    families = (
        [np.zeros(num)],
        *([size * one for size in sizes for one in family] for family in drawn),
    )
    return Told(
        num=num,
        coefficients=coefficients,
        shapes=tuple(
            np.stack([_pushes(one, coefficient) for family in families for one in family])
            for coefficient in coefficients
        ),
        means=np.array([float(one.mean()) for family in families for one in family]),
        log_prior=np.concatenate([np.full(len(family), -math.log(len(family))) for family in families]),
    )


def _pushes(values: Floats, coefficient: float) -> Floats:
    """Independent, of one size; a walk begins at zero, other noise long before."""
    first = values[:1] * (math.sqrt(1 - coefficient**2) if coefficient < 1 else 1.0)
    return np.concatenate([first, values[1:] - coefficient * values[:-1]])
