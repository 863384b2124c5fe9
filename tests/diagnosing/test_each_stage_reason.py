"""Each sentence of a stage of a diagnosis: said of two runs of which it is true, and not of their near miss.

The runs are made by hand, so that each differs in one thing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.comparing.traces import Recorder
from tests.diagnosing.cases import origin, tells
from tests.diagnosing.made_steps import (
    Array,
    codes_of,
    context_of,
    drawn,
    facts_of,
    gradients,
    passed,
    run,
    said_by,
    step,
)
from trueup.diagnosing.batches import value_relation
from trueup.diagnosing.pipeline import _verdict, diagnose
from trueup.diagnosing.runs import AuxiliaryRuns, Clock
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.data import DataStage, _input_finding
from trueup.diagnosing.stages.forward import explained_by, finding_of_precision
from trueup.diagnosing.stages.from_origin import _with_buffers, finding_from_origin
from trueup.diagnosing.stages.naming import kind_named
from trueup.diagnosing.stages.next_loss import NextLossStage
from trueup.diagnosing.stages.optimizer import OptimizerStage
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.diagnosing.stages.reduction import ReductionStage
from trueup.diagnosing.stages.reported_norm import reported_norm_findings
from trueup.diagnosing.stages.schedule import schedule_findings
from trueup.diagnosing.stages.weights import WeightsStage
from trueup.store.view import ACCUMULATED, CLIPPED, LOCAL, UPDATED, WEIGHT
from trueup.types.codes import BatchCode as Batches
from trueup.types.codes import ClippingCode as Clip
from trueup.types.codes import EvidenceCode, VerdictCode, WeightsCode
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import EvidenceRank, Stage
from trueup.types.reason import Reason, reason
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict

W = drawn(0)
PLAIN = {"w": gradients(1)}


def pair(folder: Path, target: Any, reference: Any, **more: Any) -> Context:
    """Of two runs, each a step or the arguments of ``run``."""
    traces = []
    for name, made in (("t", target), ("r", reference)):
        steps, told = made if isinstance(made, tuple) else ([made], {})
        traces.append(run(folder / name, *steps, **told))
    return context_of(*traces, **more)


# -- weights ------------------------------------------


def test_another_distribution_comes_before_other_draws(tmp_path: Path) -> None:
    """A seed, or another order, draws other numbers of one distribution."""
    sides = []
    for seed, scale in ((0, 5.0), (10, 1.0)):
        arrays = {
            f"w{at}": drawn(seed + at, 16, 16) * np.float32(scale if at == 2 else 1.0) for at in range(4)
        }
        sides.append(step({name: {WEIGHT: array} for name, array in arrays.items()}))
    findings = WeightsStage().check(pair(tmp_path, *sides)).findings
    ways = [(one.headline.place("way"), one.headline.place("parameters")) for one in findings]
    assert ways[0] == ("other_init", "w2")
    assert [way for way, _ in ways] == ["other_init", "other_draw"]
    causes = [cause.code for cause in findings[0].causes]
    assert WeightsCode.INIT_CAUSE in causes
    assert WeightsCode.SEED_CAUSE not in causes


# -- schedules ------------------------------------------


def with_rates(*rates: float) -> tuple[Any, Any]:
    return [step(PLAIN)], {"lines": [{"learning_rate": [rate]} for rate in rates]}


@pytest.mark.parametrize(
    ("target", "headline", "num"),
    [
        ((2e-3, 3e-3, 4e-3, 5e-3), Stages.RATE_EARLIER, 4),
        ((0.5e-3, 1e-3, 2e-3, 3e-3), Stages.RATE_LATER, 4),
        ((1e-3, 2e-3, 3.5e-3, 4e-3), Stages.LEARNING_RATE, 1),
        ((1e-3, 2e-3, 3e-3, 4e-3), None, 0),
    ],
    ids=["ahead", "behind", "one step", "the same"],
)
def test_learning_rates(tmp_path: Path, target: Any, headline: Stages | None, num: int) -> None:
    context = pair(tmp_path, with_rates(*target), with_rates(1e-3, 2e-3, 3e-3, 4e-3))
    findings = OptimizerStage().check(context).findings
    said = said_by(findings)
    assert [one.headline.code for one in findings] == ([] if headline is None else [headline])
    moved = {Stages.RATE_EARLIER, Stages.RATE_LATER}
    assert codes_of(said) & moved == ({headline} & moved)
    told = {Stages.LEARNING_RATE, Stages.STEPS_DIFFER, Stages.COMPARE_SCHEDULERS}
    assert codes_of(said) & told == (told if num else set())
    causes = {
        Stages.RATE_EARLIER: Stages.SCHEDULER_AHEAD,
        Stages.RATE_LATER: Stages.SCHEDULER_BEHIND,
        Stages.LEARNING_RATE: Stages.SCHEDULE_SETTINGS,  # neither of the reference's rates beside it
    }
    known = {*causes.values(), Stages.SCHEDULER_CAUSE}
    assert codes_of(said) & known == ({causes[headline]} if headline else set())
    if num:
        assert facts_of(said, Stages.STEPS_DIFFER) == {"num": num, "total": 4}
    assert schedule_findings(context, known={"lr"}) == []


COSINE = (1e-3, 0.9e-3, 0.7e-3, 0.4e-3, 0.2e-3)


def stepped(*positions: int, rates: Sequence[float] = COSINE, microbatches: int = 1, world: int = 1) -> Any:
    """Two steps of one scheduler, at whose place the rate is taken."""
    lines = [
        {"learning_rate": [rates[at]], "scheduler_steps": [at], "microbatches": microbatches}
        for at in positions
    ]
    one = step(PLAIN) if world == 1 else [step(PLAIN)] * world
    return [one, one], {"lines": lines}


@pytest.mark.parametrize(
    ("target", "reference", "headline", "causes"),
    [
        (
            stepped(1, 3, microbatches=2),
            stepped(0, 1, microbatches=2),
            Stages.SCHEDULER_PACE,
            {Stages.SCHEDULER_PER_MICROBATCH},
        ),
        (
            stepped(0, 2, microbatches=2, world=2),
            stepped(0, 1, microbatches=2, world=2),
            Stages.SCHEDULER_PACE,
            {Stages.SCHEDULER_PER_MICROBATCH, Stages.SCHEDULER_PER_PROCESS},
        ),
        (stepped(0, 3), stepped(0, 1), Stages.SCHEDULER_PACE, set()),
        (stepped(1, 2), stepped(0, 1), Stages.LEARNING_RATE, {Stages.SCHEDULER_AHEAD}),
        (stepped(0, 1), stepped(1, 2), Stages.LEARNING_RATE, {Stages.SCHEDULER_BEHIND}),
        (stepped(3, 4), stepped(0, 1), Stages.LEARNING_RATE, {Stages.SCHEDULER_CAUSE}),
        (
            stepped(0, 1, rates=(2e-3, 1.7e-3)),
            stepped(0, 1),
            Stages.LEARNING_RATE,
            {Stages.SCHEDULE_SETTINGS},
        ),
        (  # the formula is that of the next step
            stepped(0, 1, rates=COSINE[1:]),
            stepped(0, 1),
            Stages.RATE_EARLIER,
            {Stages.SCHEDULE_SETTINGS},
        ),
    ],
)
def test_where_schedulers_stand(
    tmp_path: Path, target: Any, reference: Any, headline: Stages, causes: set[Stages]
) -> None:
    (finding,) = schedule_findings(pair(tmp_path, target, reference), known=set())
    assert finding.headline.code is headline
    assert {cause.code for cause in finding.causes} == causes
    said = codes_of([finding.headline, *finding.evidence])
    stand = {Stages.SCHEDULER_PACE, Stages.SCHEDULER_BEFORE, Stages.SCHEDULERS_ALIKE}
    alike = causes == {Stages.SCHEDULE_SETTINGS}
    is_pace = headline is Stages.SCHEDULER_PACE
    assert said & stand == {
        Stages.SCHEDULER_PACE if is_pace else Stages.SCHEDULERS_ALIKE if alike else Stages.SCHEDULER_BEFORE
    }


def test_another_number_of_schedulers_tells_nothing(tmp_path: Path) -> None:
    two = [step(PLAIN)], {"lines": [{"learning_rate": [2e-3], "scheduler_steps": [1, 1]}]}
    (finding,) = schedule_findings(pair(tmp_path, two, stepped(0)), known=set())
    assert codes_of(finding.evidence).isdisjoint({Stages.SCHEDULER_BEFORE, Stages.SCHEDULERS_ALIKE})


@pytest.mark.parametrize(
    ("target", "reference", "cause"),
    [
        ((1e-3, 1.5e-3), (0.5e-3, 1e-3), Stages.SCHEDULER_AHEAD),
        ((0.5e-3, 1e-3), (1e-3, 1.5e-3), Stages.SCHEDULER_BEHIND),
        ((1e-3, 2e-3), (0.5e-3, 1e-3), None),  # twice the rate, in a warmup
        ((3e-4, 9e-4), (1e-4, 3e-4), None),
        ((1e-3, 0.9e-3), (1e-3, 0.95e-3), None),
        ((1e-3, 1e-3), (1.1e-3, 1e-3), None),
    ],
    ids=["ahead", "behind", "twice", "three times", "another decay", "constant"],
)
def test_two_steps_show_a_schedule_that_is_one_step_off(
    tmp_path: Path, target: Any, reference: Any, cause: Stages | None
) -> None:
    context = pair(tmp_path, with_rates(*target), with_rates(*reference))
    codes = codes_of(said_by(OptimizerStage().check(context).findings))
    known = {Stages.SCHEDULER_AHEAD, Stages.SCHEDULER_BEHIND}
    assert codes & known == ({cause} if cause else set())
    assert (Stages.SCHEDULE_SETTINGS in codes) == (cause is None)


def test_a_rate_that_never_changes_has_no_schedule(tmp_path: Path) -> None:
    context = pair(tmp_path, with_rates(2e-3, 2e-3, 2e-3), with_rates(1e-3, 1e-3, 1e-3))
    codes = codes_of(said_by(OptimizerStage().check(context).findings))
    assert Stages.LEARNING_RATE in codes
    assert Stages.SCHEDULER_CAUSE not in codes


def of_microbatches(num: int) -> tuple[Any, Any]:
    updated = {**gradients(1), UPDATED: W}
    return [step({"w": updated})], {"lines": [{"microbatches": num}]}


@pytest.mark.parametrize(
    ("target", "data", "causes"),
    [
        (1, StageStatus.PASSED, {Stages.STEP_EACH_CAUSE, Stages.ACCUMULATION_CAUSE}),
        (8, StageStatus.PASSED, {Stages.ACCUMULATION_CAUSE}),
        (4, StageStatus.PASSED, None),
        (1, StageStatus.FAILED, None),
    ],
    ids=["each", "more", "the same", "other data"],
)
def test_microbatches_of_an_update(
    tmp_path: Path, target: int, data: StageStatus, causes: set[Stages] | None
) -> None:
    sides = of_microbatches(target), of_microbatches(4)
    findings = OptimizerStage().check(pair(tmp_path, *sides, earlier=[passed(Stage.DATA, data)])).findings
    if causes is None:
        assert findings == ()
        return
    assert facts_of([findings[0].headline], Stages.STEPS_AFTER) == {"target": target, "reference": 4}
    assert {one.code for one in findings[0].causes} & {
        Stages.STEP_EACH_CAUSE,
        Stages.ACCUMULATION_CAUSE,
    } == causes


def with_moments(first: Array, beta: float = 0.9) -> list[Recorder]:
    """Two steps of Adam; ``first``: the moment that the second step begins with."""
    steps, moment = [], np.zeros_like(W)
    for number in range(2):
        made = dict(gradients(1 + number))
        moment = np.float32(beta) * (first if number else moment) + np.float32(1 - beta) * made[CLIPPED]
        state = {("optimizer", "state.exp_avg"): moment, ("optimizer", "state.exp_avg_sq"): moment**2 + 1}
        count = {("optimizer", "state.step"): np.array(number + 1, np.float32)}
        steps.append(step({"w": {**made, UPDATED: W - moment, **state, **count}}))
    return steps


@pytest.mark.parametrize(("changed", "seen"), [(2.0, True), (1.0, False)])
def test_state_that_changes_between_two_steps(tmp_path: Path, changed: float, seen: bool) -> None:
    kept = np.float32(0.1) * gradients(1)[CLIPPED]
    context = pair(tmp_path, (with_moments(kept + (changed - 1) * drawn(9)), {}), (with_moments(kept), {}))
    assert (Stages.STATE_CHANGED in codes_of(said_by(OptimizerStage().check(context).findings))) is seen


# -- weights from one step to the next ------------------------------------------

OLD, NEW = drawn(20, 40, 50), drawn(21, 40, 50)


def working_copy(stale: int) -> list[Recorder]:
    """The weights of two steps, of which so many rows are in the second still those of the first."""
    made = gradients(1)
    later = np.where(np.arange(40)[:, None] < stale, OLD, NEW)
    of_step = {slot: made[slot] for slot in (LOCAL, ACCUMULATED)}
    return [step({"w": {WEIGHT: weight, **of_step}}) for weight in (OLD, later)]


HANDED_BACK = {
    Stages.NOT_COPIED_BACK,
    Stages.STALE_ELEMENTS,
    Stages.COPY_BEFORE_UPDATE,
    Stages.PARTS_NOT_GATHERED,
    Stages.NUM_WEIGHTS,
    Stages.COPY_UPDATED,
}


@pytest.mark.parametrize("rows", [40, 10, 0])
def test_updates_that_do_not_reach_the_model(tmp_path: Path, rows: int) -> None:
    context = pair(tmp_path, (working_copy(rows), {}), (working_copy(0), {}))
    said = said_by(OptimizerStage().check(context).findings)
    assert codes_of(said) & HANDED_BACK == (HANDED_BACK if rows else set())
    if rows:
        facts = facts_of(said, Stages.STALE_ELEMENTS)
        assert facts == {"parameter": "w", "share": rows / 40, "step": 0}
        assert facts_of(said, Stages.NUM_WEIGHTS) == {"num": 1, "ranks": 1}
    assert Stages.SAME_UPDATES not in codes_of(said)  # no update was recorded


@pytest.mark.parametrize(("apart", "same"), [(0.0, True), (0.5, False)])
def test_updates_that_agree_before_they_are_lost(tmp_path: Path, apart: float, same: bool) -> None:
    sides = []
    for stale, off in ((40, apart), (0, 0.0)):
        first, second = working_copy(stale)
        held = first.call("parameter", "flat.0")
        first.record(held, "optimizer", "param", (NEW + np.float32(off)).ravel())
        sides.append(([first, second], {}))
    said = said_by(OptimizerStage().check(pair(tmp_path, *sides)).findings)
    assert (Stages.SAME_UPDATES in codes_of(said)) is same
    assert Stages.NOT_COPIED_BACK in codes_of(said)


def of_two_steps(left: Array, begins: Array) -> tuple[Any, Any]:
    first, second = {**gradients(1), UPDATED: left}, {**gradients(2), WEIGHT: begins}
    return [step({"w": first}), step({"w": second})], {}


@pytest.mark.parametrize(
    ("begins", "code"),
    [
        (drawn(30), WeightsCode.OVERWRITTEN),
        (gradients(1)[WEIGHT], WeightsCode.UNDONE),
        (drawn(31), None),
    ],
    ids=["another", "the old one", "the updated one"],
)
def test_weights_after_an_update(tmp_path: Path, begins: Array, code: WeightsCode | None) -> None:
    context = pair(tmp_path, of_two_steps(drawn(31), begins), of_two_steps(drawn(31), drawn(31)))
    findings = OptimizerStage().check(context).findings
    assert [one.headline.code for one in findings] == ([] if code is None else [code])
    for one in findings:  # the reference's next step begins with what its update left
        assert one.counter_evidence == (reason(WeightsCode.REFERENCE_KEEPS),)
        assert one.next_note == reason(WeightsCode.CHECK_AFTER_STEP)
        assert one.causes == ()  # the update was made: no cause of a dropped one


@pytest.mark.parametrize(
    ("left", "begins", "code"),
    [
        (drawn(31), np.minimum(drawn(31), np.float32(0.5)), WeightsCode.LIMITED_AFTER),
        (drawn(31), np.maximum(drawn(31), np.float32(-0.5)), WeightsCode.LIMITED_AFTER),
        (drawn(31), np.clip(drawn(31), np.float32(-0.5), np.float32(0.5)), WeightsCode.RANGE_AFTER),
        (drawn(31), np.float32(0.5) * drawn(31), WeightsCode.RANGE_AFTER),
        (drawn(32), np.minimum(drawn(31), np.float32(0.5)), None),
        (drawn(31), drawn(31), None),
    ],
    ids=["at most", "at least", "both", "scaled", "another update", "kept"],
)
def test_weights_that_the_reference_alone_changes(
    tmp_path: Path, left: Array, begins: Array, code: WeightsCode | None
) -> None:
    """The target begins its next step with what its update left, which is what the reference's did."""
    context = pair(tmp_path, of_two_steps(left, left), of_two_steps(drawn(31), begins))
    findings = OptimizerStage().check(context).findings
    assert (WeightsCode.WRITTEN_IN_REFERENCE in codes_of(said_by(findings))) is (code is not None)
    if code is not None:
        (found,) = findings
        assert found.evidence[0].code is code
        assert [one.code for one in found.causes] == [WeightsCode.WRITTEN_CAUSE]


