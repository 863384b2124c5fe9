"""Parts of a step that a program names, and modules that are acted on once they are imported."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import trueup
from trueup.capture import session
from trueup.diagnosing.pipeline import diagnose
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.integrations import Watcher
from trueup.integrations.records import save_tokens
from trueup.mismatch.analysis import analyse
from trueup.store import Trace
from trueup.types.codes import StagesCode
from trueup.types.finding import Stage

pytestmark = pytest.mark.torch


def scalars(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "scalars" / "rank_00000.jsonl").read_text().splitlines()]


def a_program(*, captured: bool) -> list[str]:
    """Two steps as verl has them: two inferences, then two mini-batches of two micro-batches."""
    torch.manual_seed(0)
    actor, reference = (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(2))
    optimizer = torch.optim.SGD(actor.parameters(), 0.1)
    running, printed = session.current() if captured else None, []

    def phase(step: int, role: str, name: str, run: object) -> None:
        if running is not None:
            running.begin_phase(step, role=role, phase=name)
        run()  # type: ignore[operator]
        if running is not None:
            running.end_phase()

    def infer(model: nn.Module) -> None:
        with torch.no_grad():
            printed.append(model(torch.ones(2, 4)).sum().item().hex())

    def update() -> None:
        for microbatch in range(2):
            loss = actor(torch.full((2, 4), 1.0 + microbatch)).square().mean()
            loss.backward()
            printed.append(loss.item().hex())
        optimizer.step()
        optimizer.zero_grad()

    for step in (1, 2):
        phase(step, "actor", "compute_log_prob", lambda: infer(actor))
        phase(step, "reference", "ref_log_prob", lambda: infer(reference))
        infer(actor)  # between the phases: no part of the step
        phase(step, "actor", "update", update)
        phase(step, "actor", "update", update)
        if running is not None:
            running.step()
    return printed


def test_phases_of_a_step_hold_their_calls_and_change_nothing(tmp_path: Path) -> None:
    plain = a_program(captured=False)
    tracer = trueup.Tracer(tmp_path / "run", steps="1-2")
    tracer.start()
    assert a_program(captured=True) == plain
    tracer.close()
    trace = Trace(tmp_path / "run")
    assert list(trace.steps()) == [1, 2]
    for line in scalars(tmp_path / "run"):
        phases = line["phases"]
        named = [(one["role"], one["phase"], one["number"]) for one in phases]
        assert named == [
            ("actor", "compute_log_prob", 0),
            ("reference", "ref_log_prob", 0),
            ("actor", "update", 0),
            ("actor", "update", 1),
        ]
        calls = trace.read(line["step"], 0).calls
        modes = calls["mode"].cast(str).to_list()
        kinds = calls["kind"].cast(str).to_list()
        for one in phases:
            first, after = one["calls"]
            inside = {modes[at] for at in range(first, after) if kinds[at] == "module"}
            assert inside == ({"train"} if one["phase"] == "update" else {"eval"})
        assert phases[1]["calls"][0] == phases[0]["calls"][1]
        assert line["microbatches"] == 4
        assert line["updates"] == [1, 3]


def test_a_phase_of_the_next_step_ends_the_one_before(tmp_path: Path) -> None:
    tracer = trueup.Tracer(tmp_path / "run", steps="all")
    tracer.start()
    running, model = session.current(), nn.Linear(4, 4)
    for step in (3, 3, 5):
        running.begin_phase(step, role="reference", phase="ref_log_prob")
        with torch.no_grad():
            model(torch.ones(2, 4))
        running.end_phase()
    tracer.close()
    lines = scalars(tmp_path / "run")
    assert [(line["step"], len(line["phases"])) for line in lines] == [(3, 2), (5, 1)]
    assert list(Trace(tmp_path / "run").steps()) == [3, 5]


def test_a_token_file_is_what_mismatch_reads(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    log_probs = np.linspace(-3, -1, 12, dtype=np.float32).reshape(3, 4)
    arrays = {"rollout_log_probs": log_probs, "old_log_probs": log_probs, "response_mask": np.ones((3, 4))}
    save_tokens(tmp_path / "tokens" / "step_000007.npz", arrays, 7)
    assert [path.name for path in (tmp_path / "tokens").iterdir()] == ["step_000007.npz"]
    found = analyse([tmp_path])
    assert (found.measures.num_tokens, list(found.of_steps)) == (12, [7])


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that nobody has imported."""
    name = f"of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text("VALUE = 1\n\ndef loader():\n    return type(__loader__).__name__\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield name
    sys.modules.pop(name, None)


def test_a_module_is_acted_on_once_it_is_whole(package: str) -> None:
    watcher, seen = Watcher(), []
    watcher.when_imported(package, lambda module: seen.append(module.VALUE))
    watcher.when_imported(package, lambda module: seen.append("twice"))
    assert seen == []
    module = importlib.import_module(package)
    assert seen == [1]
    assert module.loader() == "SourceFileLoader"
    assert module.__spec__.loader is module.__loader__


def test_a_module_that_is_there_is_acted_on_at_once(package: str) -> None:
    importlib.import_module(package)
    seen: list[int] = []
    Watcher().when_imported(package, lambda module: seen.append(module.VALUE))
    assert seen == [1]


def test_an_error_of_ours_leaves_the_import_whole(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    watcher = Watcher()
    watcher.when_imported(package, lambda module: module.nothing_like_it)
    assert importlib.import_module(package).VALUE == 1


class Packable(nn.Module):
    """Sequences in rows of their own, or packed into one row."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(input_ids)).sum() + position_ids.sum()


def a_packed_program(run: Path, ids: torch.Tensor, positions: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = Packable()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracer = trueup.Tracer(run, steps="0-1")
    tracer.start()
    for _ in range(2):
        model(ids, position_ids=positions).backward()
        optimizer.step()
        optimizer.zero_grad()
    tracer.close()


def test_packed_rows_are_counted_and_no_other_batch(tmp_path: Path) -> None:
    """Three sequences, in rows and packed: the same batch; digests of the two cannot tell."""
    ids = torch.arange(12).reshape(3, 4)
    positions = torch.arange(4).expand(3, 4)
    a_packed_program(tmp_path / "rows", ids, positions)
    a_packed_program(tmp_path / "packed", ids.reshape(1, -1), positions.reshape(1, -1))
    rows, packed = (scalars(tmp_path / name)[0] for name in ("rows", "packed"))
    assert rows["batch_size"] == packed["batch_size"] == 3
    assert packed["packed"] is True
    assert "packed" not in rows
    found = diagnose(tmp_path / "packed", tmp_path / "rows", output=tmp_path / "out")
    data = next(one for one in found.stages if one.stage is Stage.DATA)
    assert (data.status, data.conclusion.code) == (StageStatus.UNDECIDED, StagesCode.PACKED_OTHERWISE)
    a_packed_program(tmp_path / "other", ids.reshape(1, -1) + 1, positions.reshape(1, -1))
    found = diagnose(tmp_path / "other", tmp_path / "packed", output=tmp_path / "again")
    assert found.verdict is not None
    assert found.verdict.stage is Stage.DATA
