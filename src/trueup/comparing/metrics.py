"""Numbers per pair from the strongest evidence both sides hold: digest, then values, then sketch, then
statistics."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trueup.comparing.not_counted import shown_apart
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.thresholds import (
    FLOAT32,
    RESOLUTION,
    STATISTICS_ROUNDING,
    SUM_LENGTH,
    SUM_POWER,
    SUM_ROUNDINGS,
)
from trueup.matching.codes import Codes
from trueup.numerics import sketch
from trueup.numerics.dtypes import unit_roundoffs
from trueup.numerics.summary import SKETCH_SIZE
from trueup.types.arrays import Bools, Floats

_BLOCK = 8192
"""Sketches are widened to float64 so many at a time."""

EVIDENCE = ("digest", "values", "sketch", "statistics", "none")
DIGEST, VALUES, SKETCH, STATISTICS, NONE = range(5)
WHERE_EQUAL = {
    "max_abs_diff": 0.0,
    "max_rel_diff": 0.0,
    "cosine_similarity": 1.0,
    "scale": 1.0,
    "residual": 0.0,
    "fraction_above": 0.0,
    "fraction_within_thousandth": 1.0,
    "fraction_within_five_thousandths": 1.0,
    "max_ulp_diff": 0.0,
}
"""A detail and what it is where all bits are equal."""
DETAILS = tuple(WHERE_EQUAL)


@dataclass(frozen=True, slots=True)
class Metrics:
    """Columns beside Rows; NaN where a number is not known.

    ``difference`` is ||t - r||: exact from values, an unbiased estimate of its square from sketches (64
    numbers, standard deviation 9 % of the norm), a lower bound from statistics.
    """

    known_bits: Bools
    bits_equal: Bools
    evidence: Codes
    difference: Floats
    norm: Floats
    """||r|| over finite values; of what was put together of sketches alone, as their length tells"""
    mismatched: Codes
    """places that hold NaN or an infinity on one side and something else on the other; -1 where values were
    not read"""
    update_lengths: Floats
    """per ``StepRows.weight``: ||p after - p before|| of the reference, NaN where it has no such sketches"""
    details: dict[str, Floats] = field(default_factory=dict)

    def sealed(self) -> Metrics:
        """The same, read-only from now on."""
        columns = self.known_bits, self.bits_equal, self.evidence, self.difference, self.norm
        for column in (*columns, self.mismatched, self.update_lengths, *self.details.values()):
            column.flags.writeable = False
        return self

    @property
    def rel_l2(self) -> Floats:
        """difference / norm; 0 where both are 0, infinite where only the norm is."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = self.difference / self.norm
        return np.where(self.difference == 0, 0.0, np.where(self.norm == 0, np.inf, ratio))


def measure(rows: StepRows) -> Metrics:
    """Everything that summaries alone can tell; stored values are looked at afterwards (values.py)."""
    t, r = rows.target, rows.reference
    both = (t.summary >= 0) & (r.summary >= 0)
    plain = rows.layout < 0
    alike = both & (t.dtype == r.dtype) & (t.shape == r.shape) & plain
    known, equal = _bits(rows, both & plain, alike)
    metrics = Metrics(
        known_bits=known,
        bits_equal=equal,
        evidence=np.full(len(rows), NONE, np.int64),
        difference=np.full(len(rows), np.nan),
        norm=_finite_norm(t, r),
        mismatched=np.full(len(rows), -1, np.int64),
        update_lengths=_update_lengths(rows),
        details={name: np.full(len(rows), np.nan) for name in DETAILS},
    )
    metrics.evidence[equal] = DIGEST
    metrics.difference[equal] = 0.0
    for name, value in WHERE_EQUAL.items():
        metrics.details[name][equal] = value
    metrics.details["cosine_similarity"][equal & ~(metrics.norm > 0)] = np.nan
    open_ = both & ~equal & ((t.shape == r.shape) | ~plain)
    _from_statistics(rows, metrics, open_)
    _from_sketches(rows, metrics, open_ & plain)
    for sides in shown_apart(rows).values():
        shown = open_ & (sides[0] | sides[1]) & (metrics.evidence == NONE)
        metrics.evidence[shown] = STATISTICS
        metrics.difference[shown] = metrics.norm[shown]
    nothing_finite = open_ & _all_non_finite(t) & _all_non_finite(r)
    metrics.difference[nothing_finite] = metrics.norm[nothing_finite] = 0.0
    return metrics


