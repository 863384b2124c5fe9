"""What a mask hides, and masks brought to one form."""

from __future__ import annotations

import numpy as np
import pytest

from trueup.numerics.hidden import HIDDEN, in_common_form, in_form_of, with_hidden_as_infinite


def test_a_number_just_above_is_a_number() -> None:
    near = np.array([np.nextafter(HIDDEN, 0), HIDDEN, np.nextafter(HIDDEN, -np.inf)])
    assert np.isneginf(with_hidden_as_infinite(near, "float64")).tolist() == [False, True, True]
    assert with_hidden_as_infinite(np.array([-65504.0]), "float32")[0] == -65504
    assert np.isneginf(with_hidden_as_infinite(np.array([-65504.0]), "float16"))[0]


def test_numbers_of_another_meaning_have_no_common_form() -> None:
    numbers, flags = np.array([0.5, 1.0], np.float32), np.array([True, False])
    assert in_common_form(flags, "bool", numbers, "float32") is None
    assert in_form_of(flags, "bool", numbers, "float32") is None
    assert in_form_of(numbers, "float32", flags, "bool") is None


@pytest.mark.parametrize("hidden", [float(np.finfo(np.float32).min), -np.inf, -1e9])
def test_a_mask_takes_the_form_of_the_other(hidden: float) -> None:
    visible = np.array([[True, False], [True, True]])
    additive = np.where(visible, 0, hidden).astype(np.float32)
    made = in_form_of(visible, "bool", additive, "float32")
    assert made is not None
    assert made.dtype == np.bool_
    assert (made == visible).all()
    back = in_form_of(additive, "float32", ~visible, "bool")
    assert back is not None
    assert back.dtype == np.float32
    assert (back == np.where(visible, np.float32(hidden), 0)).all()


def test_booleans_hide_where_the_module_that_reads_them_lets_them() -> None:
    """Fused attention shows where a mask is True, ``nn.MultiheadAttention`` hides there; one element that is
    another still is."""
    later = np.triu(np.ones((6, 6), bool), 1)
    additive = np.where(later, -np.inf, 0.0).astype(np.float32)
    off_by_one = np.triu(np.ones((6, 6), bool), 2)
    for flags, hiding, apart in (
        (later, True, 0),
        (~later, False, 0),
        (off_by_one, True, 5),
        (~off_by_one, False, 5),
        (later, False, 36),
        (~later, True, 36),
    ):
        forms = in_common_form(flags, "bool", additive, "float32", true_hides=hiding)
        assert forms is not None
        assert int((forms[0] != forms[1]).sum()) == apart
        made = in_form_of(flags, "bool", additive, "float32", true_hides=hiding)
        assert made is not None
        assert int((made != flags).sum()) == apart
        back = in_form_of(additive, "float32", flags, "bool", true_hides=hiding)
        assert back is not None
        assert int((back != additive).sum()) == apart


def test_a_mask_that_hides_nothing_has_either_flag() -> None:
    zeros = np.zeros(4, np.float32)
    for value in (False, True):
        forms = in_common_form(np.full(4, value), "bool", zeros, "float32")
        assert forms is not None
        assert (forms[0] == forms[1]).all()
    forms = in_common_form(np.array([True, True, False, True]), "bool", zeros, "float32")
    assert forms is None or (forms[0] != forms[1]).any()


def test_an_additive_mask_that_hides_nothing_is_all_true() -> None:
    made = in_form_of(np.ones(3, bool), "bool", np.zeros(3, np.float32), "float32")
    assert made is not None
    assert made.all()
