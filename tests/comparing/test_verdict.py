"""What a verdict says, in which order, and that it is true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.comparing.reading import coded, facts
from tests.comparing.traces import EVERYTHING, Recorder, network
from trueup.comparing.first import Preceding
from trueup.comparing.grounds import preceding
from trueup.comparing.run import compare
from trueup.store import RunWriter
from trueup.types.codes import EvidenceCode, NextCode, NoteCode, VerdictCode
from trueup.types.reason import Reason, reason
from trueup.types.verdict import Verdict


def verdict_of(path: Path, target: Recorder, reference: Recorder) -> Verdict:
    target.write(path / "target")
    reference.write(path / "reference")
    return compare(path / "target", path / "reference").verdict


def normed(eps: float, *, factor: float = 1.0, count: int = 1) -> Recorder:
    """A norm whose epsilon is an argument, after ``count`` others of the same output."""
    out = Recorder()
    root = out.call("module", "", type_="Net")
    given = np.linspace(1, 2, 32, dtype=np.float32)
    out.record(root, "forward", "input.0", given)
    for at in range(count):
        arguments = json.dumps({"input.eps": eps})
        module = out.call("module", f"norms.{at}", root, "LayerNorm")
        last = at == count - 1
        made = (given * np.float32(factor if last else 1.0)).astype(np.float32)
        out.api(module, "torch.nn.functional.layer_norm", made, arguments=arguments)
    return out


def test_differing_arguments_come_before_everything_else(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, normed(1e-3, factor=1.01), normed(1e-5))
    first, second, *_, last = verdict.evidence
    assert (first.code, second.code, last.code) == (
        EvidenceCode.ARGUMENTS_DIFFER,
        EvidenceCode.SIZE,
        EvidenceCode.NORMS,
    )
    assert first.place("site") == "norms.0 · torch.nn.functional.layer_norm"
    eps = {"name": "input.eps", "target": "0.001", "reference": "1e-05"}
    assert [part.facts for part in first.parts] == [eps]


def test_an_argument_of_the_origin_s_call_heads_the_verdict(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, normed(1e-3, factor=1.01, count=2), normed(1e-5, count=2))
    assert verdict.headline == reason(
        VerdictCode.ARGUMENT_DIFFERS,
        what="functional.layer_norm",
        name="input.eps",
        module="norms.1",
        target="0.001",
        reference="1e-05",
    )


def test_an_argument_of_another_module_is_no_cause(tmp_path: Path) -> None:
    """Its call agrees: what differs is made elsewhere."""
    target, reference = (normed(eps) for eps in (1e-3, 1e-5))
    for recorder, value in ((target, 1.5), (reference, 1.0)):
        module = recorder.call("module", "head", 0, "Linear")
        recorder.record(module, "forward", "output.0", np.full(8, value, np.float32))
    verdict = verdict_of(tmp_path, target, reference)
    assert (verdict.headline.code, verdict.owner) == (VerdictCode.FIRST_DIVERGENCE, "head")
    assert verdict.evidence[0].code is EvidenceCode.ARGUMENTS_DIFFER


@pytest.mark.parametrize("eps", [1e-5, 1e-6])
def test_an_attribute_of_the_origin_s_module_heads_the_verdict(tmp_path: Path, eps: float) -> None:
    for name, factor, held in (("target", 1.01, eps), ("reference", 1.0, 1e-6)):
        out = Recorder()
        module = out.call("module", "norm", out.call("module", "", type_="Net"), "RMSNorm")
        out.record(module, "forward", "output.0", np.full(32, factor, np.float32))
        out.write(tmp_path / name)
        RunWriter(tmp_path / name, rank=0).write_rank({"rank": 0, "settings": {"norm": {"eps": held}}})
    verdict = compare(tmp_path / "target", tmp_path / "reference").verdict
    if eps == 1e-6:
        assert verdict.headline.code is VerdictCode.FIRST_DIVERGENCE
        return
    named = {"what": "RMSNorm", "name": "eps", "module": "norm", "target": "1e-05", "reference": "1e-06"}
    assert verdict.headline == reason(VerdictCode.ARGUMENT_DIFFERS, **named)
    assert verdict.evidence[0].code is EvidenceCode.ARGUMENTS_DIFFER


def test_many_differing_arguments_do_not_hide_the_size_of_the_difference(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, normed(1e-3, factor=1.01, count=4), normed(1e-5, count=4))
    assert str(verdict.evidence[0].place("site")).startswith("norms.3 · "), "the nearest first"
    assert verdict.evidence[2].code is EvidenceCode.SIZE
    assert len(coded(verdict.evidence, EvidenceCode.ARGUMENTS_DIFFER)) == 4


def with_settings(path: Path, recorder: Recorder, **line: Any) -> None:
    recorder.write(path)
    RunWriter(path, rank=0).append_scalars({"step": 0, "rank": 0, **line})


@pytest.mark.parametrize(("site", "place"), [("new.1", 0), ("linear.1", 2)])
def test_a_learning_rate_leads_where_the_update_differs_only(tmp_path: Path, site: str, place: int) -> None:
    def moved(name: str, array: Any) -> Any:
        return (array * np.float32(1.01)).astype(np.float32) if name == site else array

    with_settings(tmp_path / "target", network(moved, loss=False), learning_rate=[2e-3])
    with_settings(tmp_path / "reference", network(loss=False), learning_rate=[1e-3])
    evidence = compare(tmp_path / "target", tmp_path / "reference").verdict.evidence
    (rate,) = coded(evidence, EvidenceCode.SETTING_DIFFERS)
    assert rate.facts == {
        "name": "learning_rate",
        "step": 0,
        "ranks": ("0",),
        "target": 2e-3,
        "reference": 1e-3,
    }
    assert (evidence.index(rate) == 0) is (place == 0)


def test_a_parameter_of_one_run_alone_is_named_first(tmp_path: Path) -> None:
    reference = network()
    lone = reference.call("parameter", "layers.1.bias")
    reference.record(lone, "param", "value", np.ones(8, np.float32))

    def other(name: str, array: Any) -> Any:
        return (array * np.float32(1.5)).astype(np.float32) if name == "param.2" else array

    evidence = verdict_of(tmp_path, network(other), reference).evidence
    absent = reason(EvidenceCode.PARAMETERS_ABSENT, side="target", parameters=["layers.1.bias"])
    assert evidence[0] == absent


def with_holes(value: float, *, many: int) -> Recorder:
    """A step of which one output holds NaN, or infinities."""

    def change(name: str, array: Any) -> Any:
        changed = array.copy()
        if name == "linear.1":
            changed.reshape(-1)[:many] = value
        return changed

    return network(change, want=EVERYTHING)


@pytest.mark.parametrize(
    ("value", "what", "swapped"),
    [(np.nan, "NaN", False), (np.nan, "NaN", True), (np.inf, "+Inf", False)],
)
def test_nan_is_counted_and_named_not_measured(
    tmp_path: Path, value: float, what: str, *, swapped: bool
) -> None:
    sides = [with_holes(value, many=7), network()]
    verdict = verdict_of(tmp_path, *(sides[::-1] if swapped else sides))
    side = "reference" if swapped else "target"
    place = {"phase": "forward", "slot": "output.0", "step": 0, "module": "layers.1"}
    assert verdict.headline == reason(VerdictCode.NOT_FINITE, **place, what=what, side=side)
    counts = {"target": 0, "reference": 7} if swapped else {"target": 7, "reference": 0}
    assert verdict.evidence[0] == reason(EvidenceCode.NOT_FINITE, what=what, **counts)
    assert all(one.number("rel_l2") is None for one in verdict.evidence)


def test_nan_on_both_sides_is_not_said_to_appear_in_one(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, with_holes(np.nan, many=7), with_holes(np.nan, many=5))
    assert verdict.headline.code is VerdictCode.FIRST_DIVERGENCE
    assert verdict.evidence[0] == reason(EvidenceCode.NOT_FINITE, what="NaN", target=7, reference=5)


@pytest.mark.parametrize(
    ("equal", "within", "exceeding", "code"),
    [
        (0, 0, 0, EvidenceCode.PRECEDING_NONE),
        (80, 0, 0, EvidenceCode.PRECEDING_BIT_IDENTICAL),
        (80, 0, 2, EvidenceCode.PRECEDING),
        (7, 2, 1, EvidenceCode.PRECEDING),
        (7, 2, 0, EvidenceCode.PRECEDING),
    ],
)
def test_no_preceding_record_is_left_out(equal: int, within: int, exceeding: int, code: EvidenceCode) -> None:
    found = preceding(Preceding(equal=equal, within=within, exceeding=exceeding, worst_score=0.01))
    assert found.code is code
    counted = [found.number(name) or 0 for name in ("equal", "within", "exceeding", "records")]
    assert sum(counted) == equal + within + exceeding  # type: ignore[arg-type]


def cut_into(number: int, *, weight: float = 1.0, batch: int = 8) -> Recorder:
    """A step over a batch of so many rows in microbatches, and a weight both begin with."""
    out = Recorder()
    parameter = out.call("parameter", "fc.weight")
    out.record(parameter, "param", "value", np.full((4, 4), weight, np.float32))
    for at in range(number):
        rows = np.ones((batch // number, 4), np.float32)
        root = out.call("module", "", type_="Net", microbatch=at)
        out.record(root, "forward", "input.0", rows, microbatch=at)
        module = out.call("module", "fc", root, "Linear", microbatch=at)
        out.record(module, "forward", "output.0", rows, microbatch=at)
        loss = out.call("loss", "loss", microbatch=at)
        out.record(loss, "loss", "value", np.array(3.0 / number, np.float32), microbatch=at)
    return out


@pytest.mark.parametrize(("target", "reference"), [(2, 1), (1, 4)])
def test_other_microbatches_lead_the_verdict(tmp_path: Path, target: int, reference: int) -> None:
    with_settings(tmp_path / "target", cut_into(target), microbatches=target)
    with_settings(tmp_path / "reference", cut_into(reference, batch=12), microbatches=reference)
    verdict = compare(tmp_path / "target", tmp_path / "reference").verdict
    numbers = {"target": target, "reference": reference}
    assert verdict.headline == reason(VerdictCode.MICROBATCHES_DIFFER, **numbers)
    assert (verdict.where, verdict.owner, verdict.exit_code) == (None, None, 1)
    assert verdict.next is not None
    assert verdict.next.code is NextCode.MERGE_MICROBATCHES
    setting = {"name": "microbatches", "step": 0, "ranks": ("0",), **numbers}
    assert facts(verdict.evidence, EvidenceCode.SETTING_DIFFERS) == setting
    assert facts(verdict.evidence, EvidenceCode.FIRST_OF_COMPARED)["phase"] == "loss"


@pytest.mark.parametrize(("target", "reference"), [(2, 1), (1, 4), (4, 2)])
def test_the_same_rows_in_other_microbatches_agree(tmp_path: Path, target: int, reference: int) -> None:
    with_settings(tmp_path / "target", cut_into(target), microbatches=target)
    with_settings(tmp_path / "reference", cut_into(reference), microbatches=reference)
    verdict = compare(tmp_path / "target", tmp_path / "reference").verdict
    assert (verdict.headline.code, verdict.exit_code) == (VerdictCode.AGREE, 0)


def test_other_weights_stand_before_other_microbatches(tmp_path: Path) -> None:
    with_settings(tmp_path / "target", cut_into(2, weight=1.5), microbatches=2)
    with_settings(tmp_path / "reference", cut_into(1), microbatches=1)
    verdict = compare(tmp_path / "target", tmp_path / "reference").verdict
    assert verdict.where == "fc.weight · value"
    assert verdict.headline.code is VerdictCode.FIRST_DIVERGENCE
    assert verdict.headline.place("phase") == "param"


def at_level(level: str) -> Recorder:
    """What a step leaves captured at a level: modules, calls, or both; the weights in any."""
    out = Recorder()
    parameter = out.call("parameter", "fc.weight")
    out.record(parameter, "param", "value", np.ones((4, 4), np.float32))
    root = out.call("module", "", type_="Net") if level != "L1" else None
    if level != "L1":
        out.record(out.call("module", "fc", root, "Linear"), "forward", "output.0", np.ones(4, np.float32))
    if level != "L0":
        out.api(root, "torch.nn.functional.linear", np.ones(4, np.float32))
    out.record(parameter, "optimizer", "param", np.ones((4, 4), np.float32))
    return out


def levels_compared(path: Path, target: str, reference: str) -> Verdict:
    for name, level in (("target", target), ("reference", reference)):
        at_level(level).write(path / name, level=level)
    return compare(path / "target", path / "reference").verdict


def levels(target: str, reference: str) -> Reason:
    return reason(EvidenceCode.CAPTURE_DIFFERS, name="level", target=target, reference=reference)


def test_a_phase_both_hold_and_nothing_of_which_was_compared_is_not_agreement(tmp_path: Path) -> None:
    verdict = levels_compared(tmp_path, "L0", "L1")
    assert verdict.exit_code == 2
    apart = levels("L0", "L1")
    assert verdict.headline == reason(VerdictCode.NOTHING_COMPARED_OF, apart, phases=["forward"])


@pytest.mark.parametrize(("target", "reference"), [("L0", "mix"), ("mix", "L0")])
def test_what_one_side_did_not_capture_is_not_the_same_mathematics(
    tmp_path: Path, target: str, reference: str
) -> None:
    verdict = levels_compared(tmp_path, target, reference)
    assert verdict.exit_code == 0
    assert verdict.headline.code is VerdictCode.COMPARED_IS_BIT_IDENTICAL
    assert verdict.evidence == (
        reason(EvidenceCode.COMPARED, equal=3, within=0),
        reason(EvidenceCode.NOT_COMPARED, levels(target, reference), records=1),
    )


def test_captured_alike_and_equal_says_so(tmp_path: Path) -> None:
    verdict = levels_compared(tmp_path, "mix", "mix")
    assert verdict.headline.code is VerdictCode.BIT_IDENTICAL
    assert verdict.next == Reason(NextCode.NOTHING)


def scaled_by(factor: float, *sites: str) -> Any:
    def change(name: str, array: Any) -> Any:
        return (array * np.float32(factor)).astype(np.float32) if name.partition(".")[0] in sites else array

    return change


@pytest.mark.parametrize(
    ("first", "exceeded"),
    [(scaled_by(1.01, "new"), 1), (scaled_by(1 + 2e-7, "grad", "new"), 0)],
)
def test_weights_left_by_a_wrong_update_are_not_called_rounding(
    tmp_path: Path, first: Any, exceeded: int
) -> None:
    for name, changes in (("target", (first, scaled_by(1 + 2e-7, "param"))), ("reference", (None, None))):
        for step, change in enumerate(changes):
            (network(change) if change else network()).write(tmp_path / name, step=step)
    notes = compare(tmp_path / "target", tmp_path / "reference").content.notes
    assert facts(notes, NoteCode.WEIGHTS_DIFFER)["exceeded"] == exceeded
