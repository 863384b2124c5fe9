"""Every mistake of the port changes it in the step its entry says, not before; what is none, by rounding."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from bugzoo.entries import Entry, entries, planted_by
from bugzoo.scoreboard.commands import hand_over

pytestmark = [pytest.mark.mindspore, pytest.mark.xdist_group("port")]
ROOT = Path(__file__).resolve().parents[2]
PORTED = {name: entry for name, entry in entries().items() if entry.base == "port"}
LOSS, NORM = 2e-6, 2e-5
"""relative differences rounding may make in the first step"""


@dataclass
class Seen:
    """Loss, norm and weights of every step."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    weights: list[bytes] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def first_apart(self, other: Seen) -> int | None:
        for step, mine in enumerate(zip(self.losses, self.norms, self.weights, strict=True)):
            if mine != (other.losses[step], other.norms[step], other.weights[step]):
                return step
        return None


@pytest.fixture(scope="module")
def handed_over(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("port")
    command = [
        sys.executable,
        "-m",
        "trueup",
        "capture",
        "--preset",
        "diagnose",
        "-o",
        str(folder / "reference"),
    ]
    program = [sys.executable, str(ROOT / "examples" / "migration" / "pytorch_gpt.py")]
    subprocess.run([*command, "-q", "--", *program], cwd=ROOT, check=True, capture_output=True)
    hand_over(folder / "reference", folder / "port")
    return folder / "port"


@pytest.fixture
def port() -> Iterator[ModuleType]:
    """The port's module, as it is in its file."""
    from examples.migration import mindspore_gpt

    return importlib.reload(mindspore_gpt)


def quick_optimizer(model: Any, *, all_decayed: bool) -> Any:
    """One operation a weight; AdamW compiles a graph of all weights each time, half the time of a run."""
    from mindspore import nn

    return nn.AdamWeightDecay(model.trainable_params(), 1e-3)


def has_own_optimizer(port: ModuleType) -> bool:
    """Whether the entry made the optimizer another one."""
    return bool(port.optimizer_for.__module__ != port.__name__)


def trained(port: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch, *, as_it_is: bool) -> Seen:
    """Two steps; ``as_it_is``: with the port's optimizer, else with a quick one."""
    seen, held = Seen(), []
    if not as_it_is:
        monkeypatch.setattr(port, "optimizer_for", quick_optimizer)
    load = port.load

    def loaded(model: Any, path: str) -> None:
        load(model, path)
        held.append(model)

    def log(_path: Any, _step: int, loss: float, norm: float) -> None:
        seen.losses.append(loss)
        seen.norms.append(norm)
        weights = [one.asnumpy() for one in held[0].trainable_params()]
        seen.weights.append(b"".join(np.ascontiguousarray(one).tobytes() for one in weights))

    monkeypatch.setattr(port, "load", loaded)
    monkeypatch.setattr(port, "log", log)
    given = ["--weights", str(folder / "port.ckpt"), "--data", str(folder / "batches"), "--mend", *port.MENDS]
    monkeypatch.setattr(sys, "argv", ["port", *given])
    port.main()
    seen.names = {name for name, _ in held[0].cells_and_names()}
    return seen


@pytest.fixture(scope="module")
def clean(handed_over: Path) -> dict[bool, Seen]:
    """The port without an entry, with its own optimizer and with the quick one."""
    from examples.migration import mindspore_gpt

    def run(*, as_it_is: bool) -> Seen:
        with pytest.MonkeyPatch.context() as patch:
            return trained(importlib.reload(mindspore_gpt), handed_over, patch, as_it_is=as_it_is)

    return {own: run(as_it_is=own) for own in (True, False)}


@pytest.mark.parametrize("entry", PORTED.values(), ids=PORTED)
def test_an_entry_does_what_it_says(
    entry: Entry,
    port: ModuleType,
    handed_over: Path,
    clean: dict[bool, Seen],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import bugzoo.port.changes  # noqa: F401

    planted_by(entry.name)(port)
    own = has_own_optimizer(port)
    seen, unchanged = trained(port, handed_over, monkeypatch, as_it_is=own), clean[own]
    if entry.is_benign:
        assert seen.losses[0] == pytest.approx(unchanged.losses[0], rel=LOSS)
        assert seen.norms[0] == pytest.approx(unchanged.norms[0], rel=NORM)
    else:
        assert seen.first_apart(unchanged) == entry.step
    if entry.sites is not None:
        assert any(entry.is_site(name) for name in seen.names)


def test_there_are_enough_of_them() -> None:
    benign = [entry for entry in PORTED.values() if entry.is_benign]
    assert len(benign) >= 4
    assert len(PORTED) - len(benign) >= 15
