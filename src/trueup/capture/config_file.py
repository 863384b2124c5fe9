"""The shape of msprobe's ``config.json``: every key, checked. ``config`` says what the values mean."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StrictBool, ValidationError

from trueup.errors import ConfigError

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
"""tasks of msprobe that are not here, and why"""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="allow", populate_by_name=True)


class TaskSection(_Strict):
    """``statistics`` or ``tensor``: which calls, and what of each."""

    scope: Names
    """names of the first and the last call"""
    names: Annotated[list[str], Field(default_factory=list, alias="list")]
    """parts of names"""
    tensor_list: Names
    data_mode: str | list[str] | None = None
    backward_input: Any = None
    summary_mode: Literal["statistics", "md5", "xor"] = "statistics"
    slice: Any = None
    request_id: Any = None


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
    step: Any = None
    rank: Any = None
    dump_after_load: StrictBool = False


class ConfigFile(_Strict):
    """A whole ``config.json``."""

    task: str | None = None
    dump_path: str | None = None
    rank: Annotated[Any, Field(default=None, validation_alias=AliasChoices("rank", "module_ranks"))]
    """``[]`` (all), ``[0, "5-8"]``, ``"0|5-8"``; so is ``step``"""
    step: Any = None
    level: Literal["L0", "L1", "mix", "debug"] | None = None
    async_dump: StrictBool = False
    dump_enable: StrictBool | None = None
    extra_info: StrictBool = True
    precision: Literal["low", "high"] = "low"
    risk_level: Literal["ALL", "FOCUS", "CORE"] = "ALL"
    enable_dataloader: StrictBool = False
    custom_op_namespaces: list[str] | None = None
    load: LoadSection | None = None
    statistics: Annotated[TaskSection, Field(default_factory=_empty_section)]
    tensor: Annotated[TaskSection, Field(default_factory=_empty_section)]
    overflow_check: Annotated[
        OverflowSection, Field(default_factory=lambda: OverflowSection.model_validate({}))
    ]
    structure: Any = None


def read_config_file(path: Path) -> ConfigFile:
    """Read and check ``path``.

    Raises:
        ConfigError: no such file, not JSON (line and column named), a wrong value, or an unknown key (the
            nearest
            known one named).
    """
    plain = read_json_object(path)
    _check_keys(plain, ConfigFile, path, where="", ignored=FOREIGN_TASKS)
    if "rank" in plain and "module_ranks" in plain:
        raise ConfigError(f"{path}: 'rank' and 'module_ranks' are the same key; keep one of them")
    sections: tuple[tuple[str, type[BaseModel]], ...] = (
        ("statistics", TaskSection),
        ("tensor", TaskSection),
        ("overflow_check", OverflowSection),
        ("load", LoadSection),
    )
    for name, section in sections:
        if isinstance(plain.get(name), dict):
            _check_keys(plain[name], section, path, where=f"{name}.")
    try:
        return ConfigFile.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first_problem(error)}") from error


def read_json_object(path: Path) -> dict[str, Any]:
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
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except FileNotFoundError as error:
        raise ConfigError(f"no such file: {path}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    if not isinstance(plain, dict):
        raise ConfigError(
            f'{path} holds a {type(plain).__name__}; a JSON object is wanted: {{"task": "statistics", ...}}'
        )
    return plain


def unknown_key_message(key: str, known: Iterable[str]) -> str:
    """A sentence naming the known key nearest to ``key``, or all of them where none is near.

    Example:
        >>> unknown_key_message("sumary_mode", ["summary_mode", "scope"])
        "unknown key 'sumary_mode'; did you mean 'summary_mode'?"
    """
    words = {word.lower(): word for word in known}
    near = difflib.get_close_matches(key.lower(), words, n=1, cutoff=0.5)
    if near:
        return f"unknown key {key!r}; did you mean {words[near[0]]!r}?"
    return f"unknown key {key!r}; known are {', '.join(sorted(words.values()))}"


def _check_keys(
    plain: dict[str, Any], model: type[BaseModel], path: Path, *, where: str, ignored: Iterable[str] = ()
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
