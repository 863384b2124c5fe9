"""What is said of when optimizers step, of their learning rates and state, and of sums of gradients, checked
from what the programs did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.diagnosing.made_steps import (
    Array,
    codes_of,
    context_of,
    drawn,
    facts_of,
    gradients,
    passed,
    run,
    step,
)
from trueup.diagnosing.stages.forward import BackwardStage
from trueup.diagnosing.stages.optimizer import OptimizerStage
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.diagnosing.stages.reduction import ReductionStage
from trueup.diagnosing.stages.schedule import moment_findings, schedule_findings, stepping_findings
from trueup.store.view import ACCUMULATED, CLIPPED, LOCAL, UPDATED, WEIGHT
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Stage
from trueup.types.reason import Reason
from trueup.wording import text

W = drawn(0)


def with_rates(folder: Path, rates: list[tuple[float, ...]]) -> Any:
    return run(folder, step({"w": gradients(1)}), lines=[{"learning_rate": list(one)} for one in rates])


def test_learning_rates_of_any_schedule(tmp_path: Path) -> None:
    random, kinds = np.random.default_rng(2), set()
    base: list[tuple[float, ...]] = [(1e-3 * (1 + at), 1e-4) for at in range(6)]
    near = [(one[0] * (1 + 2e-7 * (at == 3)), one[1]) for at, one in enumerate(base)]
    others = [base, base[1:] + base[:1], base[-1:] + base[:-1], near, [one[::-1] for one in base]]
    others += [[(a, a, b) for a, b in base], [(a, b, b) for a, b in base], [(5e-4,)] * 6]
    others += [[one if random.random() < 0.6 else (2e-3, 1e-4) for one in base] for _ in range(4)]
    traces = [with_rates(tmp_path / f"{at}", one) for at, one in enumerate(others)]
    for one in range(len(others)):
        for two in (0, 5):
            found = schedule_findings(context_of(traces[one], traces[two]), known=set())
            sides = [[tuple(map(np.float32, rates)) for rates in others[at]] for at in (one, two)]
            apart = [
                at
                for at, (a, b) in enumerate(zip(*sides, strict=True))
                if (a != b if len(a) == len(b) else set(a) != set(b))
            ]
            assert bool(found) is bool(apart)
            for finding in found:
                for said in (finding.headline, *finding.evidence):
                    kinds.add(said.code)
                    if said.code is Stages.STEPS_DIFFER:
                        assert said.facts == {"num": len(apart), "total": 6}
                    elif said.code is Stages.LEARNING_RATE:
                        assert said.facts["step"] == apart[0]
                        assert said.facts["target"] != said.facts["reference"], text(said)
                    else:
                        late = {Stages.RATE_EARLIER: 1, Stages.RATE_LATER: -1}[said.code]
                        pairs = [(sides[0][at], sides[1][at + late]) for at in range(6) if 0 <= at + late < 6]
                        assert all(a == b for a, b in pairs)
    assert kinds == {Stages.STEPS_DIFFER, Stages.LEARNING_RATE, Stages.RATE_EARLIER, Stages.RATE_LATER}


@pytest.mark.parametrize(("skips", "side"), [(True, "target"), (True, "reference"), (False, "target")])
def test_a_schedule_moves_on_where_an_update_is_left_out(skips: bool, side: str, tmp_path: Path) -> None:
    updated = {"w": {**gradients(1), UPDATED: W}}
    steps = [step({"w": gradients(1)} if skips else updated), step(updated)]
    rates = [0.1, 0.2, 0.3, 0.4]
    sides = (rates[1:], rates[:3]) if side == "target" else (rates[:3], rates[1:])
    traces = []
    for name, held in zip(("t", "r"), sides, strict=True):
        lines: list[Any] = [{"learning_rate": [] if skips and not at else [held[at]]} for at in range(3)]
        traces.append(run(tmp_path / name, *steps, lines=lines))
    (finding,) = schedule_findings(context_of(*traces), known=set())
    said = [one.facts for one in finding.evidence if one.code is Stages.MOVED_WITHOUT_UPDATE]
    assert said == ([{"step": 0, "side": side}] if skips else [])


def stepping(folder: Path, num: int, *, updates: bool, captured: bool = True) -> Any:
    made = {**gradients(1), **({UPDATED: W} if updates and captured else {})}
    options = {} if captured else {"options": {"optimizer": False}}
    return run(folder, step({"w": made}), lines=[{"microbatches": num}], **options)


@pytest.mark.parametrize("captured", [(True, True), (False, True), (True, False)])
def test_when_optimizers_step(tmp_path: Path, captured: tuple[bool, bool]) -> None:
    seen = set()
    every = [(num, updates) for num in (1, 2, 4) for updates in (True, False)]
    traces = [
        {
            of: stepping(tmp_path / f"{side}{of}", of[0], updates=of[1], captured=captured[side])
            for of in every
        }
        for side in (0, 1)
    ]
    for own in every:
        for other in every[:4] if all(captured) else every[2:3]:
            context = context_of(traces[0][own], traces[1][other], earlier=[passed(Stage.DATA)])
            for finding in stepping_findings(context):
                said, sides = finding.headline, {"target": own[0], "reference": other[0]}
                seen |= codes_of([said, *finding.causes, *([finding.next_note] if finding.next_note else [])])
                assert {side: said.facts[side] for side in sides} == sides
                assert own[0] != other[0]
                if said.code is Stages.SUMMED_BEFORE_UPDATE:
                    assert (own[1], other[1]) == (True, False)
                    assert own[0] > other[0]
                    assert {one.code for one in finding.causes} == {Stages.NOT_CLEARED_CAUSE}
                elif said.code is Stages.CLEARED_BEFORE_UPDATE:
                    assert (own[1], other[1]) == (False, True)
                    assert {one.code for one in finding.causes} == {Stages.CLEARED_CAUSE}
                else:
                    assert said.code is Stages.STEPS_AFTER
                    recorded = own[1] and captured[0] and other[1] and captured[1]
                    assert ("Optimizer step" in text(said)) is recorded
                    each = Stages.STEP_EACH_CAUSE in {one.code for one in finding.causes}
                    assert each is (own[0] == 1)
    both = {Stages.CLEAR_ALIKE, Stages.STEP_ONCE, Stages.NOT_CLEARED_CAUSE, Stages.CLEARED_CAUSE}
    assert (
        seen >= both
        if all(captured)
        else not seen & {Stages.SUMMED_BEFORE_UPDATE, Stages.CLEARED_BEFORE_UPDATE}
    )


def moments(folder: Path, kept: float, *, numbers: tuple[int, int] = (0, 1), noise: float = 0.0) -> Any:
    """Adam's two steps; the second begins with so much of the first's moment."""
    moment, trace = {n: np.zeros_like(W) for n in "ab"}, None
    for at, number in enumerate(numbers):
        parts = {}
        for place, name in enumerate("ab"):
            made = dict(gradients(1 + at + 10 * place))
            before = moment[name] * np.float32(kept if at and name == "a" else 1.0)
            before = before + np.float32(noise * at) * drawn(7)
            moment[name] = (np.float32(0.9) * before + np.float32(0.1) * made[CLIPPED]).astype(np.float32)
            state = {
                ("optimizer", "state.exp_avg"): moment[name],
                ("optimizer", "state.exp_avg_sq"): moment[name] ** 2 + 1,
            }
            count = {("optimizer", "state.step"): np.array(at + 1, np.float32)}
            parts[name] = {**made, UPDATED: W - moment[name], **state, **count}
        trace = step(parts).write(folder, step=number, values=True)
    return trace


@pytest.mark.parametrize("kept", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("numbers", [(0, 1), (0, 5)])
def test_state_between_two_steps(tmp_path: Path, kept: float, noise: float, numbers: tuple[int, int]) -> None:
    sides = (
        moments(tmp_path / "t", kept, numbers=numbers),
        moments(tmp_path / "r", 1.0, numbers=numbers, noise=noise),
    )
    found = moment_findings(context_of(*sides))
    assert bool(found) is (kept != 1.0 and not noise and numbers == (0, 1))
    for finding in found:
        said = {one.code: one.facts for one in (finding.headline, *finding.evidence)}
        assert said[Stages.NUM_PARAMETERS] == {"num": 1, "total": 2}
        first = 0.1 * gradients(1)[CLIPPED]
        second = 0.9 * kept * first + 0.1 * gradients(2)[CLIPPED]
        left = np.linalg.norm(second - 0.9 * first - 0.1 * gradients(2)[CLIPPED]) / np.linalg.norm(second)
        facts = said[Stages.MOMENT_RESIDUAL]
        assert (facts["step"], facts["before"]) == (1, 0)
        assert 0.1 * left < facts["share"] <= 1.5 * left  # of other constants less may be left
        assert Stages.STATE_CHANGED in said
        assert {one.code for one in finding.counter_evidence} == {Stages.REFERENCE_MOMENTS}
        assert finding.next_note is not None
        assert finding.next_note.code is Stages.CHECK_STATE


# -- which weights train ------------------------------------------


def trained(folder: Path, of: dict[str, bool]) -> Any:
    table = [{"fqn": n, "shape": [8, 8], "dtype": "float32", "requires_grad": on} for n, on in of.items()]
    parts = {n: gradients(at) if on else {WEIGHT: drawn(at + 100)} for at, (n, on) in enumerate(of.items())}
    return run(folder, step(parts), facts={"parameters": table})


def test_weights_that_train_in_one_run(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    for case in range(8):
        sides = [{name: bool(random.random() < 0.7) for name in ("a", "b", "c", "d")} for _ in range(2)]
        context = context_of(*(trained(tmp_path / f"{case}{at}", of) for at, of in enumerate(sides)))
        found = [
            one
            for one in BackwardStage().check(context).findings
            if one.headline.code is Stages.REQUIRES_GRAD
        ]
        apart = {name for name in "abcd" if sides[0][name] != sides[1][name]}
        named = set()
        for finding in found:
            facts = finding.headline.facts
            names = (
                set(facts_of(finding.evidence, Stages.PARAMETERS)["names"])
                if facts_of(finding.evidence, Stages.PARAMETERS)
                else set(str(facts["parameters"]).split(" and "))
            )
            named |= names
            assert {str(sides[0][n]) for n in names} == {facts["target"]}
            assert {str(sides[1][n]) for n in names} == {facts["reference"]}
            assert finding.next_note is not None
            assert finding.next_note.code is Stages.SET_REQUIRES_GRAD
        assert named == apart


def in_parts(folder: Path, outer: float, inner: float) -> Any:
    """A program's own optimizer holds the weights, and one of the framework the part that it updates."""
    grad, part = drawn(70), drawn(71)
    out = step({"w": {WEIGHT: W, LOCAL: grad, ACCUMULATED: grad, CLIPPED: grad, UPDATED: W - grad}})
    held = out.call("parameter", "AdamW.group0.0")
    for phase, slot, array in (("param_grad", "clipped", grad), ("optimizer", "param", part - grad)):
        out.record(held, phase, slot, array)
    groups = [("Sharded", {"lr": outer, "num_params": 1}), ("AdamW", {"lr": inner, "num_params": 1})]
    own = {"fqn": "w", "shape": [8, 8], "dtype": "float32", "requires_grad": True, "optimizer_group": [0, 0]}
    facts = {"parameters": [own], "optimizers": [{"class": c, "groups": [group]} for c, group in groups]}
    return run(folder, out, facts=facts)


