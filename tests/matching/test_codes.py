"""Rows of integer columns numbered as numpy numbers rows of a table, however wide their values lie."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from trueup.matching.codes import numbered

WIDE = st.integers(-(2**62), 2**62) | st.integers(-3, 3)


@given(arrays.arrays(np.int64, st.tuples(st.just(3), st.integers(1, 12)), elements=WIDE))
def test_as_rows_of_a_table(columns):
    expected = np.unique(columns.T, axis=0, return_inverse=True)[1].reshape(-1)
    assert numbered(*columns).tolist() == expected.tolist()


def test_of_no_rows():
    assert len(numbered(np.zeros(0, np.int64), np.zeros(0, np.int64))) == 0
