"""A small GPT in MindSpore trained under one tool, step by step on demand: ``train_steps.py`` for MindSpore.

Operations run one after the other, each before the next call (``launch_blocking``): on a CPU that is the
faster way, so that capture, which waits for what it reads, is measured against the better of the two.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import mindspore as ms
import numpy as np
from mindspore import Tensor
from mindspore.experimental import optim
from mindspore_gpt import GPT, VOCABULARY, loss_of
from on_demand import train


def batch(step: int, length: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels of one step, (4, length) each."""
    ids = np.random.default_rng(step).integers(0, VOCABULARY, (4, length + 1)).astype(np.int32)
    return Tensor(ids[:, :-1]), Tensor(ids[:, 1:])


def run(spec: dict[str, Any]) -> None:
    """Train as the specification says."""
    ms.set_device("CPU")
    ms.runtime.launch_blocking()
    ms.set_context(runtime_num_threads=1)
    model = GPT(spec["hidden"], spec["seq"])
    model.set_train()
    optimizer = optim.AdamW(list(model.trainable_params()), lr=1e-3, weight_decay=0.01)

    def forward(ids: Tensor, labels: Tensor) -> Tensor:
        return loss_of(model(ids), labels)

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)

    def step(number: int) -> float:
        loss, gradients = gradient(*batch(number, spec["seq"]))
        optimizer(gradients)
        return float(loss.asnumpy())

    train(spec, model, optimizer, step)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
