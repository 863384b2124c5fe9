"""One framework's words for the canonical fields: dialects/*.yaml, and a document read with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from importlib.resources import files
from typing import cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trueup.checklist.expression import Expression, Unset, parsed
from trueup.checklist.fields import NotAValue, canonical, fields, yaml_of
from trueup.checklist.settings import Setting, SettingsDocument, Undecided, member
from trueup.errors import ConfigError

_INDEXED = re.compile(r"(.+)\[(\d+)\]$")


class ValueOrigin(Enum):
    """Where a value comes from."""

    SET = "set"
    DERIVED = "derived"
    DEFAULT = "default"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalValue:
    """A canonical value of one side: where it comes from, and the settings that say so."""

    value: object
    origin: ValueOrigin
    settings: tuple[Setting, ...] = ()
    says: str = ""
    """for a default the framework and version, for a derived value how, for a fixed one why"""

    @property
    def whole(self) -> int:
        """Of a field of kind int."""
        return int(cast(int, self.value))


class Dialect(BaseModel):
    """One file of dialects/: see docs/check.md for the form."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    version: str = ""
    framework: str = ""
    leaves: bool = False
    """keys are also known by their last part alone, as in plain and Lightning files"""
    roots: dict[str, list[str]] = Field(default_factory=dict)
    """short names of the mappings keys lie in, with where they are looked for: ``m: [model.model_config]``"""
    defaults: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """what the framework takes for a key nobody sets, as expressions"""
    fields: dict[str, str] = Field(default_factory=dict)
    not_configurable: dict[str, str] = Field(default_factory=dict)
    follows: dict[str, str] = Field(default_factory=dict)
    """what a field that is not configurable follows, as an expression over canonical fields"""
    fixed: dict[str, str] = Field(default_factory=dict)
    """why a field whose expression reads no key has its value"""
    write: dict[str, dict[str, dict[str, object]]] = Field(default_factory=dict)
    """field -> canonical value (or ``*``) -> keys to set; ``$`` is the value, null takes a key away, a key
    behind ``?`` is set only where it is there"""
    prepare: dict[str, object] = Field(default_factory=dict)
    """keys of the dialect beside canonical fields that a first reproduction wants"""
    cautions: dict[str, str] = Field(default_factory=dict)
    """condition over the document -> what a reader of the result must know"""
    unread: str = ""
    """a pattern of keys that say nothing of the mathematics: paths, logging, saving"""

    def default_words(self) -> str:
        """``Megatron-LM core 0.12``."""
        return f"{self.title} {self.version}".strip()

    def places(self, name: str) -> list[str]:
        """The keys of a document a name of the dialect's expressions may stand for."""
        root, _, rest = name.partition(".")
        if root not in self.roots:
            return [name]
        return [f"{place}.{rest}" if place else rest for place in self.roots[root]]

    def keys_of(self, name: str) -> list[str]:
        """The keys a field is, where it is one key and no computation."""
        plain = parsed(self.fields[name]).plain_keys if name in self.fields else ()
        return [place for key in plain for place in self.places(key)]


@lru_cache(maxsize=1)
def dialects() -> dict[str, Dialect]:
    """Every dialect by its name.

    Raises:
        ConfigError: a file was edited into another form, or names a field there is not.
    """
    found: dict[str, Dialect] = {}
    known = fields().all
    usual = {name: f"first({', '.join([name, *spec.names.split()])})" for name, spec in known.items()}
    for source in sorted((files("trueup.checklist") / "dialects").iterdir(), key=lambda item: item.name):
        if not source.name.endswith(".yaml"):
            continue
        try:
            dialect = Dialect.model_validate(_whole(source.name))
        except ValidationError as error:
            raise ConfigError(f"checklist/dialects/{source.name}: {error}") from error
        named = [*dialect.fields, *dialect.not_configurable, *dialect.follows, *dialect.fixed]
        named += dialect.write
        if wrong := [name for name in named if name not in known]:
            raise ConfigError(
                f"checklist/dialects/{source.name}: no such canonical field: {', '.join(wrong)}"
            )
        for text in (
            *dialect.defaults.values(),
            *dialect.fields.values(),
            *dialect.cautions,
            *dialect.follows.values(),
        ):
            parsed(str(text))
        if not dialect.fields:
            dialect = dialect.model_copy(update={"fields": usual})
        found[source.name.removesuffix(".yaml")] = dialect
    return found


