"""Pairs whose two sides hold the same in another form: masks, and what is repeated along a dimension.

- A mask of booleans (or of zeros and ones) beside an additive one: True is 0, False is minus infinity; the
  reverse where a module takes it, or hands it to one, that hides where it is True (``HIDE_WHERE_TRUE``).
- Two additive masks, or scores with a mask in them: what hides (``numerics.hidden``) hides, whichever number
  it is.
- Shapes that are views of one another, dimensions put together or apart: the same numbers in the same order.
- What one run makes of the last tokens alone, keeping the others in a cache (``cached_calls``).
- Shapes that differ where one side has size 1, or lacks leading dimensions: that side repeated, as every
  operation repeats it; a single number only as what a function is given beside the same number repeated.

Where values were kept they are compared so, element by element; else the statistics of both forms.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trueup.comparing.cached_calls import in_last_tokens
from trueup.comparing.rows import COUNTS, Half, StepRows
from trueup.comparing.thresholds import SUM_OF_FLOAT64, WHOLE_COUNT, WHOLE_SHARE
from trueup.matching.codes import Codes
from trueup.matching.layouts import CommonForm
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.hidden import HIDE_WHERE_TRUE, lowest_visible
from trueup.types.arrays import Bools, Floats

FLAGS = CommonForm(label="a mask of booleans against another form")
HIDING_FLAGS = CommonForm(label="a mask of booleans, True where it hides, against another form")
_LEAST_EXTREME = lowest_visible("float16")


def in_common_form(rows: StepRows) -> StepRows:
    """The rows with statistics, dtypes and layouts of one form wherever the two sides have another."""
    return _repeated(_viewed(_of_masks(in_last_tokens(rows))))


# -- masks ------------------------------------------


def _of_masks(rows: StepRows) -> StepRows:
    sides = (rows.target, rows.reference)
    floating = [_kind_is(rows, half, "float") for half in sides]
    hides = [_hides(rows, half) & floating[at] for at, half in enumerate(sides)]
    flags = [_is_flags(half) & ~floating[at] for at, half in enumerate(sides)]
    boolean = [_kind_is(rows, half, "bool") for half in sides]
    forward = rows.paired & rows.phase_is("forward") & (rows.layout < 0) & _of_one_size(rows)
    additive = forward & ((hides[0] & (floating[1] | flags[1])) | (hides[1] & (floating[0] | flags[0])))
    of_flags = forward & (boolean[0] ^ boolean[1]) & (flags[0] | _is_flags(sides[0])) & _is_flags(sides[1])
    if not (additive | of_flags).any():
        return rows
    target, reference = (_counted(half, additive, floating[at]) for at, half in enumerate(sides))
    hiding = hide_where_true(rows)
    _reversed(target, additive & boolean[0] & hiding)
    _reversed(reference, additive & boolean[1] & hiding)
    _without_hidden(target, reference, of_flags & (floating[0] | floating[1]))
    _settle(target.statistics["num_neginf"], reference.statistics["num_neginf"], target.numel, additive)
    other = np.flatnonzero((additive | of_flags) & (target.dtype != reference.dtype))
    dtype = np.where(floating[0][other], target.dtype[other], reference.dtype[other])
    target.dtype[other] = reference.dtype[other] = dtype
    mixed = other[(floating[0] != floating[1])[other] | of_flags[other]]
    rows = replace(rows, target=target, reference=reference)
    rows = _with_layout(rows, mixed[~hiding[mixed]], FLAGS)
    return _with_layout(rows, mixed[hiding[mixed]], HIDING_FLAGS)


def _of_one_size(rows: StepRows) -> Bools:
    """Pairs whose shapes are one, or become one by repeating: masks of other sizes are made of one another
    in ways that are not seen."""
    shapes, fits = rows.match.words.shape, np.ones(len(rows), bool)
    t, r = rows.target, rows.reference
    for row in np.flatnonzero(rows.paired & (t.shape != r.shape) & (t.numel != r.numel)).tolist():
        try:
            np.broadcast_shapes(shapes[t.shape[row]], shapes[r.shape[row]])
        except ValueError:
            fits[row] = False
    return fits


def _kind_is(rows: StepRows, half: Half, kind: str) -> Bools:
    words = rows.match.words.dtype
    kinds = np.array([w in DTYPES and DTYPES[w].kind == kind for w in words] + [False])
    return np.asarray(kinds[half.dtype])


def _hides(rows: StepRows, half: Half) -> Bools:
    limits = np.array([lowest_visible(word) for word in rows.match.words.dtype] + [-np.inf])
    with np.errstate(invalid="ignore"):
        low = half.statistics["minimum"] <= limits[half.dtype]
    return np.asarray(low | (half.statistics["num_neginf"] > 0))


def _is_flags(half: Half) -> Bools:
    low, high = half.statistics["minimum"], half.statistics["maximum"]
    return np.asarray(((low == 0) | (low == 1)) & ((high == 0) | (high == 1)))


def _counted(half: Half, chosen: Bools, floating: Bools) -> Half:
    """Hidden elements of the chosen rows counted as minus infinity; of flags those that are 0."""
    half = replace(
        half,
        statistics={name: values.copy() for name, values in half.statistics.items()},
        dtype=half.dtype.copy(),
    )
    held, numel = half.statistics, half.numel
    with np.errstate(invalid="ignore", divide="ignore"):
        finite = numel - held["num_nan"] - held["num_posinf"] - held["num_neginf"]
        low = np.where(held["minimum"] <= _LEAST_EXTREME, held["minimum"], np.nan)
        lowest = _whole(held["mean"] * finite / low, finite)
        of_scores = held["num_neginf"] + np.where(np.isnan(low), 0.0, lowest)
        of_flags = _whole((1.0 - held["mean"]) * numel, numel)
    hidden = np.where(floating, of_scores, of_flags)
    largest = np.where(floating & (held["maximum"] > lowest_visible("")), held["maximum"], 0.0)
    for name, values in (("num_neginf", hidden), ("maximum", largest)):
        held[name] = np.where(chosen, values, held[name])
    held["l2_norm"] = np.where(chosen & ~floating, 0.0, held["l2_norm"])
    for name in ("minimum", "mean"):
        held[name] = np.where(chosen, np.nan, held[name])
    return half


def hide_where_true(rows: StepRows) -> Bools:
    """Rows of calls whose masks of booleans hide where they are True: of their type, or of that of a module
    they call."""
    words = np.array([word in HIDE_WHERE_TRUE for word in rows.match.words.type] + [False])
    found = np.zeros(len(rows), bool)
    for half in (rows.target, rows.reference):
        calls = words[half.side.type]
        for call in np.flatnonzero(calls).tolist():
            above = int(half.side.parent[call])
            while above >= 0 and not calls[above]:
                calls[above] = True
                above = int(half.side.parent[above])
        found |= (half.call >= 0) & calls[half.call]
    return found


def _reversed(half: Half, chosen: Bools) -> None:
    counts = half.statistics["num_neginf"]
    counts[chosen] = half.numel[chosen] - counts[chosen]


def _without_hidden(target: Half, reference: Half, chosen: Bools) -> None:
    """An additive mask of zeros beside booleans of one value: neither hides anything."""
    held = [half.statistics for half in (target, reference)]
    constant = [one["minimum"] == one["maximum"] for one in held]
    zero = (held[0]["maximum"] == 0) | (held[1]["maximum"] == 0)
    at = chosen & constant[0] & constant[1] & zero
    for one in held:
        for name in ("minimum", "maximum", "mean", "l2_norm"):
            one[name][at] = 0.0


def _whole(counts: Floats, numel: Floats) -> Floats:
    """Rounded; NaN where a count is none, such as of a mask added twice."""
    near = np.round(counts)
    whole = (np.abs(counts - near) <= WHOLE_COUNT + WHOLE_SHARE * numel) & (near >= 0) & (near <= numel)
    return np.where(whole, near, np.nan)


def _settle(target: Floats, reference: Floats, numel: Floats, chosen: Bools) -> None:
    """Counts of large tensors that differ by the rounding of their means alone are the same."""
    near = chosen & (np.abs(target - reference) <= WHOLE_SHARE * numel)
    target[near] = reference[near]


# -- viewed ------------------------------------------


def _viewed(rows: StepRows) -> StepRows:
    t, r = rows.target, rows.reference
    apart = rows.paired & rows.phase_is("forward", "loss", "backward") & (rows.layout < 0)
    apart &= (t.shape != r.shape) & (t.summary >= 0) & (r.summary >= 0) & (t.numel == r.numel)
    shapes = rows.match.words.shape
    for row in np.flatnonzero(apart).tolist():
        pair = shapes[t.shape[row]], shapes[r.shape[row]]
        if is_view(*pair):
            label = f"{list(pair[0])} against {list(pair[1])}, as one view"
            rows = _with_layout(rows, np.array([row]), CommonForm(label=label))
    return rows


def is_view(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether one shape puts neighbouring dimensions of the other together and changes no order.

    Example:
        >>> is_view((2, 24, 96), (48, 96)), is_view((8, 4), (4, 8))
        (True, False)
    """
    ends = [set(np.cumprod(one).tolist()) for one in (shape, other)]
    return ends[0] <= ends[1] or ends[1] <= ends[0]


