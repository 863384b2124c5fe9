"""What a verdict says, in which order, and that it is true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.comparing.traces import EVERYTHING, Recorder, network
from trueup.comparing.grounds import before_said
from trueup.comparing.run import compare
from trueup.store import RunWriter


def verdict_of(path: Path, target: Recorder, reference: Recorder) -> dict[str, Any]:
    target.write(path / "target")
    reference.write(path / "reference")
    found: dict[str, Any] = compare(path / "target", path / "reference").summary["verdict"]
    return found


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
    said = "arguments differ at norms.0 · torch.nn.functional.layer_norm: input.eps 0.001 against 1e-05"
    assert verdict["evidence"][0] == said
    assert verdict["evidence"][1].startswith("relative difference")
    assert verdict["evidence"][-1].startswith("norm ")


def test_many_differing_arguments_do_not_hide_the_size_of_the_difference(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, normed(1e-3, factor=1.01, count=4), normed(1e-5, count=4))
    assert "norms.3 · " in verdict["evidence"][0], "the nearest first"
    assert verdict["evidence"][2].startswith("relative difference")
    assert sum(said.startswith("arguments differ") for said in verdict["evidence"]) == 4


def with_settings(path: Path, recorder: Recorder, **line: Any) -> None:
    recorder.write(path)
    RunWriter(path, rank=0).append_scalars({"step": 0, "rank": 0, **line})


@pytest.mark.parametrize(("site", "place"), [("new.1", 0), ("linear.1", 2)])
def test_a_learning_rate_leads_where_the_update_differs_only(tmp_path: Path, site: str, place: int) -> None:
    def moved(name: str, array: Any) -> Any:
        return (array * np.float32(1.01)).astype(np.float32) if name == site else array

    with_settings(tmp_path / "target", network(moved), learning_rate=[2e-3])
    with_settings(tmp_path / "reference", network(), learning_rate=[1e-3])
    evidence = compare(tmp_path / "target", tmp_path / "reference").summary["verdict"]["evidence"]
    at = next(at for at, said in enumerate(evidence) if said.startswith("learning_rate differs in step 0"))
    assert (at == 0) is (place == 0)


def test_a_parameter_of_one_run_alone_is_named_first(tmp_path: Path) -> None:
    reference = network()
    lone = reference.call("parameter", "layers.1.bias")
    reference.record(lone, "param", "value", np.ones(8, np.float32))

    def other(name: str, array: Any) -> Any:
        return (array * np.float32(1.5)).astype(np.float32) if name == "param.2" else array

    evidence = verdict_of(tmp_path, network(other), reference)["evidence"]
    assert evidence[0] == "the reference alone has the parameter layers.1.bias"


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
    assert verdict["headline"].startswith(f"{what} appears in the {side} first, in the forward pass of step")
    counts = (0, 7) if swapped else (7, 0)
    assert verdict["evidence"][0] == f"{what}: {counts[0]} in the target, {counts[1]} in the reference"
    assert not any("differs by" in said or "relative difference" in said for said in verdict["evidence"])


def test_nan_on_both_sides_is_not_said_to_appear_in_one(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, with_holes(np.nan, many=7), with_holes(np.nan, many=5))
    assert verdict["headline"].startswith("The runs first differ")
    assert verdict["evidence"][0] == "NaN: 7 in the target, 5 in the reference"


@pytest.mark.parametrize(
    ("equal", "within", "beyond", "said"),
    [
        (0, 0, 0, "Nothing was compared before it in this step."),
        (80, 0, 0, "All 80 records compared before it in this step are equal bit for bit."),
        (
            80,
            0,
            2,
            "Of 82 records before it in this step 80 are equal bit for bit and 2 beyond tolerance, but "
            "explained by what they were made from.",
        ),
        (
            7,
            2,
            1,
            "Of 10 records before it in this step 7 are equal bit for bit, 2 within rounding and 1 beyond "
            "tolerance, but explained by what they were made from.",
        ),
        (
            7,
            2,
            0,
            "Of 9 records before it in this step 7 are equal bit for bit and 2 within rounding, far from "
            "their bounds.",
        ),
    ],
)
def test_no_record_before_the_site_is_left_out(equal: int, within: int, beyond: int, said: str) -> None:
    before = {"equal": equal, "within_noise": within, "beyond": beyond, "worst_score": 0.01}
    assert before_said(before) == said


def cut_into(number: int, *, weight: float = 1.0) -> Recorder:
    """A step over a batch of 8 rows in microbatches, and a weight both begin with."""
    out = Recorder()
    parameter = out.call("parameter", "fc.weight")
    out.record(parameter, "param", "value", np.full((4, 4), weight, np.float32))
    for at in range(number):
        rows = np.ones((8 // number, 4), np.float32)
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
    with_settings(tmp_path / "reference", cut_into(reference), microbatches=reference)
    verdict = compare(tmp_path / "target", tmp_path / "reference").summary["verdict"]
    assert verdict["headline"].startswith(f"The runs cut a step into {target} and {reference} microbatches")
    assert (verdict["where"], verdict["owner"], verdict["exit_code"]) == (None, None, 1)
    assert " --merge " in verdict["next"]
    said = " ".join(verdict["evidence"])
    assert f"number of microbatches differs in step 0: {target} against {reference}" in said
    assert "differs first: loss" in said


def test_other_weights_stand_before_other_microbatches(tmp_path: Path) -> None:
    with_settings(tmp_path / "target", cut_into(2, weight=1.5), microbatches=2)
    with_settings(tmp_path / "reference", cut_into(1), microbatches=1)
    verdict = compare(tmp_path / "target", tmp_path / "reference").summary["verdict"]
    assert verdict["where"] == "fc.weight · value"
    assert verdict["headline"].startswith("The runs first differ in the weights at the start")


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


def levels_compared(path: Path, target: str, reference: str) -> dict[str, Any]:
    for name, level in (("target", target), ("reference", reference)):
        at_level(level).write(path / name, level=level)
    found: dict[str, Any] = compare(path / "target", path / "reference").summary["verdict"]
    return found


def test_a_phase_both_hold_and_nothing_of_which_was_compared_is_not_agreement(tmp_path: Path) -> None:
    verdict = levels_compared(tmp_path, "L0", "L1")
    assert verdict["exit_code"] == 2
    assert verdict["headline"] == (
        "Nothing of the forward pass could be compared, though both runs hold it: level L0 in the target, L1 "
        "in the reference."
    )


@pytest.mark.parametrize(("target", "reference"), [("L0", "mix"), ("mix", "L0")])
def test_what_one_side_did_not_capture_is_not_the_same_mathematics(
    tmp_path: Path, target: str, reference: str
) -> None:
    verdict = levels_compared(tmp_path, target, reference)
    assert verdict["exit_code"] == 0
    assert verdict["headline"] == "What could be compared of the runs is equal bit for bit."
    assert verdict["evidence"] == [
        "3 records equal bit for bit",
        f"1 records not compared; the two were not captured alike: level {target} in the target, {reference} "
        "in the reference",
    ]


def test_captured_alike_and_equal_says_so(tmp_path: Path) -> None:
    verdict = levels_compared(tmp_path, "mix", "mix")
    assert verdict["headline"] == "The runs are equal bit for bit."
    assert "nothing to do" in verdict["next_note"]


def scaled_by(factor: float, *sites: str) -> Any:
    def change(name: str, array: Any) -> Any:
        return (array * np.float32(factor)).astype(np.float32) if name.partition(".")[0] in sites else array

    return change


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (scaled_by(1.01, "new"), "because of what differs in a step before"),
        (scaled_by(1 + 2e-7, "grad", "new"), "accepted as rounding noise of earlier updates"),
    ],
)
def test_weights_left_by_a_wrong_update_are_not_called_rounding(
    tmp_path: Path, first: Any, said: str
) -> None:
    for name, changes in (("target", (first, scaled_by(1 + 2e-7, "param"))), ("reference", (None, None))):
        for step, change in enumerate(changes):
            (network(change) if change else network()).write(tmp_path / name, step=step)
    notes = compare(tmp_path / "target", tmp_path / "reference").summary["notes"]
    assert [said in note for note in notes if "starts from weights" in note] == [True]
