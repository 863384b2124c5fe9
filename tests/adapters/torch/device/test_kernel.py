"""The Triton kernel, in Triton's interpreter, against the definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

pytest.importorskip("triton", minversion="3.4", reason="the kernel's language; Linux only")

from tests.adapters.torch.device import contract
from tests.adapters.torch.device.interpreted import TABLES, summarised
from tests.adapters.torch.device.test_chunks import ALL, tensor_of
from tests.numerics.arrays import arrays
from tests.numerics.test_kernel import assert_same
from trueup.adapters.torch.device.plan import (
    AS_WORDS,
    MAX_RUN,
    PER_WORD,
    Dim,
    dims_of,
    offsets_of,
    plan_of,
    weights_of,
)
from trueup.numerics._native import summarise_array, summarise_by_definition
from trueup.numerics.digest import digest
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.summary import HAS_DIGEST, HAS_SKETCH, HAS_STATISTICS

pytestmark = pytest.mark.torch


@settings(deadline=None, max_examples=60)
@given(arrays(), st.sampled_from([1, 3, 1024]))
def test_equals_the_definition(case: tuple[NDArray[Any], str], max_programs: int) -> None:
    array, dtype = case
    if array.size:
        found = summarised([tensor_of(array, dtype)], dtype, ALL, max_programs=max_programs)
        assert_same(found[0], summarise_by_definition(array, ALL, dtype))


MOVED = {"contiguous": (0, 0), "transposed": (0, 1), "rolled": (1, 2)}


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((3, 9000), "contiguous"),
        ((9000, 3), "contiguous"),
        ((130, 127), "transposed"),
        ((2, 70, 3, 40), "rolled"),
        ((20000,), "contiguous"),
        ((232, 1000), "contiguous"),  # 34 programs: two families
    ],
)
def test_several_programs_share_a_tensor(shape: tuple[int, ...], layout: str) -> None:
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    array = np.moveaxis(array, *MOVED[layout])
    found = summarised([tensor_of(array, "float32")], "float32", ALL)
    assert_same(found[0], summarise_array(array, ALL))


WORD_SHAPES = {
    "usual": [(9, 1024), (9004,), (5, 768), (7, 100, 12), (4,), (1, 11008), (2, 3, 3000)],
    "not finite": [(8, 1024), (7, 100, 12)],
}
OF_FLOAT16 = {"usual": [(9, 1024), (7, 100, 12), (4,)]}
"""it differs from bfloat16 in how a word's numbers are read, not in where they lie"""


def some_values(shape: tuple[int, ...], kind: str) -> NDArray[Any]:
    """Numbers of which some are rare: what a run of words is read again for."""
    generator = np.random.default_rng(3)
    array = generator.standard_normal(shape)
    place = generator.random(shape)
    if kind == "zeros":
        array[place < 0.01] = 0
    elif kind == "negative zero":
        array[place > 0.999] = -0.0
    elif kind == "not finite":
        array[place < 2e-3] = np.nan
        array[(place > 0.4) & (place < 0.402)] = np.inf
        array[(place > 0.7) & (place < 0.702)] = -np.inf
    elif kind == "tiny":
        array *= 1e-20
    elif kind == "large":
        array *= 1e30
    elif kind == "one in sixteen":  # of a lane's: the rest is lost beside it where too many are added up
        array[:] = 2.4e-4
        array.reshape(-1)[np.arange(array.size) % 1024 < 64] = 1
    elif kind == "one sign":
        array = -np.abs(array) - 1
    elif kind.startswith("all"):
        array[:] = np.nan if kind == "all NaN" else 0
    return array


KINDS = (
    "usual", "zeros", "all zero", "negative zero", "not finite", "tiny", "large", "one sign", "all NaN",
    "one in sixteen",
)  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        *((dtype, kind) for dtype in ("bfloat16", "float32") for kind in KINDS),
        *(("float16", kind) for kind in ("usual", "not finite", "tiny", "large")),
    ],
)
def test_words_equal_the_definition(dtype: str, kind: str) -> None:
    shapes = WORD_SHAPES | (OF_FLOAT16 if dtype == "float16" else {})
    for shape in shapes.get(kind, [(2, 1028)]):
        tensor = torch.from_numpy(some_values(shape, kind)).to(getattr(torch, dtype))
        plan = plan_of(dims_of(shape, tensor.stride(), shape, pairs=False), 0, PER_WORD[dtype])
        assert plan.walk == AS_WORDS
        array = tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()]).numpy()
        expected = summarise_by_definition(array.view(DTYPES[dtype].storage), ALL, dtype)
        assert_same(summarised([tensor], dtype, ALL, tile=2 if len(shape) == 3 else 8)[0], expected)


@pytest.mark.parametrize("want", [HAS_STATISTICS, HAS_STATISTICS | HAS_DIGEST, HAS_STATISTICS | HAS_SKETCH])
def test_words_of_part_of_what_there_is(want: int) -> None:
    tensor = torch.randn(9, 1236).bfloat16()
    array = tensor.view(torch.int16).numpy().view(DTYPES["bfloat16"].storage)
    found = summarised([tensor], "bfloat16", want)[0]
    assert_same(found, summarise_by_definition(array, want, "bfloat16"))


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_what_does_not_lie_at_a_word_is_read_by_elements(shift: int) -> None:
    tensor = torch.randn(4100).bfloat16()[shift : shift + 4096]
    array = tensor.view(torch.int16).numpy().view(DTYPES["bfloat16"].storage)
    found = summarised([tensor], "bfloat16", ALL)[0]
    assert_same(found, summarise_by_definition(array, ALL, "bfloat16"))


