"""Averaged weights of two runs: what is no difference, what is one, and which."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tests.comparing.averaging import Program, built, trained  # noqa: E402
from trueup.comparing.averages import average_gaps  # noqa: E402
from trueup.comparing.result import Comparison  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.types.codes import EvidenceCode, NoteCode, VerdictCode  # noqa: E402
from trueup.types.reason import Reason  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

PLAIN = Program()


def compared(folder: Path, target: Program, reference: Program = PLAIN) -> Comparison:
    trained(folder / "target", target)
    trained(folder / "reference", reference)
    return compare(folder / "target", folder / "reference")


def averages(comparison: Comparison) -> list[Reason]:
    codes = (NoteCode.AVERAGES_OF_ONE_SIDE, NoteCode.AVERAGES_NOT_PAIRED, NoteCode.AVERAGED_IN_ONE)
    return [note for note in comparison.content.notes if note.code in codes]


@pytest.mark.parametrize("how", ["lerp", "foreach", "data", "swa", "loop"])
def test_the_same_average_written_otherwise(tmp_path: Path, how: str) -> None:
    found = compared(tmp_path, Program(how=how))
    assert found.verdict.outcome is Outcome.AGREE
    assert averages(found) == []
    (agree,) = (note for note in found.content.notes if note.code is NoteCode.AVERAGES_AGREE)
    tensors = len([of for of in built().state_dict().values() if of.is_floating_point()])
    counted = agree.number("equal"), agree.number("within")  # of two captured steps
    assert counted[0] is not None
    assert counted[1] is not None
    assert counted[0] + counted[1] == 2 * tensors
    assert how != PLAIN.how or counted[1] == 0


@pytest.mark.parametrize("how", ["class", "list"])
def test_a_copy_without_buffers_is_said(tmp_path: Path, how: str) -> None:
    found = compared(tmp_path, Program(how=how))
    assert found.verdict.outcome is Outcome.AGREE
    (note,) = averages(found)
    assert (note.code, note.place("side"), note.number("num")) == (NoteCode.AVERAGED_IN_ONE, "reference", 2)


@pytest.mark.parametrize("how", ["none", "frozen"])
def test_an_average_that_one_run_keeps_is_said_and_no_fault(tmp_path: Path, how: str) -> None:
    found = compared(tmp_path, Program(how=how))
    assert found.verdict.outcome is Outcome.AGREE
    (note,) = averages(found)
    assert (note.code, note.place("side")) == (NoteCode.AVERAGES_OF_ONE_SIDE, "reference")


def test_runs_without_an_average_say_nothing_of_one(tmp_path: Path) -> None:
    found = compared(tmp_path, Program(how="frozen"), Program(how="none"))
    assert averages(found) == []


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("decay", [0.99, 0.901])
def test_another_decay(tmp_path: Path, decay: float, values: bool) -> None:
    verdict = compared(tmp_path, Program(decay=decay, values=values), Program(values=values)).verdict
    assert (verdict.outcome, verdict.headline.code) == (Outcome.DIFFER, VerdictCode.AVERAGE_DECAY_DIFFERS)
    assert verdict.headline.number("target") == pytest.approx(decay, abs=1e-4)
    assert verdict.headline.number("reference") == pytest.approx(0.9, abs=1e-4)


def test_a_decay_nearer_than_rounding_is_none(tmp_path: Path) -> None:
    found = compared(tmp_path, Program(decay=0.9 + 1e-8, rate=1e-3), Program(rate=1e-3))
    assert found.verdict.outcome is Outcome.AGREE


def test_decays_near_one(tmp_path: Path) -> None:
    programs = Program(decay=0.999), Program(decay=0.9999)
    verdict = compared(tmp_path, *programs).verdict
    assert verdict.headline.code is VerdictCode.AVERAGE_DECAY_DIFFERS
    assert verdict.headline.number("target") == pytest.approx(0.999, abs=3e-5)
    assert verdict.headline.number("reference") == pytest.approx(0.9999, abs=3e-5)


@pytest.mark.parametrize("sides", [0, 1])
def test_averaged_before_the_update(tmp_path: Path, sides: int) -> None:
    programs = [Program(before_update=True), PLAIN]
    verdict = compared(tmp_path, programs[sides], programs[1 - sides]).verdict
    assert (verdict.outcome, verdict.headline.code) == (Outcome.DIFFER, VerdictCode.AVERAGES_BEFORE_UPDATE)
    assert verdict.headline.place("side") == ("target", "reference")[sides]
    said = [one for one in verdict.evidence if one.code is EvidenceCode.AVERAGED_AS]
    old = [one.number("old") for one in said]
    assert old[sides] == pytest.approx(0.1, abs=1e-3)
    assert old[1 - sides] == 0.0


def test_both_average_before_the_update(tmp_path: Path) -> None:
    programs = [Program(before_update=True), Program(before_update=True, how="lerp")]
    assert compared(tmp_path, *programs).verdict.outcome is Outcome.AGREE


def test_averaged_after_each_microbatch(tmp_path: Path) -> None:
    verdict = compared(tmp_path, Program(each_microbatch=True)).verdict
    assert (verdict.outcome, verdict.headline.code) == (Outcome.DIFFER, VerdictCode.AVERAGES_TWICE)
    said = next(one for one in verdict.evidence if one.code is EvidenceCode.AVERAGED_AS)
    assert (said.number("decay"), said.number("new"), said.number("old")) == pytest.approx(
        (0.81, 0.1, 0.09), abs=1e-3
    )


def test_only_parameters_averaged(tmp_path: Path) -> None:
    verdict = compared(tmp_path, Program(buffers=False)).verdict
    assert (verdict.outcome, verdict.headline.code) == (Outcome.DIFFER, VerdictCode.AVERAGE_LEAVES_OUT)
    assert (verdict.headline.place("side"), verdict.headline.number("num")) == ("target", 2)
    constant = next(one for one in verdict.evidence if one.code is EvidenceCode.AVERAGE_CONSTANT)
    names = [name for name, of in built().named_buffers() if of.is_floating_point()]
    assert (constant.place("side"), constant.number("num")) == ("target", len(names))
    assert sorted(constant.facts["names"]) == sorted(names)  # type: ignore[arg-type]
    apart = next(one for one in verdict.evidence if one.code is EvidenceCode.AVERAGES_APART)
    assert (apart.number("num"), apart.number("step")) == (len(names), 0)
    assert apart.place("name") in names
    assert (apart.number("rel_l2") or 0) > (apart.number("tolerance") or 0)


def test_running_statistics_of_a_copy_that_is_called_are_no_average(tmp_path: Path) -> None:
    """A copy whose norms keep their own statistics beside one in evaluation mode, whose do not move."""
    for name, mode in (("target", "eval"), ("reference", "train")):
        trained(tmp_path / name, Program(buffers=False, called=mode))
    sides = [Trace(tmp_path / name) for name in ("target", "reference")]
    gap = average_gaps(sides[0], sides[1], {0: 0, 1: 1}).gap
    assert gap is not None
    assert (gap.headline.code, gap.is_explained) == (VerdictCode.AVERAGES_DIFFER, False)


def test_a_first_average_that_copies(tmp_path: Path) -> None:
    verdict = compared(tmp_path, Program(how="swa", warm=True)).verdict
    assert verdict.headline.code is VerdictCode.AVERAGE_DECAY_DIFFERS
    assert (verdict.headline.number("step"), verdict.headline.number("target")) == (0, 0.0)


def test_averages_of_weights_within_rounding_agree(tmp_path: Path) -> None:
    """Weights differ by what rounding of the batches makes, and so do their averages."""
    found = compared(tmp_path, Program(perturbed=1e-7, steps="0-2"), Program(steps="0-2"))
    assert found.verdict.outcome is Outcome.AGREE
    assert found.verdict.headline.code is not VerdictCode.BIT_IDENTICAL


def test_averages_in_float32_of_weights_in_bfloat16(tmp_path: Path) -> None:
    base = Program(dtype=torch.bfloat16, average_in=torch.float32)
    assert compared(tmp_path / "a", replace(base, how="lerp"), base).verdict.outcome is Outcome.AGREE
    verdict = compared(tmp_path / "b", replace(base, decay=0.99), base).verdict
    assert verdict.headline.code is VerdictCode.AVERAGE_DECAY_DIFFERS


@pytest.mark.parametrize("side", ["target", "reference"])
def test_an_average_in_a_coarse_dtype_that_loses_what_steps_change(tmp_path: Path, side: str) -> None:
    fine = Program(decay=0.99, rate=1e-4, how="lerp", buffers=False, values=True)
    coarse = replace(fine, average_in=torch.bfloat16)
    runs = (coarse, fine) if side == "target" else (fine, coarse)
    verdict = compared(tmp_path, *runs).verdict
    headline = verdict.headline
    assert (verdict.outcome, headline.code) == (Outcome.DIFFER, VerdictCode.AVERAGES_LOSE_CHANGES)
    assert (headline.place("side"), headline.place("dtype")) == (side, "bfloat16")
    (stays,) = (one for one in verdict.evidence if one.code is EvidenceCode.AVERAGES_STAY)
    num, total = stays.number("num"), stays.number("total")
    assert num is not None
    assert total is not None
    assert num / total == pytest.approx(headline.number("share"))
    assert num / total > 0.9


@pytest.mark.parametrize(
    "changes", [{"decay": 0.5}, {"decay": 0.99, "rate": 1.0}, {"decay": 0.0}, {"dtype": torch.bfloat16}]
)
def test_an_average_in_a_coarse_dtype_that_follows(tmp_path: Path, changes: dict[str, Any]) -> None:
    """It takes up enough of the weights, the steps are long, or the weights are as coarse themselves."""
    fine = replace(Program(decay=0.99, rate=1e-4, how="lerp", buffers=False, values=True), **changes)
    verdict = compared(tmp_path, replace(fine, average_in=torch.bfloat16), fine).verdict
    assert verdict.headline.code is not VerdictCode.AVERAGES_LOSE_CHANGES


def test_two_copies_of_each_run_are_told_apart(tmp_path: Path) -> None:
    base = Program(num_copies=2)
    assert compared(tmp_path / "a", replace(base, how="lerp"), base).verdict.outcome is Outcome.AGREE
    found = compared(tmp_path / "b", Program(), base)
    assert found.verdict.outcome is Outcome.AGREE
    assert [note.code for note in averages(found)] == [NoteCode.AVERAGES_NOT_PAIRED]


def test_an_average_every_other_step(tmp_path: Path) -> None:
    base = Program(every=2, steps="0-2")
    assert compared(tmp_path / "a", replace(base, how="lerp"), base).verdict.outcome is Outcome.AGREE


def test_without_an_optimizer_of_the_framework(tmp_path: Path) -> None:
    base = Program(own_updates=True)
    assert compared(tmp_path / "a", replace(base, how="lerp"), base).verdict.outcome is Outcome.AGREE
    verdict = compared(tmp_path / "b", replace(base, before_update=True), base).verdict
    assert verdict.headline.code is VerdictCode.AVERAGES_BEFORE_UPDATE


def test_an_average_that_one_run_makes_less_often(tmp_path: Path) -> None:
    verdict = compared(tmp_path, Program(every=2)).verdict
    assert (verdict.outcome, verdict.headline.code) == (Outcome.DIFFER, VerdictCode.AVERAGES_DIFFER)
    assert verdict.headline.number("step") == 1
    said = [one.number("decay") for one in verdict.evidence if one.code is EvidenceCode.AVERAGED_AS]
    assert said == [1.0, pytest.approx(0.9, abs=1e-4)]


@pytest.mark.parametrize("called", ["", "eval"])
def test_they_come_before_what_their_model_computes_in_a_later_step(tmp_path: Path, called: str) -> None:
    program = replace(PLAIN, called=called)
    verdict = compared(tmp_path, replace(program, decay=0.5), program).verdict
    assert (verdict.headline.code, verdict.step) == (VerdictCode.AVERAGE_DECAY_DIFFERS, 0)
