"""Runs a loop of training as reference, free and replayed, in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import polars as pl

import trueup
from trueup.diagnosing.replay.plan import Plan, build_plan
from trueup.store import Trace

Loop = Callable[[], Any]


def capture(folder: Path, loop: Loop, *, level: str = "L0", **options: Any) -> Trace:
    """The loop captured, step 0 unless told otherwise."""
    with trueup.Tracer(folder, **{"level": level, "steps": "0", **options}):
        loop()
    trace = Trace(folder)
    assert trace.rank_facts(0)["num_failures"] == 0, trace.rank_facts(0)["failures"]
    return trace


def replay(
    folder: Path,
    reference: Loop,
    target: Loop,
    *,
    level: str = "L0",
    inside: Collection[str] = (),
    steps: str = "0",
    **options: Any,
) -> tuple[Trace, Trace, Plan]:
    """(replay, reference, plan); traces go below ``folder``, the replay's plan into the replay's folder.
    ``options``: of the target's own capture."""
    known = folder / "reference"
    if not known.exists():
        capture(known, reference, level=level, task="tensor", steps=steps)
    free = capture(folder / "free", target, level=level, steps=steps, **options)
    plan = build_plan(
        free,
        Trace(known),
        folder / "replay" / "plan",
        level=level,
        inside=inside,
        steps=set(Trace(known).steps()),
    )
    made = capture(folder / "replay", target, level=level, steps=steps, replay=str(plan.folder))
    return made, Trace(known), plan


def sites(trace: Trace, step: int = 0, rank: int = 0) -> pl.DataFrame:
    """The table of what was forced, with the names of the calls."""
    forced = trace.forced(step, rank)
    return forced.join(trace.read(step, rank).calls.select("call", "kind", "name", "mode"), on="call")


def states(trace: Trace, step: int = 0, rank: int = 0) -> dict[str, int]:
    """How many rows are in which state; free ones under their reason."""
    rows = trace.forced(step, rank)
    return dict(Counter(reason or state for state, reason in rows.select("state", "reason").iter_rows()))
