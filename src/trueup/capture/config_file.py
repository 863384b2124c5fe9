"""The shape of msprobe's ``config.json``: every key, checked. ``config`` says what the values mean."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StrictBool, ValidationError

from trueup.errors import ConfigError
from trueup.types.option import expected, unknown_key_message

Names = Annotated[list[str], Field(default_factory=list)]
FOREIGN_TASKS = {
    "acc_check": "it reruns single APIs on an NPU",
    "nan_check": "it reads flags of an NPU; task statistics counts nan and inf of every tensor on any device",
    "exception_dump": "it reads exceptions of an NPU",
    "diff_check": "it compares while it runs; capture both runs and use trueup compare",
    "free_benchmark": "it perturbs single APIs on an NPU",
    "grad_probe": "gradients of every parameter are part of task statistics",
    "run_ut": "it reruns single APIs on an NPU",
}
"""tasks of msprobe that are not supported, and why"""


@dataclass(frozen=True, slots=True)
class NoEffect:
    """A key that is read and changes nothing; a value other than the default, or only ``value``, warns."""

    why: str
    value: object = None


class _Strict(BaseModel):
    model_config = ConfigDict(extra="allow", populate_by_name=True)


class TaskSection(_Strict):
    """``statistics`` or ``tensor``: which calls, and what of each."""

    scope: Names
    """names of the first and the last call"""
    names: Annotated[list[str], Field(default_factory=list, alias="list")]
    """parts of names"""
    tensor_list: Annotated[
        Names, NoEffect("no values are stored by task statistics; use task tensor with list")
    ]
    data_mode: str | list[str] | None = None
    backward_input: Annotated[object, NoEffect("gradients come from the run's own backward")] = None
    summary_mode: Annotated[
        Literal["statistics", "md5", "xor"],
        NoEffect("the digest, which also depends on the order, is stored instead", "xor"),
    ] = "statistics"
    slice: Annotated[object, NoEffect("complete tensors are captured")] = None
    request_id: Annotated[object, NoEffect("complete batches are captured")] = None


class OverflowSection(_Strict):
    """``overflow_check``."""

    overflow_nums: Annotated[int, Field(default=1, ge=-1)]
    """how many are kept; -1: all"""


def _empty_section() -> TaskSection:
    return TaskSection.model_validate({})


class LoadSection(_Strict):
    """Inputs of named modules to be replaced by dumped ones."""

    path: str | None = None
    modules: Names
    step: object = None
    rank: object = None
    dump_after_load: StrictBool = False


class ConfigFile(_Strict):
    """A complete ``config.json``."""

    task: str | None = None
    dump_path: str | None = None
    rank: Annotated[object, Field(default=None, validation_alias=AliasChoices("rank", "module_ranks"))]
    """``[]`` (all), ``[0, "5-8"]``, ``"0|5-8"``; so is ``step``"""
    step: object = None
    level: Literal["L0", "L1", "mix", "debug"] | None = None
    async_dump: Annotated[
        StrictBool, NoEffect("values are written as they come, statistics when a step ends")
    ] = False
    dump_enable: StrictBool | None = None
    extra_info: StrictBool = True
    precision: Annotated[Literal["low", "high"], NoEffect("statistics always use a wide accumulator")] = "low"
    risk_level: Annotated[
        Literal["ALL", "FOCUS", "CORE"], NoEffect("all APIs are captured; narrow them with list or scope")
    ] = "ALL"
    enable_dataloader: Annotated[
        StrictBool, NoEffect("steps end at step(), or automatically with trueup capture")
    ] = False
    custom_op_namespaces: Annotated[
        list[str] | None, NoEffect("custom operations are captured without being named")
    ] = None
    load: Annotated[
        LoadSection | None, NoEffect("no module's input is replaced; this run computes with its own inputs")
    ] = None
    statistics: Annotated[TaskSection, Field(default_factory=_empty_section)]
    tensor: Annotated[TaskSection, Field(default_factory=_empty_section)]
    overflow_check: Annotated[
        OverflowSection, Field(default_factory=lambda: OverflowSection.model_validate({}))
    ]
    structure: object = None


def keys_without_effect(section: BaseModel) -> Iterator[tuple[str, str]]:
    """Every key whose value changes nothing here, and why."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        for mark in field.metadata:
            if isinstance(mark, NoEffect):
                if mark.value is not None and value == mark.value:
                    yield f"{name} {value}", mark.why
                elif mark.value is None and value and value != field.default:
                    yield name, mark.why


def read_config_file(path: Path) -> ConfigFile:
    """Read and check ``path``.

    Raises:
        ConfigError: no such file, not JSON (line and column named), a wrong value, or an unknown key (the
            nearest
            known one named).
    """
    plain = read_json_object(path)
    _check_keys(plain, ConfigFile, path, where="", ignored=FOREIGN_TASKS)
    plain = _with_one_rank_key(plain, path)
    sections: tuple[tuple[str, type[BaseModel]], ...] = (
        ("statistics", TaskSection),
        ("tensor", TaskSection),
        ("overflow_check", OverflowSection),
        ("load", LoadSection),
    )
    for name, section in sections:
        inner = plain.get(name)
        if isinstance(inner, dict):
            _check_keys(inner, section, path, where=f"{name}.")
    try:
        return ConfigFile.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first_problem(error)}") from error


def _with_one_rank_key(plain: dict[str, object], path: Path) -> dict[str, object]:
    """Of ``rank`` and ``module_ranks``, which mean the same, the one that chooses; an empty one chooses
    nothing."""
    both = [plain[key] for key in ("rank", "module_ranks") if key in plain]
    if len(both) < 2:
        return plain
    chosen = [value for value in both if value not in ([], None, "")]
    if len(chosen) == 2:
        raise ConfigError(f"{path}: 'rank' and 'module_ranks' are the same key; keep one of them")
    others = {key: value for key, value in plain.items() if key not in ("rank", "module_ranks")}
    return {**others, "rank": chosen[0] if chosen else []}


def read_json_object(path: Path) -> dict[str, object]:
    """The JSON object in ``path``.

    Raises:
        ConfigError: missing, unreadable, not UTF-8, not JSON (line and column named), or not an object.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply to be read; is it a configuration?") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except FileNotFoundError as error:
        raise ConfigError(f"no such file: {path}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    if not isinstance(plain, dict):
        raise expected(str(path), 'a JSON object, {"NAME": VALUE, ...}', plain)
    return plain


def _check_keys(
    plain: Mapping[str, object],
    model: type[BaseModel],
    path: Path,
    *,
    where: str,
    ignored: Iterable[str] = (),
) -> None:
    known = {field.alias or name for name, field in model.model_fields.items()}
    if model is ConfigFile:
        known.add("module_ranks")
    for key in plain:
        if key not in known and key not in ignored:
            raise ConfigError(f"{path}: {where and f'in {where[:-1]!r}: '}{unknown_key_message(key, known)}")


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    place = ".".join(
        str(part) for part in problem["loc"] if not str(part).startswith(("function", "constrained", "list["))
    )
    found = problem.get("input")
    return (
        f"{place}: found {json.dumps(found, default=str)}; {problem['msg'][:1].lower()}{problem['msg'][1:]}"
    )
