"""The monitor in a program that trains: what it measures, what it leaves, what it must never do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import trueup
from tests.monitoring.programs import model, train, watched
from trueup.errors import ConfigError
from trueup.monitoring.reader import MonitoredRun, open_run, read_alarms
from trueup.store.layout import events_dir, whole_steps
from trueup.types.codes import MonitorCode
from trueup.types.reason import read_reason

pytestmark = pytest.mark.torch


def _last(run: MonitoredRun, kind: str, column: str) -> dict[str, float]:
    series = run.series(kind, column)
    assert series is not None
    return dict(zip(series.names, series.values[-1].tolist(), strict=True))


@pytest.mark.parametrize("microbatches", [1, 2])
def test_losses_gradients_and_weights_stay_the_same_to_the_last_bit(
    tmp_path: Path, microbatches: int
) -> None:
    plain, seen = model(), model()
    gradients: dict[int, list[torch.Tensor]] = {0: [], 1: []}

    def keep(which: int):  # type: ignore[no-untyped-def]
        return lambda net, step: gradients[which].extend(p.grad.clone() for p in net.parameters())

    torch.manual_seed(5)
    losses = train(plain, 4, microbatches=microbatches, change=keep(0))
    drawn = torch.rand(3)
    torch.manual_seed(5)
    monitor = trueup.Monitor(modules=["*"], local_gradients=True)
    again = watched(tmp_path / "run", 4, monitor, seen, microbatches=microbatches, change=keep(1))
    assert again == losses
    assert torch.equal(torch.rand(3), drawn)
    for ours, theirs in zip(gradients[1], gradients[0], strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(seen.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_numbers_are_those_of_the_tensors(tmp_path: Path) -> None:
    net = model()
    truth: dict[str, dict[str, float]] = {}

    def note(net: nn.Module, step: int) -> None:
        truth["gradient"] = {n: p.grad.norm().item() for n, p in net.named_parameters() if p.grad is not None}
        truth["before"] = {n: p.detach().clone() for n, p in net.named_parameters()}  # type: ignore[misc]

    watched(tmp_path / "run", 3, trueup.Monitor(moments_every=2), net, change=note)
    run = open_run(tmp_path / "run")
    assert _last(run, "gradient", "l2_norm") == pytest.approx(truth["gradient"], rel=1e-6)
    weights = {n: p.norm().item() for n, p in net.named_parameters()}
    assert _last(run, "weight", "l2_norm") == pytest.approx(weights, rel=1e-6)
    changes = {n: (p - truth["before"][n]).norm().item() for n, p in net.named_parameters()}
    assert _last(run, "update", "l2_norm") == pytest.approx(changes, rel=1e-5)
    ratios = {n: changes[n] / weights[n] for n in changes}
    assert _last(run, "update", "ratio") == pytest.approx(ratios, rel=1e-5)
    assert set(_last(run, "exp_avg_sq", "l2_norm")) == set(weights)
    moments = run.series("exp_avg", "l2_norm")
    assert moments is not None
    assert np.isnan(moments.values).any(axis=1).tolist() == [False, True, False]
    line = run.lines[-1]
    assert line["grad_norm"] == pytest.approx(sum(g**2 for g in truth["gradient"].values()) ** 0.5, rel=1e-6)
    assert line["weight_norm"] == pytest.approx(sum(w**2 for w in weights.values()) ** 0.5, rel=1e-6)


def test_the_update_of_a_large_weight_is_estimated_from_a_sample(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 4096), nn.Linear(4096, 4))
    before: dict[str, torch.Tensor] = {}

    def note(net: nn.Module, step: int) -> None:
        before.update({n: p.detach().clone() for n, p in net.named_parameters()})

    watched(tmp_path / "run", 3, trueup.Monitor(), net, change=note)
    found = _last(open_run(tmp_path / "run"), "update", "l2_norm")
    for name, parameter in net.named_parameters():
        assert found[name] == pytest.approx((parameter - before[name]).norm().item(), rel=0.1)


def test_activations_and_dead_units(tmp_path: Path) -> None:
    watched(tmp_path / "run", 2, trueup.Monitor(modules=["ReLU"]), model(dead=True))
    run = open_run(tmp_path / "run")
    dead = _last(run, "units", "dead_share")
    assert set(dead) == {"0.act", "1.act"}
    assert dead["0.act"] >= 0.5
    assert dead["1.act"] < 0.5
    assert _last(run, "activation", "zero_share")["0.act"] >= 0.5


def test_gradients_before_reduction_are_the_last_microbatch_alone(tmp_path: Path) -> None:
    watched(tmp_path / "run", 2, trueup.Monitor(local_gradients=True), microbatches=3)
    run = open_run(tmp_path / "run")
    local, whole = _last(run, "local_gradient", "l2_norm"), _last(run, "gradient", "l2_norm")
    assert set(local) == set(whole)
    assert all(local[name] != whole[name] for name in whole)


def test_every_nth_step_is_measured_and_every_loss_kept(tmp_path: Path) -> None:
    losses = watched(tmp_path / "run", 7, trueup.Monitor(every=3))
    run = open_run(tmp_path / "run")
    series = run.series("gradient", "l2_norm")
    assert series is not None
    assert series.steps.tolist() == [0, 3, 6]
    assert [line["loss"] for line in run.lines] == losses
    assert not whole_steps(tmp_path / "run")


def test_a_nan_gives_one_alarm_with_its_file_and_the_next_step_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def poison(net: nn.Module, step: int) -> None:
        if step == 3:
            net[0].up.weight.grad[0, 0] = float("nan")  # type: ignore[index,union-attr]

    heard: list[str] = []
    monitor = trueup.Monitor(on_alarm=lambda alarm: heard.append(alarm.rule))
    watched(tmp_path / "run", 7, monitor, change=poison)
    alarms = [alarm for alarm in read_alarms(tmp_path / "run") if alarm["rule"] == "nan"]
    assert [alarm["step"] for alarm in alarms] == [3]
    why = read_reason(alarms[0], "sentence")
    assert why is not None
    assert (why.code, why.place("rule"), why.number("value")) == (MonitorCode.ALARM, "nan", 1)
    assert alarms[0]["subjects"][0]["name"] == "weight 0.up.weight"
    assert alarms[0]["captured_step"] == 4
    assert [entry["step"] for entry in alarms[0]["before"]] == [0, 1, 2, 3]
    assert "--task overflow_check" in alarms[0]["rerun"]
    assert 4 in whole_steps(tmp_path / "run")
    assert heard[0] == "nan"
    said = capsys.readouterr().err
    assert said.count("ALARM step 3 ") == 1
    assert "step 4 is captured" in said


def test_a_spike_a_frozen_weight_and_a_zero_gradient(tmp_path: Path) -> None:
    net = model()
    net[1].unused = nn.Parameter(torch.ones(3))
    net[1].down.bias.requires_grad_(False)  # type: ignore[union-attr]
    net[1].up.weight.register_hook(torch.zeros_like)  # type: ignore[union-attr]
    watched(
        tmp_path / "run",
        40,
        trueup.Monitor(),
        net,
        scale_inputs=lambda step: 30.0 if step == 30 else 1.0,
    )
    by_rule = {alarm["rule"]: alarm for alarm in read_alarms(tmp_path / "run")}
    assert by_rule["spike"]["step"] == 30
    assert by_rule["spike"]["subjects"][0]["name"] in ("loss", "grad_norm")
    assert [s["name"] for s in by_rule["all_zero"]["subjects"]] == ["gradient of 1.up.weight"]
    assert by_rule["all_zero"]["step"] == 3
    assert [s["name"] for s in by_rule["frozen"]["subjects"]] == ["no gradient of 1.unused"]


def test_a_run_that_is_well_gives_no_alarm(tmp_path: Path) -> None:
    watched(tmp_path / "run", 60, trueup.Monitor(modules=["*"]))
    assert read_alarms(tmp_path / "run") == []


def test_a_callback_that_raises_and_a_disk_that_is_gone_never_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def poison(net: nn.Module, step: int) -> None:
        if step == 1:
            net[0].up.weight.grad[0, 0] = float("nan")  # type: ignore[index,union-attr]

    def refuse(alarm: object) -> None:
        raise RuntimeError("no one listens")

    plain = train(model(), 5, change=poison)
    losses = watched(tmp_path / "a", 5, trueup.Monitor(on_alarm=refuse), change=poison)
    assert str(losses) == str(plain)
    assert "no one listens" in capsys.readouterr().err
    assert read_alarms(tmp_path / "a")

    from trueup.store.series import SeriesWriter

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SeriesWriter, "append", full)
    losses = watched(tmp_path / "b", 5, trueup.Monitor(), change=poison)
    assert str(losses) == str(plain)
    assert "Capture is disabled" in capsys.readouterr().err


def test_without_the_kernel_the_norms_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = trueup.Monitor(modules=["ReLU"])
    watched(tmp_path / "kernel", 3, monitor, model(dead=True))
    monkeypatch.setattr("trueup.adapters.torch.measures.AVAILABLE", False)
    watched(tmp_path / "torch", 3, monitor, model(dead=True))
    with_kernel, without = open_run(tmp_path / "kernel"), open_run(tmp_path / "torch")
    columns = [("gradient", "l2_norm"), ("gradient", "largest"), ("weight", "l2_norm"), ("update", "ratio")]
    for kind, column in [
        *columns,
        ("update", "zero_share"),
        ("units", "dead_share"),
        ("activation", "l2_norm"),
    ]:
        assert _last(without, kind, column) == pytest.approx(_last(with_kernel, kind, column), rel=1e-5)


def test_the_command_gets_the_path_of_the_event(tmp_path: Path) -> None:
    def poison(net: nn.Module, step: int) -> None:
        if step == 1:
            net[0].up.weight.grad[0, 0] = float("nan")  # type: ignore[index,union-attr]

    heard = tmp_path / "heard"
    monitor = trueup.Monitor(command=f'echo "$TRUEUP_EVENT" >> {heard}')
    watched(tmp_path / "run", 3, monitor, change=poison)
    import time

    for _ in range(100):
        if heard.exists() and heard.read_text().endswith("\n"):
            break
        time.sleep(0.05)
    first = Path(heard.read_text().splitlines()[0])
    assert first.parent == events_dir(tmp_path / "run")
    assert json.loads(first.read_text())["step"] == 1


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"evry": 2}, "evry"),
        ({"every": 0}, "every"),
        ({"every": "often"}, "every"),
        ({"rules": {"spike_sigma": 3}}, "spike_sigma"),
        ({"rules": {"disabled": ["spikes"]}}, "spikes"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        trueup.Monitor(**settings)


def test_a_monitor_that_comes_too_late_is_told(tmp_path: Path) -> None:
    with trueup.Tracer(tmp_path / "a"):
        late = trueup.Tracer(tmp_path / "a", monitor=trueup.Monitor())
        with pytest.warns(UserWarning, match="not used"):
            late.start()


def test_a_monitor_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trueup\.Monitor"):
        trueup.Tracer(tmp_path / "run", monitor=True)  # type: ignore[arg-type]
