"""The first stage of a diagnosis and its last: configurations, and the long run's curves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.curves import logs
from tests.curves.simulating import Truth, simulate
from tests.diagnosing import diagnosed as runs
from tests.diagnosing.diagnosed import REFERENCE, capture, facts_of
from trueup.diagnosing.diagnosis import Diagnosis
from trueup.diagnosing.pipeline import diagnose
from trueup.diagnosing.stages import StageOutcome, StageStatus
from trueup.errors import ConfigError
from trueup.reporting.diagnosis import diagnosis_report
from trueup.reporting.render import write
from trueup.store import Trace
from trueup.types.codes import StagesCode
from trueup.types.finding import Stage
from trueup.types.status import Outcome

pytestmark = pytest.mark.torch

SETTINGS: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 64,
    "rope_theta": 10000.0,
    "position_embedding": "rope",
    "lr_schedule": "cosine",
    "decay_steps": 1000,
    "learning_rate": 0.001,
    "clip_grad": 0.5,
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """The run that is trusted."""
    return capture(tmp_path_factory.mktemp("reference") / "run", REFERENCE)


@pytest.fixture(scope="module")
def faster(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """A run with another learning rate."""
    changed = {**REFERENCE, "optimizer": runs.adam(lr=2e-3)}
    return capture(tmp_path_factory.mktemp("faster") / "run", changed)


@pytest.fixture(scope="module")
def wider(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """A run with another attention scale, which is in no configuration."""
    changed = {**REFERENCE, "change": runs.attention_scale}
    return capture(tmp_path_factory.mktemp("wider") / "run", changed)


def files(folder: Path, **changed: Any) -> tuple[str, str]:
    """Configurations of target and reference, the target's changed."""
    for name, settings in (("target", {**SETTINGS, **changed}), ("reference", SETTINGS)):
        (folder / f"{name}.json").write_text(json.dumps(settings))
    return str(folder / "target.json"), str(folder / "reference.json")


def stage_of(found: Diagnosis, stage: Stage) -> StageOutcome:
    """What came of a stage."""
    return next(one for one in found.stages if one.stage is stage)


def test_what_the_traces_stored_explains_the_fault_and_does_not_lead(
    tmp_path: Path, reference: Trace, faster: Trace
) -> None:
    found = diagnose(faster.path, reference.path, output=tmp_path / "out")
    assert found.verdict is not None
    assert found.verdict.stage is Stage.OPTIMIZER
    assert any(
        "learning_rate" in s and "0.002" in s and "0.001" in s for s in map(facts_of, found.verdict.evidence)
    )
    assert len(found.findings) == 1
    own = stage_of(found, Stage.CONFIG)
    assert own.status is StageStatus.FAILED
    assert own.conclusion.code is StagesCode.CONFIG_DIFFERS
    assert own.conclusion.facts == {"key": "learning_rate", "target": "0.002", "reference": "0.001"}


def test_a_repeat_has_no_difference_of_settings(tmp_path: Path, reference: Trace) -> None:
    found = diagnose(reference.path, reference.path, output=tmp_path / "out")
    assert found.outcome is Outcome.AGREE
    assert stage_of(found, Stage.CONFIG).status is StageStatus.PASSED
    assert stage_of(found, Stage.LONG_RUN).status is StageStatus.SKIPPED


def test_a_setting_no_captured_step_can_show_is_a_finding(tmp_path: Path, reference: Trace) -> None:
    given = files(tmp_path, decay_steps=2000)
    found = diagnose(reference.path, reference.path, output=tmp_path / "out", configs=given)
    assert found.outcome is Outcome.DIFFER
    assert found.headline.code is StagesCode.STEPS_AGREE_BUT
    assert found.headline.parts[0].facts == {"key": "decay_steps", "target": "2000", "reference": "1000"}
    assert found.verdict is not None
    assert found.verdict.next is not None
    assert found.verdict.next.code is StagesCode.CHECK_CONFIGS
    assert found.verdict.next.facts == {"target": given[0], "reference": given[1]}


def test_a_setting_without_effect_is_no_finding(tmp_path: Path, reference: Trace) -> None:
    """Both forwards and backwards are equal bit for bit, so that the file of one side is not what ran."""
    given = files(tmp_path, rope_theta=500000.0)
    found = diagnose(reference.path, reference.path, output=tmp_path / "out", configs=given)
    assert found.outcome is Outcome.AGREE
    own = stage_of(found, Stage.CONFIG)
    assert own.status is StageStatus.PASSED
    assert own.conclusion.code is StagesCode.ALL_WITHOUT_EFFECT
    assert own.conclusion.place("keys") == ("rope_theta",)


