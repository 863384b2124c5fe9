"""What a program makes of gradients outside its model may differ as the gradients themselves do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402


class Rounded(nn.Module):
    """Its input, ``roundings`` float32 roundings off in every other element; the gradient passes."""

    def __init__(self, roundings: float) -> None:
        super().__init__()
        self.roundings = roundings

    def forward(self, x: Tensor) -> Tensor:
        values = x.detach().numpy()
        off = np.where(np.arange(values.size).reshape(values.shape) % 3 == 1, self.roundings * 2**-23, 0.0)
        return x + (torch.from_numpy((values * (1 + off)).astype(np.float32)) - x).detach()


class Pool(nn.Module):
    """Attention pooling: the gradient of the score's bias is zero but for rounding."""

    def __init__(self, roundings: float) -> None:
        super().__init__()
        self.table, self.rounded = nn.Embedding(20, 16), Rounded(roundings)
        self.score, self.head = nn.Linear(16, 1), nn.Linear(16, 5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.rounded(self.table(ids))
        return self.head((self.score(x).squeeze(-1).softmax(-1)[..., None] * x).sum(1))


def run(
    folder: Path, *, roundings: float = 0.0, factor: float = 1.0, graded: bool = False, squared: bool = False
) -> Path:
    """Two steps whose program scales each gradient by its own norm and ``factor``."""
    torch.manual_seed(2)
    model = Pool(roundings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(4)
    with trueup.Tracer(folder, level="mix", steps="all"):
        for _ in range(2):
            ids, labels = (torch.randint(0, 5, size, generator=generator) for size in ((6, 12), (6,)))
            loss = nn.functional.cross_entropy(model(ids), labels)
            optimizer.zero_grad()
            loss.backward()
            with torch.set_grad_enabled(graded):
                for weight in model.parameters():
                    assert weight.grad is not None
                    norm = weight.grad.square().sum().sqrt() if squared else weight.grad.norm()
                    norm.data.mul_(factor)
                    weight.grad.div_(1.0 + norm)
            optimizer.step()
    return folder


@pytest.mark.parametrize("graded", [False, True], ids=["without gradients", "with gradients"])
@pytest.mark.parametrize("squared", [False, True], ids=["norm", "square"])
@pytest.mark.parametrize("roundings", [1.0, 3.0])
def test_norm_of_a_gradient_that_is_rounding_alone(
    roundings: float, squared: bool, graded: bool, tmp_path: Path
) -> None:
    reference = run(tmp_path / "reference", graded=graded, squared=squared)
    result = compare(run(tmp_path / "target", roundings=roundings, graded=graded, squared=squared), reference)
    name = f"torch.Tensor.{'square' if squared else 'norm'}"
    assert len(result.frame().filter((pl.col("name") == name) & (pl.col("rel_l2") > 1e-3)))
    assert result.verdict.outcome is Outcome.AGREE


@pytest.mark.parametrize("squared", [False, True], ids=["norm", "square"])
def test_norm_that_its_gradient_does_not_explain(squared: bool, tmp_path: Path) -> None:
    reference = run(tmp_path / "reference", squared=squared)
    verdict = compare(run(tmp_path / "target", factor=1.01, squared=squared), reference).verdict
    assert verdict.outcome is Outcome.DIFFER
