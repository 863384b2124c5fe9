"""Steps of many tiny API calls under one tool, timed: ``tiny_calls.py SPECIFICATION`` (JSON), prints JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from tools import Stopwatch, tool_from
from torch import Tensor, nn


class Additions(nn.Module):
    """So many ``torch.add`` of two tensors of four elements, in the autograd graph or not."""

    def __init__(self, num_calls: int, *, backward: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.num_calls, self.backward = num_calls, backward

    def forward(self, x: Tensor) -> Tensor:
        total = self.weight if self.backward else self.weight.detach()
        for _ in range(self.num_calls):
            total = torch.add(total, x)
        return total.sum() + self.weight.sum()


def run(spec: dict[str, Any]) -> dict[str, float]:
    """Train as the specification says; returns seconds over the counted steps until they are on disk."""
    torch.set_num_threads(1)
    model = Additions(spec["calls"], backward=spec["backward"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.full((4,), 1e-3)
    tool, clock = tool_from(spec), Stopwatch()
    for step in range(spec["warmup"] + spec["steps"]):
        if step == spec["warmup"]:
            clock.restart()
        tool.begin_step(model)
        model(x).backward()
        optimizer.step()
        optimizer.zero_grad()
        tool.end_step()
    tool.close()
    return clock.read()


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
