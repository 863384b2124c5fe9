"""Every mistake in a dump configuration, before a training job is spent on it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from trueup.capture.config_file import read_json_object
from trueup.capture.dump_config import kernels as patterns
from trueup.capture.dump_config import settings, values
from trueup.capture.dump_config.build import DeviceTarget, JitLevel
from trueup.capture.dump_config.iterations import ALL, iterations_from_text
from trueup.errors import ConfigError
from trueup.types.option import unknown_key_message

_Section = TypeVar("_Section", bound=BaseModel)
_COMMON, _END_TO_END = "common_dump_settings", "e2e_dump_settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One thing that is wrong."""

    where: str
    """the key"""
    sentence: str
    fatal: bool = True
    """False: MindSpore continues, and does something else than the file says"""

    def __str__(self) -> str:
        return f"{self.where}: {self.sentence}"


def check_dump_config(
    path: Path,
    *,
    level: JitLevel | None = None,
    device_target: DeviceTarget | None = None,
    operators: list[str] | None = None,
) -> list[Mistake]:
    """Everything that is wrong with the file, worst first; empty where it is right.

    Args:
        path: the JSON file.
        level: how the graph is compiled; by default what the file is written for.
        device_target: where it is to run; by default not checked.
        operators: full names of the network's operators; ``kernels`` are looked for among them.

    Raises:
        ConfigError: there is no such file, or it is not a JSON object.
    """
    plain = read_json_object(path)
    found = list(_shape(plain))
    common = plain.get(_COMMON)
    if isinstance(common, dict):
        section = _valid(common, settings.CommonSettings, _COMMON, found)
        given = plain.get(_END_TO_END)
        inner = (
            _valid(given, settings.EndToEndSettings, _END_TO_END, found) if isinstance(given, dict) else None
        )
        whole_graph = level is JitLevel.O2 if level else _END_TO_END not in plain
        named = {mistake.where.rpartition(".")[2] for mistake in found}
        further = [
            *_of_names(section),
            *_of_modes(section),
            *_of_level(section, inner, plain, whole_graph=whole_graph),
            *_of_device(section, device_target),
            *_of_statistics(section, inner),
            *_of_kernels(section, operators, whole_graph=whole_graph),
        ]
        found += [mistake for mistake in further if mistake.where.rpartition(".")[2] not in named]
    return sorted(found, key=lambda mistake: not mistake.fatal)


def _shape(plain: Mapping[str, object]) -> Iterator[Mistake]:
    known: dict[str, type[BaseModel]] = {
        _COMMON: settings.CommonSettings,
        _END_TO_END: settings.EndToEndSettings,
    }
    for key, value in plain.items():
        if key not in known:
            yield Mistake(where=key, sentence=unknown_key_message(key, known), fatal=False)
            continue
        if not isinstance(value, dict):
            yield Mistake(where=key, sentence=f"expected a JSON object (got a {type(value).__name__})")
            continue
        for name in value:
            if name not in known[key].model_fields:
                words = unknown_key_message(name, _likely(name, known))
                yield Mistake(where=f"{key}.{name}", sentence=words, fatal=False)
    if _COMMON not in plain:
        yield Mistake(where=_COMMON, sentence="is missing: MindSpore stops")
    elif isinstance(common := plain[_COMMON], dict):
        for name in values.REQUIRED:
            if name not in common:
                yield Mistake(where=f"{_COMMON}.{name}", sentence="is missing: MindSpore stops")


def _likely(name: str, known: dict[str, type[BaseModel]]) -> list[str]:
    """A key that belongs into the other section is named with it."""
    return [
        field if field != name else f"{section}.{field}"
        for section, model in known.items()
        for field in model.model_fields
    ]