# -- repeated ------------------------------------------


def _repeated(rows: StepRows) -> StepRows:
    t, r = rows.target, rows.reference
    apart = rows.paired & rows.phase_is("forward") & (rows.layout < 0) & (t.shape != r.shape)
    apart &= (t.summary >= 0) & (r.summary >= 0)
    shapes = rows.match.words.shape
    known: dict[tuple[int, int, bool], CommonForm | None] = {}
    constant = rows.kind_is("api") & rows.slot_starts("input") & _is_constant(t) & _is_constant(r)
    for row in np.flatnonzero(apart).tolist():
        key = int(t.shape[row]), int(r.shape[row]), bool(constant[row])
        if key not in known:
            known[key] = _repetition(shapes[key[0]], shapes[key[1]], constant=key[2])
        layout = known[key]
        if layout is not None:
            if t is rows.target:
                t, r = _copied(t), _copied(r)
            size = float(np.prod(layout.repeated))
            for half in (t, r):
                _repeat(half, row, size / half.numel[row])
            if key[2] and t.statistics["minimum"][row] == r.statistics["minimum"][row]:
                for name in ("l2_norm", "mean"):  # of one number: the same, however each was summed
                    t.statistics[name][row] = r.statistics[name][row]
            _settle_sums(t, r, row)
            rows = _with_layout(rows, np.array([row]), layout)
    return replace(rows, target=t, reference=r)


