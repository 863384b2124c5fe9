"""What is said of weights that a program moves without an optimizer, checked of any two moves from the
weights and gradients alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.diagnosing.made_steps import Array, codes_of, context_of, drawn, run, step
from trueup.diagnosing.stages.between_steps import moved_between
from trueup.store.view import ACCUMULATED, LOCAL, UPDATED, WEIGHT
from trueup.types.codes import StagesCode as Stages
from trueup.types.reason import Reason
from trueup.wording import text

WEIGHTS = {"a.w": drawn(1, 6, 5), "b.w": drawn(2, 7)}
GRADIENTS = {"a.w": drawn(3, 6, 5), "b.w": drawn(4, 7)}
ACROSS = {name: drawn(5 + at, *of.shape) for at, (name, of) in enumerate(WEIGHTS.items())}
UNIT = 2.0**-24

Moves = dict[str, Array]


def times(factor: float, of: Moves = GRADIENTS) -> Moves:
    return {name: np.float32(factor) * one for name, one in of.items()}


MOVES: dict[str, Moves] = {
    "none": times(0.0),
    "along": times(0.05),
    "back": times(-0.05),
    "a little further": times(0.05 * (1 + 2e-5)),
    "far": times(0.4),
    "across": times(0.05, ACROSS),
    "a little further across": times(0.05 * (1 + 2e-5), ACROSS),
    "across as far": times(0.05, {name: one[::-1] for name, one in ACROSS.items()}),
    "below rounding": {name: one * np.float32(2 * UNIT) for name, one in WEIGHTS.items()},
}


def moving(
    folder: Path, move: Moves, *, gradients: bool = True, kept: float = 1.0, further: Moves | None = None
) -> Any:
    """Two steps: an optimizer's update in the second alone, which leaves ``kept`` of the move."""
    first, second = {}, {}
    for name, weight in WEIGHTS.items():
        there = weight + move[name]
        made = {LOCAL: GRADIENTS[name], ACCUMULATED: GRADIENTS[name]} if gradients else {}
        end = weight + np.float32(kept) * move[name] - np.float32(1e-3) * (further or ACROSS)[name]
        first[name] = {WEIGHT: weight, **made}
        second[name] = {WEIGHT: there, LOCAL: GRADIENTS[name], UPDATED: end}
    return run(folder, step(first), step(second))


def flat(of: Moves) -> Array:
    return np.concatenate([one.ravel() for one in of.values()]).astype(np.float64)


def held(move: Moves) -> Array:
    """What a move really is once the weights are rounded."""
    return flat({name: (one + move[name]).astype(np.float64) - one for name, one in WEIGHTS.items()})


def rounding() -> float:
    return float(4 * UNIT * np.linalg.norm(flat(WEIGHTS)))


def is_multiple(of: Array, other: Array) -> bool:
    """Whether a vector lies along another, but for roundings of the weights."""
    factor = np.vdot(of, other) / np.vdot(other, other) if np.any(other) else 0.0
    return bool(np.linalg.norm(of - factor * other) <= rounding())


def assert_told_apart(said: Reason) -> None:
    """What differs is not printed alike."""
    target, reference = re.findall(r"(\S+) \((?:target|reference)\)", text(said))
    assert target != reference or said.facts["target"] == said.facts["reference"]