def half_of(master: Array, *, apart: bool, stale: bool = False) -> tuple[Any, Any]:
    """Copies in float16 of what an optimizer holds, over two steps."""
    copies = [(drawn(40) / 8).astype(np.float16), master.astype(np.float16)]
    if apart:
        copies[1] = (master * np.float32(1.25)).astype(np.float16)
    if stale:
        copies[1] = copies[0]
    steps = []
    for copy in copies:
        made = {WEIGHT: copy, LOCAL: drawn(41).astype(np.float16)}
        one = step({"w": made})
        one.record(one.call("parameter", "AdamW.group0.0"), "optimizer", "param", master)
        steps.append(one)
    facts = {"parameters": [{"fqn": "w", "shape": [8, 8], "dtype": "float16", "requires_grad": True}]}
    return steps, {"facts": facts}


@pytest.mark.parametrize(("apart", "stale"), [(True, False), (False, True), (False, False)])
def test_copies_that_are_not_the_rounded_masters(tmp_path: Path, apart: bool, stale: bool) -> None:
    sides = half_of(drawn(42) / 8, apart=apart, stale=stale), half_of(drawn(42) / 8, apart=False)
    said = said_by(OptimizerStage().check(pair(tmp_path, *sides)).findings)
    assert (WeightsCode.NOT_THE_MASTERS in codes_of(said)) is apart
    copies = facts_of(said, WeightsCode.STALE_COPIES)
    assert copies == ({"num": 1, "step": 1, "before": 0} if stale else None)
    assert (CauseCode.COPY_NOT_UPDATED in codes_of(said)) is stale


