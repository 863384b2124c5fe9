"""Tokens that differ only where a mask does follow from the mask."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from tests.diagnosing.replaying import replay  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import BatchCode, StagesCode  # noqa: E402
from trueup.types.codes.kinds import KindReason  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

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


class Attending(nn.Module):
    """One head of attention, with a mask that the model makes."""

    def __init__(self, lowest: float) -> None:
        super().__init__()
        self.lowest = lowest
        self.words, self.parts, self.head = nn.Embedding(WORDS, 16), nn.ModuleList(), nn.Linear(16, WORDS)
        self.parts.extend(Part() for _ in range(2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        seen = torch.ones(LENGTH, LENGTH).tril().bool() & attention_mask[:, None, :].bool()
        mask = torch.zeros(seen.shape).masked_fill(~seen, self.lowest)
        x = self.words(input_ids)
        for part in self.parts:
            x = part(x, mask)
        made: Tensor = self.head(x)
        return made


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        weights = (self.query(x) @ x.transpose(1, 2) / 4 + mask).softmax(-1)
        made: Tensor = x + self.out(weights @ x)
        return made


def attending(lowest: float, *, left: bool) -> Callable[[], None]:
    def run() -> None:
        torch.manual_seed(0)
        model = Attending(lowest)
        ids = torch.randint(2, WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(3))
        mask = torch.arange(LENGTH) < LENGTHS[:, None]
        mask = mask.flip(1) if left else mask
        labels = ids.masked_fill(~mask, -100)
        logits = model(input_ids=ids.masked_fill(~mask, PAD), attention_mask=mask.long())
        F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    return run


@pytest.mark.parametrize("left", [True, False])
def test_a_mask_hides_no_nan(left: bool, tmp_path: Path) -> None:
    """Minus infinity makes NaN of a row that sees nothing, as padding at the left does, and the next layer makes
    more of it; where every row sees something it is as good as a lowest number."""
    target, reference = attending(-math.inf, left=left), attending(-1e9, left=left)
    replay(tmp_path, reference, target, task="tensor")
    runs = tmp_path / "free", tmp_path / "reference"
    verdict = compare(*runs, output=tmp_path / "compared").verdict
    assert (verdict.where == "parts.0.out · input.0", verdict.outcome is Outcome.AGREE) == (left, not left)
    found = diagnose(*runs, output=tmp_path / "out", replay=tmp_path / "replay").findings
    codes = {kind.sentence.code for one in found for kind in one.kinds}
    assert (KindReason.HIDES_ALL_BY_INFINITY in codes) is left
