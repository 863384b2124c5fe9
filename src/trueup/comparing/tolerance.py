"""How large a difference rounding alone explains at each site: from dtype, depth and operands, never one
constant.

A record may differ from its counterpart by

    ||t - r|| <= factor * k_phase * sqrt((u^2 + v^2 length / 256) (1 + depth) + w^2 rows / 64) * scale  +
    inherited

- u: unit roundoff of the coarsest floating dtype both traces have used at or before the site (bfloat16 2^-8,
  float32 2^-24).
- depth: leaf module calls before it in its microbatch, forward and backward counted on, whose tensors are not
  bit for bit equal: rounding errors add up like a random walk, but only from where the runs begin to round
  differently. The next microbatch begins with the same weights; a sum of several has the noise of one.
  What one run computes out of sight (a compiled model) counts with all that the other run shows in it, its
  calls and its dtypes.
  A record that is computed from bit-equal values alone is held to what it can have been rounded to since
  (computed_in.py).
- length: longest dot product the call can hold: the larger of the last two dimensions of its tensors, summed
  in an accumulator of roundoff v = min(u, 2^-24).
- rows: for a parameter's gradient, the rows it is summed over (then without length); w = v for a matrix, u
  for a vector, whose kernels often keep partial sums in the tensor's own dtype.
- Norms over samples add what is not spread, and gradients that are equal, one after another: they are off by
  more (``_channel_sums``, ``_sums_of_equals``).
- scale: ||r||, or what the operands would give without cancellation where that is more (``operand_scale``).
- products of a GPU: TF32 and reduced-precision reductions that both runs allow (device_products.py).
- inherited: what earlier optimizer steps left in the parameters (history.py).

Every term carries u, or a difference measured and accepted before, so a wrong factor of 1 % in a small
float32 output is never hidden by its large operands.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from trueup.comparing.common_form import FLAGS
from trueup.comparing.computed_in import computed_in
from trueup.comparing.device_products import DeviceProducts
from trueup.comparing.gradient_work import after_backward
from trueup.comparing.inflow import contents
from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.sites import charged_column
from trueup.comparing.thresholds import (
    ACROSS,
    API_CALLS_PER_LEAF,
    CHANNEL_PER_ROUNDING,
    DTYPES_APART,
    FACTORS,
    FLOAT32,
    LENGTH_PER_ROUNDING,
    MULTIPLE_APART,
    ROWS_PER_ROUNDING,
)
from trueup.comparing.unseen import Unseen, unseen
from trueup.matching.codes import Codes
from trueup.numerics.dtypes import unit_roundoffs
from trueup.types.arrays import Bools, Floats
from trueup.types.trace import Manifest

PRODUCTS = ("matmul", "bmm", "baddbmm", "rmatmul")
"""Functions that multiply two activations."""
SUMS = ("sum", "nansum")
"""Functions that add up elements of what they are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Columns beside Rows: the largest ||t - r|| that rounding explains, and the parts it came from."""

    absolute: Floats
    relative: Floats
    """k * u * sqrt(1 + depth)"""
    scale: Floats
    depth: Floats
    unvaried: Floats
    """relative rounding, without k, of sums whose order reruns of one program do not vary: channels of norms
    over samples, gradients of convolutions"""


_NORMS_OVER_SAMPLES = ("BatchNorm", "GroupNorm", "InstanceNorm")
"""in names of classes"""
_NORM_FUNCTIONS = ("batch_norm", "group_norm", "instance_norm")


def factor_of(rows: StepRows, factor: float, *sides: Manifest) -> float:
    """The factor of all tolerances of a step, where ``factor`` was asked for: ACROSS of two implementations,
    which other names of modules tell, and other frameworks, whose kernels make another exp and log."""
    return factor * (ACROSS if rows.match.bridge is not None or are_of_two_frameworks(*sides) else 1.0)


def are_of_two_frameworks(*sides: Manifest) -> bool:
    """Whether both say what they ran on, and not the same."""
    return len({side.get("framework") for side in sides} - {None}) > 1


class Precision(Enum):
    """Whose roundoff counts where the two runs use other dtypes."""

    SHARED = "shared"
    """the coarsest both have used; where a good part of a run differs in dtype, the coarser one"""
    FINER = "finer"
    COARSER = "coarser"
    """also of what one run alone has"""


def rounding_bound(
    rows: StepRows,
    metrics: Metrics,
    factor: float,
    precision: Precision = Precision.SHARED,
    *,
    least: float = 0.0,
    products: DeviceProducts | None = None,
    single_calls: bool = False,
) -> Bound:
    """The bound without what is inherited. ``least``: a unit roundoff that all is computed with at least;
    ``products``: what a GPU rounds beyond dtypes; ``single_calls``: every call is given the reference's
    tensors."""
    inside = unseen(rows)
    u, own = _running_roundoff(rows, precision, inside)
    known = computed_in(rows, metrics)
    if precision is Precision.SHARED:
        u = np.minimum(u, known.roundoff)  # NaN stays: not floating
    u = np.where(np.isnan(u), u, np.maximum(u, least))
    if products is not None:
        u = np.where(np.isnan(u), u, np.maximum(u, products.roundoff))
    depth = _depth(rows, metrics, inside)
    other = FACTORS["backward"]
    k = np.array([FACTORS.get(word, other) for word in rows.match.words.phase] + [other])[rows.phase]
    k[after_backward(rows)] = FACTORS["param_grad"]
    settled = rows.phase_is("param", "optimizer")
    wide = np.minimum(u, FLOAT32)
    if products is not None:
        wide = np.where(products.partial, u, wide)
    summed_rows, vector = _summed_rows(rows)
    length = np.where(settled | (summed_rows > 0), 0.0, _dot_lengths(rows) / LENGTH_PER_ROUNDING)
    unvaried = _channel_sums(rows, metrics, wide, single_calls=single_calls)
    walk = (u**2 + wide**2 * length) * (1.0 + depth) + np.where(
        vector, u, wide
    ) ** 2 * summed_rows / ROWS_PER_ROUNDING
    walk = walk + wide**2 * known.numbers / ROWS_PER_ROUNDING
    walk = walk + unvaried**2 + _sums_of_equals(rows, metrics, wide, summed_rows) ** 2
    relative = factor * k * _implementations(rows) * np.sqrt(np.where(settled, own**2, walk))
    scale = operand_scale(rows, metrics)
    unvaried = np.where(settled, 0.0, np.maximum(unvaried, _convolved_sums(rows, wide, summed_rows)))
    return Bound(absolute=relative * scale, relative=relative, scale=scale, depth=depth, unvaried=unvaried)


def _implementations(rows: StepRows) -> Floats:
    """ACROSS where the same program computes a module in another way on either side, else 1.

    It does where a call or an output of the module is there on one side alone, or a mask is given in another
    form (attention written out against a fused kernel). Then all that this module's own code makes is made by
    two implementations. In backward twice so: a softmax takes the mean from what is sent back, and what keys
    and values share cancels, otherwise in each (Qwen2, keys with biases, float32: 1.35 times ACROSS).
    """
    other = np.ones(len(rows))
    if rows.match.bridge is not None:
        return other
    masks = [at for at, layout in enumerate(rows.layouts) if layout is FLAGS]
    differ = rows.phase_is("forward") & (~rows.paired | np.isin(rows.layout, masks))
    if differ.any():
        owners, _ = charged_column(rows)
        made = np.isin(owners, np.unique(owners[differ & (owners >= 0)]))
        other[made] = np.where(rows.phase_is("backward")[made], ACROSS**2, ACROSS)
    return other


def _running_roundoff(
    rows: StepRows, precision: Precision = Precision.SHARED, inside: Unseen | None = None
) -> tuple[Floats, Floats]:
    """Coarsest unit roundoff so far, and each row's own; NaN where a row is not floating.

    Where many of the leaf tensors differ in dtype, the two runs were meant to compute in different precision,
    and the coarser one is shared; an isolated difference of dtype does not widen anything after it. Of a
    record that one side has without a summary (its parts were not put together) the other's dtype is taken
    for both.
    """
    table = unit_roundoffs(rows.match.words.dtype)
    everywhere = [np.nan_to_num(table[half.dtype]) for half in (rows.target, rows.reference)]
    target, reference = (np.where(rows.paired, side, 0.0) for side in everywhere)
    silent = [rows.paired & (half.summary < 0) for half in (rows.target, rows.reference)]
    target, reference = np.where(silent[0], reference, target), np.where(silent[1], target, reference)
    within = 0.0 if inside is None else inside.roundoff
    floating = (target > 0) & (reference > 0)
    activations = floating & rows.phase_is("forward") & rows.slot_starts("output")
    apart = (activations & (target != reference)).sum() > DTYPES_APART * max(activations.sum(), 1)
    if precision is Precision.COARSER:
        running = np.maximum(*map(_so_far, everywhere))
    elif precision is Precision.SHARED and apart:
        running = np.maximum(_so_far(target), _so_far(reference))
    else:
        running = np.minimum(*(_so_far(np.maximum(side, within)) for side in (target, reference)))
    own = np.minimum(target, reference) if precision is Precision.FINER else np.maximum(target, reference)
    own = np.where(floating, own, np.maximum(target, reference))
    nothing = own == 0
    return np.where(nothing, np.nan, np.maximum(running, own)), np.where(nothing, np.nan, own)


def _so_far(values: Floats) -> Floats:
    return np.maximum.accumulate(values) if len(values) else values


def _depth(rows: StepRows, metrics: Metrics, inside: Unseen | None) -> Floats:
    """Leaf calls before each row in its microbatch, per execution, whose outputs (forward) or input gradients
    (backward) are not bit-equal; of what is made of all microbatches, those of the deepest."""
    leaf, weight = _leaves(rows)
    forward = rows.phase_is("forward") & rows.slot_starts("output")
    backward = rows.phase_is("backward") & rows.slot_starts("input")
    counted = leaf & (forward | backward) & rows.paired & ~metrics.bits_equal & (metrics.difference != 0)
    at = np.flatnonzero(counted)
    _, first = np.unique(np.stack([rows.target.call[at], rows.phase[at]]), axis=1, return_index=True)
    steps = np.zeros(len(rows))
    unseen_leaves = 0.0 if inside is None else inside.leaves
    steps[at[first]] = weight if inside is None else np.maximum(weight, inside.leaves[at[first]])
    depth = np.zeros(len(rows))
    for microbatch in np.unique(rows.microbatch).tolist():  # each begins anew, with the weights of the step
        own = rows.microbatch == microbatch
        depth[own] = np.cumsum(steps[own]) - steps[own]
    whole = after_backward(rows) | rows.phase_is("collective")  # made of all of them
    whole |= rows.phase_is("param_grad") & ~rows.slot_starts("local")
    depth[whole] = np.maximum.accumulate(depth)[whole]
    return depth + unseen_leaves


def _leaves(rows: StepRows) -> tuple[Bools, float]:
    side = rows.match.target
    modules = rows.kind_is("module") & (rows.target.call >= 0)
    if not modules.any():
        return rows.kind_is("api") & (rows.target.call >= 0), 1.0 / API_CALLS_PER_LEAF
    kind = rows.match.words.kind.index("module")
    has_module_below = np.zeros(side.num_calls, bool)
    below = (side.kind == kind) & (side.parent >= 0)
    has_module_below[side.parent[below]] = True
    return modules & ~has_module_below[rows.target.call], 1.0


def operand_scale(rows: StepRows, metrics: Metrics) -> Floats:
    """||r||, or more where a near-cancelling result says nothing of the size of what went into it.

    A difference such as x - mean(x), a gradient that is exactly 0 in exact arithmetic (a key bias under
    softmax), carries the rounding of its operands. Their size: forward outputs, rms of the largest floating
    input of the same call times sqrt(numel), for a product of two activations rms_a rms_b length; input
    gradients, the same from the output gradients; of a sum of n elements for each of m, whose terms may
    cancel, sqrt(n) rms for each, which is ||x|| for all m; a weight's gradient g^T x summed over rows,
    ||g|| ||x|| / sqrt(rows); a bias's or norm weight's, ||g||; of the gradient of what several calls are
    given, the largest
    that one of them sends back. A loss of one microbatch, and what its backward gives at a
    place, the largest of the step's: they are sums of terms of one size, add up, and where one is far smaller
    (of a policy, whose advantages sum to 0) its terms cancel.
    """
    reference = rows.reference
    norm = np.nan_to_num(metrics.norm)
    with np.errstate(divide="ignore", invalid="ignore"):
        rms = np.nan_to_num(norm / np.sqrt(reference.numel))
    size = np.sqrt(np.nan_to_num(reference.numel))
    floating = ~np.isnan(unit_roundoffs(rows.match.words.dtype)[reference.dtype])
    forward, backward = rows.phase_is("forward", "collective"), rows.phase_is("backward")
    inputs, outputs = rows.slot_starts("input"), rows.slot_starts("output")
    scale = norm.copy()
    for into, out in ((forward & inputs, forward & outputs), (backward & outputs, backward & inputs)):
        operand = _largest_by_call(reference, into & floating, rms)
        scale = np.where(out, np.maximum(scale, operand[reference.call] * size), scale)
    scale = np.maximum(scale, _of_sums(rows, norm, floating))
    scale = np.maximum(scale, _of_microbatches(rows, norm))
    scale = np.maximum(scale, _product_scale(rows, rms, floating) * size)
    scale = np.maximum(scale, _summed_gradients(rows, norm, floating))
    return np.asarray(np.maximum(scale, _gradient_scale(rows, norm, floating)))


def _of_sums(rows: StepRows, norm: Floats, floating: Bools) -> Floats:
    """For what a function adds up, ||x|| of what it is given; else 0. Each of n terms of size s carries a
    rounding of s u of its own, and their sum sqrt(n) s u, though it be near 0."""
    named = np.array([w.rsplit(".", 1)[-1] in SUMS for w in rows.match.words.name] + [False])
    sums = rows.kind_is("api") & named[rows.of_call("name")] & rows.phase_is("forward")
    given = _largest_by_call(rows.reference, sums & floating & rows.slot_starts("input"), norm)
    return np.where(sums & rows.slot_starts("output"), given[rows.reference.call], 0.0)


def _summed_gradients(rows: StepRows, norm: Floats, floating: Bools) -> Floats:
    """For the gradient that arrives at what a call made, the largest of those that the calls it was given to
    send back; else 0. Contents tell which these are: of several elements that are not all one number."""
    half = rows.reference
    statistics = half.statistics
    with np.errstate(invalid="ignore"):
        tells = floating & (half.record >= 0) & (statistics["minimum"] < statistics["maximum"])
    content, num = contents(half), len(rows.match.words.slot) + 1
    place = half.call * num + rows.slot
    forward = np.flatnonzero(rows.phase_is("forward") & tells)
    order = np.argsort(place[forward], kind="stable")
    known = place[forward][order]
    backward = np.flatnonzero(rows.phase_is("backward") & floating & (half.record >= 0))
    out = np.zeros(len(rows))
    if not len(known) or not len(backward):
        return out
    at = np.minimum(np.searchsorted(known, place[backward]), len(known) - 1)
    found = known[at] == place[backward]
    backward, of = backward[found], content[forward[order[at[found]]]]
    largest = np.zeros(int(of.max(initial=-1)) + 2)
    sent = rows.slot_starts("input")[backward]
    np.maximum.at(largest, of[sent], norm[backward[sent]])
    out[backward[~sent]] = largest[of[~sent]]
    return out


def _of_microbatches(rows: StepRows, norm: Floats) -> Floats:
    """The largest norm that microbatches have at the same place: of losses, and of gradients."""
    out = np.zeros(len(rows))
    at = np.flatnonzero(
        (rows.phase_is("loss") & rows.slot_is("value") & (rows.reference.numel == 1))
        | (rows.phase_is("backward") & rows.mode_is("train"))
    )
    columns = [rows.phase, rows.slot, rows.of_call("name"), rows.of_call("ordinal")]
    _, place = np.unique(np.stack([one[at] for one in columns]), axis=1, return_inverse=True)
    largest = np.zeros(int(place.max(initial=-1)) + 1)
    np.maximum.at(largest, place.ravel(), norm[at])
    out[at] = largest[place.ravel()]
    return out


def _product_scale(rows: StepRows, rms: Floats, floating: Bools) -> Floats:
    """For a product of two activations (attention scores) the rms its rows' norms allow: rms_a rms_b length;
    else 0."""
    half, words = rows.reference, rows.match.words
    product = (
        rows.kind_is("api")
        & np.array([w.rsplit(".", 1)[-1].strip("_") in PRODUCTS for w in words.name] + [False])[
            rows.of_call("name")
        ]
    )
    outputs = product & rows.phase_is("forward") & rows.slot_starts("output") & (half.call >= 0)
    out = np.zeros(len(rows))
    if not outputs.any():
        return out
    dims = np.array([len(shape) for shape in words.shape] + [0])[half.shape]
    lasts = np.array([shape[-1] if shape else 1 for shape in words.shape] + [1], float)[half.shape]
    inputs = product & floating & rows.phase_is("forward") & rows.slot_starts("input") & (dims >= 3)
    slots = words.slot
    first = inputs & (rows.slot == (slots.index("input.0") if "input.0" in slots else -2))
    largest, other = _largest_by_call(half, first, rms), _largest_by_call(half, inputs & ~first, rms)
    length = _largest_by_call(half, first, lasts)
    out[outputs] = (largest * other * length)[half.call[outputs]]
    return out


def _largest_by_call(half: Half, chosen: Bools, values: Floats) -> Floats:
    """Per call the largest of ``values`` over its chosen rows; one more entry, 0, for rows without a call."""
    largest = np.zeros(half.side.num_calls + 1)
    np.maximum.at(largest, half.call[chosen], values[chosen])
    largest[-1] = 0.0
    return largest


def _gradient_scale(rows: StepRows, norm: Floats, floating: Bools) -> Floats:
    gradients = rows.phase_is("param_grad") & (rows.reference.call >= 0)
    scale = np.zeros(len(rows))
    if not gradients.any():
        return scale
    words = rows.match.words
    first = rows.kind_is("module") & floating & (rows.reference.call >= 0)
    arriving = _largest_by_name(rows, first & rows.phase_is("backward") & rows.slot_starts("output"), norm)
    entering = _largest_by_name(rows, first & rows.phase_is("forward") & rows.slot_starts("input"), norm)
    count = _largest_by_name(
        rows, first & rows.phase_is("backward") & rows.slot_starts("output"), _num_rows(rows)
    )
    owners = _owners_of_parameters(rows, gradients)
    dims = np.array([len(shape) for shape in words.shape] + [0])[rows.reference.shape[gradients]]
    bias = arriving[owners]
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = bias * entering[owners] / np.sqrt(np.maximum(count[owners], 1.0))
    scale[gradients] = np.where((dims >= 2) & (entering[owners] > 0), weight, bias)
    return np.asarray(scale * multiplied_after_backward(rows))


def multiplied_after_backward(rows: StepRows) -> Floats:
    """By what the reference multiplied each gradient between backward and the optimizer (a loss scale taken
    out, clipping); 1 of every other row.

    What is multiplied has its rounding multiplied as well. What is added up over ranks has not, however small
    the sum is: minimum, maximum and norm all have to be one multiple, and that of a single number has to be
    what most gradients of the step are multiplied by.
    """
    half, out = rows.reference, np.ones(len(rows))
    of_grad = rows.phase_is("param_grad") & (half.call >= 0)
    left = np.full(half.side.num_calls + 1, -1)
    at = np.flatnonzero(of_grad & rows.slot_is("accumulated"))
    left[half.call[at]] = at
    given = np.flatnonzero(of_grad & rows.slot_is("clipped"))
    given = given[left[half.call[given]] >= 0]
    before = left[half.call[given]]
    held = half.statistics
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = held["l2_norm"][given] / held["l2_norm"][before]
        ends = [held[name][given] / ratio - held[name][before] for name in ("minimum", "maximum")]
        most = np.maximum(*(np.abs(held[name][before]) for name in ("minimum", "maximum")))
        kept = np.isfinite(ratio) & (ratio > 0)
        kept &= np.maximum(*np.abs(ends)) <= MULTIPLE_APART * most
    several = kept & (half.numel[given] > 1)
    if not several.any():
        return out
    with np.errstate(invalid="ignore"):
        common = np.abs(ratio / np.median(ratio[several]) - 1) <= MULTIPLE_APART
    kept = several | (kept & common)
    out[given[kept]] = ratio[kept]
    return out


def _dot_lengths(rows: StepRows) -> Floats:
    """For each row the larger of the last two dimensions among all tensors of its call; of a convolution what
    one output is summed over."""
    words, half = rows.match.words, rows.reference
    ends = np.array([max(shape[-2:], default=1) for shape in words.shape] + [1], float)
    longest = _largest_by_call(half, half.call >= 0, ends[half.shape])
    summed = np.array([np.prod(s[1:]) if len(s) > 2 else 1.0 for s in words.shape] + [1.0], float)
    weights = rows.phase_is("param") & (half.call >= 0)
    of_owner = np.ones(len(words.name) + 1)
    owners = _owners_of_parameters(rows, weights)
    np.maximum.at(of_owner, owners[owners >= 0], summed[half.shape[weights]][owners >= 0])
    modules = rows.kind_is("module") & (half.call >= 0)
    lengths = np.where(modules, of_owner[half.side.plain[half.call]], 1.0)
    longest = np.maximum(longest, _largest_by_call(half, modules, lengths))
    return np.asarray(longest[half.call])


def _channel_sums(
    rows: StepRows, metrics: Metrics, roundoff: Floats, *, single_calls: bool = False
) -> Floats:
    """What norms over samples and places leave in their own records and, unless each is judged alone, in all
    later ones: each sums a channel's n
    values, in one memory format block by block, in the other one after another, which is off by
    roundoff sqrt(n / CHANNEL_PER_ROUNDING) times the rms of what it is given over its spread.
    tests/comparing/test_channel_sums.py measures it."""
    words, half = rows.match.words, rows.reference
    inputs = _over_samples(rows) & rows.phase_is("forward") & rows.slot_starts("input") & (half.call >= 0)
    found = np.zeros(len(rows))
    if not inputs.any():
        return found
    places = np.array([float(np.prod(s) / s[1]) if len(s) > 2 and s[1] else 0.0 for s in words.shape] + [0.0])
    numel = np.maximum(np.nan_to_num(half.numel), 1.0)
    square, mean = np.nan_to_num(half.statistics["l2_norm"]) ** 2 / numel, half.statistics["mean"]
    spread = np.maximum(square - np.nan_to_num(mean) ** 2, square * FLOAT32)
    with np.errstate(divide="ignore", invalid="ignore"):
        steep = np.nan_to_num(square / spread, posinf=0.0)
    terms = places[half.shape] / CHANNEL_PER_ROUNDING * steep
    of_call = _largest_by_call(half, inputs, terms)
    if single_calls:
        return np.asarray(np.nan_to_num(roundoff) * np.sqrt(of_call[half.call]))
    starts = inputs | ((of_call[half.call] > 0) & (metrics.difference != 0) & ~metrics.bits_equal)
    first = np.zeros(len(rows))
    at = np.flatnonzero(starts & ~inputs)
    _, once = np.unique(half.call[at], return_index=True)
    first[at[once]] = of_call[half.call[at[once]]]
    return np.asarray(np.nan_to_num(roundoff) * np.sqrt(np.cumsum(first)))


def _convolved_sums(rows: StepRows, roundoff: Floats, summed: Floats) -> Floats:
    """What gradients of a convolution's weight and bias are off by in an order that reruns do not vary.

    Kernels for one memory format add the n rows one after another, those for the other block by block. Added
    one after another, n terms of mean 0 are off by roundoff sqrt(n / 6) times the operands' size: the square
    of the k-th partial sum is k times that of a term, and each addition is off by up to one roundoff of it,
    whose mean square is a third. Measured: at most 0.43 roundoff sqrt(n)
    (tests/comparing/test_channel_sums.py).
    """
    found = np.zeros(len(rows))
    gradients = rows.phase_is("param_grad") & (rows.reference.call >= 0)
    if not gradients.any():
        return found
    convolved = _convolving(rows)[_owners_of_parameters(rows, gradients)]
    terms = np.where(convolved, summed[gradients], 0.0) / CHANNEL_PER_ROUNDING
    found[gradients] = np.nan_to_num(roundoff[gradients]) * np.sqrt(terms)
    return found


def _sums_of_equals(rows: StepRows, metrics: Metrics, roundoff: Floats, summed: Floats) -> Floats:
    """What gradients of weights and biases of norms over samples are off by where they add up equal numbers,
    as behind a pooling over all places: additions of one number are all rounded alike.

    Over n rows of p places each, added one after another, that is at most roundoff sqrt(n p /
    CHANNEL_PER_ROUNDING) of the part of a sum that does not cancel, q = ||r|| / (sqrt(n) ||g||) of it:
    1 where all are equal, 1 / sqrt(n) of random ones. What the means of such gradients leave in the layers
    before is not reckoned with.
    """
    words, half = rows.match.words, rows.reference
    gradients = rows.phase_is("param_grad") & (half.call >= 0)
    norms = _over_samples(rows) & rows.kind_is("module") & (half.call >= 0)
    found = np.zeros(len(rows))
    if not gradients.any() or not norms.any():
        return found
    places = np.array([float(np.prod(s[2:])) if len(s) > 2 else 0.0 for s in words.shape] + [0.0])
    norm = np.nan_to_num(metrics.norm)
    arrives = norms & rows.phase_is("backward") & rows.slot_starts("output")
    arriving = _largest_by_name(rows, arrives, norm)
    run = _largest_by_name(
        rows, norms & rows.phase_is("forward") & rows.slot_starts("output"), places[half.shape]
    )
    largest = _largest_by_name(rows, gradients, norm)[half.side.plain[half.call[gradients]]]
    owners, rows_of = _owners_of_parameters(rows, gradients), summed[gradients]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num(largest / (np.sqrt(rows_of) * arriving[owners]), posinf=0.0)
    equal = np.sqrt(rows_of * run[owners] / CHANNEL_PER_ROUNDING) * np.minimum(share, 1.0)
    found[gradients] = np.nan_to_num(roundoff[gradients]) * equal
    return found


def _over_samples(rows: StepRows) -> Bools:
    """Rows of norms whose statistics are those of a channel over samples and places."""
    words = rows.match.words
    of_type = np.array([any(norm in word for norm in _NORMS_OVER_SAMPLES) for word in words.type] + [False])
    of_name = np.array([word.rpartition(".")[2] in _NORM_FUNCTIONS for word in words.name] + [False])
    return np.asarray(of_type[rows.of_call("type")] | of_name[rows.of_call("name")])


def _summed_rows(rows: StepRows) -> tuple[Floats, Bools]:
    """What a sum over rows made: for parameter gradients the rows of its module's output gradient, else the
    most seen.

    Also whether it is a vector's. 0 for records that are no gradients.
    """
    summed, vector = np.zeros(len(rows)), np.zeros(len(rows), bool)
    gradients = rows.phase_is("param_grad") & (rows.reference.call >= 0)
    later = after_backward(rows)
    if not gradients.any() and not later.any():
        return summed, vector
    floating = ~np.isnan(unit_roundoffs(rows.match.words.dtype)[rows.reference.dtype])
    activations = (
        floating & (rows.reference.call >= 0) & rows.phase_is("forward", "backward") & rows.kind_is("module")
    )
    per_row = _num_rows(rows)
    count = _largest_by_name(rows, activations & rows.slot_starts("output"), per_row)
    running = floating & rows.phase_is("forward", "backward") & ~later
    most = float(per_row[running].max(initial=1.0))
    of_owner = count[_owners_of_parameters(rows, gradients)]
    summed[gradients] = np.where(of_owner > 0, of_owner, most)
    summed[later] = most
    dims = np.array([len(shape) for shape in rows.match.words.shape] + [0])[rows.reference.shape]
    return summed, (gradients | later) & (dims < 2)


def _owners_of_parameters(rows: StepRows, chosen: Bools) -> Codes:
    """Code of the name of the module that owns the parameter of each chosen row, -1 where it is not known."""
    words = rows.match.words.name
    codes = {word: code for code, word in enumerate(words)}
    names = rows.match.reference.plain[rows.reference.call[chosen]]
    table = {code: codes.get(words[code].rpartition(".")[0], -1) for code in np.unique(names).tolist()}
    return np.array([table[code] for code in names.tolist()], np.int64)


def _num_rows(rows: StepRows) -> Floats:
    """Elements for each entry of the last dimension; of the second one around convolutions and norms over
    samples, whose weights have an entry a channel."""
    words, half = rows.match.words, rows.reference
    last = np.array([s[-1] if s else 1 for s in words.shape] + [1], float)
    channels = np.array([s[1] if len(s) > 2 else 0 for s in words.shape] + [0], float)
    convolves = _convolving(rows)
    by_channel = rows.kind_is("module") & (half.call >= 0)
    by_channel &= convolves[half.side.plain[half.call]] | _over_samples(rows)
    width = np.where(by_channel & (channels[half.shape] > 0), channels[half.shape], last[half.shape])
    return np.asarray(np.nan_to_num(half.numel / np.maximum(width, 1.0)))


def _convolving(rows: StepRows) -> Bools:
    """By code of a module's name, and one more entry for none: whether its weight has more than two dims."""
    words, half = rows.match.words, rows.reference
    kernels = np.array([len(s) > 2 for s in words.shape] + [False])
    weights = rows.phase_is("param") & (half.call >= 0) & kernels[half.shape]
    convolves = np.zeros(len(words.name) + 1, bool)
    convolves[_owners_of_parameters(rows, weights)] = True
    convolves[-1] = False
    return convolves


def _largest_by_name(rows: StepRows, chosen: Bools, values: Floats) -> Floats:
    names: Codes = rows.match.reference.plain[rows.reference.call[chosen]]
    largest = np.zeros(len(rows.match.words.name) + 1)
    np.maximum.at(largest, names, values[chosen])
    largest[-1] = 0.0
    return largest
