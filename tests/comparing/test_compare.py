"""Two runs compared: what agrees is never flagged, what differs is named, what cannot be told is said."""

from __future__ import annotations

import gc
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.comparing.reading import coded, facts
from tests.comparing.traces import Change, Recorder, network, of_two_ranks, scaled, unchanged
from trueup.comparing import run
from trueup.comparing.comparable import traces_noted
from trueup.comparing.options import CompareOptions
from trueup.comparing.result import Comparison, open_comparison
from trueup.comparing.run import compare
from trueup.comparing.written import reason_of_row
from trueup.diagnosing.pipeline import diagnose
from trueup.errors import ConfigError, NothingCompared
from trueup.numerics.summary import HAS_STATISTICS
from trueup.store import RunWriter, StepTables, Trace, layout, view
from trueup.types.codes import EvidenceCode, NoteCode, RecordCode, VerdictCode
from trueup.types.reason import reason
from trueup.types.status import Outcome


def compared(folder: Path, target: Recorder, reference: Recorder, **options: Any) -> Comparison:
    """Both written and compared in memory."""
    target.write(folder / "target")
    reference.write(folder / "reference")
    return compare(folder / "target", folder / "reference", options=CompareOptions(**options))


def row(comparison: Comparison, site: str) -> dict[str, Any]:
    """The one row of a site."""
    return comparison.frame().filter(pl.col("site") == site).row(0, named=True)


def one(array: np.ndarray[Any, Any]) -> Recorder:
    """A single module with a single output."""
    out = Recorder()
    root = out.call("module", "", type_="Net")
    out.record(root, "forward", "output.0", array)
    return out


def test_sketches_of_large_steps_are_let_go_once_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_sketches() -> int:
        gc.collect()
        tables = (one for one in gc.get_objects() if type(one) is StepTables)
        return sum("sketch" in one.summaries.columns for one in tables)

    def counted(*given: Any) -> Any:
        then.append(with_sketches())
        return make(*given)

    make, before, then = run.table_from_rows, with_sketches(), list[int]()
    monkeypatch.setattr(view, "_LARGE", 0)
    monkeypatch.setattr(
        run, "table_from_rows", lambda *given: (then.append(with_sketches()), make(*given))[1]
    )
    compared(tmp_path, network(scaled("layers.1", 1.5)), network())
    assert then == [before]


anything = st.one_of(
    arrays.arrays(np.float32, arrays.array_shapes(min_dims=0, min_side=0, max_side=9)),
    arrays.arrays(np.float16, arrays.array_shapes(min_dims=0, min_side=0, max_side=9)),
    arrays.arrays(np.int64, arrays.array_shapes(min_dims=0, max_side=9)),
    arrays.arrays(np.bool_, arrays.array_shapes(min_dims=0, max_side=9)),
    arrays.arrays(np.complex64, arrays.array_shapes(max_side=5)),
)


