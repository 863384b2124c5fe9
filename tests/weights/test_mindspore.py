"""Checkpoints to and from the real MindSpore, and a model built of converted weights."""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from mindspore.train import serialization

from trueup.cli import app
from trueup.numerics.dtypes import float64_from_array
from trueup.weights.ckpt_file import write_ckpt
from trueup.weights.opening import open_weights
from trueup.weights.weight_set import MemoryWeights
from trueup.weights.writing import write_weights

pytestmark = pytest.mark.mindspore
_VALUES = np.arange(2000, dtype=np.float32).reshape(20, 100) / np.float32(7)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What MindSpore writes."""
    folder = tmp_path_factory.mktemp("mindspore")
    tensors = {
        "fc.weight": Tensor(_VALUES, ms.float32),
        "half": Tensor(_VALUES[0], ms.float16),
        "brain": Tensor(_VALUES[1], ms.bfloat16),
        "double": Tensor(_VALUES[2].astype(np.float64), ms.float64),
        "scalar": Tensor(2.5, ms.float32),
        "flag": Tensor([True, False]),
        "count": Tensor([1, -2], ms.int64),
    }
    entries = [{"name": name, "data": tensor} for name, tensor in tensors.items()]
    ms.save_checkpoint(entries, f"{folder}/plain.ckpt", append_dict={"epoch": 3, "note": "hello"})
    ms.save_checkpoint(entries, f"{folder}/crc.ckpt", crc_check=True)
    ms.save_checkpoint(entries, f"{folder}/plain.safetensors", format="safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serialization, "SLICE_SIZE", 1)  # KiB, so that a small tensor is stored in slices
        ms.save_checkpoint(entries, f"{folder}/sliced.ckpt", crc_check=True)
    return folder


@pytest.mark.parametrize("name", ["plain.ckpt", "crc.ckpt", "sliced.ckpt", "plain.safetensors"])
def test_what_mindspore_writes_is_read(theirs: Path, name: str) -> None:
    weights = open_weights(theirs / name)
    assert np.array_equal(weights.read("fc.weight"), _VALUES)
    assert np.array_equal(weights.read("half"), _VALUES[0].astype(np.float16))
    assert np.array_equal(weights.read("double"), _VALUES[2].astype(np.float64))
    assert weights.table["brain"].dtype == "bfloat16"
    brain = float64_from_array(weights.read("brain"), "bfloat16")
    assert np.abs(brain - _VALUES[1]).max() <= 2**-8 * np.abs(_VALUES[1]).max()
    assert weights.table["scalar"].shape == ()
    assert weights.read("scalar") == 2.5
    assert weights.read("flag").tolist() == [True, False]
    assert weights.read("count").tolist() == [1, -2]


def test_what_was_appended_is_remarks_or_a_number(theirs: Path) -> None:
    weights = open_weights(theirs / "plain.ckpt")
    assert weights.read("epoch") == 3
    assert weights.remarks == ("note is left out: a string, no weight",)


def test_big_tensors_are_sliced_as_mindspore_slices_them(theirs: Path) -> None:
    assert (theirs / "sliced.ckpt").read_bytes().count(b"fc.weight") == 8


@pytest.mark.parametrize(("format", "crc"), [("ckpt", True), ("ckpt", False), ("safetensors", False)])
def test_what_we_write_mindspore_reads(tmp_path: Path, format: str, crc: bool) -> None:
    bits = np.array([0x3F80, 0xC000, 0x0001, 0x7F80], np.uint16)
    arrays = {
        "fc.weight": _VALUES.T,
        "brain": bits,
        "scalar": np.array(2.5, np.float64),
        "flag": np.array([True, False]),
        "count": np.array([1, -2], np.int64),
        "half": _VALUES[0].astype(np.float16),
    }
    weights = MemoryWeights(arrays, dtypes={"brain": "bfloat16"})
    path = tmp_path / f"ours.{format}"
    if format == "ckpt":
        with path.open("wb") as file:
            write_ckpt(weights, file, slice_bytes=1000, crc=crc)
    else:
        write_weights(weights, path, made_for="ms")
    seen = ms.load_checkpoint(str(path), format=format, crc_check=format == "ckpt")
    assert set(seen) == set(arrays)
    for name, array in arrays.items():
        whole = seen[name].astype(ms.float32) if name == "brain" else seen[name].value()
        expected = float64_from_array(array, weights.table[name].dtype)
        assert tuple(seen[name].shape) == array.shape
        assert np.array_equal(whole.asnumpy().astype(np.float64), expected), name
    assert seen["brain"].dtype == ms.bfloat16
    assert seen["fc.weight"].dtype == ms.float32


def test_a_model_of_converted_weights_has_the_same_first_loss(tmp_path: Path) -> None:
    """PyTorch's names and projections to MindFormers' fused ones; of other weights it has another loss."""
    torch = pytest.importorskip("torch")
    from examples.migration import mindspore_gpt, pytorch_gpt

    torch.manual_seed(3)
    original = pytorch_gpt.CausalLM(2)
    torch.save(original.state_dict(), tmp_path / "original.pth")
    ids = np.random.default_rng(0).integers(0, 256, (4, 33))
    with torch.no_grad():
        logits = original(torch.from_numpy(ids[:, :-1]))
        expected = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), torch.from_numpy(ids[:, 1:]).flatten()
        )
    names = ("--to", "mindformers-llama-fused", "--num-heads", "4", "--num-kv-heads", "2")

    def loss() -> float:
        words = [tmp_path / "original.pth", tmp_path / "port.ckpt", *names]
        assert app.run(["convert-weights", *map(str, words), "-q"]) == 0
        port = mindspore_gpt.LlamaForCausalLM(ms.float32, 2)
        mindspore_gpt.load(port, str(tmp_path / "port.ckpt"))
        tokens, labels = (Tensor(part.astype(np.int32)) for part in (ids[:, :-1], ids[:, 1:]))
        return float(mindspore_gpt.loss_of(port(tokens), labels).asnumpy())

    assert loss() == pytest.approx(expected.item(), rel=16 * 2.0**-24)
    with torch.no_grad():
        original.model.layers[0].mlp.up_proj.weight *= 50
    torch.save(original.state_dict(), tmp_path / "original.pth")
    assert loss() != pytest.approx(expected.item(), rel=1e-5)
