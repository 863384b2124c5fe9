"""msprobe's configuration, as capture options.

A key that has no effect here warns and says why; nothing a person asked for is dropped in silence.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trueup.capture.config_file import FOREIGN_TASKS, ConfigFile, TaskSection, read_config_file
from trueup.capture.options import CaptureOptions, Level, StepSet, Task
from trueup.errors import ConfigError

DEFAULT_DUMP_PATH = "./dump_path"
"""msprobe's own, for a debugger that is given no path at all"""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
SAVED_ONLY = "(saved tensors only)"
"""a name no call has: level ``debug`` records nothing but what ``save`` is given"""
_LEVELS = ("L0", "L1", "mix", "debug")
_PREFIXES = {
    "torch": {
        "Functional": "torch.nn.functional",
        "Tensor": "torch.Tensor",
        "Torch": "torch",
        "Distributed": "torch.distributed",
    },
    "mindspore": {
        "Functional": "mindspore.ops",
        "Tensor": "mindspore.Tensor",
        "Mint": "mindspore.mint",
        "MintFunctional": "mindspore.mint.nn.functional",
        "MintDistributed": "mindspore.mint.distributed",
        "Distributed": "mindspore.communication.comm_func",
        "Primitive": "mindspore.ops.Primitive",
        "Jit": "mindspore.jit",
    },
}
"""msprobe's prefix of a function's name -> where the function lives; some prefixes both frameworks have"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureConfig:
    """What a ``config.json`` asks for."""

    options: CaptureOptions
    dump_enable: bool | None = None
    """None: no hot switch; else whether capture is on at the moment"""
    saved_only: bool = False
    """level ``debug``: only what ``save`` is given"""


def read_config(
    path: Path | None,
    *,
    task: str | None = None,
    dump_path: str | Path | None = None,
    level: str | None = None,
    step: Any = None,
    framework: str | None = None,
) -> CaptureConfig:
    """Read ``path`` (None: all defaults) as msprobe would; the other arguments win over it.

    ``framework`` says what a prefix such as ``Functional`` stands for. Where it is not known (None), a name
    in ``list`` stands for either framework's, and one in ``scope`` for torch's unless only MindSpore has it.
    Defaults are msprobe's: task statistics, level L1, all steps, all ranks. The output folder is taken
    relative to the working folder and made absolute.

    Raises:
        ConfigError: the file or an argument is wrong; see ``read_config_file``.
    """
    source = str(path) if path is not None else "PrecisionDebugger"
    file = read_config_file(path) if path is not None else ConfigFile.model_validate({})
    chosen = _task(task or file.task or "statistics", source)
    wanted_level = level or file.level or "L1"
    if wanted_level not in _LEVELS:
        raise ConfigError(f"{source}: level {wanted_level!r}; one of {', '.join(_LEVELS)} is wanted")
    if chosen == "structure" and wanted_level not in ("L0", "mix"):
        wanted_level = "mix"
    section = file.tensor if chosen == "tensor" else file.statistics
    _warn_of_no_effect(file, section, chosen, source)
    options = CaptureOptions(
        output=Path(dump_path or file.dump_path or DEFAULT_DUMP_PATH).absolute(),
        level=Level.L0 if wanted_level == "debug" else Level(wanted_level),
        task=Task(chosen) if chosen != "structure" else Task.STATISTICS,
        steps=step_set(step if step is not None else file.step, what=f"{source}: step"),
        ranks=step_set(file.rank, what=f"{source}: rank"),
        crc32=section.summary_mode == "md5",
        scope=_scope(section.scope, source, framework),
        names=tuple(dict.fromkeys(one for n in section.names for one in _meant(n, source, framework))),
        data_mode=data_mode_from_words(section.data_mode, what=f"{source}: data_mode"),
        stacks=file.extra_info,
    )
    if chosen == "overflow_check":
        options = for_overflow_check(options, file.overflow_check.overflow_nums)
    saved_only = wanted_level == "debug"
    return CaptureConfig(
        options=_nothing_but_saved(options) if saved_only else options,
        dump_enable=file.dump_enable,
        saved_only=saved_only,
    )


def for_overflow_check(options: CaptureOptions, overflow_nums: int) -> CaptureOptions:
    """The options with what task overflow_check means: statistics alone, as cheap as can be; -1 is no end.

    Raises:
        ConfigError: 0, or below -1.
    """
    if overflow_nums == 0 or overflow_nums < -1:
        raise ConfigError(f"overflow_nums {overflow_nums}: a whole number from 1, or -1 for all, is wanted")
    limit = None if overflow_nums == -1 else overflow_nums
    return replace(options, task=Task.OVERFLOW_CHECK, overflow_nums=limit, digest=False, sketch=False)


def step_set(numbers: Any, *, what: str) -> StepSet:
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
            raise ConfigError(f'{what}: {member!r} is neither a number nor a range; write [0, 1, "5-8"]')
    return StepSet.parse(",".join(str(m) for m in members), what=what)


def name_from_msprobe(name: str, framework: str = "torch") -> str:
    """A call's name in a trace, from msprobe's name for it; a part of a name is left as it is.

    A prefix that only the other framework has is taken for that one's.

    Example:
        >>> name_from_msprobe("Module.layers.0.ln1.LayerNorm.forward.0")
        'layers.0.ln1'
        >>> name_from_msprobe("Functional.linear.3.forward")
        'torch.nn.functional.linear'
        >>> name_from_msprobe("Functional.gather.0.forward", "mindspore")
        'mindspore.ops.gather'
    """
    kind, dot, rest = name.partition(".")
    if not dot:
        return name
    if kind in ("Module", "Cell"):
        path = re.sub(r"\.(forward|backward)(\.\d+)?$", "", rest)
        return path.rpartition(".")[0] if path != rest else path
    homes = {**_PREFIXES["mindspore"], **_PREFIXES["torch"], **_PREFIXES[framework]}
    if kind in homes:
        return f"{homes[kind]}.{re.sub(r'([.][0-9]+)?([.](forward|backward))?$', '', rest)}"
    return name


def _task(task: str, source: str) -> str:
    if task in ("statistics", "tensor", "structure", "overflow_check"):
        return task
    supported = "statistics, tensor and overflow_check (and structure, which statistics includes)"
    if task in FOREIGN_TASKS:
        raise ConfigError(
            f"{source}: task {task!r} is not supported: {FOREIGN_TASKS[task]}. Supported are {supported}."
        )
    raise ConfigError(f"{source}: unknown task {task!r}; supported are {supported}")


def _nothing_but_saved(options: CaptureOptions) -> CaptureOptions:
    return replace(
        options,
        names=(SAVED_ONLY,),
        scope=None,
        backward=False,
        gradients=False,
        optimizer=False,
        collectives=False,
    )


def _scope(scope: list[str], source: str, framework: str | None) -> tuple[str, str] | None:
    if not scope:
        return None
    if len(scope) > 2:
        raise ConfigError(f"{source}: scope has {len(scope)} names; the first and the last call are wanted")
    return _meant(scope[0], source, framework)[0], _meant(scope[-1], source, framework)[0]


def _meant(name: str, source: str, framework: str | None) -> list[str]:
    """Every name in a trace that one of msprobe's may stand for."""
    if name.startswith("name-regex("):
        raise ConfigError(
            f"{source}: list: {name!r}: regular expressions are not supported; write a part of the name"
        )
    ordinal = re.search(r"\.([1-9]\d*)(\.(forward|backward))?$", name)
    if ordinal and name.partition(".")[0] in ("Module", "Cell", *_PREFIXES["torch"], *_PREFIXES["mindspore"]):
        _warn(source, f"{name!r}: the call number is left out, every call of that name counts")
    frameworks = ("torch", "mindspore") if framework is None else (framework,)
    return list(dict.fromkeys(name_from_msprobe(name, one) for one in frameworks))