@pytest.mark.parametrize("first", [4, 1000, 1024, 5000])
def test_words_of_a_shard_begin_anywhere_in_a_block(first: int) -> None:
    tensor = torch.randn(10, 1000).bfloat16()
    found = summarised([tensor], "bfloat16", ALL, whole=(40, 1000), first=first)[0]
    elements = summarised([tensor], "bfloat16", ALL, whole=(40, 1000), first=first, words=False)[0]
    assert_same(found, elements)


def test_tensors_of_a_launch_do_not_mix() -> None:
    tensors = [torch.randn(n, 40) for n in (1, 300, 7)] + [torch.zeros(5), torch.tensor(3.0)]
    for found, tensor in zip(summarised(tensors, "float32", ALL), tensors, strict=True):
        assert_same(found, summarise_array(tensor.numpy(), ALL))


def test_the_sum_does_not_depend_on_how_many_programs() -> None:
    tensor = torch.randn(40, 1000)
    one, many = (summarised([tensor], "float32", ALL, max_programs=n)[0] for n in (1, 1024))
    for name in ("mean", "l2_norm"):
        assert one[name] == pytest.approx(many[name], rel=1e-12)
    assert one["digest"] == many["digest"]


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_sketches_of_shards_add_up(dim: int) -> None:
    whole = torch.randn(4, 6, 130)
    total = np.zeros(64)
    for number, part in enumerate(whole.chunk(2, dim)):
        start = [0, 0, 0]
        start[dim] = number * part.shape[dim]
        first = (start[0] * 6 + start[1]) * 130 + start[2]
        total += summarised([part.clone()], "float32", ALL, whole=(4, 6, 130), first=first)[0]["sketch"]
    expected = summarise_by_definition(whole.numpy(), ALL)["sketch"]
    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-5)


SIZES = st.lists(st.sampled_from([1, 2, 3, 64, 100, 1000, 8192, 9000, 3 << 30]), min_size=1, max_size=5)


@settings(deadline=None, max_examples=80)
@given(SIZES)
def test_runs_cover_a_tensor_of_any_size_once(shape: list[int]) -> None:
    """Beyond 2^31 elements too: in the plan alone, which is what has the offsets."""
    if math.prod(shape) >= 1 << 60:
        return
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    plan = plan_of(dims_of(shape, strides, shape, pairs=False))
    words = [int(word) for word in plan.words]
    num_runs, per_line, rows, split, row = words[6:11]
    assert rows * row <= MAX_RUN
    numel = math.prod(shape)
    assert num_runs // per_line * split * row == numel
    if num_runs > 2000:
        return
    at = 0
    for first, flat, length, _ in sorted(contract._runs(words)):
        assert first == flat == at
        at += length
    assert at == numel


def test_offsets_are_of_64_bits() -> None:
    """The last run of a tensor of 2^33 elements starts where it should."""
    shape = (1 << 13, 1 << 20)
    plan = plan_of(dims_of(shape, (1 << 20, 1), shape, pairs=False))
    words = [int(word) for word in plan.words]
    words[6], runs = 1, words[6]
    assert runs * MAX_RUN == 1 << 33
    assert plan.last_block == (1 << 23) - 1


def test_weights_are_those_of_the_digest() -> None:
    inner = (Dim(7, 12, 12, 0), Dim(4, 3, 3, 1), Dim(3, 1, 1, 2))
    bits = np.random.default_rng(0).integers(0, 2**16, (7, 4, 3)).astype(np.uint16)
    weights = weights_of(inner).view(np.uint64)[: bits.size]
    assert int((bits.ravel() * weights).sum(dtype=np.uint64)) == digest(bits)
    assert offsets_of(inner)[: bits.size].tolist() == list(range(84))


@settings(deadline=None, max_examples=60)
@given(arrays([name for name, entry in DTYPES.items() if entry.kind != "complex"]))
def test_the_contract_is_what_the_kernel_does(case: tuple[NDArray[Any], str]) -> None:
    """``contract`` stands in for the kernel on the test device."""
    array, dtype = case
    if not array.size:
        return
    tensor = tensor_of(array, dtype)
    dims = dims_of(tensor.shape, tensor.stride(), tuple(tensor.shape), pairs=False)
    plan = plan_of(dims, 0, PER_WORD.get(dtype, 0))
    words = plan.words.copy()
    words[0] = tensor.data_ptr()
    TABLES.fill(words, plan)
    part = contract.part_of(
        (DTYPES[dtype].code, True, True, plan.walk),
        [int(w) for w in words] + [0] * 64,
        lambda at: at,
    )
    expected = summarise_by_definition(array, ALL, dtype)
    assert int(part["digest"]) == int(expected["digest"])
    assert int(part["num_nan"]) == int(expected["num_nan"])
