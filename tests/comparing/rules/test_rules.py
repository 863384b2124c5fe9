"""Rules are pure, say what they give, come from a decision, and are added by one file and one line."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.comparing.rules.judging import Step, step_of, steps_seen
from tests.comparing.test_alone_and_absent import norms, weights
from tests.comparing.test_noise import measured, noisy
from tests.comparing.traces import Recorder, network
from trueup.comparing import rules
from trueup.comparing.judgement import DIFFERENT, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.noise import StepNoise
from trueup.comparing.options import CompareOptions
from trueup.comparing.rules import RULES, Needs, Rule, StepContext
from trueup.comparing.run import compare
from trueup.numerics.summary import HAS_DIGEST, HAS_STATISTICS
from trueup.types.codes import RecordCode
from trueup.types.status import Status

DECISIONS = Path(__file__).parents[3] / "docs" / "decisions"
STATISTICS = HAS_STATISTICS | HAS_DIGEST

Judged = tuple[Rule, Step, Judgement, Judgement]
"""a rule, its step, and the judgement before and after it"""


def various() -> Recorder:
    """Integers, NaN, other shapes and other dtypes."""
    return _various(1, np.float64)


def repeated(times: int) -> Recorder:
    """A function that is called so many times of the same tensor, each with its part of the gradient."""
    out, values = Recorder(), np.random.default_rng(2).standard_normal((8, 8)).astype(np.float32)
    for _ in range(times):
        call = out.call("api", "torch.exp")
        out.record(call, "forward", "input.0", values)
        out.record(call, "forward", "output.0", np.exp(values))
        out.record(call, "backward", "output.0", values / times)
    return out


def _various(shift: int, dtype: type) -> Recorder:
    out, rng = Recorder(), np.random.default_rng(0)
    root = out.call("module", "", type_="Net")
    values = rng.standard_normal((8, 8)).astype(np.float32)
    out.record(root, "forward", "input.0", np.arange(64) + shift)
    out.record(root, "forward", "input.1", values.astype(dtype) * (1 + 1e-7 * shift))
    out.record(root, "forward", "input.2", np.arange(64) * shift)
    out.record(root, "forward", "input.3", np.where(values > shift, np.nan, values))
    out.record(root, "forward", "input.4", values[: 8 - shift])
    out.record(root, "forward", "output.0", np.full(4, np.nan, np.float32))
    return out


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Step]:
    """Steps with and without a noise profile, of runs that differ in many ways."""
    folder = tmp_path_factory.mktemp("runs")
    reference = measured(folder, 1e-4)
    pairs = {
        "noise": (network(noisy(9, 2e-4)), reference),
        "noise exceeded": (network(noisy(9, 1e-1)), reference),
        "statistics": (network(noisy(9, 3e-7), want=STATISTICS), network(want=STATISTICS)),
        "rounding": (norms([2]), norms()),
        "absent": (weights(without="bc"), weights()),
        "various": (various(), _various(0, np.float32)),
        "repeated": (repeated(2), repeated(1)),
    }
    with steps_seen() as seen:
        for name, (target, other) in pairs.items():
            there = other if isinstance(other, Path) else folder / name / "reference"
            if isinstance(other, Recorder):
                other.write(there)
            target.write(folder / name / "target")
            compare(folder / name / "target", there)
            compare(folder / name / "target", there, options=CompareOptions(noise=False))
    return [*seen, _common_factor(folder / "factor")]


def _common_factor(folder: Path) -> Step:
    """A gradient that is the reference's times a factor, far below the noise in size."""
    sides, values = [Recorder(), Recorder()], np.random.default_rng(0).standard_normal((64, 64))
    for made, factor in zip(sides, (1 + 1e-5, 1.0), strict=True):
        made.record(made.call("parameter", "a.weight"), "param_grad", "clipped", values * factor)
    size, quiet = np.full(1, 1e-2), np.full(1, 1e-9)
    return step_of(folder, *sides, noise=StepNoise(repeat=size, perturbed=size, gain=1 + quiet, bias=quiet))


def judged(steps: list[Step]) -> Iterator[Judged]:
    """Every rule on every step, one after another."""
    for context, metrics in steps:
        before = Judgement.undecided(metrics.difference)
        for rule in RULES:
            if rule.needs in context.offers:
                after = rule.apply(context, replace(metrics, difference=before.difference), before)
                yield rule, (context, metrics), before, after
                before = after


def arrays_in(value: Any) -> Iterator[np.ndarray]:
    """Arrays of a value and of the values it holds."""
    if isinstance(value, np.ndarray):
        yield value
    elif is_dataclass(value):
        for one in fields(value):
            yield from arrays_in(getattr(value, one.name))
    elif isinstance(value, dict):
        for one in value.values():
            yield from arrays_in(one)


