"""Megatron's indexed dataset: read and written by the bytes, against the format as Megatron-core has it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trueup.batches.indexed_dataset import IndexedDataset, dtype_for, write_indexed_dataset
from trueup.errors import ConfigError, TraceError

documents = st.lists(st.lists(st.lists(st.integers(0, 70000), max_size=9), max_size=4), max_size=5)
dtypes = st.sampled_from([None, "int32", "int64"])


@settings(max_examples=60, deadline=None)
@given(texts=documents, dtype=dtypes)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[list[int]]], dtype: str | None
) -> None:
    prefix = tmp_path_factory.mktemp("indexed") / "a.b_text_document"
    sequences = [np.array(one, np.int64) for text in texts for one in text]
    kind = write_indexed_dataset(prefix, sequences, documents=[len(text) for text in texts], dtype=dtype)
    largest = max((int(one.max()) for one in sequences if one.size), default=0)
    assert kind == (dtype or ("uint16" if largest < 65500 else "int32"))
    read = IndexedDataset(prefix)
    assert [one.tolist() for one in read] == [one.tolist() for one in sequences]
    assert np.diff(read.documents).tolist() == [len(text) for text in texts]
    stream = np.concatenate([np.zeros(0, np.int64), *sequences])
    for start, stop in ((0, len(stream)), (len(stream) // 3, 2 * len(stream) // 3)):
        if stop > start:
            assert read.stream(start, stop).tolist() == stream[start:stop].tolist()


def test_the_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    prefix = tmp_path / "x"
    write_indexed_dataset(prefix, [np.array([1, 2, 3]), np.array([258])], documents=[2])
    assert prefix.with_suffix(".bin").read_bytes() == b"\1\0\2\0\3\0\2\1"
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2, 2)
    assert prefix.with_suffix(".idx").read_bytes() == head + struct.pack("<2i2q2q", 3, 1, 0, 6, 0, 2)


def test_the_limit_of_uint16_is_megatron_s() -> None:
    assert (dtype_for(65499), dtype_for(65500)) == (np.uint16, np.int32)


@pytest.mark.parametrize(
    ("sequences", "more", "message"),
    [
        ([[-1]], {}, "from -1 to -1 do not fit uint16"),
        ([[70000]], {"dtype": "uint16"}, "do not fit uint16"),
        ([[2**40]], {}, "do not fit int32"),
        ([[1]], {"dtype": "float32"}, "dtype float32: expected one of"),
        ([[1], [2]], {"documents": [1]}, "documents of 1 sequences, but there are 2"),
    ],
)
def test_what_cannot_be_held_is_refused(
    tmp_path: Path, sequences: Any, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        write_indexed_dataset(tmp_path / "x", [np.array(one) for one in sequences], **more)
    assert list(tmp_path.iterdir()) == []


def patched(at: int, fmt: str, *values: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        new = struct.pack(fmt, *values)
        return data[:at] + new + data[at + len(new) :]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: b"IMAGE", "does not begin with MMIDIDX"),
        (lambda data: data[:12], "ends within its head"),
        (lambda data: data[:-1], "ends too early for its 2 sequences"),
        (patched(9, "<Q", 2), "of version 2"),
        (patched(17, "<B", 7), "floating-point numbers"),
        (patched(17, "<B", 9), "dtype code 9"),
        (patched(34, "<i", -3), "negative length"),
        (patched(34, "<i", 300), "speaks of 600"),
        (patched(50, "<q", 1), "begins within a token"),
        (patched(58, "<q", 1), "do not cover"),
        (patched(66, "<q", 5), "do not cover"),
    ],
)
def test_a_damaged_index_is_named(tmp_path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    write_indexed_dataset(tmp_path / "x", [np.array([1, 2, 3]), np.array([4])], documents=[2])
    index = tmp_path / "x.idx"
    IndexedDataset(tmp_path / "x")
    index.write_bytes(change(index.read_bytes()))
    with pytest.raises(TraceError, match=message):
        IndexedDataset(tmp_path / "x")


def test_a_file_that_is_missing_or_cut_is_named(tmp_path: Path) -> None:
    write_indexed_dataset(tmp_path / "x", [np.array([1, 2, 3])])
    tokens = tmp_path / "x.bin"
    tokens.write_bytes(tokens.read_bytes()[:4])
    with pytest.raises(TraceError, match=r"x.bin has 4 bytes, x.idx speaks of 6"):
        IndexedDataset(tmp_path / "x")
    tokens.unlink()
    with pytest.raises(TraceError, match=r"x.bin cannot be read"):
        IndexedDataset(tmp_path / "x")
