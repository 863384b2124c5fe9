"""How a weight came to differ from the reference's: transposed, permuted, scaled, rounded, drawn anew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trueup.diagnosing.kinds.grids import on_grid
from trueup.diagnosing.kinds.permutations import along, described
from trueup.diagnosing.thresholds import (
    CAST_ROUNDINGS,
    CONSTANT_START,
    DRAW_ERRORS,
    DRAW_SPREAD,
    WEIGHT_ALIKE,
    WEIGHT_EXACT,
    WEIGHT_FACTOR_REST,
)
from trueup.numerics.dtypes import DTYPES, dtype_from_name
from trueup.types.arrays import Floats
from trueup.types.codes import WeightsCode as Weights
from trueup.types.codes.kinds import OrderCode
from trueup.types.reason import Reason, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChange:
    """How one weight came to differ."""

    name: str
    """``number transposed permuted halves_exchanged scaled negated rounded part other_draw`` and so on"""
    kind: str
    evidence: Reason
    same_size: bool = True
    """both have as many elements: else no other layout makes one of the other"""


def change_of(
    target: Floats | None, reference: Floats | None, target_dtype: str | None, reference_dtype: str | None
) -> WeightChange | None:
    """How the target's weight came from the reference's; None where only the dtype's rounding differs or
    nothing does."""
    if target is None or reference is None:
        return WeightChange(name="unknown", kind="wrong_data", evidence=reason(Weights.NOT_STORED))
    if target.shape != reference.shape:
        return _other_shape(target, reference)
    if np.array_equal(target, reference):
        return None
    norm = float(np.linalg.norm(reference))
    gap = float(np.linalg.norm(target - reference)) / norm if norm else np.inf
    if gap <= 2 * _coarser(target_dtype, reference_dtype) and target_dtype != reference_dtype:
        return None
    for look in (_number, _zeroed, _constant, _scaled, _shifted, _turned, _permuted, _part, _rounded):
        found = look(target, reference)
        if found is not None:
            return found
    return _draw(target, reference, gap)


def held_whole(targets: list[Floats | None], references: list[Floats | None]) -> WeightChange | None:
    """Of one weight on several ranks, in their order: each of one run's holds, bit for bit, what the other
    run's hold parts of."""
    for side, held, parts in (("target", targets, references), ("reference", references, targets)):
        for dim in range(held[0].ndim if held[0] is not None else 0):
            whole = joined(parts, dim)
            if whole is not None and all(one is not None and np.array_equal(one, whole) for one in held):
                numbers = {"num": len(held), "dim": dim}
                evidence = reason(Weights.WHOLE_ON_EACH, side=side, **numbers)
                return WeightChange(name=f"whole_in_{side}", kind="constant_argument", evidence=evidence)
    return None


def joined(parts: list[Floats | None], dim: int) -> Floats | None:
    """The parts one after the other along a dimension; None where one is not known, or they do not fit."""
    known = [part for part in parts if part is not None]
    same = len({part.shape[:dim] + part.shape[dim + 1 :] for part in known}) == 1
    return np.concatenate(known, axis=dim) if len(known) == len(parts) and same else None


def _coarser(*names: str | None) -> float:
    return max(dtype_from_name(name).eps for name in names if name in DTYPES)


def _other_shape(target: Floats, reference: Floats) -> WeightChange:
    if target.shape == reference.shape[::-1] and np.allclose(target, reference.T, rtol=WEIGHT_EXACT, atol=0):
        return WeightChange(
            name="transposed", kind="transposed_or_permuted", evidence=reason(Weights.TRANSPOSED)
        )
    shapes = {"target": str(list(target.shape)), "reference": str(list(reference.shape))}
    evidence, same = reason(Weights.SHAPE, **shapes), target.size == reference.size
    return WeightChange(name="shape", kind="constant_argument", evidence=evidence, same_size=same)


def _number(target: Floats, reference: Floats) -> WeightChange | None:
    """A weight of one element: any number is some factor of another."""
    if target.size != 1:
        return None
    sides = {"target": float(target.flat[0]), "reference": float(reference.flat[0])}
    return WeightChange(name="number", kind="constant_argument", evidence=reason(Weights.NUMBER, **sides))


def _constant(target: Floats, reference: Floats) -> WeightChange | None:
    """Both hold one number everywhere, as a norm's weights and biases begin."""
    if (target != target.flat[0]).any() or (reference != reference.flat[0]).any():
        return None
    sides = {"target": float(target.flat[0]), "reference": float(reference.flat[0])}
    evidence = reason(Weights.ONE_NUMBER, **sides)
    return WeightChange(name="constant", kind="constant_argument", evidence=evidence)


def _zeroed(target: Floats, reference: Floats) -> WeightChange | None:
    if target.any() or not reference.any():
        return None
    return WeightChange(name="zero", kind="missing_or_extra_term", evidence=reason(Weights.ZERO))


def _scaled(target: Floats, reference: Floats) -> WeightChange | None:
    square = float(np.vdot(reference, reference))
    if not square:
        return None
    factor = float(np.vdot(target, reference)) / square
    rest = float(np.linalg.norm(target - factor * reference))
    if (
        factor == 0
        or rest > WEIGHT_FACTOR_REST * float(np.linalg.norm(target))
        or abs(factor - 1) < WEIGHT_EXACT
    ):
        return None
    if abs(factor + 1) < WEIGHT_EXACT:
        return WeightChange(name="negated", kind="wrong_sign", evidence=reason(Weights.NEGATED))
    shown = float(f"{factor:.6g}")  # weights scaled by one factor are one finding
    return WeightChange(name="scaled", kind="wrong_scale", evidence=reason(Weights.SCALED, factor=shown))


