"""Two batches of token ids against each other, and labels against inputs. Pure: arrays in, reasons out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.batches.labels import MAX_SHIFT, agreement, shift_of
from trueup.diagnosing.kinds.permutations import along, described, equal_layout, layouts, same_numbers
from trueup.diagnosing.kinds.thresholds import MIN_NUMBERS
from trueup.diagnosing.thresholds import (
    BATCH_SHARE,
    DRAW_ERRORS,
    MAPPED_MOST,
    MAPPED_SHARE,
    ROW_CHANCE,
    SAMPLES_FEWEST,
    SCALED_ROUNDINGS,
    STREAM_FEWEST,
)
from trueup.types.arrays import Array, Bools, Floats, Ints
from trueup.types.codes import BatchCode as Batches
from trueup.types.reason import Reason, reason

_NUM_LISTED = 6
"""rows or positions that a reason names; the rest is counted"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """How one batch came to differ from another."""

    name: str
    """``same order more_rows begin_anew counting offset offset_by_row flags shape shift padding packing
    cut_later cut_earlier some_rows some_tokens mapped_ids``, else ``other``; ``some_tokens``: of the same
    samples"""
    evidence: Reason


def relation(target: Ints, reference: Ints, beside: Sequence[tuple[Array, Array]] = ()) -> Relation:
    """How the target's ids (B, T) came from the reference's. ``beside``: further inputs of the same B rows
    that differ, target and reference.

    Example:
        >>> relation(np.array([[3, 4], [1, 2]]), np.array([[1, 2], [3, 4]])).name
        'order'
    """
    if target.shape == reference.shape and np.array_equal(target, reference):
        return Relation(name="same", evidence=reason(Batches.SAME))
    for look in (
        _order,
        _flags,
        _counting,
        _offset,
        _offset_by_row,
        _begin_anew,
        _more_rows,
        _one_position,
        _padding,
        _shift,
        _packing,
        _cut,
        _shape,
        _mapped,
        _some_rows,
    ):
        found = look(target, reference)
        if found is not None and not (look is _order and _is_by_chance(target, reference, beside)):
            return found
    different = float(np.mean(target != reference))
    return Relation(name="other", evidence=reason(Batches.OTHER, share=different))


# In one piece: one branch a relation, the one that says most first.
def value_relation(target: Floats, reference: Floats, rounding: float) -> Reason | None:
    """How an input of the model that is no ids (pixels, latents, features) came from the reference's.

    The same numbers in another order along a dimension, or in another layout, or each scaled and shifted;
    or each channel scaled and shifted by numbers of its own, or the same samples made otherwise; None where
    none of these. ``rounding``: unit roundoff of the coarser side.
    """
    if target.size != reference.size or target.size < MIN_NUMBERS:
        return None
    if not (np.isfinite(target).all() and np.isfinite(reference).all()):
        return None
    if (constant := _constant(target, reference)) is not None:
        return constant
    if target.shape != reference.shape and np.array_equal(target.ravel(), reference.ravel()):
        shapes = {"target": str(list(target.shape)), "reference": str(list(reference.shape))}
        return reason(Batches.SHAPE, **shapes, shared=0)
    if target.shape == reference.shape and (rounded := _rounded(target, reference, rounding)) is not None:
        return rounded
    if same_numbers(target, reference, rounding):
        if target.shape == reference.shape:
            for dim in range(target.ndim):
                order = along(target, reference, dim, rounding)
                if order is not None:
                    return reason(Batches.MOVED, described(order), dim=dim)
        for named, values in layouts(reference, target.shape):
            if equal_layout(target, values, rounding):
                return reason(Batches.LAID_OUT, named)
        return Reason(Batches.SAME_NUMBERS)
    if target.shape != reference.shape:
        return None
    whole = _scaled(target.ravel(), reference.ravel(), rounding)
    by_channel = (by for dim in (1, -1) if (by := _by_channel(target, reference, dim, rounding)))
    some = _limited(target, reference) or _some_rows_made(target, reference) or _monotone(target, reference)
    return whole or next(by_channel, None) or some or _same_samples(target, reference)


def _constant(target: Floats, reference: Floats) -> Reason | None:
    """One number everywhere, on one side or on both."""
    sides = {"target": target, "reference": reference}
    ranges = {side: (float(values.min()), float(values.max())) for side, values in sides.items()}
    if all(low != high for low, high in ranges.values()):
        return None
    facts = {
        f"{side}_{end}": number for side, of in ranges.items() for end, number in zip(_ENDS, of, strict=True)
    }
    return reason(Batches.CONSTANT, **facts)


_ENDS = ("least", "most")


def rows_in_place(target: Array, reference: Array) -> int:
    """How many rows have the bits of the reference's row of the same number, and of no other row of it: the
    same samples. Another shard or seed brings others, of which chance puts hardly one at its place; another
    order leaves rows that stand elsewhere in the reference. 0 where either may be: where less than most rows,
    or than ``MIN_NUMBERS``, are at their place.
    """
    if target.shape != reference.shape or target.ndim < 1 or len(target) < 2:
        return 0
    own, other = ([row.tobytes() for row in np.ascontiguousarray(side)] for side in (target, reference))
    times = Counter(other)
    apart = [a for a, b in zip(own, other, strict=True) if a != b]
    kept = sum(a == b and times[b] == 1 for a, b in zip(own, other, strict=True))
    is_order = any(row in times for row in apart)
    return kept if kept >= min(MIN_NUMBERS, len(own) // 2 + 1) and not is_order else 0


def _limited(target: Floats, reference: Floats) -> Reason | None:
    """Numbers that are cut off at another bound of their sample: in every sample one side is the other one,
    no smaller (or no larger) than a number. All that is not cut off has the same bits, and what is cut off at
    one number on one side has several on the other, or it may be padding of another value.
    """
    if target.ndim < 2:
        return None
    sides = [values.reshape(len(values), -1) for values in (target, reference)]
    apart = sides[0] != sides[1]
    for way, limited, ends in (
        ("smallest", np.maximum, [values.min(axis=1, keepdims=True) for values in sides]),
        ("largest", np.minimum, [values.max(axis=1, keepdims=True) for values in sides]),
    ):
        cut = [(limited(sides[1 - at], ends[at]) == sides[at]).all(axis=1) for at in (0, 1)]
        if not (cut[0] | cut[1]).all():
            continue
        several = max(
            (
                len(np.unique(sides[1 - at][row, apart[row]]))
                for at in (0, 1)
                for row in np.flatnonzero(cut[at] & apart.any(axis=1))
            ),
            default=0,
        )
        if several < MIN_NUMBERS:
            return None
        bounds = {
            side: [f"{number:.4g}" for number in of[:_NUM_LISTED, 0].tolist()]
            for side, of in zip(("target", "reference"), ends, strict=True)
        }
        return reason(Batches.LIMITED, num=int(apart.sum()), total=target.size, way=way, **bounds)
    return None


def _some_rows_made(target: Floats, reference: Floats) -> Reason | None:
    """Some rows alone, where the others are the same samples."""
    if not rows_in_place(target, reference):
        return None
    sides = [values.reshape(len(values), -1) for values in (target, reference)]
    apart = np.flatnonzero((sides[0] != sides[1]).any(axis=1))
    zeros = [side for side, rows in zip(("target", "reference"), sides, strict=True) if not rows[apart].any()]
    return reason(
        Batches.SOME_SAMPLES,
        num=len(apart),
        total=len(target),
        rows=_first(apart.tolist()),
        zeros=zeros[0] if len(zeros) == 1 else "",
    )


def _monotone(target: Floats, reference: Floats) -> Reason | None:
    """Numbers in the reference's order of size: n unrelated ones are with the chance 1/n!."""
    order = np.argsort(reference.ravel(), kind="stable")
    sides = [values.ravel()[order] for values in (target, reference)]
    if len(order) <= MIN_NUMBERS or any((np.diff(side) <= 0).any() for side in sides):
        return None
    return reason(Batches.MONOTONE, num=len(order))


