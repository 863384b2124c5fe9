"""Every check on a real run with one thing wrong, and on runs with nothing wrong."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import trueup
from tests.diagnosing.checks import trainings
from tests.diagnosing.checks.trainings import Training, capture
from trueup.cli import app

pytestmark = pytest.mark.torch

Change = Callable[[Training], None]


def checked(trace: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, dict]]:
    """Exit status and outcomes by name, as ``--json`` gives them."""
    capsys.readouterr()
    status = app.run(["check-run", str(trace), "--json", *words])
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == status
    return status, {outcome["name"]: outcome for outcome in document["checks"]}


FAULTS: list[tuple[Change, str, str]] = [
    (trainings.log_of_negative, "finite", "layers.1.mlp.act · torch.log"),
    (trainings.sqrt_at_zero, "finite", "layers.1.mlp.act · torch.sqrt · gradient of input.0"),
    (trainings.row_masked_whole, "finite", "layers.1.attn · torch.nn.functional.softmax · output.0"),
    (trainings.float16_overflow, "finite", "layers.1.mlp.act · torch.Tensor.mul[1] · output.0"),
    (trainings.nearly_overflowing, "range", "layers.1.mlp.act · torch.Tensor.mul[1] · output.0"),
    (trainings.gradients_too_small, "range", "gradient"),
    (trainings.frozen_in_the_middle, "gradients", "layers.1.mlp.up.weight"),
    (trainings.detached, "gradients", "layers.2.attn.qkv.weight"),
    (trainings.times_zero, "gradients", "layers.1.mlp.up.weight"),
    (trainings.adapted_and_cut_off, "gradients", "layers.0.attn.qkv.lora_A.default.weight"),
    (trainings.scaled_when_clipped, "grad_norm", "check.grad_norm.cause.not_unscaled"),
    (trainings.stale_parameters, "updates", "check.updates.stale_parameters"),
    (trainings.left_out_of_the_optimizer, "updates", "layers.2.mlp.down.bias"),
    (trainings.update_undone, "updates", "head.weight"),
    (trainings.update_lost_in_rounding, "updates", "check.updates.lost_in_rounding"),
    (trainings.stale_working_copy, "master_weights", "emb.weight"),
    (trainings.seeded_in_the_forward, "streams", "layers.1.attn.drop · torch.nn.functional.dropout"),
    (trainings.recomputed_with_another_state, "streams", "layers.1.attn.drop"),
    (trainings.labels_not_shifted, "labels", '"shift": 0'),
    (trainings.labels_shifted_twice, "labels", '"shift": 2'),
    (trainings.labels_all_ignored, "labels", "check.labels.all_ignored"),
    (trainings.head_far_too_large, "labels", "check.labels.first_loss_high"),
]


@pytest.mark.parametrize(
    ("change", "check", "said"), FAULTS, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_fault_fails_its_check(
    change: Change, check: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, outcomes = checked(capture(tmp_path / "run", change), capsys)
    assert status == 1
    outcome = outcomes[check]
    assert outcome["verdict"] == "failed", outcome
    assert said in json.dumps(outcome, ensure_ascii=False), outcome


@pytest.mark.parametrize("task", ["statistics", "overflow_check"])
def test_what_the_checks_keep_changes_no_run(task: str, tmp_path: Path) -> None:
    ends = []
    for watched in (False, True):
        tracer = trueup.Tracer(tmp_path, level="mix", task=task, store_values_of=trainings.KEPT)
        with tracer if watched else contextlib.nullcontext():
            training = trainings.build()
            trainings.train(training)
        ends.append([*(p.detach() for p in training.model.parameters()), torch.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert (tmp_path / "step_000001").is_dir() is (task == "statistics")


@pytest.mark.parametrize(
    ("change", "made_anew", "kept"),
    [
        (trainings.masters_made_anew, True, False),
        (trainings.master_weights, False, True),
        (trainings.slow_master_weights, False, True),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_an_update_of_master_weights_starts_from(
    change: Change, made_anew: bool, kept: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = capture(tmp_path / "run", change, task="tensor")
    _, outcomes = checked(trace, capsys, "--only", "master_weights")
    outcome = outcomes["master_weights"]
    numbers = outcome["numbers"]
    assert (numbers["made_anew"] > 0, numbers["kept"] > 0) == (made_anew, kept)
    assert (outcome["verdict"] == "failed") is made_anew
    assert ("check.master_weights.made_anew" in json.dumps(outcome)) is made_anew


CLEAN: list[Change | None] = [
    None,
    trainings.log_of_zero_masked_away,
    trainings.smallest_number_as_mask,
    trainings.first_layers_frozen,
    trainings.warming_up,
    trainings.master_weights,
    trainings.slow_master_weights,
    trainings.recomputed,
    trainings.labels_of_something_else,
    trainings.with_reference_model,
]


@pytest.mark.parametrize("change", CLEAN, ids=lambda value: getattr(value, "__name__", "plain"))
def test_what_is_no_fault_passes(
    change: Change | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, outcomes = checked(capture(tmp_path / "run", change), capsys)
    assert not [o for o in outcomes.values() if o["verdict"] in ("failed", "undecided")]
    assert status == 0
    for name in ("finite", "range", "gradients", "updates", "streams"):
        assert outcomes[name]["verdict"] == "passed", outcomes[name]


@pytest.mark.parametrize(
    ("divide", "is_low"),
    [
        (trainings.divided_by_all_tokens, False),
        (trainings.divided_by_microbatches, False),
        (trainings.summed, False),
        (trainings.labels_visible, True),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_first_loss_is_read_as_it_was_divided(
    divide: Callable[..., torch.Tensor], is_low: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, outcomes = checked(trainings.accumulate(tmp_path / "run", divide), capsys, "--only", "labels")
    outcome = outcomes["labels"]
    assert outcome["verdict"] == "passed"
    codes = [note["code"] for note in outcome.get("notes_reasons", [])]
    assert ("check.labels.first_loss_low" in codes) is is_low
    if not is_low:
        assert outcome["numbers"]["first_loss"] == pytest.approx(math.log(96), rel=0.3)


def test_a_model_that_is_only_evaluated_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = capture(tmp_path / "run", trainings.with_reference_model)
    _, outcomes = checked(trace, capsys, "--only", "gradients")
    (note,) = outcomes["gradients"]["notes_reasons"]
    assert note["code"] == "check.gradients.num_evaluated"
    assert note["numbers"]["num"] == outcomes["gradients"]["numbers"]["parameters"]


def test_a_gradient_behind_weights_that_start_at_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = capture(tmp_path / "run", trainings.adapted)
    _, outcomes = checked(trace, capsys, "--only", "gradients")
    assert outcomes["gradients"]["verdict"] == "passed", outcomes["gradients"]
    notes = {note["code"]: note["numbers"] for note in outcomes["gradients"]["notes_reasons"]}
    assert notes["check.gradients.behind_zero_weights"]["num"] == trainings.CONFIG.num_layers
