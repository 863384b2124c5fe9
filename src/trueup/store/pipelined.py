"""Microbatches of a pipeline: several forwards run before their backwards, and how many the schedule says.

Capture counts a microbatch where a forward follows a backward, so that one schedule's step has one of four
forwards and another's has three. What goes through one backward is one microbatch under any schedule.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from trueup.store.passes import BackwardPass, backward_passes, runs_ahead
from trueup.store.reader import StepTables
from trueup.types.arrays import Ints


class MicrobatchNumbers(NamedTuple):
    """The microbatch of each call and of each record of one side."""

    calls: Ints
    records: Ints


def by_backward(
    target: StepTables, reference: StepTables
) -> tuple[MicrobatchNumbers, MicrobatchNumbers] | None:
    """Microbatches of both sides by their backwards; None where no side runs a forward ahead, or where the
    two have other numbers of backwards."""
    both = target, reference
    if not any(map(runs_ahead, both)):
        return None
    passes = [backward_passes(tables) for tables in both]
    if not passes[0] or len(passes[0]) != len(passes[1]):
        return None
    return _numbers(target, passes[0]), _numbers(reference, passes[1])


def _numbers(tables: StepTables, passes: tuple[BackwardPass, ...]) -> MicrobatchNumbers:
    """Microbatches in the order of their forwards. What belongs to no backward goes with the forward before
    it. Of a weight's records only the gradients that a backward leaves belong to one; sums are numbered as
    they were made."""
    ordered = sorted(passes, key=lambda one: min(one.through))
    of_call = {call: number for number, one in enumerate(ordered) for call in _calls(one)}
    parent = tables.calls["parent"].fill_null(-1).to_numpy()
    calls: Ints = np.zeros(len(parent), np.int64)
    forwards = {call: number for number, one in enumerate(ordered) for call in one.through}
    latest = 0
    for call in range(len(parent)):
        latest = forwards.get(call, latest)
        calls[call] = calls[parent[call]] if parent[call] >= 0 else of_call.get(call, latest)
    is_weight = (tables.calls["kind"].cast(pl.String) == "parameter").to_numpy()
    calls[is_weight] = 0
    of_record = tables.records["call"].fill_null(-1).to_numpy()
    records: Ints = np.where(of_record >= 0, calls[of_record], 0)
    phase, slot = (tables.records[name].cast(pl.String) for name in ("phase", "slot"))
    for name, numbered in (("local", ordered), ("accumulated", passes)):
        chosen = ((phase == "param_grad") & (slot == name)).to_numpy()
        for number, one in enumerate(numbered):
            part = slice(one.begin, one.end)
            records[part][chosen[part]] = number
    return MicrobatchNumbers(calls, records)


def _calls(one: BackwardPass) -> tuple[int, ...]:
    return (*one.through, *one.losses, *one.exchanged)