def _whole(name: str) -> dict[str, object]:
    """One file of dialects/; where it ``extends`` another, that one with what this one says otherwise.

    Keys of mappings are laid over those of the other file; a null takes one away.
    """
    own = dict(cast("Mapping[str, object]", yaml_of(f"dialects/{name}")))
    base = own.pop("extends", None)
    if base is None:
        return own
    whole = _whole(f"{base}.yaml")
    for key, value in own.items():
        held = whole.get(key)
        if isinstance(value, Mapping) and isinstance(held, Mapping):
            both = {**held, **value}
            whole[key] = {name: text for name, text in both.items() if text is not None}
        else:
            whole[key] = value
    return whole


@dataclass(slots=True)
class _Reading:
    """A document as the scope of its dialect's expressions; notes what was read."""

    document: SettingsDocument
    dialect: Dialect
    leaves: Mapping[str, Setting] = field(default_factory=dict)
    read: list[Setting] = field(default_factory=list)
    """also those that were only asked for"""
    valued: set[Setting] = field(default_factory=set)
    """whose value was taken"""
    defaulted: list[str] = field(default_factory=list)
    resolving: set[str] = field(default_factory=set)

    def value(self, name: str) -> object:
        setting = self._setting(name)
        if setting is not None:
            self.read.append(setting)
            self.valued.add(setting)
            if isinstance(setting.value, Undecided):
                raise ConfigError(setting.value.why)
            return member(setting.value)
        if name in self.dialect.defaults and name not in self.resolving:
            self.defaulted.append(name)
            return self._default(name)
        raise Unset(name)

    def given(self, name: str) -> bool:
        setting = self._setting(name)
        if setting is not None:
            self.read.append(setting)
        return setting is not None

    def mark(self) -> int:
        return len(self.read)

    def back(self, mark: int) -> None:
        del self.read[mark:]

    def _setting(self, name: str) -> Setting | None:
        for place in self.dialect.places(elements(name)[0]):
            setting = self.document.settings.get(place) or self.leaves.get(place)
            if setting is not None and setting.value is not None and setting.value != "":
                return setting
        return None

    def _default(self, name: str) -> object:
        """What the framework takes; settings it reads for that are not a choice of this key."""
        kept = list(self.read)
        self.resolving.add(name)
        try:
            return parsed(str(self.dialect.defaults[name])).evaluate(self)
        finally:
            self.resolving.discard(name)
            self.read = kept


@dataclass(frozen=True, slots=True)
class Translation:
    """A document in canonical fields."""

    document: SettingsDocument
    dialect: Dialect
    values: Mapping[str, CanonicalValue]
    unreadable: Mapping[str, str]
    """fields whose settings are no value: why"""
    used: frozenset[str]
    """keys some field read"""
    notes: tuple[str, ...] = ()

    def unread(self) -> list[str]:
        """Keys that were set and that no canonical field speaks of."""
        pattern = re.compile(self.dialect.unread) if self.dialect.unread else None
        spoken = self.used | {
            elements(place)[0]
            for text in (*self.dialect.fields.values(), *self.dialect.defaults.values())
            for name in parsed(str(text)).names
            for place in self.dialect.places(name)
        }
        return [
            key
            for key in self.document.settings
            if key not in spoken and not (pattern and pattern.search(key))
        ]


def translated(document: SettingsDocument) -> Translation:
    """Every canonical field the document sets, or its framework's defaults give."""
    dialect = dialects()[document.dialect]
    leaves = _leaves(document) if dialect.leaves else {}
    values: dict[str, CanonicalValue] = {}
    unreadable: dict[str, str] = {}
    used: set[str] = set()
    for name, text in dialect.fields.items():
        reading = _Reading(document, dialect, leaves)
        value = unreadable_why = None
        try:
            value = _value(name, parsed(text), reading)
        except Unset:
            pass
        except (NotAValue, ConfigError) as error:
            unreadable_why = str(error)
        used |= {setting.key for setting in reading.read}
        if value is not None:
            values[name] = value
        elif unreadable_why:
            where = ", ".join(dict.fromkeys(s.place for s in reading.read))
            unreadable[name] = f"{unreadable_why} ({where})" if where else unreadable_why
    notes = [
        f"{document.path}: {caution}" for text, caution in dialect.cautions.items() if _holds(text, document)
    ]
    return Translation(document, dialect, values, unreadable, frozenset(used), tuple(notes))