def _is_constant(half: Half) -> Bools:
    """Whether a tensor holds one number alone, or several times."""
    return np.asarray(half.statistics["minimum"] == half.statistics["maximum"])


def _repetition(target: tuple[int, ...], reference: tuple[int, ...], *, constant: bool) -> CommonForm | None:
    """How one shape becomes the other by repeating; None where it does not, or where one is a single number
    and the other is not ``constant``."""
    try:
        shape = np.broadcast_shapes(target, reference)
    except ValueError:
        return None
    if (not constant and 1 in (np.prod(target), np.prod(reference))) or 0 in shape:
        return None
    return CommonForm(label=f"{list(target)} against {list(reference)}, repeated", repeated=shape)


def _repeat(half: Half, row: int, times: float) -> None:
    half.numel[row] *= times
    half.statistics["l2_norm"][row] *= np.sqrt(times)
    for name in COUNTS:
        half.statistics[name][row] *= times


def _settle_sums(target: Half, reference: Half, row: int) -> None:
    """Sums over other numbers of elements that differ by the rounding of float64 alone are the same."""
    for name in ("l2_norm", "mean"):
        a, b = target.statistics[name][row], reference.statistics[name][row]
        if abs(a - b) <= SUM_OF_FLOAT64 * abs(b):
            target.statistics[name][row] = b


def _copied(half: Half) -> Half:
    statistics = {name: values.copy() for name, values in half.statistics.items()}
    return replace(half, statistics=statistics, numel=half.numel.copy())


def _with_layout(rows: StepRows, at: Codes, layout: CommonForm) -> StepRows:
    if not len(at):
        return rows
    layouts = rows.layouts if layout in rows.layouts else (*rows.layouts, layout)
    numbers = rows.layout.copy()
    numbers[at] = layouts.index(layout)
    return replace(rows, layout=numbers, layouts=layouts)
