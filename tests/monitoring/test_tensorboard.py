"""The event files: what the reader of curves, which is another's work, finds in them."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest

from trueup.curves.reading import read_curve
from trueup.monitoring.reader import open_run
from trueup.monitoring.tensorboard import export_tensorboard
from trueup.store.events import crc32c, scalars
from trueup.store.layout import scalars_file, series_dir
from trueup.store.series import SeriesWriter, StepBlock


def run_of(folder: Path, num: int = 300) -> Path:
    """A run written by hand: a loss that is NaN once, a norm every second step."""
    path = scalars_file(folder, 0)
    path.parent.mkdir(parents=True)
    loss = ["NaN" if step == 5 else str(1 / (step + 1)) for step in range(num)]
    path.write_text(
        "".join(
            f'{{"step": {s}, "time": {1e9 + s}, "loss": {loss[s]}, "grad_norm": 2.5}}\n' for s in range(num)
        )
    )
    writer = SeriesWriter(series_dir(folder, 0))
    for step in range(0, num, 2):
        norms = {"l2_norm": np.asarray([step, 0.5])}
        writer.append(step, {"gradient": StepBlock(("layers.0.weight", "head.weight"), norms)})
    writer.close()
    return folder


def test_every_number_comes_back(tmp_path: Path) -> None:
    path = export_tensorboard(open_run(run_of(tmp_path / "run")), tmp_path / "board")
    found: dict[str, dict[int, float]] = {}
    for step, tag, value in scalars(path.read_bytes()):
        found.setdefault(tag, {})[step] = value
    assert set(found) == {
        "loss",
        "grad_norm",
        "gradient/l2_norm/layers.0.weight",
        "gradient/l2_norm/head.weight",
    }
    assert len(found["loss"]) == 300
    assert math.isnan(found["loss"][5])
    assert found["loss"][299] == pytest.approx(1 / 300)
    assert found["gradient/l2_norm/layers.0.weight"] == {step: step for step in range(0, 300, 2)}
    curve = read_curve(tmp_path / "board")
    assert curve.num_steps == 300


def test_checksums_are_those_of_the_standard(tmp_path: Path) -> None:
    known = {b"123456789": 0xE3069283, bytes(32): 0x8A9136AA, bytes([0xFF] * 32): 0x62A8AB43}
    for text, expected in known.items():
        assert int(crc32c(np.frombuffer(text, np.uint8)[None])[0]) == expected
    data = export_tensorboard(open_run(run_of(tmp_path / "run", 3)), tmp_path / "board").read_bytes()
    at, records = 0, 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        body = data[at + 12 : at + 12 + length]
        for part, place in ((data[at : at + 8], at + 8), (body, at + 12 + length)):
            crc = int(crc32c(np.frombuffer(part, np.uint8)[None])[0])
            masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
            assert struct.unpack_from("<I", data, place)[0] == masked
        at += 16 + length
        records += 1
    assert records == 1 + 3 + 2


def test_a_monitored_run_is_a_curve_with_local_norms(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", 10)
    (folder / "manifest.json").write_text("{}")
    curve = read_curve(folder)
    assert curve.local_norms is not None
    norms = curve.local_norms.filter(curve.local_norms["step"] == 4)
    assert dict(zip(norms["name"], norms["local_norm"], strict=True)) == {
        "layers.0.weight": 4.0,
        "head.weight": 0.5,
    }