@settings(max_examples=40, deadline=None)
@given(array=anything)
def test_a_trace_agrees_with_itself(
    array: np.ndarray[Any, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    result = compared(tmp_path_factory.mktemp("c"), one(array), one(array))
    assert result.exit_code == 0
    assert result.summary["counts"]["equal"] == 1
    assert result.summary["counts"]["different"] == 0


@pytest.mark.parametrize(
    ("site", "phase", "owner", "shown"),
    [
        ("param.1", "param", "layers.1", "layers.1.weight · value"),
        ("in.1", "forward", "", "layers.1 · input.0"),
        ("linear.1", "forward", "layers.1", "layers.1 · torch.nn.functional.linear · output.0"),
        ("out.1", "forward", "layers.1", "layers.1 · output.0"),
        ("loss", "loss", None, "loss · value"),
        ("gout.1", "backward", "", "layers.1 · gradient of output.0"),
        ("gin.1", "backward", "layers.1", "layers.1 · gradient of input.0"),
        ("grad.1", "param_grad", "layers.1", "layers.1.weight · gradient accumulated"),
        ("new.1", "optimizer", "layers.1", "layers.1.weight · after update param"),
    ],
)
def test_one_percent_is_named_at_its_site(
    tmp_path: Path, site: str, phase: str, owner: str | None, shown: str
) -> None:
    given = {"loss": site == "loss"}
    result = compared(tmp_path, network(scaled(site, 1.01), **given), network(**given))
    verdict = result.summary["verdict"]
    assert (result.exit_code, verdict["phase"], verdict["owner"], verdict["where"]) == (
        1,
        phase,
        owner,
        shown,
    )
    assert result.summary["counts"]["different"] == 1
    assert verdict["confidence_word"] == "certain"
    found = row(result, shown)
    assert found["rel_l2"] == pytest.approx(0.01, rel=0.3)
    assert found["score"] > 1


def test_rounding_is_within_noise(tmp_path: Path) -> None:
    def rounding(site: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.nextafter(array, np.float32(9)) if site.startswith(("out", "gin", "linear")) else array

    result = compared(tmp_path, network(rounding), network())
    assert result.exit_code == 0
    assert result.summary["counts"]["within_noise"] > 0
    strict = network(rounding, loss=False), network(loss=False)
    assert compared(tmp_path / "strict", *strict, tolerance_factor=1e-3).exit_code == 1


def test_differences_are_symmetric(tmp_path: Path) -> None:
    there = compared(tmp_path / "a", network(scaled("out.0", 1.5)), network())
    back = compared(tmp_path / "b", network(), network(scaled("out.0", 1.5)))
    a, b = row(there, "layers.0 · output.0"), row(back, "layers.0 · output.0")
    assert a["rel_l2"] * a["reference_l2_norm"] == pytest.approx(b["rel_l2"] * b["reference_l2_norm"])


def test_statistics_alone_bound_from_below(tmp_path: Path) -> None:
    result = compared(
        tmp_path, network(scaled("out.1", 1.01), want=HAS_STATISTICS), network(want=HAS_STATISTICS)
    )
    found = row(result, "layers.1 · output.0")
    assert (result.exit_code, found["evidence"], found["bits_equal"]) == (1, "statistics", None)
    assert 0 < found["rel_l2"] <= 0.0101
    same = compared(tmp_path / "same", network(want=HAS_STATISTICS), network(want=HAS_STATISTICS))
    assert same.exit_code == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_numbers_count(tmp_path: Path, value: float) -> None:
    def everywhere(site: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.full_like(array, value) if site == "out.1" else array

    def once(site: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        changed = array.copy()
        if site == "out.1":
            changed[0, 0] = value
        return changed

    assert compared(tmp_path / "same", network(everywhere), network(everywhere)).exit_code == 0
    assert compared(tmp_path / "mask", network(once), network(once)).exit_code == 0
    result = compared(tmp_path / "apart", network(once), network())
    assert result.exit_code == 1
    why = row(result, "layers.1 · output.0")
    assert why["reason_code"] == RecordCode.NOT_FINITE.value
    assert sorted(json.loads(why["reason_facts"])["numbers"].values()) == [0, 1]


def test_another_dtype_is_judged_by_the_coarser_and_said(tmp_path: Path) -> None:
    def half(site: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array.astype(np.float16) if site == "out.1" else array

    result = compared(tmp_path, network(half), network())
    found = row(result, "layers.1 · output.0")
    assert found["status"] == "within_noise"
    apart = reason(RecordCode.DTYPE_DIFFERS, target="float16", reference="float32")
    assert reason_of_row(found) == apart
    assert result.summary["verdict"]["outcome"] == "agree"
    precision = result.precision.collect()
    assert precision.filter("differs")["module"].to_list() == ["layers.1"]


def test_another_shape_is_undecided(tmp_path: Path) -> None:
    def turned(site: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array.T.copy() if site == "out.1" else array

    assert compared(tmp_path / "agrees", network(turned), network()).exit_code == 0
    result = compared(tmp_path, network(turned, loss=False), network(loss=False))
    assert result.exit_code == 2
    shapes = reason(RecordCode.SHAPE_DIFFERS, target="[8, 4]", reference="[4, 8]")
    assert reason_of_row(row(result, "layers.1 · output.0")) == shapes


def test_other_calls_between_agreeing_ones_are_the_same_mathematics(tmp_path: Path) -> None:
    target, reference = network(), network()
    end = np.ones(2, np.float32)
    for recorder in (target, reference):
        module = recorder.call("module", "tail", 3, "Tail")
        recorder.record(module, "forward", "input.0", end)
        if recorder is target:
            recorder.api(module, "torch.Tensor.contiguous", end)
        recorder.record(module, "forward", "output.0", end)
    result = compared(tmp_path, target, reference)
    assert result.exit_code == 0
    assert result.summary["bracketed"]
    assert result.summary["counts"]["num_unmatched"] == 1
    assert facts(result.verdict.evidence, EvidenceCode.SAME_MATHEMATICS) == {"records": 1}


def _followed(folder: Path, *later: Recorder) -> Comparison:
    """A step after whose updates the target alone calls something, and the target's steps after that one."""
    first = network()
    first.api(None, "torch.distributed.all_gather", np.ones(3, np.float32))
    first.write(folder / "target", step=0)
    network().write(folder / "reference", step=0)
    for number, recorder in enumerate(later, start=1):
        recorder.write(folder / "target", step=number)
        network().write(folder / "reference", step=number)
    return compare(folder / "target", folder / "reference")


def test_calls_after_the_update_are_judged_by_the_next_step(tmp_path: Path) -> None:
    """What they left is what it begins with: without one, or where it differs, they may not agree."""
    result = _followed(tmp_path / "one", network())
    assert (result.exit_code, result.summary["bracketed"]) == (0, True)
    again = network()
    again.api(None, "torch.distributed.all_gather", np.ones(3, np.float32))
    result = _followed(tmp_path / "again", again)  # of the last step too: it is the same program
    assert (result.exit_code, result.summary["bracketed"]) == (0, True)
    result = _followed(tmp_path / "alone")
    assert (result.exit_code, result.summary["bracketed"]) == (2, False)
    result = _followed(tmp_path / "apart", network(scaled("param.1", 1.01)))
    assert (result.exit_code, result.summary["bracketed"]) == (1, False)


@pytest.mark.parametrize("alike", [False, True])
def test_a_phase_of_one_trace_alone_is_not_said_to_agree(tmp_path: Path, alike: bool) -> None:
    """The target's trace ends with the loss: as it was asked to, or although it was asked for as much."""
    target, reference = network(), network()
    records = target.step.records
    kept = [at for at, phase in enumerate(records["phase"]) if phase in ("param", "forward", "loss")]
    for column in records.values():
        column[:] = [column[at] for at in kept]
    options = {"options": {"level": "mix", "task": "statistics"}} if alike else {}
    target.write(tmp_path / "target", **options)
    reference.write(tmp_path / "reference", **options)
    verdict = compare(tmp_path / "target", tmp_path / "reference").verdict
    assert verdict.exit_code == (2 if alike else 0)
    phases = {"phases": ("backward", "param_grad", "optimizer")}
    assert verdict.headline == reason(VerdictCode.AGREE_IN_PART, **phases, same_options=alike)
    assert not coded(verdict.evidence, EvidenceCode.SAME_MATHEMATICS)
    assert verdict.confidence is None
    found = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out")
    said = {one.stage.value: one.status.value for one in found.stages}
    assert (said["forward"], said["backward"], said["reduction"]) == ("passed", "undecided", "undecided")


def test_a_missing_gradient_is_never_agreement(tmp_path: Path) -> None:
    target, reference = network(), network()
    records = target.step.records
    at = records["phase"].index("param_grad")
    for column in records.values():
        del column[at]
    result = compared(tmp_path, target, reference)
    assert result.exit_code == 2
    assert not result.summary["bracketed"]


def test_stored_values_are_read(tmp_path: Path) -> None:
    network(scaled("out.1", 1.01)).write(tmp_path / "target", values=True)
    network().write(tmp_path / "reference", values=True)
    result = compare(tmp_path / "target", tmp_path / "reference")
    found = row(result, "layers.1 · output.0")
    assert found["evidence"] == "values"
    assert found["rel_l2"] == pytest.approx(0.01, rel=1e-4)
    assert found["scale"] == pytest.approx(1.01)
    assert found["max_abs_diff"] > 0
    unread = compare(tmp_path / "target", tmp_path / "reference", options=CompareOptions(read_values=False))
    assert row(unread, "layers.1 · output.0")["evidence"] == "sketch"
    forced = compare(
        tmp_path / "target", tmp_path / "reference", options=CompareOptions(read_equal_values=True)
    )
    assert row(forced, "layers.0 · output.0")["status"] == "equal"


def test_several_steps_are_written_and_read_back(tmp_path: Path) -> None:
    for name, change in (("target", scaled("out.2", 1.01)), ("reference", unchanged)):
        network(loss=False).write(tmp_path / name, step=0)
        network(change, loss=False).write(tmp_path / name, step=1)
    network(loss=False).write(tmp_path / "target", step=2)
    written = compare(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out")
    text = (tmp_path / "out" / "result.json").read_text()
    summary = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert summary == written.summary
    assert summary["verdict"]["step"] == 1
    alone = {"what": "step", "numbers": ("2",), "side": "target"}
    assert facts(written.content.notes, NoteCode.IN_ONE_ONLY) == alone
    again = open_comparison(tmp_path / "out")
    assert again.verdict == written.verdict
    assert again.summary == summary
    assert again.frame()["step"].unique().sort().to_list() == [0, 1]
    assert again.records.collect().height == again.frame().height
    one_step = compare(
        tmp_path / "target",
        tmp_path / "reference",
        options=CompareOptions(target_step=2, reference_step=0),
    )
    assert one_step.exit_code == 0


def test_nothing_in_common_is_never_green(tmp_path: Path) -> None:
    network().write(tmp_path / "target", step=0)
    network().write(tmp_path / "reference", step=5)
    with pytest.raises(NothingCompared, match=r"steps 0 .* steps 5"):
        compare(tmp_path / "target", tmp_path / "reference")
    with pytest.raises(NothingCompared, match="not one record"):
        compared(tmp_path / "empty", Recorder(), Recorder())


def test_different_models_are_refused(tmp_path: Path) -> None:
    other = Recorder()
    root = other.call("module", "", type_="Other")
    for name in ("alpha", "beta", "gamma", "delta"):
        module = other.call("module", name, root, "Thing")
        other.record(module, "forward", "output.0", np.ones(77, np.float32))
    with pytest.raises(NothingCompared, match="different models"):
        compared(tmp_path / "names", other, network(layers=8))

    def wider(site: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.concatenate([array, array]) if site.startswith(("param", "grad", "new")) else array

    with pytest.raises(NothingCompared, match="another shape"):
        compared(tmp_path / "shapes", network(wider), network())


def test_a_setting_that_differs_is_a_difference(tmp_path: Path) -> None:
    for name, rate in (("target", 1e-3), ("reference", 1e-4)):
        trace = network().write(tmp_path / name)
        folder = trace.path / "scalars"
        folder.mkdir()
        line = {"step": 0, "rank": 0, "learning_rate": [rate], "loss": 1.0, "batch_digest": "ab"}
        (folder / "rank_00000.jsonl").write_text(json.dumps(line) + "\n")
    result = compare(tmp_path / "target", tmp_path / "reference")
    assert result.exit_code == 1
    assert result.verdict.headline == reason(VerdictCode.SETTINGS_DIFFER, names=["learning_rate"])
    beyond = {entry["name"]: entry["beyond"] for entry in result.summary["scalars"]}
    assert beyond == {"batch_digest": False, "loss": False, "learning_rate": True}


def test_scalars_of_every_rank_are_compared(tmp_path: Path) -> None:
    for side, (rate, batch) in {"target": (1e-3, "ab"), "reference": (1e-4, "cd")}.items():
        of_two_ranks(network(), tmp_path / side, network())
        for rank in (0, 1):
            line = {"step": 0, "loss": 1.0, "learning_rate": [1e-4], "batch_digest": "ab"}
            if rank:
                line |= {"learning_rate": [rate], "batch_digest": batch}
            RunWriter(tmp_path / side, rank=rank).append_scalars({"rank": rank, **line})
    result = compare(tmp_path / "target", tmp_path / "reference")
    scalars = result.content.scalars
    assert [(one.rank, one.name) for one in scalars if one.beyond] == [
        (1, "batch_digest"),
        (1, "learning_rate"),
    ]
    assert sum(one.rank == 0 for one in scalars) == 3
    assert result.verdict.outcome is Outcome.DIFFER
    rate = {"name": "learning_rate", "step": 0, "ranks": ("1",), "target": 1e-3, "reference": 1e-4}
    assert facts(result.verdict.evidence, EvidenceCode.SCALAR_DIFFERS) == rate


def test_other_data_are_said_to_be_other_data(tmp_path: Path) -> None:
    def given(ids: list[int]) -> Recorder:
        out = Recorder()
        root = out.call("module", "", type_="Net")
        out.record(root, "forward", "input.ids", np.asarray(ids))
        out.record(root, "forward", "output.0", np.asarray(ids, np.float32))
        return out

    verdict = compared(tmp_path, given([1, 2, 3]), given([3, 2, 1])).verdict
    assert verdict.headline == reason(VerdictCode.DATA_DIFFERS, step=0, name="ids")
    assert (verdict.evidence[0].code, verdict.evidence[0].number("score")) == (EvidenceCode.SIZE, np.inf)
    assert not coded(verdict.evidence, EvidenceCode.INPUTS_BIT_IDENTICAL)
    assert not coded(verdict.evidence, EvidenceCode.INPUTS_EXPLAIN)


def test_a_collective_of_the_step_names_the_weight_it_carried(tmp_path: Path) -> None:
    def reduced(factor: float) -> Recorder:
        out = Recorder()
        weights = [out.call("parameter", f"{name}.weight") for name in "ab"]
        grads = [np.full(16, value, np.float32) for value in (1.0, 2.0 * factor)]
        call = out.call("collective", "torch.distributed.all_reduce")
        out.record(call, "collective", "output.0", np.concatenate(grads))
        for weight, grad in zip(weights, grads, strict=True):
            out.record(weight, "param_grad", "accumulated", grad)
        return out

    verdict = compared(tmp_path, reduced(1.5), reduced(1.0)).verdict
    assert (verdict.phase, verdict.owner) == ("collective", "b")
    place = {"phase": "collective", "slot": "output.0", "step": 0, "weight": "b.weight"}
    assert verdict.headline == reason(VerdictCode.FIRST_DIVERGENCE, **place)


@pytest.mark.parametrize(("norm", "exit_code"), [(3.0 * (1 + 1e-7), 0), (6.0, 1)])
def test_a_gradient_norm_that_no_recorded_gradient_explains_is_a_difference(
    tmp_path: Path, norm: float, exit_code: int
) -> None:
    for side, said in (("target", norm), ("reference", 3.0)):
        network().write(tmp_path / side)
        writer = RunWriter(tmp_path / side, rank=0)
        writer.append_scalars({"step": 0, "rank": 0, "loss": 1.0, "grad_norm": said})
    result = compare(tmp_path / "target", tmp_path / "reference")
    assert result.exit_code == exit_code
    if exit_code:
        assert result.verdict.where == "gradient norm"
        apart = {"name": "grad_norm", "step": 0, "ranks": ("0",), "target": 6.0, "reference": 3.0}
        assert facts(result.verdict.evidence, EvidenceCode.SCALAR_DIFFERS) == apart


def test_noise_in_gradients_explains_the_update_and_the_next_step(tmp_path: Path) -> None:
    def noisy(step: int) -> Change:
        noise = np.random.default_rng(7)

        def change(site: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            grown = (array * (1 + 1e-7 * noise.standard_normal(array.shape))).astype(np.float32)
            if site.startswith("grad"):
                return grown
            if site.startswith("new" if step == 0 else "param"):
                return (array + np.float32(2e-6)).astype(np.float32)
            return array

        return change

    for step in (0, 1):
        network(noisy(step)).write(tmp_path / "target", step=step)
        network().write(tmp_path / "reference", step=step)
    result = compare(tmp_path / "target", tmp_path / "reference")
    assert result.exit_code == 0, result.summary["verdict"]
    assert facts(result.content.notes, NoteCode.WEIGHTS_DIFFER)["step"] == 1

    strict = compared(tmp_path / "strict", network(scaled("new.1", 1 + 2e-6)), network())
    assert strict.summary["verdict"]["phase"] == "optimizer"


def test_whole_numbers_must_be_equal(tmp_path: Path) -> None:
    result = compared(tmp_path, one(np.array([1, 2, 3])), one(np.array([1, 2, 4])))
    assert result.exit_code == 1


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="both"):
        CompareOptions(target_step=1)
    with pytest.raises(ConfigError, match="above 0"):
        CompareOptions(tolerance_factor=0.0)


def test_scalars_that_are_gone_are_noted(tmp_path: Path) -> None:
    for side in ("target", "reference"):
        network().write(tmp_path / side)
        writer = RunWriter(tmp_path / side, rank=0)
        writer.write_rank({"rank": 0})
        writer.append_scalars({"step": 0, "loss": 1.0})
    paths = tmp_path / "target", tmp_path / "reference"
    assert not compare(*paths).content.notes
    layout.scalars_file(paths[1], 0).unlink()
    (note,) = compare(*paths).content.notes
    assert (note.code, note.place("side")) == (NoteCode.MISSING, "reference")
    assert str(note.parts[0].place("text")).startswith("scalars/rank_00000.jsonl is not there")


def test_what_many_ranks_lack_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "run"
    network().write(path)
    first = layout.rank_dir(path, 0, 0)
    for rank in range(1, 6):
        shutil.copytree(first, layout.rank_dir(path, 0, rank))
    notes = traces_noted(Trace(path), Trace(path))
    assert len(notes) == 2 * 9
    assert notes[8] == reason(NoteCode.MORE_MISSING, side="target", number=4, path=str(path))


@pytest.mark.parametrize(
    ("ids", "noted"), [(("a", "a"), True), (("a", "b"), False), ((None, None), False)], ids=str
)
def test_two_traces_of_one_run_are_said_to_be(
    ids: tuple[str | None, str | None], noted: bool, tmp_path: Path
) -> None:
    """A run agrees with itself: a slip of a path is no agreement of two runs."""
    traces = []
    for name, run_id in zip("tr", ids, strict=True):
        network().write(tmp_path / name)
        manifest = tmp_path / name / "manifest.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "run_id": run_id}))
        traces.append(Trace(tmp_path / name))
    assert (reason(NoteCode.ONE_RUN) in traces_noted(*traces)) is noted


def test_an_output_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    network().write(tmp_path / "run")
    with pytest.raises(ConfigError, match="no UTF-8"):
        compare(tmp_path / "run", tmp_path / "run", output=tmp_path / os.fsdecode(b"o\xff"))


def _updated(noise: float, factor: float = 1.0) -> Recorder:
    """Gradients and Adam's second moments of two weights, of which only statistics are kept.

    The first gradient's norm is the same in every run, the second's shows the noise.
    """
    recorder, draw = Recorder(want=HAS_STATISTICS), np.random.default_rng(0)
    recorder.call("module", "", type_="Net")
    for name in ("a.weight", "b.weight"):
        value = draw.standard_normal((32, 32)).astype(np.float32)
        gradient = draw.standard_normal((32, 32)).astype(np.float32)
        moved = gradient * (1 + noise * draw.standard_normal(gradient.shape)).astype(np.float32)
        if name == "a.weight" and noise:
            moved *= np.float32(np.linalg.norm(gradient) / np.linalg.norm(moved))
        elif noise:
            moved *= np.float32(1 + noise)
        call = recorder.call("parameter", name)
        recorder.record(call, "param", "value", value)
        recorder.record(call, "param_grad", "local", moved)
        recorder.record(call, "optimizer", "param", value - np.float32(1e-3) * np.sign(moved))
        recorder.record(call, "optimizer", "state.exp_avg_sq", np.float32(0.001 * factor) * moved**2)
    return recorder


def test_gradients_known_from_below_alone_do_not_narrow_second_moments(tmp_path: Path) -> None:
    """Parts on many ranks put together leave statistics alone: norms that agree do not say that gradients
    do. The noisiest gradient that is known holds for all."""
    found = compared(tmp_path / "noisy", _updated(1e-4), _updated(0.0)).frame()
    of_state = found.filter(pl.col("slot").cast(pl.String) == "state.exp_avg_sq")
    first, second = of_state["tolerance"].to_list()
    assert first == pytest.approx(second, rel=1e-3)
    wrong = compared(tmp_path / "wrong", _updated(1e-4, factor=1.1), _updated(0.0)).frame()
    statuses = wrong.filter(pl.col("slot").cast(pl.String) == "state.exp_avg_sq")["status"].cast(pl.String)
    assert set(statuses) == {"origin"}


@pytest.mark.parametrize(
    ("factor", "framework", "exit_code"),
    [
        (1.2, "pytorch", 1),
        (1.2, "mindspore", 0),
        (1.9, "mindspore", 0),
        (2.1, "mindspore", 1),
        (0.9, "pytorch", 0),
    ],
)
def test_kernels_of_two_frameworks_may_differ_by_twice_as_much(
    tmp_path: Path, factor: float, framework: str, exit_code: int
) -> None:
    """As a cross-entropy does whose exp and log err by a few roundoffs, all the same way."""
    output = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    moved = (output * (1 + factor * _tolerance_of_one(tmp_path / "one", output))).astype(np.float32)
    one(moved).write(tmp_path / "target", framework=framework)
    one(output).write(tmp_path / "reference", framework="pytorch")
    result = compare(tmp_path / "target", tmp_path / "reference")
    assert result.exit_code == exit_code
    noted = coded(result.content.notes, NoteCode.ACROSS_FRAMEWORKS)
    assert bool(noted) == (framework == "mindspore")


def _tolerance_of_one(folder: Path, output: np.ndarray[Any, Any]) -> float:
    """Of two runs of one program, relative to the output's norm."""
    moved = (output * np.float32(1.01)).astype(np.float32)
    return float(row(compared(folder, one(moved), one(output)), "(root) · output.0")["tolerance"])
