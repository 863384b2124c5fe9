"""Tensor files: exact, missing, damaged, hostile."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.importers.dumps import module_entry, tensor, write_dump
from trueup.errors import TraceError
from trueup.importers import open_trace
from trueup.store import StoredTensor


def dump_of(tmp_path: Path, leaf: dict[str, Any], **head: Any) -> Path:
    folder = write_dump(
        tmp_path / "dump", {"Module.fc.Linear.forward.0": module_entry(leaf)}, task="tensor", **head
    )
    (folder / "dump_tensor_data").mkdir(exist_ok=True)
    return folder


def output_of(folder: Path) -> StoredTensor | None:
    trace = open_trace(folder)
    tables = trace.read(0, 0)
    return trace.tensor(0, 0, tables.summaries.to_dicts()[-1])


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {os.environ['TRUEUP_TEST_MARK']}",)


@pytest.mark.torch
@pytest.mark.parametrize(
    "name", ["float32", "bfloat16", "float16", "int64", "bool", "complex64", "float8_e4m3fn"]
)
def test_pt_of_every_dtype_is_exact(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    value = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).mul(3).to(getattr(torch, name))
    folder = dump_of(tmp_path, tensor(dtype=f"torch.{name}", data_name="x.pt"))
    torch.save(value.t(), folder / "dump_tensor_data/x.pt")  # a view: its bytes are not in storage order
    stored = output_of(folder)
    assert stored is not None
    assert (stored.dtype, stored.shape) == (name, (3, 2))
    expected = value.t().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    assert stored.data.tobytes() == expected


@pytest.mark.torch
def test_a_pt_that_would_execute_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    mark = tmp_path / "executed"
    monkeypatch.setenv("TRUEUP_TEST_MARK", str(mark))
    folder = dump_of(tmp_path, tensor(data_name="x.pt"))
    file = folder / "dump_tensor_data/x.pt"
    torch.save(Hostile(), file)
    with pytest.raises(TraceError, match=r"x\.pt is refused: it holds more than tensor data"):
        output_of(folder)
    bare = folder / "dump_tensor_data/bare.pt"
    file.rename(bare)
    file.write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(TraceError, match=r"x\.pt is refused"):
        output_of(folder)
    assert not mark.exists()
    torch.load(bare, weights_only=False)
    assert mark.exists(), "the twin: the file does execute code when it is let"


@pytest.mark.torch
def test_damaged_pt_and_pt_of_something_else(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    folder = dump_of(tmp_path, tensor(data_name="x.pt"))
    file = folder / "dump_tensor_data/x.pt"
    torch.save(torch.ones(1000), file)
    file.write_bytes(file.read_bytes()[:700])
    with pytest.raises(TraceError, match=r"x\.pt"):
        output_of(folder)
    file.write_bytes(b"")
    with pytest.raises(TraceError, match=r"x\.pt"):
        output_of(folder)
    torch.save({"a": torch.ones(1)}, file)
    with pytest.raises(TraceError, match="holds a dict, not the one tensor"):
        output_of(folder)


def test_npy_that_holds_objects_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "executed"
    monkeypatch.setenv("TRUEUP_TEST_MARK", str(mark))
    folder = dump_of(tmp_path, tensor(data_name="x.npy"), framework="mindspore")
    np.save(folder / "dump_tensor_data/x.npy", np.array([Hostile()], dtype=object), allow_pickle=True)
    with pytest.raises(TraceError, match="can execute code"):
        output_of(folder)
    (folder / "dump_tensor_data/x.npy").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(TraceError, match=r"x\.npy"):
        output_of(folder)
    assert not mark.exists()


def test_npy_exact_cut_off_and_in_other_byte_order(tmp_path: Path) -> None:
    folder = dump_of(tmp_path, tensor(dtype="Float32", data_name="x.npy"), framework="mindspore")
    file = folder / "dump_tensor_data/x.npy"
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    for array in (value, value.astype(">f4"), np.asfortranarray(value)):
        np.save(file, array)
        stored = output_of(folder)
        assert stored is not None
        assert (stored.dtype, stored.shape) == ("float32", (2, 3))
        assert stored.data.tobytes() == value.tobytes()
    np.save(file, np.float32(2.5))
    stored = output_of(folder)
    assert stored is not None
    assert (stored.shape, stored.data.view(np.float32)[0]) == ((), 2.5)
    np.save(file, value)
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(TraceError, match="not a whole"):
        output_of(folder)


def test_bfloat16_that_mindspore_widened_is_narrowed_when_exact(tmp_path: Path) -> None:
    folder = dump_of(tmp_path, tensor(dtype="BFloat16", data_name="x.npy"), framework="mindspore")
    file = folder / "dump_tensor_data/x.npy"
    np.save(file, np.array([1.0, -2.5, np.inf], np.float32))
    stored = output_of(folder)
    assert stored is not None
    assert (stored.dtype, stored.data.view(np.uint16).tolist()) == ("bfloat16", [0x3F80, 0xC020, 0x7F80])
    np.save(file, np.array([1.0000001], np.float32))
    stored = output_of(folder)
    assert stored is not None
    assert stored.dtype == "float32", "it never was bfloat16; nothing is rounded away"


@pytest.mark.parametrize("name", ["../secret.npy", "/etc/hostname", "missing.npy"])
def test_names_outside_the_dump_and_missing_files_are_reasons(tmp_path: Path, name: str) -> None:
    folder = dump_of(tmp_path, tensor(data_name=name), framework="mindspore")
    np.save(folder / "secret.npy", np.ones(3))
    tables = open_trace(folder).read(0, 0)
    assert output_of(folder) is None
    reason = tables.records["reason"].cast(str).to_list()[-1]
    assert reason.startswith("values ")
    assert tables.summaries["maximum"].to_list()[-1] == 1.5, "its statistics are used all the same"
