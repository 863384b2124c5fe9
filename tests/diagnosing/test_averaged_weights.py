"""Averaged weights in a diagnosis: a finding of the optimizer stage, and beside another fault."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tests.comparing.averaging import Program, trained  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.diagnosing.stages.protocol import StageStatus  # noqa: E402
from trueup.types.codes import Code, NoteCode, VerdictCode  # noqa: E402
from trueup.types.codes import StagesCode as Stages  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402

PLAIN = Program(values=True)
MISTAKES: dict[VerdictCode, tuple[Program, str]] = {
    VerdictCode.AVERAGE_DECAY_DIFFERS: (replace(PLAIN, decay=0.99), "decay"),
    VerdictCode.AVERAGES_BEFORE_UPDATE: (replace(PLAIN, before_update=True), "order"),
    VerdictCode.AVERAGES_TWICE: (replace(PLAIN, each_microbatch=True), "microbatches"),
    VerdictCode.AVERAGE_LEAVES_OUT: (replace(PLAIN, buffers=False), "parameters_only"),
}


def diagnosed(folder: Path, target: Program, reference: Program = PLAIN) -> Diagnosis:
    trained(folder / "target", target)
    trained(folder / "reference", reference)
    return diagnose(folder / "target", folder / "reference", output=folder / "out")


@pytest.mark.parametrize("code", sorted(MISTAKES))
def test_each_mistake_is_found_in_the_optimizer_stage(tmp_path: Path, code: VerdictCode) -> None:
    program, cause = MISTAKES[code]
    (finding,) = diagnosed(tmp_path, program).findings
    assert finding.stage is Stage.OPTIMIZER
    assert codes_of(finding.headline) >= {code}
    assert finding.site is not None
    assert finding.site.startswith("averaged weights")
    assert [one.place("key") for one in finding.causes if one.code is Stages.AVERAGE_CAUSE] == [cause]


def codes_of(headline: object) -> set[Code]:
    """Of a headline and its parts."""
    return {headline.code, *(part.code for part in headline.parts)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["lerp", "foreach", "swa", "class"])
def test_the_same_average_written_otherwise_has_no_finding(tmp_path: Path, how: str) -> None:
    found = diagnosed(tmp_path, replace(PLAIN, how=how))
    assert not found.findings
    assert stage_of(found) is StageStatus.PASSED


def test_an_average_of_one_run_is_said_and_no_fault(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, replace(PLAIN, how="none"))
    assert not found.findings
    (stage,) = [one for one in found.stages if one.stage is Stage.OPTIMIZER]
    assert NoteCode.AVERAGES_OF_ONE_SIDE in {one.code for one in stage.evidence}


def test_beside_another_rate(tmp_path: Path) -> None:
    """Weights differ, and so do their averages; only another decay is a fault of its own."""
    rate = replace(PLAIN, rate=2e-2)
    headlines = [codes_of(one.headline) for one in diagnosed(tmp_path / "a", rate).findings]
    assert not any(codes & set(MISTAKES) for codes in headlines)
    assert VerdictCode.AVERAGES_DIFFER not in set().union(*headlines)
    both = diagnosed(tmp_path / "b", replace(rate, decay=0.5)).findings
    assert VerdictCode.AVERAGE_DECAY_DIFFERS in set().union(*(codes_of(one.headline) for one in both))
    assert len(both) > 1


def stage_of(found: Diagnosis) -> StageStatus:
    (stage,) = [one for one in found.stages if one.stage is Stage.OPTIMIZER]
    return stage.status
