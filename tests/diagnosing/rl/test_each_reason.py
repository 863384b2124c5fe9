"""Each sentence about two RL batches: said where it is true, and not of its near miss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.diagnosing.made_steps import passed
from tests.diagnosing.rl.records import ROWS, WIDTH, batch, pair
from trueup.diagnosing.rl import advantage_checks, batch_checks, model_checks
from trueup.diagnosing.rl.outcomes import same_sequences
from trueup.diagnosing.rl.steps import QuantityCheck, RLStepPair
from trueup.diagnosing.rl.walk import RLComparison
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.numerics.dtypes import rounded_to
from trueup.store.rollouts import RLStep
from trueup.types.codes import RLCode, StagesCode
from trueup.types.finding import Basis, Finding, Stage
from trueup.types.reason import reason

PLAIN = batch()
HELD = PLAIN.batch.arrays
SPREAD = np.random.default_rng(7).normal(size=(ROWS, WIDTH)).astype(np.float32)
PROMPTS, MASK = HELD["prompts"], HELD["response_mask"]
OTHER = {"estimator": "another"}
LOOK = Callable[[RLStepPair], Iterator[QuantityCheck]]


def with_rows(rows: Any) -> RLStep:
    return batch(**{name: array[rows] for name, array in HELD.items()})


def of_both(look: LOOK, target: RLStep, reference: RLStep, quantity: str) -> tuple[RLCode, dict[str, Any]]:
    said = next(one for one in look(pair(target, reference)) if one.quantity == quantity).conclusion
    return said.code, dict(said.facts)


def edited(array: Any, *places: tuple[int, int], value: float = 0.0) -> Any:
    other = array.copy()
    for place in places:
        other[place] = value
    return other


def standardised(step: RLStep, over: str) -> RLStep:
    """A run that says that it divides by the batch's deviation, and divides by that of ``over``."""
    said = {"std_over": "batch"}
    given = advantage_checks.given_of(
        batch_checks.SequenceTable.of([step.batch]), {**step.batch.settings, "std_over": over}
    )
    return batch(advantages=given.computed(), settings=said)


