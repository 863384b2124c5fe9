"""What is written is read back, bit for bit, in every format."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.weights.made import CKPT, SAFETENSORS, assert_same, numbered, weight_sets
from trueup.errors import ConfigError, WeightsError
from trueup.numerics.dtypes import DTYPES
from trueup.weights.opening import open_weights
from trueup.weights.weight_set import MemoryWeights
from trueup.weights.writing import format_of, write_weights

FILES = {"safetensors": "w.safetensors", "ckpt": "w.ckpt", "pth": "w.pth", "hf": "hf", "npy": "arrays"}


def round_trip(weights: MemoryWeights, format: str, **options: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILES[format]
        write_weights(weights, path, format=format, **options)  # type: ignore[arg-type]
        assert_same(open_weights(path), weights)
        assert [p.name for p in Path(folder).iterdir()] == [path.name], "nothing temporary is left"


@settings(max_examples=60, deadline=None)
@given(weight_sets(SAFETENSORS))
def test_safetensors_round_trip(weights: MemoryWeights) -> None:
    assume("__metadata__" not in weights.table)
    round_trip(weights, "safetensors")


@settings(max_examples=60, deadline=None)
@given(weight_sets(SAFETENSORS), st.integers(1, 200))
def test_hugging_face_folder_round_trip(weights: MemoryWeights, shard_bytes: int) -> None:
    round_trip(weights, "hf", shard_bytes=shard_bytes)


@settings(max_examples=60, deadline=None)
@given(weight_sets(tuple(DTYPES)))
def test_npy_folder_round_trip(weights: MemoryWeights) -> None:
    round_trip(weights, "npy")


@pytest.mark.torch
@settings(max_examples=60, deadline=None)
@given(weight_sets(tuple(DTYPES)))
def test_pth_round_trip(weights: MemoryWeights) -> None:
    round_trip(weights, "pth")


@settings(max_examples=60, deadline=None)
@given(weight_sets(CKPT))
def test_ckpt_round_trip(weights: MemoryWeights) -> None:
    # (0,) is how older versions of MindSpore wrote a scalar, but that has an element
    round_trip(weights, "ckpt")


def test_a_changed_bit_is_seen(tmp_path: Path) -> None:
    arrays = numbered(a=(3, 4))
    write_weights(MemoryWeights(arrays), tmp_path / "w.ckpt")
    arrays["a"].view(np.uint32)[2, 1] ^= 1
    with pytest.raises(AssertionError):
        assert_same(open_weights(tmp_path / "w.ckpt"), MemoryWeights(arrays))


def test_big_endian_arrays_keep_their_values(tmp_path: Path) -> None:
    array = np.array([[1.5, -2.0], [3.0, 4.25]], ">f4")
    np.save(tmp_path / "layer.npy", array)
    for weights in (MemoryWeights({"layer": array}), open_weights(tmp_path)):
        assert weights.read("layer").dtype == np.dtype("<f4")
        assert weights.read("layer").tolist() == array.tolist()


def test_shards_have_an_index_that_hugging_face_reads(tmp_path: Path) -> None:
    weights = MemoryWeights(numbered(a=(10, 10), b=(10, 10), c=(2, 2)))
    write_weights(weights, tmp_path / "hf", shard_bytes=500)
    index = json.loads((tmp_path / "hf/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 816
    assert index["weight_map"] == {
        "a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors",
        "c": "model-00002-of-00002.safetensors",
    }


def test_the_real_safetensors_reads_ours_and_we_read_its(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    arrays = numbered(a=(3, 4), b=(5,)) | {"half": np.arange(3, dtype=np.float16), "i": np.array(7)}
    write_weights(MemoryWeights(arrays), tmp_path / "ours.safetensors")
    loaded = load_file(tmp_path / "ours.safetensors")
    assert all(np.array_equal(loaded[name], arrays[name]) for name in arrays)
    save_file(arrays, tmp_path / "theirs.safetensors")
    assert_sets_equal(tmp_path / "theirs.safetensors", arrays)


def assert_sets_equal(path: Path, arrays: dict[str, np.ndarray]) -> None:  # type: ignore[type-arg]
    weights = open_weights(path)
    assert set(weights.table) == set(arrays)
    assert all(np.array_equal(weights.read(name), arrays[name]) for name in arrays)


def test_plain_npy_folders_are_named_by_path(tmp_path: Path) -> None:
    (tmp_path / "layer1").mkdir()
    np.save(tmp_path / "layer1/out.npy", np.ones(3))
    np.save(tmp_path / "x.npy", np.zeros((2, 0)))
    np.save(tmp_path / "bf16.npy", np.array([1, 2], np.uint16).view("V2"))
    table = open_weights(tmp_path).table
    assert {name: info.shape for name, info in table.items()} == {
        "bf16": (2,),
        "layer1/out": (3,),
        "x": (2, 0),
    }
    assert table["bf16"].dtype == "bfloat16"
    assert open_weights(tmp_path).read("bf16").tolist() == [1, 2]


def test_files_of_several_ranks_are_one_set(tmp_path: Path) -> None:
    arrays = numbered(a=(2, 2), b=(3,), shared=(4,))
    for rank, names in enumerate((("a", "shared"), ("b", "shared"))):
        part = MemoryWeights({name: arrays[name] for name in names})
        write_weights(part, tmp_path / f"rank_{rank}/net-1_2.ckpt")
    assert_sets_equal(tmp_path, arrays)


def test_shards_of_one_tensor_are_refused(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_weights(MemoryWeights({"a": np.full(3, rank, np.float32)}), tmp_path / f"rank_{rank}/net.ckpt")
    with pytest.raises(WeightsError, match="different values of a"):
        open_weights(tmp_path)


def test_what_a_format_cannot_hold_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    fp8 = MemoryWeights({"w": np.zeros(3, np.uint8)}, dtypes={"w": "float8_e4m3fn"})
    with pytest.raises(WeightsError, match=r"w is of dtype float8_e4m3fn, which a \.ckpt does not have"):
        write_weights(fp8, tmp_path / "w.ckpt")
    wide = MemoryWeights({"w": np.zeros(3, np.complex128)})
    with pytest.raises(WeightsError, match="complex128, which safetensors does not have"):
        write_weights(wide, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match="__metadata__"):
        write_weights(MemoryWeights({"__metadata__": np.zeros(1)}), tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match="holds no weight"):
        write_weights(MemoryWeights({}), tmp_path / "w.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_dtype_of_no_framework_is_refused() -> None:
    with pytest.raises(WeightsError, match="w is of dtype datetime64"):
        MemoryWeights({"w": np.array(["2020-01-01"], "datetime64[D]")})


def test_formats_by_suffix() -> None:
    names = ("m.safetensors", "m.ckpt", "m.pt", "m.pth", "m.bin", "folder", "llama-3.1-8B")
    found = [format_of(Path(name)) for name in names]
    assert found == ["safetensors", "ckpt", "pth", "pth", "pth", "hf", "hf"]
    assert format_of(Path("folder"), "npy") == "npy"
    with pytest.raises(ConfigError, match=r"\.onnx stands for no format"):
        format_of(Path("m.onnx"))
    with pytest.raises(ConfigError, match="--format 'onnx': there is safetensors, ckpt"):
        format_of(Path("m"), "onnx")


def test_nothing_is_overwritten_by_mistake(tmp_path: Path) -> None:
    weights = MemoryWeights(numbered(a=(2,)))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        write_weights(weights, tmp_path / "full")
    write_weights(weights, tmp_path / "w.ckpt")
    with pytest.raises(ConfigError, match="is the source itself"):
        write_weights(open_weights(tmp_path / "w.ckpt"), tmp_path / "w.ckpt")
    with pytest.raises(ConfigError, match="is a folder"):
        write_weights(weights, tmp_path / "full", format="ckpt")
    with pytest.raises(ConfigError, match="is a file"):
        write_weights(weights, tmp_path / "w.ckpt", format="hf")