# -- weights at the start ------------------------------------------


def frozen_beside(value: Array, *, gradient: bool = False) -> tuple[Any, Any]:
    """A weight that is updated, and one that holds ``value`` after the first step."""
    held: list[Any] = []
    for at, frozen in enumerate((W, value)):
        trained = {**gradients(1 + at), WEIGHT: drawn(40 + at), UPDATED: drawn(41 + at)}
        of_frozen = {WEIGHT: frozen, **({LOCAL: W, ACCUMULATED: W} if gradient else {})}
        held.append(step({"w": trained, "base": of_frozen}))
    return held, {}


@pytest.mark.parametrize(
    ("target", "reference", "gradient", "side"),
    [
        (W + 1, W, False, "target"),
        (W, W + 1, False, None),
        (W, W, False, None),
        (W + 1, W + 1, False, None),
        (W + 1, W + 2, False, None),
        (W + 1, W, True, None),
    ],
    ids=[
        "merged",
        "told as an update that is lost",
        "kept",
        "in both",
        "otherwise in both",
        "with a gradient",
    ],
)
def test_weights_that_nothing_updates(
    tmp_path: Path, target: Array, reference: Array, gradient: bool, side: str | None
) -> None:
    sides = (frozen_beside(held, gradient=gradient) for held in (target, reference))
    findings = OptimizerStage().check(pair(tmp_path, *sides)).findings
    said = [one.headline for one in findings if one.headline.code is Stages.FROZEN_MOVED]
    assert [one.place("side") for one in said] == ([] if side is None else [side])
    if said:
        assert (said[0].number("num"), said[0].number("step")) == (1, 0)
    named = [one for found in findings for one in found.evidence if one.code is Stages.FROZEN_NAMED]
    assert [one.number("total") for one in named] == [1] * len(said)


def tied(to: str | None) -> tuple[Any, Any]:
    table = [
        {"fqn": name, "shape": [8, 8], "dtype": "float32", "requires_grad": True, "tied_to": held}
        for name, held in (("emb", None), ("head", to))
    ]
    parts = {"emb": gradients(1), "head": gradients(2)}
    return [step(parts)], {"facts": {"parameters": table}}


@pytest.mark.parametrize(
    ("target", "reference"), [("emb", None), (None, "emb"), ("emb", "emb"), (None, None)]
)
def test_ties(tmp_path: Path, target: str | None, reference: str | None) -> None:
    outcome = WeightsStage().check(pair(tmp_path, tied(target), tied(reference)))
    said = said_by(outcome.findings)
    told = {WeightsCode.TIE, WeightsCode.TIED_GRADIENT, WeightsCode.TIE_CAUSE, WeightsCode.TIE_BOTH}
    assert codes_of(said) & told == (told if target != reference else set())
    if target != reference:
        sides = {"target": target or "", "reference": reference or ""}
        assert facts_of(said, WeightsCode.TIE) == {"parameter": "head", **sides}


@pytest.mark.parametrize("known", [False, True])
def test_weights_without_a_digest(tmp_path: Path, known: bool) -> None:
    from trueup.numerics.summary import HAS_STATISTICS

    sides = []
    for want in (None if known else HAS_STATISTICS, None):
        out = Recorder() if want is None else Recorder(want=want)
        for name, seed in (("a", 1), ("b", 2)):
            made = Recorder() if name == "b" else out
            out.want = made.want
            out.record(out.call("parameter", name), "param", "value", drawn(seed))
        sides.append(out)
    outcome = WeightsStage().check(pair(tmp_path, *sides))
    facts = facts_of(outcome.evidence, WeightsCode.NO_DIGEST)
    assert facts == (None if known else {"parameter": "a"})


@pytest.mark.parametrize(
    ("target", "reference", "own"),
    [
        ((1, 1), (1, 1), False),
        ((1, 2), (1, 1), True),
        ((2, 2), (1, 1), False),
        ((2, 3), (1, 1), False),
        ((1, 2, 3), (1, 2, 1), False),
    ],
    ids=["the same", "of its own", "another on all", "others on all", "of their own in both"],
)
def test_weights_that_a_rank_draws_itself(
    tmp_path: Path, target: tuple[int, ...], reference: tuple[int, ...], own: bool
) -> None:
    """By the seeds from which each rank draws; the reference's ranks are expected to hold the same."""

    def drawing(seeds: tuple[int, ...]) -> tuple[Any, Any]:
        return [[step({"w": {WEIGHT: drawn(seed), LOCAL: W}}) for seed in seeds]], {}

    findings = WeightsStage().check(pair(tmp_path, drawing(target), drawing(reference))).findings
    assert bool(findings) is (target != reference)
    said = said_by(findings)
    assert facts_of(said, WeightsCode.OWN_OF_RANKS) == ({"ranks": ("1",)} if own else None)
    assert (WeightsCode.NOT_BROADCAST_CAUSE in codes_of(said)) is own


