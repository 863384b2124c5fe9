"""A configuration reduced to a first, deterministic reproduction, written in its own dialect."""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from trueup.checklist.configuration import Configuration, configured
from trueup.checklist.dialect import dialects, writes
from trueup.checklist.expression import Unset, items_of, parsed
from trueup.checklist.fields import NotAValue, canonical, fields, same, yaml_of
from trueup.checklist.judging import applies
from trueup.checklist.readers import read_side
from trueup.checklist.rules import rules
from trueup.checklist.settings import Setting, SettingsDocument, Undecided
from trueup.checklist.writing import changed, file_name, writable, written
from trueup.errors import ConfigError

ENVIRONMENT = "environment.sh"
_DEVICES = "num_devices"
_A_LAYER_EACH = frozenset(
    {
        *("moe_layer_freq", "window_attn_skip_freq", "linear_attention_freq", "no_rope_freq"),
        *("layer_types", "mlp_layer_types", "no_rope_layers", "attn_type_list"),
    }
)
"""keys whose value may be a list with one item a layer"""
_A_LETTER_EACH = frozenset({"hybrid_layer_pattern", "hybrid_override_pattern"})
"""of Megatron: text with a letter a layer"""
_WRITTEN_ANYWAY = frozenset({"seed", "deterministic"})
"""fields that are written though the side has no key of them; any other key may be one that the program does
not know"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One field brought to the value of a first reproduction."""

    field: str
    before: object
    after: object
    document: int
    """index of the document that sets it"""
    keys: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One written configuration: what it has that the one before had not."""

    name: str
    files: tuple[Path, ...]
    adds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """What was written, and what could not be."""

    rungs: tuple[Rung, ...]
    changes: tuple[FieldChange, ...]
    environment: Path
    unreachable: tuple[str, ...]
    """fields that this dialect cannot set as wanted: sentences"""

    def to_json(self) -> dict[str, object]:
        """As one JSON document."""
        return {
            "files": [str(path) for rung in self.rungs for path in rung.files],
            "rungs": [
                {"name": r.name, "files": list(map(str, r.files)), "adds": list(r.adds)} for r in self.rungs
            ],
            "environment": str(self.environment),
            "changes": [
                {"field": c.field, "before": c.before, "after": c.after, "keys": c.keys} for c in self.changes
            ],
            "unreachable": list(self.unreachable),
        }


def prepared(
    documents: Sequence[SettingsDocument], output: Path, *, shared: Mapping[str, object] | None = None
) -> Reduced:
    """Write the reduced configuration and its environment into ``output``.

    Two layers, constant learning rate, no warmup, no dropout, Adam's eps 1e-8, every other randomness and
    parallel feature off, a fixed seed, deterministic kernels: rules/*.yaml, where a rule has ``reproduce``.
    ``shared`` are values that both sides of a pair get, by field.

    Raises:
        ConfigError: none of the documents can be written.
    """
    changes, wanted = reduction(documents, shared or {})
    fitted = [*changes, *on_devices(1, documents)]
    rung = write_rung("reduced", documents, fitted, output, adds=(), without=deterministic_names(documents))
    environment = write_environment(documents, output)
    return Reduced(
        rungs=(rung,),
        changes=tuple(changes),
        environment=environment,
        unreachable=not_reached(documents, wanted, rung),
    )


def reduction(
    documents: Sequence[SettingsDocument], shared: Mapping[str, object]
) -> tuple[list[FieldChange], dict[str, object]]:
    """The changes to a first reproduction, and every field's wanted value; ``shared`` values go first.

    Raises:
        ConfigError: none of the documents can be written.
    """
    if not any(map(writable, documents)):
        names = ", ".join(document.path for document in documents)
        raise ConfigError(
            f"{names}: what is reduced must be a configuration or a command, not {documents[0].kind}"
        )
    side = configured(documents)
    changes: list[FieldChange] = []
    wanted: dict[str, object] = {}
    values = {
        rule.field: _wanted(rule.reproduce, rule.field, side) if applies(rule.when, side) else None
        for file in rules().values()
        for rule in file
        if rule.reproduce
    }
    for field, after in (values | dict(shared)).items():
        value = side.values.get(field)
        if after is None or (value is None and not _is_stated(field, after, documents)):
            continue
        wanted[field] = after
        if value is not None and same(value.value, after):
            continue
        found = [_change(field, side, after, i, d) for i, d in enumerate(documents) if writable(d)]
        changes += _where_it_is_set([change for change in found if change], side, field, documents)
    return [_with_lists(change, side, documents) for change in changes], wanted


def _with_lists(
    change: FieldChange, side: Configuration, documents: Sequence[SettingsDocument]
) -> FieldChange:
    """Fewer layers also shorten the lists that have one item a layer, which a framework counts."""
    if change.field != "num_layers" or not isinstance(change.after, int):
        return change
    document, whole = documents[change.document], side.values[change.field].whole
    cut: dict[str, object] = {}
    for key, setting in document.settings.items():
        if key.rpartition(".")[2] in _A_LAYER_EACH and len(items := items_of(setting.value)) == whole:
            first = items[: change.after]
            spelled = f"([{','.join(map(str, first))}])"  # as Megatron's parser has it: no blanks
            cut[key] = spelled if document.dialect == "megatron" else first
        if key in _A_LETTER_EACH and isinstance(setting.value, str):
            cut[key] = setting.value.partition("/")[0].replace("|", "")[: change.after]
    return replace(change, keys={**change.keys, **cut})


def _is_stated(field: str, after: object, documents: Sequence[SettingsDocument]) -> bool:
    """Whether a field without a value is to be written: always, or as the side has a key of it that changes.

    A warmup as a share of steps that only the data set tells is such a field.
    """
    made = ((d, writes(dialects()[d.dialect], d, field, after) or {}) for d in documents if writable(d))
    found = (
        (d.settings[key].value, new) for d, keys in made for key, new in keys.items() if key in d.settings
    )
    return field in _WRITTEN_ANYWAY or any(old is not None and old != new for old, new in found)


def _wanted(expression: str, field: str, side: Configuration) -> object:
    try:
        return canonical(parsed(expression).evaluate(side), fields().spec(field))
    except (Unset, NotAValue, ConfigError):
        return None


def _change(
    field: str, side: Configuration, wanted: object, index: int, document: SettingsDocument
) -> FieldChange | None:
    keys = writes(dialects()[document.dialect], document, field, wanted)
    value = side.values.get(field)
    if not keys:
        return None
    return FieldChange(
        field=field, before=None if value is None else value.value, after=wanted, document=index, keys=keys
    )


def _where_it_is_set(
    made: list[FieldChange], side: Configuration, field: str, documents: Sequence[SettingsDocument]
) -> list[FieldChange]:
    """In the documents that set the field; where none does, in the first that can."""
    value = side.values.get(field)
    places = {setting.place for setting in value.settings} if value is not None else set()
    setting = [
        change
        for change in made
        if any(
            s.place in places
            for key in change.keys
            for s in [documents[change.document].settings.get(key)]
            if s
        )
    ]
    return setting or made[:1]


def on_devices(number: int, documents: Sequence[SettingsDocument]) -> list[FieldChange]:
    """What a framework is told so that it starts on so many devices, where it has a word for that."""
    found = (
        (at, writes(dialects()[d.dialect], d, _DEVICES, number))
        for at, d in enumerate(documents)
        if writable(d) and "1" in dialects()[d.dialect].write.get(_DEVICES, {})
    )
    return [
        FieldChange(field=_DEVICES, before=None, after=number, document=at, keys=keys)
        for at, keys in found
        if keys
    ]


def write_rung(
    name: str,
    documents: Sequence[SettingsDocument],
    changes: Iterable[FieldChange],
    folder: Path,
    *,
    adds: tuple[str, ...],
    without: Container[str] = (),
) -> Rung:
    """Write every document with its changes into ``folder``, without the variables of environment.sh."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    by_document: dict[int, dict[str, object]] = {}
    for change in changes:
        by_document.setdefault(change.document, {}).update(change.keys)
    for index, document in enumerate(documents):
        if not writable(document):
            continue
        keys = by_document.get(index, {})
        if keys:
            extra = dialects()[document.dialect].prepare
            keys = {
                **{k: v for k, v in extra.items() if k in document.settings or k in document.data},
                **keys,
            }
        data = changed(document, keys)
        remarks = [f"{name}: {document.path}, written by trueup check"]
        path = folder / file_name(document)
        path.write_text(written(document, data, remarks=remarks, without=without), encoding="utf-8")
        files.append(path)
    return Rung(name=name, files=tuple(files), adds=adds)


def not_reached(
    documents: Sequence[SettingsDocument], wanted: Mapping[str, object], rung: Rung
) -> tuple[str, ...]:
    """Fields that, read back from what was written, are not as wanted: what is left to do by hand."""
    kept = [document for document in documents if not writable(document)]
    again = configured([*read_side([str(path) for path in rung.files]), *kept]).values
    advice = {rule.field: rule.advice or rule.why for file in rules().values() for rule in file if rule.field}
    return tuple(
        f"{field} stays {again[field].value}, expected {after}: {advice[field]}"
        for field, after in wanted.items()
        if field in again and not same(again[field].value, after)
    )


def write_environment(documents: Sequence[SettingsDocument], output: Path) -> Path:
    """Write the variables of a deterministic run, and all others of the side, as lines to source."""
    groups, names = _groups(documents), deterministic_names(documents)
    own = {
        key: setting
        for document in documents
        if document.kind == "environment"
        for key, setting in document.settings.items()
        if _is_variable(key, setting) and key not in names
    }
    lines = ["# the environment of a deterministic reproduction; source it before the training command"]
    lines += [f"export {key}={shlex.quote(str(setting.value))}" for key, setting in own.items()]
    lines += [_export(line) for group in groups for line in _content()[group]]
    if "ascend" not in groups:
        lines += ["# on Ascend, as well:", *(f"# {_export(line)}" for line in _content()["ascend"])]
    lines.append(
        "# generators and kernels, in the script: trueup seed-all; from outside: trueup capture --seed 1234"
    )
    path = output / ENVIRONMENT
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def deterministic_names(documents: Sequence[SettingsDocument]) -> frozenset[str]:
    """The variables environment.sh sets for a deterministic run of this side."""
    return frozenset(line["name"] for group in _groups(documents) for line in _content()[group])


def _groups(documents: Sequence[SettingsDocument]) -> list[str]:
    side = configured(documents)
    framework, device = side.values.get("framework"), side.values.get("device")
    mindspore = framework is not None and framework.value == "mindspore"
    return ["any", "ascend"] if mindspore or (device and device.value == "npu") else ["any", "cuda"]


def _content() -> Mapping[str, list[Mapping[str, str]]]:
    return cast("Mapping[str, list[Mapping[str, str]]]", yaml_of("reproduction.yaml"))


def _is_variable(key: str, setting: Setting) -> bool:
    """A variable, and no version of a package."""
    return key.isupper() and not isinstance(setting.value, Undecided)


def _export(line: Mapping[str, str]) -> str:
    return f"export {line['name']}={shlex.quote(line['value'])}  # {line['why']}"
