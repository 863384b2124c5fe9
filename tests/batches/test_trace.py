"""Batches out of a trace: however a program gives its model tokens, labels, masks and positions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trueup
from tests.batches.made import ids
from trueup.batches.exporting import export_batches, export_megatron
from trueup.batches.recorded import RecordedBatches
from trueup.errors import ConfigError, TraceError
from trueup.importers import open_trace

pytestmark = pytest.mark.torch

STREAM = torch.from_numpy(ids(0, 3, 13))
TOKENS, LABELS = STREAM[:, :-1], STREAM[:, 1:]
MASKED = LABELS.masked_fill(torch.arange(12) < 4, -100)


class Net(nn.Module):
    """Logits (B, T, vocabulary); takes what it is given besides and leaves it alone, or makes the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(97, 8), nn.Linear(8, 97)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, *_: Any, **others: Any) -> Tensor:
        logits = self.head(self.emb(input_ids))
        if labels is None or "position_ids" in others:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def loss_of(logits: Tensor, labels: Tensor, **more: Any) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), **more)


def masked_loss(logits: Tensor) -> Tensor:
    each = loss_of(logits, LABELS, reduction="none")
    weights = (torch.arange(12) > 2).float().repeat(3)
    return (each * weights).sum() / weights.sum()


def tensor_parallel_loss(logits: Tensor) -> Tensor:
    """As vocabulary-parallel losses do it: the label's log-probability, looked up."""
    return -logits.log_softmax(-1).gather(-1, LABELS.unsqueeze(-1)).mean()


def record(
    path: Path, *forwards: Callable[[Net], Tensor], steps: int = 1, task: str = "tensor"
) -> RecordedBatches:
    """Each forward is one microbatch of every step."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with trueup.Tracer(path, task=task, steps=f"0-{steps - 1}"):
        for _ in range(steps):
            for forward in forwards:
                forward(model).backward()
            optimizer.step()
            optimizer.zero_grad()
    return RecordedBatches.open(path)


def hugging_face(model: Net) -> Tensor:
    """Unshifted labels go in, the loss is made with shifted ones of one position less."""
    logits = model(input_ids=TOKENS, labels=TOKENS, position_ids=torch.arange(12).expand(3, 12))
    return loss_of(logits[:, :-1], TOKENS[:, 1:])


FORWARDS: dict[str, tuple[Callable[[Net], Tensor], Tensor]] = {
    "labels of the loss": (lambda model: loss_of(model(TOKENS), LABELS), LABELS),
    "ignored": (lambda model: loss_of(model(TOKENS), MASKED), MASKED),
    "positional": (lambda model: model(TOKENS, LABELS), LABELS),
    "by name": (lambda model: model(input_ids=TOKENS, labels=MASKED), MASKED),
    "mask first": (
        lambda model: loss_of(model(attention_mask=TOKENS > 5, input_ids=TOKENS, position_ids=0), LABELS),
        LABELS,
    ),
    "one short": (
        lambda model: loss_of(model(TOKENS)[:, :-1], TOKENS[:, 1:]),
        torch.cat([TOKENS[:, 1:], torch.full((3, 1), -100)], 1),
    ),
    "hugging face": (hugging_face, torch.cat([TOKENS[:, 1:], torch.full((3, 1), -100)], 1)),
    "looked up": (lambda model: tensor_parallel_loss(model(TOKENS)), LABELS),
    "int32": (lambda model: loss_of(model(TOKENS.int()), LABELS), LABELS),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_tokens_and_labels_are_found(name: str, tmp_path: Path) -> None:
    forward, labels = FORWARDS[name]
    recorded = record(tmp_path / "run", forward)
    batch = recorded.read(0, 0)[0]
    assert recorded.label_shift == 1
    assert np.array_equal(batch["tokens"], TOKENS)
    assert batch["tokens"].dtype == (np.int32 if name == "int32" else np.int64)
    assert np.array_equal(batch["labels"], labels)
    extra = {"hugging face": {"position_ids"}, "mask first": {"attention_mask"}}.get(name, set())
    assert set(batch) == {"tokens", "labels", *extra}


def test_masks_and_another_ignore_index_are_kept(tmp_path: Path) -> None:
    batch = record(tmp_path / "a", lambda model: masked_loss(model(TOKENS))).read(0, 0)[0]
    assert np.array_equal(batch["loss_mask"], np.tile(np.arange(12) > 2, (3, 1)))
    assert np.array_equal(batch["labels"], LABELS)
    zero = torch.where(MASKED == -100, 0, MASKED)
    recorded = record(tmp_path / "b", lambda model: loss_of(model(TOKENS), zero, ignore_index=0))
    assert recorded.source.ignore_index == 0
    done = export_batches(open_trace(tmp_path / "b"), tmp_path / "out")
    read = RecordedBatches.open(tmp_path / "out").read(0, 0)[0]
    assert np.array_equal(read["labels"], zero)
    assert np.array_equal(read["loss_mask"], (zero != 0).float())
    assert done.rows == 3


def test_microbatches_and_steps(tmp_path: Path) -> None:
    recorded = record(
        tmp_path / "run",
        lambda model: loss_of(model(TOKENS), LABELS),
        lambda model: loss_of(model(LABELS), TOKENS.roll(-2, 1)),
        steps=2,
    )
    assert [(place.step, place.microbatch) for place in recorded.places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert np.array_equal(recorded.read(1, 0)[1]["tokens"], LABELS)


def test_without_labels_the_tokens_are_given_alone_and_it_is_said(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", lambda model: model(TOKENS).square().mean())
    assert set(recorded.read(0, 0)[0]) == {"tokens"}
    done = export_batches(recorded.source.trace, tmp_path / "out")  # type: ignore[attr-defined]
    assert "holds no labels" in done.notes[0]
    assert done.yaml is not None
    assert 'input_columns: ["input_ids"]' in done.yaml


def test_exports_hold_what_the_trace_holds(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", lambda model: loss_of(model(TOKENS), LABELS), steps=2)
    trace = open_trace(tmp_path / "run")
    export_batches(trace, tmp_path / "folders")
    export_batches(trace, tmp_path / "rows", by_row=True)
    export_megatron(trace, tmp_path / "indexed")
    for name in ("folders", "rows", "indexed"):
        again = RecordedBatches.open(tmp_path / name)
        assert again.places == recorded.places
        for place, batch in recorded:
            assert all(np.array_equal(again.at(place)[key], batch[key]) for key in ("tokens", "labels")), name
    assert len(list((tmp_path / "rows").glob("step_*"))) == 6
    assert "batch_size: 3 " in (tmp_path / "rows" / "mindformers.yaml").read_text()


def test_a_trace_without_values_or_ids_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"holds no values of its batches .* capture with --preset batches"):
        record(tmp_path / "a", lambda model: loss_of(model(TOKENS), LABELS), task="statistics")
    with pytest.raises(TraceError, match="no root module was given integers"):
        record(tmp_path / "b", lambda model: model.head(torch.ones(2, 8)).sum())


def test_ignored_labels_have_no_place_in_an_indexed_dataset(tmp_path: Path) -> None:
    record(tmp_path / "run", lambda model: loss_of(model(TOKENS), MASKED))
    with pytest.raises(ConfigError, match="use --format batches"):
        export_megatron(open_trace(tmp_path / "run"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