@pytest.mark.parametrize(
    ("target", "reference", "said"),
    [
        ((1, 1), (1, 2), (("1",), ("0",))),
        ((2, 1, 1), (1, 2, 3), (("0", "1", "2"), ("1", "0", "0"))),
        ((1, 3), (1, 2), None),
        ((3, 1), (1, 2), None),
        ((1, 1, 2), (1, 2, 1), None),
    ],
    ids=["the first's", "others' throughout", "of its own", "one of its own", "copies"],
)
def test_a_rank_that_holds_another_s_part(
    tmp_path: Path, target: tuple[int, ...], reference: tuple[int, ...], said: tuple[object, object] | None
) -> None:
    """By the seeds from which each rank's part of a weight comes."""

    def held(seeds: tuple[int, ...]) -> tuple[Any, Any]:
        return [[step({"w": {WEIGHT: drawn(seed), LOCAL: W}}) for seed in seeds]], {}

    findings = WeightsStage().check(pair(tmp_path, held(target), held(reference))).findings
    expected = None if said is None else {"ranks": said[0], "others": said[1]}
    assert facts_of(said_by(findings), WeightsCode.PART_OF_ANOTHER_RANK) == expected
    assert (WeightsCode.PARTS_CAUSE in codes_of(said_by(findings))) is (said is not None)


@pytest.mark.parametrize("rounded", [True, False])
def test_an_input_that_is_rounded_otherwise_is_not_scaled(tmp_path: Path, rounded: bool) -> None:
    pixels = drawn(3).astype(np.float64)
    relation = value_relation(pixels * (1.002 if rounded else 1.1), pixels, 2.0**-8)
    assert relation is not None
    book, _ = pair(tmp_path, counted(1.0), counted(1.0)).pair()
    found = _input_finding(book, "input.pixels", relation, (relation,))
    assert found.headline.code is (Stages.INPUT_ROUNDED if rounded else Stages.INPUT_SCALED)
    assert (CauseCode.COARSER_ON_ONE_SIDE in {one.code for one in found.causes}) is rounded


# -- what is done to gradients ------------------------------------------


def of_scale(scale: float, factor: float = 1.0) -> tuple[Any, Any]:
    made = gradients(1, 1 / scale, before=scale * factor)
    return [step({"w": made}, loss=2.0)], {"lines": [{"loss_scale": scale}]}


@pytest.mark.parametrize(
    ("target", "found"),
    [(of_scale(1024.0, 1.5), True), (of_scale(1024.0), False), (of_scale(512.0, 1.5), False)],
    ids=["other gradients", "only another scale", "the same scale"],
)
def test_loss_scales(tmp_path: Path, target: Any, found: bool) -> None:
    context = pair(tmp_path, target, of_scale(512.0))
    findings = ReductionStage().check(context).findings
    told = {Clip.LOSS_SCALE, Clip.LOSS_SCALE_CAUSE, Clip.SAME_LOSS_SCALE}
    assert codes_of(said_by(findings)) & told == (told if found else set())
    of_loss = origin(phase="loss", slot="value", module="", step=0)
    explained = explained_by(of_loss, context)
    differs = context.loss_scales_differ
    assert (explained is not None and explained.code is Stages.LOSS_SCALE_DIFFERS) is differs


def reporting(*factors: float) -> tuple[Any, Any]:
    """Steps of the same gradients; what each reports as their norm, times the norm."""
    norm = float(np.linalg.norm(drawn(1)))
    return [step(PLAIN) for _ in factors], {"lines": [{"grad_norm": norm * one} for one in factors]}


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ((2.0**-11, 2.0**-11), True),
        ((2.0**-11, 2.0**-10), False),
        ((0.7 * 2.0**-10, 0.7 * 2.0**-10), False),
        ((2.0**-11,), False),
    ],
    ids=["in every step", "in one of two", "by no power of two", "of one step"],
)
def test_gradients_scaled_before_their_norm(tmp_path: Path, target: tuple[float, ...], told: bool) -> None:
    context = pair(tmp_path, reporting(*target), reporting(*(2.0**-10 for _ in target)))
    (finding,) = reported_norm_findings(context)
    facts = {"target": 2.0**-11, "reference": 2.0**-10, "step": 0}
    assert facts_of([finding.headline], Clip.SCALED_BEFORE_NORM) == (facts if told else None)
    assert (finding.headline.code is VerdictCode.GRADIENT_NORM_DIFFERS) is not told
    assert [one.code for one in finding.causes] == [Clip.UNSCALED_CAUSE if told else Clip.NORM_CAUSE]


def clipped(*factors: float) -> Recorder:
    """So many parameters, each multiplied on its way to the optimizer."""
    return step({f"w{at}": gradients(at, factor) for at, factor in enumerate(factors)})


EVEN = (0.5,) * 5


@pytest.mark.parametrize(("factors", "uneven"), [((0.5, 0.5, 0.25, 0.5, 0.5), True), (EVEN, False)])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_weight_with_a_factor_of_its_own(
    tmp_path: Path, factors: tuple[float, ...], uneven: bool, ranks: int
) -> None:
    sides = [([[clipped(*one)] * ranks], {}) for one in (factors, EVEN)]
    findings = ReductionStage().check(pair(tmp_path, *sides)).findings
    said = said_by(findings)
    facts = facts_of(said, Clip.BY_PARAMETER)
    if not uneven:
        assert findings == ()
        return
    assert facts is not None
    assert (facts["num"], facts["parameter"]) == (1, "w2")
    assert (facts["usual"], facts["factor"]) == (pytest.approx(0.5), pytest.approx(0.25))
    assert Clip.SOME_SCALED_CAUSE in codes_of(said)
    assert (Clip.SUM_CAUSE in codes_of(said)) is (ranks > 1)  # one process sums over no others


def of_ranks(*factors: float, size: float = 1.0) -> tuple[Any, Any]:
    """What each rank's optimizer gets: the sum over all ranks, times a factor of the rank."""
    names = ("a", "b")
    parts = [{n: drawn(10 * rank + at) * np.float32(size) for at, n in enumerate(names)} for rank in range(3)]
    sums = {name: sum(part[name] for part in parts) for name in names}
    made = [
        {
            name: {
                WEIGHT: W,
                LOCAL: part[name],
                ACCUMULATED: part[name],
                CLIPPED: sums[name] * np.float32(factor),
            }
            for name in names
        }
        for part, factor in zip(parts, factors, strict=True)
    ]
    return [[step(one) for one in made]], {}


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (of_ranks(0.5, 1.0, 1.0), Clip.SOME_RANKS),
        (of_ranks(0.5, 0.5, 0.5), Clip.SUMS_SCALED),
        (of_ranks(1.0, 1.0, 1.0), None),
        (of_ranks(0.5, 0.5, 0.5, size=2.0), None),
    ],
    ids=["one rank", "all", "none", "larger ones to one norm"],
)
def test_factors_of_sums_over_ranks(tmp_path: Path, target: Any, code: Clip | None) -> None:
    findings = ReductionStage().check(pair(tmp_path, target, of_ranks(1.0, 1.0, 1.0))).findings
    assert [one.headline.code for one in findings] == ([] if code is None else [code])
    said = said_by(findings)
    assert {one.next_note.code for one in findings if one.next_note} == (
        {Clip.COMPARE_NORMS} if code else set()
    )
    told = {Clip.SOME_RANKS, Clip.RANK_FACTOR, Clip.SUMS_SCALED}
    expected = {Clip.SOME_RANKS: {Clip.SOME_RANKS, Clip.RANK_FACTOR}, Clip.SUMS_SCALED: {Clip.SUMS_SCALED}}
    assert codes_of(said) & told == (set() if code is None else expected[code])
    if code is Clip.SOME_RANKS:
        assert any(tells(one, Clip.RANK_FACTOR, rank=0, factor=0.5, usual=1.0) for one in said)
    if code is Clip.SUMS_SCALED:
        assert any(tells(one, Clip.SUMS_SCALED, factor=0.5) for one in said)