def _holds(condition: str, document: SettingsDocument) -> bool:
    try:
        return bool(parsed(condition).evaluate(_Reading(document, dialects()[document.dialect])))
    except Unset:
        return False


def _value(name: str, expression: Expression, reading: _Reading) -> CanonicalValue | None:
    raw = expression.evaluate(reading)
    if raw is None:
        return None
    value = canonical(raw, fields().spec(name))
    settings = tuple(sorted(dict.fromkeys(reading.read), key=lambda one: one not in reading.valued))
    if settings:
        return CanonicalValue(value=value, origin=ValueOrigin.SET, settings=settings)
    if reading.defaulted or expression.names:
        return CanonicalValue(value=value, origin=ValueOrigin.DEFAULT, says=reading.dialect.default_words())
    return CanonicalValue(value=value, origin=ValueOrigin.FIXED, says=reading.dialect.fixed.get(name, ""))


def _leaves(document: SettingsDocument) -> dict[str, Setting]:
    """Settings by their last part, where only one has it."""
    found: dict[str, Setting | None] = {}
    for key, setting in document.settings.items():
        leaf = key.rpartition(".")[2].lower().replace("-", "_")
        found[leaf] = None if leaf in found and found[leaf] != setting else setting
    return {leaf: setting for leaf, setting in found.items() if setting is not None}


def writes(
    dialect: Dialect, document: SettingsDocument, name: str, value: object
) -> dict[str, object] | None:
    """Keys to set (None takes one away) so that the field has this value; None where that cannot be."""
    if name in dialect.write:
        table = dialect.write[name]
        chosen = table.get(_spelled(value), table.get("*"))
        if chosen is None:
            return None
        ways = [key for key, text in chosen.items() if text == "$"]
        there = [key for key in ways if elements(key.removeprefix("?"))[0] in document.settings]
        used = there or _nearest([key for key in ways if not key.startswith("?")], document)
        kept = {key: text for key, text in chosen.items() if key not in ways or key in used}
        return {key.removeprefix("?"): _filled(text, value) for key, text in kept.items()}
    keys = _there(dialect, document, name)
    return {keys[0]: value} if keys else None


def _nearest(ways: list[str], document: SettingsDocument) -> list[str]:
    """The first key whose mapping the document has; else the last, which needs none of its own."""
    for key in ways:
        into = key.rpartition(".")[0]
        if into and any(name.startswith(f"{into}.") for name in document.settings):
            return [key]
    return ways[-1:]


def _filled(template: object, value: object) -> object:
    """The template with the value in the place of ``$``."""
    if isinstance(template, dict):
        return {key: _filled(text, value) for key, text in template.items()}
    if template == "$":
        return value
    return template.replace("$", str(value)) if isinstance(template, str) else template


def how_to_set(dialect: Dialect, document: SettingsDocument, name: str) -> str:
    """The keys a person changes for this field, or nothing."""
    if name in dialect.write:
        table = dialect.write[name].values()
        keys = list(dict.fromkeys(key.removeprefix("?") for keys in table for key in keys))
    elif name in dialect.fields:
        names = parsed(dialect.fields[name]).names
        keys = _there(dialect, document, name)[:1] or [dialect.places(key)[0] for key in names]
    else:
        return ""
    return ", ".join(_shown(key, document.kind) for key in keys)


def _there(dialect: Dialect, document: SettingsDocument, name: str) -> list[str]:
    """The keys of a plain field: those the document has, or all."""
    keys = dialect.keys_of(name)
    return [key for key in keys if elements(key)[0] in document.settings] or keys


def _shown(key: str, kind: str) -> str:
    return f"--{key.replace('_', '-')}" if kind in ("shell", "log", "checkpoint") else key


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def elements(key: str) -> tuple[str, int | None]:
    """A key and the element of its list that is meant: ``("optimizer.betas", 1)``."""
    found = _INDEXED.match(key)
    return (found.group(1), int(found.group(2))) if found else (key, None)
