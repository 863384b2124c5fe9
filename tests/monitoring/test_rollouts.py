"""Training against inference while a run trains: series, alarms, and steps that give none."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.mismatch.batches import sampled
from trueup.capture.observer import WatchedRun
from trueup.cli.app import run as trueup
from trueup.errors import TraceError
from trueup.monitoring.monitor import Monitor
from trueup.monitoring.reader import open_run, state_of
from trueup.monitoring.rollouts import mismatch_lines
from trueup.monitoring.settings import RuleSettings
from trueup.store.layout import mismatch_file


def watched(folder: Path, batches: list[dict], **rules: object) -> Path:
    """A monitored run with these log-probs, one batch a step."""
    monitor = Monitor(rules=RuleSettings(**rules)) if rules else Monitor()  # type: ignore[arg-type]
    run = WatchedRun(output=folder, rank=0, world_size=1, first_step=0, command=("python", "train.py"))
    for step, arrays in enumerate(batches):
        monitor.rollout(run, step, arrays)
    return folder


def alarms(folder: Path) -> list[tuple[int, str]]:
    """Step and first subject of each."""
    documents = [json.loads(file.read_text()) for file in sorted(folder.glob("monitor/events/*.json"))]
    return [(one["step"], one["subjects"][0]["name"]) for one in documents]


def usual(steps: int) -> list[dict]:
    return [sampled(seed=step) for step in range(steps)]


def test_every_step_has_its_measures_and_rounding_gives_no_alarm(tmp_path: Path) -> None:
    folder = watched(tmp_path, usual(12))
    lines = mismatch_lines(folder)
    assert [line["step"] for line in lines] == list(range(12))
    assert all(0 < line["k3"] < 1e-3 and line["ess_token"] > 0.99 for line in lines)
    assert alarms(folder) == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"training_temperature": 0.7}, "log-probs scaled, as by a temperature"),
        ("shifted", "log-probs of a neighbouring token"),
        ("infinite", "log-probs that are not finite"),
    ],
)
def test_what_rounding_cannot_do_is_said_at_once_and_once(
    change: object, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = sampled(seed=3, **(change if isinstance(change, dict) else {}))
    if change == "shifted":
        wrong["training_log_probs"] = np.roll(wrong["training_log_probs"], 1, axis=1)
    if change == "infinite":
        wrong["training_log_probs"][0, 0] = -math.inf
    folder = watched(tmp_path, [*usual(3), wrong, wrong])
    assert alarms(folder) == [(3, name)]
    assert f"ALARM step 3 rollout mismatch: {name}" in capsys.readouterr().err


@pytest.mark.parametrize(("noise", "at"), [(0.024, None), (0.05, 10)], ids=["five times", "25 times"])
def test_drift_is_said_after_three_steps(noise: float, at: int | None, tmp_path: Path) -> None:
    """k3 is half the variance of the log-ratio: noise times 2.4 is less than ten times the median."""
    more = [sampled(seed=step, noise=noise) for step in range(8, 12)]
    folder = watched(tmp_path, [*usual(8), *more])
    assert alarms(folder) == ([] if at is None else [(at, "k3 of rollout and trainer")])


@pytest.mark.parametrize(("noise", "raised"), [(0.18, False), (0.4, True)])
def test_a_small_effective_sample_size_is_said(noise: float, raised: bool, tmp_path: Path) -> None:
    """ESS is near 1 / (1 + variance of the ratio), 2 noise^2: 0.94, and 0.73."""
    folder = watched(tmp_path, [sampled(seed=step, noise=noise) for step in range(4)])
    expected = [(2, "effective sample size of importance ratios")] if raised else []
    assert alarms(folder) == expected


def test_a_rule_can_be_left_out(tmp_path: Path) -> None:
    folder = watched(tmp_path, [sampled(training_temperature=0.7)] * 3, disabled=("mismatch",))
    assert alarms(folder) == []
    assert len(mismatch_lines(folder)) == 3


def test_a_damaged_line_is_left_out_or_named(tmp_path: Path) -> None:
    folder = watched(tmp_path, usual(2))
    file = mismatch_file(folder)
    whole = file.read_text()
    file.write_text(whole + "{half\n" + whole)
    assert len(mismatch_lines(folder)) == 4
    file.write_text(whole + "null\n")
    with pytest.raises(TraceError, match="line 3"):
        mismatch_lines(folder)


def test_it_is_shown_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = watched(tmp_path / "run", [*usual(3), sampled(training_temperature=0.7)])
    assert trueup(["monitor", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "rollout mismatch, k3" in said
    assert "log-probs scaled" in said
    assert state_of(open_run(folder))["mismatch"]["step"] == 3  # type: ignore[index]
    assert trueup(["monitor", str(folder), "--tensorboard", str(tmp_path / "board")]) == 0
    (file,) = (tmp_path / "board").iterdir()
    assert b"mismatch/k3" in file.read_bytes()
