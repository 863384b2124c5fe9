"""The same rows of a batch laid out otherwise: in another order, padded on another side or to another
length, or packed without padding.

A step sums over its rows, and padding that a mask hides is no part of them: neither changes the training.
Where the inputs of the model were kept, it is known which row, and which of its tokens, stand where; what was
made of them is then compared row by row, without the padding. A tensor whose rows are not found again is
compared by its statistics, which know of no order; with other padding it is left without a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from trueup.comparing.metrics import NONE, SKETCH, Metrics, measure
from trueup.comparing.pairing import StepPair
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.thresholds import IN_PLACE
from trueup.comparing.values import are_stored
from trueup.matching.codes import Codes
from trueup.matching.layouts import UNORDERED, CommonForm, Shape, Steps
from trueup.numerics.dtypes import DTYPES
from trueup.store import TraceSource, step_view
from trueup.store.own_sums import sums_elsewhere
from trueup.store.same_rows import Given, RowSpan, as_stream, num_rows, places, row_keys, spans_of, width_of
from trueup.types.arrays import Array, Bools
from trueup.weights.plan import Permute, Reshape, Slice

PADDED = "padded otherwise, where only stored values would tell"
HIDDEN = "without the tokens that the mask hides"
BOUNDS = "boundaries of sequences that stand in another order"
DEALT = "of other rows: the calls of this step share out its rows otherwise"
CHOSEN = "of other tokens: a call inside is given those that were chosen, and these differ"
_UNSEEN = (PADDED, DEALT, HIDDEN, BOUNDS, CHOSEN)
"""labels of layouts whose statistics say nothing"""
Place = tuple[TraceSource, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """How one side lays out the rows, in the order of the reference's."""

    num: int
    """rows of the batch; of packed sequences each holds several"""
    width: int
    """tokens of a row with its padding"""
    spans: tuple[RowSpan, ...]

    @property
    def is_padded(self) -> bool:
        """Whether some row holds padding."""
        return sum(span.stop - span.start for span in self.spans) != self.num * self.width

    @property
    def is_cut(self) -> bool:
        """Whether some row is more than one sequence and nothing else."""
        return any((span.start, span.stop) != (0, self.width) for span in self.spans)


def in_row_order(
    rows: StepRows, metrics: Metrics, target: TraceSource, reference: TraceSource, pair: StepPair
) -> StepRows:
    """The rows with a layout wherever the batch is the same laid out otherwise; the very same ``rows`` where
    it is not."""
    given = _given_rows(rows)
    if not (given & rows.paired & ~metrics.bits_equal).any():
        return rows
    places = (target, pair.step, pair.rank), (reference, pair.reference_step, pair.reference_rank)
    elsewhere = _elsewhere(rows, metrics)
    layouts, numbers = list(rows.layouts), rows.layout.copy()
    for here in _together(rows, given):
        sides = [
            _given(rows, half, given & here, place)
            for half, place in zip((rows.target, rows.reference), places, strict=True)
        ]
        laid = _laid(*sides)
        if laid is None or sides[0] is None or sides[1] is None:
            continue
        known: dict[tuple[Shape, Shape], int] = {}
        for row in np.flatnonzero(here & elsewhere).tolist():
            shapes = _shapes(rows, row)
            if shapes not in known:
                known[shapes] = len(layouts)
                layouts.append(_layout(*shapes, *laid))
            numbers[row] = known[shapes]
        held = sides[0].keys() | sides[1].keys()
        implied = np.array([word not in held for word in rows.match.words.slot] + [False])[rows.slot]
        bounds = given & here & elsewhere & implied & (rows.target.numel > 1)
        if bounds.any():
            numbers[bounds] = len(layouts)
            layouts.append(CommonForm(label=BOUNDS, known=False, whole=False))
    dealt = _dealt_otherwise(rows, places)
    if dealt.any():
        numbers[dealt] = len(layouts)
        layouts.append(CommonForm(label=DEALT, known=False, whole=False))
    changed = len(layouts) > len(rows.layouts)
    return replace(rows, layout=numbers, layouts=tuple(layouts)) if changed else rows


