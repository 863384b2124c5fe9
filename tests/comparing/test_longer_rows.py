"""Two sequences padded to another length train the same where nothing is made of the padding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.longer_rows import extends  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402

VALUES = frozenset({"module", "parameter", "labels", "configuration"})
LENGTHS = ((6, 5, 4), (5, 3, 4))
ROWS = [
    torch.randint(2, 20, (3, max(lengths)), generator=torch.Generator().manual_seed(at)).where(
        torch.arange(max(lengths)) < torch.tensor(lengths)[:, None], torch.tensor(0)
    )
    for at, lengths in enumerate(LENGTHS)
]


class Translator(nn.Module):
    """Attends to a source, whose padding it hides by itself."""

    def __init__(self, *, hides: bool) -> None:
        super().__init__()
        self.source, self.target, self.head = nn.Embedding(20, 8), nn.Embedding(20, 8), nn.Linear(8, 20)
        self.hides = hides

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        scores = self.target(target) @ self.source(source).mT
        hidden = (source == 0)[:, None] if self.hides else torch.zeros(1, 1, 1, dtype=torch.bool)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return self.head(self.target(target) + weights @ self.source(source))


def trained(
    folder: Path, *, more: int = 0, hides: bool = True, counts: bool = False, left: bool = False
) -> Path:
    torch.manual_seed(0)
    model = Translator(hides=hides)
    source, target = (F.pad(rows, (more, 0) if left else (0, more)) for rows in ROWS)
    labels = target.masked_fill(target == 0, -100)
    if counts:
        labels[:, ROWS[1].shape[1]] = 3
    with trueup.Tracer(folder, level="L0", steps="0", store_values_of=VALUES):
        logits = model(source, target)
        F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
        torch.optim.SGD(model.parameters(), lr=0.01).step()
    return folder


@pytest.mark.parametrize(
    ("way", "agree"),
    [({}, True), ({"left": True}, True), ({"counts": True}, False), ({"hides": False}, False)],
    ids=["on the right", "on the left", "a label there counts", "attention sees it"],
)
def test_padding_of_two_sequences(way: dict[str, bool], agree: bool, tmp_path: Path) -> None:
    """Twins: a label among the padding that counts, and attention that does not hide the padding."""
    clean = trained(tmp_path / "clean", hides=way.get("hides", True))
    run = trained(tmp_path / "run", more=3, **way)
    for sides in ((run, clean), (clean, run)):
        assert (compare(*sides).exit_code == 0) is agree
    assert (diagnose(run, clean, output=tmp_path / "out").exit_code == 0) is agree


def test_further_columns_are_no_other_rows() -> None:
    rows = np.arange(6).reshape(2, 3)
    wide = np.pad(rows, ((0, 0), (2, 1)))
    assert extends(wide[:, 2:], rows)
    assert extends(wide[:, :-1], rows)
    assert not extends(wide, rows)
    assert not extends(np.pad(rows, ((0, 1), (0, 0))), rows)
    assert not extends(rows, rows)
    assert not extends(np.pad(rows, ((0, 0), (0, 1))) + 1, rows)
