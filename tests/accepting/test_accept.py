"""The whole procedure from what is given to the sign-off: what is passed, refused, and left open."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from tests.accepting.evaluations import results
from tests.curves import logs
from tests.curves.simulating import Truth, simulate
from tests.diagnosing import diagnosed as runs
from tests.diagnosing.diagnosed import REFERENCE, capture
from trueup.accepting.procedure import AcceptanceInputs, accept
from trueup.cli.app import run
from trueup.curves.conditions import ASSUMABLE
from trueup.curves.curve import Curve
from trueup.types.codes import AcceptCode, CriterionCode, CurvesCode
from trueup.types.reason import read_reason, read_reasons, reason

pytestmark = pytest.mark.torch

SETTINGS = {"num_layers": 2, "hidden_size": 64, "learning_rate": 0.001, "adam_beta2": 0.95}
SCORES = {"arc": (0.50, 0.014), "hellaswag": (0.60, 0.005)}


def changed(curve: Curve, **columns: Any) -> Curve:
    """A curve with other columns."""
    frame = curve.frame.with_columns(*(pl.Series(name, values) for name, values in columns.items()))
    return replace(curve, frame=frame)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces, logs, configurations and evaluations, good ones and bad ones."""
    folder = tmp_path_factory.mktemp("accept")
    torch.use_deterministic_algorithms(True)
    try:
        capture(folder / "reference", REFERENCE)
        capture(folder / "target", REFERENCE)
        capture(folder / "faster", {**REFERENCE, "optimizer": runs.adam(lr=2e-3)})
    finally:
        torch.use_deterministic_algorithms(False)
    target, references = simulate(Truth(num_steps=1200, sigma=0.004, spike_rate=0.0), 2)
    offset = changed(target, loss=target.frame["loss"].to_numpy() + 0.1)
    zero = [changed(one, learning_rate=np.zeros(1200)) for one in (target, references[0])]
    made = {
        "target.log": logs.mindformers(target),
        "offset.log": logs.mindformers(offset),
        "gpu1.log": logs.megatron(references[0]),
        "gpu2.log": logs.megatron(references[1]),
        "still.log": logs.megatron(changed(zero[1], loss=zero[1].frame["loss"].to_numpy() + 1e-3)),
        "moved.log": logs.megatron(changed(zero[1], loss=zero[1].frame["loss"].to_numpy() + 0.5)),
        "gpu0.log": logs.megatron(zero[1]),
        "target.json": json.dumps(SETTINGS),
        "beta.json": json.dumps({**SETTINGS, "adam_beta2": 0.9}),
        "reference.json": json.dumps(SETTINGS),
    }
    for name, text in made.items():
        (folder / name).write_text(text)
    results(folder / "good_eval.json", {**SCORES, "arc": (0.49, 0.014)})
    results(folder / "bad_eval.json", {**SCORES, "hellaswag": (0.50, 0.005)})
    results(folder / "eval.json", SCORES)
    return folder


ALL = (
    *("target", "reference", "--config", "target.json", "reference.json"),
    *("--curves", "target.log", "gpu1.log", "gpu2.log"),
    *("--learning-rate-0", "still.log", "gpu0.log", "--eval", "good_eval.json", "eval.json"),
)


