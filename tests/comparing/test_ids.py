"""An id that an embedding has no row for is named where the data differs."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from tests.adapters.torch.reading import capture
from trueup.comparing.run import compare
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.reason import Reason

pytestmark = pytest.mark.torch


class Clamped(nn.Module):
    """What looks up some id instead of one that it has no row for, as Megatron's looks up zeros."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, 8))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ``ids``."""
        return nn.functional.embedding(ids.clamp(0, len(self.weight) - 1), self.weight)


def run(
    folder: Path,
    changed: int | None,
    *,
    size: int,
    at: tuple[int, int] = (1, 3),
    clamped: bool = False,
    name: str = "wte",
) -> Path:
    """Two steps over ids below ``size``, one of them changed in the second; the program may end there."""

    def program() -> None:
        torch.manual_seed(size)
        model = nn.Sequential(nn.Embedding(size, 8), nn.Linear(8, size))
        if clamped:
            model = nn.Sequential(OrderedDict({name: Clamped(size), "head": nn.Linear(8, size)}))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.randint(0, size, (3, 7)) for _ in range(2)]
        if changed is not None:
            batches[1][at] = changed
        for ids in batches:
            logits = model(ids).flatten(0, 1)
            nn.functional.cross_entropy(logits, ids.roll(-1, 1).clamp(max=size - 1).flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()

    with suppress(IndexError):
        capture(folder, program, level="L0", task="statistics")
    return folder


def named(target: Path, reference: Path) -> list[Reason]:
    verdict = compare(target, reference).verdict
    assert verdict.headline.code is VerdictCode.DATA_DIFFERS
    return [one for one in verdict.evidence if one.code is EvidenceCode.ID_BEYOND]


@pytest.mark.parametrize(("size", "value"), [(37, 37), (37, 4000), (61, 62)])
@pytest.mark.parametrize("side", ["target", "reference"])
def test_an_id_beyond_the_vocabulary(size: int, value: int, side: str, tmp_path: Path) -> None:
    bad, good = run(tmp_path / "bad", value, size=size), run(tmp_path / "good", None, size=size)
    (found,) = named(*((bad, good) if side == "target" else (good, bad)))
    assert (found.place("side"), found.place("module")) == (side, "0")
    assert (found.number("value"), found.number("size")) == (value, size)


@pytest.mark.parametrize("value", [20, 36])
def test_an_id_that_is_another_one_is_not_beyond(value: int, tmp_path: Path) -> None:
    assert named(run(tmp_path / "bad", value, size=37), run(tmp_path / "good", None, size=37)) == []


@pytest.mark.parametrize("value", [37, 500, -3])
@pytest.mark.parametrize("name", ["wte", "tok_embeddings", "emb"])
def test_an_id_that_the_model_maps_to_another_row(value: int, name: str, tmp_path: Path) -> None:
    bad = run(tmp_path / "bad", value, size=37, clamped=True, name=name)
    (found,) = named(bad, run(tmp_path / "good", None, size=37, clamped=True, name=name))
    assert (found.place("side"), found.place("module"), found.number("value")) == ("target", name, value)
