"""A dump configuration from what a person asks for, and the environment it needs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from trueup.capture.dump_config import values
from trueup.capture.dump_config.iterations import text_from_iterations
from trueup.capture.dump_config.kernels import is_type
from trueup.capture.options import StepSet
from trueup.errors import ConfigError
from trueup.types.option import Option, expected, unknown_key_message

_what = partial(Option, panel="What to dump")
_where = partial(Option, panel="Where it runs")


class DumpKind(str, Enum):
    """What is dumped; the words are those of MindSpore's documentation."""

    FULL = "full"
    """every operator"""
    PARTIAL = "partial"
    """of every operator statistics alone, or a sample of each tensor"""
    OVERFLOW = "overflow"
    """only operators that overflow"""
    CONDITION = "condition"
    """only named operators, iterations or devices, or what ``set_dump`` marked"""


class JitLevel(str, Enum):
    """How the graph is compiled: operator by operator, with fusion, or as one."""

    O0 = "O0"
    O1 = "O1"
    O2 = "O2"


class DeviceTarget(str, Enum):
    """MindSpore's ``device_target``."""

    ASCEND = "Ascend"
    GPU = "GPU"
    CPU = "CPU"


class InputOutput(Enum):
    """Which tensors of an operator; the value is MindSpore'values."""

    BOTH = 0
    INPUT = 1
    OUTPUT = 2


def _path_from_text(text: str, place: str) -> Path:
    return Path(text).expanduser().absolute()


def _devices_from_text(text: str, place: str) -> tuple[int, ...]:
    numbers = StepSet.parse(text, place).numbers(place)
    if numbers is None:
        raise expected(place, "numbers, such as 0-7: MindSpore has no word for all", text)
    return tuple(sorted(numbers))


def _statistics_from_text(text: str, place: str) -> tuple[str, ...]:
    words = tuple(word.strip().lower() for word in text.split(",") if word.strip())
    for word in words:
        if word not in values.STATISTICS:
            raise ConfigError(f"{place}: {unknown_key_message(word, values.STATISTICS, 'statistic')}")
    if not words:
        raise expected(place, "statistics, such as max,min,l2norm", text)
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpRequest:
    """What a person asks for. None: the kind's own default."""

    kind: Annotated[
        DumpKind,
        _what(
            "Every operator; statistics or samples only; operators that overflow; the choice of --kernel, "
            "--set-dump, --iteration or --devices.",
            "--kind",
        ),
    ]
    path: Annotated[Path, _what("Folder of the dump.", "--path DIR", read=_path_from_text)]
    net_name: Annotated[str, _what("Name of the network's folder in the dump.", "--net-name NAME")] = "Net"
    iterations: Annotated[StepSet, _what('Such as "0|5-8|100-120".', "--iteration", read=StepSet.parse)] = (
        field(default_factory=StepSet)
    )
    kernels: Annotated[
        tuple[str, ...],
        _what("Operator: full name, part of a type, or name-regex(...); may be repeated.", "--kernel NAME"),
    ] = ()
    set_dump: Annotated[
        bool, _what("Operators that mindspore.set_dump marked in the script.", "--set-dump")
    ] = False
    input_output: Annotated[InputOutput, _what("Tensors of an operator.", "--input-output")] = (
        InputOutput.BOTH
    )
    devices: Annotated[
        tuple[int, ...],
        _what("Devices, such as 0,2-3.", "--devices --ranks", default="0-7", read=_devices_from_text),
    ] = (0, 1, 2, 3, 4, 5, 6, 7)
    saved_data: Annotated[
        Literal["tensor", "statistic", "full"] | None,
        _what("Values, statistics or both.", "--saved-data", default="according to --kind"),
    ] = None
    statistics: Annotated[
        tuple[str, ...],
        _what(
            "Columns of statistic.csv, such as max,min,avg,l2norm,nan count,md5.",
            "--statistics",
            read=_statistics_from_text,
        ),
    ] = values.DEFAULT_STATISTICS
    sample: Annotated[
        int | None, _what("Only N elements of each tensor, of head and tail.", "--sample", least=1)
    ] = None
    overflow_number: Annotated[
        int | None, _what("End after N overflows; 0: never.", "--overflow-number", least=0)
    ] = None
    file_format: Annotated[
        Literal["npy", "bin"], _what("Format of values.", "--file-format", no_effect="below level O2")
    ] = "npy"
    level: Annotated[
        JitLevel,
        _where(
            "jit_level of the training script.",
            "--level",
            default="O0; with --check, the level the file is written for",
        ),
    ] = JitLevel.O0
    device_target: Annotated[DeviceTarget, _where("MindSpore's device.", "--device-target")] = (
        DeviceTarget.ASCEND
    )


def dump_settings(request: DumpRequest) -> dict[str, object]:
    """The configuration, as JSON.

    Raises:
        ConfigError: the request contradicts itself, or MindSpore cannot do that there.
    """
    _check(request)
    sampled = request.sample is not None
    statistic = request.kind is DumpKind.PARTIAL and not sampled
    common: dict[str, object] = {
        "op_debug_mode": values.OVERFLOW if request.kind is DumpKind.OVERFLOW else values.NO_DEBUG,
        "dump_mode": _dump_mode(request),
        "path": str(request.path),
        "net_name": request.net_name,
        "iteration": text_from_iterations(request.iterations),
        "saved_data": request.saved_data or ("statistic" if statistic else "tensor"),
        "input_output": request.input_output.value,
        "kernels": list(request.kernels),
        "support_device": list(request.devices),
    }
    if common["saved_data"] != "tensor":
        common["statistic_category"] = list(request.statistics)
    if request.overflow_number is not None:
        common["overflow_number"] = request.overflow_number
    if request.level is JitLevel.O2:
        return {"common_dump_settings": common | {"file_format": request.file_format}}
    end_to_end: dict[str, object] = {"enable": True, "trans_flag": True}
    if request.device_target is not DeviceTarget.CPU:
        end_to_end["stat_calc_mode"] = "host"
    if sampled:
        end_to_end |= {"sample_mode": 1, "sample_num": request.sample}
    return {"common_dump_settings": common, "e2e_dump_settings": end_to_end}


