"""What a session captures: one frozen value, whichever of the three ways in it came by."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from trueup.errors import ConfigError


class Level(str, Enum):
    """Which calls become sites."""

    L0 = "L0"
    """module calls, parameters, gradients, optimizer"""
    L1 = "L1"
    """API calls, parameters, gradients, optimizer"""
    MIX = "mix"
    """both"""


class Task(str, Enum):
    """What is kept of each tensor."""

    STATISTICS = "statistics"
    TENSOR = "tensor"
    OVERFLOW_CHECK = "overflow_check"
    """nothing until a value that is not finite is made; then its step, and the values that made it"""


@dataclass(frozen=True, slots=True)
class StepSet:
    """A set of step or rank numbers, such as ``0,1,5-8``; ``ranges`` None means all."""

    ranges: tuple[tuple[int, int], ...] | None = None

    def __contains__(self, number: int) -> bool:
        return self.ranges is None or any(first <= number <= last for first, last in self.ranges)

    @property
    def last(self) -> int | None:
        """The largest member, None when there is no end."""
        return None if self.ranges is None else max((last for _, last in self.ranges), default=-1)

    @classmethod
    def parse(cls, text: str, *, what: str = "--steps") -> StepSet:
        """Read ``all``, ``0,1,5-8`` or ``0|5-8``.

        Raises:
            ConfigError: not a list of numbers and ascending ranges.

        Example:
            >>> 7 in StepSet.parse("0,5-8")
            True
        """
        if text.strip() in ("", "all"):
            return cls(None)
        ranges = []
        for part in text.replace("|", ",").split(","):
            first, dash, last = part.strip().partition("-")
            if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
                wrong = f"{what}: {part.strip()!r} is neither a number nor an ascending range"
                raise ConfigError(f"{wrong}; write 0,1,5-8")
            ranges.append((int(first), int(last) if dash else int(first)))
        return cls(tuple(ranges))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """Every choice that shapes a trace; recorded in its manifest."""

    output: Path
    level: Level = Level.L0
    task: Task = Task.STATISTICS
    steps: StepSet = field(default_factory=lambda: StepSet(((0, 1),)))
    """captured steps; scalars are kept for every step"""
    ranks: StepSet = field(default_factory=StepSet)
    digest: bool = True
    sketch: bool = True
    crc32: bool = False
    """also keep CRC-32, which msprobe calls md5"""
    scope: tuple[str, str] | None = None
    """capture from the call named first to the call named second, both included"""
    names: tuple[str, ...] = ()
    """capture only calls whose name contains one of these; below a module that matches, everything"""
    data_mode: frozenset[str] = frozenset({"forward", "backward", "input", "output"})
    backward: bool = True
    gradients: bool = True
    optimizer: bool = True
    collectives: bool = True
    store_values_of: frozenset[str] = frozenset()
    """with task statistics: kinds whose values are kept all the same: ``module`` (inputs, outputs, their
    gradients), ``parameter`` (weights, gradients but for each microbatch's own, optimizer state), ``labels``
    (of the loss call), ``configuration`` (how modules are set); ``--preset diagnose`` keeps all four.
    Besides: ``integers`` (token ids, labels, masks wherever they go), ``dropout`` (a sample of what it
    dropped)"""
    overflow_nums: int | None = 1
    """with task overflow_check: how many origins are kept before capture ends; None: all"""
    evaluation: bool = True
    """also capture forwards without gradients, kept apart from training"""
    stacks: bool = True
    gradients_from: Path | None = None
    """folder of gradients to put in place of the program's own in the first captured step, before clipping
    (``trueup replay --gradients``); None: it keeps its own"""
    seed: int | None = None
    deterministic: bool | None = None
    perturb: int | None = None
    """seed of rounding-sized changes of weights and inputs (adapters/torch/perturb.py); None: none"""
    replay: Path | None = None
    """folder of a plan whose reference values overwrite the program's own (``trueup replay``); None: none"""
    learning_rate: float | None = None
    """every optimizer steps with this one, whatever the program's schedule says; None: with its own"""
    only_batch: int | None = None
    """the batch of this number, counted from 0 as the program's DataLoader gives them, is given every time"""
    skip_batch: int | None = None
    """the batch of this number is left out, the next one given in its place"""
    observer: dict[str, Any] | None = None
    """who watches the run while it trains: ``made_by`` and ``settings`` (capture/observer.py)"""
    overwrite: bool = False
    append: bool = False
    """go on in a folder that already holds this run (a second PrecisionDebugger)"""
    first_step: int = 0
    """number of the first step seen"""
    manual_steps: bool = False
    """steps end only where the program says so (``step()``)"""
    tracer: int | None = None
    """which of the Tracers the program itself starts makes the trace, counted from 0; None: it was captured
    from outside, from its first training step on"""

    @property
    def with_labels(self) -> bool:
        """Whether what a loss was made with is recorded."""
        return "labels" in self.store_values_of or self.task is Task.TENSOR

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the manifest and for child processes."""
        plain = asdict(self)
        plain["output"] = str(self.output)
        plain["replay"] = None if self.replay is None else str(self.replay)
        plain["gradients_from"] = None if self.gradients_from is None else str(self.gradients_from)
        plain["steps"] = None if self.steps.ranges is None else [list(r) for r in self.steps.ranges]
        plain["ranks"] = None if self.ranks.ranges is None else [list(r) for r in self.ranks.ranges]
        plain["data_mode"] = sorted(self.data_mode)
        plain["store_values_of"] = sorted(self.store_values_of)
        plain["level"], plain["task"] = self.level.value, self.task.value
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> CaptureOptions:
        """Inverse of ``to_json``.

        Raises:
            ConfigError: an unknown key, naming it.
        """
        known = {f.name for f in fields(cls)}
        unknown = set(plain) - known
        if unknown:
            raise ConfigError(f"unknown capture options {sorted(unknown)}")
        values = dict(plain)
        values["output"] = Path(values["output"])
        for key in ("steps", "ranks"):
            ranges = values.get(key)
            values[key] = StepSet(None if ranges is None else tuple((a, b) for a, b in ranges))
        for key in ("data_mode", "store_values_of"):
            if key in values:
                values[key] = frozenset(values[key])
        if values.get("replay"):
            values["replay"] = Path(values["replay"])
        if values.get("gradients_from"):
            values["gradients_from"] = Path(values["gradients_from"])
        if values.get("scope"):
            values["scope"] = tuple(values["scope"])
        values["names"] = tuple(values.get("names", ()))
        values["level"] = Level(values.get("level", "L0"))
        values["task"] = Task(values.get("task", "statistics"))
        return cls(**values)

    def dumps(self) -> str:
        """``to_json`` as one line."""
        return json.dumps(self.to_json(), separators=(",", ":"))