def test_words_never_lead_before_what_was_measured(tmp_path: Path, reference: Trace, wider: Trace) -> None:
    given = files(tmp_path, decay_steps=2000, clip_grad=1.0)
    found = diagnose(wider.path, reference.path, output=tmp_path / "out", configs=given)
    assert found.verdict is not None
    assert found.verdict.stage is Stage.FORWARD
    assert [f.stage for f in found.findings][-1] is Stage.CONFIG


@pytest.mark.parametrize(("change", "names"), [(runs.norm_eps, ("eps",)), (runs.gradient_scale, None)])
def test_a_setting_of_the_program_stands_beside_those_compared(
    change: Any, names: tuple[str, ...] | None, tmp_path: Path, reference: Trace
) -> None:
    """That no setting differs is said of the compared ones alone where the verdict names another."""
    target = capture(tmp_path / "run", {**REFERENCE, "change": change})
    found = diagnose(target.path, reference.path, output=tmp_path / "out")
    own = stage_of(found, Stage.CONFIG)
    assert own.status is StageStatus.PASSED
    assert (own.conclusion.code is StagesCode.CONFIG_ALIGNED) is (names is None)
    assert own.conclusion.place("names") == names


def test_a_coarser_number_of_the_same_setting_is_none(tmp_path: Path, reference: Trace) -> None:
    given = files(tmp_path, learning_rate=float(np.float32(0.001)), clip_grad="0.5")
    found = diagnose(reference.path, reference.path, output=tmp_path / "out", configs=given)
    assert stage_of(found, Stage.CONFIG).status is StageStatus.PASSED


def test_configurations_that_share_nothing_are_a_mistake(tmp_path: Path, reference: Trace) -> None:
    (tmp_path / "a.json").write_text('{"num_layers": 2}')
    (tmp_path / "b.json").write_text('{"hidden_size": 2}')
    with pytest.raises(ConfigError, match="no setting in common"):
        diagnose(
            reference.path,
            reference.path,
            output=tmp_path / "out",
            configs=(str(tmp_path / "a.json"), str(tmp_path / "b.json")),
        )


# -- the long run ------------------------------------------


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Logs: a good target, one that parts, one that is short, the reference and its repeat."""
    folder = tmp_path_factory.mktemp("logs")
    target, references = simulate(Truth(num_steps=1200, sigma=0.004, spike_rate=0.0), 2)
    loss = target.frame["loss"].to_numpy() + 0.003 * np.maximum(np.arange(1200) - 700, 0)
    parted = target.frame.with_columns(pl.Series("loss", loss))
    made = {"good": logs.mindformers(target), "short": "\n".join(logs.mindformers(target).splitlines()[:400])}
    made["bad"] = logs.mindformers(replace(target, frame=parted))
    made |= {f"gpu{n}": logs.megatron(one) for n, one in enumerate(references)}
    for name, text in made.items():
        (folder / f"{name}.log").write_text(text)
    return {name: str(folder / f"{name}.log") for name in made}


def against(curves: dict[str, str], name: str) -> list[str]:
    """A target's log, the reference's and its repeat's."""
    return [curves[name], curves["gpu0"], curves["gpu1"]]


@pytest.mark.parametrize(
    ("name", "status", "outcome"),
    [
        ("good", StageStatus.PASSED, Outcome.AGREE),
        ("bad", StageStatus.FAILED, Outcome.DIFFER),
        ("short", StageStatus.UNDECIDED, Outcome.UNDECIDED),
    ],
)
def test_the_long_run_is_the_last_stage(
    tmp_path: Path, reference: Trace, curves: dict[str, str], name: str, status: StageStatus, outcome: Outcome
) -> None:
    found = diagnose(reference.path, reference.path, output=tmp_path / "out", curves=against(curves, name))
    assert found.stages[-1].status is status
    assert found.outcome is outcome
    assert any(one.place("criterion") == "mean_loss" for one in found.stages[-1].evidence)
    if name == "bad":
        assert found.verdict is not None
        assert found.verdict.stage is Stage.LONG_RUN
        assert found.verdict.step is not None
        page = write(diagnosis_report(found), tmp_path / "page.html").read_text()
        assert "Long run" in page


def test_a_fault_of_the_first_step_explains_the_curves(
    tmp_path: Path, reference: Trace, wider: Trace, curves: dict[str, str]
) -> None:
    found = diagnose(wider.path, reference.path, output=tmp_path / "out", curves=against(curves, "bad"))
    assert found.stages[-1].status is StageStatus.CONSEQUENCE
    assert found.verdict is not None
    assert found.verdict.stage is Stage.FORWARD
