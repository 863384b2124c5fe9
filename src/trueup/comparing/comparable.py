"""Whether two traces are worth comparing at all, and what is to be known about them first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trueup.comparing.rows import StepRows
from trueup.comparing.thresholds import MODEL_FEWEST, MODEL_SHAPES, MODEL_SHARE
from trueup.errors import NothingCompared
from trueup.matching.tree import TreeSide, Words
from trueup.store import TraceSource
from trueup.types.codes import NoteCode
from trueup.types.reason import Reason, given, reason
from trueup.types.trace import RankFacts

_MOST_LISTED = 8
_MOST_LIMITS = 4
_COMPARED_FACTS = (
    "framework",
    "framework_version",
    "level",
    "task",
    "world_size",
    "num_threads",
    "seed",
    "deterministic",
)
"""facts of a manifest whose difference is noted"""


def refuse_different_models(rows: StepRows, target: Path, reference: Path) -> None:
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
    if min(sizes) >= MODEL_FEWEST and paired < MODEL_SHARE * min(sizes):
        raise NothingCompared(
            f"the traces are of different models: of {sizes[0]} module and parameter calls in {target} "
            f"({_root(rows, match.target)}) and {sizes[1]} in {reference} "
            f"({_root(rows, match.reference)}) only {paired} "
            "have a counterpart. Compare two runs of one model."
        )
    weights = rows.paired & rows.phase_is("param", "param_grad", "optimizer")
    known = weights & (rows.target.shape >= 0) & (rows.reference.shape >= 0)
    apart = known & (rows.target.shape != rows.reference.shape) & (rows.layout < 0)
    if known.sum() >= MODEL_FEWEST and apart.sum() > MODEL_SHAPES * known.sum():
        row = int(np.flatnonzero(apart)[0])
        name = words.name[match.target.name[rows.target.call[row]]]
        shapes = [list(words.shape[half.shape[row]]) for half in (rows.target, rows.reference)]
        raise NothingCompared(
            f"the traces are of different models: {int(apart.sum())} of {int(known.sum())} weights "
            "have another shape, such as "
            f"{name}: {shapes[0]} in {target}, {shapes[1]} in {reference}. Compare two runs of one model."
        )


def _named(side: TreeSide, words: Words) -> NDArray[np.bool_]:
    """Modules and parameters that have a name; the root, which any two models share, has none."""
    kinds = np.array([word in ("module", "parameter") for word in words.kind] + [False])
    names = np.array([word != "" for word in words.name] + [False])
    return np.asarray(kinds[side.kind] & names[side.plain])


def _root(rows: StepRows, side: TreeSide) -> str:
    words = rows.match.words
    roots = np.flatnonzero((side.parent < 0) & (side.type >= 0))
    return words.type[side.type[roots[0]]] if len(roots) else "no module"


def traces_noted(target: TraceSource, reference: TraceSource) -> list[Reason]:
    """Notes about differences between the two captures that a reader should know."""
    notes = [*_missing("target", target), *_missing("reference", reference)]
    run_id = target.manifest.get("run_id")
    if run_id is not None and run_id == reference.manifest.get("run_id"):
        notes.append(reason(NoteCode.ONE_RUN))
    for name in _COMPARED_FACTS:
        values = target.manifest.get(name), reference.manifest.get(name)
        if values[0] != values[1] and None not in values:
            one, other = (value if type(value) is int else str(value) for value in values)
            notes.append(reason(NoteCode.MANIFESTS_DIFFER, name=name, target=one, reference=other))
    for side, trace in (("target", target), ("reference", reference)):
        ranks = {rank for held in trace.steps().values() for rank in held}
        for rank in sorted(ranks)[:1]:
            notes += _of_capture(side, trace.rank_facts(rank))
    return notes


def _of_capture(side: str, facts: RankFacts) -> Iterator[Reason]:
    """What capture says of itself, in its own words."""
    if facts.get("num_failures"):
        yield reason(NoteCode.CAPTURE_FAILED, side=side, failures=int(facts["num_failures"]))
    if facts.get("stood_aside"):
        yield reason(NoteCode.CAPTURE_DISABLED, given(str(facts["stood_aside"])), side=side)
    for limit in (facts.get("limits") or [])[:_MOST_LIMITS]:
        yield reason(NoteCode.CAPTURE_LIMIT, given(str(limit)), side=side)


def _missing(side: str, trace: TraceSource) -> list[Reason]:
    """What a trace should hold and does not; of many ranks the first few, and a count."""
    ranks = sorted({rank for held in trace.steps().values() for rank in held})
    missing = list(dict.fromkeys(sentence for rank in ranks for sentence in trace.missing(rank)))
    notes = [reason(NoteCode.MISSING, given(sentence), side=side) for sentence in missing[:_MOST_LISTED]]
    if len(missing) > _MOST_LISTED:
        number = len(missing) - _MOST_LISTED
        notes.append(reason(NoteCode.MORE_MISSING, side=side, number=number, path=str(trace.path)))
    return notes
