"""Why a module of another implementation has no counterpart, checked of modules that hold any weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.comparing.traces import network
from tests.matching.test_records_across import drawn as numbers_of
from tests.matching.test_records_across import matched, model
from trueup.matching.modules import pair_modules
from trueup.matching.report import match_traces, report_of
from trueup.matching.step import match_step
from trueup.matching.weights.infer import Atom
from trueup.types.codes import RecordCode as Code
from trueup.types.reason import Reason, reason
from trueup.wording import text

RANDOM = np.random.default_rng(46)
NUMBERS = "abcdef"
"""what weights hold; a fused one holds several"""


def drawn(prefix: str) -> dict[str, str]:
    """Weight -> the numbers that it holds, in modules of a few depths; some modules hold none."""
    weights, left = dict[str, str](), list(NUMBERS)
    at = 0
    while left and at < 5:
        num = int(RANDOM.choice([1, 1, 1, 2]))
        held, left = "".join(left[:num]), left[num:]
        where = RANDOM.choice([f"{prefix}{at}", f"{prefix}{at}.inner", f"{prefix}0.more{at}"])
        if RANDOM.random() < 0.85:
            weights[f"{where}.weight"] = held
        at += 1
    return weights


def modules_of(weights: dict[str, str]) -> list[str]:
    found = dict.fromkeys(["rope", "act"])
    for name in weights:
        parts = name.split(".")[:-1]
        found |= dict.fromkeys(".".join(parts[:k]) for k in range(1, len(parts) + 1))
    return [name for name in found if RANDOM.random() < 0.9]


def atoms(target: dict[str, str], reference: dict[str, str]) -> list[Atom]:
    """Weights that together hold the same numbers."""
    found = []
    for own, held in target.items():
        others = [name for name, of in reference.items() if set(of) <= set(held)]
        if set("".join(reference[name] for name in others)) == set(held):
            found.append(Atom(targets=(own,), sources=tuple(others), how="values"))
    taken = {name for one in found for name in one.sources}
    for other, held in reference.items():
        owns = [name for name, of in target.items() if set(of) <= set(held)]
        if other not in taken and set("".join(target[name] for name in owns)) == set(held):
            found.append(Atom(targets=tuple(owns), sources=(other,), how="values"))
    return found


def held_by(module: str, weights: dict[str, str]) -> set[str]:
    return {name for name in weights if name.startswith(module + ".")}


def numbers(module: str, weights: dict[str, str]) -> set[str]:
    return set("".join(weights[name] for name in held_by(module, weights)))


def check(
    why: Reason, name: str, own: dict[str, str], others: list[str], other: dict[str, str], side: str
) -> None:
    mine = numbers(name, own)
    assert why.place("side") == side
    if why.code is Code.NO_WEIGHTS:
        assert not held_by(name, own)
    elif why.code is Code.PART_OF_FUSED:  # a weight of the other side holds more than what is in here
        assert any(set(of) & mine and not set(of) <= mine for of in other.values())
    elif why.code is Code.FUSED:
        for one in why.facts["modules"]:  # type: ignore[union-attr]
            assert numbers(one, other) & mine
            assert not numbers(one, other) >= mine or len(own) > 1
    elif why.code is Code.SAME_WEIGHTS:
        assert numbers(str(why.place("module")), other) == mine
    else:
        assert why.code is Code.NO_SUCH_MODULE
        exact = [one for one in others if numbers(one, other) == mine]
        known = mine <= {n for of in other.values() for n in of}
        assert not exact or not known, text(why)


def test_modules_of_any_weights() -> None:
    seen = set()
    for _ in range(250):
        sides = drawn("x"), drawn("y")
        names = modules_of(sides[0]), modules_of(sides[1])
        sizes: list[dict[str, int]] = [{name: 8 * len(of) for name, of in side.items()} for side in sides]
        found = pair_modules(atoms(*sides), (names[0], sizes[0]), (names[1], sizes[1]))
        paired = found.reference_of()
        for at, why in enumerate((found.why_target, found.why_reference)):
            done = set(paired) if at == 0 else set(paired.values())
            assert set(why) == set(names[at]) - done
            for name, one in why.items():
                seen.add(one.code)
                side = ("reference", "target")[at]
                check(one, name, sides[at], names[1 - at], sides[1 - at], side)
    assert seen == {
        Code.NO_WEIGHTS,
        Code.PART_OF_FUSED,
        Code.FUSED,
        Code.SAME_WEIGHTS,
        Code.NO_SUCH_MODULE,
    }


def test_calls_of_one_run_in_a_list_of_pairs(tmp_path: Path) -> None:
    """Of one program: what one run alone calls, by its place."""
    for target, reference in ((3, 2), (2, 3), (2, 2)):
        sides: list[Any] = [
            network(layers=num).write(tmp_path / f"{target}{reference}" / name)
            for name, num in (("t", target), ("r", reference))
        ]
        report = match_traces(*sides)
        for lines in (report.modules, report.weights, report.calls):
            alone = [line for line in lines if not line.paired]
            assert len(alone) == abs(target - reference)
            for line in alone:
                assert line.reason is not None
                side = "reference" if target > reference else "target"
                assert (line.reason.code, line.reason.place("side")) == (Code.NO_SUCH_CALL, side)
                assert "layers.2" in (line.target or line.reference or "")
        tables = [side.read(0, 0) for side in sides]
        assert report_of(match_step(*tables)).across is False


def test_what_another_implementation_lacks(tmp_path: Path) -> None:
    """A weight, and a call, that one run alone has; the others are found by what they hold."""
    for more in ("target", "reference"):
        sides = {side: model(side) for side in ("target", "reference")}
        lone = sides[more].call("parameter", "lone.weight")
        sides[more].record(lone, "param", "value", numbers_of(77, 5, 3))
        call = sides[more].call("api", "torch.sort")
        sides[more].record(call, "forward", "output.0", numbers_of(78, 5, 3))
        match, _ = matched(tmp_path / more, sides["target"], sides["reference"])
        report = report_of(match)
        other = "reference" if more == "target" else "target"
        for lines, code, name in (
            (report.weights, Code.NO_SUCH_WEIGHT, "lone.weight"),
            (report.calls, Code.TENSOR_UNKNOWN, "torch.sort"),
        ):
            alone = [line for line in lines if not line.paired]
            assert [(line.target if more == "target" else line.reference) for line in alone] == [name]
            assert [line.reason for line in alone] == [reason(code, side=other)]
