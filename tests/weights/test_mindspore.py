"""Checkpoints to and from the real MindSpore, which may be installed in an environment of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trueup.numerics.dtypes import float64_from_array
from trueup.weights.ckpt_file import write_ckpt
from trueup.weights.opening import open_weights
from trueup.weights.weight_set import MemoryWeights
from trueup.weights.writing import write_weights

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]
_PROGRAM = Path(__file__).with_name("mindspore_program.py")
_VALUES = np.arange(2000, dtype=np.float32).reshape(20, 100) / np.float32(7)


@pytest.fixture(scope="session")
def interpreter() -> str:
    """A Python that has MindSpore: of ``TRUEUP_MINDSPORE_VENV``, or this one."""
    home = os.environ.get("TRUEUP_MINDSPORE_VENV")
    if home:
        return str(Path(home) / "bin/python")
    if importlib.util.find_spec("mindspore") is None and os.environ.get("CI") != "true":
        pytest.skip("MindSpore is not installed; set TRUEUP_MINDSPORE_VENV to an environment that has it")
    return sys.executable


def run(interpreter: str, *words: str | Path) -> None:
    done = subprocess.run(
        [interpreter, str(_PROGRAM), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


@pytest.fixture(scope="session")
def theirs(interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mindspore")
    run(interpreter, "write", folder)
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
def test_what_we_write_mindspore_reads(interpreter: str, tmp_path: Path, format: str, crc: bool) -> None:
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
    run(interpreter, "read", path, format, tmp_path / "seen.json")
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert set(seen) == set(arrays)
    for name, array in arrays.items():
        _, shape, values = seen[name]
        expected = float64_from_array(array, weights.table[name].dtype)
        assert tuple(shape) == array.shape
        assert np.array_equal(np.array(values, np.float64), expected.ravel()), name
    assert seen["brain"][0] == "BFloat16"
    assert seen["fc.weight"][0] == "Float32"