def _same_samples(target: Floats, reference: Floats) -> Reason | None:
    """Each sample is more like the reference's of the same number than like any other of it, and by more than
    unrelated numbers are: the same samples, in their order, made otherwise.

    Two unrelated rows of n numbers correlate by 1/sqrt(n), give or take; that all of B rows are most like
    their own has the chance 1/B^B.
    """
    if target.ndim < 2 or len(target) < SAMPLES_FEWEST:
        return None
    sides = [values.reshape(len(values), -1) for values in (target, reference)]
    sides = [values - values.mean(axis=1, keepdims=True) for values in sides]
    sizes = [np.linalg.norm(values, axis=1) for values in sides]
    if not all(size.all() for size in sizes):
        return None
    likeness = np.abs(sides[0] @ sides[1].T) / np.outer(*sizes)
    own = likeness.diagonal()
    if (likeness.argmax(axis=1) != np.arange(len(own))).any() or own.min() <= DRAW_ERRORS / np.sqrt(
        sides[0].shape[1]
    ):
        return None
    return reason(Batches.SAME_SAMPLES, num=len(own), correlation=float(np.median(own)))


def _by_channel(target: Floats, reference: Floats, dim: int, rounding: float) -> Reason | None:
    """The same of each channel, with numbers of its own: other means and deviations."""
    if target.ndim < 3:
        return None
    sides = [np.moveaxis(values, dim, 0).reshape(target.shape[dim], -1) for values in (target, reference)]
    if sides[0].shape[1] < max(len(sides[0]), MIN_NUMBERS):  # two constants a channel explain few numbers
        return None
    order = _most_alike(*sides)
    found = [_scaled(own, sides[1][at], rounding) for own, at in zip(sides[0], order, strict=True)]
    known = [one for one in found if one is not None]
    if len(known) < len(found) or len(set(order)) < len(order):
        return None
    scales, offsets = ([f"{one.number(name) or 0.0:.4g}" for one in known] for name in ("scale", "offset"))
    if order == sorted(order):
        return reason(Batches.SCALED_BY_CHANNEL, dim=dim % target.ndim, scales=scales, offsets=offsets)
    moved = described(np.array(order))
    return reason(Batches.MOVED_AND_SCALED, moved, dim=dim % target.ndim, scales=scales, offsets=offsets)