def _finite_norm(target: Half, reference: Half) -> Floats:
    """The reference's norm; where a tool counted infinities in, the target's, else the largest finite
    element, which a norm is never less than. Where it kept none, the most that the other statistics allow."""
    norm = reference.statistics["l2_norm"].copy()
    if np.isinf(norm).any():
        norm = np.where(np.isinf(norm), target.statistics["l2_norm"], norm)
        extremes = np.abs([reference.statistics["minimum"], reference.statistics["maximum"]])
        largest = np.fmax(*np.where(np.isinf(extremes), np.nan, extremes))
        norm = np.where(np.isinf(norm), largest, norm)
    if np.isnan(norm).any():
        norm = np.where(np.isnan(norm), _largest_norm(reference), norm)
    return np.asarray(norm)


def _largest_norm(half: Half) -> Floats:
    """sqrt(n ((M - mean)(mean - m) + mean^2)): no n numbers between m and M with that mean have a larger norm
    (Bhatia and Davis 2000). Without a mean sqrt(n) times the largest magnitude; NaN without an extreme. Of
    one number, as the sum over ranks of a scalar's gradients is known, that of its mean.
    """
    low, high, mean = (half.statistics[name] for name in ("minimum", "maximum", "mean"))
    with np.errstate(invalid="ignore", over="ignore"):
        spread = np.maximum((high - mean) * (mean - low), 0.0) + mean**2
        extreme = np.maximum(np.abs(low), np.abs(high))  # NaN where either is
        squared = np.fmin(spread, extreme**2)
        largest = np.where(np.isfinite(extreme), np.sqrt(half.numel * squared), np.nan)
        return np.asarray(np.where((half.numel == 1) & np.isfinite(mean), np.abs(mean), largest))


def _all_non_finite(half: Half) -> Bools:
    counts = half.statistics
    total = counts["num_nan"] + counts["num_posinf"] + counts["num_neginf"]
    return np.asarray((half.numel > 0) & (total == half.numel))


def _bits(rows: StepRows, both: Bools, alike: Bools) -> tuple[Bools, Bools]:
    known, equal = np.zeros(len(rows), bool), np.zeros(len(rows), bool)
    for name in ("crc32", "digest"):
        (a, has_a), (b, has_b) = _integers(rows.target, name), _integers(rows.reference, name)
        here = both & has_a & has_b
        equal = np.where(here, alike & (a == b), equal)
        known |= here
    (texts, there), (others, also) = _texts(rows.target), _texts(rows.reference)
    here = both & there & also & ~known
    here[here] = [
        a.partition(":")[0] == b.partition(":")[0] for a, b in zip(texts[here], others[here], strict=True)
    ]
    equal = np.where(here, alike & (texts == others), equal)
    known |= here
    empty = alike & (rows.target.numel == 0) & ~known
    return known | empty, equal | empty


def _texts(half: Half) -> tuple[NDArray[np.object_], Bools]:
    """Digests another tool wrote, ``kind:digits``; only equal kinds can be compared."""
    num = len(half.summary)
    if "source_digest" not in half.tables.summaries.columns or not half.tables.summaries.height:
        return np.full(num, "", object), np.zeros(num, bool)
    column = half.tables.summaries["source_digest"].cast(pl.String)
    at = np.maximum(half.summary, 0)
    present = (half.summary >= 0) & column.is_not_null().to_numpy()[at]
    return np.asarray(column.fill_null("").to_list(), object)[at], present


