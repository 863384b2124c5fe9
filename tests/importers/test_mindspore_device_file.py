"""Files in Ascend's own format, put together by the public description of it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.importers.dumps import rows
from tests.importers.mindspore_dumps import device_bytes, iteration
from trueup.errors import TraceError
from trueup.importers import open_trace
from trueup.importers.mindspore.device_file import DTYPE_OF_CODE, read_tensor, read_tensors
from trueup.numerics.dtypes import DTYPES

NAME = "MatMul.Default_network-Net_fc1-Dense_MatMul-op0.2.7.161243956333802"
FLOAT, HALF, INT4 = 1, 2, 28


def tensor(array: np.ndarray, code: int = FLOAT, **more: object) -> dict:
    return {"array": array, "code": code, **more}


def write(tmp_path: Path, inputs: list[dict], outputs: list[dict]) -> Path:
    folder = tmp_path / "0/20240101120000/0/kernel_graph_0/1/0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_bytes(device_bytes(inputs, outputs))
    return folder / NAME


def test_inputs_and_outputs_of_one_operator(tmp_path: Path) -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    b = np.arange(3, dtype=np.float16)
    c = np.float32(7).reshape(())
    write(tmp_path, [tensor(a, original=(2, 3)), tensor(b, HALF)], [tensor(c)])
    dump = open_trace(tmp_path)
    found = rows(dump.read(0, 0), "mindspore.ops.MatMul")
    assert [(r["slot"], r["dtype"], r["shape"]) for r in found] == [
        ("input.0", "float32", [2, 3]),
        ("input.1", "float16", [3]),
        ("output.0", "float32", []),
    ]
    assert found[0]["maximum"] == 5.0
    for row, array in zip(found, (a, b, c), strict=True):
        stored = dump.tensor(0, 0, row)
        assert stored is not None
        assert bytes(stored.data) == array.tobytes()


def test_every_dtype_and_empty_tensors(tmp_path: Path) -> None:
    inputs = [
        tensor(np.zeros(8 * DTYPES[name].itemsize, np.uint8), code, device=(8,))
        for code, name in DTYPE_OF_CODE.items()
    ]
    write(tmp_path, inputs, [tensor(np.zeros((0, 3), np.float32))])
    tables = open_trace(tmp_path).read(0, 0)
    assert tables.summaries["dtype"].to_list() == [*DTYPE_OF_CODE.values(), "float32"]
    assert tables.summaries["numel"].to_list() == [8] * len(DTYPE_OF_CODE) + [0]
    assert tables.records["reason"].null_count() == tables.records.height


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"format": 29, "device": (1, 1, 16, 16), "original": (2, 3)}, "device's format FRACTAL_NZ"),
        ({"code": INT4}, "ascend type 28"),
        ({"device": (5, 5)}, "1024 bytes for [5, 5] of float32"),
    ],
)
def test_what_is_not_taken_apart_says_so_and_what_to_do(tmp_path: Path, odd: dict, words: str) -> None:
    array = np.zeros((1, 1, 16, 16), np.float32)
    write(tmp_path, [tensor(array) | odd], [tensor(np.ones(2, np.float32))])
    first, second = rows(open_trace(tmp_path).read(0, 0), "mindspore.ops.MatMul")
    assert words in first["reason"]
    assert '"file_format": "npy"' in first["reason"]
    assert first["summary"] is None
    assert second["maximum"] == 1.0, "what follows is found all the same"


def test_damaged_files_are_refused_and_name_the_way_out(tmp_path: Path) -> None:
    file = write(tmp_path, [tensor(np.ones(4, np.float32))], [])
    whole = file.read_bytes()
    for content in (
        b"",
        whole[:5],
        whole[:20],
        whole[:-1],
        b"\xff" * 64,
        b"\0" * 8,
        whole[:8] + b"\x07" * 40,
    ):
        file.write_bytes(content)
        with pytest.raises(TraceError) as caught:
            open_trace(tmp_path).read(0, 0)
        assert str(file) in str(caught.value)
        assert '"file_format": "npy"' in str(caught.value)


def test_overflow_information_is_no_operator(tmp_path: Path) -> None:
    file = write(tmp_path, [tensor(np.ones(4, np.float32))], [])
    (file.parent / "Opdebug.Node_OpDebug.1.2.3").write_bytes(b"x" * 100)
    assert len(rows(open_trace(tmp_path).read(0, 0), "mindspore.ops.MatMul")) == 1


def test_older_folders_hold_them_too(tmp_path: Path) -> None:
    (iteration(tmp_path) / f"{NAME}.bin").write_bytes(device_bytes([], [tensor(np.ones(2, np.float32))]))
    assert len(rows(open_trace(tmp_path).read(0, 0), "mindspore.ops.MatMul")) == 1


@given(cut=st.integers(0, 200), flip=st.integers(0, 200), bits=st.integers(1, 255))
def test_no_damage_gives_anything_but_values_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int, bits: int
) -> None:
    content = bytearray(
        device_bytes([tensor(np.ones(4, np.float32))], [tensor(np.ones(2, np.float16), HALF)])
    )
    content[flip % len(content)] ^= bits
    file = tmp_path_factory.getbasetemp() / "damaged"
    file.write_bytes(content[: len(content) - cut % 8])
    with contextlib.suppress(TraceError):
        for found in read_tensors(file):
            stored = read_tensor(file, found.side, found.slot)
            assert stored is None or len(stored.data) == found.size_bytes