def test_the_rate_that_acts_leads_one_of_an_optimizer_around_it(tmp_path: Path) -> None:
    context = context_of(in_parts(tmp_path / "a", 0.00075, 0.003), in_parts(tmp_path / "b", 0.003, 0.00075))
    first = OptimizerStage().check(context).findings[0]
    assert (first.headline.code, first.headline.place("target")) == (Stages.SETTING, "0.003")


# -- sums of gradients ------------------------------------------


def summed(folder: Path, weights: tuple[float, ...], *, old: float = 0.0, master: bool = False) -> Any:
    """Microbatches, each counted so often; of a master where there is one."""
    parts = [drawn(60 + at) for at in range(len(weights))]
    total = sum(np.float32(w) * p for w, p in zip(weights, parts, strict=True)) + np.float32(old) * drawn(80)
    made = {WEIGHT: W, LOCAL: parts}
    if not master:
        out = step({"w": {**made, ACCUMULATED: total, CLIPPED: total, UPDATED: W - total}})
    else:
        out = step({"w": made})
        held = out.call("parameter", "AdamW.group0.0")
        out.record(held, "param_grad", "clipped", total)
        out.record(held, "optimizer", "param", W)
    return run(folder, out, lines=[{"microbatches": len(weights)}])


@pytest.mark.parametrize("master", [False, True])
def test_how_often_microbatches_count(tmp_path: Path, master: bool) -> None:
    ways = [(1.0, 1.0, 1.0), (0.5, 0.5, 0.5), (0.0, 0.0, 1.0), (1.0, 0.0, 1.0), (0.25, 0.5, 1.0)]
    traces = [summed(tmp_path / f"{at}", way, master=master) for at, way in enumerate(ways)]
    seen: set[Any] = set()
    for one, own in enumerate(ways):
        for two in (0, 4):
            findings = ReductionStage().check(context_of(traces[one], traces[two])).findings
            if own == ways[two]:
                assert findings == ()
            for finding in findings:
                said = [finding.headline, *finding.evidence, *finding.counter_evidence, *finding.causes]
                seen |= codes_of(said)
                for each in said:
                    check_sum(each, own, ways[two])
    told = {
        Stages.NUM_GRADIENTS,
        Stages.FROM_OWN_GRADIENTS,
        Stages.BETWEEN_MICROBATCHES,
        Stages.LACKS_MICROBATCHES,
    }
    assert seen >= (told | {Stages.MASTER_COUNTS} if master else told | {Stages.SUMMED}), told - seen