def _integers(half: Half, name: str) -> tuple[NDArray[np.uint64], Bools]:
    column = half.tables.summaries[name].cast(pl.UInt64)
    if not len(column):
        nothing = np.zeros(len(half.summary), np.uint64)
        return nothing, nothing.astype(bool)
    present = half.summary >= 0
    at = np.maximum(half.summary, 0)
    return column.fill_null(0).to_numpy()[at], present & column.is_not_null().to_numpy()[at]


def _from_statistics(rows: StepRows, metrics: Metrics, open_: Bools) -> None:
    """||t-r|| >= max( | ||t|| - ||r|| |, sqrt(n) |mean_t - mean_r|, |max_t - max_r|, |min_t - min_r| ).

    The first is the triangle inequality, the second Cauchy-Schwarz, the last two hold because a norm is at
    least its largest element. Means are never divided by means. An infinity says nothing of the finite
    values: some tools count infinities in, others leave them out. Sums prove nothing below their own
    rounding, which is that of float64, more where one side's are coarse: the norm of a float64 tensor, put
    together of parts, may be another by one bit.
    """
    at = np.flatnonzero(open_)
    t, r = (
        {k: np.where(np.isinf(v[at]), np.nan, v[at]) for k, v in half.statistics.items()}
        for half in (rows.target, rows.reference)
    )
    size = np.sqrt(rows.reference.numel[at])
    coarse = _coarseness(rows, at) + STATISTICS_ROUNDING * np.nan_to_num(metrics.norm[at], posinf=0.0)
    with np.errstate(invalid="ignore"):
        parts = [
            np.abs(t["l2_norm"] - r["l2_norm"]) - coarse,
            size * np.abs(t["mean"] - r["mean"]) - coarse,
            np.abs(t["maximum"] - r["maximum"]),
            np.abs(t["minimum"] - r["minimum"]),
        ]
    stacked = np.stack(parts)
    known = ~np.isnan(stacked).all(axis=0)
    bound = np.where(np.isnan(stacked), 0.0, stacked).max(axis=0, initial=0.0)
    metrics.difference[at[known]] = bound[known]
    metrics.evidence[at[known]] = STATISTICS


def _coarseness(rows: StepRows, at: Codes) -> Floats:
    """What coarse sums may be off by where the other side's are exact; 0 where both are made alike.

    A norm summed in float32 one element after another (torch.norm on a CPU) is off by a few unit roundoffs up
    to 1e5 elements, by thousands at 1e7: tests/comparing/test_metrics.py measures it.
    """
    coarse = [half.tables.coarse_statistics for half in (rows.target, rows.reference)]
    if coarse[0] == coarse[1]:
        return np.zeros(len(at))
    half = rows.target if coarse[0] else rows.reference
    own = np.nan_to_num(unit_roundoffs(rows.match.words.dtype)[half.dtype[at]])
    norm = np.nan_to_num(half.statistics["l2_norm"][at], posinf=0.0)
    return np.asarray((own + sum_roundoff(half.numel[at])) * norm)


def sum_roundoff(numel: Floats) -> Floats:
    """Relative error of a norm summed in float32, at most."""
    return np.asarray(FLOAT32 * (SUM_ROUNDINGS + (numel / SUM_LENGTH) ** SUM_POWER))


