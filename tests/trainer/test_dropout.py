"""Dropout under every layout: alike where processes hold the same values, another where they hold parts."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.trainer.layouts import configuration, start, train
from tests.trainer.worlds import world
from trueup_gpt.torch.parallel.rules import RULES
from trueup_gpt.torch.session import seed_streams

pytestmark = [pytest.mark.torch, pytest.mark.distributed, pytest.mark.xdist_group("worlds")]
TP, CP = "tensor_model_parallel_size", "context_parallel_size"
RATE = 0.25
DROPOUT = {"hidden_dropout": RATE, "attention_dropout": RATE}
Masks = dict[str, list[NDArray[Any]]]


def masks(plain: dict[str, Any], parted: bool = True) -> Masks:
    """In this process, one step: what was dropped of the stream (1) and of the scores (2), call by call."""
    found: Masks = {"stream": [], "scores": []}
    before = torch.nn.functional.dropout

    def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True) -> torch.Tensor:
        y = before(x, p, training)
        if p and training:
            counted = torch.where(x == 0, 2, (y == 0).long())
            found["stream" if x.dim() == 3 else "scores"].append(counted.numpy())
        return y

    broken = nullcontext() if parted else patch.dict(RULES, parted_dropout=lambda module, inner, *rest: inner)
    with patch.object(torch.nn.functional, "dropout", dropout), broken:
        seeded(plain, 1)
    return found


def seeded(plain: dict[str, Any], steps: int) -> list[float]:
    """In this process: the losses, from streams as a run has them."""
    config, mesh, _, _ = start(plain)
    seed_streams(config, mesh)
    return [one.loss for one in train(plain, steps)[0]]


def _alike(one: list[NDArray[Any]], other: list[NDArray[Any]]) -> set[bool]:
    assert len(one) == len(other) > 0
    return {
        np.array_equal(a[(a < 2) & (b < 2)], b[(a < 2) & (b < 2)]) for a, b in zip(one, other, strict=True)
    }


@pytest.mark.parametrize(
    ("parallel", "stream"),
    [({TP: 2}, True), ({TP: 2, "sequence_parallel": True}, False), ({CP: 2}, False), ({}, False)],
    ids=["tp", "tp sp", "cp", "dp"],
)
def test_streams_are_alike_where_values_are(parallel: dict[str, Any], stream: bool) -> None:
    plain = configuration("float32", parallel=parallel, model=DROPOUT)
    one, other = world(2).run("tests.trainer.test_dropout:masks", plain)
    assert _alike(one["stream"], other["stream"]) == {stream}
    assert _alike(one["scores"], other["scores"]) == {False}
    dropped = np.concatenate([mask[mask < 2] for mask in one["stream"] + one["scores"]])
    assert abs(float(dropped.mean()) - RATE) < 0.01


def test_one_stream_for_all_heads_is_seen() -> None:
    plain = configuration("float32", parallel={TP: 2}, model=DROPOUT)
    one, other = world(2).run("tests.trainer.test_dropout:masks", plain, False)
    assert _alike(one["scores"], other["scores"]) == {True}


def test_layers_that_run_again_drop_the_same() -> None:
    found = []
    for recompute in (False, True):
        parallel = {TP: 2, "sequence_parallel": True, "recompute": recompute}
        plain = configuration("float32", parallel=parallel, model=DROPOUT)
        found.append(world(2).run("tests.trainer.test_dropout:seeded", plain, 2))
    assert found[0] == found[1]
    assert found[0][0] == found[0][1]
