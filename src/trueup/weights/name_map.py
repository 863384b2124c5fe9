"""Naming maps: what each family of models calls its weights (maps/*.yaml, docs/weights.md).

Every map says which plain weights (``layers.3.attention.q.weight``) each of its weights holds, so that any
family converts to any other. In a pattern ``{layer}`` and ``{expert}`` stand for a number, ``{part}`` for
``weight`` or ``bias``, ``{path}`` and ``{rest}`` for anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator

from trueup.errors import ConfigError
from trueup.weights.layouts import Layout

_FOR = {"layer": r"\d+", "expert": r"\d+", "part": "weight|bias", "path": ".+", "rest": ".+"}
_WRAPPERS = frozenset(
    {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}
)
"""components that wrappers put into names"""


class NameRule(BaseModel):
    """One weight of a family.

    Attributes:
        name: pattern of its name, as written.
        also: other names it is read under.
        parts: patterns of the plain weights it holds, in order.
        layout: how it holds them (``layouts.LAYOUTS``).
        heads: of ``interleaved_rotary``: query or key heads.
        gated_by: of ``concat`` of two: the weight behind it; where that has as many columns as this has rows,
            there is no gate and this is the last part alone.
        unless: not written where this plain weight is there.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    also: tuple[str, ...] = ()
    parts: tuple[str, ...] = Field(alias="is")
    layout: Layout = "same"
    heads: Literal["query", "key"] = "query"
    gated_by: str | None = None
    unless: str | None = None

    @field_validator("parts", mode="before")
    @classmethod
    def _as_list(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    extends: str | None = None
    versions: str = ""
    ignored: tuple[str, ...] = ()
    weights: tuple[NameRule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NameMap:
    """The rules of one family; ``ignored`` are buffers that a model computes itself. ``versions`` says which
    programs it is of, where others keep other layouts under its names."""

    name: str
    title: str
    rules: tuple[NameRule, ...]
    ignored: tuple[str, ...]
    versions: str = ""

    def rule_of(self, name: str) -> tuple[NameRule, dict[str, str]] | None:
        """The rule a weight is read by and what its placeholders stand for, or None."""
        for rule in self.rules:
            for pattern in (rule.name, *rule.also):
                if (found := matched(pattern, name)) is not None:
                    return rule, found
        return None

    def plain_of(self, name: str) -> tuple[str, ...]:
        """The plain weights that a stored one holds, the same for all its spellings; none where no rule reads
        it."""
        found = self.rule_of(unwrapped(name))
        return () if found is None else tuple(filled(part, found[1]) for part in found[0].parts)

    def ignores(self, name: str) -> bool:
        """Whether it is a buffer that need not be converted."""
        return any(matched(pattern, name) is not None for pattern in self.ignored)


@cache
def family_names() -> tuple[str, ...]:
    """Every family there is a map of."""
    files = (resources.files("trueup.weights") / "maps").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


@cache
def name_map(family: str) -> NameMap:
    """The map of one family.

    Raises:
        ConfigError: there is none of that name.

    Example:
        >>> name_map("megatron").rule_of("output_layer.weight")[0].parts
        ('output.weight',)
    """
    if family not in family_names():
        raise ConfigError(f"no naming map {family!r}; there is {', '.join(family_names())}, mindspore, torch")
    path = resources.files("trueup.weights") / "maps" / f"{family}.yaml"
    file = _File.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    base = name_map(file.extends) if file.extends else None
    return NameMap(
        name=file.name,
        title=file.title,
        rules=_overridden(file.weights, base.rules if base else ()),
        ignored=file.ignored + (base.ignored if base else ()),
        versions=file.versions,
    )


@cache
def of_same_names(family: str) -> tuple[str, ...]:
    """Families whose names are those of ``family`` and whose layouts are not, ``family`` first; it alone
    where there is no other.

    Example:
        >>> of_same_names("mindformers-llama-fused")
        ('mindformers-llama-fused', 'mindformers-llama-fused-1.4')
    """
    own = {rule.name for rule in name_map(family).rules}
    others = (other for other in family_names() if other != family)
    return (family, *(other for other in others if {rule.name for rule in name_map(other).rules} == own))


def _overridden(rules: tuple[NameRule, ...], base: tuple[NameRule, ...]) -> tuple[NameRule, ...]:
    """New rules first, then those of the base, replaced by the own rule of their name."""
    own = {rule.name: rule for rule in rules}
    based = {rule.name for rule in base}
    return (*(rule for rule in rules if rule.name not in based), *(own.get(rule.name, rule) for rule in base))


@lru_cache(maxsize=4096)
def _regex(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", pattern)
    return re.compile(
        "".join(f"(?P<{part}>{_FOR[part]})" if at % 2 else re.escape(part) for at, part in enumerate(parts))
    )


def matched(pattern: str, name: str) -> dict[str, str] | None:
    """What the placeholders of ``pattern`` stand for in ``name``, or None where it does not fit.

    Example:
        >>> matched("h.{layer}.ln_1.{part}", "h.7.ln_1.bias")
        {'layer': '7', 'part': 'bias'}
    """
    found = _regex(pattern).fullmatch(name)
    return None if found is None else found.groupdict()


def filled(pattern: str, values: dict[str, str]) -> str:
    """``pattern`` with its placeholders put in."""
    return pattern.format_map(values)


def unwrapped(name: str) -> str:
    """``name`` without what wrappers (DDP, FSDP, compile) put into it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)
