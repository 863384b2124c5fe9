"""Numbers that multiply the loss: masks hide positions, advantages are computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.diagnosing.stages.loss_factors import hides_otherwise  # noqa: E402
from trueup.types.codes import BatchCode as Batches  # noqa: E402
from trueup.types.codes import Code, VerdictCode  # noqa: E402
from trueup.types.finding import Finding, Stage  # noqa: E402

ONES = np.array([1.0, 1.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("target", "reference", "hides"),
    [
        (np.array([1.0, 1.0, 1.0, 1.0]), ONES, True),
        (0.5 * ONES, ONES, True),
        (np.array([0.3, 0.2, 0.0, 0.5]), np.array([0.3, 0.2, 0.1, 0.5]), True),
        (np.array([0.3, 0.2, 0.0, 0.5]), np.array([0.3, 0.4, 0.0, 0.5]), False),
        (np.array([0.3, -0.2, 0.1, 0.5]), np.array([0.3, -0.2, 0.0, 0.5]), False),
    ],
)
def test_what_is_a_mask(target: np.ndarray, reference: np.ndarray, hides: bool) -> None:
    assert hides_otherwise(target, reference) is hides


def trained(folder: Path, change: str = "none") -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 40))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", steps="0-1", task="tensor"):
        for _ in range(2):
            ids, rewards = torch.randint(0, 40, (4, 11)), torch.randn(4)
            mask = (torch.arange(10)[None] < torch.tensor([10, 6, 8, 9])[:, None]).float()
            log_probs = torch.log_softmax(model(ids[:, :-1]), -1).gather(-1, ids[:, 1:, None])[..., 0]
            advantages = whitened(rewards[:, None] * 0.9 ** torch.arange(10.0), mask, change)
            if change == "mask":
                mask[1, 6] = 1.0
            if change == "negated":
                advantages = -advantages
            (-(log_probs * advantages * mask).sum() / mask.sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def whitened(values: Tensor, mask: Tensor, change: str) -> Tensor:
    shown = torch.ones_like(mask) if change == "padding" else mask
    mean = (values * shown).sum() / shown.sum()
    spread = (((values - mean) ** 2 * shown).sum() / shown.sum()).sqrt()
    return (values - mean) / (spread + (1e-7 if change == "rounding" else 1e-8))


def first(folder: Path, change: str) -> Finding | None:
    target, reference = trained(folder / "target", change), trained(folder / "reference")
    return next(iter(diagnose(target, reference, output=folder / "out").findings), None)


def codes_of(finding: Finding) -> set[Code]:
    return {finding.headline.code, *(part.code for part in finding.headline.parts)}


def test_advantages_made_with_padding_are_no_mask_and_no_data(tmp_path: Path) -> None:
    finding = first(tmp_path, "padding")
    assert finding is not None
    assert (finding.stage, Batches.FACTORS_DIFFER in codes_of(finding)) == (Stage.FORWARD, True)
    assert all(kind.name != "wrong_mask" for kind in finding.kinds)
    (said,) = [one for one in finding.evidence if one.code is Batches.FACTORS]
    assert (said.number("num"), said.number("total")) == (40, 40)


def test_a_mask_that_counts_another_position_stays_one(tmp_path: Path) -> None:
    finding = first(tmp_path, "mask")
    assert finding is not None
    assert finding.kinds[0].name == "wrong_mask"


def test_a_multiple_is_told_as_one(tmp_path: Path) -> None:
    finding = first(tmp_path, "negated")
    assert finding is not None
    assert finding.kinds[0].name in ("wrong_sign", "wrong_scale")


def test_rounding_of_advantages_is_nothing(tmp_path: Path) -> None:
    assert first(tmp_path, "rounding") is None


@pytest.mark.parametrize(("change", "name"), [("padding", "factors"), ("mask", "mask")])
def test_compare_calls_no_advantages_a_mask(change: str, name: str, tmp_path: Path) -> None:
    target, reference = trained(tmp_path / "target", change), trained(tmp_path / "reference")
    headline = compare(target, reference).verdict.headline
    assert (headline.code, headline.place("name")) == (VerdictCode.LOSS_INPUT_DIFFERS, name)