@pytest.fixture
def there(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, as the working directory."""
    monkeypatch.chdir(here)
    return here


def decided(output: Path, **given: Any) -> tuple[int, dict[str, Any]]:
    """Exit status and document of the procedure, its reports left out."""
    signoff = accept(AcceptanceInputs(**given), output=output).signoff
    document = json.loads((output / "signoff.json").read_text())
    assert document == signoff.to_json()
    return signoff.exit_code, document


def item(document: dict[str, Any], key: str) -> dict[str, Any]:
    """One item of the sign-off."""
    return next(one for part in document["parts"] for one in part["items"] if one["key"] == key)


def test_all_is_given_and_all_is_met(there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    status = run(["accept", *ALL, "-o", str(out), "--json"])
    document = json.loads(capsys.readouterr().out)
    states = {
        one["key"]: (one["state"], one["measured"]) for part in document["parts"] for one in part["items"]
    }
    assert status == 0, states
    assert document["outcome"] == "accepted"
    assert document["counts"]["failed"] == 0
    assert states["first_loss"][0] == states["weights"][0] == states["no_update_loss"][0] == "passed"
    assert states["forward"] == ("passed", "Bit-identical")
    for name in ("signoff.html", "signoff.md", "signoff.json", "diagnosis/diagnosis.html"):
        assert (out / name).is_file(), name
    for name in ("long-run/curves.html", "learning-rate-0/curves.html", "checklist/checklist.html"):
        assert (out / name).is_file(), name
    text = (out / "signoff.md").read_text()
    assert "# Accuracy sign-off: Accepted" in text
    assert "| Mean error of the loss |" in text
    assert "- [ ] Scenario expansion" in text
    page = (out / "signoff.html").read_text()
    assert "data:image/png;base64," in page
    assert page.count("<h2") >= 9
    assert 'src="http' not in page


BY_LOGS: dict[str, Any] = {
    "curves": ["target.log", "gpu1.log", "gpu2.log"],
    "assumed": frozenset(ASSUMABLE),
}


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"curves": ["offset.log", "gpu1.log", "gpu2.log"]}, "mean_loss"),
        ({"configs": ("beta.json", "reference.json")}, "checklist:optimizer"),
        ({"no_update": ["moved.log", "gpu0.log"]}, "no_update_loss"),
        ({"evaluations": (Path("bad_eval.json"), Path("eval.json"))}, "eval:hellaswag:acc"),
    ],
)
def test_one_bad_thing_refuses(there: Path, tmp_path: Path, given: dict[str, Any], key: str) -> None:
    status, document = decided(tmp_path, **{**BY_LOGS, **given})
    assert status == 1
    assert item(document, key)["state"] == "failed"
    assert read_reason(document, "headline").code is AcceptCode.REFUSED


def test_a_fault_in_the_first_steps_refuses(there: Path, tmp_path: Path) -> None:
    status, document = decided(tmp_path, **BY_LOGS, target=Path("faster"), reference=Path("reference"))
    assert status == 1
    assert item(document, "optimizer")["state"] == "failed"
    assert any(
        one.parts and one.parts[0].place("key") == "lr"
        for one in read_reasons(item(document, "optimizer"), "evidence")
    )
    assert item(document, "forward")["state"] == "passed"


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"curves": BY_LOGS["curves"]}, {"weights", "settings", "randomness"}),
        ({"curves": BY_LOGS["curves"][:2], "assumed": BY_LOGS["assumed"]}, {"repeats"}),
        ({"evaluations": (Path("good_eval.json"), Path("eval.json"))}, {"mean_loss", "weights", "repeats"}),
    ],
)
def test_what_is_not_given_leaves_it_open(
    there: Path, tmp_path: Path, given: dict[str, Any], missing: set[str]
) -> None:
    status, document = decided(tmp_path, **given)
    assert (status, document["outcome"]) == (2, "undecided")
    open_ = {
        one["key"]: one
        for part in document["parts"]
        for one in part["items"]
        if one["binding"] and one["state"] == "not shown"
    }
    assert missing <= set(open_)
    assert all(one["how"] for one in open_.values())


def test_logs_and_what_is_vouched_for_are_enough_for_the_standard(there: Path, tmp_path: Path) -> None:
    status, document = decided(tmp_path, **BY_LOGS)
    assert status == 0
    assert read_reason(item(document, "weights"), "measured") == reason(CriterionCode.STATED)
    assert item(document, "downstream")["state"] == "not shown"


def test_two_files_that_agree_prove_the_settings(there: Path, tmp_path: Path) -> None:
    _, document = decided(tmp_path, configs=("target.json", "reference.json"))
    assert item(document, "settings")["state"] == "passed"
    assert read_reason(item(document, "settings"), "measured").code is AcceptCode.BY_FILES


@pytest.mark.parametrize("num", [1, 40, 1200])
@pytest.mark.parametrize("column", ["loss", "grad_norm"])
def test_a_number_that_is_nan_while_no_weight_is_updated_refuses(
    there: Path, tmp_path: Path, column: str, num: int
) -> None:
    """NaN of the target is the target's; the same of both sides tells nothing, and is not passed."""
    target, references = simulate(Truth(num_steps=1200, sigma=0.0005, spike_rate=0.0), 1)
    sides = [changed(one, learning_rate=np.zeros(1200)) for one in (target, references[0])]
    for side, path in zip(sides, ("nan.log", "zero.log"), strict=True):
        values = side.frame[column].to_numpy().copy()
        values[1200 - num :] = np.nan
        (tmp_path / path).write_text(logs.megatron(changed(side, **{column: values})))
    (tmp_path / "whole.log").write_text(logs.megatron(sides[1]))
    key = {"loss": "no_update_loss", "grad_norm": "no_update_norm"}[column]
    broken, both, whole = (str(tmp_path / name) for name in ("nan.log", "zero.log", "whole.log"))
    status, document = decided(tmp_path / "one", **BY_LOGS, no_update=[broken, whole])
    found = item(document, key)
    assert (status, found["state"], found["binding"]) == (1, "failed", True)
    said = [read_reason(found, "measured"), *read_reasons(found, "evidence")]
    assert CurvesCode.NOT_FINITE in [one.code for one in said]
    status, document = decided(tmp_path / "both", **BY_LOGS, no_update=[broken, both])
    assert status == 0
    if num == 1200:
        assert item(document, key)["state"] == "not shown"


@pytest.mark.parametrize(
    ("rate", "code"), [(None, AcceptCode.RATE_NOT_LOGGED), (1e-5, AcceptCode.RATE_NOT_ZERO)]
)
def test_a_rate_that_is_not_logged_is_not_said_to_be_another(
    there: Path, tmp_path: Path, rate: float | None, code: AcceptCode
) -> None:
    for name, shift in (("t", 1e-4), ("r", 0.0)):
        lines = [f"{at},{9 + shift + at % 7 / 100}" + (f",{rate}" if rate else "") for at in range(1, 1101)]
        head = "step,loss" + (",learning_rate" if rate else "")
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *lines, ""]))
    given = [str(tmp_path / f"{name}.csv") for name in "tr"]
    _, document = decided(tmp_path / "out", **BY_LOGS, no_update=given)
    assert read_reason(item(document, "no_update_loss"), "measured").code is code


