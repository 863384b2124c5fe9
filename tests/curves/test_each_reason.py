"""Each sentence about two curves: said where it is true, and not of its near miss."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.curves import logs
from tests.curves.simulating import Truth, simulate
from tests.diagnosing.made_steps import codes_of, gradients, run, step
from trueup.curves.conditions import proofs
from trueup.curves.judgement import CurveEvidence, CurveJudgement, judge
from trueup.curves.reading import read_curve
from trueup.curves.standard import Criterion, Met
from trueup.curves.statistics.centred import Centre
from trueup.curves.statistics.envelope import Envelope
from trueup.curves.statistics.frozen import FrozenRun
from trueup.curves.statistics.health import Health
from trueup.types.codes import Code, CriterionCode, GivenCode
from trueup.types.codes import CurvesCode as Curves
from trueup.types.reason import Reason, reason

HEALTHY = Health(not_finite=(), num_not_finite=0, overflow_steps=(), num_overflow_steps=0, plateau_from=None)
STILL = FrozenRun(
    num_steps=50,
    mean_loss_diff=0.0,
    max_loss_diff=0.0,
    max_loss_step=0,
    num_beyond=0,
    mean_norm_diff=None,
    mean_norm_rel_diff=None,
    max_norm_diff=None,
    outlying_steps=(),
)
CENTRED = Centre(
    mean=0.05,
    standard_error=0.01,
    low=0.03,
    high=0.07,
    p_value=1e-6,
    autocorrelation=0.0,
    num_steps=100,
    num_outliers=0,
    num_runs=50,
    expected_runs=50.0,
    runs_p_value=1.0,
)
BAND = Envelope(
    origin="",
    num_repeats=2,
    inside=None,
    expected_inside=None,
    largest_apart=0.06,
    largest_offset=0.06,
    first_exceedance=None,
    share_outside=0.0,
)
NOTHING = CurveEvidence(
    criteria=(),
    centre=None,
    onset=None,
    late=None,
    envelope=None,
    spikes=None,
    norm_spikes=None,
    rates=None,
    frozen=None,
    target_health=HEALTHY,
    reference_health=HEALTHY,
    limit_abs=0.01,
    limit_rel=0.01,
    level=2.0,
    num_steps=100,
    rises=False,
    mean_size=1.0,
    learned=1.0,
    excursions=None,
    passing=None,
    repeats_frozen=None,
    local_norms=None,
)


def failing(key: str) -> Criterion:
    text = reason(GivenCode.TEXT, text="")
    return Criterion(key=key, value=text, threshold=text, status=Met.NOT_MET, decisive=True, origin=text)


def said_by(found: CurveJudgement) -> list[Reason]:
    return [found.headline, *found.reasons, *found.remarks, *found.advice]


def seen(**changed: Any) -> CurveEvidence:
    return replace(NOTHING, **changed)


OVERFLOWED = replace(HEALTHY, overflow_steps=(3, 7), num_overflow_steps=2)


@pytest.mark.parametrize(
    ("codes", "holds", "near"),
    [
        (
            (Curves.FROZEN_OUTLIERS, Curves.ANALYSE_OUTLIER),
            seen(frozen=replace(STILL, outlying_steps=(4,))),
            seen(frozen=STILL),
        ),
        (
            (Curves.FROZEN_CAUSE,),
            seen(frozen=STILL, repeats_frozen=replace(STILL, num_beyond=5)),
            seen(frozen=STILL, repeats_frozen=STILL),
        ),
        (
            (Curves.SCATTERS,),
            seen(criteria=(failing("mean_loss"),), centre=CENTRED, limit_abs=1.0),
            seen(criteria=(failing("mean_loss"),), centre=replace(CENTRED, p_value=0.5), limit_abs=1.0),
        ),
        (
            (Curves.WITHIN_REPEATS,),
            seen(centre=CENTRED, envelope=BAND),
            seen(centre=CENTRED, envelope=BAND, limit_abs=0.1),
        ),
        ((Curves.OVERFLOWS,), seen(target_health=OVERFLOWED), seen()),
    ],
    ids=["outliers", "not deterministic", "scatters", "within repeats", "overflows"],
)
def test_what_is_said_of_two_curves(
    codes: Collection[Code], holds: CurveEvidence, near: CurveEvidence
) -> None:
    assert set(codes) <= codes_of(said_by(judge(holds)))
    assert not set(codes) & codes_of(said_by(judge(near)))


@pytest.mark.parametrize("second", [True, False])
def test_other_logs_of_a_folder(tmp_path: Path, second: bool) -> None:
    curve, _ = simulate(Truth(num_steps=30), 1)
    for name in ("a", "b")[: 1 + second]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.log").write_text(logs.megatron(curve, last=30 if name == "a" else 20))
    notes = [one for one in read_curve(tmp_path).notes if one.code is Curves.OTHER_LOGS]
    assert [one.number("num") for one in notes] == ([2] if second else [])


def trace(folder: Path, contents: Collection[str], batches: Collection[str], framework: str) -> Path:
    table = [
        {"fqn": f"w{at}", "shape": [8, 8], "dtype": "float32", "requires_grad": True, "content": content}
        for at, content in enumerate(contents)
    ]
    lines = [{"batch_digest": one} for one in batches]
    facts = {"parameters": table}
    return run(folder, step({"w": gradients(1)}), lines=lines, facts=facts, framework=framework).path


@pytest.mark.parametrize(
    ("contents", "batches", "framework", "codes"),
    [
        (("1", "3"), "ab", "pytorch", {CriterionCode.EQUAL_IN_SUM, CriterionCode.CUT_DIFFERENTLY}),
        (("2", "3"), "ab", "pytorch", set()),
        (("2", "2"), "ac", "pytorch", {CriterionCode.BATCHES_DIFFER, CriterionCode.DIAGNOSE}),
        (("2", "2"), "ac", "mindspore", set()),
        (("2", "2"), "ab", "pytorch", set()),
    ],
    ids=["cut otherwise", "another weight", "another batch", "another dtype of ids", "all the same"],
)
def test_what_two_traces_prove(
    tmp_path: Path, contents: Any, batches: str, framework: str, codes: set[Code]
) -> None:
    target = trace(tmp_path / "t", contents, batches, framework)
    reference = trace(tmp_path / "r", ("2", "2"), "ab", "pytorch")
    said = [one for found in proofs(target, reference) for one in (found.value, found.note) if one]
    told = {
        CriterionCode.EQUAL_IN_SUM,
        CriterionCode.CUT_DIFFERENTLY,
        CriterionCode.BATCHES_DIFFER,
        CriterionCode.DIAGNOSE,
    }
    assert codes_of(said) & told == codes
    if CriterionCode.BATCHES_DIFFER in codes:
        differ = next(one for one in said if one.code is CriterionCode.BATCHES_DIFFER)
        assert differ.facts == {"num": 1, "total": 2, "step": 1}
