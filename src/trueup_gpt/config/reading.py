"""Reads the YAML file: names the nearest of a key that is not known, warns of one that has no effect."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import cast

import yaml
from pydantic import BaseModel, ValidationError

from trueup.errors import ConfigError
from trueup.types.option import unknown_key_message
from trueup_gpt.config.config import Config

_SHIPPED = Path(__file__).parent.parent / "configs"
_SAME_SECTION = {"gpt_config": "model_config", "transformer_config": "model_config"}
_NOT_READ = {"general_config"}
"""sections of the original without a key of their own"""
_SECTIONS = {
    str(field.alias): cast("type[BaseModel]", field.annotation) for field in Config.model_fields.values()
}


class NoEffect(UserWarning):
    """A key that is taken but changes nothing."""


def shipped_configs() -> dict[str, Path]:
    """The configurations that come with the package: name -> file."""
    return {path.stem: path for path in sorted(_SHIPPED.glob("*.yaml"))}


def load_config(path: Path | str, overrides: Mapping[str, object] | None = None) -> Config:
    """Read a configuration; ``path`` may be the name of a shipped one.

    Args:
        path: the YAML file.
        overrides: values that win over the file, ``{"training_config.seed": 1}``.

    Raises:
        ConfigError: the file is missing or not YAML, a key is unknown, or a value is not possible.

    Example:
        >>> load_config("pretrain_gpt_7B").model.hidden_size
        4096
    """
    file = Path(path)
    shipped = shipped_configs()
    if not file.exists() and file.with_suffix("").name in shipped and file.parent == Path("."):
        file = shipped[file.with_suffix("").name]
    try:
        plain = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} is not there; shipped are {', '.join(shipped)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"{path} holds no sections; expected {', '.join(_SECTIONS)}")
    return config_from(plain, overrides=overrides, source=str(path))


def config_from(
    plain: Mapping[str, object],
    *,
    overrides: Mapping[str, object] | None = None,
    source: str = "configuration",
) -> Config:
    """The configuration in plain values, section by section.

    Raises:
        ConfigError: a key is unknown, or a value is not possible.
    """
    sections = _sections(plain, source)
    for dotted, value in (overrides or {}).items():
        _put(sections, dotted, value, source)
    for name, section in sections.items():
        _drop_foreign(section, name, source)
        _check_keys(section, _SECTIONS[name], source, where=name)
    _let_shorthands_act(sections)
    try:
        return Config.model_validate(sections)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_first_problem(error)}") from None


_Section = dict[str, object]


def _sections(plain: Mapping[str, object], source: str) -> dict[str, _Section]:
    found: dict[str, _Section] = {}
    for given, section in plain.items():
        name = _SAME_SECTION.get(given, given)
        if name in _NOT_READ:
            continue
        if name == "lora_config":
            if isinstance(section, dict) and section.get("use_lora"):
                raise ConfigError(f"{source}: lora_config: there is no LoRA here; leave use_lora out")
            continue
        if name not in _SECTIONS:
            message = unknown_key_message(str(given), _SECTIONS)
            raise ConfigError(f"{source}: {message.replace('key', 'section', 1)}")
        if not isinstance(section, dict | None):
            raise ConfigError(f"{source}: {given}: expected keys with values, got {section!r}")
        found[name] = dict(section or {})
    model = found.setdefault("model_config", {})
    if "moe_config" in model:
        found["moe_config"] = dict(cast(_Section, model.pop("moe_config") or {}))
    return found


def _put(sections: dict[str, _Section], dotted: str, value: object, source: str) -> None:
    section, _, key = dotted.partition(".")
    section = section if section.endswith("_config") else f"{section}_config"
    if section not in _SECTIONS or not key:
        raise ConfigError(f"{source}: {dotted!r}: expected SECTION.KEY, such as training_config.seed")
    place = sections.setdefault(section, {})
    *parents, last = key.split(".")
    for parent in parents:
        if place.get(parent) is None:
            place[parent] = {}
        below = place[parent]
        if not isinstance(below, dict):
            raise ConfigError(f"{source}: {dotted!r}: {parent} is {below!r}, and has no keys of its own")
        place = below
    place[last] = value


@cache
def _foreign() -> dict[str, dict[str, dict[str, dict[str, object]]]]:
    text = Path(__file__).with_name("foreign.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def _drop_foreign(section: dict[str, object], name: str, source: str) -> None:
    refused = _foreign()["refused"].get(name, {})
    ignored = _foreign()["without_effect"].get(name, {})
    for key in [key for key in section if key in refused]:
        value = section.pop(key)
        if value != refused[key]["default"]:
            raise ConfigError(f"{source}: {name}.{key}: {value!r} is not possible: {refused[key]['why']}")
    for key in [key for key in section if key in ignored]:
        value = section.pop(key)
        if value != ignored[key]["default"]:
            warnings.warn(f"{name}.{key} has no effect here: {ignored[key]['why']}", NoEffect, stacklevel=2)


def _check_keys(section: Mapping[str, object], model: type[BaseModel], source: str, *, where: str) -> None:
    for key, value in section.items():
        if key not in model.model_fields:
            raise ConfigError(f"{source}: in {where!r}: {unknown_key_message(key, model.model_fields)}")
        inner = [
            kind
            for kind in (model.model_fields[key].annotation, *_members(model.model_fields[key].annotation))
            if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        if inner and isinstance(value, Mapping):
            _check_keys(value, inner[0], source, where=f"{where}.{key}")


def _members(annotation: object) -> tuple[object, ...]:
    return getattr(annotation, "__args__", ())


def _let_shorthands_act(sections: dict[str, dict[str, object]]) -> None:
    """``fp16``, ``bf16`` and ``use_distributed_optimizer`` stand for keys of other sections."""
    training = sections.get("training_config", {})
    if training.get("fp16") and training.get("bf16"):
        raise ConfigError("training_config: fp16 and bf16 are both on; choose one")
    for key, dtype in (("fp16", "float16"), ("bf16", "bfloat16")):
        if training.get(key):
            sections["model_config"].setdefault("compute_dtype", dtype)
    parallel = sections.setdefault("parallel_config", {})
    if training.get("use_distributed_optimizer") and parallel.get("zero_level") is None:
        parallel["zero_level"] = "z1"


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{place} is missing"
    message = problem["msg"].replace("Value error, ", "")
    return f"{place}: found {problem.get('input')!r}; {message[:1].lower()}{message[1:]}"
