"""YAML, JSON and TOML files: which dialect their keys speak, and their settings."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import cast

from trueup.checklist.readers.marks import toml_lines, yaml_aliases, yaml_lines
from trueup.checklist.settings import Setting, SettingsDocument, flat, scalar, tidy
from trueup.errors import ConfigError
from trueup.store.nesting import refuse_deep, refuse_repeated

_MEGATRON = {"num_layers", "hidden_size", "num_attention_heads"}
_MEGATRON_OWN = {
    "tensor_model_parallel_size",
    "ffn_hidden_size",
    "lr_decay_style",
    "untie_embeddings_and_output_weights",
}
_TRAINER = {"per_device_train_batch_size", "lr_scheduler_type", "adam_epsilon", "max_grad_norm"}
_DEEPSPEED = {
    "train_micro_batch_size_per_gpu",
    "zero_optimization",
    "zero_allow_untested_optimizer",
    "steps_per_print",
}
SWIFT = {"train_type", "tuner_type", "sft_type"}
"""a key of ms-swift alone, by its versions"""
_NEMO = {"tensor_model_parallel_size", "encoder_seq_length", "megatron_amp_O2", "mcore_gpt"}
_LARGEST_MARKED = 400_000
_MOST_FREE = 3
HYDRA_WORD = re.compile(r"\+{0,2}([A-Za-z_][\w.]*\.[\w.]+)=(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*([\w.]+)\s*(?:,\s*([^${}]*))?\}")
_MOST_REFERENCES = 8
_FREE = re.compile(r"^\s*\w[^:=#{}\[\]\"]*(?::\S[^:=#{}\[\]\"]*)*[^:=#{}\[\]\",\s]\s*$")
"""a line of words: no key, no item, no part of a list; commas and apostrophes may be in it"""


def parse(text: str, path: str) -> tuple[object, str]:
    """The data of a JSON, TOML or YAML text, and which of them it is.

    Raises:
        ConfigError: it is none of them.
    """
    stripped = text.lstrip()
    problem = ""
    refuse_deep(text, path)
    if stripped.startswith(("{", "[")):
        try:
            return json.loads(text), "json"
        except (ValueError, RecursionError) as error:
            problem = f"as JSON: {error}"
    if path.endswith(".toml") or (stripped.startswith("[") and "=" in text):
        return _toml(text, path), "toml"
    import yaml

    try:
        data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        refuse_repeated(data, path)
        return data, "yaml"
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: not a configuration that can be read: {problem or one_line(error)}"
        ) from error


def one_line(error: Exception) -> str:
    """An error of a parser in one line."""
    return " ".join(str(error).split())


def _toml(text: str, path: str) -> object:
    toml = import_module("tomli" if sys.version_info < (3, 11) else "tomllib")
    try:
        return toml.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path}: not TOML: {one_line(error)}") from error


def document(text: str, path: str) -> SettingsDocument:
    """A YAML, JSON or TOML file.

    Raises:
        ConfigError: it is none of them, or holds no mapping.
    """
    text, data, kind, notes = _parsed(text, path)
    if (words := _overrides(data)) is not None:
        return hydra_words([(word, path) for word in words], path=path, kind=kind)
    if not isinstance(data, Mapping) or not data:
        raise ConfigError(f"{path}: expected a mapping of settings, got {_what(data)}")
    data = {str(key): value for key, value in data.items()}
    if isinstance(templates := data.get("chat_template"), list):
        data["chat_template"] = _default_template(templates)
    dialect = dialect_of(data)
    lines = (toml_lines if kind == "toml" else yaml_lines)(text) if len(text) < _LARGEST_MARKED else {}
    found = from_data(data, dialect=dialect, path=path, kind=kind, lines=lines)
    repeated = yaml_aliases(text) if kind == "yaml" and len(text) < _LARGEST_MARKED else ()
    return replace(found, notes=(*notes, *found.notes), repeated=repeated)


def _parsed(text: str, path: str) -> tuple[str, object, str, tuple[str, ...]]:
    """The text, its data and form, and a remark on lines of free text, which are left out where what is left
    can be read and the whole cannot."""
    kept, free = without_free_text(text)
    try:
        data, kind = parse(text, path)
        if not free or not isinstance(data, str):
            return text, data, kind, ()
    except ConfigError:
        if not free:
            raise
    data, kind = parse(kept, path)
    return kept, data, kind, (f"{path}: free text, not read: line {', '.join(map(str, free))}",)


def template(text: str, path: str) -> SettingsDocument:
    """A file that is a template of conversations."""
    settings = {"chat_template": Setting("chat_template", text, path)}
    return SettingsDocument(dialect="plain", path=path, settings=settings, kind="template")


def _default_template(templates: list[object]) -> object:
    """Of several named templates the default one, or the first."""
    named = [one for one in templates if isinstance(one, Mapping)]
    chosen = next((one for one in named if one.get("name") == "default"), next(iter(named), {}))
    return chosen.get("template")


def without_free_text(text: str) -> tuple[str, list[int]]:
    """The text with its few lines of plain words left blank, and their numbers; none where they are many."""
    lines = text.splitlines()
    free = [at for at, line in enumerate(lines) if _FREE.search(line)]
    if not free or len(free) > _MOST_FREE or len(free) * 2 > len([line for line in lines if line.strip()]):
        return text, []
    kept = ["" if at in free else line for at, line in enumerate(lines)]
    return "\n".join(kept) + "\n", [at + 1 for at in free]


def from_data(
    data: Mapping[str, object], *, dialect: str, path: str, kind: str, lines: Mapping[str, int] | None = None
) -> SettingsDocument:
    """Nested settings as a document of a dialect."""
    keyed = {key: value for key, value in _flat(data, dialect).items() if value != "auto"}
    if dialect == "verl":
        keyed = {key: _interpolated(value, keyed) for key, value in keyed.items()}
        keyed = {key: value for key, value in keyed.items() if value is not None}
    by_leaf = {key.rpartition(".")[2]: line for key, line in (lines or {}).items()}
    settings = {}
    for key, value in keyed.items():
        line = (lines or {}).get(key) or (by_leaf.get(key) if dialect == "megatron" else None)
        settings[key] = Setting(key, value, f"{path}:{line}" if line else path)
    notes = _flavor(settings, path) if dialect == "torchtitan" else ()
    return SettingsDocument(dialect=dialect, path=path, settings=settings, data=data, kind=kind, notes=notes)


def _flat(data: Mapping[str, object], dialect: str) -> dict[str, object]:
    found = dict(flat(data))
    if dialect == "hf_model":  # transformers 5 writes dtype where versions before it wrote torch_dtype
        return {re.sub(r"(^|\.)torch_dtype$", r"\1dtype", key): value for key, value in found.items()}
    if dialect != "megatron":
        return found
    return {key.rpartition(".")[2].replace("-", "_"): value for key, value in found.items()}


def _flavor(settings: dict[str, Setting], path: str) -> tuple[str, ...]:
    """The sizes of torchtitan's flavor, which its TOML names only."""
    from trueup.checklist.fields import yaml_of

    name, flavor = (
        _value(settings, f"model.{key}", default)
        for key, default in (("name", "llama3"), ("flavor", "debugmodel"))
    )
    flavors = cast("Mapping[str, Mapping[str, Mapping[str, object]]]", yaml_of("readers/flavors.yaml"))
    sizes = flavors.get(name, {}).get(str(flavor))
    if sizes is None:
        return (f"{path}: the sizes of flavor {name}/{flavor} are in torchtitan's code and not known here",)
    chosen = settings.get("model.flavor")
    place = f"flavor {name}/{flavor}, {chosen.place if chosen else path}"
    settings.update({f"flavor.{key}": Setting(f"flavor.{key}", value, place) for key, value in sizes.items()})
    return ()


