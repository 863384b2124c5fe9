"""The backward passes of a step: what each of them went through, and what it left.

A pipeline runs several forwards before their backwards, and the schedule may run these in any order.
Gradients of a module stand with its call. Losses, the gradients of weights that each pass left, and what was
exchanged for it stand in the order in which they were made: which forward they belong to, the pass tells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from trueup.store.reader import StepTables
from trueup.types.arrays import Array, Bools, Ints

_NAMES = ("module", "loss", "collective")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardPass:
    """One backward; records are numbered as in the table."""

    through: frozenset[int]
    """outermost module calls"""
    begin: int
    end: int
    """records from ``begin`` until before ``end``: the loss, gradients, and what is accumulated afterwards"""
    losses: tuple[int, ...]
    """calls"""
    exchanged: tuple[int, ...]
    """collective calls that were given, or gave, a gradient of these module calls"""


def runs_ahead(tables: StepTables) -> bool:
    """Whether two training forwards ran before a backward."""
    microbatch = tables.calls["microbatch"].fill_null(0).to_numpy()[_forwards(tables)]
    return len(np.unique(microbatch)) < len(microbatch)


def backward_passes(tables: StepTables) -> tuple[BackwardPass, ...]:
    """As they ran; none where it cannot be told.

    A pass ends with the gradients of weights that are accumulated after it. No two went through one call.
    """
    calls, records = tables.calls, tables.records
    if not {"phase", "slot", "call"} <= set(records.columns):
        return ()
    kind, parent = calls["kind"].cast(pl.String), calls["parent"].fill_null(-1).to_numpy()
    of_kind = {name: (kind == name).to_numpy() for name in _NAMES}
    outermost = _forwards(tables)
    call = records["call"].to_numpy()
    phase, slot = (records[name].cast(pl.String) for name in ("phase", "slot"))
    ends = _ends(((phase == "param_grad") & (slot == "accumulated")).to_numpy())
    if len(ends) < 2:
        return ()
    backward = (phase == "backward").to_numpy()
    top = _tops(parent)[call]
    begins = [0, *ends[:-1]]
    parts = [range(begin, end) for begin, end in zip(begins, ends, strict=True)]
    through = [
        frozenset(top[part][backward[part] & outermost[top[part]]].tolist()) for part in map(_slice, parts)
    ]
    if not all(through) or len(frozenset().union(*through)) < sum(map(len, through)):
        return ()
    gradients = [_contents(tables, _slice(part), backward[_slice(part)]) for part in parts]
    exchanged = _exchanged(tables, call, of_kind["collective"], gradients)
    return tuple(
        BackwardPass(
            through=through[at],
            begin=part.start,
            end=part.stop,
            losses=tuple(dict.fromkeys(c for c in call[_slice(part)].tolist() if of_kind["loss"][c])),
            exchanged=exchanged[at],
        )
        for at, part in enumerate(parts)
    )


def _forwards(tables: StepTables) -> Bools:
    """Outermost calls of modules in training."""
    calls = tables.calls
    of_module = (calls["kind"].cast(pl.String) == "module").to_numpy()
    in_training = (calls["mode"].cast(pl.String) == "train").to_numpy()
    found: Bools = of_module & calls["parent"].is_null().to_numpy() & in_training
    return found


def _slice(part: range) -> slice:
    return slice(part.start, part.stop)


def _ends(accumulated: Array) -> list[int]:
    """Behind the last record of each run of accumulated gradients."""
    last = accumulated & ~np.append(accumulated[1:], False)
    found: list[int] = (np.flatnonzero(last) + 1).tolist()
    return found


def _tops(parent: Ints) -> Ints:
    """The outermost call around each; callers stand before what they call."""
    top = np.arange(len(parent))
    for at in np.flatnonzero(parent >= 0).tolist():
        top[at] = top[parent[at]]
    return top


def _contents(tables: StepTables, part: slice, chosen: Array) -> set[int]:
    """Digests of the chosen records."""
    summaries = tables.records["summary"][part].filter(pl.Series(chosen)).drop_nulls()
    return set(tables.summaries["digest"].gather(summaries.to_list()).drop_nulls().to_list())


def _exchanged(
    tables: StepTables, call: Array, is_collective: Array, gradients: list[set[int]]
) -> list[tuple[int, ...]]:
    """Collective calls by the pass whose gradient they hold; those that hold one of several by none."""
    found: list[dict[int, None]] = [{} for _ in gradients]
    rows = np.flatnonzero(is_collective[call])
    summaries = tables.records["summary"].gather(rows.tolist()).to_list()
    digests = tables.summaries["digest"].to_list()
    for row, summary in zip(rows.tolist(), summaries, strict=True):
        if summary is None or digests[summary] is None:
            continue
        of = [at for at, held in enumerate(gradients) if digests[summary] in held]
        if len(of) == 1:
            found[of[0]][int(call[row])] = None
    return [tuple(sorted(one)) for one in found]
