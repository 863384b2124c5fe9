"""Rows of the guide, each tried with a pair of files of its own: what differs is said, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checklist.fresh import CASES, Case
from trueup.checklist import check
from trueup.checklist.check import Checklist
from trueup.checklist.judging import DemandStatus
from trueup.types.codes import ChecklistCode

_SAYS = (DemandStatus.DIFFERENT, DemandStatus.BROKEN, DemandStatus.NOT_COMPARABLE)
_TO_KNOW = {"framework", "fused_router", "data_files", "zero_level"}
"""rows that may differ without a word in the verdict: they stand for another row, or decide nothing"""
_NOTES = {"sequence_parallel_needs_tp"}


def _said(found: Checklist) -> set[str]:
    return {row.key for row in found.rows if row.status in _SAYS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("form", ["log", "script"])
def test_row(case: Case, form: str, tmp_path: Path) -> None:
    """The script is the reference, the log is the target: both directions are seen."""
    mindformers, megatron = tmp_path / "train.yaml", tmp_path / f"run.{form}"
    mindformers.write_text(case.mindformers(), encoding="utf-8")
    megatron.write_text(case.megatron(form), encoding="utf-8")
    sides = (mindformers, megatron) if form == "script" else (megatron, mindformers)
    found = check([str(sides[0])], [str(sides[1])])
    unmet = {one.key for one in found.unmet if one.counts}
    if case.name == "lr_cosine" or case.name == "warmup_ratio_equal":
        assert found.schedules.same is True
    assert case.differs <= _said(found)
    assert _said(found) <= case.differs | case.unmet | _TO_KNOW | {"padded_vocab_size"}
    assert unmet == case.unmet
    wrong = (case.differs | case.unmet) - _NOTES
    assert (found.exit_code == 0) is not bool(wrong), (found.exit_code, _said(found), unmet)


@pytest.mark.parametrize(
    ("given", "computed", "suspected"),
    [(None, "bf16", ["bfloat16"]), (None, "fp16", ["float16"]), (None, None, []), ("fp32", "bf16", [])],
)
def test_a_router_that_follows_the_computation_is_a_suspect(
    given: str | None, computed: str | None, suspected: list[str], tmp_path: Path
) -> None:
    """Megatron's router computes in the dtype of its input, where its arguments do not say another one."""
    dtypes = {"bf16": computed == "bf16", "fp16": computed == "fp16"}
    case = Case(name="router", reference={"moe_router_dtype": given, **dtypes})
    sides = tmp_path / "train.yaml", tmp_path / "train.sh"
    sides[0].write_text(case.mindformers(), encoding="utf-8")
    sides[1].write_text(case.megatron("script"), encoding="utf-8")
    found = check([str(sides[0])], [str(sides[1])])
    rows = [row for row in found.suspects if row.key == "router_dtype"]
    assert [row.reference.value for row in rows if row.reference] == suspected
    assert not any(row.matters for row in rows)


def test_one_value_may_have_another_effect(tmp_path: Path) -> None:
    """Sequence parallelism on both sides acts where tensors are split."""
    asked = (
        ("use_seq_parallel: False", "use_seq_parallel: True"),
        ("model_parallel: 1", "model_parallel: 2"),
    )
    for degree, effect in ((1, ChecklistCode.OTHER_EFFECT), (2, None)):
        words = {"sequence_parallel": True, "tensor_model_parallel_size": degree, "world_size": 4 * degree}
        case = Case(name="sequence", target=asked, reference=words)
        sides = tmp_path / f"{degree}.yaml", tmp_path / f"{degree}.sh"
        sides[0].write_text(case.mindformers(), encoding="utf-8")
        sides[1].write_text(case.megatron("script"), encoding="utf-8")
        (row,) = (
            row for row in check([str(sides[0])], [str(sides[1])]).rows if row.key == "sequence_parallel"
        )
        assert (row.reason.code if row.reason else None) == effect
        assert (row.status is DemandStatus.DIFFERENT) is (degree == 1)


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 95