def _value(settings: Mapping[str, Setting], key: str, default: str) -> str:
    return str(settings[key].value) if key in settings else default


def dialect_of(data: Mapping[str, object]) -> str:
    """The dialect these keys speak; ``plain`` where it is none that is known."""
    return next((name for name, test in _TESTS.items() if test(data)), "plain")


def _is_pynative(data: Mapping[str, object]) -> bool:
    sections = {
        "training_config",
        "parallel_config",
        "model_config",
        "dataset_config",
        "optimizer_config",
        "gpt_config",
    }
    return "training_config" in data or (
        len(sections & data.keys()) >= 2 and "model" not in data and "trainer" not in data
    )


def _is_mindformers(data: Mapping[str, object]) -> bool:
    model = data.get("model")
    inside = isinstance(model, Mapping) and "model_config" in model
    return inside or bool({"runner_config", "runner_wrapper", "train_dataset_task"} & data.keys())


def _is_mindformers_core(data: Mapping[str, object]) -> bool:
    """Whether MindFormers builds its Megatron-core models of it, whose defaults are others."""
    return _is_mindformers(data) and data.get("use_legacy") is False


def _is_torchtitan(data: Mapping[str, object]) -> bool:
    return (
        {"training", "model"} <= data.keys()
        and bool({"job", "parallelism", "activation_checkpoint", "lr_scheduler"} & data.keys())
        and all(isinstance(data[key], Mapping) for key in ("training", "model"))
    )


