"""Stored tensors of two traces compared where their digests differ, on all cores, mapped and never copied
whole."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from trueup.comparing.common_form import FLAGS, HIDING_FLAGS
from trueup.comparing.metrics import DETAILS, VALUES, Metrics
from trueup.comparing.options import CompareOptions
from trueup.comparing.pairing import StepPair
from trueup.comparing.rows import Half, StepRows
from trueup.errors import ConfigError
from trueup.matching.codes import Codes
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.hidden import in_common_form, lowest_visible
from trueup.numerics.pair import PairMetrics, compare_pair
from trueup.store import StoredTensor, TraceSource
from trueup.types.arrays import Bools, Floats
from trueup.types.trace import SummaryRow

if TYPE_CHECKING:
    from trueup.matching.layouts import CommonForm

_FEW = 1 << 22
"""elements in all that are compared sooner than they are handed to other threads"""


def read_values(
    rows: StepRows,
    metrics: Metrics,
    relative: Floats,
    target: TraceSource,
    reference: TraceSource,
    pair: StepPair,
    options: CompareOptions,
) -> int:
    """Replace estimates by exact numbers wherever both sides stored the tensor; returns the bytes that were
    read.

    ``fraction_above`` counts elements whose difference exceeds the site's relative bound times the
    reference's rms.
    """
    if not options.read_values:
        return 0
    stored = are_stored(rows.target) & are_stored(rows.reference)
    wanted = rows.paired & stored & ((rows.target.shape == rows.reference.shape) | (rows.layout >= 0))
    wanted &= np.array([layout.known for layout in rows.layouts] + [True])[rows.layout]
    if not options.read_equal_values:
        wanted &= ~metrics.bits_equal
    index = np.flatnonzero(wanted)
    if not len(index):
        return 0
    pairs = np.stack([rows.target.summary[index], rows.reference.summary[index], rows.layout[index]], 1)
    unique, first, inverse = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    inverse = inverse.reshape(-1)
    jobs = [
        (
            rows.target.tables.summary_row(int(t)),
            rows.reference.tables.summary_row(int(r)),
        )
        for t, r, _ in unique
    ]

    def one(at: int) -> tuple[PairMetrics | None, int]:
        actual = target.tensor(pair.step, pair.rank, jobs[at][0])
        expected = reference.tensor(pair.reference_step, pair.reference_rank, jobs[at][1])
        if actual is None or expected is None:
            return None, 0
        row = index[first[at]]
        size = max(float(rows.reference.numel[row]), 1.0)
        rms = float(np.nan_to_num(metrics.norm[row])) / np.sqrt(size)
        limit = float(np.nan_to_num(relative[row])) * rms
        layout = rows.layouts[unique[at, 2]] if unique[at, 2] >= 0 else None
        found = _compare(
            actual,
            expected,
            limit,
            layout,
            is_mask=any(map(_hides, jobs[at])) or layout in (FLAGS, HIDING_FLAGS),
        )
        return found, actual.data.nbytes + expected.data.nbytes

    # The first read opens the maps; after that threads share them.
    results = [one(0)]
    with ThreadPoolExecutor(options.num_threads or os.cpu_count() or 1) as pool:
        in_turn = map if rows.reference.numel[index[first]].sum() < _FEW else pool.map
        results += in_turn(one, range(1, len(jobs)))
    at_of = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse, minlength=len(jobs)))
    for at, (found, _) in enumerate(results):
        if found is not None:
            _fill(rows, metrics, index[at_of[ends[at - 1] if at else 0 : ends[at]]], found)
    return sum(size for _, size in results)


def _compare(
    target: StoredTensor, reference: StoredTensor, limit: float, layout: CommonForm | None, *, is_mask: bool
) -> PairMetrics | None:
    if target.dtype not in DTYPES or reference.dtype not in DTYPES:
        return None
    a, b = (t.data.view(np.dtype(DTYPES[t.dtype].storage)) for t in (target, reference))
    if layout is not None:
        try:
            a = layout.of_target(a.reshape(target.shape)).reshape(-1)
            b = layout.of_reference(b.reshape(reference.shape)).reshape(-1)
        except ConfigError:  # the layout does not fit after all: statistics have to do
            return None
    try:
        hiding = layout is HIDING_FLAGS
        masks = in_common_form(a, target.dtype, b, reference.dtype, true_hides=hiding) if is_mask else None
        if masks is not None:
            return compare_pair(*masks, atol=limit)
        return compare_pair(a, b, target.dtype, reference.dtype, atol=limit)
    except ValueError:  # other sizes, real against complex: the row stays undecided, with its reason
        return None


def _hides(summary: SummaryRow) -> bool:
    lowest = summary["minimum"]
    return (summary["num_neginf"] or 0) > 0 or (
        lowest is not None and lowest <= lowest_visible(summary["dtype"])
    )


def are_stored(half: Half) -> Bools:
    """Records whose values were kept."""
    has = half.tables.summaries["tensor"].is_not_null().to_numpy()
    if not len(has):
        return np.zeros(len(half.summary), bool)
    return np.asarray((half.summary >= 0) & has[np.maximum(half.summary, 0)])


def _fill(rows: StepRows, metrics: Metrics, at: Codes, found: PairMetrics) -> None:
    metrics.evidence[at] = VALUES
    metrics.mismatched[at] = found.num_nonfinite_mismatch
    if found.num_bits_different == 0:
        moved = np.array([not layout.repeated and layout is not FLAGS for layout in rows.layouts] + [True])
        same_dtype = (rows.target.dtype[at] == rows.reference.dtype[at]) & moved[rows.layout[at]]
        metrics.bits_equal[at] = same_dtype
        metrics.known_bits[at] = rows.layout[at] < 0
    if found.rel_l2 is None:
        metrics.difference[at] = 0.0
    elif np.isinf(found.rel_l2):
        metrics.difference[at] = rows.target.statistics["l2_norm"][at]
    else:
        metrics.norm[at] = np.where(np.isnan(metrics.norm[at]), 1.0, metrics.norm[at])
        metrics.difference[at] = found.rel_l2 * metrics.norm[at]
    for name in DETAILS:
        value = getattr(found, name)
        metrics.details[name][at] = np.nan if value is None else float(value)
