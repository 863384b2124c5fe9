"""Tokens that differ only where a mask does follow from the mask."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import BatchCode, StagesCode  # noqa: E402

ROWS, LENGTH, WORDS = 4, 12, 30
LENGTHS = torch.tensor([5, 9, 12, 7])
EOS, PAD = 1, 0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(input_ids) * attention_mask[..., None]
        return self.head(x + x.cumsum(1) / 4)


def trained(folder: Path, *, shorter: int = 0, elsewhere: bool = False) -> Path:
    """Rows that end in EOS; ``shorter``: so much of each is masked and padded; ``elsewhere``: a token of
    what is seen is another one, too."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    at = torch.arange(LENGTH)
    with trueup.Tracer(folder, level="L0", steps="0", task="tensor"):
        ids = torch.randint(2, WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(3))
        ids[at == LENGTHS[:, None] - 1] = EOS
        labels = ids.masked_fill(at >= LENGTHS[:, None], -100)
        mask = at < LENGTHS[:, None] - shorter
        ids = ids.masked_fill(~mask, PAD)
        ids[0, 1] = 7 if elsewhere else 8
        logits = model(input_ids=ids, attention_mask=mask.long())
        F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).backward()
        optimizer.step()
    return folder


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_a_mask_hides_follows_from_it(elsewhere: bool, tmp_path: Path) -> None:
    target = trained(tmp_path / "target", shorter=1, elsewhere=elsewhere)
    found = diagnose(target, trained(tmp_path / "reference"), output=tmp_path / "out").findings
    told = [one.headline for one in found]
    masks = [one for one in told if one.code is StagesCode.INPUT_DIFFERS]
    assert [one.place("name") for one in masks] == ["attention_mask"]
    assert any(one.code is StagesCode.BATCH for one in told) is elsewhere
    ends = next(one for one in found if one.headline is masks[0]).evidence[0]
    assert (ends.code, ends.number("fewer"), ends.place("end")) == (BatchCode.FLAGS, ROWS, "last")
