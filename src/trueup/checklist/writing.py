"""Configurations written back in their own dialect: YAML, JSON, TOML, or a launch script."""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from trueup.checklist.configuration import Configuration
from trueup.checklist.dialect import Dialect, dialects, elements, translated, writes
from trueup.checklist.readers.command_line import LAUNCHER, NEGATED, SEVERAL
from trueup.checklist.readers.shell_words import quoted
from trueup.checklist.settings import SettingsDocument
from trueup.errors import ConfigError

_STARTERS = {"mindspore": ("msrun", "worker_num")}
"""of a framework: what starts its processes, and the flag of their number"""
_NEGATED = {argument: flag for flag, argument in NEGATED.items()}
_FLAG_OF = {
    "layernorm_epsilon": "norm_epsilon",
    "layernorm_zero_centered_gamma": "apply_layernorm_1p",
    "fp8": "fp8_format",
    "fp4": "fp4_format",
    "logit_dtype": "output_logit_dtype",
    "special_tokens": "tokenizer_special_tokens",
    "microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage",
}
"""what Megatron's log and checkpoint call otherwise than the flag that sets it (``dest`` of its parser)"""
_BEFORE_NORMALIZATION = "normalization"
"""an argument newer than ``--layernorm-epsilon``, which became ``--norm-epsilon``"""
_NEEDED = (
    *("tokenizer_type", "tokenizer_model", "vocab_file", "merge_file", "data_path", "mock_data", "split"),
    *("train_data_path", "valid_data_path", "test_data_path", "data_cache_path"),
)
"""what a program does not start without, of a log or a checkpoint"""
_INNER = ("script", "flavor", "world_size")
_COMPUTED = (
    "data_parallel_size",
    "padded_vocab_size",
    "params_dtype",
    "virtual_pipeline_model_parallel_size",
)
"""what Megatron's log and checkpoint list, but no flag sets"""
_GONE = object()
_SUFFIX = {"yaml": ".yaml", "json": ".json", "toml": ".toml"}
_WRITABLE = frozenset({"yaml", "json", "toml", "shell", "log", "checkpoint"})


def writable(document: SettingsDocument) -> bool:
    """Whether the document's kind can be written at all."""
    return document.kind in _WRITABLE


def file_name(document: SettingsDocument) -> str:
    """A name for it: its own, or launch.sh for a command line, a log or a checkpoint."""
    if document.kind not in _SUFFIX:
        stem = Path(document.path).stem if document.path.endswith(".sh") else "launch"
        return f"{stem}.sh"
    own = Path(document.path.partition(" (")[0])
    return own.name if own.suffix else own.name + _SUFFIX[document.kind]


def changed(document: SettingsDocument, keys: Mapping[str, object]) -> dict[str, object]:
    """The document's data with keys set; None takes a key away, ``betas[1]`` sets one element."""
    data: dict[str, object] = copy.deepcopy(dict(document.data))
    for key, value in keys.items():
        name, index = elements(key)
        into, last = _place(data, name, document)
        held = into.get(last)
        if value is None and document.dialect == "megatron" and document.kind == "yaml":
            _leave_empty(into, last)
        elif value is None:
            into.pop(last, None)
        elif index is not None and isinstance(held, list):
            held[index] = value
        else:
            into[last] = value
    for places in document.repeated:
        _repeat(data, document.data, places)
    return data


def _leave_empty(into: dict[str, object], key: str) -> None:
    """Megatron's ``--yaml-cfg`` has no defaults: a key that it reads must be there, if without a value."""
    if key in into:
        into[key] = False if isinstance(into[key], bool) else None


def _repeat(
    data: dict[str, object], before: Mapping[str, object], places: Sequence[tuple[str | int, ...]]
) -> None:
    """Where a value was changed that the file writes once, every other place that repeats it follows."""
    values = [(place, _at(before, place), _at(data, place)) for place in places]
    new = next((now for _, old, now in values if now is not _GONE and now != old), _GONE)
    for place, old, now in values:
        holder = _at(data, place[:-1])
        if new is not _GONE and now == old and isinstance(holder, (dict, list)):
            holder[place[-1]] = new  # type: ignore[index]


