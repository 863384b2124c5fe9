"""What a session captures: one frozen value, from the command line, ``config.json`` or the Python API."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated

from trueup.errors import ConfigError
from trueup.types.option import Option, expected
from trueup.types.plain import fields_from_json, fields_to_json, value_from

_what = partial(Option, panel="What to capture")
_how = partial(Option, panel="How much of it")
_run = partial(Option, panel="The run")
_change = partial(Option, panel="Change the run on purpose")


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
    """nothing, until a value is not finite; then its step, and the values that made it"""


@dataclass(frozen=True, slots=True)
class StepSet:
    """A set of step or rank numbers, such as ``0,1,5-8``; ``ranges`` None means all."""

    ranges: tuple[tuple[int, int], ...] | None = None

    def __contains__(self, number: int) -> bool:
        return self.ranges is None or any(first <= number <= last for first, last in self.ranges)

    def __str__(self) -> str:
        if self.ranges is None:
            return "all"
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.ranges)

    @property
    def last(self) -> int | None:
        """The largest member, None when there is no end."""
        return None if self.ranges is None else max((last for _, last in self.ranges), default=-1)

    def numbers(self, place: str, most: int = 1_000_000) -> frozenset[int] | None:
        """Every member, None for all.

        Raises:
            ConfigError: more than ``most``; names ``place``.
        """
        if self.ranges is None:
            return None
        if sum(last - first + 1 for first, last in self.ranges) > most:
            raise ConfigError(f"{place}: expected all, or at most {most} numbers (got {self})")
        return frozenset(number for first, last in self.ranges for number in range(first, last + 1))

    @classmethod
    def parse(cls, text: str, what: str = "--steps") -> StepSet:
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
                raise expected(what, "numbers and ascending ranges, such as 0,1,5-8", part.strip())
            ranges.append((int(first), int(last) if dash else int(first)))
        return cls(tuple(ranges))

    def to_plain(self) -> list[list[int]] | None:
        """Pairs of first and last, None for all."""
        return None if self.ranges is None else [list(pair) for pair in self.ranges]

    @classmethod
    def from_plain(cls, plain: object, place: str) -> StepSet:
        """Inverse of ``to_plain``; text as well, or a list such as ``[0, "5-8"]``, as in ``config.json``."""
        if isinstance(plain, str):
            return cls.parse(plain, place)
        if isinstance(plain, (list, tuple)) and any(isinstance(part, (int, str)) for part in plain):
            return cls.parse(",".join(map(str, plain)), place)
        ranges = value_from(tuple[tuple[int, int], ...] | None, plain, place)
        return cls(ranges)  # type: ignore[arg-type]


def numbers_from_text(text: str, place: str) -> frozenset[int] | None:
    """The numbers of ``0,5-8``; None for ``all``.

    Raises:
        ConfigError: not of that form, or more than a million.
    """
    return StepSet.parse(text, place).numbers(place)


def bytes_from_text(text: str, place: str) -> int:
    """Bytes from ``20GB``, ``500 MB`` or a plain number.

    Raises:
        ConfigError: not of that form.

    Example:
        >>> bytes_from_text("1.5GB", "--max-bytes")
        1500000000
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B?", text.strip())
    if found is None:
        raise expected(place, "a size, such as 500MB or 20GB", text)
    return int(float(found[1]) * 1000 ** " kMGT".index(found[2] or " "))


def _scope_from_text(text: str, place: str) -> tuple[str, str]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise expected(place, "the names of the first and the last call", text)
    return parts[0], parts[1]


def data_mode_from_words(mode: str | list[str] | None, *, place: str) -> frozenset[str]:
    """Directions and ends; where only one of the two is named, the other is complete, as in msprobe.

    Raises:
        ConfigError: an unknown word, or ``all`` beside another.
    """
    directions, ends = {"forward", "backward"}, {"input", "output"}
    words = {mode} if isinstance(mode, str) else set(mode or ["all"])
    if words == {"all"}:
        return frozenset(directions | ends)
    wrong = sorted(words - directions - ends)
    if wrong:
        raise expected(place, "all, or some of: forward, backward, input, output", wrong[0])
    return frozenset((words & directions or directions) | (words & ends or ends))


