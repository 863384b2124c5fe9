"""The rows of a step: the kernel's are their definition's; small tensors become what the long way makes of
them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.numerics import rows
from trueup.numerics._native import EVERYTHING, kernels
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.summary import HAS_DIGEST, HAS_STATISTICS, SUMMARY_DTYPE

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.skipif(kernels is None, reason="the C kernel is not built")]
LIMIT = 4096
DTYPE_NAMES = [
    name for name in DTYPES if hasattr(torch, name) and not name.startswith("complex") and name != "uint16"
]


def summary(digest: int, mean: float = 0.0) -> Any:
    out = np.zeros(1, SUMMARY_DTYPE)
    out["digest"], out["mean"] = digest, mean
    return out


def content(some: Any) -> bytes:
    return b"".join(map(bytes, some.blocks))[: len(some) * SUMMARY_DTYPE.itemsize]


@given(
    st.lists(
        st.tuples(st.sampled_from(["commit", "keep", "later"]), st.integers(0, 5), st.integers(0, 40)),
        max_size=1200,
    )
)
def test_rows_are_their_definition(steps: list[tuple[str, int, int]]) -> None:
    fast, defined = kernels.Rows(), rows.Rows()
    for number, (what, kind, digest) in enumerate(steps):
        written = summary(digest << 58, number)
        address = 0 if what == "later" else written.ctypes.data
        method = "commit" if what == "commit" else "keep"
        assert getattr(fast, method)(kind, address) == getattr(defined, method)(kind, address)
    assert len(fast) == len(defined)
    assert fast.kinds == defined.kinds
    assert content(fast) == content(defined)
    assert kernels.BLOCK_ROWS == rows.BLOCK_ROWS


def test_what_is_alike_is_kept_once_among_thousands() -> None:
    some = kernels.Rows()
    written = summary(0)
    for again in range(2):
        for number in range(20_000):
            written["digest"] = number
            assert some.commit(number % 3, written.ctypes.data) == number, again
    assert len(some) == 20_000


def source(want: int = EVERYTHING, limit: int = LIMIT) -> Any:
    classes = (torch.Tensor, torch.nn.Parameter)
    return kernels.Source(torch.Tensor.__dlpack_c_exchange_api__, classes, torch.Tensor.is_neg, want, limit)


def taken(tensor: Any, want: int = EVERYTHING) -> Any:
    """The row of a tensor by the short way; None where it is left to the long one."""
    some = kernels.Rows()
    some.learn(7, DTYPES[str(tensor.dtype).removeprefix("torch.")].code, tuple(tensor.shape))
    row = source(want).take(some, tensor)
    if row < 0:
        assert len(some) == 0
        return None
    assert np.frombuffer(some.kinds, np.int32).tolist() == [7]
    return np.frombuffer(some.blocks[0], SUMMARY_DTYPE)[row]


@given(
    st.sampled_from(DTYPE_NAMES),
    st.lists(st.integers(0, 5), max_size=6),
    st.integers(0, 2**32 - 1),
    st.sampled_from([HAS_STATISTICS | HAS_DIGEST, EVERYTHING]),
    st.booleans(),
)
def test_a_small_tensor_as_by_the_long_way(
    name: str, shape: list[int], seed: int, want: int, permuted: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    whole = (torch.randn([*shape, 3], generator=generator) * 50).to(getattr(torch, name))
    tensor = whole[..., 1]  # strided, with an offset
    if permuted:
        turned = list(reversed(range(tensor.ndim)))
        tensor = tensor.permute(turned).contiguous().permute(turned)
    if tensor.numel() >= LIMIT:
        return
    expected = np.zeros(1, SUMMARY_DTYPE)
    code = DTYPES[name].code
    kernels.summarise(
        tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), code, want, expected.ctypes.data
    )
    found = taken(tensor, want)
    assert found is not None
    assert found.tobytes() == expected[0].tobytes()


class Own(torch.Tensor):
    """A tensor that may be anything."""


def without_memory() -> Any:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


LEFT_ALONE: dict[str, Callable[[], Any]] = {
    "sparse": lambda: torch.ones(4).to_sparse(),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8),
    "meta": lambda: torch.ones(4, device="meta"),
    "complex": lambda: torch.ones(4, dtype=torch.complex64),
    "negated when read": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    "of another class": lambda: torch.ones(4).as_subclass(Own),
    "without memory": lambda: without_memory(),
    "large": lambda: torch.ones(LIMIT),
    "of many dimensions": lambda: torch.ones([1] * 7),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
}


@pytest.mark.parametrize("what", LEFT_ALONE)
@pytest.mark.filterwarnings("ignore")
def test_left_to_the_long_way(what: str) -> None:
    tensor = LEFT_ALONE[what]()
    some = kernels.Rows()
    if what not in ("nested", "quantised"):
        some.learn(0, DTYPES[str(tensor.dtype).removeprefix("torch.")].code, tuple(tensor.shape))
    assert source().take(some, tensor) == -1
    assert len(some) == 0


def test_inside_a_transform_there_is_no_memory() -> None:
    some, seen = kernels.Rows(), []
    some.learn(0, DTYPES["float32"].code, (3,))

    def inside(x: Any) -> Any:
        seen.append(source().take(some, x))
        return x * 2

    torch.func.vmap(inside)(torch.ones(2, 3))
    assert seen == [-1]


def test_of_a_kind_not_met_before() -> None:
    some = kernels.Rows()
    for shape in ((3,), (3, 1), (1, 3), ()):
        assert source().take(some, torch.ones(shape)) == -1
    for kind, shape in enumerate([(3,), (3, 1), (1, 3), ()] + [(2, n) for n in range(500)]):
        some.learn(kind, DTYPES["float32"].code, shape)
    for kind, shape in enumerate([(3,), (3, 1), (1, 3), ()] + [(2, n) for n in range(500)]):
        row = source().take(some, torch.ones(shape))
        assert np.frombuffer(some.kinds, np.int32)[row] == kind
    assert source().take(some, torch.ones(3, dtype=torch.float64)) == -1


def test_from_many_threads() -> None:
    some, take = kernels.Rows(), source().take
    some.learn(0, DTYPES["float32"].code, (4,))
    found: list[list[int]] = [[] for _ in range(4)]

    def work(numbers: list[int]) -> None:
        numbers.extend(take(some, torch.full((4,), float(value))) for value in range(5000))

    threads = [threading.Thread(target=work, args=(numbers,)) for numbers in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(numbers == found[0] for numbers in found)
    assert len(some) == len(set(found[0])) == 5000


def test_mistakes_are_told() -> None:
    some = kernels.Rows()
    with pytest.raises(TypeError, match="a kind and an address"):
        some.commit(1)
    with pytest.raises(ValueError, match="-1 is no kind"):
        some.keep(-1, 0)
    with pytest.raises(TypeError, match="no arguments"):
        kernels.Rows(1)
    with pytest.raises(TypeError, match="learn takes"):
        some.learn(1, 2)
    with pytest.raises(TypeError, match="Rows and a tensor"):
        source().take(torch.ones(3), some)
    out = np.zeros(1, SUMMARY_DTYPE)
    with pytest.raises(ValueError, match="no memory"):
        kernels.summarise(0, (4,), None, 1, EVERYTHING, out.ctypes.data)
    kernels.summarise(0, (0, 4), None, 1, EVERYTHING, out.ctypes.data)
    with pytest.raises(ValueError, match="PyCapsule"):
        kernels.Source(object(), (torch.Tensor,), torch.Tensor.is_neg, HAS_DIGEST, 8)
