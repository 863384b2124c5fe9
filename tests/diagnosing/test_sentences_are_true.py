"""What a kind of fault says of two tensors is true of them, whatever they are.

Every sentence about numbers has a check of its own here, worked out from the two tensors alone. It is asked
of all cases of the kinds, of their near misses, and of tensors that chance puts together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.diagnosing.cases import case, known
from tests.diagnosing.kind_cases import ATTENTION, GRADIENT, GRADS, NEAR, TRUE, X, inputs
from tests.diagnosing.test_each_reason import ONE, TWINS
from tests.diagnosing.test_usual_causes import FURTHER, further
from tests.diagnosing.usual_causes import SURE
from tests.diagnosing.usual_causes import check as causes_of
from trueup.diagnosing.evidence import Elsewhere, Evidence, Known
from trueup.diagnosing.kinds import RULES, name_kinds
from trueup.numerics.activations import ACTIVATIONS
from trueup.numerics.dtypes import DTYPES
from trueup.types.codes import Code
from trueup.types.codes.kinds import FactorCode, PlacesCode
from trueup.types.codes.kinds import KindReason as Kind
from trueup.types.reason import Reason

pytestmark = pytest.mark.torch

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Said(NamedTuple):
    """A sentence, what it is said of, and both tensors where values were kept."""

    one: Reason
    evidence: Evidence
    t: Array
    r: Array

    def __getitem__(self, name: Any) -> Any:
        return self.one.facts[name]

    @property
    def rounding(self) -> float:
        """What a few roundings of the coarser side amount to, relative."""
        return 16 * max(self.evidence.roundoff, 1e-9)


Check = Callable[[Said], bool]
CHECKS: dict[Code, Check] = {}
"""of sentences about values"""


def true_of(*codes: Code) -> Callable[[Check], Check]:
    def enter(check: Check) -> Check:
        CHECKS.update(dict.fromkeys(codes, check))
        return check

    return enter


def size(x: Array) -> float:
    return float(np.sqrt(np.square(x[np.isfinite(x)]).sum()))


def explains(said: Said, prediction: Array, least: float = 0.67) -> bool:
    """Whether a prediction of the target leaves little of the difference, or no more than roundings; of what
    is finite on both sides, which nearly all is."""
    usable = np.isfinite(said.t) & np.isfinite(said.r)
    if not equal(said, np.where(usable, 0, said.t), np.where(usable, 0, said.r), least):
        return False
    left = size((said.t - prediction)[usable])
    apart = size((said.t - said.r)[usable])
    of_target = size(said.t[usable])
    whole = of_target if 0 < of_target < min(apart, size(said.r[usable])) else apart
    return left <= max((1 - least) * whole, said.rounding * max(size(said.t), size(said.r)))


def equal(said: Said, actual: Array, expected: Array, share: float = 1.0) -> bool:
    """Whether so many elements are equal but for roundings."""
    with np.errstate(invalid="ignore"):
        near = np.abs(actual - expected) <= said.rounding * np.maximum(np.abs(actual), np.abs(expected))
    near |= (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    return near.size == 0 or bool(near.mean() >= share)


# -- scale, sign, terms ------------------------------------------


@true_of(Kind.SCALED)
def _(said: Said) -> bool:
    if said.one.facts.get("of_statistics"):
        target, reference = (np.sort(x[np.isfinite(x)]) for x in (said.t, said.r))
        ends = (
            np.array([size(reference), reference.min(), reference.max(), reference.mean()]) * said["factor"]
        )
        slack = said.rounding * abs(target).max()
        return np.allclose(
            [size(target), target.min(), target.max(), target.mean()], ends, said.rounding, slack
        )
    return said["factor"] > 0 and explains(said, said["factor"] * said.r)


@true_of(Kind.SCALED_AT_EVEN_SCORES)
def _(said: Said) -> bool:
    smoothing = said["smoothing"]
    factor = 1 - 2 * smoothing if smoothing > 0 else 1 / (1 + 2 * smoothing)
    return bool(np.isclose(factor, said["factor"])) and explains(said, said["factor"] * said.r)


@true_of(Kind.SCALED_PER_ROW, Kind.SCALED_PER_TOKEN)
def _(said: Said) -> bool:
    tokens = said.one.code is Kind.SCALED_PER_TOKEN
    t, r = (x.reshape(-1, x.shape[-1]) if tokens else x.reshape(len(x), -1) for x in (said.t, said.r))
    factors = (t * r).sum(1, keepdims=True) / np.square(r).sum(1, keepdims=True)
    ends = [np.nanmin(factors), np.nanmax(factors)]
    left = np.sqrt(np.square(t - np.nan_to_num(factors) * r).sum(1)) <= said.rounding * np.sqrt(
        np.square(t).sum(1)
    )
    return bool(left.all()) and np.allclose(ends, [said["low"], said["high"]], rtol=said.rounding)


@true_of(Kind.STATISTICS_NEGATED)
def _(said: Said) -> bool:
    t, r = (x[np.isfinite(x)] for x in (said.t, said.r))
    ends, negated = (t.min(), t.max(), t.mean()), (-r.max(), -r.min(), -r.mean())
    return bool(np.allclose(ends, negated, atol=said.rounding * np.abs(r).max()))


@true_of(Kind.NEGATED)
def _(said: Said) -> bool:
    usable = np.isfinite(said.t) & np.isfinite(said.r)
    return size((said.t + said.r)[usable]) <= 0.25 * size((said.t - said.r)[usable])


@true_of(Kind.SIGNS_DIFFER, Kind.SLICES_NEGATED)
def _(said: Said) -> bool:
    flipped = (said.t * said.r < 0) & (said.t != said.r)
    held = equal(said, abs(said.t), abs(said.r)) and np.isclose(
        said["share"], flipped.sum() / (said.r != 0).sum()
    )
    if said.one.code is Kind.SIGNS_DIFFER:
        return bool(held)
    along = np.moveaxis(flipped | (said.r == 0), said["dim"], 0).reshape(said["size"], -1).all(axis=1)
    at = np.flatnonzero(along & np.moveaxis(flipped, said["dim"], 0).reshape(said["size"], -1).any(axis=1))
    return bool(held) and (len(at), at[0], at[-1]) == (said["indices"], said["first"], said["last"])


@true_of(Kind.OFFSET)
def _(said: Said) -> bool:
    return explains(said, said.r + said["offset"], 0.8)


@true_of(Kind.OFFSET_BY_ROW)
def _(said: Said) -> bool:
    return explains(said, said.r + (said.t - said.r).mean(-1, keepdims=True), 0.8)


@true_of(Kind.OFFSET_BY_TABLE)
def _(said: Said) -> bool:
    dims = tuple(map(int, said["dims"]))
    others = tuple(dim for dim in range(said.t.ndim) if dim not in dims)
    mean = (said.t - said.r).mean(others, keepdims=True)
    return explains(said, said.r + mean, 0.8) and np.squeeze(mean).shape == tuple(map(int, said["shape"]))


def held(evidence: Evidence, name: str) -> Array:
    """A tensor at hand by its name."""
    around = evidence.surroundings
    pairs = [*around.inputs, *around.parameters, *around.nearby]
    if evidence.parameter is not None:
        facts = evidence.parameter
        pairs += [facts.before, *(p for _, p in facts.gradients), *facts.updated, *facts.state_before]
    for pair in pairs:
        for one in (pair.reference, pair.target):
            if one is not None and name in (one.name, pair.slot) and (values := one.values()) is not None:
                return values
    raise AssertionError(f"{name} is not at hand")


@true_of(Kind.TERM, Kind.TERM_EXTRA, Kind.TERM_MISSING)
def _(said: Said) -> bool:
    factor = {Kind.TERM: said["factor"], Kind.TERM_EXTRA: 1.0, Kind.TERM_MISSING: -1.0}[said.one.code]  # type: ignore[index]
    return explains(said, said.r + factor * held(said.evidence, said["term"]))


@true_of(Kind.ALL_ZERO)
def _(said: Said) -> bool:
    nothing, other = (said.t, said.r) if said["side"] == "target" else (said.r, said.t)
    return not nothing.any() and bool(other.any())


@true_of(Kind.TERM_IN_PLACE)
def _(said: Said) -> bool:
    term, other = held(said.evidence, said["term"]), held(said.evidence, said["other"])
    return explains(said, said.r + term - other, 0.95)


@true_of(Kind.DROPPED_ALONG)
def _(said: Said) -> bool:
    dims = tuple(int(dim) for dim in said["dims"])
    one, other = (said.t, said.r) if said["side"] == "target" else (said.r, said.t)
    free = (one != 0) | (other != 0)
    mixed = [((x == 0) & free).any(axis=dims) & ((x != 0) & free).any(axis=dims) for x in (one, other)]
    return bool(not mixed[0].any() and mixed[1].any())


@true_of(Kind.ZERO_FOR_GIVEN)
def _(said: Said) -> bool:
    zeros, other = (said.t, said.r) if said["side"] == "target" else (said.r, said.t)
    at = (zeros == 0) & (other != 0)
    given = [pair.reference.values() for pair in said.evidence.surroundings.inputs if pair.reference]
    same = [x for x in given if x is not None and x.shape == other.shape and (x == other)[at].all()]
    return bool(same) and at.sum() == said["num"] and at.size == said["size"]


@true_of(Kind.MASK_INVERTED)
def _(said: Said) -> bool:
    """Of masks themselves; what attention makes with one is worked out anew in test_attention_kind."""
    return bool(((said.t == 0) != (said.r == 0)).all() and (said.r == 0).any() and (said.r != 0).any())


@true_of(Kind.GROUPED_OTHERWISE)
def _(said: Said) -> bool:
    pair = next(one for one in said.evidence.surroundings.inputs if one.slot == said["sizes"])
    assert pair.target is not None
    assert pair.reference is not None
    own, other = pair.target.values(), pair.reference.values()
    assert own is not None
    assert other is not None
    moved = np.abs(own - other).sum() / 2
    return bool(own.sum() == other.sum() == len(said.t) == said["total"] and moved == said["num"])


@true_of(Kind.RAISED)
def _(said: Said) -> bool:
    """Near where nothing is left, roundings of what was taken away are all there is."""
    less = held(said.evidence, said["less"]) if said["less"] else 0 * said.r
    over = held(said.evidence, said["over"]) if said["over"] else 0 * said.r + 1
    with np.errstate(divide="ignore", invalid="ignore"):
        t, r = ((side - less) / over for side in (said.t, said.r))
        error = said.rounding * (
            (abs(said.t) + abs(less)) / abs(over * t) + (abs(said.r) + abs(less)) / abs(over * r)
        )
        apart = abs(np.log(t) - said["power"] * np.log(r))
    known = np.isfinite(error) & (error < 1)
    return bool(known.any() and (apart <= max(1, abs(said["power"])) * error)[known].all())


@true_of(Kind.NOTHING_ELSE)
def _(said: Said) -> bool:
    usable = np.isfinite(said.t) & np.isfinite(said.r)
    t, r = said.t[usable], said.r[usable]
    if not equal(said, said.t[~usable], said.r[~usable]):
        return False
    of_sketches = bool(said.one.facts.get("of_sketches"))
    rel_is_true = np.isclose(said["rel_l2"], size(t - r) / size(r), rtol=0.8 if of_sketches else 0.02)
    others = [(t * r).sum() / np.square(r).sum() * r, -r, *([] if of_sketches else [r + (t - r).mean()])]
    near = said.rounding / 16 * np.maximum(abs(t), abs(r))
    exactly = any((abs(t - one) <= near).all() for one in others)
    return bool(rel_is_true) and not (exactly and t.size > 8)


@true_of(Kind.ACTIVATION_OF_ONE_SIDE)
def _(said: Said) -> bool:
    plain, applied = (said.r, said.t) if said["side"] == "target" else (said.t, said.r)
    near = np.abs(ACTIVATIONS[said["function"]](plain) - applied)
    return bool((near <= 8 * said.rounding * np.maximum(abs(plain), abs(applied))).all())


@true_of(Kind.ACTIVATION)
def _(said: Said) -> bool:
    all_given = [values(pair.given) for pair in said.evidence.surroundings.inputs]
    x = next(one for one in all_given if one is not None and one.shape == said.t.shape)
    sides = ((said["target"], said.t), (said["reference"], said.r))
    return all(size(ACTIVATIONS[name](x) - y) <= 1e-2 * size(y) for name, y in sides)


@true_of(Kind.SOFTMAX_FACTOR)
def _(said: Said) -> bool:
    power = said.r ** said["target"]
    left = size(power / power.sum(-1, keepdims=True) - said.t)
    return left <= max(0.2 * size(said.t - said.r), said.rounding * size(said.t))


# -- order ------------------------------------------


@true_of(Kind.SHIFTED)
def _(said: Said) -> bool:
    by, dim = int(said["shift"]), said["dim"]
    count = said.t.shape[dim] - abs(by)
    moved = np.take(said.t, np.arange(max(by, 0), max(by, 0) + count), dim)
    still = np.take(said.r, np.arange(max(-by, 0), max(-by, 0) + count), dim)
    agree, in_place = (
        np.isclose(a, b, rtol=said.rounding / 2, atol=0, equal_nan=True).mean()
        for a, b in ((moved, still), (said.t, said.r))
    )
    return bool(abs(agree - said["agree"]) < 0.02 and abs(in_place - said["in_place"]) < 0.02 and agree > 0.8)


@true_of(Kind.POSITIONS_COUNTED_FROM)
def _(said: Said) -> bool:
    up = (np.diff(said.t) == 1) & (np.diff(said.r) == 1)
    return bool(up.any() and np.all((said.t - said.r)[..., 1:][up] == said["offset"]))


@true_of(Kind.SAME_STATISTICS)
def _(said: Said) -> bool:
    t, r = (x[np.isfinite(x)] for x in (said.t, said.r))
    slack = 1e-6 * size(r)
    ends = [[x.min(), x.max(), x.mean(), size(x), (x == 0).sum(), x.size] for x in (t, r)]
    return bool(np.allclose(*ends, rtol=0, atol=slack)) and not np.array_equal(said.t, said.r, equal_nan=True)


@true_of(Kind.SAME_NUMBERS, Kind.LAID_OUT_ANEW, Kind.REORDERED_ALONG, Kind.SAMPLES_REORDERED)
def _(said: Said) -> bool:
    target, reference = np.sort(said.t.ravel()), np.sort(said.r.ravel())
    moved = said.t.shape != said.r.shape or not equal(said, said.t, said.r)
    return moved and equal(said, target, reference, 0.999)


# -- data ------------------------------------------


def shared(said: Said) -> int:
    rows = [{row.tobytes() for row in side.reshape(len(side), -1)} for side in (said.t, said.r)]
    return len(rows[0] & rows[1])


@true_of(Kind.SAMPLES_SHARED)
def _(said: Said) -> bool:
    return bool(said["shared"] == shared(said) and said["samples"] == len(said.t))


@true_of(Kind.OTHER_BATCH)
def _(said: Said) -> bool:
    if said["differ"] is None:
        return True
    return bool(np.isclose(said["differ"], (said.t != said.r).mean(), atol=0.01)) and not shared(said)


# -- zeros and masks ------------------------------------------


@true_of(Kind.OTHER_ELEMENTS_DROPPED)
def _(said: Said) -> bool:
    a, b = said.t == 0, said.r == 0
    rate = said["target"] / (said["target"] + (~a & ~b).sum())
    counts = (said["target"], said["reference"]) == ((a & ~b).sum(), (b & ~a).sum())
    kept = ~a & ~b
    return counts and np.isclose(rate, said["rate"]) and equal(said, said.t[kept], said.r[kept], 0.95)


@true_of(Kind.DROPPED_ON_ONE_SIDE)
def _(said: Said) -> bool:
    dropped, whole = (said.t, said.r) if said["side"] == "target" else (said.r, said.t)
    kept = (dropped != 0) & (whole != 0)
    scaled = whole[kept] / (1 - said["rate"])
    return ((dropped == 0) & (whole != 0)).sum() == said["num"] and equal(said, dropped[kept], scaled, 0.95)


@true_of(Kind.GENERATOR_ELSEWHERE)
def _(said: Said) -> bool:
    target, reference = (run.draws or {} for run in (said.evidence.target_run, said.evidence.reference_run))
    at = said.evidence.origin.microbatch or 0
    stood = (at, said.evidence.origin.module), *(((at, said["after"]),) if "after" in said.one.facts else ())
    alike = [target[one] == reference[one] for one in stood]
    return alike in ([False], [False, True])


@true_of(Kind.DRAWS_IN_ONE_RUN)
def _(said: Said) -> bool:
    runs = said.evidence.target_run, said.evidence.reference_run
    at = said.evidence.origin.microbatch or 0, said.evidence.origin.module
    drawn = [at in (run.draws or {}) for run in runs]
    return drawn == [said["side"] == "target", said["side"] == "reference"] and all(
        at[1] in run.modules for run in runs
    )


@true_of(Kind.KEPT_TIMES)
def _(said: Said) -> bool:
    (x,) = (
        pair.reference.values()
        for pair in said.evidence.surroundings.inputs
        if pair.reference is not None and pair.reference.shape == said.t.shape
    )
    zero = (said.t == 0) & (said.r == 0) & (x != 0)
    own, other = (np.where(zero, 0, said[side] * x) for side in ("target", "reference"))
    share = 1 - zero.sum() / (x != 0).sum()
    return share == said["share"] and equal(said, said.t, own, 1.0) and equal(said, said.r, other, 1.0)


@true_of(Kind.DROPOUT_RATE)
def _(said: Said) -> bool:
    return bool(np.allclose([said["target"], said["reference"]], [(x == 0).mean() for x in (said.t, said.r)]))


def hides(x: Array, dtype: str, *, infinite: bool) -> Flags:
    """What a side hides; minus infinity where either side has some."""
    if dtype == "bool":
        return np.asarray(x == 0)
    if infinite:
        return np.isneginf(x)
    far = x <= -1e4
    return np.asarray((x == 0) | (far & (np.abs(x[~far]).max(initial=0) < 1e3)))


def named(places: Reason, where: Flags) -> bool:
    """Whether elements that are hidden on one side alone are where a sentence says."""
    facts = places.facts
    planes = where.reshape(-1, *where.shape[-2:]) if where.ndim > 1 else where.reshape(1, 1, -1)
    usual = planes.mean(axis=0) > 0.5  # one in fifty may be elsewhere
    union = usual if (planes != usual).sum() <= 0.02 * usual.sum() * len(planes) else planes.any(axis=0)
    i, j = np.nonzero(union)
    off = j - i

    def at(text: object, axis: int) -> bool:
        seen = np.flatnonzero(union.any(axis=1 - axis))
        parts = [one.split(" to ") for one in str(text).replace(" and ", ", ").split(", ")]
        named_ = {n for one in parts for n in range(int(one[0]), int(one[-1]) + 1)}
        return named_ == set(seen.tolist())

    match places.code:
        case PlacesCode.DIAGONALS:
            return (off.min(), off.max()) == (facts["first"], facts["last"])
        case PlacesCode.ABOVE_DIAGONAL:
            return bool((off > 0).all())
        case PlacesCode.BELOW_DIAGONAL:
            return bool((off <= -int(facts["distance"])).all())  # type: ignore[arg-type]
        case PlacesCode.PART_OF_TRIANGLE:
            return bool((off > 0).all() if facts["above"] else (off < 0).all())
        case PlacesCode.COLUMNS:
            return at(facts["columns"], 1)
        case PlacesCode.ROWS:
            return at(facts["rows"], 0)
        case PlacesCode.BLOCK:
            return at(facts["rows"], 0) and at(facts["columns"], 1)
        case PlacesCode.WHOLE_COLUMNS | PlacesCode.COLUMNS_OF_EACH:
            most = max(int(plane.any(axis=0).sum()) for plane in planes)
            return (most, planes.shape[-1]) == (facts["number"], facts["size"])
        case PlacesCode.WHOLE_ROWS:
            rows = planes.any(axis=2)
            return (rows.sum(), rows.size) == (facts["number"], facts["size"])
        case PlacesCode.INDICES:
            ends = np.flatnonzero(where)[[0, -1]]
            return tuple(ends) == (facts["first"], facts["last"]) and where.sum() == ends[1] - ends[0] + 1
        case PlacesCode.SOME_INDICES | PlacesCode.SOME_ELEMENTS:
            return (where.sum(), where.size) == (facts["number"], facts["size"])
    return True


@true_of(Kind.HIDES_OTHER_ELEMENTS)
def _(said: Said) -> bool:
    pair = said.evidence.pair
    assert pair.target is not None
    assert pair.reference is not None
    infinite = bool(np.isneginf(said.t).any() or np.isneginf(said.r).any())
    both = ((said.t, pair.target), (said.r, pair.reference))
    sides = [hides(x, known.dtype, infinite=infinite) for x, known in both]
    for at, (_, side) in enumerate(both):  # True may hide: read as the other side's numbers do nearly
        if side.dtype == "bool" != both[1 - at][1].dtype and (sides[0] ^ sides[1]).mean() > 0.5:
            sides[at] = ~sides[at]
    apart = (sides[0] ^ sides[1]) & ~(np.isnan(said.t) | np.isnan(said.r))
    if not infinite and said.evidence.roundoff:  # zero but for the rounding of what the others are
        rms = np.sqrt(np.square(said.r).mean()) if np.isfinite(said.r).all() else 0.0
        apart &= abs(said.t - said.r) > said.rounding / 2 * rms
    more, fewer = int((sides[0] & apart).sum()), int((sides[1] & apart).sum())
    counts = {(said["more"], said["fewer"]), (said["fewer"], said["more"])}  # of booleans either may hide
    of_all = np.isclose(said["share"], (more + fewer) / said.t.size)
    return (more, fewer) in counts and of_all and named(said.one.parts[0], apart)


@true_of(Kind.ROWS_EMPTY)
def _(said: Said) -> bool:
    empty = np.isnan(said.t).all(axis=-1)
    return (said["rows"], said["size"]) == (empty.sum(), empty.size) and not np.isnan(said.r).any()


@true_of(Kind.HIDES_ALL_BY_INFINITY)
def _(said: Said) -> bool:
    empty = np.isneginf(said.t).all(axis=-1)  # a lowest number is shown as minus infinity
    return (said["rows"], said["size"]) == (empty.sum(), empty.size)


@true_of(Kind.LAST_POSITION_AGREES)
def _(said: Said) -> bool:
    same = np.isclose(said.t, said.r, rtol=said.rounding / 2, atol=0).mean(axis=-1) > 0.9
    return bool(same[..., -1].all() and np.isclose(said["differ"], 1 - same[..., :-1].mean(), atol=0.02))


@true_of(Kind.POSITIONS_AGREE_UP_TO)
def _(said: Said) -> bool:
    same = np.isclose(said.t, said.r, rtol=said.rounding, atol=0).mean(axis=-1) > 0.9
    rows = same.reshape(-1, same.shape[-1])
    firsts = {int(np.argmin(row)) for row in rows if not row.all()}
    return {*map(int, said["positions"])} <= firsts


# -- dtypes and range ------------------------------------------


@true_of(Kind.NOT_FINITE)
def _(said: Said) -> bool:
    counted = {"num_nan": np.isnan, "num_posinf": np.isposinf, "num_neginf": np.isneginf}
    sides = (("target", said.t, said.evidence.target), ("reference", said.r, said.evidence.reference))
    return all(  # a lowest number is shown as minus infinity, and counted as a number
        said[f"{n}_{side}"] == f(x).sum()
        or (n == "num_neginf" and one and said[f"{n}_{side}"] == one.statistic(n))
        for n, f in counted.items()
        for side, x, one in sides
    )


@true_of(Kind.SATURATED)
def _(said: Said) -> bool:
    ends = [float(np.abs(x[np.isfinite(x)]).max()) for x in (said.t, said.r)]
    return ends == [said["target"], said["reference"]] and ends[0] == DTYPES[said["dtype"]].max


@true_of(Kind.UNDERFLOW)
def _(said: Said) -> bool:
    lost = (said.t == 0) & (said.r != 0) & np.isfinite(said.r)
    entry = DTYPES[said["dtype"]]
    limit = entry.smallest_normal if said.one.facts.get("normal") else entry.smallest_normal * entry.eps * 2
    return bool(
        lost.sum() == said["lost"]
        and np.isclose(np.abs(said.r[lost]).max(), said["largest"])
        and np.isclose(said["limit"], limit)
    )


@true_of(Kind.DTYPES_DIFFER, Kind.SIZE_OF_ROUNDING, Kind.ON_A_GRID, Kind.AS_ITS_REPEAT)
def _(said: Said) -> bool:
    """Nothing is as large as a rounding that is NaN or infinite on one side alone."""
    vectors = said.evidence.vectors
    if vectors is not None and not vectors.exact:
        return True  # estimated from sketches
    usable = np.isfinite(said.t) & np.isfinite(said.r)
    rel = size((said.t - said.r)[usable]) / max(size(said.r[usable]), 1e-300)
    if said["rel_l2"] is None:
        return True
    alike = equal(said, said.t[~usable], said.r[~usable])
    return alike and bool(np.isclose(said["rel_l2"], rel, rtol=0.05))


# -- times and ranks ------------------------------------------


@true_of(Kind.SUM_OVER_RANKS, Kind.MEAN_OVER_RANKS)
def _(said: Said) -> bool:
    parts = {str(rank): known.values() for rank, known in said.evidence.elsewhere.target_ranks}
    total = np.sum([parts[rank] for rank in said["ranks"]], axis=0)
    reduced = total / (len(said["ranks"]) if said.one.code is Kind.MEAN_OVER_RANKS else 1)
    return size(reduced - said.r) <= max(0.33 * size(said.t - said.r), said.rounding * size(said.r))


@true_of(Kind.SENT_TO_ANOTHER_CALL)
def _(said: Said) -> bool:
    name = f"{said['module']}, {said.evidence.origin.slot}"
    near = (pair.reference for pair in said.evidence.surroundings.nearby)
    sent = [one.values() for one in near if one is not None and one.name == name]
    return any(one is not None and explains(said, one, 0.95) for one in sent)


@true_of(Kind.OF_ANOTHER_MICROBATCH)
def _(said: Said) -> bool:
    sent = dict(said.evidence.elsewhere.reference_microbatches)[said["other"]].values()
    own = said.evidence.surroundings.microbatch
    return sent is not None and explains(said, sent, 0.8) and own == said["own"] != said["other"]


@true_of(Kind.OF_TARGET_STEP, Kind.OF_REFERENCE_STEP, Kind.OF_MICROBATCH)
def _(said: Said) -> bool:
    elsewhere = said.evidence.elsewhere
    dated = {
        Kind.OF_TARGET_STEP: elsewhere.target_earlier,
        Kind.OF_REFERENCE_STEP: elsewhere.reference_earlier,
        Kind.OF_MICROBATCH: elsewhere.target_microbatches,
    }
    then = dict(dated[said.one.code])[said["earlier"]].values()  # type: ignore[index]
    return then is not None and explains(said, then, 0.8)


# -- factors ------------------------------------------


def equals_a_factor(said: Reason) -> bool:
    """Whether a number that a factor is said to be is that factor."""
    scale = said.number("factor")
    if not isinstance(scale, float):
        return True
    roots = {
        FactorCode.SQUARE_ROOT: np.sqrt,
        FactorCode.ROOT_OF_SIZE: np.sqrt,
        FactorCode.LOGARITHM: np.log,
        FactorCode.LESS_ONE: lambda n: n / (n - 1),
        FactorCode.ROOT_OF_LESS_ONE: lambda n: np.sqrt(n / (n - 1)),
    }
    for part in said.parts:
        number = part.number("number")
        if number is not None:
            value = roots.get(part.code, float)(number)  # type: ignore[call-overload]
            value = 1 / value if part.number("inverse") else value
            if not abs(scale / value - 1) < 0.02:
                return False
    return True


# -- what is asked ------------------------------------------


def sentences(evidence: Evidence) -> Iterator[Reason]:
    for kind in name_kinds(evidence):
        CAUSES.update(causes_of(kind, evidence))
        SAID.add(kind.sentence.code)
        yield kind.sentence


CAUSES: set[Code] = set()
SAID: set[Code] = set()
"""all causes and sentences so far"""


def values(known: Known | None) -> Array | None:
    return None if known is None else known.values()


def asked(evidence: Evidence, t: Array | None = None, r: Array | None = None) -> set[Code]:
    """Codes that were said of evidence and checked; each is true. ``t``, ``r``: both tensors where the
    evidence does not hold their values."""
    seen: set[Code] = set()
    t = values(evidence.target) if t is None else t
    r = values(evidence.reference) if r is None else r
    for one in sentences(evidence):
        assert equals_a_factor(one), one
        seen |= {part.code for part in one.parts}
        check = CHECKS.get(one.code)
        if check is not None and t is not None and r is not None:
            with np.errstate(all="ignore"):
                assert check(Said(one, evidence, t, r)), one
            seen.add(one.code)
    return seen


OF_OTHER_CASES = {
    *(Kind.OTHER_USE, Kind.OTHER_USES_DIFFER, Kind.MOMENT_STARTS_ANEW, Kind.NO_GRADIENT_NOT_TRAINABLE),
    *(Kind.LOSS_DIVISORS, Kind.DIVISORS_GIVEN),
}
"""test_kind_numbers.py and test_whose.py have them"""


def test_what_is_said_of_each_case_is_true() -> None:
    """Of true cases, near misses and twins; and each check is asked here, so that none passes unasked."""
    cases = [one for each in TRUE.values() for one in each]
    cases += [one for each in NEAR.values() for one, _ in each]
    cases += [one for twins in TWINS for one in (twins.holds, twins.near)]
    cases += [partial(further, name) for name in FURTHER]
    seen: set[Code] = set().union(*(asked(one()) for one in cases))
    usual = {cause for rule in RULES for cause in rule.causes}
    assert usual <= CAUSES, usual - CAUSES
    assert set(SURE) <= SAID | OF_OTHER_CASES, set(SURE) - SAID
    assert CHECKS.keys() - seen == {
        Kind.SAME_STATISTICS,
        Kind.STATISTICS_NEGATED,
    }  # asked where values are known


# -- tensors that chance puts together ------------------------------------------

SHAPES = [(4, 16, 32), (2, 4, 16, 16), (16, 32), (64,), (2, 3), (8, 8), (3, 16, 8)]
Draw = np.random.Generator
Change = Callable[[Array, Draw], Array]


BASES: dict[str, Change] = {
    "normal": lambda x, draw: x,
    "positive": lambda x, draw: abs(x),
    "softmax": lambda x, draw: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    "tiny": lambda x, draw: x * 1e-6,
    "offset": lambda x, draw: x + 5,
    "wide": lambda x, draw: x * np.exp(3 * draw.standard_normal(x.shape)),
    "masked": lambda x, draw: x if x.ndim < 2 else np.where(np.triu(np.ones(x.shape[-2:]), 1), -np.inf, x),
}


def slices(x: Array, draw: Draw) -> Flags:
    """Some indices of one dimension."""
    dim = int(draw.integers(x.ndim))
    some = draw.permutation(x.shape[dim]) < draw.integers(1, x.shape[dim] // 2 + 1)
    return np.broadcast_to(some.reshape([-1 if at == dim else 1 for at in range(x.ndim)]), x.shape)


def one_of(draw: Draw, *choices: float) -> float:
    return choices[int(draw.integers(len(choices)))]


def on_diagonals(x: Array, draw: Draw) -> Array:
    if x.ndim < 2:
        return x
    rows, columns = np.indices(x.shape[-2:])
    first, width = draw.integers(-4, 4), draw.integers(0, 9)
    band = (columns - rows >= first) & (columns - rows <= first + width)
    return np.where(band, one_of(draw, 0, -np.inf), x)


def dropped(x: Array, draw: Draw) -> Array:
    rate = one_of(draw, 0.1, 0.5)
    return np.where(draw.random(x.shape) < rate, 0, x / (1 - rate))


def one_element(x: Array, draw: Draw) -> Array:
    at = np.arange(x.size).reshape(x.shape) == draw.integers(x.size)
    return np.where(at, x * one_of(draw, 3, -1, 0), x)


def permuted(x: Array, draw: Draw) -> Array:
    dim = int(draw.integers(x.ndim))
    return np.take(x, draw.permutation(x.shape[dim]), dim)


def through(x: Array, dtype: torch.dtype) -> Array:
    return torch.from_numpy(np.ascontiguousarray(x)).to(dtype).double().numpy()


CHANGES: dict[str, Change] = {
    "none": lambda x, draw: x,
    "scaled": lambda x, draw: x * one_of(draw, 2, 0.5, -1, 1.002, 3.7, 1e-3, -2, 0.99, 1 + 1e-5),
    "slices negated": lambda x, draw: np.where(slices(x, draw), -x, x),
    "slices scaled": lambda x, draw: np.where(slices(x, draw), 1.5 * x, x),
    "slices replaced": lambda x, draw: np.where(slices(x, draw), one_of(draw, 0, -np.inf, np.nan), x),
    "offset": lambda x, draw: x + one_of(draw, 1, 0.1, -3, 1e-4),
    "bias": lambda x, draw: x + 0.1 * draw.standard_normal(x.shape[-1:]),
    "rolled": lambda x, draw: np.roll(x, int(one_of(draw, 1, -1, 2, -2, 3)), int(draw.integers(x.ndim))),
    "permuted": permuted,
    "shuffled": lambda x, draw: draw.permutation(x.ravel()).reshape(x.shape),
    "dropped": dropped,
    "noise": lambda x, draw: x * (1 + one_of(draw, 1e-7, 1e-3, 1e-2, 0.3) * draw.standard_normal(x.shape)),
    "bfloat16": lambda x, draw: through(x, torch.bfloat16),
    "float16": lambda x, draw: through(x, torch.float16),
    "one element": one_element,
    "clipped": lambda x, draw: np.clip(x, -1, 1),
    "silu": lambda x, draw: ACTIVATIONS["silu"](x),
    "relu": lambda x, draw: ACTIVATIONS["relu"](x),
    "small lost": lambda x, draw: np.where(abs(x) < one_of(draw, 6e-8, 6e-5, 0.5), 0, x),
    "some replaced": lambda x, draw: np.where(draw.random(x.shape) < 0.1, one_of(draw, 0, -np.inf), x),
    "diagonals": on_diagonals,
    "centred": lambda x, draw: x - x.mean(-1, keepdims=True),
    "unrelated": lambda x, draw: one_of(draw, 1, 1e-3, 1e-8) * draw.standard_normal(x.shape),
}
DTYPES_OF_BOTH = [(torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.float16,) * 2]
DTYPES_OF_BOTH += [(torch.bfloat16, torch.float32), (torch.float32, torch.float16)]
changes = st.sampled_from(sorted(CHANGES))


@settings(max_examples=150, derandomize=True)
@given(
    seed=st.integers(0, 2**16),
    shape=st.sampled_from(SHAPES),
    base=st.sampled_from(sorted(BASES)),
    of_target=st.lists(changes, min_size=1, max_size=2),
    of_reference=st.one_of(st.just("none"), changes),
    dtypes=st.sampled_from(DTYPES_OF_BOTH),
    kept=st.sampled_from(["values", "values", "sketch", "statistics"]),
    phase=st.sampled_from(["forward", "backward", "param_grad"]),
    around=st.sampled_from([None, "attention", "inputs"]),
)
def test_what_is_said_of_any_two_tensors_is_true(
    seed: int,
    shape: tuple[int, ...],
    base: str,
    of_target: list[str],
    of_reference: str,
    dtypes: tuple[torch.dtype, torch.dtype],
    kept: str,
    phase: str,
    around: str | None,
) -> None:
    draw = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        made = BASES[base](draw.standard_normal(shape), draw)
        r, t = CHANGES[of_reference](made, draw), made
        for name in of_target:
            t = CHANGES[name](t, draw)
    sides = [
        torch.from_numpy(np.ascontiguousarray(x)).float().to(dtype)
        for x, dtype in zip((t, r), dtypes, strict=True)
    ]
    given_ = inputs(torch.from_numpy(np.ascontiguousarray(made)).float())
    surroundings = {"attention": ATTENTION, "inputs": given_}.get(around or "")
    slot = "local" if phase == "param_grad" else "output.0"
    evidence = case(*sides, kept=kept, phase=phase, slot=slot, surroundings=surroundings)
    asked(evidence, *(x.double().numpy() for x in sides))


@pytest.mark.parametrize(
    ("columns", "told"), [([3, 4, 5], "3 to 5"), ([3, 7], "3, 7"), ([1, 2, 6, 9], "1 to 2, 6, 9")]
)
def test_columns_that_are_apart_are_named_apart(columns: list[int], told: str) -> None:
    seen = torch.ones(2, 1, 16, 16, dtype=torch.bool)
    less = seen & ~torch.isin(torch.arange(16), torch.tensor(columns))
    said = next(one for one in sentences(case(less, seen)) if one.code is Kind.HIDES_OTHER_ELEMENTS)
    assert said.parts[0] == Reason(PlacesCode.COLUMNS, places=(("columns", told),))


@pytest.mark.parametrize(("factor", "seen"), [(1.0, True), (1e-3, True), (0.0, False)])
def test_a_target_that_is_nearly_nothing_is_no_multiple(factor: float, seen: bool) -> None:
    """All of the difference is explained by a factor near zero, and nothing of the target."""
    r = X.double()
    t = 2 * factor * r + 1e-5 * ONE.double()
    codes = {one.code for one in sentences(case(t, r))}
    assert (Kind.SCALED in codes) is seen
    assert not codes & {Kind.SCALED_PER_ROW, Kind.SCALED_PER_TOKEN}


@pytest.mark.parametrize("infinite", [True, False])
def test_nothing_is_as_large_as_a_rounding_that_is_infinite_on_one_side(infinite: bool) -> None:
    r = X.clone()
    t = r.bfloat16()
    if infinite:
        t[0] = float("inf")
    said = [one for one in sentences(case(t, r)) if one.code is Kind.DTYPES_DIFFER]
    assert [one.number("rel_l2") is None for one in said] == [infinite]


@pytest.mark.parametrize(("limit", "normal"), [(5.9e-8, 0), (6e-5, 1)])
def test_the_smallest_number_that_is_kept(limit: float, normal: int) -> None:
    r = X * limit * 4
    t = torch.where(r.abs() < limit, 0, r)
    said = next(one for one in sentences(case(t, r)) if one.code is Kind.UNDERFLOW)
    assert said.number("normal") == normal


@pytest.mark.parametrize(("others", "explains"), [(0.0, None), (0.15, True)])
def test_what_explains_a_part_says_how_much(others: float, explains: bool | None) -> None:
    """The mean over ranks is not the reference's where a sixth of the difference is something else."""
    mean = sum(GRADS) / len(GRADS)
    ranks = Elsewhere(target_ranks=tuple(enumerate(map(known, GRADS))))
    reference = mean + others * (GRADS[0] - mean).norm() * ONE[0] / ONE[0].norm()
    said = next(iter(sentences(case(GRADS[0], reference, elsewhere=ranks, **GRADIENT))))
    assert said.code is Kind.MEAN_OVER_RANKS
    share = said.number("explains")
    assert (share is None) is (explains is None)
    assert share is None or share == pytest.approx(1 - others, abs=0.02)
