"""Values left the range of their dtype: infinities and NaN, ceilings, or small ones gone to zero."""

from __future__ import annotations

import numpy as np

from trueup.diagnosing.evidence import Evidence, Known
from trueup.diagnosing.evidence.facts import Floats
from trueup.diagnosing.kinds.naming import named, number, subject
from trueup.numerics.dtypes import DTYPES
from trueup.types.finding import Kind

_NARROW = ("float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
MIN_LOST = 4


def rule(evidence: Evidence) -> Kind | None:
    """Named where the target has NaN, infinities, values at a dtype's largest, or zeros that the reference
    has not."""
    t, r = evidence.target, evidence.reference
    if t is None or r is None or not t.is_floating:
        return None
    return _overflow(evidence, t, r) or _ceiling(evidence, t, r) or _underflow(evidence)


def _overflow(evidence: Evidence, t: Known, r: Known) -> Kind | None:
    counts = ("num_nan", "num_posinf", "num_neginf")
    mine, theirs = ([int(np.nan_to_num(k.statistic(c))) for c in counts] for k in (t, r))
    more = [m - n for m, n in zip(mine, theirs, strict=True)]
    # A mask's -inf is no overflow.
    if more[0] <= 0 and more[1] <= 0 and (more[2] <= 0 or theirs[2] > 0):
        return None
    words = [
        f"{m} {w} against {n}"
        for m, n, w in zip(mine, theirs, ("NaN", "+inf", "-inf"), strict=True)
        if m != n
    ]
    said = f"{subject(evidence)} has {', '.join(words)} in the reference, of {t.numel} values"
    scale = evidence.target_run.loss_scale
    causes = (f"the loss scale {number(scale)} is too large",) if scale and scale > 1 else ()
    return named("overflow_underflow", 0.9, said, evidence, causes=causes)


def _ceiling(evidence: Evidence, t: Known, r: Known) -> Kind | None:
    """Saturated at the largest value of a narrow dtype."""
    top = max(abs(t.statistic("maximum")), abs(t.statistic("minimum")))
    there = max(abs(r.statistic("maximum")), abs(r.statistic("minimum")))
    for name in _NARROW:
        if top == DTYPES[name].max and there > top * (1 + DTYPES[name].eps):
            said = f"{subject(evidence)} stops at {number(top)}, the largest {name}; "
            said += f"the reference reaches {number(there)}"
            return named("overflow_underflow", 0.93, said, evidence)
    return None


def _underflow(evidence: Evidence) -> Kind | None:
    """Zeros exactly where the reference's magnitude is below what a dtype holds."""
    a, b = evidence.target_values, evidence.reference_values
    if a is None or b is None or a.shape != b.shape:
        return None
    lost = (a == 0) & (b != 0) & np.isfinite(b)
    num = int(lost.sum())
    if num < MIN_LOST:
        return None
    largest = float(np.abs(b[lost]).max())
    found = _threshold(a, b, largest)
    if found is None:
        return None
    dtype, limit = found
    said = (
        f"{num} of {a.size} values are zero where the reference's are up to {number(largest)} in magnitude: "
        f"below {number(limit)}, the smallest {dtype}"
    )
    return named("overflow_underflow", 0.955 if num >= 0.02 * a.size else 0.8, said, evidence)


def _threshold(a: Floats, b: Floats, largest: float) -> tuple[str, float] | None:
    """The dtype whose smallest value parts the lost from the kept."""
    finite = np.isfinite(b) & (b != 0)
    small = np.abs(b) <= largest
    gone = float((a[finite & small] == 0).mean()) if (finite & small).any() else 0.0
    if gone < 0.9:
        return None
    for name in ("float16", "float8_e5m2", "float8_e4m3fn", "bfloat16", "float32"):
        entry = DTYPES[name]
        subnormal = entry.smallest_normal * entry.eps * 2
        for limit in (subnormal, entry.smallest_normal):
            if limit / 8 <= largest <= limit * 1.001:
                return name, limit
    return None