def _most_alike(target: Floats, reference: Floats) -> list[int]:
    """Of each row of the target the row of the reference that it correlates with most; its own number where
    it does as much with that."""
    sides = [values - values.mean(axis=1, keepdims=True) for values in (target, reference)]
    sizes = [np.maximum(np.linalg.norm(values, axis=1), np.finfo(float).tiny) for values in sides]
    likeness = np.abs(sides[0] @ sides[1].T) / np.outer(*sizes)
    own = np.isclose(likeness.diagonal(), likeness.max(axis=1))
    return [
        at if its_own else int(best)
        for at, (its_own, best) in enumerate(zip(own, likeness.argmax(axis=1), strict=True))
    ]


def _rounded(target: Floats, reference: Floats, rounding: float) -> Reason | None:
    """Rounding alone makes them differ: a factor or an offset fitted to it is none that a program has."""
    apart = np.abs(target - reference)
    if not apart.any() or apart.max() > SCALED_ROUNDINGS * rounding * np.abs(reference).max():
        return None
    rel_l2 = float(np.linalg.norm(apart) / np.linalg.norm(reference))
    return reason(Batches.ROUNDED, share=float((apart > 0).mean()), rel_l2=rel_l2, rounding=rounding)


def _scaled(target: Floats, reference: Floats, rounding: float) -> Reason | None:
    """``target = scale * reference + offset`` but for rounding."""
    spread = reference - reference.mean()
    if not spread.any():
        return None
    scale = float(np.dot(target - target.mean(), spread) / np.dot(spread, spread))
    offset = float(target.mean() - scale * reference.mean())
    size = max(np.abs(target).max(), np.abs(scale * reference).max(), abs(offset))
    if scale == 0 or np.abs(target - scale * reference - offset).max() > SCALED_ROUNDINGS * rounding * size:
        return None
    if abs(offset) <= SCALED_ROUNDINGS * rounding * size:
        offset = 0.0
    return reason(Batches.SCALED, scale=scale, offset=offset)


def _counting(target: Ints, reference: Ints) -> Relation | None:
    """Positions that count on by one in every row, from another number than the reference's."""
    target, reference = _as_rows(target), _as_rows(reference)
    if target.shape != reference.shape or target.shape[1] < MIN_NUMBERS:
        return None
    for side in (target, reference):
        if np.ptp(side[:, 0]) or (np.diff(side) != 1).any():
            return None
    first = {"target": int(target[0, 0]), "reference": int(reference[0, 0])}
    return Relation(name="counting", evidence=reason(Batches.COUNTING, **first))


def _as_rows(ids: Ints) -> Ints:
    """What has one dim as one row."""
    return ids.T if ids.shape[1] == 1 else ids


def _offset(target: Ints, reference: Ints) -> Relation | None:
    """Every number is the reference's and the same number more."""
    if target.shape != reference.shape or target.size < MIN_NUMBERS or not np.ptp(reference):
        return None
    apart = target - reference
    if np.ptp(apart):
        return None
    return Relation(name="offset", evidence=reason(Batches.OFFSET, offset=int(apart.flat[0])))