def without_hidden(
    rows: StepRows, metrics: Metrics, target: TraceSource, reference: TraceSource, pair: StepPair
) -> StepRows:
    """The rows with a layout that leaves out padding wherever both sides have the same rows in the same
    places and their values were kept; the very same ``rows`` where nothing is left out.

    What a query makes that may see nothing is another thing in every kernel, and nobody looks at it. Where
    somebody does, as where padding has labels, what comes of it shows in what is compared whole; and an input
    that is negative there on one side alone is itself compared whole: no token has a negative id, only labels
    that a loss leaves out.
    """
    given = _given_rows(rows)
    chosen = _elsewhere(rows, metrics) & (rows.layout < 0)
    chosen &= are_stored(rows.target) & are_stored(rows.reference)
    chosen &= ~_not_numbers_that_spread(rows)
    if not chosen.any():
        return rows
    places = (target, pair.step, pair.rank), (reference, pair.reference_step, pair.reference_rank)
    layouts, numbers = list(rows.layouts), rows.layout.copy()
    for here in _together(rows, given):
        if not (here & chosen).any():
            continue
        halves = zip((rows.target, rows.reference), places, strict=True)
        both = [_given(rows, half, given & here, place) for half, place in halves]
        laid = None if None in both else _shown_alike(*both)
        if laid is None:
            continue
        known: dict[tuple[Shape, Shape], int] = {}
        counted = _counted_on_one_side(both[0], both[1])
        labels = rows.phase_is("loss") & rows.slot_starts("labels")
        for row in np.flatnonzero(here & chosen).tolist():
            if given[row] and rows.match.words.slot[rows.slot[row]] in counted:
                continue
            if labels[row] and _counts_on_one_side(rows, row, places):
                continue
            shapes = _shapes(rows, row)
            layout = of_shown(shapes[0], laid) if shapes[0] == shapes[1] else None
            if layout is not None:
                if shapes not in known:
                    known[shapes] = len(layouts)
                    layouts.append(layout)
                numbers[row] = known[shapes]
    changed = len(layouts) > len(rows.layouts)
    return replace(rows, layout=numbers, layouts=tuple(layouts)) if changed else rows


# In one piece: one search from what is chosen to the rows inside.
def without_chosen_rows(rows: StepRows, metrics: Metrics) -> StepRows:
    """The rows with a layout that tells nothing wherever calls inside of one hold the tokens that an input of
    it chooses (experts by the router's indices), and these differ: the k-th row of an expert is another
    token's then. What comes of all tokens together is compared; the very same ``rows`` where nothing is so.

    Indices that differ at tokens which a mask hides, or at a near tie, are no fault; others are one by
    themselves. A mask of zeros and ones chooses no tokens, though it is as whole.
    """
    words, side = rows.match.words, rows.match.target
    whole = np.array([word.startswith(("int", "uint")) for word in words.dtype] + [False])
    chosen = rows.paired & rows.phase_is("forward") & rows.slot_starts("input") & rows.kind_is("module")
    given_too = chosen & ~whole[rows.target.dtype]  # what the tokens are chosen of
    chosen &= (
        whole[rows.target.dtype] & whole[rows.reference.dtype] & metrics.known_bits & ~metrics.bits_equal
    )
    chosen &= (
        (rows.of_call("parent") >= 0) & (rows.target.numel > 1) & (rows.target.shape == rows.reference.shape)
    )
    num_tokens = {}
    masks = _zeros_and_ones(rows)
    for row in np.flatnonzero(chosen).tolist():
        shape = words.shape[rows.target.shape[row]]
        if len(shape) > 1 and not (masks[row] and shape[-1] > 2):
            num_tokens[int(rows.target.call[row])] = {prod(shape[:at]) for at in range(1, len(shape))}
    of_rows = {
        int(rows.target.call[row])
        for row in np.flatnonzero(given_too & np.isin(rows.target.call, list(num_tokens))).tolist()
        if (shape := words.shape[rows.target.shape[row]])
        and len(shape) > 1
        and shape[0] in num_tokens[int(rows.target.call[row])]
    }
    num_tokens = {call: num for call, num in num_tokens.items() if call in of_rows}
    if not num_tokens:
        return rows
    around = np.full(len(side.parent), -1)
    for call, parent in enumerate(side.parent.tolist()):
        if parent >= 0:
            around[call] = parent if parent in num_tokens else around[parent]
    inside = rows.paired & rows.phase_is("forward", "backward") & ~metrics.bits_equal
    inside &= (rows.target.call >= 0) & (rows.target.summary >= 0) & (rows.reference.summary >= 0)
    numbers = rows.layout.copy()
    for row in np.flatnonzero(inside).tolist():
        shape, call = words.shape[rows.target.shape[row]], int(around[rows.target.call[row]])
        if call >= 0 and len(shape) > 1 and shape[0] not in num_tokens[call]:
            numbers[row] = len(rows.layouts)
    if np.array_equal(numbers, rows.layout):
        return rows
    layout = CommonForm(label=CHOSEN, known=False, whole=False)
    return replace(rows, layout=numbers, layouts=(*rows.layouts, layout))


