"""What both runs have without a counterpart is not told as of one run."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest

from tests.comparing.traces import Recorder
from trueup.comparing.captured import in_both, only_passes_on
from trueup.comparing.run import compare
from trueup.types.codes import VerdictCode
from trueup.types.status import Status

WEIGHTS = ("param_grad", "optimizer")


def step(*inner: str, held: Collection[str] = WEIGHTS, factor: float = 1.0) -> Recorder:
    """A model whose root alone has a counterpart in another's with other modules."""
    out, draw = Recorder(), np.random.default_rng(0)
    weight = out.call("parameter", "w")
    out.record(weight, "param", "value", draw.standard_normal((4, 4)).astype(np.float32))
    root = out.call("module", "", type_="Net")
    out.record(root, "forward", "input.0", draw.standard_normal((2, 4)).astype(np.float32))
    modules = [(out.call("module", name, root, name.title()), len(name)) for name in inner]
    for module, size in modules:
        out.record(module, "forward", "output.0", np.arange(1, size).astype(np.float32))
    out.record(root, "forward", "output.0", draw.standard_normal((2, 4)).astype(np.float32))
    out.record(out.call("loss", "loss"), "loss", "value", np.ones(1, np.float32))
    for module, size in modules[::-1]:
        out.record(module, "backward", "output.0", np.arange(2, size + 1).astype(np.float32))
    for phase, slot in (("param_grad", "accumulated"), ("optimizer", "param")):
        if phase in held:
            made = draw.standard_normal((4, 4)).astype(np.float32) * np.float32(factor)
            out.record(weight, phase, slot, made)
    return out


TARGET, REFERENCE = ("gather",), ("embedder", "projector", "dropped")


@pytest.mark.parametrize(
    ("held", "exit_code"), [(WEIGHTS, 0), (("param_grad",), 0), ((), 2)], ids=["all", "gradients", "none"]
)
def test_backward_that_other_modules_hand_on(held: tuple[str, ...], exit_code: int, tmp_path: Path) -> None:
    """Twin: nothing that backward ends in was compared either."""
    for name, inner in (("target", TARGET), ("reference", REFERENCE)):
        step(*inner, held=held).write(tmp_path / name, options={"level": "mix", "task": "statistics"})
    verdict = compare(tmp_path / "target", tmp_path / "reference").verdict
    assert verdict.exit_code == exit_code
    assert verdict.headline.code is not VerdictCode.AGREE_IN_PART
    if exit_code:
        assert verdict.headline.code is VerdictCode.NOT_BRACKETED


def test_other_gradients_are_a_difference(tmp_path: Path) -> None:
    step(*TARGET, factor=1.5).write(tmp_path / "target")
    step(*REFERENCE).write(tmp_path / "reference")
    assert compare(tmp_path / "target", tmp_path / "reference").exit_code == 1


def test_whose_a_phase_is() -> None:
    held = {("target", "backward"): 2, ("reference", "backward"): 3, ("target", "optimizer"): 1}
    assert in_both(["backward", "optimizer"], held) == ["backward"]
    compared = {("param_grad", Status.EQUAL): 4}
    assert only_passes_on(["backward"], compared)
    assert not only_passes_on(["backward"], {("param_grad", Status.UNDECIDED): 4})
    assert not only_passes_on(["backward", "param_grad"], compared)