def _dump_mode(request: DumpRequest) -> int:
    if request.set_dump:
        return values.SET_DUMP
    return values.NAMED_OPERATORS if request.kernels else values.ALL_OPERATORS


def environment_lines(file: Path, request: DumpRequest) -> list[str]:
    """Lines for a shell, to be run before the training script starts, ``file`` being absolute.

    O2 dumps through Ascend's own library, which needs the file too, except where MindSpore picks operators
    itself: given the file then, the library would dump everything.
    """
    name = shlex.quote(str(file))
    lines = [f"export MINDSPORE_DUMP_CONFIG={name}"]
    through_library = request.level is JitLevel.O2 and request.kind is not DumpKind.OVERFLOW
    if through_library and not request.kernels:
        lines.append(f"export MS_ACL_DUMP_CFG_PATH={name}")
    else:
        lines.append("unset MS_ACL_DUMP_CFG_PATH")
    lines.append(
        "# in the script, before the first operator: mindspore.set_context(mode=mindspore.GRAPH_MODE, "
        f'jit_config={{"jit_level": "{request.level.value}"}})'
    )
    return lines


def _check(request: DumpRequest) -> None:
    """Every contradiction a person can make with flags, first one first."""
    for wrong, sentence in _contradictions(request):
        if wrong:
            raise ConfigError(sentence)


# In one piece: a table: a condition and what it breaks, line by line.
def _contradictions(request: DumpRequest) -> list[tuple[bool, str]]:
    kind, level, target = request.kind, request.level, request.device_target
    named = bool(request.kernels) or request.set_dump
    narrowed = named or request.iterations.ranges is not None or len(request.devices) < 8
    partial, sampled = kind is DumpKind.PARTIAL, request.sample is not None
    statistic = request.saved_data in ("statistic", "full") or (
        partial and not sampled and request.saved_data is None
    )
    whole_graph, ascend = level is JitLevel.O2, target is DeviceTarget.ASCEND
    return [
        (not request.path.is_absolute(), f"path {request.path} is not absolute: MindSpore refuses it"),
        (
            not values.PATH.fullmatch(str(request.path)),
            f"path {request.path}: MindSpore takes letters, digits, '-', '_' and '/'",
        ),
        (
            not values.NET_NAME.fullmatch(request.net_name),
            f"net name: expected letters, digits, '-' and '_' (got {request.net_name!r})",
        ),
        (whole_graph and not ascend, f"level O2 is Ascend's; on {target.value} take O0 or O1"),
        (bool(request.kernels) and request.set_dump, "--kernel and --set-dump exclude each other"),
        (
            kind is not DumpKind.CONDITION and named,
            f"--kind {kind.value} dumps every operator; --kernel and --set-dump go with --kind condition",
        ),
        (
            kind is DumpKind.CONDITION and not narrowed,
            "--kind condition needs one: --kernel NAME, --set-dump, --iteration 0,5-8 or --devices 0",
        ),
        (
            whole_graph and any(is_type(kernel) for kernel in request.kernels),
            "at level O2 --kernel is a full name or name-regex(...), no type",
        ),
        (
            request.set_dump and (whole_graph or not ascend),
            "set_dump is for Ascend at levels O0 and O1; name operators with --kernel",
        ),
        (
            kind is DumpKind.OVERFLOW and not ascend,
            f"MindSpore finds overflows on Ascend alone, not on {target.value}; trueup check-run finds NaN "
            "and infinity in any dump",
        ),
        (
            kind is DumpKind.OVERFLOW and request.input_output is not InputOutput.BOTH,
            "--kind overflow keeps inputs and outputs; leave --input-output out",
        ),
        (
            kind is DumpKind.OVERFLOW and request.saved_data in ("statistic", "full"),
            "--kind overflow keeps tensors; leave --saved-data out",
        ),
        (
            kind is DumpKind.OVERFLOW and whole_graph and request.iterations.ranges is not None,
            "--kind overflow at level O2 watches every iteration; leave --iteration out",
        ),
        (
            request.overflow_number is not None and kind is not DumpKind.OVERFLOW,
            "--overflow-number goes with --kind overflow",
        ),
        (
            statistic and target is DeviceTarget.CPU,
            "MindSpore writes no statistics on CPU: take --saved-data tensor (trueup computes them from it)",
        ),
        (
            sampled and (whole_graph or not ascend or not partial or statistic),
            "--sample goes with --kind partial and tensors, on Ascend at level O0 or O1",
        ),
        (
            partial and not sampled and request.saved_data == "tensor",
            "--kind partial is statistics or --sample; complete tensors are --kind full",
        ),
        (
            statistic and whole_graph and request.file_format == "bin",
            'statistics at level O2 need "file_format": "npy"',
        ),
    ]
