"""One training run of the small GPT under one tool, step by step on demand: ``train_turns.py SPECIFICATION``.

For every line on standard input it takes one step and prints what that took (JSON). Warm-up steps come
before the first line is read. At the end of the input it closes the run and prints the last loss and the
bytes a step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from bugzoo.models.gpt import GPTConfig
from bugzoo.train import build, train_step
from tools import Stopwatch, tool_from
from written import Steps


def run(spec: dict[str, Any]) -> None:
    """Train as the specification says."""
    torch.set_num_threads(1)
    training = build(GPTConfig(hidden_size=spec["hidden"], seq_length=spec["seq"]))
    tool, clock = tool_from(spec), Stopwatch()
    tool.attach(training.model, training.optimizer)

    def take(step: int) -> float:
        tool.begin_step(training.model)
        loss = train_step(training, step).item()
        tool.end_step()
        return loss

    for step in range(spec["warmup"]):
        loss = take(step)
    print(json.dumps("ready"), flush=True)
    for step, _ in enumerate(sys.stdin, spec["warmup"]):
        clock.restart()
        loss = take(step)
        print(json.dumps(clock.read()), flush=True)
    tool.close()
    print(json.dumps({"loss": loss, "bytes_a_step": Steps(Path(spec["output"]), keep=True).bytes_a_step}))


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