def _zeros_and_ones(rows: StepRows) -> Bools:
    """Whole numbers that are 0 or 1 on both sides: a mask, where a row has more of them than the two experts
    that such numbers could be."""
    with np.errstate(invalid="ignore"):
        each = [
            (half.statistics["minimum"] >= 0) & (half.statistics["maximum"] <= 1)
            for half in (rows.target, rows.reference)
        ]
    return np.asarray(each[0] & each[1])


def _not_numbers_that_spread(rows: StepRows) -> Bools:
    """Rows with NaN on one side alone, where NaN of that side comes out in the loss or in a weight's
    gradient, too. A mask hides no NaN: 0 times NaN is NaN, as is every token that attends to it."""
    counts = [half.statistics["num_nan"] for half in (rows.target, rows.reference)]
    found = np.zeros(len(rows), bool)
    for own, other in (counts, counts[::-1]):
        of_one = rows.paired & (own > 0) & (other == 0)
        if (of_one & rows.phase_is("loss", "param_grad")).any():
            found |= of_one
    return found


def _shown_alike(target: Given | None, reference: Given | None) -> Laid | None:
    """What the masks of both sides show, where it is the same in the same places."""
    if target is None or reference is None:
        return None
    own, other = shown(target), shown(reference)
    if own is None or own != other:
        return None
    keys = [row_keys(given, own.spans) for given in (target, reference)]
    return own if keys[0] == keys[1] else None


def _counted_on_one_side(target: Given | None, reference: Given | None) -> set[str]:
    """Slots of integers that are negative on one side where they are not on the other."""
    if target is None or reference is None:
        return set()
    pairs = {slot: (target[slot], reference[slot]) for slot in target.keys() & reference.keys()}
    return {
        slot
        for slot, (own, other) in pairs.items()
        if own.dtype.kind == other.dtype.kind == "i"
        and own.shape == other.shape
        and ((own < 0) != (other < 0)).any()
    }


def _counts_on_one_side(rows: StepRows, row: int, places: tuple[Place, Place]) -> bool:
    """Whether labels that the program gives its loss itself are negative on one side alone."""
    one = np.zeros(len(rows), bool)
    one[row] = True
    own, other = (
        _stored(rows, half, one, place)
        for half, place in zip((rows.target, rows.reference), places, strict=True)
    )
    return bool(own is not None and other is not None and _counted_on_one_side(own, other))


