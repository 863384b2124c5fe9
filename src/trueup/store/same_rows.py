"""Rows of a batch found again by what they hold, in whatever order they stand and however they are padded or
packed."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trueup.types.arrays import Array

Given = Mapping[str, Array]
"""slot -> what the model was given, (rows, ...), or (1, ...) where it is the same for all rows"""
MASK, POSITION = "mask", "position"
"""parts of slots' names"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpan:
    """Where one row stands on one side: its place in the batch, and its tokens from ``start`` to ``stop``.

    Of packed sequences each is a row, and several have one place.
    """

    row: int
    start: int
    stop: int


def places(held: Sequence[bytes], wanted: Sequence[bytes]) -> list[int | None]:
    """Where each wanted row stands among the held ones; equal rows are found in their order, each once.

    Example:
        >>> places([b"a", b"b", b"a"], [b"a", b"a", b"a", b"c"])
        [0, 2, None, None]
    """
    free: dict[bytes, deque[int]] = defaultdict(deque)
    for place, key in enumerate(held):
        free[key].append(place)
    return [free[key].popleft() if free[key] else None for key in wanted]


def num_rows(given: Given) -> int | None:
    """Rows of the batch; None where the inputs do not have the same number."""
    sizes = {len(values) for values in given.values()}
    most = max(sizes, default=0)
    return most if sizes <= {1, most} else None


def width_of(given: Given) -> int:
    """Tokens of a row: those of its mask, else of any input with more than one dimension."""
    mask = _mask(given)
    if mask is not None:
        return int(mask.shape[1])
    return next((int(values.shape[1]) for values in given.values() if values.ndim > 1), 1)


def spans_of(given: Given, *, without_padding: bool) -> list[RowSpan]:
    """Where each row stands, with or without what its mask hides at either end; each sequence of packed
    rows."""
    num, width = num_rows(given) or 0, width_of(given)
    mask = _mask(given) if without_padding else None
    packed = _sequences(given)
    if packed is not None:
        return packed
    spans = []
    for row in range(num):
        seen = np.flatnonzero(mask[row % len(mask)]) if mask is not None else np.array([], np.int64)
        start, stop = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, width)
        spans.append(RowSpan(row=row, start=start, stop=stop))
    return spans


def row_keys(given: Given, spans: Sequence[RowSpan]) -> list[bytes]:
    """What each row is given between the ends of its span.

    What a model takes by itself where it is given nothing is left out: a mask that hides nothing, positions
    that count from 0.
    """
    width, positions = width_of(given), _positions(given)
    rows: list[list[bytes]] = [[] for _ in spans]
    for slot, values in sorted(given.items()):
        cut = [_cut(values, span, width) for span in spans]
        if not _is_default(slot, values, cut, is_position=POSITION in slot or values is positions):
            for row, part in zip(rows, cut, strict=True):
                whole = part.astype(np.int64) if part.dtype.kind in "iub" else np.ascontiguousarray(part)
                row.append(slot.encode() + b"=" + whole.tobytes())
    return [b"|".join(row) for row in rows]


def as_stream(given: Given) -> dict[str, Array] | None:
    """What a model is given of tokens without a dimension of rows, as one row that holds all of them; None
    where it is none.

    Sequences packed without padding stand one after the other in inputs of one dimension, (T,); positions
    that count from 0 in each, or boundaries that count from 0 to T, say where they begin. Boundaries that
    positions tell too are left out.
    """
    flat = _flat(given)
    length = max(map(len, flat.values()), default=0)
    of_tokens = {slot: values for slot, values in flat.items() if len(values) == length}
    bounds = bounds_in(given)
    positions = next((v for v in of_tokens.values() if _count_anew(v)), None)
    if positions is None and len(bounds) == 1:
        positions = of_tokens["position"] = _positions_between(next(iter(bounds.values())))
    others = {slot: values for slot, values in given.items() if slot not in flat}
    if positions is None or len(of_tokens) < 2 or any(len(values) != 1 for values in others.values()):
        return None
    implied = {slot for slot, v in bounds.items() if np.array_equal(_positions_between(v), positions)}
    rows = {slot: values[None] for slot, values in {**of_tokens, **flat}.items() if slot not in implied}
    return rows | others


