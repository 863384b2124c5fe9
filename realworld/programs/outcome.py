"""What every program here takes and leaves: options, and losses with final weights as exact bits.

The programs know nothing of what captures them. They import this by its plain name.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

FAULTS = ("none", "data", "forward", "loss", "backward", "optimizer")
FAULT = "REALWORLD_FAULT"
OUTCOME = "REALWORLD_OUTCOME"
"""environment variables: a trainer that reads the command line itself leaves no room for options of ours"""


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that all programs share."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", choices=FAULTS, default=os.environ.get(FAULT, "none"))
    return parser


class Outcome:
    """Collects a run's losses; ``write`` leaves them with a digest of the weights."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.losses: list[str] = []
        self._began: list[float] = [time.perf_counter()]

    def loss(self, loss: Tensor | float) -> None:
        """A step is over: its loss."""
        self.losses.append(float(torch.as_tensor(loss).detach()).hex())
        self._began.append(time.perf_counter())

    def write(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Write one file a process, where the environment names one; prints the losses."""
        rank = int(os.environ.get("RANK", "0"))
        digest = hashlib.sha256()
        for name, tensor in sorted(weights, key=lambda named: named[0]):
            held = tensor.detach()
            held = held.to_local() if hasattr(held, "to_local") else held
            digest.update(name.encode() + str(tuple(held.shape)).encode() + str(held.dtype).encode())
            digest.update(held.contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())
        seconds = [end - start for start, end in zip(self._began, self._began[1:], strict=False)]
        said = {"losses": self.losses, "weights": digest.hexdigest(), "seconds": seconds}
        print(f"rank {rank}: losses", *(f"{float.fromhex(loss):.6g}" for loss in self.losses), flush=True)
        if OUTCOME in os.environ:
            Path(f"{os.environ[OUTCOME]}.{rank}").write_text(json.dumps(said), encoding="utf-8")


def halve_gradient(weight: Tensor) -> None:
    """A fault of the backward pass: one weight gets 0.9 of its gradient."""
    weight.register_hook(lambda gradient: gradient * 0.9)


def halve_gradient_in(module: nn.Module) -> None:
    """The same where another tensor stands for the weight while it is computed with, as FSDP2's."""
    planted: set[int] = set()

    def plant(module: nn.Module, given: object) -> None:
        if id(module.weight) not in planted:
            planted.add(id(module.weight))
            halve_gradient(module.weight)

    module.register_forward_pre_hook(plant)
