"""Models that are evaluated for a training forward of another model, before it or after: a teacher, a
reference model. A microbatch begins with the training forward, so that one that is asked before is recorded
in the microbatch before, or the step before. It belongs to the forward that is given the same.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from trueup.matching.codes import Codes, integers
from trueup.store import StepTables


def microbatches(target: StepTables, reference: StepTables) -> tuple[Codes, Codes]:
    """The microbatch of each call on both sides: of evaluations that are given what the next training forward
    is given, that one's. As recorded where both runs ask alike."""
    recorded = integers(target.calls["microbatch"]), integers(reference.calls["microbatch"])
    early = _asked_early(target), _asked_early(reference)
    if len(early[0]) == len(early[1]):
        return recorded
    return _moved(target, recorded[0], early[0]), _moved(reference, recorded[1], early[1])


def _asked_early(tables: StepTables) -> list[int]:
    """Outermost calls in evaluation before a training forward that is given a tensor of the same content, but
    not after one that is."""
    calls = tables.calls
    outer = (calls["kind"].cast(pl.String) == "module").to_numpy() & calls["parent"].is_null().to_numpy()
    mode = calls["mode"].cast(pl.String).to_list()
    if not outer.any() or "eval" not in mode:
        return []
    given = _given(tables, np.flatnonzero(outer))
    found: list[int] = []
    before: set[int] = set()
    waiting: list[int] = []
    for call in np.flatnonzero(outer).tolist():
        if mode[call] == "train":
            found += [one for one in waiting if given[one] & given[call]]
            before, waiting = given[call], []
        elif not given[call] & before:
            waiting.append(call)
    return found


def _given(tables: StepTables, calls: Codes) -> dict[int, set[int]]:
    """Digests of what each of these calls was given."""
    digests = tables.summaries["digest"].to_list()
    found: dict[int, set[int]] = {call: set() for call in calls.tolist()}
    chosen = tables.records.filter(
        pl.col("phase").cast(pl.String) == "forward",
        pl.col("slot").cast(pl.String).str.starts_with("input"),
        pl.col("call").is_in(list(found)),
        pl.col("summary").is_not_null(),
    )
    for call, summary in chosen.select("call", "summary").iter_rows():
        if digests[summary] is not None:
            found[call].add(digests[summary])
    return found


def _moved(tables: StepTables, recorded: Codes, early: list[int]) -> Codes:
    """With the calls of these, and all inside, a microbatch later."""
    later = np.zeros(len(recorded), bool)
    later[early] = True
    parent = integers(tables.calls["parent"])
    for call in np.flatnonzero(parent >= 0).tolist():
        later[call] = later[parent[call]]
    return recorded + later