def shown(given: Given) -> Laid | None:
    """The tokens of each row that its mask shows; None where it shows all, or packs sequences."""
    num, width = num_rows(given) or 0, width_of(given)
    laid = Laid(num=num, width=width, spans=tuple(spans_of(given, without_padding=True)))
    rows = [span.row for span in laid.spans]
    return laid if laid.is_padded and rows == list(range(num)) else None


def of_shown(shape: Shape, laid: Laid) -> CommonForm | None:
    """What leaves the tokens that are shown of a tensor; None where it is not known which these are."""
    parts = _parts(shape, laid, is_cut=True) if shape else None
    return None if parts is None else CommonForm(label=HIDDEN, target=parts, reference=parts)


def measure_rows(rows: StepRows) -> tuple[StepRows, Metrics]:
    """Such rows measured. Statistics of tensors that are padded otherwise hold the padding too, and say
    nothing: their norms alone are kept, as a scale."""
    padded = np.array([layout.label in _UNSEEN for layout in rows.layouts] + [False])[rows.layout]
    halves = []
    for half in (rows.target, rows.reference):
        held = half.statistics
        masked = {name: np.where(padded, np.nan, held[name]) for name in held if name != "l2_norm"}
        halves.append(replace(half, statistics={**held, **masked}))
    rows = replace(rows, target=halves[0], reference=halves[1])
    metrics = measure(rows)
    metrics.difference[padded] = np.nan
    metrics.evidence[padded] = NONE
    return rows, metrics


def _shapes(rows: StepRows, row: int) -> tuple[Shape, Shape]:
    shapes = rows.match.words.shape
    return shapes[rows.target.shape[row]], shapes[rows.reference.shape[row]]


def _elsewhere(rows: StepRows, metrics: Metrics) -> Bools:
    """Pairs that are not what they are in place, weights apart."""
    t, r = rows.target, rows.reference
    repeated = np.array([bool(layout.repeated) for layout in rows.layouts] + [True])
    chosen = rows.paired & rows.phase_is("forward", "backward", "loss") & repeated[rows.layout]
    chosen &= (t.summary >= 0) & (r.summary >= 0) & (t.numel > 1) & (r.numel > 1)
    weights = [half.summary[rows.phase_is("param") & (half.summary >= 0)] for half in (t, r)]
    chosen &= ~np.isin(t.summary, weights[0]) & ~np.isin(r.summary, weights[1])
    with np.errstate(invalid="ignore"):
        in_place = (metrics.rel_l2 <= IN_PLACE) & (metrics.evidence == SKETCH)  # statistics know of no place
    return np.asarray(chosen & ~metrics.bits_equal & ~in_place)


# -- which row stands where ------------------------------------------


def _given(rows: StepRows, half: Half, given: Bools, place: Place) -> Given | None:
    """Every input of the model by slot; None where some were not kept, or have other numbers of rows."""
    found = _stored(rows, half, given, place)
    if found is None:
        return None
    stream = as_stream(found)
    if stream is not None:
        return stream
    return found if found and num_rows(found) is not None else None


def _stored(rows: StepRows, half: Half, given: Bools, place: Place) -> dict[str, Array] | None:
    """The values of these rows by slot, but for single numbers; None where some were not kept."""
    source, step, rank = place
    found: dict[str, Array] = {}
    for row in np.flatnonzero(given & (half.call >= 0)).tolist():
        kept = half.tables.summary_row(int(half.summary[row])) if half.summary[row] >= 0 else None
        stored = None if kept is None else source.tensor(step, rank, kept)
        slot = rows.match.words.slot[rows.slot[row]]
        if stored is None or stored.dtype not in DTYPES or slot in found:
            return None
        if not stored.shape:  # a number is of no row
            continue
        found[slot] = stored.data.view(np.dtype(DTYPES[stored.dtype].storage)).reshape(stored.shape)
    return found