def _offset_by_row(target: Ints, reference: Ints) -> Relation | None:
    """Positions that count on alike in every row, but begin at another number: at the edge of the window and
    not at a row's first token. Those before it, which one side does not count, are left out."""
    if target.shape != reference.shape or target.shape[1] <= 2 * MAX_SHIFT:
        return None
    offsets = []
    for own, other in zip(target, reference, strict=True):
        apart, on = own - other, [np.diff(row) == 1 for row in (own, other)]
        counts = on[0] & on[1]
        if counts.sum() < max(MAX_SHIFT, min(map(np.sum, on))) or np.ptp(apart[1:][counts]):
            return None
        offsets.append(int(apart[1:][counts][0]))
    if not any(offsets):
        return None
    return Relation(
        name="offset_by_row",
        evidence=reason(Batches.OFFSET_BY_ROW, offsets=_first(offsets), num=len(offsets)),
    )


def _begin_anew(target: Ints, reference: Ints) -> Relation | None:
    """Positions that count on by one from 0, and begin anew inside of rows more often on one side: packed
    sequences told apart or not."""
    target, reference = _as_rows(target), _as_rows(reference)
    if target.shape != reference.shape or target.shape[1] < 2:
        return None
    counts = []
    for side in (target, reference):
        anew = side[:, 1:] == 0
        if (side[:, 0] != 0).any() or not (anew | (np.diff(side) == 1)).all():
            return None
        counts.append(int(anew.sum()))
    if counts[0] == counts[1]:
        return None
    evidence = reason(Batches.BEGIN_ANEW, target=counts[0], reference=counts[1])
    return Relation(name="begin_anew", evidence=evidence)


def _order(target: Ints, reference: Ints) -> Relation | None:
    if target.shape != reference.shape or Counter(_rows(target)) != Counter(_rows(reference)):
        return None
    at = {row: number for number, row in enumerate(_rows(reference))}
    order = [at[row] for row in _rows(target)]
    return Relation(name="order", evidence=reason(Batches.ORDER, rows=_first(order), num=len(order)))


def _is_by_chance(target: Ints, reference: Ints, beside: Sequence[tuple[Array, Array]]) -> bool:
    """Whether rows so short that any batch holds them again, such as labels of classes, came with others that
    are not in that order."""
    if not would_be_found(target, len(reference)):
        return False
    return any(
        Counter(zip(_rows(target), _rows(own), strict=True))
        != Counter(zip(_rows(reference), _rows(other), strict=True))
        for own, other in beside
    )


def moved(target: Ints, reference: Ints) -> Relation | None:
    """Every row stands the same number of places further, without exception."""
    found = _shift(target, reference)
    shift = 0 if found is None else int(found.evidence.number("shift") or 0)
    if found is None or target.shape != reference.shape:
        return None
    actual, expected = (
        (target[:, :-shift], reference[:, shift:])
        if shift > 0
        else (
            target[:, -shift:],
            reference[:, :shift],
        )
    )
    return found if np.array_equal(actual, expected) else None


def put_in_front(target: Ints, reference: Ints, shift: int) -> Reason | None:
    """The tokens that every row of one side has in front of what the other side's begins with: a begin token
    that a template and a tokenizer both write, or that one side leaves out. None where rows have tokens of
    their own there, or are fewer than two.

    Args:
        target: token ids, (B, T).
        reference: likewise; ``target[:, i] == reference[:, i + shift]`` wherever both exist.
    """
    side, own, other = ("target", target, reference) if shift < 0 else ("reference", reference, target)
    front = own[:, : abs(shift)]
    if len(own) < 2 or (front != front[0]).any():
        return None
    again = bool((other[:, : abs(shift)] == front).all())
    return reason(Batches.FRONT, tokens=[str(token) for token in front[0]], side=side, again=again)


def edges_follow(target: Bools, reference: Bools, shift: int) -> bool:
    """Whether what is shown in each row begins and ends where it does in the reference, or ``shift``
    positions before: what is given by its position stays, what is given by tokens moves with them.

    Args:
        target: (B, T).
        reference: (B, T); tokens of the target at i are those of the reference at ``i + shift``.
    """
    width = reference.shape[1]
    for own, other in zip(target, reference, strict=True):
        edges = [np.flatnonzero(np.diff(np.pad(row.astype(np.int8), 1))) for row in (own, other)]
        if len(edges[0]) != len(edges[1]):
            return False
        moved_to = np.clip(edges[1] - shift, 0, width)
        if not ((edges[0] == edges[1]) | (edges[0] == moved_to)).all():
            return False
    return True