def _valid(plain: Mapping[str, object], model: type[_Section], where: str, found: list[Mistake]) -> _Section:
    """The section, with the default of every key whose value is wrong; those are added to ``found``."""
    good = dict(plain)
    while True:
        try:
            return model.model_validate(good)
        except ValidationError as error:
            wrong: dict[str, str] = {}
            for problem in error.errors(include_url=False):
                place = [str(part) for part in problem["loc"]]
                wrong.setdefault(
                    place[0],
                    f"found {problem['input']!r}; {_lower(problem['msg'].removeprefix('Value error, '))}",
                )
            for key, sentence in wrong.items():
                found.append(Mistake(where=f"{where}.{key}", sentence=sentence))
                good.pop(key, None)


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _of_names(common: settings.CommonSettings) -> Iterator[Mistake]:
    if not common.path:
        yield Mistake(
            where="path",
            sentence="is empty: MindSpore then needs the environment variable MS_DIAGNOSTIC_DATA_PATH and "
            "dumps into debug_dump below it",
            fatal=False,
        )
    elif not common.path.startswith("/"):
        yield Mistake(where="path", sentence=f"{common.path!r} is relative; it must begin with /")
    if not values.PATH.fullmatch(common.path):
        odd = "".join(sorted(set(re.sub(values.PATH, "", common.path))))
        yield Mistake(
            where="path", sentence=f"has {odd!r}; MindSpore takes letters, digits, '-', '_' and '/'"
        )
    if not values.NET_NAME.fullmatch(common.net_name):
        yield Mistake(
            where="net_name", sentence=f"expected letters, digits, '-' and '_' (got {common.net_name!r})"
        )
    try:
        iterations_from_text(common.iteration)
    except ConfigError as error:
        yield Mistake(where="iteration", sentence=str(error))
    devices = common.support_device
    if not devices:
        yield Mistake(where="support_device", sentence="is empty: no device dumps anything", fatal=False)
    for device in sorted({d for d in devices if devices.count(d) > 1}):
        yield Mistake(where="support_device", sentence=f"names device {device} twice", fatal=False)


def _of_modes(common: settings.CommonSettings) -> Iterator[Mistake]:
    debug = values.OVERFLOW if common.op_debug_mode in (1, 2) else common.op_debug_mode
    if debug != common.op_debug_mode:
        yield Mistake(where="op_debug_mode", sentence=f"{common.op_debug_mode} is taken for 3", fatal=False)
    if common.overflow_number is not None and debug != values.OVERFLOW:
        yield Mistake(
            where="overflow_number", sentence="has no effect without op_debug_mode 3: MindSpore stops"
        )
    if debug != values.NO_DEBUG and common.dump_mode != values.ALL_OPERATORS:
        yield _ignored("dump_mode", f"{common.dump_mode} is taken for 0 with op_debug_mode {debug}")
    if debug == values.OVERFLOW and common.input_output != 0:
        yield _ignored("input_output", "is taken for 0 with op_debug_mode 3")
    if debug == values.EXCEPTION and common.iteration != ALL:
        yield _ignored("iteration", 'is taken for "all" with op_debug_mode 4')
    if debug != values.NO_DEBUG and common.saved_data != "tensor":
        yield _ignored("saved_data", f"{common.saved_data!r} is for op_debug_mode 0, not {debug}")
    if common.kernels and common.dump_mode != values.NAMED_OPERATORS:
        yield _ignored("kernels", f"has no effect with dump_mode {common.dump_mode}; dump_mode 1 uses it")
    if not common.kernels and common.dump_mode == values.NAMED_OPERATORS:
        yield _ignored("kernels", "is empty with dump_mode 1: every operator is dumped")


def _ignored(where: str, sentence: str) -> Mistake:
    return Mistake(where=where, sentence=sentence, fatal=False)


def _of_level(
    common: settings.CommonSettings,
    inner: settings.EndToEndSettings | None,
    plain: Mapping[str, object],
    *,
    whole_graph: bool,
) -> Iterator[Mistake]:
    if whole_graph:
        yield from _of_whole_graph(common, plain)
        return
    if inner is None:
        yield Mistake(where=_END_TO_END, sentence="is missing: at levels O0 and O1 nothing is written")
        return
    if not inner.enable:
        yield _ignored(
            f"{_END_TO_END}.enable", "is not true: CPU and GPU want it; Ascend then dumps asynchronously"
        )
    if common.file_format is not None:
        yield _ignored("file_format", "has no effect below level O2, where npy is written anyway")
    if inner.sample_mode and common.op_debug_mode != values.NO_DEBUG:
        yield _ignored(f"{_END_TO_END}.sample_mode", "is for op_debug_mode 0")
    if inner.sample_num is not None and not inner.sample_mode:
        yield _ignored(f"{_END_TO_END}.sample_num", "has no effect without sample_mode 1")


