"""Llamas of three hands, paired without a map: against hand-written pairs, compared, with faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

from tests.matching.implementations.capture import PAIRS, captured, matched  # noqa: E402
from tests.matching.implementations.sizes import SIZES  # noqa: E402
from tests.matching.implementations.train import NAMES, train  # noqa: E402
from tests.matching.implementations.truth import assert_same_numbers, numbers_of, scored  # noqa: E402
from trueup import Tracer  # noqa: E402
from trueup.comparing.options import CompareOptions  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.replay.charge import origins  # noqa: E402
from trueup.diagnosing.replay.plan import build_plan  # noqa: E402
from trueup.matching.mapping import read_mapping  # noqa: E402
from trueup.matching.report import match_traces, write_map  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.types.codes import RecordCode  # noqa: E402
from trueup.types.reason import Reason  # noqa: E402
from trueup.wording import text  # noqa: E402

MODULES, OUTPUTS = 0.98, 0.90
"""the bars: module sites, API outputs that both sides have; no pair may be wrong"""
FAULTS = {
    ("megatron", "norm_eps"): ("decoder.layers.1.pre_mlp_layernorm", "forward"),
    ("torchtitan", "norm_eps"): ("layers.1.ffn_norm", "forward"),
    ("megatron", "attention_scale"): ("decoder.layers.1.self_attention.core_attention", "forward"),
    ("megatron", "weight"): ("decoder.layers.1.mlp.linear_fc2", "param"),
    ("torchtitan", "weight"): ("layers.1.feed_forward.w2", "param"),
    ("megatron", "gradient"): ("decoder.layers.1.self_attention.linear_proj", "param_grad"),
    ("torchtitan", "gradient"): ("layers.1.attention.wo", "param_grad"),
}


class Runs:
    """Captures, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, dict[tuple[str, ...], Path]()

    def of(self, name: str, sizes: str = "plain", *, task: str = "tensor") -> Path:
        key = name, sizes, task
        if key not in self._made:
            self._made[key] = captured(self._folder, name, sizes=sizes, task=task)
        return self._made[key]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("sizes", list(SIZES))
@pytest.mark.parametrize(("target", "reference"), PAIRS)
def test_bars(runs: Runs, target: str, reference: str, sizes: str) -> None:
    for match in matched(runs.of(target, sizes), runs.of(reference, sizes)):
        score = scored(match, target, reference, SIZES[sizes])
        assert score.wrong == []
        assert score.module_share >= MODULES, score.missed
        assert score.output_share >= OUTPUTS, score.missed
        assert score.outputs_expected > 40


def test_the_measure_sees_a_wrong_and_a_missing_pair(runs: Runs) -> None:
    (match,) = matched(runs.of("megatron"), runs.of("hf"), steps=(0,))
    forward = match.words.phase.index("forward")
    at = np.flatnonzero(match.target.record_phase[match.records.target] == forward)
    match.records.reference[at] = np.roll(match.records.reference[at], 1)
    score = scored(match, "megatron", "hf", SIZES["plain"])
    assert len(score.wrong) > 50
    assert score.output_share < 0.5


def test_the_hand_written_tensors_are_the_same_numbers(runs: Runs) -> None:
    assert_same_numbers(
        numbers for name in NAMES for numbers in numbers_of(Trace(runs.of(name)), 1, name, SIZES["plain"])
    )


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize(("target", "reference"), PAIRS)
def test_equal_runs_agree(runs: Runs, target: str, reference: str, task: str) -> None:
    result = compare(runs.of(target, task=task), runs.of(reference, task=task))
    assert result.exit_code == 0, result.summary["verdict"]
    assert result.summary["counts"]["different"] == 0


def test_shapes_that_do_not_tell_the_layout_are_told_by_values(runs: Runs) -> None:
    result = compare(runs.of("megatron", "alike"), runs.of("hf", "alike"))
    assert result.exit_code == 0, result.summary["verdict"]


@pytest.mark.parametrize(("name", "change"), list(FAULTS))
def test_a_fault_is_named_across_implementations(runs: Runs, tmp_path: Path, name: str, change: str) -> None:
    result = compare(captured(tmp_path, name, change=change), runs.of("hf"))
    verdict = result.summary["verdict"]
    assert result.exit_code == 1
    assert (verdict["owner"], verdict["phase"]) == FAULTS[name, change], verdict


