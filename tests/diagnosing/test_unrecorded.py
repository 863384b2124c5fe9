"""What a trace lacks is unknown: no cause is read out of it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn

from tests.adapters.torch.reading import capture
from trueup.comparing.run import compare
from trueup.diagnosing.pipeline import diagnose
from trueup.types.codes import EvidenceCode, VerdictCode

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
