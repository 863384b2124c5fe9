"""How modules are set: the plain numbers and words they carry, and a model's own configuration."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

_PLAIN = (bool, int, float, str)
_FRAMEWORKS = ("torch.", "mindspore.", "builtins", "abc", "typing")
_LONGEST = 200
"""characters of a word; a longer one is no setting"""
_MOST_KEYS = 16
_DEEPEST = 3
"""mappings within mappings of a configuration that are read"""


class Settings:
    """Reads settings, for one framework."""

    def __init__(self, dtypes: tuple[type, ...], *, never: frozenset[str], alike: dict[str, str]) -> None:
        """``never``: attributes every module has; ``alike``: other names for what goes by torch's."""
        self._plain = (*_PLAIN, *dtypes)
        self._dtypes = dtypes
        self._never = never
        self._alike = alike
        self._classes: dict[type, dict[str, object]] = {}

    def of_modules(self, modules: Iterable[tuple[str, object]], prefix: str) -> dict[str, dict[str, object]]:
        """Module fqn -> its plain attributes, modules without any left out."""
        found = {}
        for inner, child in modules:
            plain = {
                self._alike.get(name, name): self._plain_value(value)
                for name, value in {**self._of_class(type(child)), **vars(child)}.items()
                if self._is_setting(name, value)
            }
            plain |= self._by_key(vars(child))
            if plain:
                found[".".join(part for part in (prefix, inner) if part)] = plain
        return found

    def _by_key(self, held: Mapping[str, object]) -> dict[str, object]:
        """Plain values that a module keeps under keys, as the scale of each adapter: ``scaling.default``."""
        return {
            f"{name}.{key}": self._plain_value(value)
            for name, values in held.items()
            if isinstance(values, dict) and len(values) <= _MOST_KEYS and self._is_setting(name, None)
            for key, value in values.items()
            if isinstance(key, str) and value is not None and self._is_setting(key, value)
        }

    def _of_class(self, kind: type) -> dict[str, object]:
        """Attributes that a program's class gives all its modules, and that a module may override."""
        if kind not in self._classes:
            own = [one for one in reversed(kind.__mro__) if not one.__module__.startswith(_FRAMEWORKS)]
            self._classes[kind] = {name: value for one in own for name, value in vars(one).items()}
        return self._classes[kind]

    def of_configuration(self, module: object) -> dict[str, object]:
        """The configuration object of a model that has one (``model.config``), as plain values."""
        config = getattr(module, "config", None)
        to_dict = getattr(config, "to_dict", None)
        values = to_dict() if callable(to_dict) else getattr(config, "__dict__", {})
        return self._nested(values, _DEEPEST)

    def _nested(self, values: Mapping[str, object], deepest: int) -> dict[str, object]:
        """Settings of a configuration: mappings in it (``rope_parameters``) and what is None belong to it."""
        found: dict[str, object] = {}
        for key, value in list(values.items()):
            name = str(key)
            if isinstance(value, Mapping):
                inner = self._nested(value, deepest - 1) if deepest and not name.startswith("_") else {}
                if inner:
                    found[name] = inner
            elif self._is_setting(name, value):
                found[name] = self._plain_value(value)
        return found

    def _is_setting(self, name: str, value: object) -> bool:
        if name.startswith("_") or name in self._never:
            return False
        if value is None:  # a soft cap that is off, against one of 20.0
            return True
        if isinstance(value, str):  # where a file lies is another place on every machine
            return len(value) <= _LONGEST and not os.path.isabs(value)
        if isinstance(value, (tuple, list)):
            return len(value) <= 16 and all(isinstance(item, _PLAIN) for item in value)
        return isinstance(value, self._plain)

    def _plain_value(self, value: object) -> object:
        if isinstance(value, self._dtypes):
            return str(value).removeprefix("torch.").lower()
        if isinstance(value, float) and value - value != 0:
            return str(value)
        return list(value) if isinstance(value, tuple) else value
