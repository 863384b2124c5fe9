"""Training one step for every line on standard input, under a tool, each step timed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools import Stopwatch, tool_from
from written import Steps


def train(spec: dict[str, Any], model: Any, optimizer: Any, step: Callable[[int], float]) -> None:
    """Warm up and say so; then print what each step took, and at the end of the input what closing took.

    The warm-up steps are captured too, but neither they nor any import is timed. Old steps are removed as
    the run goes, unless ``keep`` is set; that is not timed either.

    Args:
        spec: ``tool``, ``options`` and ``output`` of the capture, ``warmup`` steps, ``keep``.
        model: whatever the framework calls a model.
        optimizer: its optimizer.
        step: takes the step of a number and returns its loss.
    """
    tool, clock = tool_from(spec), Stopwatch()
    steps = Steps(Path(spec["output"]), keep=spec.get("keep", False))
    tool.attach(model, optimizer)

    def take(number: int) -> float:
        tool.begin_step(model)
        loss = step(number)
        tool.end_step()
        return loss

    loss = float("nan")
    for number in range(spec["warmup"]):
        loss = take(number)
    print(json.dumps("ready"), flush=True)
    number = spec["warmup"]
    for _ in sys.stdin:
        clock.restart()
        loss = take(number)
        taken = clock.read()
        number += 1
        steps.tidy(before=number - 2)
        print(json.dumps(taken), flush=True)
    clock.restart()
    tool.close()
    taken = clock.read()
    steps.tidy(before=number)
    print(json.dumps({**taken, "loss": loss, "bytes_a_step": steps.bytes_a_step}))