def _shifted(target: Floats, reference: Floats) -> WeightChange | None:
    """The same number was added to every element."""
    offset = float(np.median(target - reference))
    slack = WEIGHT_EXACT * np.maximum(np.abs(target), np.abs(reference)).clip(min=abs(offset))
    if target.size < 2 or not offset or (np.abs(target - reference - offset) > slack).any():
        return None
    shifted = reason(Weights.SHIFTED, offset=float(f"{offset:.6g}"))
    return WeightChange(name="shifted", kind="missing_or_extra_term", evidence=shifted)


def _turned(target: Floats, reference: Floats) -> WeightChange | None:
    square = target.ndim == 2 and target.shape[0] == target.shape[1]
    if square and np.array_equal(target, reference.T):
        return WeightChange(
            name="transposed", kind="transposed_or_permuted", evidence=reason(Weights.TRANSPOSED)
        )
    return None


def _permuted(target: Floats, reference: Floats) -> WeightChange | None:
    if not np.array_equal(np.sort(target, axis=None), np.sort(reference, axis=None)):
        return None
    words = ("rows", "columns") if target.ndim < 3 else (*(f"dim {n}" for n in range(target.ndim)),)
    for axis, word in enumerate(words[: target.ndim]):
        a, b = (np.moveaxis(v, axis, 0).reshape(v.shape[axis], -1) for v in (target, reference))
        order = [a[np.lexsort(a.T[::-1])], b[np.lexsort(b.T[::-1])]] if a.shape[1] <= 4096 else [a, b]
        if np.array_equal(*order):
            moved = int((a != b).any(axis=1).sum())
            permutation = along(target, reference, axis, 0.0)
            how = None if permutation is None else described(permutation)
            known = how is not None and how.code is not OrderCode.REORDERED
            parts = (how,) if how is not None and known else ()
            rows = reason(Weights.REORDERED, *parts, what=word, moved=moved, total=len(a))
            halves = how is not None and how.code is OrderCode.HALVES_SWAPPED
            name = "halves_exchanged" if halves else "permuted"
            return WeightChange(name=name, kind="transposed_or_permuted", evidence=rows)
    return WeightChange(name="permuted", kind="transposed_or_permuted", evidence=reason(Weights.REARRANGED))


def _part(target: Floats, reference: Floats) -> WeightChange | None:
    """Only some rows differ: a part was not loaded."""
    if target.ndim < 2:
        return None
    rows = np.flatnonzero((target != reference).reshape(len(target), -1).any(axis=1))
    if len(rows) > len(target) // 2:
        return None
    part = reason(Weights.PART, num=len(rows), total=len(target), first=int(rows[0]), last=int(rows[-1]))
    return WeightChange(name="part", kind="wrong_data", evidence=part)


def _rounded(target: Floats, reference: Floats) -> WeightChange | None:
    """One side holds what a coarser dtype can, and the other's values to one rounding of it."""
    gap, size = np.abs(target - reference), np.maximum(np.abs(target), np.abs(reference))
    for name in ("bfloat16", "float16"):
        entry = dtype_from_name(name)
        within = gap <= CAST_ROUNDINGS * entry.eps * np.maximum(size, entry.smallest_normal)
        for side, values in (("target", target), ("reference", reference)):
            if within.all() and on_grid(values, name).all():
                rounded = reason(Weights.ROUNDED, dtype=name, side=side)
                return WeightChange(name="rounded", kind="dtype_or_rounding", evidence=rounded)
    return None


def _is_one_number(target: Floats, reference: Floats) -> bool:
    """Whether both are about one and the same number, from which both have moved (the weights of a norm)."""
    if not (target.std() and reference.std()):
        return False
    apart = max(float(target.std()), float(reference.std()), abs(float(target.mean() - reference.mean())))
    return apart <= CONSTANT_START * abs(float(reference.mean()))


def _draw(target: Floats, reference: Floats, gap: float) -> WeightChange:
    spreads = float(target.std()), float(reference.std())
    both = spreads[0] * spreads[1] * target.size
    close = float(np.vdot(target - target.mean(), reference - reference.mean())) / both if both else 0.0
    ratio = spreads[0] / spreads[1] if spreads[1] else np.inf
    if close > WEIGHT_ALIKE or _is_one_number(target, reference):
        return WeightChange(name="near", kind="stale_value", evidence=reason(Weights.NEAR, rel_diff=gap))
    if abs(close) > DRAW_ERRORS / np.sqrt(target.size):
        related = reason(Weights.RELATED, correlation=close, target=spreads[0], reference=spreads[1])
        return WeightChange(name="related", kind="wrong_data", evidence=related)
    centre = abs(float(target.mean() - reference.mean()))
    is_centred = centre <= DRAW_ERRORS * max(spreads) * np.sqrt(2 / target.size)
    if is_centred and abs(ratio - 1) < max(DRAW_SPREAD, DRAW_ERRORS / np.sqrt(2 * target.size)):
        draw = reason(Weights.OTHER_DRAW, target=spreads[0], reference=spreads[1])
        return WeightChange(name="other_draw", kind="randomness", evidence=draw)
    init = reason(Weights.OTHER_INIT, target=spreads[0], reference=spreads[1])
    return WeightChange(name="other_init", kind="wrong_data", evidence=init)