def _data_mode_from_text(text: str, place: str) -> frozenset[str]:
    return data_mode_from_words([word.strip() for word in text.split(",")], place=place)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """Every choice that shapes a trace; recorded in its manifest."""

    output: Annotated[Path, Option("Folder of the trace.", "-o --output", config_key="dump_path")]
    level: Annotated[Level, _what("Modules, API calls or both.", "--level", config_key="level")] = Level.L0
    task: Annotated[
        Task,
        _how(
            "statistics; tensor: values as well; overflow_check: only what produces NaN and infinity.",
            "--task <task>",
            config_key="task",
        ),
    ] = Task.STATISTICS
    steps: Annotated[
        StepSet,
        _what(
            "Steps to capture, such as 0,1,5-8, or all. Scalars are kept for every step.",
            "--steps",
            read=StepSet.parse,
            config_key="step",
        ),
    ] = field(default_factory=lambda: StepSet(((0, 1),)))
    ranks: Annotated[
        StepSet, _what("Ranks to capture, such as 0,8-15.", "--ranks", read=StepSet.parse, config_key="rank")
    ] = field(default_factory=StepSet)
    sample_ranks: Annotated[
        int | None,
        _what(
            "At most N of the ranks, evenly spaced. Where tensors are split over ranks, choose with --ranks.",
            "--sample-ranks",
            default="all",
            least=1,
            excludes="ranks",
        ),
    ] = None
    max_bytes: Annotated[
        int | None,
        _how(
            "Size of the trace, such as 20GB, shared by the captured ranks: values that do not fit are left "
            "out, then further steps.",
            "--max-bytes SIZE",
            default="no limit",
            read=bytes_from_text,
            above=0,
        ),
    ] = None
    digest: Annotated[bool, _how("64-bit hash of every tensor.", "--digest/--no-digest")] = True
    sketch: Annotated[
        bool, _how("64 numbers that estimate the norm of a difference.", "--sketch/--no-sketch")
    ] = True
    crc32: Annotated[
        bool, _how("CRC-32, which msprobe calls md5.", "--crc32/--no-crc32", config_key="summary_mode")
    ] = False
    scope: Annotated[
        tuple[str, str] | None,
        _what(
            "Only from the first named call to the last, both included; also by full name, "
            "as Functional.gelu.3.forward or Module.fc.Linear.forward.0 is one.",
            "--scope FIRST LAST",
            read=_scope_from_text,
            config_key="scope",
        ),
    ] = None
    names: Annotated[
        tuple[str, ...],
        _what(
            "Only calls whose name contains one of these, and everything inside a module that matches; a "
            "full name, Functional.gelu.3.forward, takes that pass of that call alone.",
            "--list NAMES",
            commas=True,
            config_key="list",
        ),
    ] = ()
    data_mode: Annotated[
        frozenset[str],
        _what(
            "Some of forward, backward, input, output, joined by commas.",
            "--data-mode",
            default="all",
            read=_data_mode_from_text,
            config_key="data_mode",
        ),
    ] = frozenset({"forward", "backward", "input", "output"})
    backward: Annotated[bool, _what("Gradients at calls.", "--backward/--no-backward")] = True
    gradients: Annotated[bool, _what("Gradients of parameters.", "--gradients/--no-gradients")] = True
    optimizer: Annotated[bool, _what("Optimizer steps.", "--optimizer/--no-optimizer")] = True
    collectives: Annotated[bool, _what("Collectives.", "--collectives/--no-collectives")] = True
    store_values_of: Annotated[
        frozenset[str],
        Option(
            "With task statistics: kinds whose values are kept as well. module (inputs, outputs, their "
            "gradients), parameter (weights, gradients except those of each microbatch, optimizer "
            "state), labels (of the loss call), configuration (how modules are set), integers (token "
            "ids, labels, masks everywhere), dropout (a sample of what it dropped).",
            no_effect="with task tensor",
        ),
    ] = frozenset()
    overflow_nums: Annotated[
        int | None,
        Option(
            "With task overflow_check: origins to keep before capture ends; None: all.",
            config_key="overflow_nums",
            no_effect="with other tasks",
        ),
    ] = 1
    evaluation: Annotated[
        bool, _what("Forwards without gradients, kept apart from training.", "--evaluation/--no-evaluation")
    ] = True
    stacks: Annotated[
        bool,
        _how(
            "Source lines of calls, and the functions of the program that they reach.",
            "--stacks/--no-stacks",
            config_key="extra_info",
        ),
    ] = True
    functions: Annotated[
        bool,
        _how(
            "Which functions each module calls in the first step, and what they are given besides tensors, "
            "at --level L0; with --stacks.",
            "--functions/--no-functions",
        ),
    ] = False
    gradients_from: Annotated[
        Path | None,
        Option(
            "Folder of gradients that replace the program's in the first captured step, before clipping "
            "(trueup replay --gradients)."
        ),
    ] = None
    seed: Annotated[
        int | None,
        _run("Seed random, numpy and the framework from outside.", "--seed", least=0, most=2**32 - 1),
    ] = None
    deterministic: Annotated[
        bool | None, _run("Deterministic algorithms, from outside.", "--deterministic/--no-deterministic")
    ] = None
    perturb: Annotated[
        int | None, Option("Seed of rounding-sized changes of weights and inputs (trueup noise).")
    ] = None
    replay: Annotated[
        Path | None, Option("Folder of a plan whose reference values replace the program's (trueup replay).")
    ] = None
    compiled: Annotated[
        str | None,
        Option(
            "What torch.compile does: eager, nothing is compiled; measured, every region is also evaluated "
            "without the compiler (trueup check-run --compile-parity).",
            no_effect="outside PyTorch",
        ),
    ] = None
    learning_rate: Annotated[
        float | None,
        _change(
            "Every optimizer step uses this rate; 0: no update.",
            "--learning-rate",
            default="the program's",
            least=0,
        ),
    ] = None
    only_batch: Annotated[
        int | None,
        _change(
            "Feed batch N at every step, counted from 0.", "--only-batch", least=0, excludes="skip_batch"
        ),
    ] = None
    skip_batch: Annotated[
        int | None, _change("Leave batch N out; the next one replaces it.", "--skip-batch", least=0)
    ] = None
    observer: Annotated[
        dict[str, object] | None,
        Option("The observer of the run: made_by and settings (capture/observer.py)."),
    ] = None
    overwrite: Annotated[bool, Option("Overwrite an existing trace.", "--overwrite")] = False
    append: Annotated[
        bool, Option("Continue in a folder that already holds this run (a second PrecisionDebugger).")
    ] = False
    first_step: Annotated[int, Option("Number of the first step seen.")] = 0
    manual_steps: Annotated[bool, Option("Steps end only where the program calls step().")] = False
    estimate: Annotated[bool, Option("Values are counted, not written (trueup capture --estimate).")] = False
    tracer: Annotated[
        int | None,
        Option(
            "Which Tracer of the program makes the trace, counted from 0; None: captured from outside, "
            "from the first training step."
        ),
    ] = None

    def ranks_of(self, world_size: int) -> frozenset[int]:
        """The ranks that are captured.

        Example:
            >>> sorted(CaptureOptions(output=Path("run"), sample_ranks=2).ranks_of(8))
            [0, 4]
        """
        kept = world_size if self.sample_ranks is None else self.sample_ranks
        if kept >= world_size:
            return frozenset(rank for rank in range(world_size) if rank in self.ranks)
        return frozenset(number * world_size // kept for number in range(kept))

    @property
    def with_labels(self) -> bool:
        """Whether the labels of a loss are recorded."""
        return "labels" in self.store_values_of or self.task is Task.TENSOR

    @property
    def with_draws(self) -> bool:
        """Whether it is noted which modules draw random numbers: where their values are kept."""
        return "module" in self.store_values_of or self.task is Task.TENSOR

    def to_json(self) -> dict[str, object]:
        """Plain values, for the manifest and for child processes."""
        return fields_to_json(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, object], source: str = "capture options") -> CaptureOptions:
        """Inverse of ``to_json``; without ``steps`` or ``ranks``, all.

        Raises:
            ConfigError: an unknown key, or a wrong value; names it.
        """
        return fields_from_json(cls, {"steps": None, "ranks": None, **plain}, source=source)

    def dumps(self) -> str:
        """``to_json`` as one line."""
        return json.dumps(self.to_json(), separators=(",", ":"))
