"""What is said of how two batches of ids differ is true of them, whatever they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.diagnosing.cases import tells
from trueup.diagnosing.batches import are_the_same_samples, relation
from trueup.types.codes import BatchCode as Batches
from trueup.types.reason import Reason

Ids = NDArray[np.int64]
Draw = np.random.Generator

IDS = np.random.default_rng(3).integers(5, 500, (6, 24))
COUNT = np.tile(np.arange(24), (6, 1))
MASK = (np.arange(24) < np.array([[20], [18], [24], [9], [11], [24]])).astype(np.int64)
PADDED = np.where(MASK > 0, IDS, 0)


def replaced(rows: list[int], columns: list[int]) -> Ids:
    other = IDS.copy()
    other[np.ix_(rows, columns)] = 1
    return other


@pytest.mark.parametrize(
    ("target", "reference", "code", "facts"),
    [
        (IDS, IDS, Batches.SAME, {}),
        (IDS[[1, 0, 2, 3, 4, 5]], IDS, Batches.ORDER, {"num": 6, "rows": ("1", "0", "2", "3", "4", "5")}),
        (np.roll(IDS, -1, 1), IDS, Batches.SHIFT, {"shift": 1}),
        (np.roll(IDS, 2, 1), IDS, Batches.SHIFT, {"shift": -2}),
        (1 - MASK, MASK, Batches.FLAGS, {"inverted": 1}),
        (0 * MASK, MASK, Batches.FLAGS, {"end": "none", "more": 0}),
        (np.where(PADDED, PADDED, 2), PADDED, Batches.PADDING, {"target_id": 2, "reference_id": 0}),
        (IDS.reshape(3, 48), IDS, Batches.ROW_LENGTH, {"target_rows": 3, "reference_length": 24}),
        (
            IDS.ravel()[6:144].reshape(6, 23),
            IDS.ravel()[:138].reshape(6, 23),
            Batches.STREAM_OFFSET,
            {"shift": 6},
        ),
        (np.where(MASK, IDS, 1)[:2], np.where(MASK, IDS, 2)[:2], Batches.PADDING, {"target_id": 1}),
        (np.where(IDS % 9, IDS, 1), np.where(IDS % 9, IDS, 2), Batches.MAPPED_IDS, {"target": ("1",)}),
        (
            replaced([2, 4], [3, 5]),
            IDS,
            Batches.SOME_ROWS,
            {"num": 2, "num_positions": 2, "rows": ("2", "4")},
        ),
        (IDS[[0, 1, 2, 3, 4, 5, 5]], IDS, Batches.MORE_ROWS, {"target": 7, "reference": 6, "repeated": 1}),
        (IDS[:, :20], IDS, Batches.SHAPE, {"shared": 0}),
        (COUNT + 3, COUNT, Batches.COUNTING, {"target": 3, "reference": 0}),
        (IDS - 3, IDS, Batches.OFFSET, {"offset": -3}),
        (COUNT + np.arange(6)[:, None], COUNT, Batches.OFFSET_BY_ROW, {"num": 6}),
        (COUNT % 8, COUNT, Batches.BEGIN_ANEW, {"target": 12, "reference": 0}),
        (IDS[::-1, ::-1], IDS, Batches.OTHER, {"share": float((IDS[::-1, ::-1] != IDS).mean())}),
    ],
)
def test_each_relation(target: Ids, reference: Ids, code: Batches, facts: dict[str, Any]) -> None:
    found = relation(target, reference).evidence
    assert found.code is code
    assert tells(found, code, **facts)


def rows_of(ids: Ids) -> Counter[bytes]:
    return Counter(row.tobytes() for row in np.ascontiguousarray(ids))


def within(row: Ids, pad: int) -> Ids:
    """Without the ends that are padding."""
    kept = np.flatnonzero(row != pad)
    return row[kept[0] : kept[-1] + 1] if kept.size else row[:0]


def is_true(one: Reason, t: Ids, r: Ids) -> bool:
    """Whether what is said of two batches is true of them."""
    facts: dict[str, Any] = dict(one.facts)
    if one.code in (Batches.COUNTING, Batches.BEGIN_ANEW) and t.shape[1] == 1:
        t, r = t.T, r.T  # what has one dimension is one row
    match one.code:
        case Batches.SAME:
            return np.array_equal(t, r)
        case Batches.ORDER:
            at = list(map(int, facts["rows"]))
            return rows_of(t) == rows_of(r) and facts["num"] == len(t) and np.array_equal(t[: len(at)], r[at])
        case Batches.SHIFT:
            by, width = facts["shift"], min(t.shape[1], r.shape[1])
            pairs = (t[:, : width - by], r[:, by:width]) if by > 0 else (t[:, -by:width], r[:, : width + by])
            return bool((pairs[0] == pairs[1]).mean() >= 0.9)
        case Batches.FLAGS:
            if facts["inverted"]:
                return bool((t != r).all())
            counts = facts["more"], facts["fewer"]
            if (facts["end"] == "none") != (not t.any() or not r.any()):
                return False
            return counts == ((t > r).sum(), (r > t).sum()) and 0 in counts
        case Batches.PADDING:
            pads = facts["target_id"], facts["reference_id"]
            return all(
                np.array_equal(within(a, pads[0]), within(b, pads[1])) for a, b in zip(t, r, strict=True)
            )
        case Batches.ROW_LENGTH:
            num = min(t.size, r.size)
            return np.array_equal(t.ravel()[:num], r.ravel()[:num]) and t.shape != r.shape
        case Batches.STREAM_OFFSET:
            ahead, behind = (r, t) if facts["side"] == "later" else (t, r)
            num, by = min(t.size, r.size), facts["shift"]
            return np.array_equal(behind.ravel()[: num - by], ahead.ravel()[by:num])
        case Batches.MAPPED_IDS:
            pairs = zip(map(int, facts["target"]), map(int, facts["reference"]), strict=True)
            made = r.copy()
            for mine, theirs in pairs:
                made[r == theirs] = mine
            return np.array_equal(made, t)
        case Batches.SOME_ROWS:
            apart = t != r
            rows, columns = apart.any(1).sum(), apart.any(0).sum()
            return (rows, len(t), columns) == (facts["num"], facts["total"], facts["num_positions"])
        case Batches.MORE_ROWS:
            fewer, more = sorted((rows_of(t), rows_of(r)), key=Counter.total)
            return not fewer - more and (len(t), len(r)) == (facts["target"], facts["reference"])
        case Batches.SHAPE:
            return facts["shared"] == len(set(rows_of(t)) & set(rows_of(r)))
        case Batches.COUNTING:
            return all(
                np.array_equal(x, x[:1, :1] + np.tile(np.arange(x.shape[1]), (len(x), 1))) for x in (t, r)
            )
        case Batches.OFFSET:
            return np.array_equal(t, r + facts["offset"])
        case Batches.BEGIN_ANEW:
            return (facts["target"], facts["reference"]) == ((t[:, 1:] == 0).sum(), (r[:, 1:] == 0).sum())
        case Batches.OTHER:
            return bool(np.isclose(facts["share"], (t != r).mean())) and rows_of(t) != rows_of(r)
    return True


BASES: dict[str, Callable[[Draw, tuple[int, int]], Ids]] = {
    "ids": lambda draw, shape: draw.integers(5, 500, shape),
    "few ids": lambda draw, shape: draw.integers(0, 3, shape),
    "flags": lambda draw, shape: draw.integers(0, 2, shape),
    "count": lambda draw, shape: np.tile(np.arange(shape[1]), (shape[0], 1)),
    "equal rows": lambda draw, shape: np.tile(draw.integers(5, 500, shape[1]), (shape[0], 1)),
    "padded": lambda draw, shape: np.where(
        np.arange(shape[1]) < draw.integers(1, shape[1] + 1, (shape[0], 1)), draw.integers(5, 500, shape), 0
    ),
}
CHANGES: dict[str, Callable[[Ids, Draw], Ids]] = {
    "rows": lambda x, draw: x[draw.permutation(len(x))],
    "rolled": lambda x, draw: np.roll(x, draw.integers(-3, 4), 1),
    "offset": lambda x, draw: x + draw.integers(-4, 5),
    "by row": lambda x, draw: x + draw.integers(0, 5, (len(x), 1)),
    "another id": lambda x, draw: np.where(x == x.flat[draw.integers(x.size)], 1, x),
    "one place": lambda x, draw: np.where(np.arange(x.size).reshape(x.shape) == draw.integers(x.size), 3, x),
    "some rows": lambda x, draw: np.where(draw.random((len(x), 1)) < 0.3, draw.integers(5, 500, x.shape), x),
    "shorter": lambda x, draw: x[:, : max(1, x.shape[1] - draw.integers(1, 4))],
    "fewer": lambda x, draw: x[: max(1, len(x) - 2)],
    "cut": lambda x, draw: x.ravel()[draw.integers(0, 3) :][: (len(x) - 1) * x.shape[1]].reshape(
        -1, x.shape[1]
    ),
    "as others": lambda x, draw: x.reshape(-1, x.shape[1] // 2) if x.shape[1] % 2 == 0 else x,
    "anew": lambda x, draw: x % max(2, x.shape[1] // 2),
    "inverted": lambda x, draw: 1 - x,
}


@settings(max_examples=250, derandomize=True)
@given(
    seed=st.integers(0, 2**16),
    shape=st.sampled_from([(6, 24), (2, 8), (4, 16), (3, 1), (1, 12)]),
    base=st.sampled_from(sorted(BASES)),
    of_target=st.lists(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=2),
    of_reference=st.lists(st.sampled_from(sorted(CHANGES)), max_size=1),
)
def test_what_is_said_of_any_two_batches_is_true(
    seed: int, shape: tuple[int, int], base: str, of_target: list[str], of_reference: list[str]
) -> None:
    draw = np.random.default_rng(seed)
    made = BASES[base](draw, shape)
    sides = []
    for names in (of_target, of_reference):
        side = made
        for name in names:
            side = CHANGES[name](side, draw) if side.size else side
        sides.append(np.ascontiguousarray(side, np.int64))
    if all(side.size for side in sides):
        found = relation(*sides).evidence
        assert is_true(found, *sides), found


FEW = np.random.default_rng(4).integers(0, 6, (6, 24))
TEMPLATE = np.where(np.arange(24) < 16, 7, IDS)


@pytest.mark.parametrize(
    ("target", "reference", "same"),
    [
        (replaced([2, 4], [3, 5]), IDS, True),
        (replaced([0, 1, 2, 3, 4, 5], [3, 5]), IDS, True),
        (replaced([2], list(range(10))), IDS, True),
        (replaced([2], list(range(14))), IDS, False),
        (IDS[[1, 1, 2, 3, 4, 5]], IDS, False),
        (TEMPLATE[[1, 1, 2, 3, 4, 5]], TEMPLATE, False),
        (np.where(IDS % 9, TEMPLATE, 1), TEMPLATE, True),
        (IDS[:1] + 1, IDS[:1], False),
        (IDS[:, :20], IDS, True),
        (IDS[:, :8], IDS, False),
        (np.insert(IDS, 5, 1, 1)[:, :-1], IDS, True),
        (np.insert(IDS, slice(1, None), 1, 1)[:, :24], IDS, False),
        (np.insert(IDS, 5, 1, 1)[[1, 1, 2, 3, 4, 5], :-1], IDS, False),
        (np.insert(TEMPLATE, 5, 1, 1), TEMPLATE, True),
        (FEW[::-1], FEW, False),
        (IDS[:5], IDS, False),
        (np.where(MASK > 0, IDS, -100)[:, 1:], np.where(MASK > 0, IDS, -100), True),
    ],
    ids=[
        "some tokens",
        "some tokens of all rows",
        "many tokens of a row",
        "most tokens of a row",
        "a row again",
        "a row again, of one template",
        "tokens of one template",
        "a single row",
        "cut off",
        "mostly cut off",
        "a token put in",
        "a token put in behind each",
        "a token put in and a row again",
        "a token put into a template",
        "other rows of few different ids",
        "fewer rows",
        "labels cut off",
    ],
)
def test_rows_of_the_same_samples_share_what_no_other_row_has(
    target: Ids, reference: Ids, same: bool
) -> None:
    assert are_the_same_samples(target, reference) is same


SHORT = np.array([[1, 5, 6, 2, 9, 0], [1, 7, 8, 2, 9, 9], [1, 5, 8, 2, 0, 0]])
"""rows of one template, padded with 0: no row has four tokens of its own"""


def put_in(*block: int, at: int = 1, last: int | None = None) -> Ids:
    """The rows with tokens put in; ``last``: another token at the end of the last row's."""
    rows = [np.concatenate([row[:at], block, row[at:]]) for row in SHORT]
    if last is not None:
        rows[-1][3 + len(block)] = last
    return np.array(rows)


@pytest.mark.parametrize(
    ("target", "same"),
    [
        (put_in(3, 4), True),
        (put_in(3, 4, at=0), True),
        (put_in(3, 4, last=11), False),
        (SHORT[[1, 0, 2], :5], False),
    ],
)
def test_one_block_put_in_is_the_same_samples(target: Ids, same: bool) -> None:
    assert are_the_same_samples(target, SHORT) is same
    assert are_the_same_samples(SHORT, target) is same
