"""Labels beside tokens: how they are moved is told, and moving is undone by moving back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.batches.made import ids
from trueup.batches.labels import agreement, laid_beside, moved, shift_of


def shift(labels: np.ndarray, tokens: np.ndarray) -> int | None:
    return shift_of(agreement(labels, labels != -100, tokens))


@given(seed=st.integers(0, 99), places=st.integers(-3, 3), ignored=st.floats(0, 0.8))
def test_the_shift_of_labels_is_told_though_some_are_ignored(seed: int, places: int, ignored: float) -> None:
    tokens = ids(seed, 3, 40)
    labels = moved(tokens, places, fill=-100)
    labels[np.random.default_rng(seed).random(labels.shape) < ignored] = -100
    assert shift(labels, tokens) == places


def test_labels_of_another_kind_have_no_shift() -> None:
    assert shift(ids(1, 3, 40), ids(2, 3, 40)) is None
    assert shift(np.full((3, 40), -100), ids(2, 3, 40)) is None


def test_where_the_ids_repeat_labels_count_as_moved() -> None:
    same = np.full((2, 16), 7)
    assert shift(same, same) == 1


def test_padding_that_counts_does_not_hide_that_labels_are_not_moved() -> None:
    tokens = np.zeros((2, 60), np.int64)
    tokens[:, :5] = ids(0, 2, 5)
    assert shift(tokens, tokens) == 0
    assert shift(moved(tokens, 1, fill=-100), tokens) == 1


def test_packed_rows_break_it_at_their_seams_only() -> None:
    tokens, labels = ids(0, 2, 48), ids(0, 2, 48)
    labels[:, :-1] = tokens[:, 1:]
    labels[:, 15::16] = 0
    assert shift(labels, tokens) == 1


@given(st.integers(1, 6), st.integers(1, 6), st.integers(-8, 8))
def test_moving_back_restores_what_was_not_moved_out(rows: int, width: int, places: int) -> None:
    array = ids(0, rows, width)
    back = moved(moved(array, places, fill=0), -places, fill=0)
    kept = back != 0
    assert np.array_equal(back[kept], array[kept])
    assert kept.sum() == rows * max(width - abs(places), 0)


@pytest.mark.parametrize("shape", [(24,), (3, 8), (8, 3), (24, 1), (3, 8, 1)])
def test_labels_of_any_layout_are_laid_beside_the_tokens(shape: tuple[int, ...]) -> None:
    tokens = ids(0, 3, 8)
    flat = tokens.T if shape == (8, 3) else tokens.reshape(shape)
    laid = laid_beside(flat, tokens)
    assert laid is not None
    assert np.array_equal(laid, tokens)


def test_a_row_one_short_is_filled_and_another_size_refused() -> None:
    tokens = ids(0, 3, 8)
    laid = laid_beside(tokens[:, 1:].reshape(-1), tokens)
    assert laid is not None
    assert laid[:, :-1].tolist() == tokens[:, 1:].tolist()
    assert set(laid[:, -1]) == {-100}
    assert laid_beside(tokens[:, 2:], tokens) is None
    assert laid_beside(np.array([1, 2, 3]), tokens) is None
