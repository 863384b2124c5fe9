"""What a module or weight is, from its name, where its model family is one that rules/families.yaml knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from trueup.errors import ConfigError
from trueup.matching.thresholds import LEAST_SHARE

_NUMBER = r"(\d+)"


@dataclass(frozen=True, slots=True)
class Common:
    """A common name, ``layers.3.attention``, and the parts of it that are fused, ``("query", "key")``."""

    name: str
    parts: tuple[str, ...] = ()

    @property
    def wholes(self) -> tuple[str, ...]:
        """The common names of what it holds: itself, or each fused part."""
        return tuple(f"{self.name}.{part}" for part in self.parts) or (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Patterns of one family with the common name of each."""

    name: str
    patterns: tuple[tuple[re.Pattern[str], str], ...]

    def common(self, module: str) -> Common | None:
        """What a module is; None where the family has no such name."""
        for pattern, wanted in self.patterns:
            found = pattern.fullmatch(module)
            if found:
                return _filled(wanted, found.groups())
        return None


@lru_cache(maxsize=1)
def _rules() -> tuple[tuple[Family, ...], Mapping[str, str]]:
    """The families and the common spelling of weights.

    Raises:
        ConfigError: the file was edited into another form.
    """
    import yaml

    source = files("trueup.matching") / "rules" / "families.yaml"
    content = yaml.load(
        source.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    try:
        found = tuple(
            Family(name=name, patterns=tuple((_pattern(left), right) for left, right in rules.items()))
            for name, rules in content["families"].items()
        )
        return found, {word: common for common, words in content["weights"].items() for word in words}
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{source}: expected the mappings `weights` and `families`") from error


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\{i\}", _NUMBER).replace(r"\{e\}", _NUMBER))


def _filled(wanted: str, numbers: tuple[str, ...]) -> Common:
    for place, number in zip(("{i}", "{e}"), numbers, strict=False):
        wanted = wanted.replace(place, number)
    name, _, parts = wanted.rstrip("]").partition("[")
    return Common(name, tuple(parts.split(",")) if parts else ())


def family_of(modules: Iterable[str]) -> Family | None:
    """The family most of these modules' names belong to; None where none has enough of them.

    Example:
        >>> family_of(["tok_embeddings", "layers.0.attention.wq", "norm"]).name
        'torchtitan'
    """
    names = {name for name in modules if name}
    if not names:
        return None
    families, _ = _rules()
    counts = [sum(f.common(name) is not None for name in names) for f in families]
    best = max(range(len(counts)), key=counts.__getitem__)
    return families[best] if counts[best] >= LEAST_SHARE * len(names) else None


def weight_kind(name: str) -> str:
    """``weight``, ``bias`` or any other last component of a weight's name.

    Example:
        >>> weight_kind("layers.0.norm.gamma")
        'weight'
    """
    last = name.rpartition(".")[2]
    return _rules()[1].get(last, last)


def common_weights(names: Iterable[str]) -> dict[str, Common]:
    """For weights of a known family, the common name of each and of its fused parts."""
    names = list(names)
    family = family_of(name.rpartition(".")[0] for name in names)
    if family is None:
        return {}
    out = {}
    for name in names:
        common = family.common(name.rpartition(".")[0])
        if common is not None:
            out[name] = common
    return out
