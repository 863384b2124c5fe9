"""Models that are evaluated beside the one that trains: a teacher, a reference model.

A microbatch begins with a training forward. One program asks its teacher before it, another after it, a third
for all microbatches of a step at once: the calls then stand in other microbatches, or in other steps. Where
calls of one model that stand in one place were given other bits, and the bits of one are those that the other
run gave elsewhere, or one of them comes before a loss and the other after all of the step, its calls belong
together by what they were given.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
import polars as pl

from trueup.matching.codes import Codes, integers
from trueup.store import StepTables


class _Call(NamedTuple):
    number: int
    given: frozenset[int]
    """digests"""
    is_last: bool
    """no loss of the step comes after it"""


def microbatches(target: StepTables, reference: StepTables) -> tuple[Codes, Codes]:
    """The microbatch of each call on both sides. Evaluations that belong together by what they were given
    have a number of their own, below 0; so has each that the other run does not make in this step."""
    recorded = integers(target.calls["microbatch"]), integers(reference.calls["microbatch"])
    models = _evaluated(target), _evaluated(reference)
    moved: tuple[dict[int, int], dict[int, int]] = ({}, {})
    number = -1
    for name in models[0].keys() & models[1].keys():
        sides = models[0][name], models[1][name]
        if not _are_crossed(sides[0], sides[1], recorded):
            continue
        for given in dict.fromkeys(one.given for side in sides for one in side):
            calls = [[one.number for one in side if one.given == given] for side in sides]
            for place in range(max(map(len, calls))):
                number -= 1
                for side, own in enumerate(calls):
                    moved[side].update(dict.fromkeys(own[place : place + 1], number))
    return tuple(  # type: ignore[return-value]
        _moved(tables, microbatch, calls)
        for tables, microbatch, calls in zip((target, reference), recorded, moved, strict=True)
    )


def _are_crossed(target: list[_Call], reference: list[_Call], recorded: tuple[Codes, Codes]) -> bool:
    """Whether calls in one place were given other bits, and those of one the other run gives elsewhere, or
    one alone may serve a loss of the step."""
    places: tuple[dict[tuple[int, int], _Call], ...] = ({}, {})
    for held, side, microbatch in zip(places, (target, reference), recorded, strict=True):
        for call in side:
            at = int(microbatch[call.number])
            held[at, sum(one == at for one, _ in held)] = call
    known = [{call.given for call in side.values()} for side in places]
    pairs = [(call, places[1][at]) for at, call in places[0].items() if at in places[1]]
    return any(
        own.given != other.given
        and (own.given in known[1] or other.given in known[0] or own.is_last != other.is_last)
        for own, other in pairs
    )


def _evaluated(tables: StepTables) -> dict[str, list[_Call]]:
    """Outermost calls in evaluation by their names."""
    calls = tables.calls
    outer = (calls["kind"].cast(pl.String) == "module").to_numpy() & calls["parent"].is_null().to_numpy()
    outer &= (calls["mode"].cast(pl.String) == "eval").to_numpy()
    if not outer.any():
        return {}
    given: dict[int, set[int]] = {call: set() for call in np.flatnonzero(outer).tolist()}
    digests = tables.summaries["digest"].to_list()
    chosen = tables.records.filter(
        pl.col("phase").cast(pl.String) == "forward",
        pl.col("slot").cast(pl.String).str.starts_with("input"),
        pl.col("call").is_in(list(given)),
        pl.col("summary").is_not_null(),
    )
    for call, summary in chosen.select("call", "summary").iter_rows():
        if digests[summary] is not None:
            given[call].add(digests[summary])
    names = calls["name"].cast(pl.String).to_list()
    losses = np.flatnonzero((calls["kind"].cast(pl.String) == "loss").to_numpy())
    last = int(losses.max(initial=-1))
    found: dict[str, list[_Call]] = defaultdict(list)
    for call, held in given.items():
        if held:
            found[names[call]].append(_Call(call, frozenset(held), call > last))
    return found


def _moved(tables: StepTables, recorded: Codes, calls: dict[int, int]) -> Codes:
    """With the calls of these, and all inside, under another number."""
    if not calls:
        return recorded
    found: Codes = np.array(recorded)
    parent = integers(tables.calls["parent"])
    for call in range(len(found)):
        found[call] = calls.get(call, found[parent[call]] if parent[call] >= 0 else found[call])
    return found