def check(said: Reason, sides: dict[str, Array], gradients: bool) -> None:
    facts, code, gradient = said.facts, said.code, flat(GRADIENTS)
    lengths = {side: float(np.linalg.norm(of)) for side, of in sides.items()}
    if code is Stages.MOVED_TIMES:
        for side, of in sides.items():
            assert np.linalg.norm(of - facts[side] * gradient) <= 2 * rounding()
        assert_told_apart(said)
    elif code is Stages.MOVED_BETWEEN:
        assert {side: pytest.approx(length, rel=1e-6) for side, length in lengths.items()} == {
            s: facts[s] for s in sides
        }
        assert_told_apart(said)
    elif code is Stages.MOVED_ELSEWHERE:
        assert not is_multiple(sides["target"], sides["reference"])
    elif code is Stages.MOVED_NOT:
        assert not np.any(sides[str(facts["side"])])
    elif code is Stages.MOVED_OTHERWISE:
        of = sides[str(facts["side"])]
        assert facts["length"] == pytest.approx(np.linalg.norm(of), rel=1e-6)
        if "multiple" in text(said):
            assert gradients
            assert not is_multiple(of, gradient)
    elif code is Stages.MOVED_ALONG:
        of = sides[str(facts["side"])]
        assert np.linalg.norm(of - facts["factor"] * gradient) <= 2 * rounding()
        assert (facts["length"], facts["norm"]) == (
            pytest.approx(np.linalg.norm(of)),
            pytest.approx(np.linalg.norm(gradient)),
        )
    else:
        assert code is Stages.OWN_STEP


@pytest.mark.parametrize("gradients", [True, False])
def test_moves_before_an_optimizer(tmp_path: Path, gradients: bool) -> None:
    """Every two of the moves."""
    seen = set()
    runs = {name: moving(tmp_path / name, move, gradients=gradients) for name, move in MOVES.items()}
    names = list(MOVES)
    half = [
        (a, b) if (i + j) % 2 else (b, a) for i, a in enumerate(names) for j, b in enumerate(names[i:], i)
    ]
    pairs = half if gradients else SOME
    for target, reference in pairs:
        sides = {"target": held(MOVES[target]), "reference": held(MOVES[reference])}
        for finding in moved_between(context_of(runs[target], runs[reference])):
            assert np.linalg.norm(sides["target"] - sides["reference"]) > rounding() or target == reference
            for said in (finding.headline, *finding.evidence, *finding.causes):
                if target != reference:
                    check(said, sides, gradients)
                seen.add(said.code)
    told = {
        Stages.MOVED_BETWEEN,
        Stages.MOVED_ELSEWHERE,
        Stages.MOVED_OTHERWISE,
        Stages.MOVED_NOT,
        Stages.OWN_STEP,
    }
    assert seen >= (told | {Stages.MOVED_TIMES, Stages.MOVED_ALONG} if gradients else told)


SOME = [
    ("along", "far"),
    ("along", "across"),
    ("across", "a little further across"),
    ("none", "far"),
    ("far", "none"),
    ("across as far", "across"),
]


@pytest.mark.parametrize("gain", [1.0, 40.0], ids=["a small update", "one as long as the move"])
@pytest.mark.parametrize("kept", [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (-1.0, 0.0), (1.0, -1.0), (0.5, 0.0)])
def test_moves_that_an_update_takes_back(tmp_path: Path, kept: tuple[float, float], gain: float) -> None:
    """``kept``: how much of one move the weights of either side keep after the update."""
    update = times(gain)
    sides = [moving(tmp_path / f"{at}", times(0.05), kept=one, further=update) for at, one in enumerate(kept)]
    findings = moved_between(context_of(*sides))
    assert bool(findings) is (kept[0] != kept[1])
    if not findings:
        return
    (found,) = findings
    assert codes_of(found.evidence) == {Stages.MOVED_BOTH, Stages.MOVE_LEFT}
    by_code = {one.code: one.facts for one in found.evidence}
    assert by_code[Stages.MOVED_BOTH]["length"] == pytest.approx(np.linalg.norm(held(times(0.05))))
    assert by_code[Stages.MOVE_LEFT]["factor"] == pytest.approx(kept[0] - kept[1], rel=1e-3)
    said = text(found.headline)
    if found.headline.code is Stages.MOVE_KEPT:
        lone, other = (0, 1) if "The target alone" in said else (1, 0)
        assert (kept[lone], kept[other]) == (1.0, 0.0)
    else:
        assert found.headline.code is Stages.MOVE_LEFT
        assert set(kept) != {1.0, 0.0} or gain > 1
