"""Cases whose measured quantity is a number at will, for every entry of ``matching/thresholds.py``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from tests.comparing.traces import Recorder
from tests.deciding import decides
from trueup.matching import match_step
from trueup.matching.families import family_of
from trueup.matching.modules import Holdings, ModulePairs, _most_weights
from trueup.matching.report import Line
from trueup.matching.step import are_foreign
from trueup.matching.tree import build
from trueup.store import StepTables

Tables = tuple[StepTables, StepTables]


def tables(*sides: Recorder) -> Tables:
    """The step of both runs."""
    with TemporaryDirectory() as folder:
        target, reference = (made.write(Path(folder) / str(at)).read(0, 0) for at, made in enumerate(sides))
    return target, reference


@decides("matching.sure")
def sure(confidence: float) -> object:
    return Line(target="a", reference="b", confidence=confidence).unsure


@decides("matching.least_share", margin=0.02)
def least_share(share: float) -> object:
    known = round(100 * share)
    names = [f"layers.{at}.attention.wq" if at < known else f"block{at}" for at in range(100)]
    return family_of(names) is None


@decides("matching.almost")
def almost(share: float) -> object:
    both = round(1000 * share)
    here = Holdings(["a"], {"a.weight": 1, "a.other": 2}, {"a.weight": both, "a.other": 1000 - both})
    there = Holdings(["b"], {"b.weight": 1}, {"b.weight": both})
    found = ModulePairs()
    _most_weights(found, here, there)
    return len(found.pairs)


def turned(one: NDArray[np.float64], other: NDArray[np.float64], factor: float) -> bool:
    """Whether a sum's operands are taken to be exchanged where they are, by a factor off, and of shapes that
    do not tell."""
    sides = []
    for operands in ((one, other), (factor * other[:, None], factor * one[:, None])):
        made = Recorder()
        call = made.call("api", "torch.add")
        for at, operand in enumerate(operands):
            made.record(call, "forward", f"input.{at}", operand)
        sides.append(made)
    return bool(match_step(*tables(*sides)).records.other_slot.any())


@decides("matching.operands_alike")
def operands_alike(relative: float) -> object:
    return turned(np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0]), (1 + relative) / (1 - relative))


@decides("matching.operands_clearly")
def operands_clearly(times: float) -> object:
    relative = 1 / times  # operands of other signs are 1 apart
    return turned(np.array([1.0, 2.0]), np.array([-2.0, -1.0]), (1 + relative) / (1 - relative))


def foreign(target: Iterable[tuple[str, str]], reference: Iterable[tuple[str, str]]) -> bool:
    """Whether two runs with modules of these names and classes are of two implementations."""
    sides = []
    for modules in (target, reference):
        made = Recorder()
        for name, kind in modules:
            made.record(made.call("module", name, type_=kind), "forward", "output.0", np.ones(2))
        sides.append(made)
    return are_foreign(*build(*tables(*sides)))


@decides("matching.known_by_name", margin=0.02)
def known_by_name(share: float) -> object:
    names = [f"m{at}" if at < round(100 * share) else f"n{at}" for at in range(100)]
    return foreign([(name, "A") for name in names], [(f"m{at}", "B") for at in range(100)])


@decides("matching.same_classes", margin=0.02)
def same_classes(share: float) -> object:
    classes = ["A" if at < round(100 * share) else "B" for at in range(100)]
    return foreign(
        [(f"x.m{at}", kind) for at, kind in enumerate(classes)], [(f"y.m{at}", "A") for at in range(100)]
    )


@decides("matching.names_fewest")
def names_fewest(names: float) -> object:
    target, reference = ([(f"{side}{at}", side) for at in range(int(names))] for side in "xy")
    return foreign(target, reference)
