"""Ids that a decoder is given are tokens: what became of them is told beside their name."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import BatchCode, StagesCode, VerdictCode  # noqa: E402

WORDS, PAD, END = 30, 1, 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)

    def forward(self, decoder_input_ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(decoder_input_ids)))


def trained(folder: Path, *, fill: int) -> Path:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.randint(3, WORDS, (4, 12))
    ids[torch.arange(12) >= torch.tensor([[12], [9], [10], [8]])] = fill
    with trueup.Tracer(folder, level="L0", task="tensor", steps="0"):
        model(decoder_input_ids=ids).square().mean().backward()
        optimizer.step()
    return folder


def test_ids_of_a_decoder_that_are_padded_otherwise_are_told(tmp_path: Path) -> None:
    pair = trained(tmp_path / "target", fill=END), trained(tmp_path / "reference", fill=PAD)
    found = diagnose(*pair, output=tmp_path / "diagnosis").findings[0]
    assert (found.headline.code, found.headline.place("name")) == (
        StagesCode.INPUT_DIFFERS,
        "decoder_input_ids",
    )
    assert BatchCode.PADDING in [one.code for one in found.evidence]


def test_a_number_that_is_written_into_ids_has_the_name_of_its_setting(tmp_path: Path) -> None:
    """T5 begins its decoder's ids by an assignment, none of whose arguments has a name."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": WORDS, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    for name, start in (("target", 1), ("reference", 0)):
        torch.manual_seed(0)
        config = transformers.T5Config(**sizes, decoder_start_token_id=start, dropout_rate=0.0)
        model = transformers.T5ForConditionalGeneration(config)
        ids = torch.randint(3, WORDS, (4, 12))
        with trueup.Tracer(tmp_path / name, level="L0", task="tensor", functions=True, steps="0"):
            model(input_ids=ids, labels=ids[:, :6].clone()).loss.backward()
    found = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "diagnosis").findings[0]
    assert found.headline.code is VerdictCode.OTHER_VALUE_IN_CODE
    facts = found.headline.facts
    assert (facts["name"], facts["target"], facts["reference"]) == ("decoder_start_token_id", "1", "0")
