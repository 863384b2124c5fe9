"""What a rotary embedding did: which pairs it turned, by which angles; told from input and output."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.evidence.facts import Floats
from trueup.diagnosing.kinds.grids import rounded_to
from trueup.diagnosing.kinds.naming import number
from trueup.diagnosing.kinds.solved import Solved

_MAX_VALUES = 1 << 17
_SMALL = 1e-3
Complex = NDArray[np.complex128]


def rotary_fault(evidence: Evidence) -> Solved | None:
    """How the target's rotation differs; None where the site is no rotation or the way is none known."""
    return _rotated(evidence) or _table(evidence)


def _rotated(evidence: Evidence) -> Solved | None:
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.ndim < 3 or t.shape[-1] % 2 or t.shape[-2] < 3:
        return None
    if t.shape[-1] < 4 or evidence.origin.slot.startswith(
        "input"
    ):  # an input is not made of its call's inputs
        return None
    for pair in evidence.surroundings.inputs:
        if pair.agree is False or pair.given is None or pair.given.shape != t.shape:
            continue
        x = evidence.values_of(pair.given)
        if x is not None:
            return _compare(*(_cut(v) for v in (x, t, r)))
    return None


def _cut(values: Floats) -> Floats:
    flat = values.reshape(-1, *values.shape[-2:])
    keep = max(_MAX_VALUES // int(np.prod(values.shape[-2:])), 1)
    return flat[:keep]


def _compare(x: Floats, t: Floats, r: Floats) -> Solved | None:
    ways = ("halves", "pairs")
    turned_t = {way: _turns(x, t, way) for way in ways}
    turned_r = {way: _turns(x, r, way) for way in ways}
    own = next((w for w in ways if turned_r[w] is not None), None)
    other = next((w for w in ways if turned_t[w] is not None), None)
    if own is None or other is None:
        return None
    if own != other:
        said = {"halves": "the first half with the second", "pairs": "neighbouring elements"}
        return Solved(
            kind="transposed_or_permuted",
            sentence=f"the rotary embedding turns {said[other]}, the reference's {said[own]}",
            confidence=0.96,
        )
    a, b = turned_t[own], turned_r[own]
    return None if a is None or b is None else _angles(a, b)


def _turns(x: Floats, y: Floats, way: str) -> Complex | None:
    """exp(i angle) by position and pair, None where the output is no such rotation of the input."""
    z, w = _complex(x, way), _complex(y, way)
    size = np.abs(z)
    if not np.isfinite(size).all() or not np.isfinite(np.abs(w)).all():
        return None
    kept = size > 0.1 * size.mean()
    if not kept.any() or np.abs(np.abs(w[kept]) / size[kept] - 1).mean() > 0.02:
        return None
    ratio = (w * z.conj()).sum(axis=0) / np.maximum(np.square(size).sum(axis=0), 1e-300)
    if np.abs(np.abs(ratio) - 1).mean() > 0.02:
        return None
    return np.asarray(ratio / np.maximum(np.abs(ratio), 1e-300))


def _complex(values: Floats, way: str) -> Complex:
    half = values.shape[-1] // 2
    if way == "halves":
        return values[..., :half] + 1j * values[..., half:]
    return values[..., 0::2] + 1j * values[..., 1::2]


def _angles(t: Complex, r: Complex) -> Solved | None:
    """Both of shape (positions, pairs): how the angles differ."""
    if _near(t, r.conj()):
        return Solved(
            kind="wrong_sign", sentence="the rotary embedding turns the other way round", confidence=0.96
        )
    for shift in (1, -1, 2, -2):
        a, b = (t[:-shift], r[shift:]) if shift > 0 else (t[-shift:], r[:shift])
        if _near(a, b) and not _near(t, r):
            return Solved(
                kind="shifted_by_one",
                sentence=f"rotary positions are {shift:+d} from the reference's",
                confidence=0.96,
            )
    theta_t, theta_r = _theta(np.angle(t[1])), _theta(np.angle(r[1]))
    if theta_t is not None and theta_r is not None and abs(theta_t / theta_r - 1) > 0.01:
        return Solved(
            kind="constant_argument",
            sentence=f"rotary theta is {number(_rounded(theta_t))} for {number(_rounded(theta_r))} (fitted)",
            confidence=0.95,
        )
    return _coarse(t, r)


def _near(a: Complex, b: Complex) -> bool:
    return bool(np.abs(a - b).mean() < 0.01)


def _theta(angles: Floats) -> float | None:
    """theta of ``angle_i = theta^(-i / n)`` at position 1; None where the angles are no such sequence."""
    usable = angles > 1e-6
    if usable.sum() < 2 or not usable[0]:
        return None
    place = np.flatnonzero(usable) / len(angles)
    logs = np.log(angles[usable])
    slope = float(np.dot(place, logs) / np.dot(place, place))
    if np.abs(logs - slope * place).max() > 0.05 + 0.01 * abs(slope):
        return None
    return float(np.exp(-slope))


def _rounded(theta: float) -> float:
    """Fitted numbers are known to about three digits."""
    return float(f"{theta:.3g}")


def _coarse(t: Complex, r: Complex) -> Solved | None:
    """Angles rounded to bfloat16 or float16: right while small, wrong where large."""
    first = np.angle(r[1])
    exact = np.arange(len(r))[:, None] * first[None, :]
    if not _near(np.exp(1j * exact), r):
        return None
    other = np.abs(r - t).mean()
    for name in ("bfloat16", "float16"):
        turned = np.exp(1j * rounded_to(exact, name))
        table = rounded_to(turned.real, name) + 1j * rounded_to(turned.imag, name)
        error = min(np.abs(v / np.abs(v) - t).mean() for v in (turned, table))
        if error < 0.3 * other:
            return Solved(
                kind="dtype_or_rounding",
                sentence=f"the rotary angles are rounded to {name} before cos and sin",
                confidence=0.96,
            )
    return None


def _table(evidence: Evidence) -> Solved | None:
    """A table of cosines or sines by position and frequency (positions in the last dimension but one)."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.ndim < 2 or t.shape[-2] < 3 or t.shape[-1] < 4:
        return None
    a, b = (v.reshape(-1, *v.shape[-2:])[0] for v in (t, r))
    if (
        not (np.isfinite(a).all() and np.isfinite(b).all())
        or max(np.abs(a).max(), np.abs(b).max()) > 1 + _SMALL
    ):
        return None
    thetas = []
    for table in (a, b):
        if np.abs(table[0] - 1).max() < _SMALL:
            angles = np.arccos(np.clip(table[1], -1, 1))
        elif np.abs(table[0]).max() < _SMALL:
            angles = np.arcsin(np.clip(table[1], -1, 1))
        else:
            return None
        half = len(angles) // 2
        thetas.append(_theta(angles[:half] if np.allclose(angles[:half], angles[half:]) else angles))
    theta_t, theta_r = thetas
    if theta_t is None or theta_r is None or abs(theta_t / theta_r - 1) < 0.01:
        return None
    return Solved(
        kind="constant_argument",
        sentence=f"rotary theta is {number(_rounded(theta_t))} for {number(_rounded(theta_r))} (fitted)",
        confidence=0.95,
    )
