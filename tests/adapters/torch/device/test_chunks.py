"""Summaries by torch operations against the definitions, and what they cost."""

from __future__ import annotations

import weakref
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from tests.numerics.arrays import arrays
from tests.numerics.test_kernel import assert_same
from trueup.adapters.placing import TensorPlace
from trueup.adapters.torch.device import chunks
from trueup.adapters.torch.device.boxes import boxes_of, runs_of
from trueup.adapters.torch.device.chunks import Chunks
from trueup.adapters.torch.device.parts import Whole, summaries_from_parts
from trueup.adapters.torch.device.transfer import parts_from_numbers
from trueup.numerics._native import summarise_by_definition
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.summary import HAS_DIGEST, HAS_SKETCH, HAS_STATISTICS

pytestmark = pytest.mark.torch
NARROW = [name for name in DTYPES if name not in ("float64", "complex128")]
ALL = HAS_STATISTICS | HAS_DIGEST | HAS_SKETCH


def tensor_of(array: NDArray[Any], dtype: str) -> torch.Tensor:
    """The array as a tensor with the same strides."""
    kind = array.dtype if array.dtype.kind == "c" else np.dtype(f"i{array.itemsize}")
    wanted = getattr(torch, dtype)
    if not array.size:
        return torch.zeros(array.shape, dtype=wanted)
    strides = [stride // array.itemsize for stride in array.strides]
    length = 1 + sum((n - 1) * step for n, step in zip(array.shape, strides, strict=True))
    memory = np.lib.stride_tricks.as_strided(array, (length,), (array.itemsize,))
    return torch.from_numpy(memory.copy().view(kind)).view(wanted).as_strided(array.shape, strides)


def summarised(
    tensor: torch.Tensor, dtype: str, want: int = ALL, place: TensorPlace | None = None, *, wide: bool
) -> np.void:
    """The summary of one tensor."""
    work = Chunks(tensor.device, wide=wide)
    numbers = work.numbers_of(tensor, dtype, want, place)
    numel = tensor.numel()
    whole = Whole(
        row=0,
        numel=numel,
        num_real=numel * (2 if tensor.is_complex() else 1),
        want=want,
        num_parts=len(numbers),
    )
    parts = parts_from_numbers(numbers, wide=wide) if numbers else None
    row: np.void = summaries_from_parts(parts, [whole])[0]
    return row


@settings(deadline=None, max_examples=60)
@given(arrays(), st.sampled_from([1 << 20, 100, 1]))
def test_equals_the_definition_whatever_the_boxes(case: tuple[NDArray[Any], str], limit: int) -> None:
    array, dtype = case
    with mock.patch.object(chunks, "MAX_BOX", limit):
        actual = summarised(tensor_of(array, dtype), dtype, wide=True)
    assert_same(actual, summarise_by_definition(array, ALL, dtype))


@settings(deadline=None, max_examples=100)
@given(
    arrays([name for name in DTYPES if name not in ("float64", "complex128")]),
    st.sampled_from([1 << 20, 100]),
)
def test_equals_the_definition_without_float64(case: tuple[NDArray[Any], str], limit: int) -> None:
    array, dtype = case
    with mock.patch.object(chunks, "MAX_BOX", limit), NoFloat64():
        numbers = summarised(tensor_of(array, dtype), dtype, wide=False)
    assert_same(numbers, summarise_by_definition(array, ALL, dtype))


class NoFloat64(TorchDispatchMode):
    """As on a device that has none."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype in (torch.float64, torch.complex128):
            raise TypeError(f"{func} made float64")
        return result


class Cost(TorchDispatchMode):
    """Operations, and bytes of their results alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []
        self.most = self._alive = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations.append(str(func))
        if isinstance(result, torch.Tensor) and not func.is_view and result._base is None:
            size = result.untyped_storage().nbytes()
            self._alive += size
            self.most = max(self.most, self._alive)
            weakref.finalize(result.untyped_storage(), self._freed, size)
        return result

    def _freed(self, size: int) -> None:
        self._alive -= size


VIEWS = (
    "view",
    "reshape",
    "detach",
    "slice",
    "unsqueeze",
    "expand",
    "alias",
    "permute",
    "select",
    "as_strided",
)


def cost_of(tensor: torch.Tensor, dtype: str, want: int = ALL, *, wide: bool = True) -> Cost:
    """What one tensor costs once the constants are there."""
    work = Chunks(tensor.device, wide=wide)
    work.numbers_of(tensor, dtype, want, None)
    with Cost() as cost:
        work.numbers_of(tensor, dtype, want, None)
    return cost


def launches(cost: Cost) -> list[str]:
    """Operations that run something on a device."""
    return [name for name in cost.operations if not any(view in name for view in VIEWS)]


@pytest.mark.parametrize(("want", "most"), [(HAS_STATISTICS, 26), (ALL, 48)])
def test_few_operations_a_tensor(want: int, most: int) -> None:
    cost = cost_of(torch.randn(64, 48).bfloat16(), "bfloat16", want)
    assert len(launches(cost)) <= most, launches(cost)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_scratch_is_bounded_whatever_the_tensor(layout: str, wide: bool) -> None:
    tensor = torch.randn(2048, 3000).bfloat16()
    cost = cost_of(tensor.t() if layout == "transposed" else tensor, "bfloat16", wide=wide)
    assert 8 << 20 < cost.most <= 64 << 20


def test_scratch_of_a_part_of_short_rows_is_bounded() -> None:
    work, tensor = Chunks(torch.device("cpu")), torch.randn(3000, 2, 8)
    place = TensorPlace("", None, (3000, 2, 8), (3000, 2, 64), (((slice(None),) * 3, (0, 0, 16)),))
    work.numbers_of(tensor, "float32", ALL, place)
    with Cost() as cost:
        numbers = work.numbers_of(tensor, "float32", ALL, place)
    assert len(numbers) > 2
    assert cost.most <= 64 << 20


@pytest.mark.parametrize("wide", [True, False])
def test_sketches_of_parts_add_up_to_the_whole(wide: bool) -> None:
    whole = torch.randn(6, 5, 130)
    total = np.zeros(64)
    for first in (0, 65):
        part = whole[:, :, first : first + 65].clone()
        place = TensorPlace("", None, (6, 5, 65), (6, 5, 130), (((slice(None),) * 3, (0, 0, first)),))
        found = summarised(part, "float32", place=place, wide=wide)
        assert_same_but_sketch(found, summarise_by_definition(part.numpy(), ALL, "float32"))
        total += found["sketch"]
    expected = summarise_by_definition(whole.numpy(), ALL, "float32")["sketch"]
    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-5)