def _at(data: object, place: tuple[str | int, ...]) -> object:
    """What lies at a place of nested data; a mark of its own where nothing does."""
    for part in place:
        if not isinstance(data, (dict, list)):
            return _GONE
        try:
            data = data[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return _GONE
    return data


def setting_words(side: Configuration, field: str, value: object) -> str:
    """How a side sets the field to this value, in its own form: ``--clip-grad 1.0``, ``seed: 1234``.

    Where no form is known for the value, the keys that set the field; empty where the side cannot.
    """
    places = {s.place for s in side.values[field].settings} if field in side.values else set()
    found: list[str] = []
    for document in side.documents:
        keys = writes(dialects()[document.dialect], document, field, value) if value is not None else None
        words = [w for key, v in (keys or {}).items() if (w := _in_form(key, v, document))]
        if words and places & {s.place for s in document.settings.values()}:
            return ", ".join(words)
        if words and writable(document):
            found.append(", ".join(words))
    return found[0] if found else side.how_to_set(field)


def _in_form(key: str, value: object, document: SettingsDocument) -> str:
    if document.kind in ("shell", "log", "checkpoint"):
        dialect = dialects()[document.dialect]
        flag = "" if value is None else _flag(key, value, dialect, document)
        own = document.settings[key].value if key in document.settings else None
        nothing = own is None or (own == 0 and own is not False)
        there = "" if nothing or own == value else _flag(key, own, dialect, document)
        return flag or (f"without {there.partition(' ')[0]}" if there else "")
    if document.kind == "environment":
        return f"export {key}={str(value).lower() if isinstance(value, bool) else value}"
    if value is None:
        setting = document.settings.get(elements(key)[0])
        return f"without {key}" if setting is not None and setting.value is not None else ""
    if document.kind == "trace":
        return ""
    shown = json.dumps(value) if isinstance(value, (bool, dict, list)) or value == "" else str(value)
    return f"{key} = {_toml_value(value)}" if document.kind == "toml" else f"{key}: {shown}"


def _place(data: dict[str, object], name: str, document: SettingsDocument) -> tuple[dict[str, object], str]:
    """The mapping a dotted key lies in, made where missing; Megatron's keys are found wherever they lie."""
    if name in data or document.kind in ("shell", "log", "checkpoint"):
        return data, name
    if document.dialect == "megatron" and (found := _holding(data, name)) is not None:
        return found
    *path, last = name.split(".")
    into = data
    for part in path:
        below = into.get(part)
        if not isinstance(below, dict):
            below = into[part] = {}
        into = below
    return into, last


def _holding(data: dict[str, object], leaf: str) -> tuple[dict[str, object], str] | None:
    for key, value in data.items():
        if key.replace("-", "_") == leaf:
            return data, key
        if isinstance(value, dict) and (found := _holding(value, leaf)) is not None:
            return found
    return None


def written(
    document: SettingsDocument,
    data: Mapping[str, object],
    *,
    remarks: list[str],
    without: Container[str] = (),
) -> str:
    """The text of the changed document; ``remarks`` head it where its form has remarks.

    A launch script keeps its environment lines, but for the variables of ``without``.

    Raises:
        ConfigError: a kind that has no text.
    """
    head = "".join(f"# {line}\n" for line in remarks)
    match document.kind:
        case "json":
            return json.dumps(data, ensure_ascii=False, indent=2) + "\n"
        case "yaml":
            import yaml

            return head + yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=110)
        case "toml":
            return head + _toml(data)
        case "shell" | "log" | "checkpoint":
            return "#!/bin/bash\n" + head + _environment(document, without) + _launch(document, data)
    raise ConfigError(f"{document.path}: {document.kind} cannot be written")


def _environment(document: SettingsDocument, without: Container[str]) -> str:
    lines = [*document.setup]
    for name, value in document.exports.items():
        if name not in without:
            lines.append(f"export {name}={quoted(value)}")
    return "".join(f"{line}\n" for line in lines)


