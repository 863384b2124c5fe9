"""What a sign-off says of scores, losses and settings, checked from the inputs alone, without its rules."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.accepting.evaluations import results
from tests.curves.simulating import Truth, simulate
from tests.diagnosing.made_steps import codes_of, facts_of, passed
from trueup.accepting.downstream import downstream, downstream_items
from trueup.accepting.first_steps import preparation_items, step_items
from trueup.accepting.item import Item, ProcedurePart, State
from trueup.accepting.long_run import long_run_items, no_update_items
from trueup.accepting.recommended import recommendation_items, unjudged_items
from trueup.accepting.settings import by_hand, checklist_items
from trueup.accepting.signoff import SignOff
from trueup.curves.comparison import Options, compare_curves
from trueup.curves.conditions import proofs
from trueup.curves.curve import Curve
from trueup.diagnosing.diagnosis import Diagnosis, StepLoss
from trueup.diagnosing.stages.config import Configurations, configurations
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.types.codes import AcceptCode as Code
from trueup.types.codes import CriterionCode as Criteria
from trueup.types.codes import CurvesCode, GivenCode
from trueup.types.finding import Basis, Finding, Stage
from trueup.types.reason import Reason, reason
from trueup.types.status import Outcome
from trueup.wording import text

RANDOM = np.random.default_rng(81)
TEXT = reason(GivenCode.TEXT, text="it")
NUMBER = re.compile(r"[-+−]?[\d.]+(?:e[-+]?\d+)?")


def numbers(said: Reason) -> list[float]:
    return [float(one.replace("−", "-").rstrip(".")) for one in NUMBER.findall(text(said))]


def every(item: Item) -> list[Reason]:
    return [item.title, item.measured, item.threshold, item.origin, *item.evidence, *filter(None, [item.how])]


def keyed(items: list[Item]) -> dict[str, Item]:
    return {item.key: item for item in items}


def score_pairs() -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """Scores with their errors: drawn, and such as print alike with four digits or stand beside a limit."""
    for _ in range(8):
        value, error = RANDOM.uniform(0.2, 0.9), RANDOM.uniform(0.001, 0.05)
        yield (value + RANDOM.normal(0, 2 * error), error), (value, error)
    yield (0.500001, 0.001), (0.500002, 0.001)
    yield (0.49502, 0.001), (0.5, 0.001)
    yield (0.4950000001, 0.001), (0.5, 0.001)
    yield (0.1, 0.0), (0.0, 0.0)
    error = 0.02
    for sigmas in (1.9599, 1.9601):
        yield (0.5 - sigmas * math.hypot(error, error), error), (0.5, error)


def test_scores(tmp_path: Path) -> None:
    for own, other in score_pairs():
        files = results(tmp_path / "t.json", {"arc": own}), results(tmp_path / "r.json", {"arc": other})
        (item,) = downstream_items(downstream(files), wanted=False)
        assert item.title == reason(Code.SCORE, task="arc", metric="acc")
        assert item.origin.code is Code.DOWNSTREAM_RULE
        assert (item.measured.code, item.threshold.code) == (Code.SCORES, Code.SCORE_LIMIT)
        said = numbers(item.measured)
        assert said[:2] == pytest.approx([own[0], other[0]], abs=5e-5)
        assert (said[0] == said[1]) is (own[0] == other[0]), text(item.measured)
        assert said[2] == pytest.approx(own[0] - other[0], rel=0.06)
        relative = (own[0] - other[0]) / other[0] if other[0] else math.inf
        if math.isfinite(relative):
            assert said[4] == pytest.approx(100 * relative, abs=0.05)
            assert (abs(said[4]) < 1) is (abs(relative) < 0.01), text(item.measured)
        z = (own[0] - other[0]) / math.hypot(own[1], other[1]) if own[1] else math.inf
        limit = numbers(item.threshold)[-1]
        assert limit == pytest.approx(1.95996, abs=0.005)
        why = item.evidence[0]
        if why.code in (Code.BEYOND, Code.WITHIN):
            assert abs(relative) >= 0.01
            assert (why.code is Code.BEYOND) is (abs(z) > 1.959964)
            shown = numbers(why) if math.isfinite(z) else [math.inf, 1.96]
            assert (shown[0] > shown[1]) is (abs(z) > 1.959964), text(why)
        else:
            assert (why.code is Code.BELOW_1_PERCENT) is (abs(relative) < 0.01)


def test_all_scores_together(tmp_path: Path) -> None:
    """The mean of those that both runs have, with a standard error, and evaluated alike."""
    own = {f"t{at}": (float(RANDOM.uniform(0.3, 0.7)), 0.01) for at in range(5)}
    other = {name: (value + 0.001, 0.01) for name, (value, _) in own.items()}
    own["t0"], other["alone"] = (own["t0"][0], "N/A"), (0.5, 0.01)  # type: ignore[assignment]
    files = results(tmp_path / "t.json", own), results(tmp_path / "r.json", other)
    together, *rest = downstream_items(downstream(files), wanted=True)
    assert (together.title, len(rest)) == (reason(Code.ALL_SCORES, num=4), 6)
    means = [np.mean([side[f"t{at}"][0] for at in range(1, 5)]) for side in (own, other)]
    assert numbers(together.measured)[:2] == pytest.approx(means, abs=5e-5)
    (alone,) = (item for item in rest if item.title.place("task") == "alone")
    assert numbers(alone.measured) == [0.5]
    (none,) = downstream_items(None, wanted=False)
    assert (none.measured.code, none.how) == (Code.NO_EVALUATION, reason(Code.GIVE_EVALUATIONS))
    assert (none.state, none.binding) == (State.NOT_SHOWN, False)


def diagnosed(losses: list[StepLoss], *stages: Any) -> Diagnosis:
    return Diagnosis(
        target="t",
        reference="r",
        outcome=Outcome.DIFFER,
        headline=TEXT,
        confidence=None,
        stages=tuple(stages),
        findings=(),
        seconds={},
        losses=tuple(losses),
    )


def test_losses_of_the_first_two_steps() -> None:
    """Of the first captured step and of the one after it, on the rank that differs most; not of what the
    reference has not."""
    cases = [
        (2.5, 2.5),
        (2.5, 2.50499999),
        (2.5, 2.5050001),
        (math.nan, 2.5),
        (2.5, math.nan),
        (0.001, 0.0),
        (2.5, 2.6),
        (1.0, 1.0000001),
    ]
    for at, (own, other) in enumerate(cases):
        first = at % 3
        second = first + (1 if at % 2 else 5)
        losses = [
            StepLoss(step=first, target=1.0, reference=1.0),
            StepLoss(step=first, target=own, reference=other),
            StepLoss(step=second, target=own, reference=other),
        ]
        items = keyed(step_items(diagnosed(losses)))
        one, two = items["loss_of_step_1"], items["loss_of_step_2"]
        assert (two.measured.code is Code.NOT_CAPTURED) is (second != first + 1)
        assert two.origin.code is Code.FIRST_LOSS_RULE
        assert one.origin == reason(Criteria.STANDARD, rule="loss 1")
        for item, step in ((one, first), (two, second)):
            if item.measured.code is Code.NOT_CAPTURED:
                assert (item.state, item.how) == (State.NOT_SHOWN, reason(Code.CAPTURE_TWO))
                continue
            (said,) = item.evidence
            told = [own, other] if (own, other) != (2.5, 2.5) or item is two else [1.0, 1.0]
            assert said.code is Code.LOSSES
            assert [said.facts["step"], said.facts["target"], said.facts["reference"]] == pytest.approx(
                [step, *told], nan_ok=True
            )
            shown = re.findall(r"([\d.naif]+) \(", text(said))
            assert (shown[0] == shown[1]) is (told[0] == told[1]), text(said)
            near = abs(own - other) < 0.005 or (other != 0 and abs(own - other) / abs(other) < 0.005)
            state = State.PASSED if near else State.FAILED if math.isfinite(other) else State.NOT_SHOWN
            assert (item.state, item.binding) == (state, True)
    nothing = keyed(step_items(None))
    assert {item.measured.code for item in nothing.values()} == {Code.NO_TRACES}
    assert {item.how for item in nothing.values()} == {reason(Code.GIVE_TRACES)}


def test_stages_of_the_first_steps() -> None:
    finding = Finding(stage=Stage.BACKWARD, headline=TEXT, module="m", site=None, basis=Basis.BOUND)
    for status in StageStatus:
        found = replace(passed(Stage.BACKWARD, status), findings=(finding,))
        items = keyed(step_items(diagnosed([], found)))
        stages = {name: item for name, item in items.items() if not name.startswith("loss_of")}
        for name, item in items.items():
            assert item.title == reason(Code.TITLE, key=name)
        for name, item in stages.items():
            assert (item.threshold.code, item.origin.code) == (Code.WITHIN_NOISE, Code.OF_STAGE)
            assert item.origin.place("stage") == {"next_loss": "loss"}.get(name, name)
            assert (item.measured.code is Code.NOT_CAPTURED) is (name != "backward")
        said = stages["backward"].evidence[0]
        assert (said.code, said.parts) == (Code.FINDING, (TEXT,))
        assert text(said) == f"it (confidence: {finding.confidence})"
        open_ = status in (StageStatus.UNDECIDED, StageStatus.SKIPPED)
        assert (stages["backward"].state is State.NOT_SHOWN) is open_


def test_what_is_prepared_without_traces() -> None:
    items = preparation_items(proofs(None, None, assumed={"weights"}), None)
    for item in items:
        stated = item.key == "weights"
        assert (item.state is State.PASSED) is stated
        how = None if stated else reason(Code.OR_ASSUME, reason(Code.GIVE_TRACES), key=item.key)
        assert item.how == how


NUM = 40


def still(
    losses: np.ndarray[Any, Any] | None, norms: np.ndarray[Any, Any] | None, rate: float = 0.0
) -> Curve:
    curve, _ = simulate(Truth(num_steps=NUM), 1)
    columns = {"loss": losses, "grad_norm": norms, "learning_rate": np.full(NUM, rate)}
    frame = curve.frame.drop([name for name in columns if name in curve.frame.columns])
    made = [pl.Series(name, of) for name, of in columns.items() if of is not None]
    return replace(curve, frame=frame.with_columns(*made))


def test_every_step_while_no_weight_is_updated() -> None:
    for _ in range(5):
        reference = RANDOM.uniform(0.3, 3.0, NUM)
        target = reference + RANDOM.choice([0, 0.001, 0.0049, 0.02], NUM, p=[0.4, 0.3, 0.2, 0.1])
        target[RANDOM.random(NUM) < 0.05] = math.nan
        reference[RANDOM.random(NUM) < 0.05] = math.nan
        norms = RANDOM.uniform(1, 2, NUM)
        found = compare_curves(still(target, norms * 1.05), [still(reference, norms)], Options())
        loss, norm = no_update_items(found)
        apart = np.abs(target - reference)
        known = np.isfinite(apart)
        beyond = known & (apart >= 0.005) & (apart / np.abs(reference) >= 0.005)
        assert loss.measured.code is Code.FROZEN_LOSS
        facts = loss.measured.facts
        assert [facts[name] for name in ("mean", "largest", "num", "total")] == pytest.approx(
            [apart[known].mean(), apart[known].max(), beyond.sum(), known.sum()]
        )
        largest = facts_of(loss.evidence, Code.LARGEST)
        assert largest is not None
        assert largest["num"] == known.sum()
        assert apart[largest["step"] - 1] == apart[known].max()
        assert beyond.any() <= (loss.state is State.FAILED)
        lost = np.isnan(target) & ~np.isnan(reference)
        assert (loss.state is State.FAILED) <= bool(beyond.any() or lost.any())
        assert loss.threshold == reason(
            Code.FROZEN_STEPS, reason(Criteria.BELOW_EITHER, abs=0.005, rel=0.005), num=1000
        )
        assert norm.threshold == reason(Code.ON_MEAN, reason(Criteria.AT_MOST, rel=0.1))
        assert (loss.origin.code, norm.origin.code) == (Code.FIRST_LOSS_RULE, Code.NORM_RULE)
        if norm.measured.code is Code.FROZEN_NORM:
            assert norm.measured.number("rel") == pytest.approx(0.05)
    none = compare_curves(
        still(np.full(NUM, np.nan), np.ones(NUM)), [still(np.full(NUM, np.nan), np.ones(NUM))]
    )
    assert no_update_items(none)[0].measured.code is Code.NO_FINITE
    for found, code in (
        (None, Code.NO_LOGS),
        (compare_curves(still(None, np.ones(NUM)), [still(None, np.ones(NUM))]), Code.NOT_IN_LOGS),
    ):
        for item in no_update_items(found):
            assert (item.measured.code, item.how) == (code, reason(Code.GIVE_FROZEN))


def test_lines_of_a_long_run() -> None:
    for item in long_run_items(None):
        assert (item.measured.code, item.how, item.state) == (
            Code.NO_LOGS,
            reason(Code.GIVE_LOGS),
            State.NOT_SHOWN,
        )
    loss, norms = RANDOM.uniform(1, 3, NUM), np.ones(NUM)
    for norm, rate, repeats in ((norms, 0.1, 1), (None, 0.1, 2), (norms, 0.0, 2)):
        others = [still(loss + 0.001 * at, norm, rate) for at in range(repeats)]
        items = keyed(long_run_items(compare_curves(still(loss, norm, rate), others)))
        lacks = {key for key, item in items.items() if item.measured.code is Code.NOT_IN_LOGS}
        assert lacks == ({"global_norm"} if norm is None else set())
        frozen = {key for key, item in items.items() if item.measured.code is Code.RATE_ZERO}
        assert frozen == ({"mean_loss"} if rate == 0 else set())
        assert items["smooth"].origin.code is Criteria.OF_TRUEUP
        assert items["judgement"].threshold.code is Code.WITHIN_SPREAD
        assert items["judgement"].origin == reason(Code.GUIDE, rule="stage 3")
        spread = items["repeats"]
        if repeats < 2:
            assert spread.how == reason(Code.WITH_NOTE, reason(Criteria.NO_REPEATS), reason(Code.GIVE_LOGS))
            assert (spread.state, spread.binding) == (State.NOT_SHOWN, True)
        else:
            assert (spread.state, spread.how) == (State.PASSED, None)
    assert keyed(long_run_items(None))["repeats"].origin.code is Code.REPEATS_RULE


GOOD: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 64,
    "learning_rate": 0.001,
    "clip_grad": 1.0,
    "adam_beta2": 0.95,
}


def settings(folder: Path, target: dict[str, Any], reference: dict[str, Any]) -> Configurations:
    for name, values in (("t", target), ("r", reference)):
        (folder / f"{name}.json").write_text(json.dumps(values))
    found = configurations(folder, folder, (str(folder / "t.json"), str(folder / "r.json")))
    assert found is not None
    return found


def test_settings_of_a_section(tmp_path: Path) -> None:
    keys = ("num_layers", "hidden_size", "intermediate_size", "vocab_size")
    for _ in range(8):
        target = {key: int(RANDOM.integers(2)) * 64 + 64 for key in keys if RANDOM.random() < 0.8}
        reference = {key: int(RANDOM.integers(2)) * 64 + 64 for key in keys if RANDOM.random() < 0.8}
        both = {"learning_rate": 0.1}
        items = keyed(checklist_items(settings(tmp_path, target | both, reference | both)))
        one = items["checklist:structure"]
        shared = target.keys() & reference.keys()
        apart = {key for key in shared if target[key] != reference[key]}
        assert one.title.code is Code.SECTION
        assert one.origin == reason(Code.CHECKLIST, section=text(one.title).lower())
        assert one.threshold.code is Code.NO_SETTING
        if not shared:
            assert one.measured.code is Code.NO_SETTINGS
            assert (one.state, one.how) == (State.NOT_SHOWN, reason(Code.GIVE_CONFIGS))
            continue
        facts = one.measured.facts
        assert one.measured.code is Code.SETTINGS
        assert (one.state is State.FAILED) is bool(apart)
        names = set(facts["grave"])  # type: ignore[arg-type]
        assert len(names) == len(apart)
        assert facts["aligned"] == facts["total"] - len(apart)  # type: ignore[operator]
        assert all(name in text(one.measured) for name in names) or "more" in text(one.measured)
    (none,) = checklist_items(None)
    assert (none.measured.code, none.how) == (Code.NO_CONFIGS, reason(Code.GIVE_CONFIGS))
    assert by_hand(None) == []
    found = settings(tmp_path, GOOD, GOOD)
    told = {row.reason for row in found.checklist.rows if row.status.value == "by_hand"}
    assert {one.parts[0] for one in by_hand(found)} == told
    assert {one.code for one in by_hand(found)} == {Code.BY_HAND}


SCHEDULE = {"lr_schedule": "cosine", "train_steps": 100, "decay_steps": 100}


def test_schedules_that_cannot_be_computed(tmp_path: Path) -> None:
    whole = GOOD | SCHEDULE
    for target, reference, side, missing in (
        (whole, GOOD, "reference", "lr_schedule"),
        (GOOD, whole, "target", "lr_schedule"),
        (GOOD, GOOD, "", "lr_schedule"),
        (whole, whole, None, None),
        (whole | {"learning_rate": math.inf}, whole | {"learning_rate": math.inf}, "", ""),
    ):
        item = keyed(checklist_items(settings(tmp_path, target, reference)))["checklist:schedules"]
        assert item.threshold.code is Code.EVERY_STEP
        facts = facts_of([item.measured], Code.NO_SCHEDULE)
        assert facts == (None if side is None else {"missing": missing, "side": side}), text(item.measured)


def test_recommendations_and_settings_without_a_rule(tmp_path: Path) -> None:
    for target, reference, shown in (
        ({"clip_grad": 5.0}, {"clip_grad": 5.0}, "5.0 on both sides"),
        ({"clip_grad": 5.0}, {"clip_grad": 1.0}, "5.0 (target), 1.0 (reference)"),
        ({"clip_grad": 5.0}, None, "5.0 (target)"),
        (None, {"clip_grad": 5.0}, "5.0 (reference)"),
        ({"clip_grad": 1.0}, {"clip_grad": 1.0}, None),
        (None, None, None),
    ):
        sides = [GOOD | (of or {}) for of in (target, reference)]
        for side, of in zip(sides, (target, reference), strict=True):
            if of is None:
                del side["clip_grad"]
        both = settings(tmp_path, *sides)
        items = keyed(recommendation_items(both, {}))
        assert ("recommendation:clip_grad" in items) is (shown is not None)
        if shown is None:
            (one,) = items.values()
            assert (one.measured.code, one.threshold.code) == (Code.ALL_FOLLOWED, Code.ALL_FOLLOWED)
            continue
        one = items["recommendation:clip_grad"]
        assert one.title == reason(Code.RECOMMENDATION, key="clip_grad")
        assert (one.measured.code, text(one.measured)) == (Code.NOT_FOLLOWED, shown)
        assert one.how is not None
        assert one.how.code is Code.WAIVE
        violating = [
            name for name, of in (("target", target), ("reference", reference)) if of == {"clip_grad": 5.0}
        ]
        assert [way.split(":")[0] for way in one.how.facts["ways"]] == violating  # type: ignore[union-attr]
        assert Code.WHY in codes_of(one.evidence)
        waived = keyed(recommendation_items(both, {"clip_grad": "as published"}))["recommendation:clip_grad"]
        assert (waived.how, waived.evidence[0]) == (None, reason(Code.WAIVED_BECAUSE, why="as published"))
        signoff = SignOff(items=(one,), inputs=())
        assert signoff.headline == reason(Code.UNFOLLOWED, one.title)
    for own, other in ((0.1, 0.2), (1, "1"), ("", None), (None, "x"), ("a", "b"), (True, "True"), (0.3, 0.3)):
        sides = [GOOD | ({} if of is None else {"my_gain": of}) for of in (own, other)]
        items = unjudged_items(settings(tmp_path, *sides), {})
        assert len(items) == (own != other)
        for item in items:
            assert item.title == reason(Code.UNJUDGED, key="my_gain")
            assert item.threshold.code is Code.SAME_VALUE
            assert item.how == reason(Code.WAIVE_SETTING, key="my_gain")
            assert item.measured.code is Code.VALUES_DIFFER
            shown = re.fullmatch(r"(.*) \(target\), (.*) \(reference\)", text(item.measured))
            assert shown is not None
            assert shown[1] != shown[2]
            assert [one == "not set" for one in shown.groups()] == [own is None, other is None]


def item_in(state: State, part: ProcedurePart, *, binding: bool) -> Item:
    return Item(
        key=f"{state.value} {binding}",
        part=part,
        title=reason(GivenCode.TEXT, text=f"{state.value} {binding}"),
        state=state,
        binding=binding,
        measured=TEXT,
        threshold=TEXT,
        origin=TEXT,
    )


def test_the_decision_of_any_items() -> None:
    every_part = list(ProcedurePart)
    for _ in range(120):
        items = [
            item_in(
                State(RANDOM.choice([s.value for s in State])),
                every_part[RANDOM.integers(len(every_part))],
                binding=bool(RANDOM.random() < 0.5),
            )
            for _ in range(RANDOM.integers(5))
        ]
        signoff = SignOff(items=tuple(items), inputs=())
        deciding = [one for one in items if one.binding]
        said = signoff.headline
        shown = [part.place("text") for part in said.parts]
        failed = [one for one in items if one.state is State.FAILED]
        if said.code is Code.ACCEPTED:
            assert deciding
            assert all(one.state is State.PASSED for one in deciding)
            assert said.number("num") == len(deciding)
        elif said.code is Code.REFUSED:
            assert shown == [one.key for one in failed if one.binding] != []
        elif said.code is Code.FAILED_UNPROVED:
            assert shown == [one.key for one in failed] != []
        elif said.code is Code.UNFOLLOWED:
            assert shown == [one.key for one in deciding if one.state is State.WARNING] != []
        else:
            assert said.code is Code.OPEN
            assert shown == [one.key for one in deciding if one.state is not State.PASSED]
        document = signoff.to_json()
        parts = document["parts"]
        assert isinstance(parts, list)
        for part, of in zip(parts, every_part, strict=True):
            assert len(part["items"]) == sum(one.part is of for one in items)
        assert text(reason(Code.PART, part="long_run")) == "Long run"


def test_curves_that_are_accepted_say_why() -> None:
    """What the judgement says stands in the line of the long run, not that something is unproved."""
    target, references = simulate(Truth(num_steps=200, sigma=0.002, spike_rate=0.0, data_sigma=0.005), 2)
    found = compare_curves(target, references, Options())
    assert found.judgement.headline.code is CurvesCode.NOT_PROVED
    one = keyed(long_run_items(found))["judgement"]
    assert one.measured == found.judgement.headline.parts[0]
    assert one.state is State.PASSED
