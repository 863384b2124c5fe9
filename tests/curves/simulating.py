"""Training curves with known truth: what the tests and the benchmark of this package measure it by.

Every run is ``trend + data noise + its own noise + spikes``. Trend, data noise and the data's spikes are
those of all
runs of a case; own noise is AR(1) and sets in over the first steps, for all runs begin with the same
weights; own
spikes come at random and die down over a few steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from trueup.curves.columns import SCHEMA
from trueup.curves.curve import Curve
from trueup.types.arrays import Floats

NUM_DECAY = 6
_DECAY = 0.5 ** np.arange(NUM_DECAY)
_SETTING_IN = 20
"""steps in which own noise reaches two thirds of its size"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What is put into a case."""

    num_steps: int = 5000
    sigma: float = 0.01
    """standard deviation of a run's own noise"""
    coefficient: float = 0.5
    """how much of it is left a step later"""
    spike_rate: float = 0.001
    """own spikes a step; the data's come as often"""
    spike_sigmas: float = 20.0
    """their mean height, of an exponential distribution"""
    data_sigma: float = 0.05
    num_references: int = 2
    offset_errors: float = 0.0
    """the target's constant offset, in standard errors of the mean difference"""
    change_step: int | None = None
    """index the target parts at"""
    jump_sigmas: float = 0.0
    """how far it leaps there, in sigmas"""
    end_sigmas: float = 0.0
    """how far it has drifted away from there at the end, in sigmas"""

    @property
    def standard_error(self) -> float:
        """Of the mean over all steps of target - mean of the references, own noise and own spikes
        together."""
        num, rho = self.num_steps, self.coefficient
        lags = np.arange(1, num)
        noise = self.sigma**2 / num * (1 + 2 * float(((1 - lags / num) * rho**lags).sum()))
        area = 2 * (self.spike_sigmas * self.sigma) ** 2 * float(_DECAY.sum()) ** 2
        return math.sqrt((noise + self.spike_rate * area / num) * (1 + 1 / self.num_references))

    @property
    def offset(self) -> float:
        """The constant offset itself."""
        return self.offset_errors * self.standard_error


def simulate(truth: Truth, seed: int) -> tuple[Curve, list[Curve]]:
    """The target and its references."""
    random = np.random.default_rng(seed)
    num = truth.num_steps
    steps = np.arange(num)
    trend = 2.0 + 8.0 * (1 + steps / 100) ** -0.5
    data = truth.data_sigma * random.standard_normal(num) + _spikes(truth, random)
    runs = [trend + data + _own(truth, random) for _ in range(1 + truth.num_references)]
    runs[0] = runs[0] + truth.offset + _parting(truth)
    curves = [_curve(f"run {i}", values, random) for i, values in enumerate(runs)]
    return curves[0], curves[1:]


def _own(truth: Truth, random: np.random.Generator) -> Floats:
    noise = autoregressive(truth.num_steps, truth.coefficient, truth.sigma, random) + _spikes(truth, random)
    own: Floats = noise * -np.expm1(-np.arange(truth.num_steps) / _SETTING_IN)
    return own


def autoregressive(num: int, coefficient: float, sigma: float, random: np.random.Generator) -> Floats:
    """AR(1) noise of standard deviation ``sigma``, stationary from its first step."""
    pushes = random.standard_normal(num) * sigma * math.sqrt(1 - coefficient**2)
    pushes[0] = random.standard_normal() * sigma
    if not coefficient:
        return pushes
    values = np.empty(num)
    last = 0.0
    for at, push in enumerate(pushes.tolist()):
        last = coefficient * last + push
        values[at] = last
    return values


def _spikes(truth: Truth, random: np.random.Generator) -> Floats:
    values = np.zeros(truth.num_steps + NUM_DECAY)
    at = np.flatnonzero(random.random(truth.num_steps) < truth.spike_rate)
    heights = random.exponential(truth.spike_sigmas * truth.sigma, len(at))
    for where, height in zip(at.tolist(), heights.tolist(), strict=True):
        values[where : where + NUM_DECAY] += height * _DECAY
    return values[: truth.num_steps]


def _parting(truth: Truth) -> Floats:
    moved = np.zeros(truth.num_steps)
    if truth.change_step is not None:
        after = truth.num_steps - truth.change_step
        moved[truth.change_step :] += truth.jump_sigmas * truth.sigma
        moved[truth.change_step :] += truth.end_sigmas * truth.sigma * np.arange(1, after + 1) / after
    return moved


def _curve(name: str, loss: Floats, random: np.random.Generator) -> Curve:
    num = len(loss)
    columns = {
        "step": np.arange(1, num + 1),
        "loss": loss,
        "grad_norm": np.exp(0.1 * random.standard_normal(num)),
        "learning_rate": np.full(num, 1e-4),
    }
    frame = pl.DataFrame(columns, schema={column: SCHEMA[column] for column in columns})
    return Curve(name=name, path=Path(name), frame=frame, format="simulated", files=(name,))
