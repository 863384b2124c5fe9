"""What a diagnosis says around its findings: which step agrees and which does not, what agrees before it,
what it rests on, and what keeps it open. Each is held against what it was given."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tests.diagnosing.made_steps import codes_of, context_of, drawn, passed, run, step
from trueup.diagnosing.pipeline import (
    _basis_note,
    _merged,
    _not_compared,
    _pointed,
    _verdict,
    _with_before,
)
from trueup.diagnosing.stages.next_loss import NextLossStage
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.store.view import LOCAL, WEIGHT
from trueup.types.codes import NoteCode, RecordCode, VerdictCode
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Basis, Finding, Origin, Stage
from trueup.types.reason import reason
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict
from trueup.wording import text

STAGES = (Stage.DATA, Stage.FORWARD, Stage.LOSS, Stage.BACKWARD, Stage.OPTIMIZER)


def found(
    stage: Stage, *, step: int | None = 3, site: str | None = "a · output.0", module: str | None = "a"
) -> Finding:
    headline = reason(Stages.LOSS_GRADIENT)
    return Finding(stage=stage, headline=headline, module=module, site=site, step=step, basis=Basis.RECORDED)


def test_which_step_agrees_and_which_does_not() -> None:
    """The stage of a later difference says so where it passed; an open next loss says from where on; the
    other stages stay as they are."""
    alone = reason(Stages.NEXT_LOSS_ONLY)
    for at, is_open, status in product(STAGES, (True, False), (StageStatus.PASSED, StageStatus.UNDECIDED)):
        outcomes = tuple(passed(stage, status if stage is at else StageStatus.PASSED) for stage in STAGES)
        if is_open:
            outcomes += (replace(passed(Stage.LOSS, StageStatus.UNDECIDED), conclusion=alone),)
        assert _pointed(outcomes, (), 0) == outcomes
        for later in (
            found(at),
            found(at, step=None, site=None),
            found(at, step=None, site=None, module=None),
        ):
            told = _pointed(outcomes, (later,), 2)
            changed = [one for one, before in zip(told, outcomes, strict=True) if one != before]
            if is_open:
                assert [one.conclusion.code for one in changed] == [Stages.NEXT_LOSS_FOUND]
                line = text(changed[0].conclusion)
                assert (later.site or later.module or "Differs") in line
                assert "  " not in line
                assert changed[0].status is StageStatus.CONSEQUENCE
            else:
                assert [one.stage for one in changed] == [at] * (status is StageStatus.PASSED)
                for one in changed:
                    assert one.conclusion.code is Stages.DIFFERS_LATER
                    assert (one.conclusion.number("first"), one.conclusion.number("step")) == (2, later.step)
                    assert ("a later step" in text(one.conclusion)) == (later.step is None)


def test_what_agrees_before_a_finding() -> None:
    """Of stages before it in order, those that passed, but for words of configurations."""
    random = np.random.default_rng(1)
    stages = (Stage.CONFIG, *STAGES)
    for _ in range(40):
        at, finding = int(random.integers(len(stages))), found(Stage.OPTIMIZER)
        statuses = [
            (StageStatus.PASSED, StageStatus.UNDECIDED, StageStatus.CONSEQUENCE)[int(random.integers(3))]
            for _ in stages
        ]
        outcomes: list[StageOutcome] = []
        for index, stage in enumerate(stages):
            key = reason(Stages.TITLE, key=f"stage {index}")
            one = replace(
                passed(stage, statuses[index]), title=key, conclusion=reason(Stages.WITHIN_ROUNDING)
            )
            outcomes.append(replace(one, findings=(finding,)) if index == at else one)
        told = _with_before(finding, outcomes).counter_evidence
        assert all(one.code is Stages.STAGE_AGREES for one in told)
        expected = [f"stage {n}" for n in range(1, at) if statuses[n] is StageStatus.PASSED]
        assert [one.place("stage") for one in told] == expected


def test_what_traces_and_replay_both_name() -> None:
    random = np.random.default_rng(2)
    for _ in range(20):
        origins = [[origin(name) for name in "abcd" if random.random() < 0.5] for _ in range(2)]
        passive = {one.module for one in origins[1]}
        for one, was in zip(_merged(tuple(origins[0]), tuple(origins[1])), origins[0], strict=True):
            assert (Stages.ALSO_PASSIVE in codes_of(one.evidence)) == (one.module in passive)
            assert one.module == was.module


def origin(module: str) -> Origin:
    return Origin(
        module=module, stage=Stage.FORWARD, site=f"{module} · output.0", phase="forward", slot="output.0",
        step=0, rank=0, microbatch=0, order=0, score=2.0, rel_l2=0.1, tolerance=0.05, basis=Basis.RECORDED,
        target_record=None, reference_record=None,
    )  # fmt: skip


def test_what_keeps_a_comparison_open() -> None:
    """Records that were not compared are told as such; what is said of dtypes beside them is not."""
    records = [reason(RecordCode.NO_SUMMARY), reason(RecordCode.NO_NORM)]
    dtypes = [
        reason(NoteCode.WEIGHT_DTYPE, target="bfloat16", reference="float32", num=1, total=2, module="a")
    ]
    for code, kept, beside in product(
        (VerdictCode.NOT_BRACKETED, VerdictCode.AGREE), (records, []), (dtypes, [])
    ):
        verdict = Verdict(outcome=Outcome.UNDECIDED, headline=reason(code), evidence=(*beside, *kept, *kept))
        told = _not_compared(verdict)
        if code is VerdictCode.AGREE:
            assert told == []
            continue
        parts = [one.parts for one in told if one.code is NoteCode.NOT_COMPARED]
        assert parts == ([tuple(records)] if kept else [])
        assert [one for one in told if one.code is not NoteCode.NOT_COMPARED] == beside


def of_steps(path: Path, num: int, first: int = 0) -> Any:
    steps = [
        step({"w": {WEIGHT: drawn(at), LOCAL: drawn(9)}}, inputs=[drawn(1)], loss=2.0) for at in range(num)
    ]
    if first:
        for number, one in enumerate(steps, first):
            one.write(path, step=number)
        return run(path)
    return run(path, *steps)


def test_steps_that_both_runs_have(tmp_path: Path) -> None:
    """The next loss needs two: of two and two, of two and one, of steps 0 and 1 beside 1 and 2."""
    target = of_steps(tmp_path / "target", 2)
    for name, other, is_one in (
        ("two", of_steps(tmp_path / "two", 2), False),
        ("one", of_steps(tmp_path / "one", 1), True),
        ("later", of_steps(tmp_path / "later", 2, first=1), True),
    ):
        context = context_of(target, other)
        said = NextLossStage().check(context).conclusion
        assert (said.code is Stages.ONE_STEP) is is_one, name
        assert {one.code for one in _basis_note(context)} == {Stages.BY_TRACES}
        context.replayed = other
        assert {one.code for one in _basis_note(context)} == {Stages.BY_REPLAY}


def test_a_long_run_that_is_open(tmp_path: Path) -> None:
    """The captured steps agree and the long run is undecided; not where it passed, nor where the steps
    differ."""
    target, same = of_steps(tmp_path / "target", 1), of_steps(tmp_path / "same", 1)
    apart = step({"w": {WEIGHT: 2 * drawn(0), LOCAL: drawn(9)}}, inputs=[drawn(1)], loss=2.0)
    contexts = context_of(target, same), context_of(run(tmp_path / "apart", apart), same)
    for status, context in product(StageStatus, contexts):
        part = replace(passed(Stage.LONG_RUN, status), conclusion=reason(Stages.WITHIN_ROUNDING))
        context.earlier = [part]
        outcome, headline, _ = _verdict((), context)
        is_open = status is StageStatus.UNDECIDED and context is contexts[0]
        assert (headline.code is Stages.LONG_RUN_OPEN) is is_open
        assert not is_open or headline.parts == (part.conclusion,)
        assert context is contexts[1] or outcome is (Outcome.UNDECIDED if is_open else Outcome.AGREE)
