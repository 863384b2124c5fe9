"""One training run of a small GPT in MindSpore under one tool, timed: ``train_steps.py`` for MindSpore.

Operations run one after the other, each before the next call (``launch_blocking``): on a CPU that is the
faster way, so that capture, which waits for what it reads, is measured against the better of the two.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import mindspore as ms
import numpy as np
from mindspore import Tensor
from mindspore.experimental import optim
from mindspore_gpt import GPT, VOCABULARY, loss_of
from tools import Stopwatch, tool_from
from written import Steps


def batch(step: int, length: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels of one step, (4, length) each."""
    ids = np.random.default_rng(step).integers(0, VOCABULARY, (4, length + 1)).astype(np.int32)
    return Tensor(ids[:, :-1]), Tensor(ids[:, 1:])


def run(spec: dict[str, Any]) -> dict[str, float]:
    """Train as the specification says; returns seconds, bytes a step and the last loss."""
    ms.set_device("CPU")
    ms.runtime.launch_blocking()
    ms.set_context(runtime_num_threads=1)
    model = GPT(spec["hidden"], spec["seq"])
    model.set_train()
    optimizer = optim.AdamW(list(model.trainable_params()), lr=1e-3, weight_decay=0.01)

    def forward(ids: Tensor, labels: Tensor) -> Tensor:
        return loss_of(model(ids), labels)

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)
    tool, clock = tool_from(spec), Stopwatch()
    steps = Steps(Path(spec["output"]), keep=False)
    total, loss = spec["warmup"] + spec["steps"], None
    for step in range(total):
        if step == spec["warmup"]:
            clock.restart()
        tool.begin_step(model)
        loss, gradients = gradient(*batch(step, spec["seq"]))
        optimizer(gradients)
        tool.end_step()
        with clock.paused():
            steps.tidy(before=step - 1)
    assert loss is not None
    last = float(loss.asnumpy())
    tool.close()
    seconds = clock.read()
    steps.tidy(before=total)
    return {**seconds, "bytes_a_step": steps.bytes_a_step, "loss": last}


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