def test_one_file_for_both_sides_is_noted(there: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.json").write_text(Path("target.json").read_text())
    for other, noted in (("./target.json", True), (str(tmp_path / "copy.json"), False)):
        _, document = decided(tmp_path / "out", **BY_LOGS, configs=("target.json", other))
        codes = [one.code for one in read_reasons(document, "notes")]
        assert (AcceptCode.ONE_FILE in codes) is noted


def test_logs_without_a_loss_are_not_accepted(there: Path, tmp_path: Path) -> None:
    for name in ("target", "gpu1", "gpu2"):
        text = "".join(f"{n},{1 + (n % 7) / 10}\n" for n in range(1, 1201))
        (tmp_path / f"{name}.csv").write_text("step,grad_norm\n" + text)
    given = {**BY_LOGS, "curves": [str(tmp_path / f"{name}.csv") for name in ("target", "gpu1", "gpu2")]}
    status, document = decided(tmp_path, **given)
    assert status == 2
    assert read_reason(item(document, "mean_loss"), "measured") == reason(CriterionCode.NOT_LOGGED)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to accept by"),
        (("target",), "REFERENCE is missing"),
        (("target", "nowhere"), "no such trace"),
        (("--curves", "target.log"), "say what to compare with"),
        (("--curves", "target.log", "gpu1.log", "gpu1.log"), "is given twice"),
        (("--curves", "target.log", "gpu1.log", "./gpu1.log"), "is given twice"),
        (("--curves", "target.log", "nowhere.log"), "no such log"),
        (("--eval", "eval.json", "nowhere.json"), "no such file"),
        (("--eval", "eval.json", "eval.json"), "both are the same file"),
        (("--eval", "eval.json"), "--eval"),
        (("--config", "target.json", "nowhere.json"), "no such file or folder"),
        (("--config", "target.json"), "--config"),
        (("--assume", "luck", "--eval", "good_eval.json", "eval.json"), "(got 'luck')"),
        (("--replay", "python x", "--eval", "good_eval.json", "eval.json"), "--replay needs two traces"),
    ],
)
def test_a_mistake_is_one_line(
    here: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(here)
    assert run(["accept", *words, "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