def _flags(target: Ints, reference: Ints) -> Relation | None:
    """Zeros and ones, as of a mask, that are more or fewer on one side, or all exchanged. That a mask is one
    shorter is no shift of it."""
    if target.shape != reference.shape or not {*np.unique(target), *np.unique(reference)} <= {0, 1}:
        return None
    more, fewer = ((a > b).sum() for a, b in ((target, reference), (reference, target)))
    inverted = bool((target != reference).all())
    if more and fewer and not inverted:
        return None
    ends = {_end(*rows) for rows in zip(target, reference, strict=True) if (rows[0] != rows[1]).any()}
    end, length = ends.pop() if len(ends) == 1 else ("", 0)
    if not (target.any() and reference.any()):
        end = "none"
    numbers = {"more": int(more), "fewer": int(fewer), "length": length}
    return Relation(name="flags", evidence=reason(Batches.FLAGS, **numbers, end=end, inverted=inverted))


def _end(row: Ints, other: Ints) -> tuple[str, int]:
    """Where two rows of zeros and ones differ, and by how many: at the ``first`` or the ``last`` ones of the
    one that has more; else "" and 0."""
    longer = np.flatnonzero(row | other)
    apart = np.flatnonzero(row != other)
    subset = len(longer) == max(row.sum(), other.sum())
    for end, ones in (("last", longer[len(longer) - len(apart) :]), ("first", longer[: len(apart)])):
        if subset and np.array_equal(apart, ones) and len(apart) < len(longer):
            return end, len(apart)
    return "", 0


def _shift(target: Ints, reference: Ints) -> Relation | None:
    if target.shape[0] != reference.shape[0] or min(target.shape[1], reference.shape[1]) <= 2 * MAX_SHIFT:
        return None
    for shift in [s for n in range(1, MAX_SHIFT + 1) for s in (n, -n)]:
        if shift_holds(target, reference, shift):
            return Relation(name="shift", evidence=reason(Batches.SHIFT, shift=shift))
    return None


def shift_holds(target: Ints, reference: Ints, shift: int) -> bool:
    """Whether ``target[:, i] == reference[:, i + shift]`` nearly everywhere both exist."""
    width = min(target.shape[1], reference.shape[1] - max(shift, 0))
    if shift < 0:
        width = min(target.shape[1] + shift, reference.shape[1])
    if width <= 0:
        return False
    actual = target[:, max(-shift, 0) : max(-shift, 0) + width]
    expected = reference[:, max(shift, 0) : max(shift, 0) + width]
    return bool(np.mean(actual == expected) >= BATCH_SHARE)


def _padding(target: Ints, reference: Ints) -> Relation | None:
    if target.shape[0] != reference.shape[0] or min(target.shape[1], reference.shape[1]) < 2:
        return None  # one number a row, a class say, is no end of anything
    for target_pad in _candidates(target):
        for reference_pad in _candidates(reference):
            ends = (
                (i.shape[1], pad, _pad_side(i, pad))
                for i, pad in ((target, target_pad), (reference, reference_pad))
            )
            if len(set(ends)) == 1:  # padded alike: the ids themselves differ
                continue
            pairs = zip(target, reference, strict=True)
            if all(np.array_equal(_stripped(a, target_pad), _stripped(b, reference_pad)) for a, b in pairs):
                padding = reason(
                    Batches.PADDING,
                    target_id=target_pad,
                    target_at=_pad_side(target, target_pad),
                    target_length=target.shape[1],
                    reference_id=reference_pad,
                    reference_at=_pad_side(reference, reference_pad),
                    reference_length=reference.shape[1],
                )
                return Relation(name="padding", evidence=padding)
    return None


def _candidates(ids: Ints) -> list[int]:
    """Ids that may be padding: those that fill the ends of rows."""
    ends = np.concatenate([ids[:, 0], ids[:, -1]])
    return [int(value) for value, _ in Counter(ends.tolist()).most_common(3)]


def _stripped(row: Ints, pad: int) -> Ints:
    kept = np.flatnonzero(row != pad)
    return row[kept[0] : kept[-1] + 1] if len(kept) else row[:0]


def _pad_side(ids: Ints, pad: int) -> str:
    left, right = float(np.mean(ids[:, 0] == pad)), float(np.mean(ids[:, -1] == pad))
    return "left" if left > right else "right" if right > 0 else "none"


