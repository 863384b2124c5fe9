"""The small GPT trained under one tool, step by step on demand: ``train_steps.py SPECIFICATION`` (JSON)."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from bugzoo.models.gpt import GPTConfig
from bugzoo.train import build, train_step
from on_demand import train


def run(spec: dict[str, Any]) -> None:
    """Train as the specification says."""
    torch.set_num_threads(1)
    config = GPTConfig(hidden_size=spec["hidden"], seq_length=spec["seq"])
    training = build(config, change=spec.get("change"))
    if spec.get("perturb"):
        with torch.no_grad():
            for parameter in training.model.parameters():
                parameter.mul_(1 + spec["perturb"] * torch.randn_like(parameter))
    train(spec, training.model, training.optimizer, lambda step: train_step(training, step).item())


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
