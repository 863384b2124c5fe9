"""No sign-off over a recommendation of the guide that is not followed, unless a person waives it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.curves import logs
from tests.curves.simulating import Truth, simulate
from trueup.cli.app import run
from trueup.reporting import signoff
from trueup.types.codes import AcceptCode
from trueup.types.reason import read_reason, read_reasons

GOOD = {"num_layers": 2, "hidden_size": 64, "learning_rate": 0.001, "clip_grad": 1.0, "adam_beta2": 0.95}
CASES: tuple[dict[str, Any], ...] = (
    {"clip_grad": 5.0},
    {"adam_eps": 1e-5},
    {"vocab_size": 32001},
    {"graph_kernel_fusion": True},
    {"norm_compute_dtype": "bfloat16"},
    {"optimizer_parallel": True},
    {"overflow_mode": "SATURATION_MODE"},
    {"hccl_deterministic": False},
    {"micro_batch_interleave": 2},
    {"hidden_dropout": 0.1},
)


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sign-off alone: reports that it links to have tests of their own, and take a second each time."""
    monkeypatch.setattr(signoff, "_details", lambda *_: ({}, []))


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Logs of a good run and two runs of the reference."""
    folder = tmp_path_factory.mktemp("logs")
    target, references = simulate(Truth(num_steps=1200, sigma=0.004, spike_rate=0.0), 2)
    made = {"t": target, "a": references[0], "b": references[1]}
    for name, curve in made.items():
        (folder / f"{name}.log").write_text(logs.megatron(curve))
    return [str(folder / f"{name}.log") for name in made]


UNREAD: tuple[dict[str, Any], ...] = (
    {"router_jitter_scale": 0.01},
    {"rope_partial_style": "neox"},
    {"my_residual_gain": True},
)
"""settings that no rule reads"""


def _accept(
    folder: Path,
    settings: dict[str, Any],
    curves: list[str],
    *words: str,
    other: dict[str, Any] | None = None,
) -> tuple[int, dict[str, Any]]:
    for name, values in (("t", settings), ("r", settings if other is None else other)):
        (folder / f"{name}.json").write_text(json.dumps(values))
    files = (str(folder / "t.json"), str(folder / "r.json"))
    out = folder / "out"
    given = ("--config", *files, "--curves", *curves, "--assume", "all")
    status = run(["accept", *given, *words, "-o", str(out), "-q"])
    document: dict[str, Any] = json.loads((out / "signoff.json").read_text())
    return status, document


def _item(document: dict[str, Any], key: str) -> dict[str, Any]:
    return next(one for part in document["parts"] for one in part["items"] if one["key"] == key)


def test_what_follows_the_guide_is_signed(tmp_path: Path, curves: list[str]) -> None:
    status, document = _accept(tmp_path, GOOD, curves)
    assert status == 0
    assert _item(document, "recommendations")["state"] == "passed"
    assert document["waivers"] == []


@pytest.mark.parametrize("change", CASES, ids=lambda case: next(iter(case)))
def test_one_violation_is_not_signed_and_a_waiver_signs_it(
    change: dict[str, Any], tmp_path: Path, curves: list[str]
) -> None:
    (row,) = change
    status, document = _accept(tmp_path, GOOD | change, curves)
    item = _item(document, f"recommendation:{row}")
    assert status == 2
    assert document["outcome"] == "undecided"
    assert (item["state"], item["binding"]) == ("warning", True)
    why = "as the published recipe has it"
    status, document = _accept(tmp_path, GOOD | change, curves, "--waive", row, why)
    item = _item(document, f"recommendation:{row}")
    assert status == 0
    assert (item["state"], item["binding"]) == ("waived", False)
    assert document["waivers"] == [{"row": row, "reason": why}]
    assert read_reason(document, "headline").number("waived") == 1
    for name in ("signoff.md", "signoff.html"):
        assert why in (tmp_path / "out" / name).read_text(), name


def test_a_violation_of_one_side_and_two_waivers(tmp_path: Path, curves: list[str]) -> None:
    changed = GOOD | {"clip_grad": 5.0, "router_version": "TopkRouterV1", "num_experts": 8}
    words = ("--waive", "clip_grad", "one reason", "--waive", "router_version", "another")
    status, document = _accept(tmp_path, changed, curves, *words)
    assert status == 0
    assert len(document["waivers"]) == 2
    status, document = _accept(tmp_path, changed, curves, *words[:3])
    assert status == 2
    status, document = _accept(tmp_path, GOOD | {"launch_blocking": False}, curves)
    assert status == 0, "a suggestion is no obstacle"


def test_a_waiver_does_not_hide_a_difference(tmp_path: Path, curves: list[str]) -> None:
    words = ("--waive", "clip_grad", "we like it")
    status, document = _accept(tmp_path, GOOD | {"clip_grad": 5.0}, curves, *words, other=GOOD)
    assert status == 1
    assert _item(document, "checklist:optimizer")["state"] == "failed"


def test_a_waiver_that_was_not_needed_is_noted(tmp_path: Path, curves: list[str]) -> None:
    status, document = _accept(tmp_path, GOOD, curves, "--waive", "clip_grad", "to be safe")
    assert status == 0
    assert AcceptCode.NEEDLESS_WAIVER in [one.code for one in read_reasons(document, "notes")]
    assert document["waivers"] == [], "nothing is signed over"


@pytest.mark.parametrize("change", [{"norm_eps": 1e-5}, {"num_layers": 3}, {"hidden_size": 128}])
def test_a_difference_is_not_waived_and_not_said_to_be_none(
    change: dict[str, Any], tmp_path: Path, curves: list[str]
) -> None:
    (row,) = change
    good = GOOD | {"norm_eps": 1e-6}
    status, document = _accept(tmp_path, good | change, curves, "--waive", row, "we like it", other=good)
    codes = [one.code for one in read_reasons(document, "notes")]
    assert (status, document["waivers"]) == (1, [])
    assert AcceptCode.NO_WAIVER in codes
    assert AcceptCode.NEEDLESS_WAIVER not in codes


def test_a_row_that_there_is_not_is_said_before_anything_is_run(tmp_path: Path, curves: list[str]) -> None:
    (tmp_path / "t.json").write_text(json.dumps(GOOD))
    given = (
        "--config",
        str(tmp_path / "t.json"),
        str(tmp_path / "t.json"),
        "--curves",
        "nowhere.log",
        *curves,
    )
    assert run(["accept", *given, "--waive", "clipgrad", "x", "-o", str(tmp_path / "out")]) == 2
    assert not list((tmp_path / "out").glob("signoff*"))


@pytest.mark.parametrize("change", UNREAD, ids=lambda case: next(iter(case)))
def test_a_setting_without_a_rule_that_differs_is_not_signed_unseen(
    change: dict[str, Any], tmp_path: Path, curves: list[str]
) -> None:
    (key,) = change
    status, document = _accept(tmp_path, GOOD | change, curves, other=GOOD)
    item = _item(document, f"setting:{key}")
    assert (status, document["outcome"]) == (2, "undecided")
    assert (item["state"], item["binding"]) == ("warning", True)
    status, document = _accept(tmp_path, GOOD | change, curves, "--waive", key, "only logging", other=GOOD)
    assert status == 0
    assert _item(document, f"setting:{key}")["state"] == "waived"
    assert document["waivers"] == [{"row": key, "reason": "only logging"}]
    status, document = _accept(tmp_path, GOOD | change, curves)
    assert status == 0, "both sides set it alike"
    status, document = _accept(tmp_path, GOOD | change, curves, "--waive", key, "to be safe")
    assert AcceptCode.NEEDLESS_WAIVER in [one.code for one in read_reasons(document, "notes")]


def test_training_data_with_ids_beyond_the_vocabulary_is_not_signed(
    tmp_path: Path, curves: list[str]
) -> None:
    settings = GOOD | {"vocab_size": 128, "eos_token_id": 2}
    for folder, largest in (("within", 127), ("beyond", 128)):
        batch = tmp_path / folder / "step_0" / "rank_0"
        batch.mkdir(parents=True)
        ids = np.arange(largest - 63, largest + 1).reshape(4, 16)
        ids[:, 3] = 2
        np.save(batch / "tokens.npy", ids)
        np.save(batch / "labels.npy", ids)
    status, document = _accept(tmp_path, settings, curves, "--data", str(tmp_path / "within"))
    assert status == 0
    assert [one["path"] for one in document["inputs"]][-1] == str(tmp_path / "within")
    status, document = _accept(tmp_path, settings, curves, "--data", str(tmp_path / "beyond"))
    assert status == 2
    assert _item(document, "recommendation:input_ids")["binding"]


def test_another_template_at_inference_is_not_signed(tmp_path: Path, curves: list[str]) -> None:
    for name, text in (("same", "<u>{{ m }}</u>"), ("other", "[INST]{{ m }}[/INST]")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"chat_template": text}))
    settings = GOOD | {"chat_template": "<u>{{ m }}</u>"}
    status, document = _accept(tmp_path, settings, curves, "--inference", str(tmp_path / "same.json"))
    assert status == 0
    status, document = _accept(tmp_path, settings, curves, "--inference", str(tmp_path / "other.json"))
    assert status == 2
    assert _item(document, "recommendation:inference_template")["binding"]


@pytest.mark.parametrize("words", [("--data", "x"), ("--inference", "x")])
def test_data_without_settings_to_hold_it_against(
    words: tuple[str, str], tmp_path: Path, curves: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["accept", "--curves", *curves, *words, "-o", str(tmp_path / "out")]) == 2
    assert "--config" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("clip_grad",), ("clip_gradd", "x"), ("clip_grad", "")])
def test_a_waiver_without_a_row_or_a_reason(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.json").write_text(json.dumps(GOOD))
    given = ("--config", str(tmp_path / "t.json"), str(tmp_path / "t.json"))
    assert run(["accept", *given, "--waive", *words, "-o", str(tmp_path / "out")]) == 2
    assert "--waive" in capsys.readouterr().err
