"""Computed or kept in a coarser dtype, or only rounded in another order."""

from __future__ import annotations

import numpy as np

from trueup.diagnosing.evidence import Evidence, NeighbourCall, Vectors
from trueup.diagnosing.kinds.arguments import argument_differences, is_cast, plain_name, relevant_calls
from trueup.diagnosing.kinds.fitting import SIGNIFICANT, fit
from trueup.diagnosing.kinds.grids import ROUNDOFF, dtype_of_error, grid_of, on_grid, sample
from trueup.diagnosing.kinds.naming import named, number, subject
from trueup.diagnosing.kinds.solved import solved
from trueup.numerics.dtypes import DTYPES
from trueup.types.finding import Kind

MIN_VALUES = 8
_MOST_BIAS = 0.25
"""of the error: a rounded mean or sum of squares moves what it divides a little the same way"""
_ORDER = "a sum taken in another order or by another kernel; on its own no fault"


def rule(evidence: Evidence) -> Kind | None:
    """The strongest of: calls that cast differently, dtypes that differ, values on a coarser grid, an error
    of a dtype's size without any bias."""
    t, r = evidence.target, evidence.reference
    if t is None or r is None or not (t.is_floating or r.is_floating):
        return None
    turned = solved(evidence, "dtype_or_rounding")
    if turned is not None:
        return named("dtype_or_rounding", turned.confidence, turned.sentence, evidence)
    found = (_casts(evidence), _dtypes(evidence), _grid(evidence), _size(evidence))
    return max((k for k in found if k is not None), key=lambda k: k.confidence, default=None)


def _casts(evidence: Evidence) -> Kind | None:
    """Calls of the module that cast to another dtype, or work on tensors of another one."""
    said = _cast_words(evidence)
    if said is None:
        return None
    whose = evidence.surroundings.module or "the root"
    return named("dtype_or_rounding", 0.9, f"{whose} computes in another dtype: {said}", evidence)


def _cast_words(evidence: Evidence) -> str | None:
    for difference in argument_differences(evidence):
        values = (difference.target, difference.reference)
        if any(_dtype_word(v) is not None for v in values):
            name = plain_name(difference.name)
            mine, theirs = (_dtype_word(v) or repr(v) for v in values)
            return f"{difference.call.name.rpartition('.')[2]} {name} {mine} for {theirs}"
    calls = list(relevant_calls(evidence))
    for call in calls:
        alone = (call.target is None) != (call.reference is None)
        if alone and is_cast(call) and len({*call.target_dtypes, *call.reference_dtypes}) > 1:
            side = "the target leaves out" if call.target is None else "the target adds"
            return f"{side} {_cast_call(call)}"
    for call in calls:
        if (
            call.target is not None
            and call.reference is not None
            and len(call.target_dtypes) == len(call.reference_dtypes)
        ):
            apart = [
                (a, b)
                for a, b in zip(call.target_dtypes, call.reference_dtypes, strict=True)
                if a != b and _floating(a) and _floating(b)
            ]
            if apart:
                return f"{call.name.rpartition('.')[2] or '(root)'} works on {apart[0][0]} for {apart[0][1]}"
    return None


def _cast_call(call: NeighbourCall) -> str:
    given = call.target if call.target is not None else call.reference
    words = [w for w in (_dtype_word(v) for v in (given or {}).values()) if w is not None]
    return f"{call.name.rpartition('.')[2]}({', '.join(words)})"


def _dtype_word(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    word = value.removeprefix("torch.")
    return word if word in DTYPES else None


def _floating(dtype: str) -> bool:
    return dtype in DTYPES and DTYPES[dtype].kind in ("float", "complex")


def _dtypes(evidence: Evidence) -> Kind | None:
    """The two records are of different dtypes."""
    t, r = evidence.target, evidence.reference
    if t is None or r is None or t.dtype == r.dtype or not (_floating(t.dtype) and _floating(r.dtype)):
        return None
    vectors = evidence.vectors
    fits = vectors is not None and vectors.rel <= 4 * evidence.roundoff
    said = f"{subject(evidence)} is {t.dtype} in the target and {r.dtype} in the reference"
    if vectors is not None:
        said += (
            f"; they differ by {number(vectors.rel)} (relative l2), a rounding is {number(evidence.roundoff)}"
        )
    return named("dtype_or_rounding", 0.95 if fits else 0.6, said, evidence)


def _grid(evidence: Evidence) -> Kind | None:
    """The target's values lie on a coarser dtype's grid than it is kept in, the reference's do not."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.size < MIN_VALUES:
        return None
    for mine, theirs, whose in ((t, r, "target"), (r, t, "reference")):
        grid = grid_of(mine)
        if grid is None or grid == "float32" or len(np.unique(sample(mine)[:256])) < MIN_VALUES:
            continue
        others = sample(theirs)
        if not others.size or float(on_grid(others, grid).mean()) > 0.5:
            continue
        vectors = evidence.vectors
        fits = vectors is not None and vectors.rel <= 4 * ROUNDOFF[grid]
        said = f"the {whose}'s values are all {grid} numbers, the other side's are not"
        if vectors is not None:
            said += f"; they differ by {number(vectors.rel)} (relative l2), a rounding to {grid} is "
            said += number(ROUNDOFF[grid])
        return named("dtype_or_rounding", 0.94 if fits else 0.5, said, evidence)
    return None


def _size(evidence: Evidence) -> Kind | None:
    """The error is as large as a dtype's rounding, and of no direction."""
    vectors = evidence.vectors
    if vectors is None or vectors.num_values < MIN_VALUES or not 0 < vectors.rel < 0.5:
        return None
    dtype = dtype_of_error(vectors.rel)
    if dtype is None or (dtype.startswith("float8") and not _uses_float8(evidence)):
        return None
    bias = fit(vectors.target - vectors.reference, vectors.reference)
    small = ROUNDOFF[dtype] / 2 if dtype == "float32" else vectors.rel * _MOST_BIAS
    if bias is None or (bias.z >= SIGNIFICANT and abs(bias.factor) > small):
        return None
    confidence = _spread_like_rounding(vectors, ROUNDOFF[dtype])
    if dtype == "float32":
        confidence = max(confidence, 0.7)
    said = (
        f"the difference, {number(vectors.rel)} (relative l2), is as large as rounding in {dtype} makes it "
        f"({number(ROUNDOFF[dtype])}) and has hardly a direction"
    )
    causes = (_ORDER,) if dtype == "float32" else (f"computed in {dtype} on one side",)
    return named("dtype_or_rounding", confidence, said, evidence, causes=causes)


def _uses_float8(evidence: Evidence) -> bool:
    """Errors of a tenth have many other reasons: something must say that float8 is about."""
    around = evidence.surroundings
    pairs = (evidence.pair, *around.inputs, *around.outputs)
    kept = [k.dtype for p in pairs for k in (p.target, p.reference) if k is not None]
    seen = [d for c in around.neighbours for d in (*c.target_dtypes, *c.reference_dtypes)]
    return any(d.startswith("float8") for d in (*kept, *seen))


def _spread_like_rounding(vectors: Vectors, roundoff: float) -> float:
    """Spread over nearly all elements, each about in proportion to its size: 0.45 to 0.8."""
    if not vectors.exact:
        return 0.5
    difference, size = np.abs(vectors.target - vectors.reference), np.abs(vectors.reference)
    touched = float((difference > 0).mean())
    within = float((difference <= 2 * roundoff * size).mean())
    if touched < 0.05:
        return 0.3
    return 0.45 + 0.35 * max(within - 0.5, 0.0) * 2 if touched >= 0.2 else 0.45