CASES: list[tuple[str, LOOK, str, RLStep, RLStep, RLCode, dict[str, Any]]] = [
    (
        "other prompts",
        batch_checks.prompts,
        "prompts",
        batch(prompts=PROMPTS + 100 * (PROMPTS == 5)),
        PLAIN,
        RLCode.PROMPTS,
        {"num": 1, "total": 2},
    ),
    (
        "cut prompts",
        batch_checks.prompts,
        "prompts",
        batch(prompts=PROMPTS[:, 1:]),
        PLAIN,
        RLCode.TRUNCATED,
        {"num": 2, "total": 2},
    ),
    (
        "more prompts",
        batch_checks.prompts,
        "prompts",
        PLAIN,
        with_rows(slice(0, 4)),
        RLCode.MORE_PROMPTS,
        {"num": 1, "total": 2},
    ),
    (
        "prompts used less often",
        batch_checks.prompts,
        "prompts",
        with_rows([0, 1, 4, 5, 6, 7]),
        PLAIN,
        RLCode.PROMPT_COUNTS,
        {"num": 1, "total": 2},
    ),
    ("the same prompts", batch_checks.prompts, "prompts", PLAIN, PLAIN, RLCode.EQUAL, {}),
    (
        "tokens that do not count",
        batch_checks.masks,
        "response_mask",
        batch(response_mask=edited(MASK, (0, 3), (5, 7))),
        PLAIN,
        RLCode.MASK,
        {"num": 2, "total": ROWS * WIDTH},
    ),
    ("the same mask", batch_checks.masks, "response_mask", PLAIN, PLAIN, RLCode.EQUAL, {}),
    (
        "one token later",
        model_checks.policy,
        "old_log_probs",
        batch(old_log_probs=np.roll(SPREAD, 1, axis=1)),
        batch(old_log_probs=SPREAD),
        RLCode.SHIFTED,
        {"by": 1},
    ),
    (
        "one row later",
        model_checks.policy,
        "old_log_probs",
        batch(old_log_probs=np.roll(SPREAD, 1, axis=0)),
        batch(old_log_probs=SPREAD),
        RLCode.APART,
        {},
    ),
    (
        "rounded",
        model_checks.policy,
        "old_log_probs",
        batch(old_log_probs=rounded_to(SPREAD, "bfloat16").astype(np.float32)),
        batch(old_log_probs=SPREAD),
        RLCode.COARSE,
        {"target": "bfloat16", "reference": "float32"},
    ),
    (
        "not a number on one side",
        model_checks.values,
        "values",
        batch(values=edited(SPREAD, (1, 2), value=np.nan)),
        batch(values=SPREAD),
        RLCode.NOT_FINITE,
        {},
    ),
    (
        "larger on one side",
        model_checks.values,
        "values",
        batch(values=edited(SPREAD, (1, 2), value=1e4)),
        batch(values=SPREAD),
        RLCode.APART,
        {},
    ),
    (
        "deviation of groups",
        advantage_checks.advantages,
        "advantages",
        standardised(PLAIN, "group"),
        standardised(PLAIN, "batch"),
        RLCode.GROUP_STD,
        {},
    ),
    (
        "deviation of the batch",
        advantage_checks.advantages,
        "advantages",
        standardised(PLAIN, "batch"),
        standardised(PLAIN, "batch"),
        RLCode.FORMULA_HOLDS,
        {},
    ),
    (
        "another formula in both",
        advantage_checks.advantages,
        "advantages",
        batch(advantages=SPREAD),
        batch(advantages=SPREAD),
        RLCode.BOTH_FAIL,
        {},
    ),
    (
        "a formula of the target alone",
        advantage_checks.advantages,
        "advantages",
        PLAIN,
        batch(settings=OTHER),
        RLCode.EQUAL,
        {},
    ),
    (
        "no formula and other tokens",
        advantage_checks.advantages,
        "advantages",
        batch(settings=OTHER, responses=HELD["responses"] + 1000),
        batch(settings=OTHER),
        RLCode.NOT_RECORDED,
        {},
    ),
    (
        "no formula and the same tokens",
        advantage_checks.advantages,
        "advantages",
        batch(settings=OTHER),
        batch(settings=OTHER),
        RLCode.EQUAL,
        {},
    ),
]


@pytest.mark.parametrize(
    ("look", "quantity", "target", "reference", "code", "facts"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_what_is_said_of_two_batches(
    look: LOOK, quantity: str, target: RLStep, reference: RLStep, code: RLCode, facts: dict[str, Any]
) -> None:
    said, numbers = of_both(look, target, reference, quantity)
    assert said is code
    assert {name: numbers.get(name) for name in facts} == facts


@pytest.mark.parametrize("same", [True, False])
def test_pipelines_that_agree(same: bool) -> None:
    other = PLAIN if same else batch(response_mask=edited(MASK, (0, 3)))
    found = [*batch_checks.prompts(pair(other, PLAIN)), *batch_checks.masks(pair(other, PLAIN))]
    headline = RLComparison(checks=tuple(found)).headline
    assert (headline.code is RLCode.AGREES) is same
    if same:
        assert headline.facts == {"steps": 1, "quantities": 2}


@pytest.mark.parametrize(("code", "same"), [(StagesCode.BATCH, True), (StagesCode.OUT_OF_VOCABULARY, False)])
def test_the_same_sequences_in_other_batches(code: StagesCode, same: bool) -> None:
    finding = Finding(stage=Stage.DATA, headline=reason(code), module=None, site=None, basis=Basis.RECORDED)
    outcome = same_sequences(replace(passed(Stage.DATA, StageStatus.FAILED), findings=(finding,)))
    assert (outcome.conclusion.code is RLCode.SAME_SEQUENCES) is same
    assert (outcome.findings == ()) is same
