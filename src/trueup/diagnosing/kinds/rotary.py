"""What a rotary embedding did: which pairs it rotated, by which angles; told from input and output."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.rule import Found, origin_reason
from trueup.diagnosing.kinds.solved import Solved
from trueup.diagnosing.kinds.thresholds import (
    CHANCE_Z,
    CHANGE_LEAVES,
    NEAR_ONE,
    REPRODUCED,
    ROTATED_LENGTH,
    SMALLEST_ANGLE,
    TABLE_ERROR,
    THETA_CURVE,
)
from trueup.numerics.dtypes import rounded_to
from trueup.types.arrays import Floats
from trueup.types.codes.kinds import KindReason
from trueup.types.finding import EvidenceRank, KindCode

Complex = NDArray[np.complex128]

_MAX_VALUES = 1 << 17
_TINY = float(np.finfo(np.float64).tiny)
_SINGLE = float(np.finfo(np.float32).eps)
"""angles are made in float32"""


def rotary_fault(evidence: Evidence) -> Solved | None:
    """How the target's rotation differs; None where the site is no rotation or the way is none known."""
    return _rotated(evidence) or _table(evidence)


def _solved(evidence: Evidence, kind: KindCode, code: KindReason, **facts: float | str) -> Solved:
    return Solved(
        kind=kind,
        found=Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=origin_reason(evidence, code, **facts)),
    )


def _rotated(evidence: Evidence) -> Solved | None:
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.ndim < 3 or t.shape[-1] % 2 or t.shape[-2] < 3:
        return None
    # An input is not made of its call's inputs.
    if t.shape[-1] < 4 or evidence.origin.slot.startswith("input"):
        return None
    for pair in evidence.surroundings.inputs:
        if pair.agree is False or pair.given is None or pair.given.shape != t.shape:
            continue
        x = evidence.values_of(pair.given)
        if x is not None:
            return _compare(evidence, *(_cut(v) for v in (x, t, r)))
    return None


