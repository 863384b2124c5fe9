"""Traces of statistics: what digests, shapes and places tell without values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import trueup
from tests.comparing.reading import nested
from trueup.comparing.run import compare
from trueup.diagnosing.pipeline import Diagnosis, diagnose
from trueup.diagnosing.stages.weight_ranks import _are_parts
from trueup.types.codes import StagesCode, VerdictCode, WeightsCode
from trueup.types.codes.kinds import CauseCode, KindReason
from trueup.types.finding import Stage
from trueup.types.reason import reason
from trueup.wording import text

pytestmark = pytest.mark.torch
OF_SAMPLES = {CauseCode.SAMPLE_ORDER, CauseCode.SHARD_OR_SEED, CauseCode.REPLAYED_AFTER_RESUME}


class Placed(nn.Module):
    """Tokens and places, or numbers and one noise level a row."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 8), nn.Embedding(16, 8)
        self.out = nn.Linear(8, 50)

    def forward(self, ids: Tensor, places: Tensor, level: Tensor) -> Tensor:
        """Logits."""
        return self.out((self.words(ids) + self.places(places)) * level[:, None, None])


def placed(folder: Path, *, ahead: int = 0, seed: int = 1, scale: float = 1.0) -> Path:
    """Rows of the data, at places counted from a number, with a noise level that is drawn apart from them."""
    torch.manual_seed(0)
    model = Placed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, levels = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(2)
    with trueup.Tracer(folder, level="L0", steps="0-1"):
        for _ in range(3):
            ids = torch.randint(0, 50, (4, 9), generator=data)
            level = torch.rand(4, generator=levels)
            logits = model(ids, (torch.arange(9) + ahead).expand(4, 9).contiguous(), level * scale)
            nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def diagnosed(tmp_path: Path, **change: float) -> Diagnosis:
    """Of a change against the program as it is."""
    sides = placed(tmp_path / "target", **change), placed(tmp_path / "reference")  # type: ignore[arg-type]
    return diagnose(*sides, output=tmp_path / "out")


@pytest.mark.parametrize("change", [{"ahead": 1}, {"scale": 0.5}], ids=["places", "levels"])
def test_inputs_of_samples_that_are_the_same(tmp_path: Path, change: dict[str, float]) -> None:
    finding = diagnosed(tmp_path, **change).findings[0]
    assert finding.stage is Stage.DATA
    assert not {one.code for one in finding.causes} & OF_SAMPLES
    (alike,) = nested(finding.evidence, StagesCode.INPUTS_ALIKE)
    assert "0" in (alike.place("names") or ())


def test_other_samples_with_the_levels_of_the_reference(tmp_path: Path) -> None:
    """Twin: the levels have the reference's bits, the samples are others."""
    finding = diagnosed(tmp_path, seed=3).findings[0]
    assert finding.stage is Stage.DATA
    assert {one.code for one in finding.causes} & OF_SAMPLES
    assert not nested(finding.evidence, StagesCode.INPUTS_ALIKE)


def gap(folder: Path, *, turned: bool, more: float = 0.0) -> Path:
    """A loss of the difference of two models' results, made outside of both."""
    torch.manual_seed(0)
    policy, anchor = (nn.Linear(6, 5) for _ in range(2))
    anchor.requires_grad_(False)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    rows = torch.randn(3, 7, 6, generator=torch.Generator().manual_seed(4))
    with trueup.Tracer(folder, level="mix", steps="0-1"):
        for step in range(3):
            own = policy(rows[step])
            with torch.no_grad():
                other = anchor(rows[step])
            ratio = torch.sub(own, other) if turned else torch.sub(other, own)
            (torch.exp(ratio) - ratio - 1 + more).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def test_operands_of_a_loss_that_are_exchanged(tmp_path: Path) -> None:
    """That the one is the other and their difference more says nothing: it is so of any two."""
    sides = (gap(tmp_path / str(turned), turned=turned) for turned in (True, False))
    finding = diagnose(*sides, output=tmp_path / "out").findings[0]
    assert (finding.stage, finding.step) == (Stage.FORWARD, 0)
    assert nested([finding.kinds[0].sentence], KindReason.SLOTS_SWAPPED)
    assert not nested(finding.evidence, KindReason.TERM_EXTRA)


def test_a_replay_without_values_asks_for_values(tmp_path: Path) -> None:
    sides = [gap(tmp_path / str(turned), turned=turned) for turned in (True, False)]
    asked = diagnose(*sides, output=tmp_path / "out", command=["python", "train.py"]).findings[0]
    assert asked.next is not None
    assert asked.next.code is StagesCode.VALUES_FOR_REPLAY
    assert "--preset diagnose" in str(asked.next.place("command"))
    passive = diagnose(*sides, output=tmp_path / "passive").findings[0]
    assert passive.next is not None
    assert passive.next.code is StagesCode.REPLAY_TO_BE_CERTAIN


@pytest.mark.parametrize(
    ("parts", "whole", "are"),
    [
        ([(3,), (3,)], [(6,), (6,)], True),
        ([(3,), (2,)], [(5,), (5,)], True),
        ([(4, 2), (4, 2)], [(4, 4), (4, 4)], True),
        ([(3,), (3,)], [(7,), (7,)], False),
        ([(3,), (3,)], [(6,), (3,)], False),
        ([(4, 2), (4, 2)], [(8, 4), (8, 4)], False),
    ],
)
def test_shapes_of_parts(parts: list[tuple[int, ...]], whole: list[tuple[int, ...]], are: bool) -> None:
    assert _are_parts(parts, whole) == are
    assert "part" in text(reason(WeightsCode.CUT_IN_ONE, parameter="a"))


class Renamed(nn.Module):
    """A model that reads the state at the end of its rows, or the mean over them."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.rows, self.head, self.mean = nn.Linear(4, 4), nn.Linear(4, 3), mean

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        made = self.rows(x)
        return self.head(made.mean(1) if self.mean else made[:, -1])


def test_the_class_of_a_model_is_no_finding(tmp_path: Path) -> None:
    def trained(mean: bool) -> Path:
        torch.manual_seed(0)
        model = type("Meaned" if mean else "Ended", (Renamed,), {})(mean)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with trueup.Tracer(tmp_path / str(mean), level="L0", steps="0-1"):
            for _ in range(3):
                model(torch.ones(2, 5, 4).cumsum(1)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return tmp_path / str(mean)

    verdict = compare(trained(True), trained(False)).verdict
    assert verdict.headline.code is not VerdictCode.MODULE_CLASS_DIFFERS