def check_sum(said: Reason, own: tuple[float, ...], other: tuple[float, ...]) -> None:
    facts = said.facts
    if said.code is Stages.LACKS_MICROBATCHES:
        assert facts["microbatches"] == tuple(str(at) for at, one in enumerate(own) if not one)
    elif said.code is Stages.LAST_ONLY:
        assert own[:-1] == (0.0,) * (len(own) - 1)
    elif said.code is Stages.NUM_GRADIENTS:
        assert facts == {"num": 1, "total": 1}
    elif said.code is Stages.SCALED:
        assert facts["factor"] == pytest.approx(own[0] / other[0])
    elif said.code is Stages.SUMMED:
        for side, way in (("target", own), ("reference", other)):
            if facts[f"{side}_way"] == "own":
                assert [float(facts[f"{side}_factor"])] * len(way) == pytest.approx(way)
            if facts[f"{side}_way"] == "weighted":
                assert list(map(float, facts[f"{side}_weights"])) == pytest.approx(way, rel=0.05)
            assert facts[f"{side}_residual"] < 1e-4
    elif said.code is Stages.MASTER_COUNTS:
        for side, way in (("target", own), ("reference", other)):
            counts = np.array(list(map(float, facts[side])))
            assert counts / counts.max() == pytest.approx(np.array(way) / max(way), rel=0.05)