def assert_same_but_sketch(actual: np.void, expected: np.void) -> None:
    actual = actual.copy()
    actual["sketch"] = expected["sketch"]
    assert_same(actual, expected)


def test_conjugated_and_negated_views() -> None:
    values = torch.randn(7, 130, dtype=torch.complex64)
    conjugated = values.conj()
    assert conjugated.is_conj()
    assert_same(
        summarised(conjugated, "complex64", wide=True),
        summarise_by_definition(conjugated.resolve_conj().numpy(), ALL, "complex64"),
    )
    negated = values.conj().imag
    assert negated.is_neg()
    assert_same(
        summarised(negated, "float32", wide=True),
        summarise_by_definition(negated.resolve_neg().numpy(), ALL, "float32"),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("wide", [True, False])
def test_huge_and_tiny_values(dtype: str, wide: bool) -> None:
    """Squares of them overflow and underflow float32."""
    for scale in (1e30, 1e-30):
        tensor = (torch.randn(5000) * scale).to(getattr(torch, dtype))
        bits = tensor.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else tensor.numpy()
        assert_same(summarised(tensor, dtype, wide=wide), summarise_by_definition(bits, ALL, dtype))


@given(st.lists(st.integers(1, 6), max_size=4), st.integers(1, 40))
def test_boxes_cover_a_tensor_in_order(shape: list[int], limit: int) -> None:
    marks = np.arange(int(np.prod(shape))).reshape(shape)
    seen = []
    for box in boxes_of(shape, limit):
        part = marks[tuple(slice(a, a + n) for a, n in zip(box.start, box.size, strict=True))]
        assert 0 < part.size <= limit
        seen += part.ravel().tolist()
    assert seen == list(range(marks.size))


@given(st.data())
def test_runs_are_where_the_box_lies_in_the_whole(data: st.DataObject) -> None:
    whole = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    start = [data.draw(st.integers(0, n - 1)) for n in whole]
    size = [data.draw(st.integers(1, n - a)) for n, a in zip(whole, start, strict=True)]
    runs = runs_of(size, whole, start)
    at = np.array([runs.first])
    for count, step in runs.steps:
        at = (at[:, None] + np.arange(count) * step).ravel()
    flat = (at[:, None] + np.arange(runs.length)).ravel()
    marks = np.arange(int(np.prod(whole))).reshape(whole)
    expected = marks[tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))].ravel()
    assert flat.tolist() == expected.tolist()
    assert runs.last == expected[-1]
