"""Sequences in one row without padding, for padded rows: the same where what comes of them agrees."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

LENGTHS = (9, 5, 7)


class Encoder(nn.Module):
    """A layer of attention, whose inputs have no names."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30, 16), nn.Embedding(24, 16)
        self.qkv, self.out, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 30)

    def forward(self, ids: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        x = self.words(ids) + self.places(places)
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.head(x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)))


def run(folder: Path, form: str) -> Path:
    torch.manual_seed(3)
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(5)
    with trueup.Tracer(folder, level="L0", steps="0-1"):
        for _ in range(2):
            rows = [torch.randint(1, 30, (n,), generator=generator) for n in LENGTHS]
            wanted = [torch.randint(0, 30, (n,), generator=generator) for n in LENGTHS]
            if form == "padded":
                ids, labels = (nn.utils.rnn.pad_sequence(one, batch_first=True) for one in (rows, wanted))
                places = torch.arange(ids.shape[1])[None].expand_as(ids)
                labels, seen = labels.masked_fill(ids == 0, -100), (ids != 0)[:, None]
            else:
                ids, labels = torch.cat(rows)[None], torch.cat(wanted)[None]
                every = torch.arange(len(ids[0]))
                places = (every if form == "places go on" else torch.cat([every[:n] for n in LENGTHS]))[None]
                owner = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
                seen = (owner[:, None] == owner)[None] | (form == "others are seen")
            loss = nn.functional.cross_entropy(model(ids, places, seen).flatten(0, 1), labels.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("rows") / "padded", "padded")


@pytest.mark.parametrize(
    ("form", "outcome"),
    [("packed", Outcome.AGREE), ("places go on", Outcome.DIFFER), ("others are seen", Outcome.DIFFER)],
)
def test_packed_rows(form: str, outcome: Outcome, padded: Path, tmp_path: Path) -> None:
    assert compare(run(tmp_path / "packed", form), padded).verdict.outcome is outcome
