"""The dtype that gradients of a step are added up in, told from equal gradients of its microbatches.

Where two runs give a weight the same gradients, bit by bit, and make other sums of them, each sum is worked
out again: in float32, in a coarse dtype after each microbatch, or in float32 and rounded once. What an
optimizer gets is such a sum times one number (a mean, clipping, a loss scale), and one of the three gives it
to a few roundings of float32, the others to one of the coarse dtype: a thousand times more. Where none does
(a coarse dtype rounds the product, too; an order of its own), nothing is said.

Masters in float32 have names of their own: the gradient of one is that of the weight whose sum it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trueup.comparing.coarse_choices import values_of
from trueup.comparing.first import JudgedStep
from trueup.comparing.metrics import Metrics
from trueup.comparing.precision_gap import GapOf, PrecisionGap, gap_from
from trueup.comparing.rows import StepRows
from trueup.comparing.thresholds import SUM_EXACT, SUM_LINKED
from trueup.numerics.dtypes import DTYPES, rounded_to
from trueup.store import TraceSource
from trueup.types.arrays import Floats
from trueup.types.codes import EvidenceCode
from trueup.types.reason import reason

_COARSE = ("bfloat16", "float16")
FINE = "float32"
MOST_NUMBERS = 1 << 22
"""of the gradients of a step that are worked out"""


@dataclass(frozen=True, slots=True)
class Added:
    """How gradients of microbatches were added up."""

    dtype: str
    once: bool = False
    """a sum in float32, rounded to ``dtype`` when it was whole"""


def gap_of_sums(judged: JudgedStep, sides: tuple[TraceSource, TraceSource]) -> PrecisionGap | None:
    """Weights whose equal gradients the two sides add up in two dtypes; None where there are none, or nothing
    tells."""
    rows = judged.rows
    halves = (rows.target, rows.reference)
    found: dict[tuple[Added, Added], list[int]] = defaultdict(list)
    for row, parts in _candidates(judged, sides[1]):
        totals = [
            values_of(half, row, *of) for half, of in zip(halves, _read_from(judged, sides), strict=True)
        ]
        target, reference = (None if one is None else added_up(one, parts) for one in totals)
        if target is not None and reference is not None and target != reference:
            found[target, reference].append(row)
    if not found:
        return None
    (target, reference), alike = max(found.items(), key=lambda one: len(one[1]))
    words, names = rows.match.words.name, rows.of_call("name")
    sums = reason(
        EvidenceCode.SUM_DTYPES,
        num=len(alike),
        target=target.dtype,
        reference=reference.dtype,
        target_once=target.once,
        reference_once=reference.once,
    )
    parameters = tuple(words[int(names[row])] for row in alike)
    dtypes = target.dtype, reference.dtype
    return gap_from(judged, alike[0], *dtypes, of=GapOf.SUMS, parameters=parameters, grounds=(sums,))


def _read_from(
    judged: JudgedStep, sides: tuple[TraceSource, TraceSource]
) -> Iterator[tuple[TraceSource, int, int]]:
    for source, at in zip(sides, judged.at, strict=True):
        yield source, *at


def added_up(total: Floats, parts: Sequence[Floats]) -> Added | None:
    """How ``total``, times any factor, is the sum of ``parts``, in this order; None where in no known way.

    Example:
        >>> parts = [rounded_to(np.random.default_rng(n).normal(size=512), "bfloat16") for n in range(3)]
        >>> added_up(0.3 * (parts[0] + parts[1] + parts[2]), parts)
        Added(dtype='float32', once=False)
    """
    if total.size != parts[0].size:  # one vector of all weights in one run alone
        return None
    exact = _summed(parts, FINE)
    ways = [(Added(FINE), exact)]
    ways += [(Added(dtype), _summed(parts, dtype)) for dtype in _COARSE]
    ways += [(Added(dtype, once=True), rounded_to(exact, dtype)) for dtype in _COARSE]
    near = [(_left_over(total, values), how) for how, values in ways]
    left, how = min(near, key=lambda one: one[0])  # of two that are one, as of two microbatches, the first
    others = [over for over, one in near if one.dtype != how.dtype]
    return how if left <= SUM_EXACT * DTYPES[FINE].eps and min(others) > 2 * left else None


def is_sum_of(total: Floats, parts: Sequence[Floats]) -> bool:
    """Whether ``total``, times any factor, is nearly the sum of ``parts``."""
    return parts[0].shape == total.shape and _left_over(total, np.sum(parts, axis=0)) <= SUM_LINKED


def _summed(parts: Sequence[Floats], dtype: str) -> Floats:
    """A sum that each addition rounds, beginning with 0."""
    out = np.zeros_like(parts[0])
    for part in parts:
        out = out + part
        out = out.astype(np.float32).astype(np.float64) if dtype == FINE else rounded_to(out, dtype)
    return out


def _left_over(total: Floats, values: Floats) -> float:
    """What no factor of ``values`` explains, over the norm; 1 where one of them is 0 or not finite."""
    total, values = total.ravel(), values.ravel()
    size = float(np.linalg.norm(total))
    if not np.isfinite(values).all() or not 0 < size < np.inf or not values.any():
        return 1.0
    return float(np.linalg.norm(total - values * (total @ values) / (values @ values))) / size


def _candidates(judged: JudgedStep, reference: TraceSource) -> Iterator[tuple[int, list[Floats]]]:
    """Row of a sum that differs, and the equal gradients of microbatches that it may be made of."""
    rows, at = judged.rows, judged.at[1]
    held, left = _held(rows, judged.metrics), MOST_NUMBERS
    read: dict[int, list[Floats | None]] = {}
    for row in _sums(rows) if held else ():
        if judged.metrics.bits_equal[row] or not rows.reference.numel[row] <= left:
            continue
        total = values_of(rows.reference, row, reference, *at)
        if total is None:
            continue
        for name in _may_be_of(rows, row, held):
            if name not in read:
                read[name] = [values_of(rows.reference, one, reference, *at) for one in held[name]]
                left -= total.size
            parts = [one for one in read[name] if one is not None]
            if len(parts) == len(held[name]) and is_sum_of(total, parts):
                yield row, parts
                break


def _sums(rows: StepRows) -> Iterable[int]:
    """The row of each weight's sum: what backward left where that is one record of several microbatches, else
    what the optimizer gets."""
    gradients, names = rows.phase_is("param_grad") & rows.paired, rows.of_call("name")
    accumulated, clipped = (gradients & rows.slot_is(slot) for slot in ("accumulated", "clipped"))
    times = Counter(names[accumulated].tolist())
    found = {int(names[row]): row for row in np.flatnonzero(clipped).tolist()}
    found |= {int(names[row]): row for row in np.flatnonzero(accumulated).tolist() if times[names[row]] == 1}
    return found.values()


def _may_be_of(rows: StepRows, row: int, held: Mapping[int, list[int]]) -> list[int]:
    """The weight itself, or those of its shape."""
    name, shape = int(rows.of_call("name")[row]), rows.reference.shape
    return [name] if name in held else [one for one, at in held.items() if shape[at[0]] == shape[row]]


def _held(rows: StepRows, metrics: Metrics) -> dict[int, list[int]]:
    """Name of a weight -> rows of its gradients in the microbatches, where there are several and all are
    bit-identical; of a weight that the other run has in parts, several are of one microbatch."""
    local = rows.phase_is("param_grad") & rows.slot_starts("local")
    names, found = rows.of_call("name"), defaultdict(list)
    for row in np.flatnonzero(local).tolist():
        found[int(names[row])].append(row)
    same = rows.paired & metrics.bits_equal
    return {
        name: at
        for name, at in found.items()
        if len(at) > 1 and same[at].all() and len(set(rows.microbatch[at].tolist())) == len(at)
    }