def _toml(data: Mapping[str, object], prefix: str = "") -> str:
    plain = {key: value for key, value in data.items() if not isinstance(value, Mapping)}
    text = "".join(f"{key} = {_toml_value(value)}\n" for key, value in plain.items() if value is not None)
    for key, value in data.items():
        if isinstance(value, Mapping):
            text += f"\n[{prefix}{key}]\n" + _toml(value, f"{prefix}{key}.")
    return text


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return repr(value) if isinstance(value, (int, float)) else json.dumps(str(value), ensure_ascii=False)


def _launch(document: SettingsDocument, data: Mapping[str, object]) -> str:
    """One command, one flag a line.

    Of a log or a checkpoint what the checklist knows, and what the program needs, is repeated.
    """
    dialect = dialects()[document.dialect]
    keys = [key for key in data if key not in _INNER]
    if document.kind != "shell":
        known = translated(document).used | set(data) - set(document.settings) | set(_NEEDED)
        keys = [key for key in keys if key in known and key not in _COMPUTED]
    lines = [
        line for key in keys if key not in LAUNCHER and (line := _flag(key, data[key], dialect, document))
    ]
    if document.dialect == "verl":
        return " \\\n    ".join(["python3 -m verl.trainer.main_ppo", *lines]) + "\n"
    starter, devices = _STARTERS.get(str(data.get("ai_framework")), ("torchrun", "nproc_per_node"))
    places = {devices: data["world_size"]} if data.get("world_size") else {}
    places |= {key: data[key] for key in LAUNCHER if key in data}
    launcher = " ".join(f"--{key}={quoted(str(value))}" for key, value in places.items())
    script = str(data.get("script") or ("pretrain_gpt.py" if document.dialect == "megatron" else "train.py"))
    return " \\\n    ".join([f"{starter} {launcher} {script}".replace("  ", " "), *lines]) + "\n"


def _hydra_word(key: str, value: object, dialect: Dialect, document: SettingsDocument) -> str:
    """``key=value``; of an element the whole list."""
    name, index = elements(key)
    if index is not None:
        own = document.settings.get(name)
        texts = (text for short, text in dialect.defaults.items() if name in dialect.places(short))
        held = own.value if own is not None else ast.literal_eval(str(next(texts, "[]")))
        if not isinstance(held, list) or index >= len(held):
            return ""
        value = [*held[:index], value, *held[index + 1 :]]
    return quoted(f"{name}={value}")


def _flag(key: str, value: object, dialect: Dialect, document: SettingsDocument) -> str:
    if document.dialect == "verl":
        return "" if value is None else _hydra_word(key, value, dialect, document)
    if document.dialect == "megatron":
        return _megatron_flag(key, value, dialect, document)
    return "" if value is None else f"--{key} {_quoted_words(value)}"


def _megatron_flag(key: str, value: object, dialect: Dialect, document: SettingsDocument) -> str:
    on_by_default = str(dialect.defaults.get(key)) == "True"
    is_printed = document.kind != "shell" and _BEFORE_NORMALIZATION in document.settings
    if value is None or (value is True and on_by_default):
        return ""
    if value is False:
        own = document.settings.get(key)
        turned_off = document.kind == "shell" and own is not None and own.value is False
        has_word = on_by_default or turned_off or key in _NEGATED
        return _dashed(_NEGATED.get(key, f"no_{key}")) if has_word else ""
    if isinstance(value, list) and document.kind != "shell" and key not in SEVERAL:
        value = f"([{','.join(map(str, value))}])"
    flag = _dashed(_FLAG_OF.get(key, key) if is_printed else key)
    return flag if value is True else f"{flag} {_quoted_words(value)}"


def _quoted_words(value: object) -> str:
    return " ".join(quoted(str(word)) for word in (value if isinstance(value, list) else [value]))


def _dashed(key: str) -> str:
    return f"--{key.replace('_', '-')}"