@pytest.mark.parametrize("change", ["norm_eps", "attention_scale", "weight"])
def test_a_fault_makes_no_wrong_pair(runs: Runs, tmp_path: Path, change: str) -> None:
    for match in matched(captured(tmp_path, "megatron", change=change), runs.of("hf")):
        score = scored(match, "megatron", "hf", SIZES["plain"])
        assert score.wrong == []
        assert score.module_share >= MODULES
        other = [row for row, why in match.why_target.items() if why.code is RecordCode.OTHER_USE]
        assert bool(other) == (change == "norm_eps")
        side, paired = match.target, set(match.records.target.tolist())
        at = {
            (int(side.record_call[row]), int(side.record_slot[row]))
            for row in paired
            if match.words.phase[side.record_phase[row]] == "forward"
        }
        assert all(match.words.phase[side.record_phase[row]] == "backward" for row in other)
        assert all((int(side.record_call[row]), int(side.record_slot[row])) in at for row in other)
        assert not paired & set(other)


def test_layouts_are_reported(runs: Runs, tmp_path: Path) -> None:
    compare(runs.of("torchtitan"), runs.of("megatron"), output=tmp_path)
    table = pq.read_table(tmp_path / "result.parquet").to_pylist()
    layout = {(row["site"], row["phase"]): row["layout"] for row in table if row["status"] != "unmatched"}
    assert layout["layers.0 · torch.Tensor.add · output.0", "forward"] == "[3, 16, 48] against [16, 3, 48]"
    fused = layout["layers.0.attention.wq.weight · value", "param"]
    assert "linear_qkv" in fused
    assert "rotary pairs" in fused
    judged = {row["evidence"] for row in table if row["layout"] is not None and row["rel_l2"] is not None}
    assert judged <= {"values", "statistics"}


def test_a_map_is_written_edited_and_followed(runs: Runs, tmp_path: Path) -> None:
    target, reference = runs.of("megatron"), runs.of("hf")
    first = match_traces(Trace(target), Trace(reference))
    assert (first.exit_code, first.across) == (0, True)
    path = tmp_path / "map.yaml"
    write_map(first, path, text)
    again = match_traces(Trace(target), Trace(reference), given=read_mapping(path))
    for part in ("modules", "weights", "calls"):
        pairs = [{(x.target, x.reference) for x in getattr(r, part) if x.paired} for r in (first, again)]
        assert pairs[0] == pairs[1]
    assert {x.how for x in again.modules if x.paired} == {"map"}
    assert compare(target, reference, options=CompareOptions(mapping=path)).exit_code == 0

    line = "decoder.layers.1.mlp: "
    changed = path.read_text(encoding="utf-8").replace(f"{line}model.layers.1.mlp\n", f"{line}null\n")
    path.write_text(changed, encoding="utf-8")
    edited = match_traces(Trace(target), Trace(reference), given=read_mapping(path))
    alone = {x.target: x.reason for x in edited.modules if x.target is not None and not x.paired}
    assert alone["decoder.layers.1.mlp"] == Reason(RecordCode.MAPPED_TO_NONE)


def test_one_program_is_matched_as_before(runs: Runs) -> None:
    report = match_traces(Trace(runs.of("hf")), Trace(runs.of("hf")))
    assert not report.across
    assert report.exit_code == 0
    assert all(line.paired and line.how == "site" for line in report.modules)


def replayed(runs: Runs, folder: Path, name: str, change: str | None) -> Path:
    """One step of an implementation with the values of another put in."""
    free = Trace(captured(folder, name, change=change))
    plan = build_plan(free, Trace(runs.of("hf")), folder / "replay" / "plan")
    with Tracer(folder / "replay", level="L0", steps="0", replay=str(plan.folder)):
        train(name, sizes=SIZES["plain"], change=change)
    assert Trace(folder / "replay").rank_facts(0)["num_failures"] == 0
    return folder / "replay"


@pytest.mark.parametrize("name", ["megatron", "torchtitan"])
def test_a_replay_of_another_implementation_differs_nowhere(runs: Runs, tmp_path: Path, name: str) -> None:
    made = replayed(runs, tmp_path, name, None)
    facts = Trace(made).rank_facts(0)["replay"]
    assert facts["equal"] + facts["replaced"] > 60
    assert origins(made, runs.of("hf")) == []


@pytest.mark.parametrize(("name", "change"), [("megatron", "attention_scale"), ("torchtitan", "norm_eps")])
def test_a_replay_of_another_implementation_shows_the_fault(
    runs: Runs, tmp_path: Path, name: str, change: str
) -> None:
    """At the module itself, or at the one around it where the reference has no such module."""
    found = origins(replayed(runs, tmp_path, name, change), runs.of("hf"))
    owner = FAULTS[name, change][0]
    assert found[0].module in (owner, owner.removesuffix(".core_attention"))