def _flat(given: Given) -> dict[str, Array]:
    """Whole numbers of one dimension."""
    return {slot: values for slot, values in given.items() if values.ndim == 1 and values.dtype.kind in "iu"}


def bounds_in(given: Given) -> dict[str, Array]:
    """Boundaries of packed sequences among what a model is given of one dimension: whole numbers that grow
    from 0 to the number of tokens."""
    flat = _flat(given)
    length = max(map(len, flat.values()), default=0)
    return {slot: values for slot, values in flat.items() if _are_bounds(values, length)}


def _are_bounds(values: Array, length: int) -> bool:
    return len(values) > 1 and values[0] == 0 and values[-1] == length and bool((np.diff(values) > 0).all())


def _positions_between(bounds: Array) -> Array:
    return np.concatenate([np.arange(size) for size in np.diff(bounds).tolist()])


def _count_anew(values: Array) -> bool:
    """Whether numbers count from 0, and again from 0: positions of sequences of two tokens and more."""
    starts = values == 0
    goes_on = starts[1:] | (values[1:] == values[:-1] + 1)
    return bool(len(values) and starts[0] and goes_on.all() and 2 * starts.sum() <= len(values))


def _positions(given: Given) -> Array | None:
    """By name, else by what they hold."""
    tables = [(slot, v) for slot, v in given.items() if v.ndim == 2 and v.dtype.kind in "iu"]
    named = next((values for slot, values in tables if POSITION in slot), None)
    if named is not None or any(POSITION in slot for slot in given):
        return named
    counting = (v for _, v in tables if all(_count_anew(row) for row in v) and (v[:, 1:] == 0).any())
    return next(counting, None)


def _sequences(given: Given) -> list[RowSpan] | None:
    """Where positions begin anew at 0 and count on: sequences packed into rows. None where no row holds two,
    or something else says what of it counts (a mask that hides a token)."""
    positions = _positions(given)
    mask = _mask(given)
    if positions is None or positions.dtype.kind not in "iu" or (mask is not None and not mask.all()):
        return None
    spans, num = [], num_rows(given) or 0
    for row in range(num):
        held = positions[row % len(positions)]
        starts = np.flatnonzero(held == 0)
        if not len(starts):
            return None
        ends = [*starts[1:].tolist(), len(held)]
        counted = np.concatenate([np.arange(b - a) for a, b in zip(starts.tolist(), ends, strict=True)])
        if not np.array_equal(held, counted):
            return None
        spans += [RowSpan(row=row, start=a, stop=b) for a, b in zip(starts.tolist(), ends, strict=True)]
    return spans if len(spans) > num else None


def _mask(given: Given) -> Array | None:
    named = next((values for slot, values in given.items() if MASK in slot and values.ndim == 2), None)
    return _mask_by_place(given) if named is None else named


def _mask_by_place(given: Given) -> Array | None:
    """What hides padding, given without a name: zeros and ones, and where it is 0 all else that the model is
    given has one value, a filling. Types of tokens are 0 where tokens differ."""
    tables = [values for values in given.values() if values.ndim == 2 and values.dtype.kind in "iub"]
    for mask in tables:
        others = [values for values in tables if values is not mask and values.shape == mask.shape]
        hidden = mask == 0
        if not hidden.any() or not (hidden | (mask == 1)).all():
            continue
        filled = all((values[hidden] == values[hidden][0]).all() for values in others)
        if filled and any((values > 1).any() for values in others):
            return mask
    return None


def _cut(values: Array, span: RowSpan, width: int) -> Array:
    held: Array = values[span.row % len(values)]
    return held[span.start : span.stop] if values.ndim > 1 and values.shape[1] == width else held


def _is_default(slot: str, values: Array, cut: Sequence[Array], *, is_position: bool) -> bool:
    if values.ndim != 2 or values.dtype.kind not in "iub":
        return False
    if MASK in slot:
        return all(bool((part == 1).all()) for part in cut)
    return is_position and all(np.array_equal(part, np.arange(len(part))) for part in cut)