def _laid(target: Given | None, reference: Given | None) -> tuple[Laid, Laid] | None:
    """None where the rows are not the same, or stand where they stood."""
    if target is None or reference is None:
        return None
    widths = width_of(target), width_of(reference)
    numbers = num_rows(target) or 0, num_rows(reference) or 0
    for mask in (False, True):
        spans = [spans_of(given, without_padding=mask) for given in (target, reference)]
        keys = [row_keys(given, of) for given, of in zip((target, reference), spans, strict=True)]
        at = places(*keys)
        found = [spans[0][place] for place in at if place is not None]
        if len(found) == len(spans[0]) == len(spans[1]):
            if found == spans[1] and widths[0] == widths[1]:
                return None
            return (
                Laid(num=numbers[0], width=widths[0], spans=tuple(found)),
                Laid(num=numbers[1], width=widths[1], spans=tuple(spans[1])),
            )
    return None


def _together(rows: StepRows, given: Bools) -> Iterator[Bools]:
    """Rows of what is given the same rows of the batch: a microbatch; each call that only evaluates."""
    train = rows.mode_is("train")
    for microbatch in np.unique(rows.microbatch[given & train]).tolist():
        yield (rows.microbatch == microbatch) & ~rows.mode_is("eval")
    outermost = _root_calls(rows.target.side.parent)[rows.target.call]
    for call in np.unique(rows.target.call[given & rows.paired & rows.mode_is("eval")]).tolist():
        yield (rows.target.call >= 0) & (outermost == call) & rows.paired | _unpaired_inputs(
            rows, given, call
        )


def _unpaired_inputs(rows: StepRows, given: Bools, call: int) -> Bools:
    """Inputs of the counterpart of a target's call that the target's has not."""
    other = int(rows.match.calls.reference_of[call])
    found = (rows.target.call == call) | (rows.reference.call == other)
    return np.asarray(given & found & ~rows.paired)


def layout_of_rows(target: Given, reference: Given, shapes: tuple[Shape, Shape]) -> CommonForm | None:
    """What brings two tensors of a microbatch to the same rows, of what the models were given there; None
    where the rows stand where they stood, or are not the same."""
    laid = _laid(target, reference)
    return None if laid is None else _layout(*shapes, *laid)


# -- calls that are given other rows ------------------------------------------


def _given_rows(rows: StepRows) -> Bools:
    """Inputs of the model, also those that one side alone is given (a mask)."""
    outermost = rows.kind_is("module") & (rows.of_call("parent") < 0)
    return np.asarray(rows.phase_is("forward") & rows.slot_starts("input") & outermost)


def _dealt_otherwise(rows: StepRows, places: tuple[Place, Place]) -> Bools:
    """Pairs inside of calls whose counterparts are given other rows, where the calls of the step are together
    given the same: what either makes of them has another counterpart, or none.

    A trainer of several processes, or of rows in another order, shares out what it only evaluates as it
    shares out what it trains on.
    """
    found = np.zeros(len(rows), bool)
    halves = rows.target, rows.reference
    roots = [_root_calls(half.side.parent) for half in halves]
    inputs = _given_rows(rows)
    for mode in ("train", "eval"):
        at = inputs & rows.mode_is(mode)
        held = [_rows_by_call(rows, half, at, place) for half, place in zip(halves, places, strict=True)]
        whole = [frozenset().union(*calls.values()) for calls in held]
        if not whole[0] or whole[0] != whole[1]:
            continue
        counterpart = rows.match.calls.reference_of
        other = [call for call, own in held[0].items() if held[1].get(int(counterpart[call]), own) != own]
        inside = (rows.target.call >= 0) & np.isin(roots[0][rows.target.call], other)
        if mode == "train":  # also the loss and the gradients that its microbatch makes
            numbers = np.unique(rows.microbatch[at & np.isin(rows.target.call, other)])
            inside |= np.isin(rows.microbatch, numbers) & rows.phase_is("loss", "param_grad")
            if not all(sums_elsewhere(step_view(*place)) for place in places):  # else of one microbatch too
                inside &= ~rows.slot_is("accumulated") & ~rows.slot_is("clipped")
        found |= rows.paired & inside & ~rows.phase_is("param")
    return found


