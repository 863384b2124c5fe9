"""MindSpore's .ckpt, byte by byte, against bytes laid out by its published message description."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.weights.made import numbered
from trueup.errors import WeightsError
from trueup.weights.ckpt_file import read_ckpt, write_ckpt
from trueup.weights.weight_set import MemoryWeights


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    head = b"" if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)
    return head or bytes([value])


def block(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def tensor(dims: list[int], kind: str, content: bytes, *, packed: bool = False) -> bytes:
    if packed:
        lengths = block(1, b"".join(map(varint, dims)))
    else:
        lengths = b"".join(b"\x08" + varint(length) for length in dims)
    return lengths + block(2, kind.encode()) + block(3, content)


def value(name: str, inside: bytes, *, number: int = 2) -> bytes:
    return block(1, block(1, name.encode()) + block(number, inside))


def written(path: Path, *values: bytes) -> Path:
    path.write_bytes(b"".join(values))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        read_ckpt(path)
    return str(caught.value)


def test_the_bytes_of_one_weight() -> None:
    out = io.BytesIO()
    write_ckpt(MemoryWeights({"w": np.array([[1.0, 2.0]], np.float32)}), out)
    content = np.array([1.0, 2.0], "<f4").tobytes()
    assert out.getvalue() == value("w", tensor([1, 2], "Float32", content))


def test_a_scalar_has_no_dims_and_older_ones_a_zero(tmp_path: Path) -> None:
    content = np.float32(2.5).tobytes()
    for dims in ([], [0]):
        weights = read_ckpt(written(tmp_path / "w.ckpt", value("s", tensor(dims, "Float32", content))))
        assert weights.table["s"].shape == ()
        assert weights.read("s") == 2.5


def test_packed_dims_and_unknown_fields_are_read(tmp_path: Path) -> None:
    inside = tensor([2], "Int16", b"\1\0\2\0", packed=True) + b"\x20\x07" + block(9, b"new")
    weights = read_ckpt(written(tmp_path / "w.ckpt", value("w", inside)))
    assert weights.read("w").tolist() == [1, 2]


def test_slices_in_a_row_are_one_weight(tmp_path: Path) -> None:
    content = np.arange(10, dtype="<f4").tobytes()
    parts = [value("w", tensor([5, 2], "Float32", content[at : at + 16])) for at in range(0, 40, 16)]
    weights = read_ckpt(written(tmp_path / "w.ckpt", *parts))
    assert weights.read("w").ravel().tolist() == list(range(10))


@pytest.mark.parametrize("slice_bytes", [1, 7, 40, 1000])
@pytest.mark.parametrize("crc", [True, False])
def test_slices_and_checksum_are_written(tmp_path: Path, slice_bytes: int, crc: bool) -> None:
    arrays = numbered(a=(5, 2), b=(3,), none=(0, 2))
    with (tmp_path / "w.ckpt").open("wb") as file:
        write_ckpt(MemoryWeights(arrays), file, slice_bytes=slice_bytes, crc=crc)
    weights = read_ckpt(tmp_path / "w.ckpt")
    assert all(np.array_equal(weights.read(name), array) for name, array in arrays.items())
    assert list(weights.table) == ["a", "b", "none"]
    assert ((tmp_path / "w.ckpt").read_bytes()[-17:-10] == b"crc_num") == crc


def test_a_wrong_checksum_is_damage(tmp_path: Path) -> None:
    data = value("w", tensor([1], "Float32", bytes(4)))
    good = data + b"crc_num" + zlib.crc32(data).to_bytes(10, "big")
    assert read_ckpt(written(tmp_path / "w.ckpt", good)).read("w").tolist() == [0]
    flipped = bytearray(good)
    flipped[len(data) - 1] ^= 1
    assert "is damaged: its checksum is 0x" in refusal(written(tmp_path / "w.ckpt", bytes(flipped)))


def test_strings_and_hash_tables_are_remarks_by_name(tmp_path: Path) -> None:
    path = written(
        tmp_path / "w.ckpt",
        value("note", tensor([0], "str", "hello".encode("utf-32-le"))),
        value("table", block(1, tensor([1], "Int32", bytes(4))), number=3),
        value("w", tensor([1], "UInt8", b"\7")),
    )
    weights = read_ckpt(path)
    assert list(weights.table) == ["w"]
    assert weights.remarks == (
        "note is left out: a string, no weight",
        "table is left out: a hash table, no weight",
    )


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    path = tmp_path / "w.ckpt"
    short = tensor([4], "Float32", bytes(8))
    assert "w is float32 [4], but 8 bytes are there" in refusal(written(path, value("w", short)))
    assert "[-1]" in refusal(written(path, value("w", tensor([-1], "Int8", b""))))
    assert "of dtype Int4; supported are Bool" in refusal(
        written(path, value("w", tensor([1], "Int4", b"x")))
    )
    one = value("w", tensor([1], "Int8", b"x"))
    other = value("v", tensor([1], "Int8", b"x"))
    assert "holds w twice" in refusal(written(path, one, other, one))
    two = value("w", tensor([2], "Int8", b"x"))
    assert "do not agree in shape or dtype" in refusal(written(path, one, two))
    assert "no MindSpore checkpoint" in refusal(written(path, block(7, b"else")))
    assert "encrypted" in refusal(written(path, bytes(range(1, 60))))
    assert "not UTF-8" in refusal(written(path, block(1, block(1, b"\xff\xfe") + block(2, short))))
    assert "too long" in refusal(written(path, b"\x0a" + b"\xff" * 12))


def test_a_file_that_mindspore_2_10_wrote() -> None:
    """Saved with ``crc_check=True``, ``append_dict``, and ``serialization.SLICE_SIZE = 1`` (KiB)."""
    path = Path(__file__).parents[1] / "fixtures/mindspore/mindspore-2.10-sliced-crc.ckpt"
    weights = read_ckpt(path)
    assert path.read_bytes().count(b"fc.weight") == 2
    values = np.arange(300, dtype=np.float32).reshape(20, 15) / 7
    assert np.array_equal(weights.read("fc.weight"), values.astype(np.float32))
    assert weights.read("brain").tolist() == [0x3F80, 0xC000, 0x3DCD]
    assert weights.read("half") == np.float16(0.1)
    assert weights.table["scalar"].shape == weights.table["epoch"].shape == ()
    assert weights.read("scalar") == 2.5
    assert weights.read("flag").tolist() == [True, False]
    assert weights.read("count").tolist() == [1, -2]
    assert weights.remarks == ("note is left out: a string, no weight",)