@pytest.mark.parametrize(
    ("target", "reference", "code"),
    [
        ((0.2, 2.0), 1 / 3, None),
        ((0.2, 1.0), 1 / 3, Clip.SUMS_SCALED),
        ((0.2, 2.0), 0.3, Clip.SUMS_SCALED),
        ((0.4, 2.0), 1 / 3, Clip.SUMS_SCALED),
    ],
    ids=["larger ones are cut", "as large", "the reference scales too", "larger and less divided"],
)
def test_means_over_ranks_of_which_the_larger_are_cut(
    tmp_path: Path, target: tuple[float, float], reference: float, code: Clip | None
) -> None:
    """A mean that the limit leaves alone, and a larger one cut to it: one clipping, the gradients differ."""
    factor, size = target
    sides = of_ranks(factor, factor, factor, size=size), of_ranks(reference, reference, reference)
    findings = ReductionStage().check(pair(tmp_path, *sides)).findings
    assert [one.headline.code for one in findings] == ([] if code is None else [code])


LAYOUT = {
    "version": 1,
    "mesh": {"dp": 3},
    "parameters": [{"name": "*", "dp": "invariant"}],
    "tensors": [],
    "batch": ["dp"],
}


@pytest.mark.parametrize(("odd", "seen"), [(1.5, True), (1.0, False)])
def test_copies_of_a_gradient_that_differ_on_some_ranks(tmp_path: Path, odd: float, seen: bool) -> None:
    """Three ranks put together, whose optimizers get one gradient, or one of them another."""
    from trueup.merging.sides import as_wholes

    def one(factor: float) -> Recorder:
        given = gradients(1)[CLIPPED] * np.float32(factor)
        return step({"w": {**gradients(1), CLIPPED: given, UPDATED: W - given}}, loss=2.0)

    target = run(tmp_path / "t", [one(1.0), one(odd), one(1.0)], layout=LAYOUT)
    reference = run(tmp_path / "r", one(1.0))
    sides = as_wholes(target, reference)
    assert sides.merged
    said = said_by(ReductionStage().check(context_of(sides.target, sides.reference)).findings)
    facts = facts_of(said, Clip.ON_RANKS)
    assert (facts is not None) is seen
    if facts is not None:
        assert facts["ranks"] == ("1",)


def reduced(*, own_of_second: bool) -> tuple[Any, Any]:
    """Two ranks with two microbatches; what each adds up is the sum over both ranks, or of the second
    microbatch its own."""
    parts = [[drawn(50 + 2 * rank + at) for at in range(2)] for rank in range(2)]
    first = parts[0][0] + parts[1][0]
    made = []
    for own in parts:
        second = own[1] if own_of_second else parts[0][1] + parts[1][1]
        total = first + second
        made.append(step({"w": {WEIGHT: W, LOCAL: own, ACCUMULATED: total, CLIPPED: total}}))
    return [made], {"lines": [{"microbatches": 2}]}


@pytest.mark.parametrize("partly", [True, False])
def test_microbatches_that_are_not_reduced(tmp_path: Path, partly: bool) -> None:
    context = pair(tmp_path, reduced(own_of_second=partly), reduced(own_of_second=False))
    said = said_by(ReductionStage().check(context).findings)
    facts = facts_of(said, Stages.PARTLY_REDUCED)
    assert (facts is not None) is partly
    if facts is not None:
        assert facts["microbatches"] == ("0",)


@pytest.mark.parametrize("reach", [False, True])
def test_gradients_that_never_reach_the_optimizer(tmp_path: Path, reach: bool) -> None:
    lost = {"a": gradients(1), "b": gradients(2) if reach else {WEIGHT: W, LOCAL: gradients(2)[LOCAL]}}
    context = pair(tmp_path, step(lost), step({"a": gradients(1), "b": gradients(2)}))
    said = said_by(ReductionStage().check(context).findings)
    facts = facts_of(said, Stages.NEVER_REACH)
    assert (facts is not None) is not reach


def counted(num: float) -> Recorder:
    made = gradients(1)
    moment = np.float32(0.1) * made[CLIPPED]
    state = {("optimizer", "state.exp_avg"): moment, ("optimizer", "state.exp_avg_sq"): moment**2}
    count = {("optimizer", "state.step"): np.array(num, np.float32)}
    return step({"w": {**made, UPDATED: made[WEIGHT] - moment, **state, **count}})


@pytest.mark.parametrize(("target", "seen"), [(1.0, True), (5.0, False)])
def test_step_counts_of_optimizers(tmp_path: Path, target: float, seen: bool) -> None:
    said = said_by(OptimizerStage().check(pair(tmp_path, counted(target), counted(5.0))).findings)
    told = {Stages.COUNT, Stages.STATE_NOT_RESTORED}
    assert codes_of(said) & told == (told if seen else set())
    if seen:
        assert facts_of(said, Stages.COUNT) == {"target": "1", "reference": "5"}


@pytest.mark.parametrize("counts", [(5.0, 1.0), (1.0, 5.0), (5.0, 5.0)])
def test_a_state_that_one_rank_alone_has(tmp_path: Path, counts: tuple[float, float]) -> None:
    """What differs is said of the first rank where it does, also where the ranks before it agree."""
    sides = [([[counted(one) for one in of_ranks]], {}) for of_ranks in (counts, (5.0, 5.0))]
    findings = OptimizerStage().check(pair(tmp_path, *sides)).findings
    assert [one.rank for one in findings] == ([counts.index(1.0)] if 1.0 in counts else [])
    assert (Stages.STATE_NOT_RESTORED in codes_of(said_by(findings))) is (1.0 in counts)


@pytest.mark.parametrize(("factors", "told"), [((0.25, 0.25), False), ((0.25, 0.05), True)])
def test_gradients_that_both_runs_multiply_by_one_number(
    tmp_path: Path, factors: tuple[float, float], told: bool
) -> None:
    """Of other norms: a loss scale is divided out, and nothing is clipped. A limit gives another factor."""
    made = [
        step({"w": {**gradients(1), ACCUMULATED: size * W, CLIPPED: np.float32(factor) * size * W}})
        for size, factor in zip((np.float32(1.0), np.float32(3.0)), factors, strict=True)
    ]
    said = said_by(ReductionStage().check(pair(tmp_path, *made)).findings)
    assert (Clip.NORM_DIFFERS in codes_of(said)) is told


# -- losses of the next step ------------------------------------------


def with_losses(*losses: float, inside: float = 1.0, back: float = 1.0, at: int = 1) -> tuple[Any, Any]:
    """A module and a loss, in each of two steps; ``inside``: what the module gives in the step ``at``, times
    this, ``back``: so its gradient."""
    steps = []
    for number, loss in enumerate(losses):
        out = step({"w": gradients(1, before=back if number == at else 1.0)})
        root = out.call("module", "", type_="Net")
        given, made = drawn(60 + number, 4, 8), drawn(70 + number, 4, 8)
        out.record(root, "forward", "input.0", given)
        inner = out.call("module", "inner", root, "Linear")
        out.record(inner, "forward", "input.0", given)
        out.record(inner, "forward", "output.0", made * np.float32(inside if number == at else 1.0))
        out.record(root, "forward", "output.0", drawn(80 + number, 4, 8))
        out.record(out.call("loss", "loss"), "loss", "value", np.array(loss, np.float32))
        steps.append(out)
    return steps, {"lines": [{"loss": loss} for loss in losses]}


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (with_losses(2.0, 1.5, inside=1.1, back=1.1), Stages.NEXT_LOSS_AGREES),
        (with_losses(2.0, 1.6, inside=1.1, back=1.1), None),
        (with_losses(2.0, 1.5), None),
    ],
    ids=["the loss agrees", "the loss differs", "all agrees"],
)
def test_a_next_loss_that_agrees_though_what_is_before_it_does_not(
    tmp_path: Path, target: Any, code: Stages | None
) -> None:
    outcome = NextLossStage().check(pair(tmp_path, target, with_losses(2.0, 1.5)))
    assert (outcome.conclusion.code is Stages.NEXT_LOSS_AGREES) is (code is not None)
    if code is not None:
        assert outcome.conclusion.number("num") == 1


