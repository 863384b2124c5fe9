"""Downstream scores: what is read of the harness's files, and when a difference is one."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.accepting.evaluations import results
from trueup.accepting.evaluation import read_evaluation
from trueup.accepting.item import State
from trueup.accepting.scores import Scores, compare_evaluations
from trueup.errors import ConfigError, NothingCompared
from trueup.types.codes import AcceptCode as Code
from trueup.types.reason import reason

Pairs = dict[str, tuple[float, float | str]]


def compared(folder: Path, target: Pairs, reference: Pairs, **changed: object) -> Scores:
    """Two files, compared."""
    files = results(folder / "target.json", target, **changed), results(folder / "reference.json", reference)
    return compare_evaluations(*map(read_evaluation, files))


@pytest.mark.parametrize(
    ("target", "reference", "state", "why"),
    [
        ((0.500, 0.016), (0.500, 0.016), State.PASSED, Code.BELOW_1_PERCENT),
        ((0.496, 0.001), (0.500, 0.001), State.PASSED, Code.BELOW_1_PERCENT),
        ((0.480, 0.016), (0.500, 0.016), State.PASSED, Code.WITHIN),
        ((0.440, 0.016), (0.500, 0.016), State.FAILED, Code.BEYOND),
        ((0.560, 0.016), (0.500, 0.016), State.WARNING, Code.BEYOND),
        ((0.440, 0.160), (0.500, 0.160), State.NOT_SHOWN, Code.TOO_FEW_SAMPLES),
        ((0.480, "N/A"), (0.500, "N/A"), State.FAILED, Code.NO_ERROR),
        ((0.498, "N/A"), (0.500, "N/A"), State.PASSED, Code.BELOW_1_PERCENT),
        ((0.100, 0.000), (0.000, 0.000), State.WARNING, Code.BEYOND),
        ((0.000, 0.000), (0.000, 0.000), State.PASSED, Code.BELOW_1_PERCENT),
    ],
)
def test_a_score(
    tmp_path: Path, target: tuple[float, float], reference: tuple[float, float], state: State, why: Code
) -> None:
    row = compared(tmp_path, {"arc": target}, {"arc": reference}).rows[0]
    assert row.state is state
    assert row.why.code is why
    worse = row.why.number("is_worse")
    assert worse is None or bool(worse) is (state is State.FAILED)
    if why in (Code.WITHIN, Code.BEYOND):
        assert row.z is not None
        assert row.why.number("z") == abs(row.z)
        assert row.why.number("limit") == pytest.approx(1.96, abs=0.001)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("sides", "state"),
    [
        (["target"], State.FAILED),
        (["reference"], State.NOT_SHOWN),
        (["target", "reference"], State.NOT_SHOWN),
    ],
)
def test_a_score_that_is_no_number(tmp_path: Path, value: float, sides: list[str], state: State) -> None:
    """A model that gives NaN is broken: its task is not passed over as one that was not evaluated."""
    good: Pairs = {"arc": (0.5, 0.016), "boolq": (0.7, 0.01), "piqa": (0.7, 0.01)}
    bad: Pairs = {**good, "arc": (value, "N/A")}
    found = compared(tmp_path, *(bad if side in sides else good for side in ("target", "reference")))
    (row,) = (row for row in found.rows if row.task == "arc")
    assert (row.state, row.why) == (state, reason(Code.SCORE_NOT_FINITE, sides=sides))
    assert found.together is not None
    assert (found.together.num_tasks, found.together.state) == (2, State.PASSED)


def test_less_is_better_where_it_is(tmp_path: Path) -> None:
    sections = {"results": {"wikitext": {"word_perplexity,none": 12.0, "word_perplexity_stderr,none": "N/A"}}}
    for name, value in (("target", 12.0), ("reference", 10.0)):
        sections["results"]["wikitext"]["word_perplexity,none"] = value
        (tmp_path / f"{name}.json").write_text(json.dumps(sections))
    sides = [read_evaluation(tmp_path / f"{name}.json") for name in ("target", "reference")]
    assert compare_evaluations(*sides).rows[0].state is State.FAILED
    assert compare_evaluations(*reversed(sides)).rows[0].state is State.WARNING


def test_many_tasks_are_not_many_chances_to_fail(tmp_path: Path) -> None:
    """Two equal models on 40 tasks: the chance that one of them is called worse stays below 5 %."""
    draw = random.Random(0)
    failed = 0
    for _ in range(60):
        sides = [{f"t{i}": (0.5 + draw.gauss(0, 0.016), 0.016) for i in range(40)} for _ in range(2)]
        found = compared(tmp_path, *sides)
        failed += any(row.state is State.FAILED for row in found.rows)
    assert failed <= 6


def test_a_little_worse_everywhere_is_seen(tmp_path: Path) -> None:
    reference = {f"t{i}": (0.5, 0.016) for i in range(30)}
    target = {f"t{i}": (0.48, 0.016) for i in range(30)}
    found = compared(tmp_path, target, reference)
    assert {row.state for row in found.rows} == {State.PASSED}
    assert found.together is not None
    assert found.together.state is State.FAILED


@pytest.mark.parametrize(
    ("changed", "name", "values"),
    [
        ({"n-shot": {"arc": 0}}, "shots", ("0", "5")),
        ({"versions": {"arc": 2.0}}, "version of the task", ("2.0", "1.0")),
        ({"n-samples": {"arc": {"original": 1000, "effective": 10}}}, "samples", ("10", "1000")),
    ],
)
def test_scores_of_another_setting_are_no_comparison(
    tmp_path: Path, changed: dict[str, object], name: str, values: tuple[str, str]
) -> None:
    row = compared(tmp_path, {"arc": (0.5, 0.016)}, {"arc": (0.5, 0.016)}, **changed).rows[0]
    assert row.state is State.NOT_SHOWN
    target, expected = values
    assert row.why == reason(Code.OTHER_SETTINGS, names=[name], target=[target], reference=[expected])


def test_a_task_of_one_side_alone_is_listed(tmp_path: Path) -> None:
    both, more = {"arc": (0.5, 0.016)}, {"arc": (0.5, 0.016), "mmlu": (0.4, 0.01)}
    rows = compared(tmp_path, both, more).rows
    assert [(row.task, row.state) for row in rows] == [("arc", State.PASSED), ("mmlu", State.NOT_SHOWN)]
    assert rows[1].why == reason(Code.ONE_SIDED, side="target")


def test_a_group_stands_for_its_tasks(tmp_path: Path) -> None:
    scores = {"mmlu": (0.5, 0.004), "mmlu_law": (0.5, 0.03), "arc": (0.5, 0.016)}
    file = results(tmp_path / "a.json", scores, group_subtasks={"mmlu": ["mmlu_law"], "arc": []})
    assert {task for task, _ in read_evaluation(file).scores} == {"mmlu", "arc"}


def test_the_old_form_and_the_newest_file_of_a_folder(tmp_path: Path) -> None:
    old = {"results": {"arc": {"acc": 0.4, "acc_stderr": 0.01, "acc_norm": 0.5, "acc_norm_stderr": 0.01}}}
    (tmp_path / "model").mkdir()
    for day, value in (("2024-01-02", 0.5), ("2024-01-01", 0.1)):
        old["results"]["arc"]["acc_norm"] = value
        (tmp_path / "model" / f"results_{day}.json").write_text(json.dumps(old))
    found = read_evaluation(tmp_path)
    assert found.scores["arc", "acc_norm"].value == 0.5
    assert found.primary("arc") == "acc_norm"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON of lm-evaluation-harness"),
        ("[" * 100_000, "no JSON of lm-evaluation-harness"),
        ("[]", "no JSON of lm-evaluation-harness"),
        ('{"results": {"arc": 0.4}}', r"results\.arc: "),
        ('{"results": {"arc": {"acc": 1}}, "group_subtasks": {"arc": 3}}', r"group_subtasks\.arc"),
        ('{"results": {"arc": {"acc": 1}}, "higher_is_better": 1}', "higher_is_better: "),
        ('{"results": {}}', "no task under `results`"),
        ('{"results": {"arc": {"alias": "arc", "acc,none": "N/A"}}}', "none of its 1 tasks has a metric"),
    ],
)
def test_what_is_no_results_file_is_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_evaluation(tmp_path / "a.json")


def test_nothing_in_common_is_never_green(tmp_path: Path) -> None:
    with pytest.raises(NothingCompared, match="no task and metric in common: arc against mmlu"):
        compared(tmp_path, {"arc": (0.5, 0.01)}, {"mmlu": (0.5, 0.01)})
