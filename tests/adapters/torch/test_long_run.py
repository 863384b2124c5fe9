"""A run changed from outside: the learning rate held, one batch alone, one left out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.capture.programs import TRAIN, run_trueup, write
from trueup.store import Trace

pytestmark = pytest.mark.torch

PROGRAM = """
import json
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.arange(12.0).reshape(6, 2)
train = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=1)
valid = DataLoader(TensorDataset(100 + x, x), batch_size=2)
model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
before = [p.detach().clone() for p in model.parameters()]
said = {"train": [], "valid": [], "rates": [], "norms": []}
for epoch in range(2):
    for inputs, labels in train:
        loss = (model(inputs) - labels).square().mean()
        said["train"].append([int(inputs[0, 0]), int(labels[0, 0])])
        loss.backward()
        said["norms"].append(sum(p.grad.square().sum() for p in model.parameters()).sqrt().item())
        optimizer.step()
        optimizer.zero_grad()
        inputs.zero_()
    schedule.step()
    said["rates"].append(optimizer.param_groups[0]["lr"])
    model.eval()
    for inputs, labels in valid:
        with torch.no_grad():
            model(inputs)
        said["valid"].append(int(inputs[0, 0]))
    model.train()
said["moved"] = any((a != b).any().item() for a, b in zip(before, model.parameters()))
print(json.dumps(said))
"""
OWN = [[x, 2 * x + 1] for x in (0, 2, 4, 6, 8, 10)]


def changed(folder: Path, *options: str) -> tuple[int, dict, str]:  # type: ignore[type-arg]
    """Exit status, what the program saw, what trueup said."""
    program = write(folder / "train.py", PROGRAM)
    done = run_trueup("capture", "-o", "run", *options, "--", sys.executable, program, cwd=folder)
    return done.returncode, json.loads(done.stdout), done.stderr


def scalars(folder: Path) -> list[dict]:  # type: ignore[type-arg]
    lines = (folder / "run" / "scalars" / "rank_00000.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_learning_rate_is_held_and_the_schedule_goes_on(tmp_path: Path) -> None:
    status, seen, said = changed(tmp_path, "--learning-rate", "0", "--steps", "0-11")
    assert status == 0
    assert seen["moved"] is False
    assert seen["rates"] == [0.05, 0.025]
    lines = scalars(tmp_path)
    assert [line["learning_rate"] for line in lines] == [[0.0]] * 12
    assert all(isinstance(line["loss"], float) for line in lines)
    assert [line["grad_norm"] for line in lines] == pytest.approx(seen["norms"], rel=1e-5)
    assert "changed on purpose: the learning rate is held at 0: no weight is updated" in " ".join(
        said.split()
    )
    trace = Trace(tmp_path / "run")
    assert trace.manifest["changed_on_purpose"] == ["the learning rate is held at 0: no weight is updated"]
    group = trace.rank_facts(0)["optimizers"][0]["groups"][0]
    assert (group["lr"], group["weight_decay"]) == (0.1, 0.5)  # the program's own


def test_another_rate_moves_the_weights(tmp_path: Path) -> None:
    status, seen, _ = changed(tmp_path, "--learning-rate", "0.25")
    assert (status, seen["moved"], seen["rates"]) == (0, True, [0.05, 0.025])
    assert {tuple(line["learning_rate"]) for line in scalars(tmp_path)} == {(0.25,)}


def test_one_batch_alone(tmp_path: Path) -> None:
    status, seen, said = changed(tmp_path, "--only-batch", "2")
    assert status == 0
    assert seen["train"] == [[4, 9]] * 12
    assert seen["valid"] == [100, 104, 108] * 2
    assert "batch 2 is given at every step" in said


def test_one_batch_left_out(tmp_path: Path) -> None:
    status, seen, said = changed(tmp_path, "--skip-batch", "2")
    assert status == 0
    assert seen["train"] == [*OWN[:2], *OWN[3:], *OWN]
    assert seen["valid"] == [100, 104, 108] * 2
    assert "batch 2 is left out" in said


def test_a_batch_of_the_second_epoch(tmp_path: Path) -> None:
    status, seen, _ = changed(tmp_path, "--only-batch", "7")
    assert (status, seen["train"]) == (0, [*OWN, *[[2, 5]] * 6])


def test_a_batch_that_never_comes_is_an_error(tmp_path: Path) -> None:
    status, seen, said = changed(tmp_path, "--only-batch", "70")
    assert (status, seen["train"]) == (2, OWN * 2)
    assert "--only-batch 70 had no effect: the run read 12 batches" in said


def test_a_program_without_a_loader_says_so(tmp_path: Path) -> None:
    program = write(tmp_path / "train.py", TRAIN)
    done = run_trueup(
        "capture", "-o", "run", "--skip-batch", "1", "--", sys.executable, program, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "--skip-batch 1 had no effect: no torch DataLoader gave a batch" in done.stderr
    facts = json.loads((tmp_path / "run" / "ranks" / "rank_00000.json").read_text())
    assert any("no torch DataLoader" in sentence for sentence in facts["limits"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--learning-rate", "-1"], "--learning-rate: expected a number from 0"),
        (["--only-batch", "-1"], "--only-batch: expected a number from 0"),
        (["--only-batch", "1", "--skip-batch", "1"], "exclude each other"),
        (["--overflow-nums", "2"], "has no effect without --task overflow_check"),
        (["--task", "overflow_check", "--overflow-nums", "0"], "overflow_nums: expected an integer from 1"),
    ],
)
def test_a_mistake_is_said_before_anything_runs(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from trueup.cli import app

    assert app.run(["capture", "-o", "never", *options, "--", "true"]) == 2
    assert message in capsys.readouterr().err
