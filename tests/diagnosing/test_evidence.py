"""Evidence says what two traces hold about an origin: the tensor, its call, other times and ranks, the
run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from bugzoo.models.gpt import GPT

from tests.diagnosing.cases import case, known, normal, origin, summary_only
from tests.diagnosing.runs import capture, evidence_at
from trueup.diagnosing.evidence import Evidence, SlotPair
from trueup.diagnosing.evidence.windows import MAX_VALUES
from trueup.errors import TraceError
from trueup.store import Trace, layout, step_view

pytestmark = pytest.mark.torch

WEIGHT = "layers.0.mlp.up.weight"


def other_scale(model: GPT) -> None:
    model.layers[0].attn.scale = 0.25


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    """Target and reference: two steps of two microbatches."""
    folder = tmp_path_factory.mktemp("evidence")
    return (
        capture(folder / "target", microbatches=2, change=other_scale),
        capture(folder / "reference", microbatches=2),
    )


def test_values_shapes_and_dtypes_are_the_traces(traces: tuple[Trace, Trace]) -> None:
    about = evidence_at(*traces, "layers.0.attn.proj", "forward", "input.0")
    assert about.target is not None
    assert about.reference is not None
    assert about.target.shape == (2, 16, 32)
    assert about.target.dtype == "float32"
    values = about.target_values
    assert values is not None
    assert values.dtype == np.float64
    assert about.target.statistic("l2_norm") == pytest.approx(np.linalg.norm(values))
    assert about.target.sketch is not None
    assert about.vectors is not None
    assert about.vectors.difference > 0
    assert about.roundoff == 2.0**-24


def test_the_call_s_inputs_and_its_module(traces: tuple[Trace, Trace]) -> None:
    around = evidence_at(*traces, "layers.0.ln1", "forward", "output.0").surroundings
    assert (around.module, around.type, around.kind) == ("layers.0.ln1", "LayerNorm", "module")
    assert [p.slot for p in around.inputs] == ["input.0"]
    assert around.inputs_agree is True
    assert sorted(p.slot for p in around.parameters) == ["bias", "weight"]
    later = evidence_at(*traces, "layers.1.ln1", "forward", "output.0").surroundings
    assert later.inputs_agree is False


def test_an_input_belongs_to_the_module_around(traces: tuple[Trace, Trace]) -> None:
    around = evidence_at(*traces, "layers.0.attn.proj", "forward", "input.0").surroundings
    assert around.module == "layers.0.attn"
    [differing] = [c for c in around.neighbours if c.target != c.reference]
    assert differing.name == "torch.Tensor.mul"
    assert differing.before
    given = {"input.0": "<tensor>", "input.1": 0.25}
    assert (differing.target, differing.reference) == (given, {**given, "input.1": 32**-0.5 * 2})


def test_neighbours_are_aligned_where_one_side_has_a_call_more(
    traces: tuple[Trace, Trace], tmp_path: Path
) -> None:
    def twice(model: GPT) -> None:
        inner = model.layers[0].mlp.forward
        model.layers[0].mlp.forward = lambda x: inner(torch.abs(x))

    target = capture(tmp_path / "more", change=twice, microbatches=2)
    around = evidence_at(target, traces[1], "layers.0.mlp", "forward", "output.0").surroundings
    alone = [c for c in around.neighbours if c.target is None or c.reference is None]
    assert [(c.name, c.reference) for c in alone] == [("torch.abs", None)]
    assert len(around.neighbours) == 5


def test_the_same_site_at_other_times(traces: tuple[Trace, Trace]) -> None:
    about = evidence_at(*traces, WEIGHT, "param_grad", "local", step=1)
    earlier = about.elsewhere.target_earlier
    assert [step for step, _ in earlier] == [0]
    assert earlier[0][1].shape == (128, 32)
    assert [m for m, _ in about.elsewhere.target_microbatches] == [0]
    first = evidence_at(*traces, "layers.0.ln1", "forward", "output.0")
    assert [s for s, _ in first.elsewhere.reference_later] == [1]
    assert [m for m, _ in first.elsewhere.target_microbatches] == [1]
    assert [r for r, _ in first.elsewhere.target_ranks] == [0]


def test_a_parameter_through_its_step(traces: tuple[Trace, Trace]) -> None:
    facts = evidence_at(*traces, WEIGHT, "optimizer", "param", step=1).parameter
    assert facts is not None
    assert facts.fqn == WEIGHT
    assert facts.before.target is not None
    slots = {(m, p.slot) for m, p in facts.gradients}
    assert {(0, "local"), (1, "local"), (0, "accumulated"), (1, "accumulated")} <= slots
    assert facts.gradient() is not None
    assert {p.slot for p in facts.updated} == {"param", "state.step", "state.exp_avg", "state.exp_avg_sq"}
    assert {p.slot for p in facts.state_before} == {"state.step", "state.exp_avg", "state.exp_avg_sq"}
    assert facts.target_settings["class"] == "AdamW"
    assert facts.target_settings["lr"] == 1e-2
    assert (facts.target_trainable, facts.target_grouped) == (True, True)


def test_numbers_of_the_run(traces: tuple[Trace, Trace]) -> None:
    run = evidence_at(*traces, "layers.0.ln1", "forward", "output.0").target_run
    assert (run.world_size, run.microbatches, run.tokens) == (1, 2, 64.0)
    assert run.learning_rate == (1e-2,)
    assert sorted(run.learning_rates) == [0, 1]
    assert run.batch_digest == run.batch_digests[0] == run.rank_batch_digests[0]


def test_a_record_is_found_by_its_site_where_the_origin_names_only_the_target_s(
    traces: tuple[Trace, Trace],
) -> None:
    full = evidence_at(*traces, "layers.1.ln1", "forward", "output.0")
    about = Evidence.from_origin(replace(full.origin, reference_record=None), *traces)
    assert about.reference is not None
    assert full.reference is not None
    assert about.reference.digest == full.reference.digest


def test_an_origin_that_one_side_lacks(tmp_path: Path, traces: tuple[Trace, Trace]) -> None:
    def frozen(model: GPT) -> None:
        model.layers[0].mlp.up.weight.requires_grad_(False)

    target = capture(tmp_path / "frozen", change=frozen, microbatches=2)
    about = evidence_at(target, traces[1], WEIGHT, "param_grad", "local")
    assert about.target is None
    assert about.reference is not None
    assert about.parameter is not None
    assert about.parameter.target_trainable is False
    assert about.parameter.before.target is not None


def test_what_a_replay_forced_counts_as_equal(tmp_path: Path, traces: tuple[Trace, Trace]) -> None:
    target = capture(tmp_path / "replayed", microbatches=2, change=other_scale)
    before = evidence_at(target, traces[1], "layers.1.ln1", "forward", "output.0")
    assert before.surroundings.inputs_agree is False
    index = step_view(target, 0, 0)
    calls = [c for c, name in enumerate(index.name) if name == "layers.1.ln1"]
    records = [r for c in calls for r in index.records(c, "forward") if index.slot[r] == "input.0"]
    pl.DataFrame({"record": records, "state": ["replaced"] * len(records)}).write_parquet(
        layout.rank_dir(target.path, 0, 0) / "forced.parquet"
    )
    after = evidence_at(Trace(target.path), traces[1], "layers.1.ln1", "forward", "output.0")
    assert after.surroundings.inputs_agree is True
    [given] = after.surroundings.inputs
    assert given.given is given.reference


def test_repeats_come_from_the_noise_profile(tmp_path: Path, traces: tuple[Trace, Trace]) -> None:
    reference = capture(tmp_path / "noisy", microbatches=2)
    about = evidence_at(traces[0], reference, "layers.0.ln1", "forward", "output.0")
    assert about.repeat is None
    (reference.path / "noise").mkdir()
    pl.DataFrame(
        {
            "step": [0, 0],
            "rank": [0, 0],
            "place": ["0|train|module|#0/layers.0#0/layers.0.ln1#0", "0|train|module|#0"],
            "phase": ["forward", "forward"],
            "slot": ["output.0", "output.0"],
            "repeat": [2e-7, 1.0],
        }
    ).write_parquet(reference.path / "noise" / "profile.parquet")
    about = evidence_at(traces[0], reference, "layers.0.ln1", "forward", "output.0")
    assert about.repeat == 2e-7


def test_a_step_that_is_not_there(traces: tuple[Trace, Trace]) -> None:
    with pytest.raises(TraceError, match="no step 9"):
        Evidence.from_origin(origin(step=9), *traces)


def test_parts_are_worked_out_once_and_only_when_asked_for() -> None:
    asked = []

    def repeat() -> float:
        asked.append(1)
        return 0.5

    about = Evidence(origin(), SlotPair(slot="output.0"), repeat=repeat)
    assert asked == []
    assert about.repeat == about.repeat == 0.5
    assert asked == [1]


@pytest.mark.parametrize(
    "shape", [(1, 2048, 256), (4, 128, 4096), (8, 8, 512, 512), (1 << 20,), (2, 3 << 18)]
)
def test_a_large_tensor_is_cut_around_its_first_difference(shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape)
    other = tensor.clone()
    other.view(-1)[-1] = 1.0
    about = case(other, tensor)
    values = about.target_values
    assert values is not None
    assert values.size <= MAX_VALUES
    assert values.ndim == len(shape)
    assert values.sum() == 1.0


def test_bits_decide_whether_tensors_are_the_same() -> None:
    a, b = known(normal(4, 4)), known(normal(4, 4))
    assert a.same_bits(b) is True
    assert summary_only(a).same_bits(summary_only(b)) is True
    assert a.same_bits(known(-normal(4, 4))) is False
    assert a.same_bits(known(normal(4, 4).double())) is False
    assert known(torch.tensor([0.0])).same_bits(known(torch.tensor([-0.0]))) is False
