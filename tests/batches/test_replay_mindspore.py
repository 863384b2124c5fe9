"""Recorded batches in the real MindSpore: the same tokens and labels, and the same losses from a replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trueup
from tests.batches.made import arrays, ids, same, saved_by_hand
from trueup.batches.exporting import export_batches
from trueup.batches.recorded import RecordedBatches
from trueup.importers import open_trace

pytestmark = pytest.mark.mindspore

STEPS = 3


def plain(item: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.asnumpy() for name, tensor in item.items()}


@pytest.mark.parametrize("shift", [0, 1])
def test_tensors_and_pipelines_give_what_was_recorded(tmp_path: Path, shift: int) -> None:
    from mindspore import Tensor

    folder = saved_by_hand(tmp_path, [arrays(seed, rows=4, shift=shift) for seed in range(STEPS)])
    expected = [found for _, found in RecordedBatches.open(folder)]
    assert shift == 0 or same(expected[0], arrays(0, rows=4))
    dataset: Any = trueup.ReplayDataset(folder, framework="mindspore")
    assert all(isinstance(tensor, Tensor) for item in dataset for tensor in item.values())
    assert all(same(plain(item), batch) for item, batch in zip(dataset, expected, strict=True))
    rows: Any = trueup.ReplayDataset(folder, framework="mindspore", per="row", columns=("tokens", "labels"))
    pipelines = (dataset.generator_dataset(), rows.generator_dataset().batch(4))
    for pipeline in pipelines:
        given = list(pipeline.create_dict_iterator(num_epochs=1))
        assert all(same(plain(item), batch) for item, batch in zip(given, expected, strict=True))


def train(batches: Any) -> list[bytes]:
    """Losses of a small model, bit for bit."""
    import mindspore as ms
    from mindspore.experimental import optim

    from tests.adapters.mindspore.models import GPT, cross_entropy, start

    start()
    model = GPT()
    model.set_train()
    optimizer = optim.AdamW(list(model.trainable_params()), lr=1e-2)
    step = ms.value_and_grad(
        lambda tokens, labels: cross_entropy(model(tokens), labels), None, optimizer.parameters
    )
    losses = []
    for _ in range(STEPS):
        loss, gradients = step(*next(batches))
        optimizer(gradients)
        losses.append(loss.asnumpy().tobytes())
    return losses


def own(seed: int) -> Any:
    from mindspore import Tensor

    while True:
        seed += 1
        stream = ids(seed, 2, 9, "int32") % 32
        yield Tensor(stream[:, :-1]), Tensor(stream[:, 1:])


def test_a_captured_run_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    with trueup.Tracer(tmp_path / "run", framework="mindspore", task="tensor", steps=f"0-{STEPS - 1}"):
        expected = train(own(0))
    export_batches(open_trace(tmp_path / "run"), tmp_path / "batches")
    for source in ("run", "batches"):
        dataset = trueup.ReplayDataset(
            tmp_path / source, framework="mindspore", columns=("tokens", "labels"), dtype="int32"
        )
        assert train(iter(dataset)) == expected
    assert train(own(7)) != expected


def test_batches_of_torch_reach_mindspore(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch import nn

    stream = torch.from_numpy(ids(3, 2, 9))
    model = nn.Sequential(nn.Embedding(97, 8), nn.Linear(8, 97))
    with trueup.Tracer(tmp_path / "run", framework="torch", task="tensor", steps="0"):
        logits = model(stream[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), stream[:, 1:].flatten()).backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
    tokens, labels = trueup.ReplayDataset(
        tmp_path / "run", framework="mindspore", columns=("tokens", "labels")
    )[0]
    assert np.array_equal(tokens.asnumpy(), stream[:, :-1])
    assert np.array_equal(labels.asnumpy(), stream[:, 1:])
