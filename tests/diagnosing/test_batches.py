"""Batches against batches, labels against inputs, weights against weights: each relation by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trueup.diagnosing.batches import label_facts, moved, relation, rows_found, rows_in_place, value_relation
from trueup.diagnosing.stages.data import _for_all_rows, _is_one_for_all_rows, _is_padded_otherwise
from trueup.diagnosing.stages.weight_change import change_of
from trueup.types.codes import BatchCode as Batches
from trueup.types.codes import WeightsCode

IDS = np.random.default_rng(0).integers(5, 500, (4, 32))
PAD = 0


def padded(width: int, *, left: bool, pad: int = PAD) -> Any:
    """Rows of 20 tokens, padded to a width."""
    rows = IDS[:, :20]
    fill = np.full((4, width - 20), pad)
    return np.hstack([fill, rows] if left else [rows, fill])


def with_ids(old: int, new: int) -> Any:
    """One id in place of another, wherever it stands."""
    ids = IDS.copy()
    ids[:, ::7] = old
    return np.where(ids == old, new, ids)


@pytest.mark.parametrize(
    ("target", "reference", "name"),
    [
        (IDS, IDS, "same"),
        (IDS[[2, 0, 3, 1]], IDS, "order"),
        (np.roll(IDS, -1, axis=1), IDS, "shift"),
        (IDS[:, :-2], IDS[:, 2:], "shift"),
        (padded(24, left=True), padded(24, left=False), "padding"),
        (padded(24, left=False, pad=3), padded(28, left=False), "padding"),
        (IDS.reshape(8, 16), IDS, "packing"),
        (with_ids(1, 2), with_ids(1, 1), "mapped_ids"),
        (np.vstack([IDS[:3], IDS[:1] + 1]), IDS, "some_rows"),
        (IDS[:2], IDS, "more_rows"),
        (IDS + 1, IDS, "offset"),
        (np.array([[0], [3], [0], [1]]), np.array([[5], [3], [5], [1]]), "some_rows"),
        (IDS + 1 + (IDS.max() == IDS), IDS, "other"),
    ],
)
def test_how_a_batch_differs_is_named(target: Any, reference: Any, name: str) -> None:
    assert relation(target, reference).name == name


LENGTHS = np.array([5, 9, 12, 7])
KEPT = (np.arange(14) < LENGTHS[:, None]).astype(np.int64)
ANSWERS = KEPT * (np.arange(14) >= 3)


@pytest.mark.parametrize(
    ("target", "reference", "name", "facts"),
    [
        (
            KEPT * (np.arange(14) < LENGTHS[:, None] - 1),
            KEPT,
            "flags",
            {"fewer": 4, "length": 1, "end": "last"},
        ),
        (KEPT, KEPT * (np.arange(14) > 1), "flags", {"more": 8, "length": 2, "end": "first"}),
        (np.ones_like(KEPT), KEPT, "flags", {"more": 23, "length": 0, "end": ""}),
        (1 - KEPT, KEPT, "flags", {"inverted": True}),
        (np.roll(ANSWERS, -1, axis=1), ANSWERS, "shift", {"shift": 1}),
        (KEPT[[1, 0, 3, 2]], KEPT, "order", {}),
        (KEPT + 2, KEPT, "offset", {}),
    ],
    ids=["one shorter", "from the third", "all ones", "inverted", "shifted", "reordered", "no flags"],
)
def test_masks_that_are_shorter_are_not_shifted(
    target: Any, reference: Any, name: str, facts: dict[str, Any]
) -> None:
    found = relation(target, reference)
    assert found.name == name
    assert {key: found.evidence.facts[key] for key in facts} == facts


PIXELS = np.random.default_rng(4).standard_normal((4, 3, 6, 5)).astype(np.float32).astype(np.float64)


ONCE = np.arange(32)[None]


@pytest.mark.parametrize(
    ("target", "reference", "is_one"),
    [
        (ONCE, np.repeat(ONCE, 4, 0), True),
        (np.repeat(ONCE, 4, 0), ONCE, True),
        (ONCE, np.repeat(ONCE, 4, 0) + (np.arange(4) == 2)[:, None], False),
        (ONCE, ONCE, False),
        (ONCE[:, :31], np.repeat(ONCE, 4, 0), False),
        (np.repeat(ONCE, 2, 0), np.repeat(ONCE, 4, 0), False),
        (np.arange(4), np.arange(1), False),
    ],
)
def test_one_row_for_all_is_what_all_rows_repeat(target: Any, reference: Any, is_one: bool) -> None:
    """Positions and masks: given once, or once a row, or put together of microbatches that have the same."""
    assert _is_one_for_all_rows(target, reference) is is_one


def test_one_row_beside_rows_of_their_own_is_compared_row_by_row() -> None:
    own = np.repeat(ONCE, 4, 0) - np.array([0, 3, 1, 0])[:, None]
    whole, other = _for_all_rows(ONCE, own)
    assert relation(whole, other).name == "offset_by_row"
    assert _for_all_rows(ONCE, np.repeat(ONCE, 4, 0))[0] is ONCE
    assert _for_all_rows(ONCE, own[:, :31])[0] is ONCE


@pytest.mark.parametrize(
    ("name", "shape", "follows"),
    [
        ("microbatch 0, input.attention_mask", (1, 662), True),
        ("microbatch 0, input.position_ids", (4, 30), True),
        ("microbatch 0, input.input_ids", (4, 30), False),
        ("microbatch 0, input.attention_mask", (4, 32), False),
    ],
)
def test_a_mask_of_another_shape_follows_from_padding(
    name: str, shape: tuple[int, ...], follows: bool
) -> None:
    assert _is_padded_otherwise(name, np.ones(shape, np.int64), np.ones((4, 32), np.int64)) is follows


def displaced(by: int) -> Any:
    """Labels of rows padded on the left, moved to the left as a collator does that shifts them itself."""
    labels = padded(26, left=True, pad=-100)
    return np.pad(labels[:, by:], ((0, 0), (0, by)), constant_values=-100)


@pytest.mark.parametrize("by", [1, 2])
def test_labels_that_all_move_alike_are_moved(by: int) -> None:
    found = moved(displaced(by), displaced(0))
    assert found is not None
    assert (found.name, found.evidence.number("shift")) == ("shift", by)
    assert moved(displaced(0), displaced(0)) is None


def test_rows_padded_on_the_other_side_do_not_move_alike() -> None:
    labels = padded(26, left=True, pad=-100)
    for row, width in enumerate((3, 6, 5, 2)):
        labels[row, : 6 + width] = -100
    other = np.stack([np.roll(row, -np.sum(row == -100)) for row in labels])
    assert relation(other, labels).name == "padding"
    assert moved(other, labels) is None


ROW = np.arange(12)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (np.stack([ROW, ROW]), "begin_anew"),
        (np.stack([ROW % 6, ROW % 6]), "other"),
        (np.stack([ROW + 1, ROW + 1]), "other"),
    ],
    ids=["run through", "begin anew as often", "count from 1"],
)
def test_positions_that_begin_anew_on_one_side(target: Any, name: str) -> None:
    packed = np.stack([np.concatenate([ROW[:5], ROW[:7]]), np.concatenate([ROW[:4], ROW[:8]])])
    assert relation(target, packed).name == name


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (ROW[:8, None], "counting"),
        (np.stack([ROW[:8], ROW[:8]]), "counting"),
        (np.array([0, 1, 2, 3, 0, 1, 2, 3])[:, None], "other"),
        (np.array([8, 9, 10, 11, 12, 13, 15, 14])[:, None], "order"),
    ],
    ids=["one dim", "rows", "begin anew", "in another order"],
)
def test_positions_that_count_from_another_number(target: Any, name: str) -> None:
    reference = np.broadcast_to(8 + ROW[:8], target.T.shape if target.shape[1] == 1 else target.shape)
    found = relation(target, reference.T if target.shape[1] == 1 else reference)
    assert found.name == name
    if name == "counting":
        assert (found.evidence.number("target"), found.evidence.number("reference")) == (0, 8)


def test_positions_of_one_dim_that_begin_anew() -> None:
    assert relation(np.tile(ROW[:6], 2)[:, None], ROW[:, None]).name == "begin_anew"


ROWS = np.random.default_rng(1).integers(0, 50, (8, 12))


@pytest.mark.parametrize(
    ("target", "name", "repeated"),
    [
        (np.concatenate([ROWS, ROWS[:2]]), "more_rows", 2),
        (ROWS[:6], "more_rows", 0),
        (np.concatenate([ROWS, ROWS[:2] + 1]), "more_rows", 0),
        (np.concatenate([ROWS[:7], ROWS[:3] + 1]), "shape", None),
        (ROWS.reshape(16, 6), "packing", None),
        (ROWS[::-1], "order", None),
    ],
    ids=["repeated", "left out", "others", "one is lacking", "cut otherwise", "as many"],
)
def test_a_batch_that_holds_all_rows_of_the_other(target: Any, name: str, repeated: int | None) -> None:
    found = relation(target, ROWS)
    assert (found.name, found.evidence.number("repeated")) == (name, repeated)


OTHERS = np.random.default_rng(2).integers(1, 5000, (8, 14))
LONG = np.random.default_rng(3).integers(1, 5000, (8, 12))


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (OTHERS, "other_lengths"),
        (np.where(np.arange(14) < 13, OTHERS, 0), "other_lengths"),  # padded, too
        (np.concatenate([np.pad(LONG[:2], ((0, 0), (0, 2))), OTHERS[:6]]), "other_lengths"),
        (np.concatenate([np.pad(LONG[:6], ((0, 0), (0, 2))), OTHERS[:2]]), "shape"),
        (np.insert(np.insert(LONG, 5, 4999, axis=1), 3, 7, axis=1), "shape"),  # two tokens more in each row
    ],
)
def test_other_rows_are_filled_up_to_other_lengths(target: Any, name: str) -> None:
    found = relation(target, LONG)
    assert found.name == name
    assert found.evidence.code is Batches.SHAPE


def test_ids_that_all_differ_by_one_number_count_nothing() -> None:
    ids = np.random.default_rng(0).integers(0, 50, (4, 12))
    assert relation(ids + 3, ids).name == "offset"


def with_rows(*rows: int) -> Any:
    """The pixels, some rows of which are others."""
    found = PIXELS.copy()
    found[list(rows)] = np.random.default_rng(8).standard_normal((len(rows), *PIXELS.shape[1:]))
    return found


def noisy(sigma: float) -> Any:
    return PIXELS + sigma * np.random.default_rng(5).standard_normal(PIXELS.shape)


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (PIXELS[:, ::-1], Batches.MOVED),
        (PIXELS[:, :, :, [1, 2, 3, 4, 0]], Batches.MOVED),
        (PIXELS.transpose(0, 1, 3, 2), Batches.LAID_OUT),
        (PIXELS.reshape(4, 3, 5, 6), Batches.SHAPE),
        (np.random.default_rng(6).permutation(PIXELS.ravel()).reshape(PIXELS.shape), Batches.SAME_NUMBERS),
        (2 * PIXELS - 1, Batches.SCALED),
        (PIXELS + 0.5, Batches.SCALED),
        (255 * PIXELS, Batches.SCALED),
        (2 * PIXELS[:, ::-1] - 1, Batches.MOVED_AND_SCALED),
        (PIXELS[:, ::-1] * np.arange(1, 1 + PIXELS.shape[1])[:, None, None], Batches.MOVED_AND_SCALED),
        (PIXELS * np.arange(1, 1 + PIXELS.shape[1])[:, None, None], Batches.SCALED_BY_CHANNEL),
        (PIXELS[:, ::-1] + noisy(1e-4) - PIXELS, None),
        (noisy(1e-4), Batches.SAME_SAMPLES),
        (PIXELS**3, Batches.MONOTONE),
        (np.maximum(PIXELS, 0.4), Batches.LIMITED),
        (np.minimum(PIXELS, np.linspace(0.5, 0.8, 4)[:, None, None, None]), Batches.LIMITED),
        (np.maximum(PIXELS, 0.4) + 1e-3 * (PIXELS > 0.6), Batches.SAME_SAMPLES),
        (np.full(PIXELS.shape, 0.5), Batches.CONSTANT),
        (with_rows(1), Batches.SOME_SAMPLES),
        (noisy(1e-4)[::-1], None),
        (np.random.default_rng(9).standard_normal(PIXELS.shape), None),
        (PIXELS[:, :2], None),
    ],
)
def test_what_became_of_pixels_is_named(target: Any, code: Batches | None) -> None:
    found = value_relation(target, PIXELS, 2.0**-24)
    assert (None if found is None else found.code) is code


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (PIXELS * (1 + 2.0**-9 * np.sign(noisy(1.0) - PIXELS)), Batches.ROUNDED),
        (PIXELS * 1.001, Batches.ROUNDED),
        (PIXELS * 1.05, Batches.SCALED),
        (PIXELS + 0.1, Batches.SCALED),
        (noisy(0.3), Batches.SAME_SAMPLES),
    ],
)
def test_no_factor_is_made_of_rounding(target: Any, code: Batches) -> None:
    found = value_relation(target, PIXELS, 2.0**-8)
    assert found is not None
    assert found.code is code


def test_a_bound_of_the_batch_and_one_of_each_sample_are_told() -> None:
    """Twin: padding of another value is no bound, though it is the smallest number on both sides."""
    loud = np.random.default_rng(3).standard_normal((3, 40)) + np.array([[0.0], [-2.0], [-5.0]])
    each = np.maximum(loud, loud.max(axis=1, keepdims=True) - 3)
    found = value_relation(np.maximum(loud, loud.max() - 3), each, 2.0**-24)
    assert found is not None
    assert (found.code, found.place("way")) == (Batches.LIMITED, "smallest")
    padded = np.where(np.arange(40) < 25, loud, -9.0)
    other = value_relation(np.where(np.arange(40) < 25, loud, -8.0), padded, 2.0**-24)
    assert other is None or other.code is not Batches.LIMITED


def test_rows_of_one_side_that_are_zeros_are_told() -> None:
    latents = np.random.default_rng(2).standard_normal((8, 3, 5))
    dropped = latents.copy()
    dropped[[2, 6]] = 0.0
    found = value_relation(dropped, latents, 2.0**-24)
    assert found is not None
    assert found.facts == {"num": 2, "total": 8, "rows": ("2", "6"), "zeros": "target"}


def test_one_number_everywhere_is_told_with_what_it_is() -> None:
    times = np.linspace(0.1, 0.9, 8)
    found = value_relation(np.full(8, 0.25), times, 2.0**-24)
    assert found is not None
    ends = {"target_least": 0.25, "target_most": 0.25, "reference_least": 0.1, "reference_most": 0.9}
    assert found.facts == pytest.approx(ends)
    shifted = value_relation(3 * times / (1 + 2 * times), times, 2.0**-24)
    assert shifted is not None
    assert shifted.code is Batches.MONOTONE
    assert value_relation(times[[1, 0, *range(2, 8)]] ** 2, times, 2.0**-24) is None


@pytest.mark.parametrize(
    ("order", "others", "kept"),
    [
        ((0, 1, 2, 3, 4, 5), (), 6),
        ((0, 1, 2, 3, 4, 5), (1, 4), 4),
        ((0, 1, 2, 3, 4, 5), (1, 3, 4), 0),
        ((0, 1, 2, 3, 5, 4), (), 0),
        ((5, 4, 3, 2, 1, 0), (), 0),
    ],
)
def test_rows_in_place_are_no_other_order_or_shard(order: Any, others: Any, kept: int) -> None:
    rows = np.random.default_rng(3).standard_normal((6, 4))
    target = rows[list(order)]
    target[list(others)] = 0.5
    assert rows_in_place(target, rows) == kept
    assert rows_in_place(np.ones((6, 4)), np.ones((6, 4))) == 0


def test_a_scale_and_an_offset_are_given() -> None:
    found = value_relation((PIXELS - 0.485) / 0.229, PIXELS, 2.0**-24)
    assert found is not None
    assert found.number("scale") == pytest.approx(1 / 0.229)
    assert found.number("offset") == pytest.approx(-0.485 / 0.229)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), shift=st.integers(-3, 3))
def test_labels_tell_their_shift(seed: int, shift: int) -> None:
    ids = np.random.default_rng(seed).integers(0, 1000, (3, 40))
    labels = np.roll(ids, -shift, axis=1)
    facts = label_facts(labels.ravel(), ids, ignore_index=-100, vocab_size=1000)
    assert (facts.shift, facts.counted, facts.outside) == (shift, 1.0, 0)


def test_unrelated_labels_have_no_shift_and_ignored_ones_do_not_count() -> None:
    other = np.random.default_rng(1).integers(0, 500, IDS.shape)
    other[:, :8] = -100
    facts = label_facts(other, IDS, ignore_index=-100, vocab_size=300)
    assert facts.shift is None
    assert facts.counted == 0.75
    assert facts.outside == int((other >= 300).sum())


def test_rows_are_found_in_other_batches() -> None:
    assert rows_found(IDS, IDS + 2, {"a": IDS[1:3], "b": IDS + 1}) == {"a": 2}


def test_rows_that_both_batches_hold_are_not_looked_for_elsewhere() -> None:
    reference = IDS.copy()
    reference[0] += 1
    assert rows_found(IDS, reference, {"here": reference, "a": IDS[:1], "b": IDS[1:]}) == {"a": 1}


def test_labels_of_few_classes_are_found_nowhere() -> None:
    """Of three classes every one is in every batch."""
    classes = np.array([[0], [1], [2], [1]])
    assert rows_found(classes, classes[::-1] % 2, {"a": classes}) == {}
    assert rows_found(IDS[:, :4], IDS[:, :4] + 1, {"a": IDS[:, :4]}) == {"a": 4}


SQUARE = np.random.default_rng(2).standard_normal((16, 16))


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (SQUARE.T, "transposed"),
        (SQUARE * 2, "scaled"),
        (-SQUARE, "negated"),
        (SQUARE[::-1], "permuted"),
        (SQUARE * 0, "zero"),
        (np.vstack([SQUARE[:12], SQUARE[:4] * 3]), "part"),
        (SQUARE.astype(np.float16).astype(float), "rounded"),
        (np.random.default_rng(3).standard_normal((16, 16)), "other_draw"),
        (np.random.default_rng(3).standard_normal((16, 16)) * 3, "other_init"),
        (SQUARE + 0.05 * np.random.default_rng(4).standard_normal((16, 16)), "near"),
        (SQUARE + np.random.default_rng(4).standard_normal((16, 16)), "related"),
        (SQUARE[:, :8], "shape"),
    ],
)
def test_how_a_weight_differs_is_named(target: Any, name: str) -> None:
    found = change_of(target, SQUARE, "float32", "float32")
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(("moved", "code"), [(True, WeightsCode.REARRANGED), (False, WeightsCode.PART)])
def test_numbers_in_another_order_that_no_row_or_column_has(moved: bool, code: WeightsCode) -> None:
    other = SQUARE.copy()
    other[0, 0], other[3, 5] = SQUARE[3, 5], SQUARE[0, 0] if moved else 7.0
    found = change_of(other, SQUARE, "float32", "float32")
    assert found is not None
    assert found.evidence.code is code


@pytest.mark.parametrize(("size", "name"), [(1, "number"), (2, "scaled")])
def test_a_single_number_is_no_factor(size: int, name: str) -> None:
    values = np.arange(1.0, size + 1)
    found = change_of(values, 2.659 * values, "float32", "float32")
    assert found is not None
    assert found.name == name


def test_the_same_weight_in_a_coarser_dtype_is_no_difference() -> None:
    coarse = SQUARE.astype(np.float16).astype(float)
    assert change_of(SQUARE, SQUARE, "float32", "float32") is None
    assert change_of(coarse, SQUARE, "float16", "float32") is None


def test_rows_of_thousands_of_ids_are_found() -> None:
    draw = np.random.default_rng(0)
    ids = draw.integers(50_000, size=(2, 4096))
    assert rows_found(ids, ids[::-1] + 1, {"step 1": ids[1:]}) == {"step 1": 1}


COUNTS = np.broadcast_to(np.arange(24), (4, 24))
PADDED = np.clip(COUNTS - np.array([[5], [0], [11], [3]]), 0, None)


@pytest.mark.parametrize(
    ("target", "name", "offsets"),
    [
        (COUNTS, "offset_by_row", ("5", "0", "11", "3")),
        (PADDED + 7, "offset", None),
        (np.random.default_rng(0).permutation(PADDED.ravel()).reshape(4, 24), "other", None),
        (np.where(COUNTS == 20, 3, COUNTS), "other", None),
    ],
    ids=["from the edge of the window", "all by one number", "in no order", "not counting on"],
)
def test_positions_that_begin_elsewhere(target: Any, name: str, offsets: tuple[str, ...] | None) -> None:
    found = relation(target, PADDED)
    assert (found.name, found.evidence.place("offsets")) == (name, offsets)


MEANS, DEVIATIONS = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
IMAGES = np.random.default_rng(1).random((8, 3, 6, 6))


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("dim", [1, 3])
def test_channels_of_other_means(dim: int, noise: float) -> None:
    own, other = np.moveaxis(IMAGES, 1, -1), (np.moveaxis(IMAGES, 1, -1) - MEANS) / DEVIATIONS
    own = (own - 0.5) / 0.5 + noise * np.random.default_rng(2).standard_normal(own.shape)
    found = value_relation(*(np.moveaxis(values, -1, dim) for values in (own, other)), 2.0**-24)
    if noise:
        assert found is not None
        assert found.code is Batches.SAME_SAMPLES
    else:
        assert found is not None
        assert (found.code, found.number("dim")) == (Batches.SCALED_BY_CHANNEL, dim)
        assert found.place("scales") == ("0.458", "0.448", "0.45")


CLASSES = np.array([[5], [5], [3], [0], [1], [3]])
PICTURES = np.random.default_rng(0).normal(size=(6, 4))


def test_labels_of_classes_are_in_another_order_where_what_came_with_them_is() -> None:
    order = [2, 0, 1, 5, 4, 3]
    beside = [(PICTURES[order], PICTURES)]
    assert relation(CLASSES[order], CLASSES).name == "order"
    assert relation(CLASSES[order], CLASSES, beside).name == "order"


def test_labels_of_classes_that_chance_drew_again_beside_other_pictures_are_in_no_order() -> None:
    other = np.random.default_rng(1).normal(size=PICTURES.shape)
    assert relation(CLASSES[[2, 0, 1, 3, 4, 5]], CLASSES, [(other, PICTURES)]).name == "some_rows"


def test_rows_that_chance_does_not_draw_again_are_in_an_order_whatever_came_with_them() -> None:
    """Noise that a program draws beside the rows, for one."""
    rows = np.random.default_rng(2).integers(0, 1000, (6, 12))
    other = np.random.default_rng(1).normal(size=PICTURES.shape)
    assert relation(rows[::-1], rows, [(other, PICTURES)]).name == "order"
