"""Whose code made a gradient that a module is sent, and what is an input of one run alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.comparing.traces import Recorder
from trueup.comparing.run import compare
from trueup.types.codes import EvidenceCode, VerdictCode

HIDDEN = np.random.default_rng(3).standard_normal((2, 5, 4)).astype(np.float32)


def sent(factor: float, *, returned: float) -> Recorder:
    """A layer adds what its ``mlp`` returns, that is ``returned`` times what ``mlp.down`` does."""
    out = Recorder()
    root = out.call("module", "", type_="Model")
    layer = out.call("module", "layer", root, type_="Layer")
    mlp = out.call("module", "layer.mlp", layer, type_="MLP")
    down = out.call("module", "layer.mlp.down", mlp, type_="Linear")
    out.record(layer, "forward", "input.0", HIDDEN)
    out.record(down, "forward", "output.0", HIDDEN + 1)
    out.record(mlp, "forward", "output.0", returned * (HIDDEN + 1))
    out.record(layer, "forward", "output.0", HIDDEN * 2 + 3)
    out.record(root, "forward", "output.0", HIDDEN * 2 + 4)
    out.record(out.call("loss", "loss"), "loss", "value", np.ones(1, np.float32))
    out.record(root, "backward", "output.0", HIDDEN)
    out.record(layer, "backward", "output.0", HIDDEN)
    out.record(down, "backward", "output.0", np.float32(factor) * HIDDEN)
    return out


@pytest.mark.parametrize(("returned", "owner"), [(1.0, "layer"), (2.0, "layer.mlp")])
def test_a_module_that_returns_an_output_as_it_is_sent_no_other_gradient(
    returned: float, owner: str, tmp_path: Path
) -> None:
    """The residual hands the same gradient to the layer's output: that is no output returned as it is."""
    for name, factor in (("target", 1.0), ("reference", 0.25)):
        sent(factor, returned=returned).write(tmp_path / name)
    verdict = compare(tmp_path / "target", tmp_path / "reference").verdict
    assert (verdict.exit_code, verdict.phase, verdict.owner) == (1, "backward", owner)


def given(name: str, content: np.ndarray, factor: float) -> Recorder:
    """A layer that is given a table beside the stream."""
    out = Recorder()
    root = out.call("module", "", type_="Model")
    layer = out.call("module", "layer", root, type_="Layer")
    out.record(root, "forward", "input.0", HIDDEN)
    out.record(layer, "forward", "input.0", HIDDEN)
    out.record(layer, "forward", f"input.{name}", content)
    out.record(layer, "forward", "output.0", np.float32(factor) * HIDDEN)
    return out


TABLE = np.cos(np.outer(np.arange(5), np.arange(4) / 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (TABLE[None], False),
        (np.repeat(TABLE[None], 2, axis=0), False),
        (TABLE * np.float32(1 + 1e-7), False),
        (TABLE[None] * np.float32(1.001), True),
        (np.sin(np.outer(np.arange(5), np.arange(4) / 4)).astype(np.float32)[None], True),
        (np.ones((1, 5, 4), np.float32), True),
    ],
    ids=["one more dim", "for every row", "rounded", "scaled", "another table", "all alike"],
)
def test_an_input_by_another_name_is_none_of_one_side(
    content: np.ndarray, told: bool, tmp_path: Path
) -> None:
    given("1", TABLE, 1.5).write(tmp_path / "target")
    given("tables.0", content, 1.0).write(tmp_path / "reference")
    verdict = compare(tmp_path / "target", tmp_path / "reference").verdict
    assert verdict.exit_code == 1
    found = [one for one in verdict.evidence if one.code is EvidenceCode.INPUT_OF_ONE_SIDE]
    assert bool(found) is told
    assert (verdict.headline.code is VerdictCode.INPUT_OF_ONE_SIDE) is told
