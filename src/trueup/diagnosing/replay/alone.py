"""Differences of rounding size that one module shows and its like do not.

A coarse dtype hides a missing upcast: what it changes is no larger than one rounding. But whatever changes
rounding innocently, another device, thread count, library or kernel, changes it in every module of a kind;
where one differs and most others come out bit for bit the same, its own code is another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from trueup.comparing.alone import least_rounding
from trueup.diagnosing.replay.judge import Difference
from trueup.diagnosing.replay.step import ReplayedStep
from trueup.matching.names import like

MOST_SCORE = 10.0
_PASSES = ("forward", "backward")


def lone_ones(
    step: ReplayedStep, found: list[Difference], owner_of: Callable[[Difference], str]
) -> list[Difference]:
    """The same differences, those charged that stand alone among their owners' like; ``peers`` says how many
    of its like agree."""
    differing: dict[str, set[str]] = defaultdict(set)
    for one in (one for one in found if one.phase in _PASSES):
        differing[like(owner_of(one))].add(owner_of(one))
    peers = _peers(step)
    judged = []
    for one in found:
        apart = differing[like(owner_of(one))]
        same = peers.get(like(owner_of(one)), set()) - apart
        if len(same) > len(apart - same) and one.score <= 1 and _is_a_rounding(step, one):
            one = replace(one, score=min(1.0 + len(same), MOST_SCORE), peers=len(same))
        judged.append(one)
    return judged


def _peers(step: ReplayedStep) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for number in step.planned_calls:
        call = step.calls[number]
        if call.kind == "module":
            found[like(call.name)].add(call.name)
    return found


def _is_a_rounding(step: ReplayedStep, one: Difference) -> bool:
    roundoff = step.roundoff(one.record)
    if one.phase not in _PASSES or one.measured or roundoff is None or one.rel_l2 is None:
        return False
    return one.rel_l2 >= least_rounding(roundoff)