def _more_rows(target: Ints, reference: Ints) -> Relation | None:
    """All rows of one batch are in the other, which has more."""
    if target.shape[1] != reference.shape[1] or not min(len(target), len(reference)):
        return None
    rows = Counter(_rows(target)), Counter(_rows(reference))
    fewer, more = sorted(rows, key=lambda one: one.total())
    if fewer.total() == more.total() or fewer - more:
        return None
    repeated = sum(num for row, num in (more - fewer).items() if row in fewer)
    sizes = {"target": len(target), "reference": len(reference)}
    return Relation(name="more_rows", evidence=reason(Batches.MORE_ROWS, repeated=repeated, **sizes))


def is_in_parts(ids: Ints, parts: Sequence[Ints]) -> bool:
    """Whether several batches of other rows each hold all rows of one batch together, and no more."""
    rows = Counter(row for part in parts for row in _rows(part))
    return len(parts) > 1 and rows == Counter(_rows(ids)) and rows.total() == len(rows)


def _packing(target: Ints, reference: Ints) -> Relation | None:
    """The same stream of tokens cut into rows elsewhere."""
    target_stream, reference_stream = target.ravel(), reference.ravel()
    size = min(len(target_stream), len(reference_stream))
    if size < STREAM_FEWEST:
        return None
    if target.shape != reference.shape and np.array_equal(target_stream[:size], reference_stream[:size]):
        (rows, width), (others, length) = target.shape, reference.shape
        cut = reason(
            Batches.ROW_LENGTH,
            target_rows=rows,
            target_length=width,
            reference_rows=others,
            reference_length=length,
        )
        return Relation(name="packing", evidence=cut)
    for shift in range(1, min(size // 2, 512)):
        for a, b, side in (
            (target_stream, reference_stream, "later"),
            (reference_stream, target_stream, "earlier"),
        ):
            if np.array_equal(a[: size - shift], b[shift:size]):
                offset = reason(Batches.STREAM_OFFSET, shift=shift, side=side)
                return Relation(name="packing", evidence=offset)
    return None


def _cut(target: Ints, reference: Ints) -> Relation | None:
    """Every row that differs is another part of one sample: it begins inside the reference's, and ends after
    it, or the other way round, by a number of tokens of its own. Chance is bounded by how often two tokens of
    these rows are the same, or two steps from one to the next: positions that count are no text."""
    if len(target) != len(reference):
        return None
    for pad in (None, *(set(_candidates(target)) & set(_candidates(reference)))):
        sides = [[row if pad is None else _stripped(row, pad) for row in ids] for ids in (target, reference)]
        apart = [n for n, (a, b) in enumerate(zip(*sides, strict=True)) if not np.array_equal(a, b)]
        for side, (ahead, behind) in (("later", sides), ("earlier", sides[::-1])):
            shifts = [_begins_inside(ahead[n], behind[n]) for n in apart]
            if shifts and None not in shifts:
                begun = _first([shift for shift in shifts if shift is not None])
                rows, num, total = _first(apart), len(apart), len(target)
                evidence = reason(Batches.CUT, side=side, by=begun, num=num, total=total, rows=rows)
                return Relation(name=f"cut_{side}", evidence=evidence)
    return None


def _begins_inside(ahead: Ints, behind: Ints) -> int | None:
    """After how many tokens of ``behind`` another row begins that ends after it; None where none of its
    places is one, or so few tokens are shared that chance may make it."""
    steps = np.concatenate([np.diff(ahead), np.diff(behind)])
    alike = max(_alike_by_chance(np.concatenate([ahead, behind])), _alike_by_chance(steps))
    for shift in range(1, len(behind)):
        shared = len(behind) - shift
        if shared >= len(ahead) or shared * -math.log(alike) < math.log(len(behind) / ROW_CHANCE):
            continue
        if np.array_equal(ahead[:shared], behind[shift:]):
            return shift
    return None


def _alike_by_chance(numbers: Ints) -> float:
    """How often two of them are the same."""
    counts = np.unique(numbers, return_counts=True)[1]
    return float(((counts / max(counts.sum(), 1)) ** 2).sum())


def _shape(target: Ints, reference: Ints) -> Relation | None:
    if target.shape == reference.shape:
        return None
    shared = len(set(_rows(target)) & set(_rows(reference)))
    shapes = {"target": str(list(target.shape)), "reference": str(list(reference.shape))}
    is_of_others = len(target) == len(reference) > 1 and _has_other_tokens(target, reference)
    name = "other_lengths" if is_of_others else "shape"
    return Relation(name=name, evidence=reason(Batches.SHAPE, **shapes, shared=shared))


def _has_other_tokens(target: Ints, reference: Ints) -> bool:
    """Whether most of what single rows of the reference have, a token and the one after, is nowhere in the
    target's batch: rows of other samples, which are filled up to another length."""
    lowest, highest = (int(f((f(target), f(reference)))) for f in (np.min, np.max))
    sides = [_followers(ids, lowest, highest) for ids in (target, reference)]
    pairs, num_rows = np.unique(np.concatenate(sides[1]), return_counts=True)
    own = pairs[num_rows == 1]
    return len(own) > 0 and not _is_most(int(np.isin(own, np.concatenate(sides[0])).sum()), len(own))


def _one_position(target: Ints, reference: Ints) -> Relation | None:
    """One id in place of another at one position of all rows, as another token that rows begin with."""
    if target.shape != reference.shape or target.shape[1] < 2 or len(target) < 2:
        return None
    where = np.flatnonzero((target != reference).any(axis=0))
    if len(where) != 1:
        return None
    at = int(where[0])
    own, other = np.unique(target[:, at]), np.unique(reference[:, at])
    if len(own) > 1 or len(other) > 1:
        return None
    sides = {"target": int(own[0]), "reference": int(other[0])}
    found = reason(Batches.ONE_POSITION, position=at, rows=len(target), **sides)
    return Relation(name="first_token" if at == 0 else "one_token", evidence=found)


def _mapped(target: Ints, reference: Ints) -> Relation | None:
    """A few ids stand for others everywhere, as special tokens of another tokenizer do."""
    apart = target != reference
    pairs = Counter(zip(target[apart].tolist(), reference[apart].tolist(), strict=True))
    if not pairs or len(pairs) > MAPPED_MOST or apart.mean() > MAPPED_SHARE or target.shape[1] < 2:
        return None
    if max(pairs.values()) < 2:  # once is no rule
        return None
    if len({other_id for _, other_id in pairs}) < len(pairs):
        return None  # one id stands for two
    if any(np.any((reference == other_id) & ~apart) for _, other_id in pairs):
        return None
    common = pairs.most_common()
    mapped = reason(
        Batches.MAPPED_IDS,
        target=[str(own_id) for (own_id, _), _ in common],
        reference=[str(other_id) for (_, other_id), _ in common],
        counts=[str(count) for _, count in common],
    )
    return Relation(name="mapped_ids", evidence=mapped)


def _some_rows(target: Ints, reference: Ints) -> Relation | None:
    if target.shape != reference.shape:
        return None
    apart = np.flatnonzero((target != reference).any(axis=1))
    same = are_the_same_samples(target, reference)
    if len(apart) == len(target) and not same:
        return None
    where = np.flatnonzero((target != reference).any(axis=0))
    rows = reason(
        Batches.SOME_ROWS,
        num=len(apart),
        total=len(target),
        rows=_first(apart.tolist()),
        num_positions=len(where),
        positions=_first(where.tolist()),
        target_ids=_commonest(target[target != reference]),
        reference_ids=_commonest(reference[target != reference]),
    )
    return Relation(name="some_tokens" if same else "some_rows", evidence=rows)


def are_the_same_samples(target: Ints, reference: Ints) -> bool:
    """Whether each row that differs has most of what the reference's row of the same number alone has: tokens
    at their place, or, where some were put in or cut off, tokens and the one after. Of what other rows have
    too nothing counts, since any two rows share templates and padding. Another order, shard or seed brings
    other samples, which share none of these but by chance.

    Args:
        target: token ids, a row a sample; rows may be of another length than the reference's.
        reference: likewise, of as many rows; of fewer than two nothing can be told.
    """
    if len(target) != len(reference) or len(reference) < 2:
        return False
    if _have_one_block_more(target, reference):
        return True
    lowest, highest = (int(f((f(target), f(reference)))) for f in (np.min, np.max))
    sides = [_followers(ids, lowest, highest) for ids in (target, reference)]
    pairs, num_rows = np.unique(np.concatenate(sides[1]), return_counts=True)
    alike = target.shape == reference.shape
    for row in range(len(reference)):
        if alike and np.array_equal(target[row], reference[row]):
            continue
        own = np.intersect1d(sides[1][row], pairs[num_rows == 1], assume_unique=True)
        in_place = alike and _keeps_places(target, reference, row)
        if not in_place and not _is_most(int(np.isin(own, sides[0][row]).sum()), len(own)):
            return False
    return True


def _have_one_block_more(target: Ints, reference: Ints) -> bool:
    """Whether, padding left out, each row is the reference's with one run of tokens put in or taken out, in
    every row the same one (a prompt of the system), and rows are not all one."""
    for pads in ((a, b) for a in _candidates(target) for b in _candidates(reference)):
        sides = [
            [_stripped(row, pad) for row in ids] for ids, pad in zip((target, reference), pads, strict=True)
        ]
        blocks = {_block(own, other) for own, other in zip(*sides, strict=True)}
        if len(blocks) == 1 and None not in blocks and len({row.tobytes() for row in sides[1]}) > 1:
            return True
    return False


def _block(own: Ints, other: Ints) -> bytes | None:
    """The tokens that the longer of two rows has more, in one run; None where that is not all."""
    short, long = sorted((own, other), key=len)
    same = short == long[: len(short)]
    ahead = len(short) if same.all() else int(np.argmin(same))
    more = len(long) - len(short)
    is_all = more > 0 and np.array_equal(short[ahead:], long[ahead + more :])
    return long[ahead : ahead + more].tobytes() if is_all else None


def _keeps_places(target: Ints, reference: Ints, row: int) -> bool:
    own = (np.delete(reference, row, axis=0) != reference[row]).all(axis=0)
    return _is_most(int((target[row] == reference[row])[own].sum()), int(own.sum()))


def _is_most(kept: int, num: int) -> bool:
    return kept >= MIN_NUMBERS and 2 * kept > num


def _followers(ids: Ints, lowest: int, highest: int) -> list[Ints]:
    """Of each row its different tokens with the one after each, as one number; all ids are within the two."""
    from_zero = ids.astype(np.int64) - lowest
    pairs = from_zero[:, :-1] * (highest - lowest + 1) + from_zero[:, 1:]
    return [np.unique(row) for row in pairs]


def _rows(ids: Array) -> list[bytes]:
    return [row.tobytes() for row in np.ascontiguousarray(ids)]


def rows_found(target: Ints, reference: Ints, others: dict[str, Ints]) -> dict[str, int]:
    """Batch name -> how many of the target's rows it holds, of those that are not where the reference has
    them; batches without any left out. Nothing where rows are so short, or of so few different ids, that one
    would be found by chance: the labels of a classifier."""
    here = Counter(_rows(target)) - Counter(_rows(reference))
    if not here or would_be_found(target, sum(len(ids) for ids in others.values() if ids.size)):
        return {}
    found = {name: sum((here & Counter(_rows(ids))).values()) for name, ids in others.items() if ids.size}
    return {name: number for name, number in found.items() if number}


def would_be_found(target: Ints, num: int) -> bool:
    """Whether chance finds one of the target's rows among ``num`` others of its ids."""
    # as logarithms: of rows of thousands of ids there are more than a float holds
    possible = target[:1].size * math.log(max(len(np.unique(target)), 1))
    return bool(num) and math.log(num) > math.log(ROW_CHANCE) + possible


def _commonest(ids: Ints) -> tuple[str, ...]:
    return tuple(str(one) for one, _ in Counter(ids.tolist()).most_common(_NUM_LISTED + 1))


def _first(numbers: Sequence[int]) -> tuple[str, ...]:
    return tuple(map(str, numbers[:_NUM_LISTED]))


# -- labels ------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFacts:
    """What a batch's labels are to its inputs."""

    shift: int | None
    """labels[i] == ids[i + shift]; None where no shift up to MAX_SHIFT holds"""
    counted: float
    """share of positions that count in the loss"""
    num_counted: int
    outside: int
    """labels that are neither ignored nor an id of the vocabulary"""


def label_facts(
    labels: Ints,
    ids: Ints,
    *,
    ignore_index: int,
    vocab_size: int | None,
    mask: NDArray[np.float64] | None = None,
) -> LabelFacts:
    """Facts of labels in any shape of B*T or B*(T-n) elements; ``mask`` weighs them where it is given."""
    rows = len(ids)
    flat = labels.ravel()
    live = flat != ignore_index
    if mask is not None and mask.size == flat.size:
        live &= mask.ravel() != 0
    bad = live & ((flat < 0) | (flat >= vocab_size if vocab_size else False))
    shift = None
    if rows and flat.size % rows == 0 and 0 <= ids.shape[1] - flat.size // rows <= MAX_SHIFT:
        shift = shift_of(agreement(flat.reshape(rows, -1), live.reshape(rows, -1), ids))
    return LabelFacts(
        shift=shift,
        counted=float(live.mean()) if live.size else 0.0,
        num_counted=int(live.sum()),
        outside=int(bad.sum()),
    )