@pytest.mark.parametrize(
    ("given", "own", "code"),
    [
        (1.5, 1.6, Stages.UPDATE_RIGHT),
        (1.55, 1.6, Stages.GIVEN_LOSS),
        (1.5, 1.5, Stages.GIVEN_LOSS),
        (1.5, 1.5 + 2**-22, Stages.GIVEN_LOSS),
    ],
    ids=["the reference's", "another", "both the reference's", "its own but for rounding"],
)
def test_the_next_loss_with_the_reference_s_gradients(
    tmp_path: Path, given: float, own: float, code: Stages
) -> None:
    steps, told = with_losses(2.0, given)
    replay = run(tmp_path / "g", *steps, **told)
    context = pair(tmp_path, with_losses(2.0, own), with_losses(2.0, 1.5), given=replay)
    said = NextLossStage().check(context).evidence
    assert codes_of(said) & {Stages.UPDATE_RIGHT, Stages.GIVEN_LOSS} == {code}
    assert facts_of(said, code) == {"given": given, "target": own, "reference": 1.5}


@pytest.mark.parametrize(
    ("apart", "at", "before", "code"),
    [
        (2**-20, 1, StageStatus.PASSED, Stages.LATE_DIFFERENCES),
        (2**-17, 1, StageStatus.PASSED, Stages.NO_STAGE),
        (2**-21, 0, StageStatus.PASSED, Stages.NO_STAGE),
        (2**-20, 1, StageStatus.UNDECIDED, Stages.NO_STAGE),
    ],
    ids=["a little, later", "far", "in the first step", "after an open stage"],
)
def test_differences_that_no_stage_finds(
    tmp_path: Path, apart: float, at: int, before: StageStatus, code: Stages
) -> None:
    target = with_losses(2.0, 1.5, inside=1 + apart, back=1 + apart, at=at)
    context = pair(tmp_path, target, with_losses(2.0, 1.5), earlier=[passed(Stage.FORWARD, before)])
    assert context.comparison.verdict.outcome is Outcome.DIFFER
    outcome, headline, _ = _verdict((), context)
    assert (outcome, headline.code) == (Outcome.UNDECIDED, code)


# -- data ------------------------------------------

IDS = np.random.default_rng(1).integers(0, 50, (2, 4, 12))
SHARED = {Stages.SAME_SHARD, Stages.SAME_ROWS, Stages.SAMPLER_CAUSE, Stages.GIVE_RANK}


def reading(first: Array, second: Array) -> tuple[Any, Any]:
    """Two ranks and what they read."""
    return [[step(PLAIN, inputs=[ids]) for ids in (first, second)]], {}


@pytest.mark.parametrize(
    ("target", "reference", "same"),
    [
        (reading(IDS[0], IDS[0]), reading(IDS[0], IDS[1]), True),
        (reading(IDS[0], IDS[0]), reading(IDS[0], IDS[0]), False),
        (reading(IDS[0], IDS[1][::-1]), reading(IDS[0], IDS[1]), False),
    ],
    ids=["in the target alone", "in both", "in none"],
)
def test_ranks_that_read_the_same_rows(tmp_path: Path, target: Any, reference: Any, same: bool) -> None:
    outcome = DataStage().check(pair(tmp_path, target, reference))
    assert codes_of(said_by(outcome.findings)) & SHARED == (SHARED if same else set())


OTHERS = np.random.default_rng(5).integers(0, 50, (2, 4, 12))
PARTLY = np.concatenate([IDS[0][:1], OTHERS[0][1:]])
ON_SOME = {CauseCode.SAMPLER_OF_RANK}
OF_ALL = {CauseCode.SAMPLE_ORDER, CauseCode.SHARD_OR_SEED, CauseCode.REPLAYED_AFTER_RESUME}


@pytest.mark.parametrize(
    ("target", "reference", "causes", "shared"),
    [
        (reading(IDS[0], OTHERS[0]), reading(IDS[0], IDS[1]), ON_SOME, None),
        (reading(OTHERS[1], OTHERS[0]), reading(IDS[0], IDS[1]), OF_ALL, None),
        (reading(IDS[0], PARTLY), reading(IDS[0], IDS[1]), ON_SOME, 1),
        (reading(OTHERS[1], np.roll(OTHERS[1], 1, 0)), reading(IDS[0], IDS[1]), ON_SOME, 4),
        (reading(OTHERS[1], OTHERS[0]), reading(IDS[0], PARTLY), OF_ALL, None),
        (reading(OTHERS[1] % 2, OTHERS[1] % 2), reading(IDS[0] % 2, IDS[1] % 2), OF_ALL, None),
    ],
    ids=["one rank", "all ranks", "a row of another rank", "the same rows", "in the reference", "by chance"],
)
def test_what_ranks_say_of_their_samplers(
    tmp_path: Path, target: Any, reference: Any, causes: set[CauseCode], shared: int | None
) -> None:
    findings = DataStage().check(pair(tmp_path, target, reference)).findings
    told = [one for one in said_by(findings) if one.code is Stages.ROWS_OF_RANKS]
    if any(one.headline.code is Stages.SAME_SHARD for one in findings):
        return
    assert {one.code for one in findings[0].causes} == causes
    assert [one.facts["num"] for one in told] == ([] if shared is None else [shared])


PICTURES = np.random.default_rng(6).normal(size=(2, 8, 64)).astype(np.float32)
NOISED = PICTURES + 0.1 * np.random.default_rng(7).normal(size=PICTURES.shape).astype(np.float32)


def seeing(*pictures: Array) -> tuple[Any, Any]:
    """Two ranks and the pictures they are given, with digests of them."""
    lines = [
        {"step": 0, "rank": at, "batch_digest": f"{zlib.crc32(one.tobytes()):x}"}
        for at, one in enumerate(pictures)
    ]
    return reading(*pictures)[0], {"lines": lines}


@pytest.mark.parametrize(
    ("target", "cause"),
    [
        (seeing(PICTURES[0], NOISED[1]), Stages.MADE_BY_RANK_CAUSE),
        (seeing(NOISED[0], NOISED[1]), Stages.MADE_BEFORE_CAUSE),
    ],
    ids=["one rank", "all ranks"],
)
def test_samples_that_are_made_otherwise_on_some_ranks(tmp_path: Path, target: Any, cause: Stages) -> None:
    (finding,) = DataStage().check(pair(tmp_path, target, seeing(*PICTURES))).findings
    assert [one.code for one in finding.causes] == [cause]


@pytest.mark.parametrize(
    ("steps", "others", "headline"),
    [
        ((OTHERS[0], IDS[0]), (IDS[0], IDS[1]), "elsewhere_in_target"),
        ((IDS[1], OTHERS[0]), (IDS[0], IDS[1]), "elsewhere"),
        ((OTHERS[0], np.concatenate([IDS[0][:1], OTHERS[1][1:]])), (IDS[0], IDS[1]), "other"),
    ],
    ids=["later in the target", "later in the reference", "a quarter"],
)
def test_rows_that_stand_in_another_step(
    tmp_path: Path, steps: tuple[Array, Array], others: tuple[Array, Array], headline: str
) -> None:
    runs = [([step(PLAIN, inputs=[ids]) for ids in of], {}) for of in (steps, others)]
    (finding,) = DataStage().check(pair(tmp_path, *runs)).findings
    assert finding.headline.place("relation") == headline
    told = {one.code for one in finding.evidence} & {Stages.ELSEWHERE, Stages.ELSEWHERE_IN_TARGET}
    assert told == {Stages.ELSEWHERE if headline == "elsewhere" else Stages.ELSEWHERE_IN_TARGET}