def test_no_rule_writes_into_what_it_is_given(steps: list[Step]) -> None:
    for context, metrics in steps:
        for array in (*arrays_in(context), *arrays_in(metrics)):
            array.flags.writeable = False
    seen = {rule.name for rule, _, _, _ in judged(steps)}
    assert seen == {rule.name for rule in RULES}


def test_a_rule_that_writes_is_stopped(steps: list[Step]) -> None:
    def writes(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
        judgement.status[:] = DIFFERENT
        return judgement

    rule = Rule(apply=writes, place="", note="")
    with pytest.raises(ValueError, match="read-only"):
        rules.judge_step(*steps[0], rules=(rule,))


def test_a_judgement_stays_what_it_was(steps: list[Step]) -> None:
    for _, _, before, after in judged(steps):
        for one in ("status", "score", "tolerance", "difference", "bracketable"):
            assert not getattr(before, one).flags.writeable
            assert not getattr(after, one).flags.writeable


def test_rules_give_the_codes_and_statuses_that_they_declare(steps: list[Step]) -> None:
    given: dict[str, set[RecordCode]] = {rule.name: set() for rule in RULES}
    for rule, (context, _), before, after in judged(steps):
        match = context.rows.match
        of_matching = {why.code for why in (*match.why_only_target(), *match.why_only_reference())}
        new = {why.code for row, why in after.reasons.items() if before.reasons.get(row) != why}
        given[rule.name] |= {RecordCode(code) for code in new - of_matching}
        columns = (before.status, after.status), (before.attribution.status, after.attribution.status)
        if rule.name == "origin":  # it takes the statuses over before it tells the different ones apart
            columns = ((np.where(after.status == DIFFERENT, -1, after.status), after.attribution.status),)
        statuses = {int(s) for old, now in columns for s in now[old != now]}
        assert statuses <= {status.code for status in rule.statuses}, rule.name
    for rule in RULES:
        assert given[rule.name] <= set(rule.codes), rule.name
    silent = {rule.name for rule in RULES if rule.codes and not given[rule.name]}
    elsewhere = {"one_sided", "copies", "autograd_order", "finer_dtype"}
    elsewhere |= {
        "regrouped",
        "lists_in_another_order",
        "mean_of_tokens",
        "reduced_later",
        "gathered_elsewhere",
        "norm_in_parts",
        "summed_steps",
        "other_groups",
        "uncounted_labels",
        "unread_views",
        "without_effect",
    }
    assert silent <= elsewhere, "seen in no step above"


def test_rules_come_from_decisions_and_say_why_they_stand_where_they_stand() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert (DECISIONS / f"{rule.note}.md").is_file(), rule.name
        assert rule.place, rule.name
        for word in rule.place.replace(",", " ").replace(";", " ").replace(":", " ").split():
            assert "_" not in word or word in {one.name for one in RULES}, f"{rule.name}: no rule {word}"


def test_a_rule_is_asked_with_what_it_needs(steps: list[Step]) -> None:
    asked: set[bool] = set()
    for rule, (context, _), _, _ in judged(steps):
        if rule.needs is Needs.NOISE_PROFILE:
            asked.add(context.noise is not None)
    assert asked == {True}
    assert any(context.noise is None for context, _ in steps)


ADDED = '''
from trueup.comparing.judgement import DIFFERENT, ORIGIN
from trueup.comparing.rules import Rule
from trueup.numerics.summary import HAS_DIGEST, HAS_STATISTICS
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.status import Status


def _large(context, metrics, judgement):
    """Tensors of a norm above LIMIT."""
    large = context.rows.phase_is("forward") & (context.rows.target.statistics["l2_norm"] > LIMIT)
    why = Reason(RecordCode.NO_COMMON_EVIDENCE)
    return judgement.at(large, status=DIFFERENT, score=7.0, why=why).attributed(large, ORIGIN)


LIMIT = 5.0
RULE = Rule(
    apply=_large,
    codes=(RecordCode.NO_COMMON_EVIDENCE,),
    statuses=(Status.DIFFERENT, Status.ORIGIN),
    place="last",
    note="0002-tolerance",
)
'''


def test_a_rule_is_added_by_one_file_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [network().write(tmp_path / name).path for name in ("target", "reference")]
    before = compare(*paths)
    assert (before.exit_code, before.frame().filter(status=Status.ORIGIN.value).height) == (0, 0)

    (tmp_path / "large_values.py").write_text(ADDED)
    spec = importlib.util.spec_from_file_location("large_values", tmp_path / "large_values.py")
    assert spec is not None
    assert spec.loader is not None
    large_values = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(large_values)
    monkeypatch.setattr(rules, "RULES", (*rules.RULES, large_values.RULE))

    after = compare(*paths)
    rows = after.frame().filter(status=Status.ORIGIN.value)
    assert after.exit_code == 1
    assert rows.height > 0
    assert (rows["target_l2_norm"] > 5.0).all()
    assert set(rows["reason_code"].cast(str)) == {RecordCode.NO_COMMON_EVIDENCE.value}