def _of_whole_graph(common: settings.CommonSettings, plain: Mapping[str, object]) -> Iterator[Mistake]:
    if _END_TO_END in plain:
        yield Mistake(where=_END_TO_END, sentence="is for levels O0 and O1; leave it out at O2")
    common_keys = plain[_COMMON]
    if not isinstance(common_keys, Mapping) or "op_debug_mode" not in common_keys:
        yield Mistake(where="op_debug_mode", sentence="is missing: at level O2 MindSpore stops")
    if common.dump_mode == values.SET_DUMP:
        yield Mistake(where="dump_mode", sentence="2 (set_dump) is not there at level O2")
    if common.file_format != "npy":
        shown = "is missing, which means bin" if common.file_format is None else "is bin"
        sentence = f"{shown}: files in the device's own format; npy is read by every tool"
        if common.saved_data != "tensor":
            yield Mistake(where="file_format", sentence=f"{shown}, and statistics need npy: MindSpore stops")
        else:
            yield _ignored("file_format", sentence)
    if common.op_debug_mode != values.NO_DEBUG and common.iteration != ALL:
        yield _ignored("iteration", f"has no effect with op_debug_mode {common.op_debug_mode} at level O2")


def _of_device(common: settings.CommonSettings, target: DeviceTarget | None) -> Iterator[Mistake]:
    if target is None or target is DeviceTarget.ASCEND:
        return
    if target is DeviceTarget.CPU and common.saved_data != "tensor":
        yield Mistake(
            where="saved_data", sentence=f"{common.saved_data!r} on CPU: MindSpore stops; take 'tensor'"
        )
    if common.dump_mode == values.SET_DUMP:
        yield Mistake(where="dump_mode", sentence=f"2 (set_dump) on {target.value}: MindSpore stops")
    if common.op_debug_mode != values.NO_DEBUG:
        yield _ignored("op_debug_mode", f"{common.op_debug_mode} finds nothing on {target.value}")


def _of_statistics(
    common: settings.CommonSettings, inner: settings.EndToEndSettings | None
) -> Iterator[Mistake]:
    on_device = inner is not None and inner.stat_calc_mode == "device"
    if on_device and common.saved_data != "statistic":
        yield _ignored(
            f"{_END_TO_END}.stat_calc_mode", f"device is taken for host with saved_data {common.saved_data!r}"
        )
    for word in common.statistic_category or ():
        if word not in values.STATISTICS:
            words = unknown_key_message(word, values.STATISTICS, "statistic")
            yield Mistake(where="statistic_category", sentence=words)
        elif on_device and common.saved_data == "statistic" and word not in values.DEVICE_STATISTICS:
            yield _ignored(
                "statistic_category", f"{word!r} is for stat_calc_mode host and left out on a device"
            )


def _of_kernels(
    common: settings.CommonSettings, operators: list[str] | None, *, whole_graph: bool
) -> Iterator[Mistake]:
    if common.dump_mode != values.NAMED_OPERATORS:
        return
    for kernel in common.kernels:
        if whole_graph and patterns.is_type(kernel):
            yield _ignored("kernels", f"{kernel!r} is a type; level O2 takes full names and name-regex(...)")
        try:
            meant = patterns.operators_of(kernel, operators or [])
        except ConfigError as error:
            yield Mistake(where="kernels", sentence=str(error))
            continue
        if operators is not None and not meant:
            near = patterns.nearest(kernel, operators)
            hint = f"; did you mean {near!r}?" if near else ""
            yield Mistake(
                where="kernels",
                sentence=f"{kernel!r} matches none of the {len(operators)} operators of the dump{hint}",
            )