def masked(mask: Array, factor: float = 1.0) -> Recorder:
    """A model that is given a mask, and gradients times a factor."""
    out = step({"w": gradients(1, before=factor)})
    root = out.call("module", "", type_="Net")
    out.record(root, "forward", "input.0", IDS[0])
    out.record(root, "forward", "input.attention_mask", mask)
    out.record(out.call("loss", "loss"), "loss", "value", np.array(2.0, np.float32))
    return out


def beginning(*tokens: int, at: int = 0) -> Recorder:
    """A model that is given rows which hold these tokens at one position."""
    ids = IDS[0].copy()
    ids[:, at] = tokens if len(tokens) > 1 else tokens[0]
    return step({"w": gradients(1, before=sum(tokens))}, inputs=[ids])


@pytest.mark.parametrize(
    ("target", "reference", "begin"),
    [
        (beginning(1), beginning(2), True),
        (beginning(1, at=5), beginning(2, at=5), False),
        (beginning(1, 2, 3, 4), beginning(2), False),
    ],
    ids=["the first", "a later one", "one a row"],
)
def test_rows_that_begin_with_another_token(
    tmp_path: Path, target: Recorder, reference: Recorder, begin: bool
) -> None:
    (finding,) = DataStage().check(pair(tmp_path, target, reference)).findings
    causes = [one.code for one in finding.causes]
    assert (causes == [CauseCode.FIRST_TOKEN]) is (CauseCode.FIRST_TOKEN in causes) is begin


SHOWN = (np.arange(12) < 8) * np.ones((4, 1), np.int64)


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (masked(2 * SHOWN), Stages.BATCH_IN_OTHER_FORM),
        (masked(2 * SHOWN, 1.2), Stages.INPUT_DIFFERS),
        (masked(SHOWN), Stages.SAME_BATCHES),
    ],
    ids=["nothing comes of it", "other gradients", "the same"],
)
def test_a_mask_in_another_form(tmp_path: Path, target: Recorder, code: Stages) -> None:
    assert DataStage().check(pair(tmp_path, target, masked(SHOWN))).conclusion.code is code


@pytest.mark.parametrize(
    ("factor", "code"),
    [(1.0, Stages.BATCH_IN_OTHER_FORM), (1.2, Stages.BATCH)],
    ids=["same", "other gradients"],
)
def test_rows_one_after_another(tmp_path: Path, factor: float, code: object) -> None:
    """One row without padding for padded rows: what comes of it tells."""

    def given(ids: Array, factor: float) -> Recorder:
        out = step({"w": gradients(1, before=factor)})
        out.record(out.call("module", "", type_="Net"), "forward", "input.0", ids)
        out.record(out.call("loss", "loss"), "loss", "value", np.array(2.0, np.float32))
        return out

    padded = np.concatenate([IDS[0], np.zeros((4, 3), np.int64)], 1)
    context = pair(tmp_path, given(IDS[0].reshape(1, -1), factor), given(padded, 1.0))
    assert DataStage().check(context).conclusion.code is code


def divided(by: float, *, given: bool = False) -> Recorder:
    """A model that makes its loss: the cross-entropy of 48 tokens over a number, which it may be given."""
    logits = np.random.default_rng(2).normal(size=(48, 50)).astype(np.float32)
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    sent, value = (chances - np.eye(50)[IDS[1].ravel()]) / by, np.array(200 / by, np.float32)
    out = step({"w": gradients(1, before=96 / by)})
    root, loss = out.call("module", "", type_="Net"), out.call("loss", "loss")
    out.record(root, "forward", "input.ids", IDS[0])
    if given:
        out.record(root, "forward", "input.items", np.array(by, np.float32))
    out.record(root, "forward", "output.logits", logits)
    out.record(root, "forward", "output.loss", value)
    out.record(loss, "loss", "labels.0", IDS[1].ravel())
    out.record(loss, "loss", "value", value)
    out.record(root, "backward", "output.logits", sent.astype(np.float32))
    return out


@pytest.mark.parametrize(
    ("target", "seen"),
    [
        (divided(48.0, given=True), True),
        (divided(96.0, given=True), False),
        (divided(48.0), False),
    ],
    ids=["by what it is given", "by the same", "nothing is given"],
)
def test_what_a_model_divides_its_loss_by(tmp_path: Path, target: Recorder, seen: bool) -> None:
    findings = DataStage().check(pair(tmp_path, target, divided(96.0))).findings
    said = said_by(findings)
    given = [one for one in findings if one.headline.code is Stages.INPUT_OF_ONE_SIDE]
    assert all(one.next_note == reason(Stages.GIVE_BOTH, name="items") for one in given)
    assert not seen or given
    told = [one for one in said if one.code is Stages.LOSS_DIVIDED]
    assert bool(told) is seen
    assert all(tells(one, Stages.LOSS_DIVIDED, target=48.0, reference=96.0, tokens=48) for one in told)


# -- what stands in a run ------------------------------------------


@pytest.mark.parametrize(("status", "made", "code"), [
    (3, True, Stages.EXIT_STATUS),
    (0, True, None),
    (3, False, Stages.NO_STEP_LEFT),
])  # fmt: skip
def test_runs_that_end_with_an_error(tmp_path: Path, status: int, made: bool, code: Stages | None) -> None:
    trace = run(tmp_path / "t", step(PLAIN))
    work = AuxiliaryRuns(
        target=trace.path,
        reference=trace.path,
        sources=(trace, trace),
        output=tmp_path,
        clock=Clock(),
        say=lambda text: None,
    )
    folder = trace.path if made else tmp_path / "none"
    assert (work._made(folder, status, "replay") is not None) is made
    assert [one.code for one in work.notes] == ([] if code is None else [code])
    if code is not None:
        assert work.notes[0].facts == {"status": 3, "run": "replay"}


def in_order(rows: list[int]) -> Recorder:
    """A model that is given rows in an order."""
    out = step(PLAIN)
    root = out.call("module", "", type_="Net")
    emb = out.call("module", "emb", root, "Embedding")
    for call in (root, emb):
        out.record(call, "forward", "input.0", IDS[0][rows])
    out.record(emb, "forward", "output.0", drawn(3, 4, 12, 8)[rows])
    out.record(root, "forward", "output.0", drawn(4, 4, 12, 8)[rows])
    out.record(out.call("loss", "loss"), "loss", "value", np.array(2.0, np.float32))
    return out


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (([in_order([0, 1, 2, 3])] * 3, LAYOUT), Stages.LAYOUTS_DIFFER),
        (([in_order([2, 0, 3, 1])], None), Stages.ROWS_DIFFER_IN_PLACE),
        (([in_order([0, 1, 2, 3])], None), None),
    ],
    ids=["ranks", "rows", "neither"],
)
def test_runs_that_no_replay_fits(tmp_path: Path, target: Any, code: Stages | None) -> None:
    ranks, layout = target
    steps = ranks if len(ranks) > 1 else ranks[0]
    one = run(tmp_path / "t", steps, **({} if layout is None else {"layout": layout}))
    other = run(tmp_path / "r", in_order([0, 1, 2, 3]))
    replay = None if code is None else tmp_path / "replay"
    found = diagnose(one.path, other.path, output=tmp_path / "out", replay=replay, stages=())
    told = {Stages.LAYOUTS_DIFFER, Stages.ROWS_DIFFER_IN_PLACE}
    assert codes_of(found.notes) & told == ({code} if code else set())


@pytest.mark.parametrize(("rows", "shapes"), [(6, True), (4, False)])
def test_inputs_of_other_shapes_are_not_replayed(tmp_path: Path, rows: int, shapes: bool) -> None:
    context = pair(
        tmp_path,
        step(PLAIN, inputs=[drawn(1, rows, 8)], loss=2.0),
        step(PLAIN, inputs=[drawn(1, 4, 8)], loss=2.0),
    )
    trace = context.target
    work = AuxiliaryRuns(
        target=trace.path,
        reference=trace.path,
        sources=(trace, context.reference),
        output=tmp_path,
        clock=Clock(),
        say=lambda text: None,
    )
    replay = work.made_or_given(trace.path, (), context.comparison)
    assert (replay is None) is shapes
    assert [one.code for one in work.notes] == ([Stages.SHAPES_DIFFER] if shapes else [])


