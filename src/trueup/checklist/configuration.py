"""One side of a check: its documents read together, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from trueup.checklist.dialect import CanonicalValue, Translation, ValueOrigin, how_to_set, translated
from trueup.checklist.expression import Unset, parsed
from trueup.checklist.fields import NotAValue, canonical, fields, same
from trueup.checklist.settings import Setting, SettingsDocument
from trueup.errors import ConfigError

_RANK = {ValueOrigin.SET: 0, ValueOrigin.FIXED: 1, ValueOrigin.DEFAULT: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a side says of its training, in canonical fields."""

    translations: tuple[Translation, ...]
    values: Mapping[str, CanonicalValue]
    unreadable: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def documents(self) -> tuple[SettingsDocument, ...]:
        """The files that were read."""
        return tuple(translation.document for translation in self.translations)

    @property
    def name(self) -> str:
        """The files, as a person gave them."""
        return ", ".join(document.path for document in self.documents)

    def not_configurable(self, name: str) -> str | None:
        """Why this side cannot set the field; None where it can, or no dialect speaks of it."""
        found = (t.dialect.not_configurable.get(name) for t in self.translations)
        return next((reason for reason in found if reason), None)

    def followed(self, name: str) -> object:
        """What a field that this side cannot set is computed as, where its framework says; None elsewhere."""
        if name in self.values:
            return None
        texts = [t.dialect.follows[name] for t in self.translations if name in t.dialect.follows]
        found = [value for text in texts if (value := _followed(text, self, name)) is not None]
        return found[-1] if found else None

    def with_followed(self, name: str) -> Configuration:
        """The same, with what a field that nobody set follows, where a key could set it."""
        value = self.followed(name)
        if value is None or not self.how_to_set(name):
            return self
        says = self.not_configurable(name) or ""
        followed = CanonicalValue(value=value, origin=ValueOrigin.FIXED, says=says)
        return replace(self, values={**self.values, name: followed})

    def how_to_set(self, name: str) -> str:
        """The keys that set the field here, or nothing."""
        found = (how_to_set(t.dialect, t.document, name) for t in self.translations)
        return next((keys for keys in found if keys), "")

    def value(self, name: str) -> object:
        """The scope of conditions: the canonical value. Raises ``Unset``."""
        if name not in self.values:
            raise Unset(name)
        return self.values[name].value

    def given(self, name: str) -> bool:
        """Whether a file sets the field or it follows from what one sets."""
        return name in self.values and self.values[name].origin in (ValueOrigin.SET, ValueOrigin.DERIVED)

    def mark(self) -> int:
        return 0

    def back(self, mark: int) -> None:
        return


def _followed(text: str, side: Configuration, name: str) -> object:
    try:
        return canonical(parsed(text).evaluate(side), fields().spec(name))
    except (Unset, NotAValue, ConfigError):
        return None


@dataclass(slots=True)
class _Deriving:
    """Canonical values while more of them are derived; notes what a derivation read."""

    values: dict[str, CanonicalValue]
    read: list[str] = field(default_factory=list)

    def value(self, name: str) -> object:
        if name not in self.values:
            raise Unset(name)
        self.read.append(name)
        return self.values[name].value

    def given(self, name: str) -> bool:
        return name in self.values and self.values[name].origin in (ValueOrigin.SET, ValueOrigin.DERIVED)

    def mark(self) -> int:
        return len(self.read)

    def back(self, mark: int) -> None:
        del self.read[mark:]


def configured(documents: Iterable[SettingsDocument]) -> Configuration:
    """The documents of one side as one configuration.

    Where two set the same field to different values the first stands, and a note says so.

    Raises:
        ConfigError: there is no document.
    """
    translations = tuple(map(translated, documents))
    if not translations:
        raise ConfigError("no configuration was given")
    notes = [note for t in translations for note in (*t.document.notes, *t.notes)]
    values = _merged(translations, notes)
    unreadable = {name: why for t in translations for name, why in t.unreadable.items() if name not in values}
    _derive(values, unreadable)
    return Configuration(
        translations=translations, values=values, unreadable=unreadable, notes=tuple(dict.fromkeys(notes))
    )


def _merged(translations: Iterable[Translation], notes: list[str]) -> dict[str, CanonicalValue]:
    merged: dict[str, CanonicalValue] = {}
    for translation in translations:
        for name, value in translation.values.items():
            other = merged.get(name)
            if other is None or _RANK[value.origin] < _RANK[other.origin]:
                merged[name] = value
            elif value.origin is ValueOrigin.SET is other.origin and not same(value.value, other.value):
                notes.append(_conflict(name, other, value))
    return {name: merged[name] for name in fields().all if name in merged}


def _conflict(name: str, first: CanonicalValue, second: CanonicalValue) -> str:
    statements = [f"{_where(value.settings)} says {value.value}" for value in (first, second)]
    return f"{name}: {', '.join(statements)}; the first stands"


def _where(settings: tuple[Setting, ...]) -> str:
    return ", ".join(f"{s.key} ({s.place})" for s in settings)


def _derive(values: dict[str, CanonicalValue], unreadable: Mapping[str, str]) -> None:
    """Fill in what follows from other fields, until nothing more does; what could not be read stays open."""
    specs = fields().all
    found = True
    while found:
        found = False
        for name, spec in specs.items():
            if name in values or name in unreadable:
                continue
            for text in spec.derive:
                derived = _derived(text, values, name)
                if derived is not None:
                    values[name], found = derived, True
                    break


def _derived(text: str, values: dict[str, CanonicalValue], name: str) -> CanonicalValue | None:
    scope = _Deriving(values)
    try:
        raw = parsed(text).evaluate(scope)
        value = canonical(raw, fields().spec(name))
    except (Unset, NotAValue, ConfigError):
        return None
    inputs = [values[key] for key in dict.fromkeys(scope.read)]
    settings = tuple(dict.fromkeys(s for v in inputs for s in v.settings))
    if any(v.origin in (ValueOrigin.SET, ValueOrigin.DERIVED) for v in inputs):
        return CanonicalValue(value=value, origin=ValueOrigin.DERIVED, settings=settings, says=text)
    origin = (
        ValueOrigin.DEFAULT if any(v.origin is ValueOrigin.DEFAULT for v in inputs) else ValueOrigin.FIXED
    )
    return CanonicalValue(value=value, origin=origin, says=next((v.says for v in inputs if v.says), text))
