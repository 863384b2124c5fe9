"""What is said of two optimizers, checked of Adam with any settings from the settings themselves, and of what an
optimizer makes of the reference's gradients from the tensors alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.diagnosing.made_steps import Array, context_of, drawn, facts_of, passed, run, said_by, step
from trueup.diagnosing.stages.naming import described
from trueup.diagnosing.stages.optimizer import OptimizerStage
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.store import Trace
from trueup.store.view import ACCUMULATED, CLIPPED, LOCAL, UPDATED, WEIGHT
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Finding, Stage
from trueup.types.reason import Reason
from trueup.wording import text

SHAPES = {"a.weight": (20, 15), "b.weight": (15, 10), "b.bias": (80,), "norm.weight": (90,), "c.bias": (100,)}
SMALL = {name for name, shape in SHAPES.items() if len(shape) == 1}


@dataclass(frozen=True, kw_only=True)
class Adam:
    """An optimizer as its code is, not as it says it is."""

    lr: float = 1e-3
    decay: float = 0.1
    decay_of_small: float | None = None
    beta1: float = 0.9
    eps: float = 1e-8
    bias_correction: bool = True
    decoupled: bool = True
    dtype: type[np.floating[Any]] = np.float32

    def of(self, name: str, key: str) -> float:
        if key == "weight_decay" and name in SMALL and self.decay_of_small is not None:
            return self.decay_of_small
        return {"lr": self.lr, "weight_decay": self.decay, "beta1": self.beta1, "eps": self.eps}[key]

    def group(self, small: bool) -> dict[str, Any]:
        some = next(name for name in SHAPES if (name in SMALL) is small)
        sides = {key: self.of(some, key) for key in ("lr", "weight_decay", "eps")}
        return {**sides, "betas": [self.beta1, 0.999], "num_params": 1}

    def trace(self, folder: Path, *, declares: bool = True, steps: int = 1, scale: float = 1e-3) -> Trace:
        """A run of as many updates."""
        made, weights, moments = [], {n: 0.5 + drawn(at, *s) for at, (n, s) in enumerate(SHAPES.items())}, {}
        for number in range(1, steps + 1):
            parts = {}
            for at, name in enumerate(SHAPES):
                weight, given = weights[name], drawn(100 * number + at, *SHAPES[name]) * np.float32(scale)
                gradient, decay = given.astype(np.float64), self.of(name, "weight_decay")
                if not self.decoupled:
                    gradient = gradient + decay * weight
                first, second = moments.get(name, (0.0, 0.0))
                first = self.beta1 * first + (1 - self.beta1) * gradient
                second = 0.999 * second + 1e-3 * gradient**2
                moments[name] = first, second
                fix = (1 - self.beta1**number, 1 - 0.999**number) if self.bias_correction else (1.0, 1.0)
                moved = self.lr * first / fix[0] / (np.sqrt(second / fix[1]) + self.eps)
                moved = moved + (self.lr * decay * weight if self.decoupled else 0.0)
                weights[name] = (weight - moved).astype(self.dtype).astype(np.float32)
                parts[name] = {
                    WEIGHT: weight.astype(self.dtype),
                    **dict.fromkeys((LOCAL, ACCUMULATED, CLIPPED), given.astype(self.dtype)),
                    UPDATED: weights[name].astype(self.dtype),
                    ("optimizer", "state.exp_avg"): first.astype(np.float32),
                    ("optimizer", "state.exp_avg_sq"): second.astype(np.float32),
                    ("optimizer", "state.step"): np.array(number, np.float32),
                }
            made.append(step(parts))
        facts: dict[str, Any] = {"parameters": [self._row(name) for name in SHAPES]}
        if declares:
            name = "AdamW" if self.decoupled else "Adam"
            facts["optimizers"] = [{"class": name, "groups": [self.group(False), self.group(True)]}]
        return run(folder, *made, facts=facts)

    def _row(self, name: str) -> dict[str, Any]:
        row = {"fqn": name, "shape": list(SHAPES[name]), "dtype": np.dtype(self.dtype).name, "requires_grad": True}
        return {**row, "optimizer_group": [0, int(name in SMALL)]}


USUAL = Adam()
KEYS = ("lr", "weight_decay", "beta1", "eps")


def check(finding: Finding, sides: Mapping[str, Adam], declares: tuple[bool, bool]) -> None:
    """Each sentence of a finding, from the settings of both sides alone."""
    said = [finding.headline, *finding.evidence]
    named: set[str] = set()
    for one in said:
        if one.code is Stages.SIDES and one.facts["key"] in KEYS:
            names, key = meant(str(one.facts["parameters"])), str(one.facts["key"])
            named |= names
            for side, adam in sides.items():
                for name in names:
                    assert float(one.facts[side]) == pytest.approx(adam.of(name, key), rel=0.05, abs=2e-3 if key == "weight_decay" else 0), one
            assert len({one.facts[side] for side in sides}) == 2
        if one.code is Stages.SIDES and one.facts["key"] == "bias_correction":
            assert {side: one.facts[side] for side in sides} == {s: str(a.bias_correction) for s, a in sides.items()}
        if one.code is Stages.SIDES and one.facts["key"] == "decoupled":
            assert {side: one.facts[side] for side in sides} == {s: str(a.decoupled) for s, a in sides.items()}
        if one.code is Stages.MEASURED_PAIR:
            key = str(next(of.facts["key"] for of in said if of.code is Stages.SIDES))
            for side, adam in sides.items():
                assert one.facts[side] == pytest.approx(adam.of(str(one.facts["parameter"]), key), rel=0.05, abs=1e-3)
        if one.code in (Stages.DECAY_TARGET, Stages.DECAY_REFERENCE):
            has, lacks = ("target", "reference") if one.code is Stages.DECAY_TARGET else ("reference", "target")
            for name in meant(str(one.facts["parameters"])):
                assert sides[lacks].of(name, "weight_decay") == 0 < sides[has].of(name, "weight_decay")
                assert float(one.facts[has]) == pytest.approx(sides[has].of(name, "weight_decay"), rel=0.05)
        if one.code is Stages.DECLARED:
            assert all(declares)
    measured = {one.code for one in finding.counter_evidence} == {Stages.MEASURED_COUNTER}
    assert not measured or finding.headline.facts.get("key") != "class"
    for cause in finding.causes:
        apart = lambda key: sides["target"].of(name, key) != sides["reference"].of(name, key)  # noqa: E731
        if cause.code is Stages.OTHER_GROUPS:
            key = "weight_decay"
            assert len({apart(key) for name in SHAPES}) == 2 or sides["target"].decay_of_small != sides["reference"].decay_of_small
        if cause.code is Stages.NO_BIAS_CORRECTION:
            assert {one.bias_correction for one in sides.values()} == {True, False}
        if cause.code is Stages.COUPLED_DECAY:
            assert {one.decoupled for one in sides.values()} == {True, False}
        if cause.code is Stages.DEFAULT_EPS:
            assert sides["target"].eps != sides["reference"].eps


def meant(words: str) -> set[str]:
    """The parameters that the words of a finding stand for."""
    known = {
        "all 5 parameters": set(SHAPES),
        "the 3 one-dimensional parameters": SMALL,
    }
    return known.get(words) or {name for name in SHAPES if name in re.split(r", | and |[ ()]", words)}


OTHERS = {
    "lr": replace(USUAL, lr=2e-3),
    "decay": replace(USUAL, decay=0.01),
    "decay of some": replace(USUAL, decay_of_small=0.0),
    "no decay": replace(USUAL, decay=0.0),
    "beta1": replace(USUAL, beta1=0.8),
    "eps": replace(USUAL, eps=1e-5),
    "bias": replace(USUAL, bias_correction=False),
    "coupled": replace(USUAL, decoupled=False),
    "two": replace(USUAL, lr=2e-3, decay=0.3),
    "the same": USUAL,
}


@pytest.mark.parametrize("declares", [(True, True), (False, False), (True, False)], ids=["both", "none", "target"])
def test_settings_of_adam(tmp_path: Path, declares: tuple[bool, bool]) -> None:
    seen: set[Any] = set()
    usual = [USUAL.trace(tmp_path / f"usual{at}", declares=on) for at, on in enumerate(declares)]
    for name, other in OTHERS.items():
        ways = [(False, other)] if declares[0] is not declares[1] else [(False, other), (True, other)]
        trace = other.trace(tmp_path / name, declares=declares[0])
        for turned, adam in ways:
            sides = {"target": USUAL, "reference": adam} if turned else {"target": adam, "reference": USUAL}
            traces = (usual[0], trace) if turned else (trace, usual[1])
            outcome = OptimizerStage().check(context_of(*traces, earlier=[passed(Stage.DATA)]))
            for one in outcome.evidence:
                if one.code is Stages.MEASURED:
                    for key, value in zip(one.facts["keys"], one.facts["values"], strict=True):
                        expected = sides["target"].of(str(one.facts["parameter"]), key) if key in KEYS else None
                        assert expected is None or float(value) == pytest.approx(expected, rel=0.05, abs=1e-3)
                    seen.add(one.code)
            assert bool(outcome.findings) is (adam is not USUAL), name
            for finding in outcome.findings:
                check(finding, sides, declares)
                seen |= {one.code for one in (finding.headline, *finding.evidence, *finding.causes, *finding.counter_evidence)}
    told = {Stages.SIDES, Stages.MEASURED, Stages.MEASURED_PAIR, Stages.MEASURED_COUNTER, Stages.DECAY_TARGET}
    told |= {Stages.DECAY_REFERENCE, Stages.OTHER_GROUPS, Stages.DEFAULT_EPS, Stages.NO_BIAS_CORRECTION, Stages.COUPLED_DECAY}
    if all(declares):
        told |= {Stages.DECLARED}
    else:
        told -= {Stages.DECAY_REFERENCE}
    assert seen >= told, told - seen