def _is_nemo(data: Mapping[str, object]) -> bool:
    model = data.get("model")
    return "trainer" in data and isinstance(model, Mapping) and bool(_NEMO & model.keys())


def _is_lightning(data: Mapping[str, object]) -> bool:
    trainer, train = data.get("trainer"), data.get("train")
    of_litgpt = isinstance(train, Mapping) and {"global_batch_size", "micro_batch_size"} <= train.keys()
    return of_litgpt or (
        isinstance(trainer, Mapping)
        and bool(
            {"max_steps", "accelerator", "devices", "precision", "max_epochs", "strategy"} & trainer.keys()
        )
    )


def _is_verl(data: Mapping[str, object]) -> bool:
    return "actor_rollout_ref" in data


def _overrides(data: object) -> list[str] | None:
    """Words of Hydra's overrides.yaml: a list of ``key=value``."""
    if not isinstance(data, list) or not data or not all(isinstance(one, str) for one in data):
        return None
    return data if all(HYDRA_WORD.match(one) for one in data) else None


def hydra_words(words: Sequence[tuple[str, str]], *, path: str, kind: str) -> SettingsDocument:
    """Hydra's ``key=value`` words as a document of verl; ``+key`` adds one, ``~key`` takes one away."""
    settings = {}
    for word, place in words:
        found = HYDRA_WORD.match(word)
        if found:
            text = found[2]
            value = tidy(yaml_value(text)) if text.startswith(("[", "{")) else scalar(text.strip("'\""))
            settings[found[1]] = Setting(found[1], value, place)
    data = {key: one.value for key, one in settings.items()}
    kept = {key: one for key, one in settings.items() if one.value is not None}
    return SettingsDocument(dialect="verl", path=path, settings=kept, data=data, kind=kind)


def yaml_value(text: str) -> object:
    """A list or mapping of one word; the text itself where it is none."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _interpolated(value: object, settings: Mapping[str, object], depth: int = 0) -> object:
    """What ``${key}`` and ``${oc.select:key,default}`` stand for in a Hydra configuration."""
    found = _REFERENCE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or depth > _MOST_REFERENCES:
        return value
    other = settings.get(found[1], scalar(found[2]) if found[2] is not None else None)
    return _interpolated(other, settings, depth + 1)


def _is_hf_model(data: Mapping[str, object]) -> bool:
    return "model_type" in data or "architectures" in data


def _is_hf_trainer(data: Mapping[str, object]) -> bool:
    state = {"log_history", "global_step"} <= data.keys()
    return state or bool(_TRAINER & data.keys()) or isinstance(data.get("optim"), str)


def _is_llamafactory(data: Mapping[str, object]) -> bool:
    return "finetuning_type" in data or {"cutoff_len", "template"} <= data.keys()


def _is_swift(data: Mapping[str, object]) -> bool:
    return bool(SWIFT & data.keys()) and "model" in data


def _is_axolotl(data: Mapping[str, object]) -> bool:
    return "base_model" in data and bool({"micro_batch_size", "sequence_len", "adapter"} & data.keys())


def _is_torchtune(data: Mapping[str, object]) -> bool:
    parts = (data.get(key) for key in ("model", "optimizer", "dataset", "tokenizer"))
    return sum(isinstance(part, Mapping) and "_component_" in part for part in parts) >= 2


def _is_megatron(data: Mapping[str, object]) -> bool:
    keys = {key.rpartition(".")[2].replace("-", "_") for key, _ in flat(data)}
    return len(_MEGATRON & keys) >= 2 and bool(_MEGATRON_OWN & keys)


_TESTS: dict[str, Callable[[Mapping[str, object]], bool]] = {
    "pynative": _is_pynative,
    "mindformers_core": _is_mindformers_core,
    "mindformers": _is_mindformers,
    "verl": _is_verl,
    "torchtitan": _is_torchtitan,
    "torchtune": _is_torchtune,
    "llamafactory": _is_llamafactory,
    "swift": _is_swift,
    "axolotl": _is_axolotl,
    "nemo": _is_nemo,
    "lightning": _is_lightning,
    "deepspeed": lambda data: bool(_DEEPSPEED & data.keys()),
    "hf_model": _is_hf_model,
    "hf_trainer": _is_hf_trainer,
    "megatron": _is_megatron,
}


def _what(data: object) -> str:
    if data is None or data == {}:
        return "nothing"
    return f"a list of {len(data)}" if isinstance(data, list) else f"text: {str(data)[:40]!r}"