def _from_sketches(rows: StepRows, metrics: Metrics, open_: Bools) -> None:
    """||t-r||^2 ~ sum over k of (y_k - y'_k)^2, never less than what statistics prove; scale, residual and
    cosine from the same inner products."""
    if not open_.any():
        return
    index = np.flatnonzero(open_)
    width = int(rows.reference.summary.max(initial=0)) + 1
    key, inverse = np.unique(
        rows.target.summary[index] * width + rows.reference.summary[index], return_inverse=True
    )
    tables = rows.target.tables.summaries, rows.reference.tables.summaries
    blocks = [key[start : start + _BLOCK] for start in range(0, len(key), _BLOCK)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        in_turn = map if len(blocks) == 1 else pool.map
        done = list(in_turn(lambda block: _sketch_block(tables, block // width, block % width), blocks))
    found = np.concatenate(done, axis=1)[:, inverse.reshape(-1)]
    _at_resolution(rows, metrics, index, found)
    good = ~np.isnan(found[0])
    at = index[good]
    metrics.difference[at] = np.fmax(found[0, good], metrics.difference[at])
    metrics.evidence[at] = SKETCH
    for name, values in zip(("scale", "residual", "cosine_similarity"), found[1:4], strict=True):
        metrics.details[name][at] = values[good]
    sizeless = np.isnan(metrics.norm[at])  # sums over microbatches or ranks that were put together
    metrics.norm[at[sizeless]] = found[4, good][sizeless]


def _at_resolution(rows: StepRows, metrics: Metrics, index: Codes, found: Floats) -> None:
    """A sketch is float32: of float64 tensors it tells nothing nearer than its own rounding."""
    words = np.array([*rows.match.words.dtype, ""])
    wide = (words[rows.target.dtype[index]] == "float64") & (words[rows.reference.dtype[index]] == "float64")
    with np.errstate(invalid="ignore"):
        found[0, wide & (found[0] <= RESOLUTION * metrics.norm[index])] = 0.0


def _sketch_block(tables: tuple[pl.DataFrame, pl.DataFrame], target: Codes, reference: Codes) -> Floats:
    """Rows ||t-r||, scale, residual, cosine and ||r|| of some pairs; NaN where a sketch is missing or not
    finite."""
    a, has_a = sketches_of(tables[0], target)
    b, has_b = sketches_of(tables[1], reference)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        difference = sketch.relative_error(a, b, np.ones(len(a)))
        scale, residual = sketch.scale_residual(a, b)
        cosine = scale * np.linalg.norm(b, axis=1) / np.linalg.norm(a, axis=1)
    out: Floats = np.stack([difference, scale, residual, cosine, np.linalg.norm(b, axis=1)])
    out[:, ~(has_a & has_b & np.isfinite(difference))] = np.nan
    return out


def sketches_of(summaries: pl.DataFrame, rows: Codes) -> tuple[Floats, Bools]:
    """Sketches of some rows of ``summaries``, (N, 64), and which of them there are."""
    column = summaries["sketch"].gather(pl.Series(rows))
    present = column.is_not_null().to_numpy()
    out = np.zeros((len(rows), SKETCH_SIZE))
    if present.any():
        stored = column.drop_nulls().bin.reinterpret(
            dtype=pl.Array(pl.Float32, SKETCH_SIZE), endianness="little"
        )
        out[present] = stored.to_numpy()
    return out, present


def _update_lengths(rows: StepRows) -> Floats:
    """Per target call, ||p after - p before|| of the reference by its sketches; NaN where it has none."""
    lengths = np.full(rows.num_weights, np.nan)
    values = np.flatnonzero(rows.phase_is("param") & rows.paired & (rows.reference.summary >= 0))
    slots = rows.match.words.slot
    after = rows.phase_is("optimizer") & rows.paired & (rows.reference.summary >= 0)
    after &= rows.slot == (slots.index("param") if "param" in slots else -2)
    summary_before: Codes = np.full(len(lengths), -1, np.int64)
    summary_before[rows.weight[values]] = rows.reference.summary[values]
    at = np.flatnonzero(after)
    at = at[summary_before[rows.weight[at]] >= 0]
    if len(at):
        table = rows.reference.tables.summaries
        a, has_a = sketches_of(table, rows.reference.summary[at])
        b, has_b = sketches_of(table, summary_before[rows.weight[at]])
        known = np.linalg.norm(a - b, axis=1)
        lengths[rows.weight[at]] = np.where(has_a & has_b, known, np.nan)
    return lengths
