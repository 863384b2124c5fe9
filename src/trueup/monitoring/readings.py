"""What is known of one step, as rules judge it and as it is written: plain arrays by kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from trueup.adapters import measures
from trueup.adapters.measures import Measured, MeasuredRows
from trueup.store.series import StepBlock
from trueup.types.arrays import Array, Floats
from trueup.types.trace import ScalarLine

L2_NORM, LARGEST, MEAN = "l2_norm", "largest", "mean"
NUM_NAN, NUM_INF, ZERO_SHARE, RATIO = "num_nan", "num_inf", "zero_share", "ratio"
DEAD_SHARE, IMBALANCE, STARVED_SHARE = "dead_share", "imbalance", "starved_share"


def _largest(rows: Array) -> Floats:
    largest: Floats = np.maximum(np.abs(rows["minimum"]), np.abs(rows["maximum"]))
    return largest


def _zero_share(rows: Array) -> Floats:
    share: Floats = rows["num_zero"] / np.maximum(rows["numel"], 1)
    return share


_COLUMNS: dict[str, Callable[[Array], Floats]] = {
    L2_NORM: lambda rows: rows["l2_norm"],
    LARGEST: _largest,
    MEAN: lambda rows: rows["mean"],
    NUM_NAN: lambda rows: rows["num_nan"].astype(np.float64),
    NUM_INF: lambda rows: (rows["num_posinf"] + rows["num_neginf"]).astype(np.float64),
    ZERO_SHARE: _zero_share,
    DEAD_SHARE: _zero_share,
    STARVED_SHARE: _zero_share,
    IMBALANCE: lambda rows: rows["maximum"],
}
_OF_TENSOR = (L2_NORM, LARGEST, NUM_NAN, NUM_INF, ZERO_SHARE)
KINDS: dict[str, tuple[str, ...]] = {
    measures.GRADIENT: _OF_TENSOR,
    measures.LOCAL_GRADIENT: (L2_NORM, NUM_NAN, NUM_INF),
    measures.WEIGHT: (L2_NORM, LARGEST, NUM_NAN, NUM_INF),
    measures.UPDATE: (L2_NORM, ZERO_SHARE),
    measures.MOMENTS[0]: (L2_NORM,),
    measures.MOMENTS[1]: (L2_NORM, LARGEST),
    measures.ACTIVATION: (*_OF_TENSOR, MEAN),
    measures.UNITS: (DEAD_SHARE,),
    measures.ROUTER: (IMBALANCE, STARVED_SHARE),
}
"""kind -> columns that are kept of it; ``update`` gets ``ratio`` besides. Norms and largest magnitudes are
NaN or infinite where some value is; so are those of updates, whose values are not counted, where none is
finite"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One step."""

    step: int
    numbers: Mapping[str, float]
    """scalars of the step: loss, grad_norm, weight_norm, update_ratio, learning_rate, loss_scale"""
    skipped: bool
    """a loss scaler left the update out"""
    updates: bool
    """some learning rate is known and not 0"""
    blocks: Mapping[str, StepBlock]
    """kind -> its columns; empty where the step was not measured"""

    def column(self, kind: str, column: str) -> tuple[tuple[str, ...], Floats] | None:
        """Names and numbers of one column, None where it was not measured."""
        block = self.blocks.get(kind)
        if block is None or column not in block.columns:
            return None
        return block.names, block.columns[column]


def reading_of(line: ScalarLine, measured: Measured, *, whole: bool) -> Reading:
    """The reading of a step, from the scalars of a trace and what an adapter measured.

    ``whole``: this process holds every weight, so that the norm over its gradients is the global one.
    """
    scale = line.get("loss_scale") or 1.0
    blocks = {
        kind: _block(rows, KINDS[kind], scale if kind in measured.scaled else 1.0)
        for kind, rows in measured.tables.items()
        if kind in KINDS
    }
    numbers = {
        name: float(value)
        for name in ("loss", "grad_norm", "loss_scale")
        if isinstance(value := line.get(name), (int, float))
    }
    rates = [rate for rate in _listed(line.get("learning_rate")) if isinstance(rate, (int, float))]
    if rates:
        numbers["learning_rate"] = max(rates)
    numbers |= _totals(blocks)
    if whole and "local_norm" in numbers:
        numbers.setdefault("grad_norm", numbers["local_norm"])
    return Reading(
        step=int(line["step"]),
        numbers=numbers,
        skipped=bool(line.get("skipped")),
        updates=any(rates),
        blocks=blocks,
    )


def _block(rows: MeasuredRows, columns: tuple[str, ...], scale: float) -> StepBlock:
    made = {column: _COLUMNS[column](rows.rows) for column in columns}
    if NUM_NAN in made:
        for column in (L2_NORM, LARGEST):
            if column in made:
                infinite = np.where(made[NUM_INF] > 0, np.inf, made[column])
                made[column] = np.where(made[NUM_NAN] > 0, np.nan, infinite)
    if scale != 1.0:
        for column in (L2_NORM, LARGEST):
            if column in made:
                made[column] = made[column] / scale
    return StepBlock(rows.names, made)


def _totals(blocks: dict[str, StepBlock]) -> dict[str, float]:
    """Norms over all weights, and the update's share of them weight by weight."""
    found: dict[str, float] = {}
    gradient, weight = blocks.get(measures.GRADIENT), blocks.get(measures.WEIGHT)
    update = blocks.get(measures.UPDATE)
    if gradient is not None:
        found["local_norm"] = _norm(gradient)
        found["num_not_finite"] = float(gradient.columns[NUM_NAN].sum() + gradient.columns[NUM_INF].sum())
    if weight is not None:
        found["weight_norm"] = _norm(weight)
    if update is not None and weight is not None:
        norms = dict(zip(weight.names, weight.columns[L2_NORM], strict=True))
        own = np.asarray([norms.get(name, math.nan) for name in update.names])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = update.columns[L2_NORM] / own
        blocks[measures.UPDATE] = StepBlock(update.names, {RATIO: ratio, **update.columns})
        total = found["weight_norm"]
        found["update_ratio"] = _norm(update) / total if total else math.nan
    return found


def _norm(block: StepBlock) -> float:
    """Over all of a kind; infinite or NaN where some value is."""
    return float(np.sqrt(np.square(block.columns[L2_NORM]).sum()))


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]
