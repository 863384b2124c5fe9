"""Sequences packed one after the other into inputs of one dimension, for variable-length attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.store.same_rows import as_stream, bounds_in  # noqa: E402
from trueup.types.codes import BatchCode as Batches  # noqa: E402
from trueup.types.codes import RecordCode  # noqa: E402
from trueup.types.finding import Finding  # noqa: E402
from trueup.types.reason import reason  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

LENGTHS = (9, 4, 12, 7)
IDS = np.array([7, 3, 9, 1, 5, 2, 8, 4, 6, 3])
POSITIONS = np.array([0, 1, 2, 3, 0, 1, 2, 0, 1, 2])
BOUNDS = np.array([0, 4, 7, 10])
LATE = np.array([0, 1, 1, 0])


@pytest.mark.parametrize(
    "given",
    [
        {"input.0": IDS, "input.1": POSITIONS},
        {"input.0": IDS, "input.1": POSITIONS, "input.2": BOUNDS},
        {"input.0": IDS, "input.1": BOUNDS},
    ],
)
def test_a_stream_is_one_row(given: dict[str, np.ndarray]) -> None:
    found = as_stream(given)
    assert found is not None
    assert sorted(values.shape for values in found.values()) == [(1, 10), (1, 10)]
    assert any(np.array_equal(values[0], POSITIONS) for values in found.values())


@pytest.mark.parametrize(
    "given",
    [
        {"input.0": IDS},
        {"input.0": IDS, "input.1": IDS[::-1]},
        {"input.0": IDS, "input.1": np.array([0, 4, 7])},
        {"input.0": IDS, "input.1": np.zeros(10, np.int64)},
        {"input.0": IDS[:, None], "input.1": POSITIONS[:, None]},
        {"input.0": IDS, "input.1": POSITIONS, "input.2": np.ones((10, 3))},
    ],
)
def test_classes_of_samples_and_other_numbers_are_no_stream(given: dict[str, np.ndarray]) -> None:
    assert as_stream(given) is None


def test_boundaries_that_positions_contradict_are_kept() -> None:
    found = as_stream({"input.0": IDS, "input.1": POSITIONS, "input.2": BOUNDS + LATE})
    assert found is not None
    assert "input.2" in found
    assert list(bounds_in({"input.0": IDS, "input.2": BOUNDS})) == ["input.2"]


class Model(nn.Module):
    """Causal attention within each sequence; two heads, for the next token and the one after it."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.pos, self.qkv = nn.Embedding(50, 16), nn.Embedding(20, 16), nn.Linear(16, 48)
        self.one, self.two = nn.Linear(16, 50), nn.Linear(16, 50)

    def forward(self, ids: Tensor, positions: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor]:
        x = self.emb(ids) + self.pos(positions)
        q, k, v = self.qkv(x).chunk(3, -1)
        ends = zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        made = [
            F.scaled_dot_product_attention(q[None, a:b], k[None, a:b], v[None, a:b], is_causal=True)[0]
            for a, b in ends
        ]
        x = x + torch.cat(made)
        return self.one(x), self.two(x)


def trained(folder: Path, *, order: tuple[int, ...] = (0, 1, 2, 3), later: int = 0, shift: int = 2) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with trueup.Tracer(folder, level="L0", steps="0-1", task="tensor"):
        for _ in range(2):
            documents = [torch.randint(0, 50, (length,)) for length in LENGTHS]
            documents = [documents[number] for number in order]
            bounds = F.pad(torch.tensor([len(one) for one in documents]).cumsum(0), (1, 0))
            bounds[1:-1] += later
            positions = torch.cat([torch.arange(len(one)) for one in documents])
            first, second = model(torch.cat(documents), positions, bounds)
            labels = [torch.cat([F.pad(d[n:], (0, n), value=-100) for d in documents]) for n in (1, shift)]
            (F.cross_entropy(first, labels[0]) + 0.3 * F.cross_entropy(second, labels[1])).backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def findings(folder: Path, **change: int) -> tuple[Finding, ...]:
    target, reference = trained(folder / "target", **change), trained(folder / "reference")  # type: ignore[arg-type]
    return diagnose(target, reference, output=folder / "out").findings


def test_the_same_sequences_in_another_order_agree(tmp_path: Path) -> None:
    target, reference = trained(tmp_path / "target", order=(2, 0, 3, 1)), trained(tmp_path / "reference")
    comparison = compare(target, reference)
    assert comparison.verdict.outcome is Outcome.AGREE
    code = pl.col("reason_code").cast(pl.String) == RecordCode.BOUNDARIES_REORDERED.value
    for row in comparison.frame().filter(code).iter_rows(named=True):  # alone what is given as boundaries
        assert (row["slot"], row["phase"]) == ("input.2", "forward")
    assert comparison.frame().filter(code).height > 0
    assert diagnose(target, reference, output=tmp_path / "out").findings == ()


def test_boundaries_one_token_late(tmp_path: Path) -> None:
    finding = findings(tmp_path, later=1)[0]
    assert finding.headline.code is Batches.BOUNDARIES_DIFFER
    (said,) = [one for one in finding.evidence if one.code is Batches.BOUNDARIES]
    assert (said.number("num"), said.number("target"), said.number("reference")) == (3, 10, 9)
    assert finding.next_note == reason(Batches.CHECK_BOUNDARIES)


def test_a_second_head_trained_on_the_next_token(tmp_path: Path) -> None:
    finding = findings(tmp_path, shift=1)[0]
    (said,) = [one for one in finding.evidence if one.code is Batches.SHIFTS]
    assert (said.number("target"), said.number("reference")) == (1, 2)
