"""Whether two traces are worth comparing at all, and what is to be known about them first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueup.comparing.rows import Rows
from trueup.errors import NothingCompared
from trueup.matching.tree import Side, Words
from trueup.store import TraceSource

_SHARE = 0.2
_FEWEST = 4
_MOST_SAID = 8


def refuse_different_models(rows: Rows, target: Path, reference: Path) -> None:
    """Stop where fewer than a fifth of the modules and parameters have a counterpart, or most weights another
    shape.

    Raises:
        NothingCompared: the traces are of different models; the message names both.
    """
    match, words = rows.match, rows.match.words
    sides = match.target, match.reference
    counted = [_named(side, words) for side in sides]
    sizes = [int(which.sum()) for which in counted]
    paired = int((counted[0] & (match.calls.reference_of >= 0)).sum())
    if min(sizes) >= _FEWEST and paired < _SHARE * min(sizes):
        raise NothingCompared(
            f"the traces are of different models: of {sizes[0]} module and parameter calls in {target} "
            f"({_root(rows, match.target)}) and {sizes[1]} in {reference} "
            f"({_root(rows, match.reference)}) only {paired} "
            "have a counterpart. Compare two runs of one model."
        )
    weights = rows.paired & rows.phase_is("param", "param_grad", "optimizer")
    known = weights & (rows.target.shape >= 0) & (rows.reference.shape >= 0)
    apart = known & (rows.target.shape != rows.reference.shape) & (rows.layout < 0)
    if known.sum() >= _FEWEST and apart.sum() > 0.5 * known.sum():
        row = int(np.flatnonzero(apart)[0])
        name = words.name[match.target.name[rows.target.call[row]]]
        shapes = [list(words.shape[half.shape[row]]) for half in (rows.target, rows.reference)]
        raise NothingCompared(
            f"the traces are of different models: {int(apart.sum())} of {int(known.sum())} weights "
            "have another shape, such as "
            f"{name}: {shapes[0]} in {target}, {shapes[1]} in {reference}. Compare two runs of one model."
        )


def _named(side: Side, words: Words) -> NDArray[np.bool_]:
    """Modules and parameters that have a name; the root, which any two models share, has none."""
    kinds = np.array([word in ("module", "parameter") for word in words.kind] + [False])
    names = np.array([word != "" for word in words.name] + [False])
    return np.asarray(kinds[side.kind] & names[side.plain])


def _root(rows: Rows, side: Side) -> str:
    words = rows.match.words
    roots = np.flatnonzero((side.parent < 0) & (side.type >= 0))
    return words.type[side.type[roots[0]]] if len(roots) else "no module"


def traces_noted(target: TraceSource, reference: TraceSource) -> list[str]:
    """Sentences about differences between the two captures that a reader should know."""
    notes = [*_missing("target", target), *_missing("reference", reference)]
    manifests = target.manifest, reference.manifest
    for key in (
        "framework",
        "framework_version",
        "level",
        "task",
        "world_size",
        "num_threads",
        "seed",
        "deterministic",
    ):
        mine, theirs = (m.get(key) for m in manifests)
        if mine != theirs and not (mine is None or theirs is None):
            notes.append(f"{key}: {_shown(mine)} in the target, {_shown(theirs)} in the reference.")
    for name, trace in (("target", target), ("reference", reference)):
        ranks = {rank for held in trace.steps().values() for rank in held}
        for rank in sorted(ranks)[:1]:
            facts: dict[str, Any] = trace.rank_facts(rank)
            if facts.get("num_failures"):
                notes.append(f"{name}: {facts['num_failures']} failures of capture, see its ranks/ folder.")
            if facts.get("stood_aside"):
                notes.append(f"{name}: capture stood aside before the end: {facts['stood_aside']}.")
            notes += [f"{name}: {limit}" for limit in (facts.get("limits") or [])[:4]]
    return notes


def _missing(name: str, trace: TraceSource) -> list[str]:
    """What a trace should hold and does not; of many ranks the first few sentences, and a count."""
    ranks = sorted({rank for held in trace.steps().values() for rank in held})
    said = list(dict.fromkeys(sentence for rank in ranks for sentence in trace.missing(rank)))
    notes = [f"{name}: {sentence}." for sentence in said[:_MOST_SAID]]
    if len(said) > _MOST_SAID:
        notes.append(f"{name}: {len(said) - _MOST_SAID} more such; trueup inspect {trace.path} lists all.")
    return notes


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
