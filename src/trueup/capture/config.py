"""msprobe's configuration, as capture options.

A key that has no effect here warns and says why; nothing a person asked for is dropped in silence.
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from trueup.capture.config_file import FOREIGN_TASKS, ConfigFile, keys_without_effect, read_config_file
from trueup.capture.options import CaptureOptions, Level, StepSet, Task, data_mode_from_words
from trueup.errors import ConfigError
from trueup.types.option import expected

DEFAULT_DUMP_PATH = "./dump_path"
"""msprobe's default, for a debugger without a path"""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
SAVED_ONLY = "(saved tensors only)"
"""a name no call has: level ``debug`` records nothing but what ``save`` is given"""
_LEVELS = ("L0", "L1", "mix", "debug")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureConfig:
    """What a ``config.json`` asks for."""

    options: CaptureOptions
    dump_enable: bool | None = None
    """None: no hot switch; else whether capture is on at the moment"""
    saved_only: bool = False
    """level ``debug``: only what ``save`` is given"""


# In one piece: one setting of msprobe after the other, each with its default.
def read_config(
    path: Path | None,
    *,
    task: str | None = None,
    dump_path: str | Path | None = None,
    level: str | None = None,
    step: object = None,
) -> CaptureConfig:
    """Read ``path`` (None: all defaults) as msprobe would; the other arguments win over it.

    Defaults are msprobe's: task statistics, level L1, all steps, all ranks. The output folder is taken
    relative to the working folder and made absolute.

    Raises:
        ConfigError: the file or an argument is wrong; see ``read_config_file``.
    """
    source = str(path) if path is not None else "PrecisionDebugger"
    file = read_config_file(path) if path is not None else ConfigFile.model_validate({})
    named_task = _task(task or file.task or "statistics", source)
    chosen_level = level or file.level or "L1"
    if chosen_level not in _LEVELS:
        raise expected(f"{source}: level", f"one of: {', '.join(_LEVELS)}", chosen_level)
    if named_task == "structure":
        chosen_level = chosen_level if chosen_level in ("L0", "mix") else "mix"
        _warn(source, "task structure has no effect: statistics are captured, and the call tree with them")
    section = file.tensor if named_task == "tensor" else file.statistics
    for part in (file, section):
        for key, why in keys_without_effect(part):
            _warn(source, f"{key} has no effect: {why}")
    options = CaptureOptions(
        output=Path(dump_path or file.dump_path or DEFAULT_DUMP_PATH).absolute(),
        level=Level.L0 if chosen_level == "debug" else Level(chosen_level),
        task=Task(named_task) if named_task != "structure" else Task.STATISTICS,
        steps=step_set(step if step is not None else file.step, what=f"{source}: step"),
        ranks=step_set(file.rank, what=f"{source}: rank"),
        crc32=section.summary_mode == "md5",
        scope=_scope(section.scope, source),
        names=tuple(dict.fromkeys(_plain_name(name, source) for name in section.names)),
        data_mode=data_mode_from_words(section.data_mode, place=f"{source}: data_mode"),
        stacks=file.extra_info,
    )
    if named_task == "overflow_check":
        options = for_overflow_check(options, file.overflow_check.overflow_nums)
    saved_only = chosen_level == "debug"
    return CaptureConfig(
        options=_only_saved(options) if saved_only else options,
        dump_enable=file.dump_enable,
        saved_only=saved_only,
    )


def for_overflow_check(options: CaptureOptions, overflow_nums: int) -> CaptureOptions:
    """The options with what task overflow_check means: statistics alone, as cheap as possible; -1: without
    end.

    Raises:
        ConfigError: 0, or below -1.
    """
    if overflow_nums == 0 or overflow_nums < -1:
        raise expected("overflow_nums", "an integer from 1, or -1 for all", overflow_nums)
    limit = None if overflow_nums == -1 else overflow_nums
    return replace(options, task=Task.OVERFLOW_CHECK, overflow_nums=limit, digest=False, sketch=False)


def step_set(numbers: object, *, what: str) -> StepSet:
    """msprobe's step and rank lists: ``[]`` is all, members are numbers or ranges such as ``"5-8"``.

    Raises:
        ConfigError: a negative number, or no number at all.

    Example:
        >>> step_set([0, "5-8"], what="step").ranges
        ((0, 0), (5, 8))
    """
    if numbers is None or numbers == [] or numbers == "":
        return StepSet(None)
    members = numbers if isinstance(numbers, (list, tuple)) else [numbers]
    for member in members:
        if isinstance(member, bool) or not isinstance(member, (int, str)):
            raise expected(what, 'numbers or ranges, such as [0, 1, "5-8"]', member)
    return StepSet.parse(",".join(str(m) for m in members), what=what)


def _task(task: str, source: str) -> str:
    if task in ("statistics", "tensor", "structure", "overflow_check"):
        return task
    supported = "statistics, tensor and overflow_check (and structure, which statistics includes)"
    if task in FOREIGN_TASKS:
        raise ConfigError(
            f"{source}: task {task!r} is not supported: {FOREIGN_TASKS[task]}. Supported are {supported}."
        )
    raise ConfigError(f"{source}: unknown task {task!r}; supported are {supported}")


def _only_saved(options: CaptureOptions) -> CaptureOptions:
    return replace(
        options,
        names=(SAVED_ONLY,),
        scope=None,
        backward=False,
        gradients=False,
        optimizer=False,
        collectives=False,
    )


def _scope(scope: list[str], source: str) -> tuple[str, str] | None:
    if not scope:
        return None
    if len(scope) > 2:
        raise expected(f"{source}: scope", "the names of the first and the last call", scope)
    return scope[0], scope[-1]


def _plain_name(name: str, source: str) -> str:
    if name.startswith("name-regex("):
        raise ConfigError(
            f"{source}: list: {name!r}: regular expressions are not supported; write a part of the name"
        )
    return name


def _warn(source: str, sentence: str) -> None:
    warnings.warn(f"{source}: {sentence}", UserWarning, stacklevel=_first_outside())


def _first_outside() -> int:
    """``stacklevel`` of the program's own line, seen from the caller."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level
