"""Rows of the guide, each tried with a pair of files of its own: what differs is said, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checklist.fresh import CASES, Case
from trueup.checklist import check
from trueup.checklist.check import Checklist
from trueup.checklist.judging import Status

_SAYS = (Status.DIFFERENT, Status.BROKEN, Status.NOT_COMPARABLE)
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


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 95