def data_mode_from_words(mode: str | list[str] | None, *, what: str) -> frozenset[str]:
    """Directions and ends; where only one of the two is named, the other is whole, as in msprobe.

    Raises:
        ConfigError: an unknown word, or ``all`` beside another.
    """
    directions, ends = {"forward", "backward"}, {"input", "output"}
    words = {mode} if isinstance(mode, str) else set(mode or ["all"])
    if words == {"all"}:
        return frozenset(directions | ends)
    wrong = words - directions - ends
    if wrong:
        raise ConfigError(
            f"{what} {sorted(wrong)[0]!r}: write all, or some of forward, backward, input, output"
        )
    return frozenset((words & directions or directions) | (words & ends or ends))


def _warn_of_no_effect(file: ConfigFile, section: TaskSection, task: str, source: str) -> None:
    """Every key that is set to something other than its default, and changes nothing here."""
    reasons: list[tuple[Any, str, str]] = [
        (file.async_dump, "async_dump", "values are written as they come, statistics when a step ends"),
        (file.precision != "low", "precision", "statistics are always taken with a wide accumulator"),
        (file.risk_level != "ALL", "risk_level", "all APIs are captured; narrow them with list or scope"),
        (
            file.enable_dataloader,
            "enable_dataloader",
            "steps end at step(), or by themselves with trueup capture",
        ),
        (file.custom_op_namespaces, "custom_op_namespaces", "custom operations are seen without being named"),
        (file.load, "load", "no module's input is replaced; this run computes with its own inputs"),
        (
            section.tensor_list,
            "tensor_list",
            "no values are stored by task statistics; use task tensor with list",
        ),
        (section.slice, "slice", "whole tensors are taken"),
        (section.request_id, "request_id", "whole batches are taken"),
        (section.backward_input is not None, "backward_input", "gradients come from the run's own backward"),
        (
            section.summary_mode == "xor",
            "summary_mode xor",
            "the digest, which also sees order, is stored instead",
        ),
        (task == "structure", "task structure", "statistics are captured, and the call tree with them"),
    ]
    for is_set, key, why in reasons:
        if is_set:
            _warn(source, f"{key} has no effect: {why}")


def _warn(source: str, sentence: str) -> None:
    warnings.warn(f"{source}: {sentence}", UserWarning, stacklevel=_first_outside())


def _first_outside() -> int:
    """``stacklevel`` of the program's own line, seen from the caller."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level
