"""The Triton kernel, in Triton's interpreter, against the definitions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.adapters.torch.device.interpreted import summarised
from tests.adapters.torch.device.test_chunks import ALL, tensor_of
from tests.numerics.arrays import arrays
from tests.numerics.test_kernel import assert_same
from trueup.numerics._native import summarise_by_definition

pytestmark = pytest.mark.torch


@settings(deadline=None, max_examples=150)
@given(arrays(), st.sampled_from([1, 2, 8]), st.sampled_from([1, 3, 1024]))
def test_equals_the_definition(case: tuple[NDArray[Any], str], blocks: int, max_programs: int) -> None:
    array, dtype = case
    if array.size:
        found = summarised([tensor_of(array, dtype)], dtype, ALL, blocks=blocks, max_programs=max_programs)
        assert_same(found[0], summarise_by_definition(array, ALL, dtype))