@pytest.mark.parametrize(("of_reference", "lacks"), [(True, True), (False, False)])
def test_a_sum_over_ranks_that_the_reference_alone_makes(
    tmp_path: Path, of_reference: bool, lacks: bool
) -> None:
    def one(number: int, *, sums: bool, factor: float = 1.0) -> Recorder:
        out = step(PLAIN)
        root = out.call("module", "", type_="Net")
        inner = out.call("module", "inner", root, "RowLinear")
        out.record(inner, "forward", "input.0", drawn(number, 4, 8))
        if sums:
            told = json.dumps({"input.group": "0 1"})
            call = out.call("collective", "torch.distributed.all_reduce", inner, arguments=told)
            out.record(call, "collective", "output.0", drawn(90, 4, 8))
        out.record(inner, "forward", "output.0", drawn(90, 4, 8) * np.float32(factor))
        return out

    target = [one(rank, sums=not of_reference, factor=1.3) for rank in range(2)]
    reference = [one(rank, sums=True) for rank in range(2)]
    context = pair(tmp_path, ([target], {}), ([reference], {}))
    finding = finding_from_origin(origin(module="inner", step=0), context)
    facts = facts_of(said_by([finding]), Stages.COLLECTIVE_MISSING)
    assert (facts is not None) is lacks
    if facts is not None:
        assert (facts["ranks"], facts["module"]) == (("0", "1"), "inner")


@pytest.mark.parametrize(
    ("code", "dtype", "cause"),
    [
        (VerdictCode.COMPUTES_IN, "tf32", CauseCode.TF32_ON_ONE_SIDE),
        (VerdictCode.COMPUTES_IN, "bfloat16", CauseCode.UPCAST_LEFT_OUT),
        (VerdictCode.SUMS_IN, "bfloat16", CauseCode.SUMS_IN_COARSE_DTYPE),
        (VerdictCode.WEIGHTS_IN, "bfloat16", CauseCode.MODEL_DTYPE),
    ],
)
def test_the_cause_of_another_precision(code: VerdictCode, dtype: str, cause: CauseCode) -> None:
    headline = reason(code, target=dtype, reference="float32")
    verdict = Verdict(outcome=Outcome.DIFFER, headline=headline)
    assert [one.code for one in finding_of_precision(verdict, Stage.FORWARD).causes] == [cause]


# -- labels ------------------------------------------


def labelled(wanted: Array, ids: Array = IDS[0]) -> Recorder:
    """A loss of these labels, and what the model is given."""
    out = step(PLAIN)
    root = out.call("module", "", type_="Net")
    out.record(root, "forward", "input.0", ids)
    emb = out.call("module", "emb", root, "Embedding")
    out.record(emb, "forward", "input.0", ids)
    out.record(emb, "forward", "output.0", drawn(3, 4, 12, 8))
    loss = out.call("loss", "loss")
    out.record(loss, "loss", "labels.0", wanted)
    out.record(loss, "loss", "value", np.array(2.0, np.float32))
    return out


TABLE = [{"fqn": "emb.weight", "shape": [50, 8], "dtype": "float32", "requires_grad": True}]
NEXT, OWN = np.roll(IDS[0], -1, axis=1), np.random.default_rng(9).integers(0, 50, (4, 12))
LABELS = {
    Batches.OUTSIDE,
    Batches.NUM_OUTSIDE,
    Batches.SHIFT_DIFFERS,
    Batches.LABELS_DIFFER,
    Batches.NUM_LABELS,
}


@pytest.mark.parametrize(
    ("target", "reference", "codes", "facts"),
    [
        (
            np.where(np.arange(12) == 3, 50, NEXT),
            NEXT,
            {Batches.OUTSIDE, Batches.NUM_OUTSIDE},
            {"num": 4},
        ),
        (np.roll(IDS[0], 1, axis=1), NEXT, {Batches.SHIFT_DIFFERS}, None),
        (np.roll(IDS[0], -2, axis=1), NEXT, set(), None),
        (
            np.where(np.arange(48).reshape(4, 12) == 7, (OWN + 1) % 50, OWN),
            OWN,
            {Batches.LABELS_DIFFER, Batches.NUM_LABELS},
            {"num": 1, "total": 48, "first": 7},
        ),
        (np.where(np.arange(12) == 3, -100, OWN), OWN, set(), None),
        (NEXT, NEXT, set(), None),
    ],
    ids=["outside", "shifted otherwise", "shifted twice", "one other", "fewer that count", "the same"],
)
def test_labels(
    tmp_path: Path, target: Array, reference: Array, codes: set[Any], facts: dict[str, Any] | None
) -> None:
    told = {"facts": {"parameters": TABLE}}
    context = pair(tmp_path, ([labelled(target)], told), ([labelled(reference)], told))
    outcome = DataStage().check(context)
    said = said_by(outcome.findings)
    assert codes_of(said) & LABELS == codes
    of_labels = [one for one in outcome.findings if (one.site or "").startswith("labels")]
    assert {one.next_note for one in of_labels} <= {reason(Batches.CHECK_LABELS)}
    agree = facts_of(outcome.evidence, Batches.LABELS_AGREE)
    assert (agree is not None) is np.array_equal(target, reference)
    if agree is not None:
        assert (agree["shift"], agree["counted"], agree["microbatch"]) == (1, 1.0, 0)
    if facts is not None:
        found = facts_of(said, Batches.NUM_OUTSIDE) or facts_of(said, Batches.NUM_LABELS) or {}
        assert {name: found.get(name) for name in facts} == facts


X = drawn(60)


def returning(made: Array) -> Recorder:
    """A model that returns ``made``, around a head that makes X."""
    out = step(PLAIN)
    root = out.call("module", "", type_="Net")
    head = out.call("module", "head", parent=root, type_="Linear")
    out.record(head, "forward", "output.0", X)
    out.record(root, "forward", "output.0", made)
    return out


@pytest.mark.parametrize(
    ("target", "reference", "explained"),
    [(X, 2 * X, True), (2 * X, X, False), (X, X, False), (3 * X, 2 * X, False)],
    ids=["as it is", "in the reference", "in both", "in neither"],
)
def test_gradients_of_what_a_module_around_returns(
    tmp_path: Path, target: Array, reference: Array, explained: bool
) -> None:
    context = pair(tmp_path, returning(target), returning(reference))
    around = finding_from_origin(origin(module="", step=0), context)
    forward = {"stage": Stage.FORWARD, "status": StageStatus.FAILED, "findings": (around,)}
    context.earlier.append(
        StageOutcome(title=Reason(Stages.TITLE), conclusion=around.headline, **forward)  # type: ignore[arg-type]
    )
    sent = origin(phase="backward", slot="input.0", module="head", step=0)
    assert (explained_by(sent, context) is not None) is explained
    assert explained_by(origin(phase="backward", slot="input.0", module="other", step=0), context) is None


@pytest.mark.parametrize(
    ("name", "rank", "leads"),
    [
        ("expert_bias", EvidenceRank.EVERY_ELEMENT, True),
        ("expert_bias", EvidenceRank.STATED, False),
        ("running_mean", EvidenceRank.EVERY_ELEMENT, False),
        ("running_mean", EvidenceRank.SOME, True),
    ],
)
def test_a_buffer_that_begins_with_other_content(name: str, rank: EvidenceRank, leads: bool) -> None:
    begins = reason(EvidenceCode.BUFFER_BEGINS, name=name, module="moe", step=1, target=1.0, reference=2.0)
    seen = kind_named("transposed_or_permuted", rank, reason(Stages.ORIGIN, module="moe", stage="forward"))
    kinds = _with_buffers((seen,), (begins,))
    assert (kinds[0].sentence == begins) is leads
    assert kinds[-1] == seen
    assert not leads or kinds[0].causes == ()
