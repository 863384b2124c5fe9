"""What the other stages say, checked from what went into the runs and the sentence alone."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.curves.simulating import Truth, simulate
from tests.diagnosing.cases import origin
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
from trueup.curves.comparison import Options, compare_curves
from trueup.diagnosing.stages.config import ConfigStage, beside_findings, configurations, settled
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.data import DataStage
from trueup.diagnosing.stages.forward import (
    BackwardStage,
    ForwardStage,
    explained_by,
    loss_values,
    norm_values,
)
from trueup.diagnosing.stages.long_run import LongRunStage
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.diagnosing.stages.weights import WeightsStage
from trueup.store.view import LOCAL, WEIGHT
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes import WeightsCode as Weights
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import Basis, Finding, Stage
from trueup.types.reason import Reason, reason
from trueup.types.status import Outcome
from trueup.wording import text

PLAIN = {"w": gradients(1)}

# -- configurations ------------------------------------------

SETTINGS: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 64,
    "learning_rate": 1e-3,
    "lr_schedule": "cosine",
    "decay_steps": 1000,
    "clip_grad": 1.0,
}
GRAVE: dict[str, Any] = {"clip_grad": 1.000003, "num_layers": 3}
LIGHT: dict[str, Any] = {"seed": 7, "tensor_model_parallel_size": 2}


def with_settings(folder: Path, changed: dict[str, Any]) -> Context:
    folder.mkdir()
    sides = {
        "t": {**SETTINGS, **dict.fromkeys(LIGHT, 1), **changed},
        "r": {**SETTINGS, **dict.fromkeys(LIGHT, 1)},
    }
    for name, values in sides.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    given = str(folder / "t.json"), str(folder / "r.json")
    trace = run(folder / "trace", step(PLAIN))
    return context_of(trace, trace, configurations=configurations(folder, folder, given))


def rows_in(said: list[Reason]) -> dict[str, tuple[str, str]]:
    """Settings that are said to differ, as printed."""
    rows = [one for one in said if one.code is Stages.CONFIG_ROW]
    rows += [part for one in said for part in one.parts if part.code is Stages.CONFIG_ROW]
    return {str(one.facts["key"]): (str(one.facts["target"]), str(one.facts["reference"])) for one in rows}


@pytest.mark.parametrize("grave", [{}, *({key: of} for key, of in GRAVE.items()), GRAVE], ids=len)
@pytest.mark.parametrize("light", [{}, LIGHT], ids=["", "light"])
def test_settings_that_differ(tmp_path: Path, grave: dict[str, Any], light: dict[str, Any]) -> None:
    context = with_settings(tmp_path / "c", {**grave, **light})
    own = ConfigStage().check(context)
    said = [own.conclusion, *own.evidence]
    assert own.status is (StageStatus.FAILED if grave else StageStatus.PASSED)
    rows = rows_in(said)
    assert len(rows) >= len(grave)
    if len(grave) > 1:
        grave_rows = rows_in([one for one in own.evidence if one.code is Stages.CONFIG_ROW])
        assert own.conclusion == reason(Stages.CONFIGS_DIFFER, num=len(grave_rows), keys=list(grave_rows))
    assert all(target != reference for target, reference in rows.values())
    assert all(
        float(reference) == SETTINGS.get("clip_grad")
        for key, (_, reference) in rows.items()
        if key == "clip_grad"
    )
    light_rows = rows_in([one for one in own.evidence if one.code is Stages.MAY_CHANGE_ROUNDING])
    assert bool(light_rows) is bool(light)
    compared = int(own.conclusion.facts["num"]) if own.conclusion.code is Stages.CONFIG_ALIGNED else 0
    if own.conclusion.code is Stages.CONFIG_ALIGNED:
        assert compared == context.configurations.num_compared if context.configurations else False
        assert "always" in text(own.conclusion) or not light
        beside = Finding(
            stage=Stage.FORWARD,
            headline=reason(
                Stages.SETTING_DIFFERS, module="", type="", name="eps", target="1", reference="2"
            ),
            module="",
            site="x",
            basis=Basis.RECORDED,
        )
        (with_it,) = beside_findings((own,), [beside], context)
        assert with_it.conclusion == reason(Stages.CONFIG_ALIGNED_BUT, num=compared, names=("eps",))
        assert text(with_it.conclusion).endswith(" does")
        assert beside_findings((own,), [], context) == (own,)
    for status in (StageStatus.PASSED, StageStatus.FAILED, StageStatus.SKIPPED):
        others = [
            passed(stage, status)
            for stage in (Stage.FORWARD, Stage.REDUCTION, Stage.OPTIMIZER, Stage.LONG_RUN)
        ]
        weighed = settled((own, *others), context)[0]
        assert weighed is own if not grave else True
        for one in weighed.evidence:
            if one.code is Stages.WITHOUT_EFFECT:  # only where a stage it acts in agrees
                assert status is StageStatus.PASSED
        for finding in weighed.findings:
            if finding.headline.code is Stages.STEPS_AGREE_BUT:
                assert status is not StageStatus.FAILED
            causes = {one.code for one in finding.causes}
            assert causes <= {Stages.RULE_WHY}
            assert finding.next_note is not None
            assert finding.next_note.code in (Stages.RULE_ADVICE, Stages.ALIGN_SETTINGS)


@pytest.mark.parametrize("code", [Stages.CLEARED_BEFORE_UPDATE, Stages.STEPS_AFTER])
def test_what_is_counted_in_a_part_of_a_step_is_no_setting(code: Stages, tmp_path: Path) -> None:
    """Runs that stored their batch size counted it in what they took for a step."""
    sides = [run(tmp_path / n, step(PLAIN), lines=[{"global_batch_size": size}]) for n, size in BATCHES]
    context = context_of(*sides, configurations=configurations(*(side.path for side in sides)))
    own = ConfigStage().check(context)
    assert own.status is StageStatus.FAILED
    headline = reason(code, target=1, reference=2)
    stepping = Finding(stage=Stage.OPTIMIZER, headline=headline, module=None, site="x", basis=Basis.RECORDED)
    failed = replace(passed(Stage.OPTIMIZER, StageStatus.FAILED), findings=(stepping,))
    weighed = settled((own, failed), context)[0]
    is_part = code is Stages.CLEARED_BEFORE_UPDATE
    assert (weighed.status is StageStatus.PASSED) is is_part
    assert bool(weighed.findings) is not is_part


@pytest.mark.parametrize("status", [StageStatus.PASSED, StageStatus.UNDECIDED])
def test_a_count_of_the_same_batches_is_no_setting(status: StageStatus, tmp_path: Path) -> None:
    """Of two models in a step, what one is given of the other is a batch where the program detaches it."""
    sides = [run(tmp_path / n, step(PLAIN), lines=[{"global_batch_size": size}]) for n, size in BATCHES]
    context = context_of(*sides, configurations=configurations(*(side.path for side in sides)))
    weighed = settled((ConfigStage().check(context), passed(Stage.DATA, status)), context)[0]
    assert (weighed.status is StageStatus.PASSED) is (status is StageStatus.PASSED)


BATCHES = (("target", 4), ("reference", 8))


def test_runs_without_settings(tmp_path: Path) -> None:
    trace = run(tmp_path / "t", step(PLAIN))
    outcome = ConfigStage().check(context_of(trace, trace, configurations=None))
    assert (outcome.status, outcome.conclusion.code) == (StageStatus.SKIPPED, Stages.NO_CONFIGURATION)


# -- the long run ------------------------------------------


@pytest.mark.parametrize("parts", [0.0, 0.5])
@pytest.mark.parametrize("before", [None, Stage.FORWARD])
def test_curves(tmp_path: Path, parts: float, before: Stage | None) -> None:
    target, references = simulate(Truth(), 3)
    target = replace(target, frame=target.frame.with_columns(pl.col("loss") + parts))
    found = compare_curves(target, references, Options())
    trace = run(tmp_path / "t", step(PLAIN))
    earlier = [] if before is None else [passed(before, StageStatus.FAILED)]
    outcome = LongRunStage().check(context_of(trace, trace, curves=found, earlier=earlier))
    if found.judgement.outcome is Outcome.DIFFER and before is not None:
        assert (outcome.status, outcome.conclusion.code) == (StageStatus.CONSEQUENCE, Stages.MAY_FOLLOW)
        assert outcome.conclusion.facts["stage"] == before.value
    else:
        assert outcome.conclusion.code is not Stages.MAY_FOLLOW
    for one in outcome.evidence:
        if one.code is Stages.CRITERION:
            criterion = next(c for c in found.evidence.criteria if c.key == one.facts["criterion"])
            assert one.facts["status"] == criterion.status.value
            assert one.parts == (criterion.title, criterion.value, criterion.threshold)
    for finding in outcome.findings:
        assert finding.next is not None
        assert finding.next.code is Stages.SEE_CURVES
        command = text(finding.next)
        assert command
        assert set(finding.next.facts["references"]) == {curve.name for curve in references}


def test_no_curves(tmp_path: Path) -> None:
    trace = run(tmp_path / "t", step(PLAIN))
    outcome = LongRunStage().check(context_of(trace, trace))
    assert (outcome.status, outcome.conclusion.code) == (StageStatus.SKIPPED, Stages.NO_CURVES)


# -- forward and backward ------------------------------------------

BAD = (np.float32("nan"), np.float32("inf"))


def backward(folder: Path, changed: dict[str, Array]) -> Any:
    parts = {name: {WEIGHT: drawn(1), LOCAL: changed.get(name, drawn(at))} for at, name in enumerate("abcd")}
    return run(folder, step(parts))


def spoiled(value: np.float32) -> Array:
    made = drawn(2).copy()
    made[0, 0] = value
    return made


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"b": drawn(1) * np.float32(1.5)},
        {"b": drawn(1) * np.float32(1.5), "c": np.zeros((8, 8), np.float32)},
        {"c": spoiled(BAD[0])},
        {"c": spoiled(BAD[1])},
        {"b": -drawn(1)},
    ],
    ids=["equal", "one", "zero", "nan", "inf", "turned"],
)
def test_local_norms(tmp_path: Path, changed: dict[str, Array]) -> None:
    context = context_of(backward(tmp_path / "t", changed), backward(tmp_path / "r", {}))
    (said,) = norm_values(context)
    norms = {
        name: [
            float(np.linalg.norm(one.astype(np.float64))) for one in (changed.get(name, drawn(at)), drawn(at))
        ]
        for at, name in enumerate("abcd")
    }
    finite = {name: bool(np.isfinite(changed.get(name, drawn(0))).all()) for name in "abcd"}
    equal = [name for name, (a, b) in norms.items() if finite[name] and a == pytest.approx(b, rel=1e-12)]
    if said.code is Stages.NORMS_EQUAL:
        assert len(equal) == 4 == said.facts["num"]
    else:
        assert said.code is Stages.NORMS_DIFFER
        assert len(equal) < 4 or not all(finite.values())
        assert said.facts["num"] == 4
        assert "nan" not in text(said) or not all(finite.values())
    outcome = BackwardStage().check(context)
    counts = facts_of(outcome.evidence, Stages.COUNTS)
    if counts is not None and set(finite.values()) == {True}:
        same = sum(np.array_equal(changed.get(name, drawn(at)), drawn(at)) for at, name in enumerate("abcd"))
        assert counts["equal"] == same
        assert counts["within"] + counts["beyond"] + counts["undecided"] + counts["unmatched"] == 4 - same


def test_where_nothing_was_recorded(tmp_path: Path) -> None:
    trace = run(tmp_path / "t", step({"w": {WEIGHT: drawn(1)}}))
    outcome = BackwardStage().check(context_of(trace, trace))
    assert (outcome.status, outcome.conclusion.code) == (StageStatus.UNDECIDED, Stages.NOTHING_RECORDED)


def test_differences_without_a_place(tmp_path: Path) -> None:
    """No origin is known: what differs first in the order of the run is named, and how many do."""

    def made(factor: float) -> Any:
        out = step(PLAIN)
        root = out.call("module", "", type_="Net")
        for at, name in enumerate(("one", "two", "three")):
            call = out.call("module", name, root, "Linear")
            out.record(call, "forward", "input.0", drawn(3, 4, 8))
            out.record(call, "forward", "output.0", drawn(40 + at, 4, 8) * np.float32(factor if at else 1.0))
        return out

    traces = [run(tmp_path / name, made(of)) for name, of in (("t", 1.5), ("r", 1.0))]
    outcome = ForwardStage().check(context_of(*traces))
    assert (outcome.status, outcome.conclusion.code) == (StageStatus.UNDECIDED, Stages.NO_PLACE)
    assert outcome.conclusion.facts["num"] == 2
    assert "two" in str(outcome.conclusion.facts["site"])


@pytest.mark.parametrize("steps", [(1,), (2, 3), (3, 2), (4,)])
@pytest.mark.parametrize("at", [1, 3])
def test_since_when_weights_differ(tmp_path: Path, steps: tuple[int, ...], at: int) -> None:
    trace = run(tmp_path / "t", step(PLAIN))
    passive = tuple(origin(stage=Stage.WEIGHTS, step=one) for one in steps)
    said = explained_by(origin(step=at, module="inner"), context_of(trace, trace, passive=passive))
    assert (said is not None) is (min(steps) <= at)
    if said is not None:
        assert (said.code, said.facts) == (Stages.WEIGHTS_DIFFER_FROM, {"step": min(steps)})


@pytest.mark.parametrize("forwards", [(1,), (1, 2), (2,), (0, 1)])
@pytest.mark.parametrize("back", [None, 0, 1])
def test_a_forward_after_a_backward(tmp_path: Path, forwards: tuple[int, ...], back: int | None) -> None:
    trace = run(tmp_path / "t", step(PLAIN))
    made = [origin(stage=Stage.FORWARD, step=0, microbatch=one, module="inner") for one in forwards]
    made += [] if back is None else [origin(stage=Stage.BACKWARD, step=0, microbatch=back, phase="backward")]
    for one in made[: len(forwards)]:
        said = explained_by(one, context_of(trace, trace, origins=tuple(made)))
        allowed = back is not None and 0 not in forwards and back < (one.microbatch or 0)
        assert (said is not None) is allowed
        if said is not None:
            assert said.code is Stages.AFTER_BACKWARD
            assert said.facts == {"microbatch": min(forwards), "before": back}


@pytest.mark.parametrize(
    ("target", "reference"), [(2.5, 2.5), (2.5, 2.5 + 1e-9), (2.5, 2.4), (2.5, float("nan"))]
)
def test_losses(tmp_path: Path, target: float, reference: float) -> None:
    traces = [
        run(tmp_path / n, step(PLAIN), lines=[{"loss": of}]) for n, of in (("t", target), ("r", reference))
    ]
    said = loss_values(context_of(*traces), 0)
    for one in said:
        assert one.code is Stages.LOSS_VALUES
        words = text(one).split()
        assert (words[1] == words[3]) is (target == reference), text(one)


# -- initial weights ------------------------------------------


def weights_of(parts: dict[str, Array]) -> Any:
    return step({name: {WEIGHT: one, LOCAL: drawn(1, *one.shape)} for name, one in parts.items()})


BASE = {f"{at}.w": drawn(50 + at, 24, 16) for at in range(5)}
CHANGES: dict[str, Any] = {
    "same": lambda one: one,
    "drawn": lambda one: drawn(99, *one.shape),
    "scaled": lambda one: one * np.float32(1.5),
    "half": lambda one: one.astype(np.float16),
    "double": lambda one: one.astype(np.float64),
    "zero": np.zeros_like,
    "part": lambda one: np.where(np.arange(24)[:, None] < 3, one + 1, one).astype(np.float32),
    "turned": lambda one: one[::-1].copy(),
    "shape": lambda one: one[:, :8],
    "other": lambda one: BASE["4.w"],
    "rounded": lambda one: one.astype(np.float16).astype(np.float32),
    "related": lambda one: np.float32(0.6) * one + np.float32(0.8) * drawn(98, *one.shape),
}


def test_initial_weights(tmp_path: Path) -> None:
    """Random changes of random weights."""
    random = np.random.default_rng(4)
    reference = run(tmp_path / "r", weights_of(BASE))
    seen: set[Any] = set()
    fixed: list[dict[str, str]] = [
        {"1.w": "scaled", "2.w": "scaled", "3.w": "drawn"},
        {"1.w": "drawn", "3.w": "shape"},
        {"1.w": "half", "2.w": "half", "3.w": "double"},
        {"1.w": "other"},
        {"0.w": "zero"},
        {"2.w": "part"},
        {"2.w": "turned"},
        {"2.w": "rounded"},
        {"3.w": "related"},
        {"1.w": "shape"},
    ]
    for at in range(22):
        chosen = {n: str(random.choice(list(CHANGES))) for n in BASE if random.random() < 0.5}
        how = fixed[at] if at < len(fixed) else chosen
        held = {name: CHANGES[how.get(name, "same")](one) for name, one in BASE.items()}
        lone = [name for name in held if at % 7 == 6 and name == "0.w"]
        first = {f"new.{n}": drawn(3) for n in lone if at % 2}  # before all others, or after them
        last = {f"new.{n}": drawn(3) for n in lone if not at % 2}
        target = run(tmp_path / f"{at}", weights_of({**first, **held, **last}))
        outcome = WeightsStage().check(context_of(target, reference))
        every = [outcome.conclusion, *outcome.evidence, *said_by(outcome.findings)]
        seen |= codes_of(every)
        equal = [n for n in BASE if held[n].dtype == BASE[n].dtype and np.array_equal(held[n], BASE[n])]
        for said in every:
            check_weights(said, held, equal, lone)
        for finding in outcome.findings:
            ways = {how.get(n, "same") for n in BASE if n in (finding.site or "")}
            check_causes(finding, ways, lone)
    assert seen >= {Weights.NUM_EQUAL, Weights.OF_PARAMETER, Weights.SAME_WEIGHTS, Weights.SEED_CAUSE}
    assert seen >= {Weights.NUM_DIFFERENT, Weights.DRAWN_AFTER, Weights.OF_ANOTHER, Weights.INIT_CAUSE}
    assert seen >= {Weights.BUILD_ORDER_CAUSE, Weights.CHANGED_CAUSE, Weights.ROWS_SET_CAUSE}
    assert seen >= {Weights.CONVERTED_CAUSE, Weights.RELATED_CAUSE, Weights.SAVED_ROUNDED_CAUSE}
    assert seen >= {CauseCode.NOT_PASSED_ON, Weights.BUILT_WITHOUT, Weights.BUILD_BOTH}


def check_weights(said: Reason, held: dict[str, Array], equal: list[str], lone: list[str]) -> None:
    facts = said.facts
    if said.code in (Weights.NUM_EQUAL, Weights.ALL_EQUAL) or said.code is Weights.SOME_EQUAL:
        assert facts["num"] == len(equal)
    elif said.code is Weights.UNMATCHED:
        assert facts == {"num": len(lone), "names": tuple(f"new.{name}" for name in lone)}
    elif said.code is Weights.WITHIN_ROUNDING:
        same = [n for n, one in held.items() if one.dtype.name == facts["target"]]
        assert (facts["num"], facts["equal"]) == (len(same), len(equal))
    elif said.code is Weights.OF_ANOTHER:
        assert any(
            np.array_equal(one, BASE[str(facts["parameter"])])
            for name, one in held.items()
            if name != facts["parameter"]
        )
    elif said.code is Weights.DRAWN_AFTER:
        order, differ = list(held), [n for n in held if n not in equal]
        after = [
            n
            for n in differ
            if str(facts["parameter"]) not in order or order.index(n) > order.index(str(facts["parameter"]))
        ]
        assert facts["first"] == after[0], (facts, differ)
    elif said.code is Weights.NUM_DIFFERENT:
        assert facts["num"] <= len(held) - len(equal)
    elif said.code is Weights.BUILT_WITHOUT:  # the target alone has more of them
        assert facts["side"] == "reference"
        assert facts["parameter"] in {f"new.{name}" for name in lone}
    elif said.code is Weights.BUILD_BOTH:
        assert facts["parameter"] in {f"new.{name}" for name in lone}
    elif said.code is Weights.NAMES:
        assert facts == {"side": "target", "names": tuple(f"new.{name}" for name in lone)}


def check_causes(finding: Finding, ways: set[str], lone: list[str]) -> None:
    causes = {one.code for one in finding.causes}
    if Weights.SEED_CAUSE in causes:
        assert ways & {"drawn", "other"} or lone
    if Weights.NOT_STRICT_CAUSE in causes:
        assert ways == {"zero"}
    if Weights.ROWS_SET_CAUSE in causes:
        assert ways == {"part"}
    if Weights.ROW_ORDER_CAUSE in causes:
        assert ways <= {"turned", "other"}
    if Weights.CONVERTED_CAUSE in causes:  # of as many elements: no layout makes fewer
        assert ways <= {"turned", "other"}
    if Weights.RELATED_CAUSE in causes:
        assert ways <= {"related", "part"}
    if Weights.SAVED_ROUNDED_CAUSE in causes:
        assert ways <= {"rounded", "half"}
    if CauseCode.NOT_PASSED_ON in causes:
        assert "shape" in ways


# -- data ------------------------------------------

RANDOM = np.random.default_rng(11)
IDS = RANDOM.integers(0, 50, (3, 4, 12))


def fed(inputs: dict[str, Array], *, vocabulary: int | None = None, digest: str | None = None) -> Any:
    out = step(PLAIN)
    root = out.call("module", "", type_="Net")
    for name, one in inputs.items():
        out.record(root, "forward", f"input.{name}", one)
    if vocabulary is not None:
        emb = out.call("module", "emb", root, "Embedding")
        out.record(emb, "forward", "input.0", next(iter(inputs.values())))
        out.record(emb, "forward", "output.0", drawn(3, *next(iter(inputs.values())).shape, 8))
    out.record(out.call("loss", "loss"), "loss", "value", np.array(2.0, np.float32))
    return out


TABLE = {"parameters": [{"fqn": "emb.weight", "shape": [50, 8], "dtype": "float32", "requires_grad": True}]}
MASK = (np.arange(12) < 9) * np.ones((4, 1), np.int64)
HIDDEN = np.where(MASK == 1, IDS[0], 0)
INPUTS: dict[str, dict[str, Array]] = {
    "one": {"input_ids": IDS[0]},
    "other": {"input_ids": IDS[1]},
    "turned": {"input_ids": IDS[0][::-1]},
    "outside": {"input_ids": np.where(IDS[0] == IDS[0][1, 2], 77, IDS[0])},
    "negative": {"input_ids": np.where(IDS[0] == IDS[0][1, 2], -1, IDS[0])},
    "masked": {"input_ids": IDS[0], "attention_mask": MASK},
    "masked otherwise": {"input_ids": IDS[0], "attention_mask": MASK[:, None, None, :]},
    "hidden": {"input_ids": HIDDEN, "attention_mask": np.ones_like(MASK)},
    "positions": {"input_ids": IDS[0], "position_ids": np.arange(12) * np.ones((4, 1), np.int64)},
    "one row": {"input_ids": IDS[0], "position_ids": np.arange(12)[None]},
    "flat": {"input_ids": IDS[0].ravel()},
}


def test_batches(tmp_path: Path) -> None:
    traces = {name: run(tmp_path / name, fed(of, vocabulary=50), facts=TABLE) for name, of in INPUTS.items()}
    seen: set[Any] = set()
    for at, (one, other) in enumerate(product(INPUTS, repeat=2)):
        if at % 4 and other != "one":
            continue
        outcome = DataStage().check(context_of(traces[one], traces[other]))
        every = [outcome.conclusion, *outcome.evidence, *said_by(outcome.findings)]
        seen |= codes_of(every)
        for said in every:
            check_batch(said, INPUTS[one], INPUTS[other])
    told = {
        Stages.SAME_IDS,
        Stages.SAME_BATCHES,
        Stages.OUT_OF_RANGE,
        Stages.COMPARE_VOCABULARY,
        Stages.SAME_BATCH_FIRST,
    }
    assert seen >= told | {Stages.SAME_SHARED}, told - seen


def check_batch(said: Reason, own: dict[str, Array], other: dict[str, Array]) -> None:
    facts = said.facts
    same = [n for n in own.keys() & other.keys() if np.array_equal(own[n], other[n])]
    if said.code is Stages.SAME_IDS:
        assert facts["inputs"] == len(same)
        assert facts["ids"] == sum(own[n].size for n in same)
    elif said.code is Stages.SAME_BATCHES:
        rows = [sorted(map(tuple, of["input_ids"].reshape(-1, 12).tolist())) for of in (own, other)]
        assert rows[0] == rows[1]  # in another order, which stands beside it
    elif said.code is Stages.SAME_SHARED:
        assert own.keys() != other.keys()
        assert "input_ids" in same
    elif said.code is Stages.SAME_ROWS_REGROUPED:
        assert sorted(map(tuple, own["input_ids"].tolist())) == sorted(
            map(tuple, other["input_ids"].tolist())
        )
    elif said.code is Stages.OUT_OF_RANGE:
        ids = (
            own["input_ids"].reshape(len(own["input_ids"]), -1)
            if own["input_ids"].ndim > 1
            else own["input_ids"][None]
        )
        outside = (ids < 0) | (ids >= 50)
        row, column = (int(one[0]) for one in np.nonzero(outside))
        assert facts == {
            "num": int(outside.sum()),
            "size": 50,
            "value": int(ids[row, column]),
            "row": row,
            "column": column,
        }
    elif said.code is Stages.ELSEWHERE:
        rows = set(map(tuple, other["input_ids"].tolist()))
        assert facts["num"] <= sum(tuple(row) in rows for row in own["input_ids"].tolist())
    elif said.code is Stages.NO_BATCH:
        assert not own or not other


def digested(folder: Path, digest: str | None) -> Any:
    return run(folder, step(PLAIN, loss=2.0), lines=[{"batch_digest": digest}] if digest else [{}])


@pytest.mark.parametrize(
    ("target", "reference", "code"),
    [
        ("0a", "0a", Stages.SAME_BATCHES),
        ("0a", None, Stages.NO_BATCH),
        (None, "0a", Stages.NO_BATCH),
        (None, None, Stages.NO_BATCH),
    ],
)
def test_digests_of_batches(tmp_path: Path, target: str | None, reference: str | None, code: Stages) -> None:
    outcome = DataStage().check(
        context_of(digested(tmp_path / "t", target), digested(tmp_path / "r", reference))
    )
    assert outcome.conclusion.code is code
    assert (outcome.status is StageStatus.PASSED) is (code is Stages.SAME_BATCHES)
    told = {one.code for one in outcome.evidence}
    assert (Stages.SAME_DIGESTS in told) is (code is Stages.SAME_BATCHES)
    assert (
        code is not Stages.NO_BATCH
        or "in both" in text(outcome.conclusion)
        or (target, reference) == (None, None)
    )


def in_microbatches(folder: Path, num: int, labels: Array, update: bool = True) -> Any:
    """Four microbatches, so many a step."""
    made = []
    for first in range(0, 4, num):
        out = step(
            PLAIN, inputs=[IDS.reshape(-1, 12)[3 * at : 3 * at + 3] for at in range(first, first + num)]
        )
        for at in range(num):
            call = out.call("loss", "loss", microbatch=at)
            out.record(call, "loss", "labels.0", labels[first + at], microbatch=at)
        made.append(out)
    return run(folder, *made, lines=[{"microbatches": num} for _ in made])


LABELS = RANDOM.integers(0, 50, (4, 3, 12))


@pytest.mark.parametrize("changed", [False, True])
def test_streams_of_microbatches(tmp_path: Path, changed: bool) -> None:
    other = np.where(np.arange(4)[:, None, None] == 1, (LABELS + 1) % 50, LABELS) if changed else LABELS
    context = context_of(
        in_microbatches(tmp_path / "t", 2, other), in_microbatches(tmp_path / "r", 4, LABELS)
    )
    outcome = DataStage().check(context)
    facts = facts_of([outcome.conclusion, *outcome.evidence], Stages.SAME_STREAM)
    assert facts == (None if changed else {"target": 2, "reference": 4})
    assert not changed or outcome.status is not StageStatus.PASSED
