"""A token id that no embedding has a row for is named, with its place, by every verb that sees the batch."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.adapters.torch.reading import capture
from trueup.diagnosing.batches import relation
from trueup.diagnosing.checks import CheckVerdict, check_run
from trueup.diagnosing.pipeline import diagnose
from trueup.store import Trace
from trueup.types.codes import CheckCode, StagesCode
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import Stage

pytestmark = pytest.mark.torch

SIZE, STORED = 31, frozenset({"labels", "integers"})


def program(value: int | None, step: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(SIZE, 8), nn.Linear(8, SIZE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with contextlib.suppress(IndexError):
        for at in range(3):
            ids = torch.randint(0, SIZE, (4, 13))
            if at == step and value is not None:
                ids[2, 5] = value
            loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten() % SIZE)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def captured(folder: Path, value: int | None, step: int = 0) -> Path:
    capture(folder, lambda: program(value, step), level="mix", store_values_of=STORED)
    return folder


@pytest.mark.parametrize(("value", "cause"), [(SIZE, "small"), (SIZE + 900, "small"), (-100, "ignored")])
@pytest.mark.parametrize("step", [0, 1])
def test_diagnose_names_it(value: int, cause: str, step: int, tmp_path: Path) -> None:
    target = captured(tmp_path / "target", value, step)
    diagnosis = diagnose(target, captured(tmp_path / "reference", None), output=tmp_path / "out")
    finding = diagnosis.findings[0]
    assert (finding.stage, finding.headline.code) == (Stage.DATA, StagesCode.OUT_OF_VOCABULARY)
    assert (finding.headline.number("value"), finding.headline.number("size")) == (value, SIZE)
    assert (finding.evidence[0].number("row"), finding.evidence[0].number("column")) == (2, 5)
    expected = {"small": CauseCode.VOCABULARY_TOO_SMALL, "ignored": CauseCode.IGNORED_AS_INPUT}
    assert [one.code for one in finding.causes] == [expected[cause]]
    assert all(one.headline.code is not StagesCode.BATCH for one in diagnosis.findings)


@pytest.mark.parametrize("value", [SIZE, -1])
@pytest.mark.parametrize("step", [0, 1])
def test_check_run_names_it(value: int, step: int, tmp_path: Path) -> None:
    trace = Trace(captured(tmp_path / "run", value, step))
    (outcome,) = check_run(trace, only=["labels"])
    assert outcome.verdict is CheckVerdict.FAILED
    found = outcome.sentence.parts[0]
    assert found.code is CheckCode.ID_OUTSIDE
    assert [found.number(name) for name in ("value", "row", "column", "size")] == [value, 2, 5, SIZE]


def test_the_last_id_is_inside(tmp_path: Path) -> None:
    trace = Trace(captured(tmp_path / "run", SIZE - 1))
    assert check_run(trace, only=["labels"])[0].verdict is CheckVerdict.PASSED


def test_a_program_that_stops_has_failed(tmp_path: Path) -> None:
    trace = Trace(captured(tmp_path / "run", None))
    first = check_run(trace, status=3)[0]
    assert (first.verdict, first.sentence.code) == (CheckVerdict.FAILED, CheckCode.STOPPED)
    assert first.sentence.number("status") == 3


def test_one_id_replaced_once_is_no_other_tokenizer() -> None:
    reference = np.arange(48).reshape(4, 12)
    target = reference.copy()
    target[2, 5] = 7
    assert relation(target, reference).name == "some_tokens"


class Part(nn.Module):
    """The second half of a vocabulary: other ids are looked up in no row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SIZE, 8))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        local = ids - SIZE
        outside = local < 0
        out = nn.functional.embedding(local.masked_fill(outside, 0), self.weight)
        return out.masked_fill(outside[..., None], 0.0)


class Placed(nn.Module):
    """A part of a vocabulary, and positions in a table with fewer rows than there are ids."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.positions = Part(), nn.Embedding(16, 8)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        where = self.positions.weight[: ids.shape[1]] if positions is None else self.positions(positions)
        return self.part(ids) + where


@pytest.mark.parametrize("places", ["none", "by weight", "by lookup"])
def test_ids_of_a_part_of_a_vocabulary_are_inside(places: str, tmp_path: Path) -> None:
    """A module that returns with an id beyond its rows is no plain lookup, no other table stands for it."""

    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = Part() if places == "none" else Placed()
            self.head = nn.Linear(8, 2 * SIZE)

        def forward(self, ids: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids, *more))

    def half() -> None:
        torch.manual_seed(0)
        model = Halved()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        more = [torch.arange(12)] if places == "by lookup" else []
        for _ in range(2):
            ids = torch.randint(0, 2 * SIZE, (4, 13))
            nn.functional.cross_entropy(
                model(ids[:, :-1], *more).flatten(0, 1), ids[:, 1:].flatten()
            ).backward()
            optimizer.step()
            optimizer.zero_grad()

    for name in ("target", "reference"):
        capture(tmp_path / name, half, level="mix", store_values_of=STORED)
    assert check_run(Trace(tmp_path / "target"), only=["labels"])[0].verdict is not CheckVerdict.FAILED
    assert diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out").exit_code == 0
