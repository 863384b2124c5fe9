"""Weights whose content says nothing (norms of ones), by what the modules that own them return.

Two norms beside each other, over queries and over keys, are told apart by neither value, shape nor place
where the two programs give them other names; what they return tells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from trueup.matching.across.flow import NEAR, nearest_by_margin
from trueup.matching.across.tensors import Contents, contents_of, distances
from trueup.matching.families import weight_kind
from trueup.matching.weights.places import Found, one_of
from trueup.matching.weights.table import WeightTable
from trueup.store import StepTables

if TYPE_CHECKING:
    from trueup.matching.weights.infer import InferredWeights

BY_OUTPUT = 0.85
MARGIN = 0.5
"""of two outputs one must be at most half as far as the other, as for any tensor"""
_Owned = tuple[tuple[str, tuple[int, ...], float | None], ...]
"""kind, shape and value of each weight that a module owns itself"""
_Alike = dict[tuple[frozenset[int], _Owned], list[str]]


def by_outputs(
    target: WeightTable, source: WeightTable, found: InferredWeights, tables: tuple[StepTables, StepTables]
) -> Found:
    """Weights of modules alike in shapes and values, beside the same weights, whose first calls return
    tensors that are each other's nearest by a clear margin; and of two modules alike the ones left."""
    atom_t = {name: k for k, atom in enumerate(found.atoms) for name in atom.targets}
    atom_s = {name: k for k, atom in enumerate(found.atoms) for name in atom.sources}
    here = _alike(target, found.left_target, atom_t)
    there = _alike(source, found.left_source, atom_s)
    both = [(names, there[key]) for key, names in here.items() if key in there]
    if not both:
        return
    sides = _Returned(tables[0]), _Returned(tables[1])
    for names, others in both:
        pairs = _nearest(names, others, *sides)
        rest = [set(side) - {pair[at] for pair in pairs} for at, side in enumerate((names, others))]
        if pairs and len(rest[0]) == len(rest[1]) == 1:  # the others are known: one is left on both sides
            pairs.append((rest[0].pop(), rest[1].pop()))
        for one, other in pairs:
            yield from _entries(one, other, target, source, found)


def _alike(table: WeightTable, left: list[str], atoms: Mapping[str, int]) -> _Alike:
    """Modules all of whose own weights are left and of one value each: by what is known in the innermost
    module around them that holds known weights, and by what they own."""
    owned: dict[str, list[str]] = defaultdict(list)
    inside: dict[str, set[int]] = defaultdict(set)
    for name in table.names():
        owned[name.rpartition(".")[0]].append(name)
        for around in _around(name) if name in atoms else ():
            inside[around].add(atoms[name])
    still = set(left)
    out: _Alike = defaultdict(list)
    for module, names in owned.items():
        facts = [table.facts(name) for name in names]
        home = next((one for one in _around(module) if one in inside), None)
        if home is not None and still.issuperset(names) and all(one.uniform is not None for one in facts):
            kinds = sorted((weight_kind(n), f.shape, f.uniform) for n, f in zip(names, facts, strict=True))
            out[frozenset(inside[home]), tuple(kinds)].append(module)
    return out


def _around(name: str) -> Iterator[str]:
    """Modules around it, innermost first, the root last."""
    words = name.split(".")
    return (".".join(words[:at]) for at in range(len(words) - 1, -1, -1))


class _Returned:
    """What each module returns first in its first forward call."""

    def __init__(self, tables: StepTables) -> None:
        self.contents: Contents = contents_of(tables)
        modules = tables.calls.filter(pl.col("kind").cast(pl.String) == "module")
        outputs = tables.records.filter(
            (pl.col("phase").cast(pl.String) == "forward")
            & pl.col("slot").cast(pl.String).str.starts_with("output")
        )
        rows = (
            outputs.select("call", "summary")
            .join(modules.select("call", pl.col("name").cast(pl.String)), on="call", maintain_order="left")
            .drop_nulls()
            .unique("name", keep="first", maintain_order=True)
        )
        at = self.contents.of_summary
        self._of = {name: int(at[summary]) for name, summary in rows.select("name", "summary").iter_rows()}

    def telling(self, modules: list[str]) -> list[str]:
        """Those of which what they return says something, where no other returns the same within rounding."""
        known = [m for m in modules if m in self._of and self.contents.telling[self._of[m]]]
        if not known:
            return []
        far = distances(self.contents, self.at(known), self.contents, self.at(known))
        np.fill_diagonal(far, np.inf)
        are_unique = far.min(axis=1) > self.contents.noise[self.at(known)]
        return [module for module, is_unique in zip(known, are_unique.tolist(), strict=True) if is_unique]

    def at(self, modules: list[str]) -> np.ndarray:
        """Their contents."""
        return np.array([self._of[module] for module in modules], np.int64)


def _nearest(
    names: list[str], others: list[str], target: _Returned, reference: _Returned
) -> list[tuple[str, str]]:
    names, others = target.telling(names), reference.telling(others)
    if not names or not others:
        return []
    far = distances(target.contents, target.at(names), reference.contents, reference.at(others))
    return [(names[i], others[j]) for i, j in nearest_by_margin(far, np.full(len(names), NEAR), MARGIN)]


def _entries(one: str, other: str, target: WeightTable, source: WeightTable, found: InferredWeights) -> Found:
    """The weights of two modules, each with the one of its kind."""
    source_of = {weight_kind(name): name for name in found.left_source if name.rpartition(".")[0] == other}
    for name in [name for name in found.left_target if name.rpartition(".")[0] == one]:
        entry = one_of(name, source_of[weight_kind(name)], target, source, BY_OUTPUT)
        if entry is not None:
            yield entry, "place"
