"""What a trace lacks is unknown: no cause is read out of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn

from tests.adapters.torch.reading import capture
from trueup.comparing.run import compare
from trueup.diagnosing.evidence.run import run_facts
from trueup.diagnosing.pipeline import diagnose
from trueup.importers import open_trace
from trueup.store import step_view
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.codes.kinds import KindReason

pytestmark = pytest.mark.torch


FACTORS = {factor: torch.tensor(factor) for factor in (1.0, 1.001, 1.01)}
"""made before any capture: no call shows them"""


def program(factor: float, **criterion: object) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        logits = model(torch.randn(6, 8))
        loss = nn.functional.cross_entropy(logits * FACTORS[factor], torch.randint(0, 5, (6,)), **criterion)  # type: ignore[arg-type]
        loss.backward()
        optimizer.step()


def without_arguments(folder: Path, kind: str) -> None:
    """As a replay's trace is: the arguments of one kind of call were not kept."""
    for path in folder.rglob("calls.parquet"):
        calls = pl.read_parquet(path)
        keep = pl.when(pl.col("kind").cast(pl.String) == kind).then(None).otherwise(pl.col("arguments"))
        calls.with_columns(keep.alias("arguments")).write_parquet(path)


@pytest.mark.parametrize("kind", ["loss", "api"])
@pytest.mark.parametrize("side", ["target", "reference"])
def test_arguments_that_were_not_kept(kind: str, side: str, tmp_path: Path) -> None:
    for name, factor in (("target", 1.001), ("reference", 1.0)):
        capture(tmp_path / name, lambda f=factor: program(f, ignore_index=3, reduction="mean"), level="mix")
    assert list((tmp_path / side).rglob("calls.parquet"))
    without_arguments(tmp_path / side, kind)
    verdict = compare(tmp_path / "target", tmp_path / "reference").verdict
    assert verdict.headline.code is not VerdictCode.ARGUMENT_DIFFERS
    stated = [one for one in verdict.evidence if one.code is EvidenceCode.ARGUMENTS_DIFFER]
    assert all("cross_entropy" not in str(one.place("site")) for one in stated)
    diagnosis = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out")
    said = str([finding.kinds for finding in diagnosis.findings])
    assert "ignore_index" not in said
    assert "not given" not in said


@pytest.mark.parametrize(
    ("target", "reference", "named"),
    [
        ({}, {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}, None),
        ({}, {"label_smoothing": 0.1}, "label_smoothing"),
        ({"reduction": "sum"}, {}, "reduction"),
        ({}, {"ignore_index": 2}, "ignore_index"),
    ],
)
def test_a_default_is_what_the_function_has(
    target: dict[str, object], reference: dict[str, object], named: str | None, tmp_path: Path
) -> None:
    for name, given, factor in (
        ("target", target, 1.01 if named is None else 1.0),
        ("reference", reference, 1.0),
    ):
        capture(tmp_path / name, lambda g=given, f=factor: program(f, **g), level="mix")
    verdict = compare(tmp_path / "target", tmp_path / "reference").verdict
    if named is None:
        assert verdict.headline.code is not VerdictCode.ARGUMENT_DIFFERS
    else:
        assert verdict.headline.code is VerdictCode.ARGUMENT_DIFFERS
        assert verdict.headline.place("name") == f"input.{named}"


def smoothed(epsilon: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """As transformers' Trainer does it, of whose calls none shows the labels as a loss's."""
    smoother = pytest.importorskip("transformers.trainer_pt_utils").LabelSmoother(epsilon)
    return lambda z, y: smoother({"logits": z}, y)


def classifier(criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 7))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        criterion(model(torch.randn(12, 8)), torch.randint(0, 7, (12,))).backward()
        optimizer.step()


@pytest.mark.parametrize("epsilon", [0.1, 0.02, 0.0])
def test_the_form_of_a_loss_that_shows_no_labels(epsilon: float, tmp_path: Path) -> None:
    """Its labels are the words that the gradients of the logits raise."""
    runs = tmp_path / "target", tmp_path / "reference"
    capture(runs[0], lambda: classifier(smoothed(epsilon)))
    capture(runs[1], lambda: classifier(nn.functional.cross_entropy))
    view = step_view(open_trace(runs[0]), 0, 0)
    (loss,) = run_facts(view.source, 0, 0, view).losses.values()
    assert loss.form is not None
    assert loss.form.smoothing == pytest.approx(epsilon, abs=1e-4)
    assert (loss.counted, loss.form.divisor) == (12, pytest.approx(12, rel=1e-4))
    diagnosis = diagnose(*runs, output=tmp_path / "out")
    said = [one.code for finding in diagnosis.findings[:1] for one in finding.evidence]
    assert (KindReason.LABEL_SMOOTHING in said) if epsilon else diagnosis.exit_code == 0


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.5, 2.0)], ids=["rows alike", "rows weighed"])
def test_a_loss_whose_rows_are_weighed_has_no_such_form(weights: tuple[float, float], tmp_path: Path) -> None:
    each = torch.tensor(weights).repeat(6)
    capture(
        tmp_path / "run",
        lambda: classifier(lambda z, y: -(each * z.log_softmax(-1).gather(-1, y[:, None])[:, 0]).mean()),
    )
    view = step_view(open_trace(tmp_path / "run"), 0, 0)
    forms = [loss.form for loss in run_facts(view.source, 0, 0, view).losses.values()]
    assert any(forms) == (weights[0] == weights[1])
