"""Every file that cannot be read says which it is and why; none is executed."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.weights.made import numbered
from trueup.errors import WeightsError
from trueup.weights.opening import open_weights
from trueup.weights.weight_set import MemoryWeights
from trueup.weights.writing import write_weights


def refusal(path: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        read_all(path)
    return str(caught.value)


def read_all(path: Path) -> None:
    weights = open_weights(path)
    for name in weights.table:
        weights.read(name)


def safetensors(path: Path, header: object, data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_nothing_there(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(tmp_path / "none.ckpt")


def test_empty_and_unknown_files(tmp_path: Path) -> None:
    path = tmp_path / "w.ckpt"
    path.write_bytes(b"")
    assert "is empty" in refusal(path)
    path.write_bytes(b"hello, these are no weights at all")
    assert "not a file of weights that trueup reads" in refusal(path)
    np.save(tmp_path / "one.npy", np.ones(2))
    assert "give its folder" in refusal(tmp_path / "one.npy")


def test_folders_without_weights(tmp_path: Path) -> None:
    assert "found nothing" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "found config.json" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["w.safetensors", "w.ckpt"])
def test_a_file_that_was_cut_off(tmp_path: Path, name: str) -> None:
    write_weights(MemoryWeights(numbered(a=(20, 20), b=(7,))), tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for keep in (len(whole) - 1, len(whole) // 2, 40):
        (tmp_path / name).write_bytes(whole[:keep])
        message = refusal(tmp_path / name)
        assert "cut off" in message or "damaged" in message
        assert name in message


def test_safetensors_headers_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert "which is 8 bytes, but 4 are there" in refusal_of_entry(path, entry | {"data_offsets": [0, 4]})
    assert "the file ends at" in refusal_of_entry(path, entry | {"data_offsets": [4, 12]})
    assert "of dtype F4" in refusal_of_entry(path, entry | {"dtype": "F4"})
    assert "the header's entry of w is damaged" in refusal_of_entry(path, {"dtype": "F32"})
    path.write_bytes(struct.pack("<Q", 9) + b"{not json")
    assert "its header is damaged" in refusal(path)


def refusal_of_entry(path: Path, entry: object) -> str:
    return refusal(safetensors(path, {"w": entry}, bytes(8)))


def test_an_index_that_does_not_fit(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    assert "no such file" in refusal(tmp_path)
    safetensors(
        tmp_path / "one.safetensors", {"b": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"x"
    )
    assert "says that a is in one.safetensors, but it is not" in refusal(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../outside.safetensors"}}))
    assert "not a file of its own folder" in refusal(tmp_path)
    index.write_text("[]")
    assert "no index of shards" in refusal(tmp_path)


def test_npy_files_that_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "can execute code" in refusal(tmp_path)
    np.save(tmp_path / "w.npy", np.ones(100))
    whole = (tmp_path / "w.npy").read_bytes()
    (tmp_path / "w.npy").write_bytes(whole[:-8])
    assert "was cut off: 800 bytes of values are announced, 792 are there" in refusal(tmp_path)
    (tmp_path / "w.npy").write_bytes(whole[:20])
    assert "no whole .npy file" in refusal(tmp_path)
    np.save(tmp_path / "w.npy", np.array(["text"]))
    assert "of dtype str" in refusal(tmp_path)
    (tmp_path / "w.npy").unlink()
    (tmp_path / "weights.json").write_text('{"w": {"file": "../w.npy", "dtype": "float32"}}')
    assert "no weights" in refusal(tmp_path), "an index alone is nothing"
    np.save(tmp_path / "x.npy", np.ones(1))
    assert "not a file of its own folder" in refusal(tmp_path)
    (tmp_path / "weights.json").write_text('{"w": {"file": "x.npy", "dtype": "bfloat16"}}')
    assert "8 bytes an element, bfloat16 has 2" in refusal(tmp_path)


class Runs:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.torch
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, zipped: bool) -> None:
    import torch

    path = tmp_path / "w.pth"
    bad = {"w": torch.ones(2), "x": Runs(tmp_path / "ran")}
    torch.save(bad, path, _use_new_zipfile_serialization=zipped)
    message = refusal(path)
    assert "could execute code, so it is refused" in message
    assert "mkdir" in message
    assert not (tmp_path / "ran").exists()


@pytest.mark.torch
def test_a_bare_pickle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(pickle.dumps(Runs(tmp_path / "ran")))
    assert "w.bin" in refusal(tmp_path / "w.bin")
    assert not (tmp_path / "ran").exists()


@pytest.mark.torch
def test_torch_files_that_are_damaged_or_empty(tmp_path: Path) -> None:
    import torch

    torch.save({"w": torch.ones(300)}, tmp_path / "w.pth")
    whole = (tmp_path / "w.pth").read_bytes()
    (tmp_path / "w.pth").write_bytes(whole[: len(whole) // 2])
    assert "no whole file of torch.save" in refusal(tmp_path / "w.pth")
    torch.save({"epoch": 3}, tmp_path / "w.pth")
    assert "holds no tensor" in refusal(tmp_path / "w.pth")


@pytest.mark.torch
def test_weights_beside_an_optimizer_are_found(tmp_path: Path) -> None:
    import torch

    model = {"module": {"a.weight": torch.ones(2), "b": {"bias": torch.zeros(1)}}, "_extra": None}
    saved = {"model": model, "optimizer": {"exp_avg": torch.ones(2)}, "epoch": 3}
    torch.save(saved, tmp_path / "w.pt")
    weights = open_weights(tmp_path / "w.pt")
    assert list(weights.table) == ["a.weight", "b.bias"]
    assert any(
        sentence == "optimizer is left out: the weights are under 'model.module'"
        for sentence in weights.remarks
    )


@pytest.mark.torch
def test_files_of_torch_before_1_6(tmp_path: Path) -> None:
    import torch

    torch.save({"a": torch.arange(4.0)}, tmp_path / "w.pt", _use_new_zipfile_serialization=False)
    assert open_weights(tmp_path / "w.pt").read("a").tolist() == [0, 1, 2, 3]


def test_a_name_that_is_not_there_names_its_nearest() -> None:
    weights = MemoryWeights(numbered(**{"layers.0.attn.weight": (2,), "norm": (1,)}))
    with pytest.raises(WeightsError, match=r"nearest: layers\.0\.attn\.weight"):
        weights.read("layers.0.attn.weigth")
    with pytest.raises(WeightsError, match="there: "):
        weights.read("zzz")


@pytest.mark.torch
@pytest.mark.parametrize("offset", [2**62, 2**63, 2**64 - 2])
def test_a_zip_directory_that_lies_nowhere_is_named(tmp_path: Path, offset: int) -> None:
    """Torch seeks to where the end of the archive says, and an OSError of that names no file."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "w.pt"
    torch.save({"a": torch.ones(3)}, path)
    data = bytearray(path.read_bytes())
    at = data.rfind(b"PK\x06\x06") + 48
    data[at : at + 8] = struct.pack("<Q", offset)
    path.write_bytes(data)
    assert str(path) in refusal(path)
