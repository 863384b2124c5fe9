"""Sums over ranks that one run makes in a coarse dtype and the other does not: gradients reduced in bfloat16.

The operands are the same numbers in two dtypes, so that nothing before differs, and one run rounds each sum
once more. In a coarse program no tolerance sees it, and an optimizer hides what it does to a step; it is off
in every step.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from trueup.comparing.first import first_of_rows
from trueup.comparing.judgement import EQUAL, ORIGIN, WITHIN, Judgement
from trueup.comparing.metrics import SKETCH, Metrics
from trueup.comparing.pairing import StepPair
from trueup.comparing.precision_gap import PrecisionGap
from trueup.comparing.rows import Rows
from trueup.numerics.dtypes import unit_roundoffs


def gap_of_reductions(
    pair: StepPair, rows: Rows, metrics: Metrics, judgement: Judgement, table: pa.Table
) -> PrecisionGap | None:
    """The collectives that sum in two dtypes; None where there are none. A single number is none:
    programs log some."""
    words, call = rows.match.words, rows.target.call
    roundoff = unit_roundoffs(words.dtype)
    target, reference = roundoff[rows.target.dtype], roundoff[rows.reference.dtype]
    reduces = np.array(["reduce" in name.rpartition(".")[2] for name in words.name] + [False])
    at = rows.phase_is("collective") & rows.paired & (call >= 0) & reduces[rows.of_call("name")]
    at &= ~np.isnan(target) & ~np.isnan(reference) & (target != reference) & (rows.target.numel > 1)
    at &= (metrics.evidence <= SKETCH) & ((judgement.status == EQUAL) | (judgement.status == WITHIN))
    inputs, outputs = at & rows.slot_starts("input"), at & rows.slot_starts("output")
    same = np.zeros(rows.match.target.num_calls + 1, bool)
    same[call[inputs & (metrics.rel_l2 <= np.fmax(target, reference))]] = True
    found = np.flatnonzero(outputs & same[call] & (metrics.rel_l2 > np.fmin(target, reference)))
    if not len(found):
        return None
    first = int(found[0])
    own = np.flatnonzero((judgement.attribution.status == ORIGIN) & (np.arange(len(rows)) > first))
    names = Counter(
        words.name[code].rpartition(".")[2].strip("_") for code in rows.of_call("name")[found].tolist()
    )
    return PrecisionGap(
        at=first_of_rows(pair, rows, judgement, table, first),
        target=words.dtype[rows.target.dtype[first]],
        reference=words.dtype[rows.reference.dtype[first]],
        weights=False,
        whole=False,
        functions=tuple(names),
        modules=(),
        autocast=None,
        beyond=first_of_rows(pair, rows, judgement, table, int(own[0])) if len(own) else None,
        scored=first,
    )
