"""Names brought to a common form: wrapper prefixes left out, functions reduced to a family."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from trueup.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRules:
    """Content of rules/names.yaml."""

    wrapper_components: frozenset[str]
    wrapper_roots: frozenset[str]
    family_of: dict[str, str]


@lru_cache(maxsize=1)
def name_rules() -> NameRules:
    """The rules that come with trueup.

    Raises:
        ConfigError: the file was edited into something else than lists of words.
    """
    import yaml

    source = files("trueup.matching") / "rules" / "names.yaml"
    content = yaml.load(
        source.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    try:
        family_of = {word: family[0] for family in content["families"] for word in family}
        return NameRules(
            wrapper_components=frozenset(content["wrapper_components"]),
            wrapper_roots=frozenset(content["wrapper_roots"]),
            family_of=family_of,
        )
    except (KeyError, TypeError, IndexError) as error:
        raise ConfigError(
            f"{source}: expected the lists wrapper_components, wrapper_roots and families"
        ) from error


def family(function: str) -> str:
    """The family of a function name.

    Example:
        >>> family("torch.Tensor.__add__") == family("torch.add")
        True
    """
    short = function.rsplit(".", 1)[-1].strip("_") or function
    known = name_rules().family_of
    if short in known or short.islower():
        return known.get(short, short)
    plain = short.lower().removesuffix("ext")  # a primitive of MindSpore: MatMul, AddExt
    return known.get(plain, plain)


def common_wrappers(names: list[str]) -> int:
    """How many leading components of every name are a wrapper's (DDP's ``module``); the empty name does not
    count."""
    roots = name_rules().wrapper_roots
    split = [name.split(".") for name in names if name]
    depth = 0
    while split and all(len(parts) > depth and parts[depth] in roots for parts in split):
        if len({parts[depth] for parts in split}) > 1:
            break
        depth += 1
    return depth


def normalised(name: str, *, leading: int) -> str:
    """A module or parameter name without what wrappers added.

    Example:
        >>> normalised("module._orig_mod.layers.0.weight", leading=1)
        'layers.0.weight'
    """
    wrappers = name_rules().wrapper_components
    return ".".join(part for part in name.split(".")[leading:] if part not in wrappers)


def relative(name: str, parent: str) -> str:
    """``name`` as seen from the module ``parent``; unchanged where it does not lie below it."""
    return name[len(parent) + 1 :] if parent and name.startswith(parent + ".") else name


def like(name: str) -> str:
    """What a module has in common with its like in other layers: numbers become stars.

    Example:
        >>> like("layers.3.ln1")
        'layers.*.ln1'
    """
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
