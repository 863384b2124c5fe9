"""What is known of two implementations as wholes before any step is paired: weights and modules.

Only where names do not already match: two runs of one program, or of one model under a few other names, never
come here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl

from trueup.errors import ConfigError
from trueup.matching.across.outputs import by_outputs
from trueup.matching.mapping import NamePairs
from trueup.matching.modules import ModulePairs, pair_modules
from trueup.matching.msprobe_maps import resolved
from trueup.matching.regrouped import are_regrouped
from trueup.matching.step import match_step
from trueup.matching.weights import Atom, InferredWeights, StepWeights, WeightTable, infer
from trueup.matching.weights.places import by_neighbours
from trueup.store import StepTables, TraceSource, step_view


@dataclass(frozen=True, slots=True)
class PieceOf:
    """Elements ``start`` to ``stop`` of a flattened weight."""

    weight: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """Weights and modules of the target with those of the reference."""

    weights: InferredWeights
    modules: ModulePairs
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """of the reference's weights"""
    target_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    calls: Mapping[str, str | None] = field(default_factory=dict)
    """sites of calls a person paired"""
    map_path: Path | None = None
    """the file in which a person paired them"""
    uneven: frozenset[str] = frozenset()
    """target weights of another size than their one counterpart"""
    pieces: tuple[Mapping[str, PieceOf], Mapping[str, PieceOf]] = field(default_factory=lambda: ({}, {}))
    """of either side: what an optimizer holds that is a part of a weight"""

    def padded(self, atom: Atom) -> bool:
        """Whether one of the two holds padding besides."""
        return atom.targets[0] in self.uneven


def build_bridge(
    target: TraceSource | None,
    reference: TraceSource | None,
    tables: tuple[StepTables, StepTables],
    *,
    rank: int = 0,
    reference_rank: int = 0,
    given: NamePairs | None = None,
) -> Bridge:
    """Weights first, then the modules that hold them.

    Without the traces only names and what the tables say of the weights count.
    """
    first = (
        StepWeights(target, rank=rank, tables=tables[0] if target is None else None),
        StepWeights(reference, rank=reference_rank, tables=tables[1] if reference is None else None),
    )
    given = _with_names_of(given, tables)
    _check_weights(given, *first)
    weights = infer(*first, given=None if given is None else given.weights)
    here, there = ((_modules(t), _sizes(w)) for t, w in zip(tables, first, strict=True))
    given_modules = None if given is None else given.modules
    returned = _returned(tables[0]), _returned(tables[1])
    for more in (list(by_outputs(*first, weights, tables)), by_neighbours(*first, weights)):
        for entry, how in more:
            weights.take(entry, how)
    modules = pair_modules(weights.atoms, here, there, given_modules, returned)
    shapes = {name: first[1].facts(name).shape for name in first[1].names()}
    return Bridge(
        weights=weights,
        modules=modules,
        shapes=shapes,
        target_shapes={name: first[0].facts(name).shape for name in first[0].names()},
        calls={} if given is None else given.calls,
        map_path=None if given is None else given.path,
        uneven=frozenset(_uneven(weights, *first)),
        pieces=(_pieces(target, rank), _pieces(reference, reference_rank)),
    )


def bridge_between(
    target: TraceSource,
    reference: TraceSource,
    steps: tuple[int, int],
    ranks: tuple[int, int],
    given: NamePairs | None = None,
) -> Bridge | None:
    """What is known of two implementations; None where names alone pair them and none are given."""
    tables = step_view(target, steps[0], ranks[0]).tables, step_view(reference, steps[1], ranks[1]).tables
    if given is None:
        match = match_step(*tables)
        if match.bridge is None and not are_regrouped(match, (target, reference), tables, ranks):
            return None
    return build_bridge(target, reference, tables, rank=ranks[0], reference_rank=ranks[1], given=given)


def _with_names_of(given: NamePairs | None, tables: tuple[StepTables, StepTables]) -> NamePairs | None:
    """With what msprobe's names are in this step."""
    if given is None or given.msprobe is None:
        return given
    modules, calls = resolved(given.msprobe, tables, given.path)
    return replace(given, modules={**modules, **given.modules}, calls={**calls, **given.calls})


def _pieces(trace: TraceSource | None, rank: int) -> dict[str, PieceOf]:
    """By the names the optimizers of one rank have for them."""
    optimizers = [] if trace is None else trace.rank_facts(rank).get("optimizers") or []
    return {
        name: PieceOf(weight=piece["name"], start=piece["flat"][0], stop=piece["flat"][1])
        for optimizer in optimizers
        for name, piece in (optimizer.get("pieces") or {}).items()
    }


def _check_weights(given: NamePairs | None, target: WeightTable, reference: WeightTable) -> None:
    """Every weight a person pairs is there.

    Raises:
        ConfigError: one is not.
    """
    if given is None:
        return
    sides = (("target", target, given.weights), ("reference", reference, chain(*given.weights.values())))
    for side, table, named in sides:
        known = frozenset(table.names())
        for name in named:
            if name not in known:
                nearest = get_close_matches(name, known, 1)
                meant = f"; did you mean {nearest[0]}?" if nearest else ""
                raise ConfigError(f"--map {given.path}: weights: the {side} has no weight {name}{meant}")


def _uneven(found: InferredWeights, target: WeightTable, source: WeightTable) -> list[str]:
    single = [(a.targets[0], a.sources[0]) for a in found.atoms if len(a.targets) == len(a.sources) == 1]
    return [t for t, s in single if np.prod(target.facts(t).shape) != np.prod(source.facts(s).shape)]


def _modules(tables: StepTables) -> list[str]:
    """Names of called modules, in the order of their first call."""
    called = tables.calls.filter(pl.col("kind") == "module")["name"].cast(pl.String)
    return [name for name in called.unique(maintain_order=True).to_list() if name is not None]


def _returned(tables: StepTables) -> dict[str, frozenset[int]]:
    """Sizes of what each module returns."""
    outputs = tables.records.filter(
        (pl.col("phase").cast(pl.String) == "forward")
        & pl.col("slot").cast(pl.String).str.starts_with("output")
    ).select("call", "summary")
    modules = tables.calls.filter(pl.col("kind").cast(pl.String) == "module")
    sizes = (
        outputs.join(modules.select("call", pl.col("name").cast(pl.String)), on="call")
        .join(tables.summaries.select("summary", "numel"), on="summary")
        .group_by("name")
        .agg(pl.col("numel").unique())
    )
    return {name: frozenset(found) for name, found in sizes.iter_rows()}


def _sizes(weights: WeightTable) -> dict[str, int]:
    facts = {name: weights.facts(name) for name in weights.names()}
    return {n: int(np.prod(f.shape)) for n, f in facts.items() if f.tied_to is None}
