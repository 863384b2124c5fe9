"""msprobe's mapping files as pairs of modules and calls: data, cell, layer and API mapping, of the target and
the reference.

Which call a numbered name is (``Functional.linear.4.forward.input.0``) the steps that are matched tell, so
what a file says is kept as it is written, and resolved there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import polars as pl

from trueup.capture.call_names import call_name
from trueup.errors import ConfigError
from trueup.store import StepTables

_FULL = re.compile(r"(?P<name>.+)\.(?:(?:forward|backward)(?P<number>\.\d+)?|parameters_grad)(?:\..*)?")
"""a call, and of it a tensor: ``Cell.relu.ReLU.forward.0.input.0``, ``Torch.abs.3.backward.output.1``"""
_MODULE = re.compile(r"(?:Module|Cell)\.(?P<path>.+)\.[^.]+")
_ROOTS = ("Cell", "Module")
"""what a layer mapping calls the place of the outermost layers"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MsprobePairs:
    """What a mapping file says."""

    modules: Mapping[str, str] = field(default_factory=dict)
    calls: Mapping[str, str] = field(default_factory=dict)
    """numbered functions: ``Functional.linear.4``"""
    layers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """class of a module -> its children's names -> those of the reference"""
    functions: tuple[tuple[str, str], ...] = ()
    """``Functional.abs``: all calls, in order"""


def read_msprobe_pairs(held: object) -> MsprobePairs | None:
    """The pairs of a mapping file of msprobe; None of anything else."""
    if isinstance(held, list):
        return _functions(held)
    if not isinstance(held, dict) or not held or "version" in held:
        return None
    if "ms_api" in held:
        return _functions([held])
    if _are_layers(held):
        return MsprobePairs(layers={str(name): children for name, children in held.items()})
    return _named(held) if _are_names(held) else None


def _are_layers(held: Mapping[object, object]) -> bool:
    """Whether each key is a class, and each value names of children."""
    are_classes = all(str(name)[:1].isupper() for name in held)
    return are_classes and all(isinstance(one, dict) and _are_names(one) for one in held.values())


def _named(held: Mapping[str, str]) -> MsprobePairs | None:
    """Of calls with numbers, or of modules with their classes."""
    names = [name for pair in held.items() for name in pair]
    full = [_FULL.fullmatch(name) is not None for name in names]
    if all(full):
        return _numbered(held)
    if any(full) or not all("." in name for name in names):
        return None
    return MsprobePairs(modules={_without_class(one): _without_class(other) for one, other in held.items()})


def _are_names(held: Mapping[object, object]) -> bool:
    return all(isinstance(one, str) and isinstance(other, str) for one, other in held.items())


def _functions(items: list[object]) -> MsprobePairs | None:
    pairs = [
        (str(one["ms_api"]), str(one["pt_api"]))
        for one in items
        if isinstance(one, dict) and {"ms_api", "pt_api"} <= one.keys()
    ]
    return MsprobePairs(functions=tuple(pairs)) if pairs and len(pairs) == len(items) else None


def _numbered(held: Mapping[str, str]) -> MsprobePairs:
    modules, calls = {}, {}
    for one, other in held.items():
        names = [found["name"] for text in (one, other) if (found := _FULL.fullmatch(text))]
        paths = [found["path"] for name in names if (found := _MODULE.fullmatch(name))]
        if len(paths) == len(names):
            modules[paths[0]] = paths[1]
        else:
            calls[names[0]] = names[1]
    return MsprobePairs(modules=modules, calls=calls)


def _without_class(name: str) -> str:
    return name.removeprefix("Cell.").removeprefix("Module.").rpartition(".")[0]


def resolved(
    pairs: MsprobePairs, tables: tuple[StepTables, StepTables], path: Path | None
) -> tuple[dict[str, str], dict[str, str]]:
    """Modules, and sites of calls, that ``pairs`` names, of the target with those of the reference.

    Raises:
        ConfigError: a name that the step of its side does not have; the nearest is told.
    """
    target, reference = (_Names.of(one) for one in tables)
    modules = {
        _there(one, target.modules, "target", path): _there(other, reference.modules, "reference", path)
        for one, other in pairs.modules.items()
    }
    modules = {**_by_layers(pairs.layers, target, reference), **modules}
    calls = {
        target.sites[_there(one, target.sites, "target", path)]: reference.sites[
            _there(other, reference.sites, "reference", path)
        ]
        for one, other in pairs.calls.items()
    }
    for one, other in pairs.functions:
        own, others = target.of_function(one), reference.of_function(other)
        calls |= dict(zip(own, others, strict=True)) if len(own) == len(others) else {}
    return modules, calls


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """The calls of one step, by msprobe's names."""

    modules: Mapping[str, str]
    """path -> class"""
    sites: Mapping[str, str]
    """numbered function -> its site in a trace"""

    @classmethod
    def of(cls, tables: StepTables) -> _Names:
        """Of a step's table of calls."""
        modules: dict[str, str] = {}
        sites: dict[str, str] = {}
        numbers: Counter[str] = Counter()
        columns = ("call", "parent", "kind", "name", "type", "ordinal")
        rows = tables.calls.sort("call").select(
            pl.col(one).cast(pl.String) if one in ("kind", "name", "type") else one for one in columns
        )
        names = dict(zip(rows["call"].to_list(), rows["name"].to_list(), strict=True))
        for row in rows.iter_rows(named=True):
            if row["kind"] == "module":
                modules.setdefault(row["name"] or "", row["type"] or "")
            elif row["kind"] == "api":
                bases = {
                    call_name("api", row["name"], None, 0, framework).base
                    for framework in ("torch", "mindspore")
                }
                ordinal = f"[{row['ordinal']}]" if row["ordinal"] else ""
                owner = "" if row["parent"] is None else f"{names[row['parent']] or '(root)'} · "
                for base in bases:
                    sites[f"{base}.{numbers[row['name']]}"] = f"{owner}{row['name']}{ordinal}"
                numbers[row["name"]] += 1
        return cls(modules=modules, sites=sites)

    def of_function(self, name: str) -> list[str]:
        """Sites of all calls of a function, in order."""
        return list(dict.fromkeys(s for one, s in self.sites.items() if one.rpartition(".")[0] == name))


def _by_layers(layers: Mapping[str, Mapping[str, str]], target: _Names, reference: _Names) -> dict[str, str]:
    """Modules whose path changes where each child is called as the class of its parent says."""
    found = {}
    for path in target.modules:
        words, other = path.split("."), []
        for depth, word in enumerate(words):
            parent = target.modules.get(".".join(words[:depth]), "")
            classes = (parent, *_ROOTS) if not depth else (parent,)
            renamed = next((layers[one][word] for one in classes if word in layers.get(one, {})), word)
            other.append(renamed)
        changed = ".".join(other)
        if changed != path and changed in reference.modules:
            found[path] = changed
    return found


def _there(name: str, known: Mapping[str, str], side: str, path: Path | None) -> str:
    if name in known:
        return name
    nearest = get_close_matches(name, known, 1)
    meant = f"; did you mean {nearest[0]}?" if nearest else ""
    raise ConfigError(f"--map {path}: the {side} has no {name!r} in this step{meant}")
