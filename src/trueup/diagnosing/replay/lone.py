"""Differences of rounding size that one module shows and its like do not.

A coarse dtype hides a missing upcast: what it changes is no larger than one rounding. But what changes
rounding innocently, another device, thread count, library or kernel, changes it in every module of a kind;
where one differs and most others come out bit for bit the same, its own code is another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from trueup.comparing.rules.lone_rounding import least_rounding
from trueup.diagnosing.replay.judge import Difference
from trueup.diagnosing.replay.step import ReplayedStep
from trueup.diagnosing.thresholds import LONE_SCORE
from trueup.matching.names import like

_PASSES = ("forward", "backward")


def lone_ones(
    step: ReplayedStep, found: list[Difference], owner_of: Callable[[Difference], str]
) -> list[Difference]:
    """The same differences, those charged that stand alone among their owners' like; ``peers`` says how many
    of its like agree."""
    types = _types(step)
    peers: dict[tuple[str, str | None], set[str]] = defaultdict(set)
    for name in types:
        peers[like(name), types[name]].add(name)
    differing = {owner_of(one) for one in found if one.phase in _PASSES}
    judged = []
    for one in found:
        owner = owner_of(one)
        its_like = peers.get((like(owner), types.get(owner)), set())
        same, apart = its_like - differing, its_like & differing - {owner}
        if len(same) > len(apart) and one.score <= 1 and _is_a_rounding(step, one):
            one = replace(one, score=lone_score(len(same)), peers=len(same))
        judged.append(one)
    return judged


def lone_score(peers: int) -> float:
    """The score of a rounding that so many of its like do not show."""
    return min(1.0 + peers, LONE_SCORE)


def _types(step: ReplayedStep) -> dict[str, str | None]:
    """Modules the plan spoke of, and their classes."""
    view = step.target
    return {view.name[call]: view.type[call] for call in step.planned_calls if view.kind[call] == "module"}


def _is_a_rounding(step: ReplayedStep, one: Difference) -> bool:
    roundoff = step.roundoff(one.record)
    if one.phase not in _PASSES or one.measured or roundoff is None or one.rel_l2 is None:
        return False
    return one.rel_l2 >= least_rounding(roundoff)
