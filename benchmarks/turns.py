"""Workers that do one thing for every line they are sent, so that two can be measured in turn.

Whatever else slows the machine, for seconds at a time, then slows both.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from processes import WORKERS, environment

Taken = dict[str, float]
"""``wall_seconds`` and ``cpu_seconds``, of a worker and its children that ended"""


class Turns:
    """One worker."""

    def __init__(self, python: Path, worker: str, **spec: Any) -> None:
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by ``end``
        self._process = subprocess.Popen(
            [str(python), str(WORKERS / worker), json.dumps(spec)],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._answer()

    def take(self) -> dict[str, float]:
        """One turn: what it measured of itself.

        Raises:
            RuntimeError: it ended; with the end of what it said.
        """
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        told: dict[str, float] = self._answer()
        return told

    def end(self) -> dict[str, float]:
        """No more turns: what it says of all of them."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        told: dict[str, float] = self._answer()
        self._process.wait()
        self._errors.close()
        return told

    def _answer(self) -> Any:
        """The next line that is JSON; tools print others."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                return json.loads(line)
            except ValueError:
                continue
        self._errors.seek(0)
        said = self._errors.read()[-3000:]
        raise RuntimeError(f"the worker ended with {self._process.wait()}:\n{said}")


def trained(python: Path, worker: str, *, steps: int, **spec: Any) -> None:
    """Let a worker take so many steps, and end."""
    turns = Turns(python, worker, warmup=0, **spec)
    for _ in range(steps):
        turns.take()
    turns.end()


def in_turn(python: Path, worker: str, tool: str, *, steps: int, **spec: Any) -> dict[str, Any]:
    """Train with and without a tool, one step each in turn.

    Returns:
        ``off`` and ``on``: what each step took, in order; ``closing``: what the end of the captured run took;
        ``bytes_a_step``: of that run.
    """
    with tempfile.TemporaryDirectory() as folder:
        sides = {
            side: Turns(python, worker, tool=used, output=f"{folder}/{side}", **spec)
            for side, used in (("off", None), ("on", tool))
        }
        taken: dict[str, list[Taken]] = {"off": [], "on": []}
        for number in range(steps):
            for side in ("off", "on") if number % 2 else ("on", "off"):
                taken[side].append(sides[side].take())
        ended = {side: turns.end() for side, turns in sides.items()}
    losses = [ended[side].pop("loss") for side in ("off", "on")]
    if losses[0] != losses[1]:
        print(f"warning: {tool} changed the loss: {losses[1]!r} for {losses[0]!r}", file=sys.stderr)
    bytes_a_step = ended["on"].pop("bytes_a_step")
    return {**taken, "closing": ended["on"], "bytes_a_step": bytes_a_step}


def total(taken: list[Taken], clock: str) -> float:
    """Seconds of several steps, by ``wall`` or ``cpu``."""
    return sum(one[f"{clock}_seconds"] for one in taken)