def _root_calls(parents: Codes) -> Codes:
    """The outermost call around each; a parent comes before what it calls."""
    roots = np.arange(len(parents))
    for call, parent in enumerate(parents.tolist()):
        if parent >= 0:
            roots[call] = roots[parent]
    return roots


def _rows_by_call(rows: StepRows, half: Half, at: Bools, place: Place) -> dict[int, frozenset[bytes]]:
    """Outermost call -> its rows, without their padding; empty where those of some call are not known."""
    found = {}
    for call in np.unique(half.call[at & (half.call >= 0)]).tolist():
        given = _given(rows, half, at & (half.call == call), place)
        if given is None:
            return {}
        found[call] = frozenset(row_keys(given, spans_of(given, without_padding=True)))
    return found


# -- what brings a tensor to the reference's rows ------------------------------------------


def _layout(target: Shape, reference: Shape, laid: Laid, other: Laid) -> CommonForm:
    is_padded, is_cut = laid.is_padded or other.is_padded, laid.is_cut or other.is_cut
    parts = _parts(target, laid, is_cut), _parts(reference, other, is_cut)
    if parts[0] is None or parts[1] is None:
        few = is_cut and prod(reference) < sum(span.stop - span.start for span in other.spans)
        unseen = is_padded or few  # with fewer numbers than tokens it is of some of them
        return CommonForm(label=PADDED if unseen else UNORDERED, known=False, whole=not unseen)
    label = PADDED if is_padded else "rows in another order"
    return CommonForm(label=label, target=parts[0], reference=parts[1])


def _parts(shape: Shape, laid: Laid, is_cut: bool) -> tuple[Steps, ...] | None:
    """Each row of a tensor without its padding; None where its rows are not known."""
    num = laid.num
    flat = _of_tokens(shape, laid)
    if flat is not None:
        return flat
    turned: Steps = ()
    if shape[0] != num and len(shape) > 1 and shape[1] == num:
        turned = (Permute(dims=(1, 0, *range(2, len(shape)))),)
        shape = (shape[1], shape[0], *shape[2:])
        flat = _of_tokens(shape, laid, turned)
        if flat is not None:
            return flat
    shared = shape[0] == 1 and num > 1 and laid.width in shape[1:]  # positions, angles: of all rows
    tokens = _token_dims(shape, laid.width, is_cut)
    if (shape[0] != num and not shared) or shape == (num, num) or tokens is None:
        return None
    found = []
    for span in laid.spans:
        row = 0 if shared else span.row
        steps: Steps = (*turned, Slice(dim=0, start=row, stop=row + 1))
        if is_cut:
            held = [span.stop - span.start if dim in tokens else size for dim, size in enumerate(shape)]
            cuts = (Slice(dim=dim, start=span.start, stop=span.stop) for dim in tokens)
            steps = (*steps, *cuts, Reshape(shape=(prod(held[1:]),)))
        found.append(steps)
    return tuple(found)


def _of_tokens(shape: Shape, laid: Laid, turned: Steps = ()) -> tuple[Steps, ...] | None:
    """Where the first dim counts the tokens of all rows, or those that have a next one; else None."""
    num = laid.num
    for width in (laid.width, laid.width - 1):
        if shape[0] == num * width > num:
            begin, short = [span.row * width for span in laid.spans], laid.width - width
            return tuple(
                (*turned, Slice(dim=0, start=at + span.start, stop=at + span.stop - short))
                for at, span in zip(begin, laid.spans, strict=True)
            )
    return None


def _token_dims(shape: Shape, width: int, is_cut: bool) -> list[int] | None:
    """Dims that count the tokens of a row: both of attention scores; None where it is not known which."""
    tokens = [dim for dim in range(1, len(shape)) if shape[dim] == width]
    if len(tokens) > 1 and (len(shape), tokens) != (4, [2, 3]):
        return None if len(shape) != 3 and is_cut else tokens[:1]
    return tokens