def _cut(values: Floats) -> Floats:
    flat = values.reshape(-1, *values.shape[-2:])
    keep = max(_MAX_VALUES // int(np.prod(values.shape[-2:])), 1)
    return flat[:keep]


def _compare(evidence: Evidence, x: Floats, t: Floats, r: Floats) -> Solved | None:
    target = {way: _rotation(x, t, way) for way in ("halves", "pairs")}
    reference = {way: _rotation(x, r, way) for way in target}
    target_way, reference_way = (
        next((way for way, found in side.items() if found is not None), None) for side in (target, reference)
    )
    if target_way is None or reference_way is None:
        return None
    if target_way != reference_way:
        code = KindReason.ROTATED_PAIRS
        return _solved(
            evidence, KindCode.TRANSPOSED_OR_PERMUTED, code, target=target_way, reference=reference_way
        )
    a, b = target[reference_way], reference[reference_way]
    return None if a is None or b is None else _angles(evidence, a, b)


def _rotation(x: Floats, y: Floats, way: str) -> Complex | None:
    """exp(i angle) by position and pair, None where the output is no such rotation of the input."""
    z, w = _complex(x, way), _complex(y, way)
    size = np.abs(z)
    if not np.isfinite(size).all() or not np.isfinite(np.abs(w)).all():
        return None
    kept = size > ROTATED_LENGTH * size.mean()
    if not kept.any() or np.abs(np.abs(w[kept]) / size[kept] - 1).mean() > REPRODUCED:
        return None
    ratio = (w * z.conj()).sum(axis=0) / np.maximum(np.square(size).sum(axis=0), _TINY)
    if np.abs(np.abs(ratio) - 1).mean() > REPRODUCED:
        return None
    return np.asarray(ratio / np.maximum(np.abs(ratio), _TINY))


def _complex(values: Floats, way: str) -> Complex:
    half = values.shape[-1] // 2
    if way == "halves":
        return values[..., :half] + 1j * values[..., half:]
    return values[..., 0::2] + 1j * values[..., 1::2]


def _angles(evidence: Evidence, t: Complex, r: Complex) -> Solved | None:
    """Both of shape (positions, pairs): how the angles differ."""
    if _near(t, r.conj()) and not _near(t, r):
        return _solved(evidence, KindCode.WRONG_SIGN, KindReason.ROTATED_BACKWARD)
    for shift in (1, -1, 2, -2):
        a, b = (t[:-shift], r[shift:]) if shift > 0 else (t[-shift:], r[:shift])
        if _near(a, b) and not _near(t, r):
            return _solved(evidence, KindCode.SHIFTED_BY_ONE, KindReason.POSITIONS_SHIFTED, shift=shift)
    error = np.full(t.shape[1], evidence.roundoff)
    target, reference = (_theta(np.angle(side[1]), error) for side in (t, r))
    return _other_theta(evidence, target, reference) or _coarse(evidence, t, r)


def _near(a: Complex, b: Complex) -> bool:
    return bool(np.abs(a - b).mean() < NEAR_ONE)


def _other_theta(evidence: Evidence, target: float | None, reference: float | None) -> Solved | None:
    if target is None or reference is None or abs(target / reference - 1) <= NEAR_ONE:
        return None
    facts = {"target": target, "reference": reference}
    return _solved(evidence, KindCode.CONSTANT_ARGUMENT, KindReason.ROTARY_THETA, **facts)


def _theta(angles: Floats, error: Floats) -> float | None:
    """theta of ``angle_i = theta^(-i / n)`` at position 1; None where the angles are no such sequence.

    ``error`` is how well each angle is known: the logarithm of a small one, read off its cosine, by less than
    its own size. Least squares weighted by that, then the shortest number within the fit's error.
    """
    usable = (angles > SMALLEST_ANGLE) & (error < angles)
    if usable.sum() < 2 or not usable[0]:
        return None
    place, logs = np.flatnonzero(usable) / len(angles), np.log(angles[usable])
    # Besides, an angle is a product of two numbers, each a few roundings off.
    each = error[usable] / angles[usable] + 4 * _SINGLE
    weighted = place / np.square(each)
    slope = float(np.dot(weighted, logs) / np.dot(weighted, place))
    if (np.abs(logs - slope * place) > THETA_CURVE + NEAR_ONE * abs(slope) + CHANCE_Z * each).any():
        return None
    known = CHANCE_Z / np.sqrt(float(np.dot(weighted, place)))
    return _shortest(float(np.exp(-slope)), relative=known)


def _shortest(value: float, *, relative: float) -> float:
    """The number of fewest digits no further from ``value`` than that; two digits at least say something."""
    rounded = (float(f"{value:.{digits}g}") for digits in range(1, 17))
    return next((one for one in rounded if abs(one - value) <= relative * abs(value)), value)


def _coarse(evidence: Evidence, t: Complex, r: Complex) -> Solved | None:
    """Angles rounded to bfloat16 or float16: right while small, wrong where large."""
    first = np.angle(r[1])
    exact = np.arange(len(r))[:, None] * first[None, :]
    if not _near(np.exp(1j * exact), r):
        return None
    other = np.abs(r - t).mean()
    for name in ("bfloat16", "float16"):
        rotation = np.exp(1j * rounded_to(exact, name))
        table = rounded_to(rotation.real, name) + 1j * rounded_to(rotation.imag, name)
        error = min(np.abs(v / np.abs(v) - t).mean() for v in (rotation, table))
        if error < CHANGE_LEAVES * other:
            return _solved(evidence, KindCode.DTYPE_OR_ROUNDING, KindReason.ANGLES_ROUNDED, dtype=name)
    return None


def _table(evidence: Evidence) -> Solved | None:
    """A table of cosines or sines by position and frequency (positions in the last dimension but one)."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.ndim < 2 or t.shape[-2] < 3 or t.shape[-1] < 4:
        return None
    target, reference = (v.reshape(-1, *v.shape[-2:])[0] for v in (t, r))
    theta = _theta_of_table(reference, evidence.roundoff)
    coarse = None if theta is None else _coarse_table(evidence, target, reference, theta)
    return coarse or _other_theta(evidence, _theta_of_table(target, evidence.roundoff), theta)


def _coarse_table(evidence: Evidence, t: Floats, r: Floats, theta: float) -> Solved | None:
    """Frequencies, or the angles made of them, rounded to bfloat16 or float16."""
    function = np.cos if np.abs(r[0] - 1).max() < TABLE_ERROR else np.sin
    num, width = _num_frequencies(r[1]), r.shape[-1]
    frequencies = np.tile(theta ** (-np.arange(num) / num), width // num)
    places, other = np.arange(len(r))[:, None], np.abs(r - t).mean()
    if np.abs(function(places * frequencies) - r).mean() >= CHANGE_LEAVES * other:
        return None
    for name in ("bfloat16", "float16"):
        low = {
            KindReason.FREQUENCIES_ROUNDED: places * rounded_to(frequencies, name),
            KindReason.ANGLES_ROUNDED: rounded_to(places * frequencies, name),
        }
        for code, angles in low.items():
            if np.abs(function(angles) - t).mean() < CHANGE_LEAVES * other:
                return _solved(evidence, KindCode.DTYPE_OR_ROUNDING, code, dtype=name)
    return None


def _num_frequencies(row: Floats) -> int:
    """Of a row of a table, which may hold each twice."""
    half = len(row) // 2
    return half if np.array_equal(row[:half], row[half:]) else len(row)


def _theta_of_table(table: Floats, roundoff: float) -> float | None:
    """theta of the angles of position 1; None where it is no table of cosines or sines.

    An angle a is known by one rounding of cos a (sin a) over sin a (cos a).
    """
    if not np.isfinite(table).all() or np.abs(table).max() > 1 + TABLE_ERROR:
        return None
    if np.abs(table[0] - 1).max() < TABLE_ERROR:
        angles = np.arccos(np.clip(table[1], -1, 1))
        error = roundoff / np.maximum(np.abs(np.sin(angles)), _TINY)
    elif np.abs(table[0]).max() < TABLE_ERROR:
        angles = np.arcsin(np.clip(table[1], -1, 1))
        error = roundoff * np.abs(table[1]) / np.maximum(np.abs(np.cos(angles)), _TINY)
    else:
        return None
    kept = slice(_num_frequencies(table[1]))
    return _theta(angles[kept], error[kept])
