"""A more exact run says which of two differing runs is the less accurate, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.comparing.traces import Recorder
from trueup.comparing.options import CompareOptions
from trueup.comparing.result import Comparison
from trueup.comparing.run import compare
from trueup.errors import NothingCompared
from trueup.types.codes import NoteCode

EXACT = np.random.default_rng(0).standard_normal((64, 64))


def run(first: float, second: float, dtype: Any = np.float32) -> Recorder:
    """Two modules whose outputs are off by noise of a given size."""
    out, noise = Recorder(), np.random.default_rng(int(1e9 * (first + 3 * second)))
    root = out.call("module", "", type_="Net")
    for name, size in (("a", first), ("b", second)):
        module = out.call("module", name, root, "Linear")
        array = EXACT * (1 + size * noise.standard_normal(EXACT.shape))
        out.record(module, "forward", "output.0", array.astype(dtype))
    return out


def arbitrated(folder: Path, *, values: bool) -> Comparison:
    """Target worse at a, reference worse at b."""
    run(1e-3, 1e-5).write(folder / "target", values=values)
    run(1e-5, 1e-3).write(folder / "reference", values=values)
    run(0.0, 0.0, np.float64).write(folder / "exact", values=values)
    options = CompareOptions(arbiter=folder / "exact")
    return compare(folder / "target", folder / "reference", options=options)


@pytest.mark.parametrize("values", [True, False])
def test_the_less_accurate_side_is_named(tmp_path: Path, values: bool) -> None:
    result = arbitrated(tmp_path, values=values)
    rows = {row["site"]: row for row in result.frame().iter_rows(named=True)}
    assert rows["a · output.0"]["less_accurate"] == "target"
    assert rows["b · output.0"]["less_accurate"] == "reference"
    assert rows["a · output.0"]["arbiter_target"] == pytest.approx(1e-3, rel=0.4)
    assert rows["a · output.0"]["arbiter_reference"] == pytest.approx(1e-5, rel=0.4)
    found = result.content.arbiter
    assert found is not None
    assert found.less_accurate == {"neither": 0, "target": 1, "reference": 1}
    assert found.first == {"target": "a · output.0", "reference": "b · output.0"}
    assert found.sentence.code is NoteCode.LESS_ACCURATE
    assert found.sentence in result.content.notes


def test_equally_good_runs_are_neither(tmp_path: Path) -> None:
    run(1e-5, 1e-5).write(tmp_path / "target")
    run(1.1e-5, 1.2e-5).write(tmp_path / "reference")
    run(0.0, 0.0, np.float64).write(tmp_path / "exact")
    options = CompareOptions(arbiter=tmp_path / "exact")
    result = compare(tmp_path / "target", tmp_path / "reference", options=options)
    assert result.summary["arbiter"]["less_accurate"] == {"neither": 2, "target": 0, "reference": 0}
    without = compare(tmp_path / "target", tmp_path / "reference")
    assert without.summary["arbiter"] is None
    assert without.frame()["arbiter_target"].null_count() == 2


def test_an_arbiter_of_other_steps_is_refused(tmp_path: Path) -> None:
    for name in ("target", "reference"):
        run(1e-5, 1e-5).write(tmp_path / name)
    run(0.0, 0.0).write(tmp_path / "exact", step=4)
    with pytest.raises(NothingCompared, match="arbiter"):
        compare(
            tmp_path / "target", tmp_path / "reference", options=CompareOptions(arbiter=tmp_path / "exact")
        )
