"""One training run of the small GPT under one tool, timed: ``train_steps.py SPECIFICATION`` (JSON), prints
JSON.

The first steps warm up: they are captured too, but neither they nor any import is counted. The clock ends
when everything is on disk. Old steps are removed as the run goes, with the clock stopped, unless ``keep``
is set.
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


def run(spec: dict[str, Any]) -> dict[str, float]:
    """Train as the specification says; returns seconds, bytes a step and the last loss."""
    torch.set_num_threads(1)
    config = GPTConfig(hidden_size=spec["hidden"], seq_length=spec["seq"])
    training = build(config, change=spec.get("change"))
    if spec.get("perturb"):
        with torch.no_grad():
            for parameter in training.model.parameters():
                parameter.mul_(1 + spec["perturb"] * torch.randn_like(parameter))
    tool, clock = tool_from(spec), Stopwatch()
    steps = Steps(Path(spec["output"]), keep=spec.get("keep", False))
    tool.attach(training.model, training.optimizer)
    total = spec["warmup"] + spec["steps"]
    for step in range(total):
        if step == spec["warmup"]:
            clock.restart()
        tool.begin_step(training.model)
        loss = train_step(training, step)
        tool.end_step()
        with clock.paused():
            steps.tidy(before=step - 1)
    tool.close()
    seconds = clock.read()
    steps.tidy(before=total)
    return {**seconds, "bytes_a_step": steps.bytes_a_step, "loss": loss.item()}


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