@pytest.mark.parametrize("before", [None, Stage.BACKWARD])
def test_gradients_that_differ_before_they_are_summed(tmp_path: Path, before: Stage | None) -> None:
    """Sums of the same kind of other gradients; without any sum that is known nothing is said of them."""
    sides = []
    for name, factor in (("t", 1.5), ("r", 1.0)):
        made: dict[Any, Array] = {
            WEIGHT: W,
            LOCAL: drawn(3) * np.float32(factor),
            ACCUMULATED: drawn(3) * np.float32(factor),
        }
        sides.append(run(tmp_path / name, step({"w": made})))
    earlier = [] if before is None else [passed(before, StageStatus.FAILED)]
    outcome = ReductionStage().check(context_of(*sides, earlier=earlier))
    assert outcome.conclusion.code is Stages.BOTH_ALIKE
    alike = facts_of(outcome.evidence, Stages.SUMMED_ALIKE)
    assert alike is not None
    assert (alike["ways"], alike["numbers"]) == (("own",), ("1",))
    lone = [
        run(tmp_path / f"{n}2", step({"w": {WEIGHT: W, CLIPPED: drawn(3) * np.float32(f)}}))
        for n, f in (("t", 1.5), ("r", 1.0))
    ]
    outcome = ReductionStage().check(context_of(*lone, earlier=earlier))
    assert outcome.conclusion.code is (Stages.NO_PLACE if before is None else Stages.FOLLOWS)
    assert (outcome.status is StageStatus.UNDECIDED) is (before is None)
