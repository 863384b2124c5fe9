"""One view of a step: what is found by call, site, parameter and record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.comparing.traces import Recorder
from trueup.numerics._native import summarise_array
from trueup.numerics.summary import HAS_DIGEST, HAS_STATISTICS
from trueup.store import RunWriter, StepColumns, StepView, Trace, step_view, view_if_there
from trueup.store import view as views
from trueup.store.layout import rank_dir
from trueup.store.view import LOCAL, WEIGHT, forget_large

CALLS = (  # parent kind name type ordinal microbatch mode opaque stack arguments global_ordinal
    (None, "module", "", "Net", 0, 0, "train", False, None, None, 0),
    (0, "module", "a", "Linear", 0, 0, "train", False, 0, None, 1),
    (1, "api", "torch.mul", None, 0, 0, "train", False, None, '{"other": 2}', 2),
    (0, "api", "torch.mul", None, 0, 0, "train", False, 1, None, 3),
    (None, "module", "", "Net", 0, 1, "train", False, None, None, 4),
    (4, "module", "a", "Linear", 0, 1, "train", False, None, None, 5),
    (None, "parameter", "a.weight", None, 0, None, "train", False, None, None, 6),
    (None, "parameter", "b", None, 0, None, "train", False, None, None, 7),
)
RECORDS = (  # call phase slot microbatch summary requires_grad reason
    (1, "forward", "input.0", 0, 0, False, None),
    (1, "forward", "output.0", 0, 1, True, None),
    (2, "forward", "output.0", 0, 1, True, None),
    (3, "forward", "output.0", 0, None, True, "too large"),
    (5, "forward", "output.0", 1, 0, True, None),
    (7, "param_grad", "local", 0, 1, None, None),
    (6, "param", "value", None, 0, True, None),
    (6, "param_grad", "local", 0, 1, None, None),
    (6, "param_grad", "local", 1, 0, None, None),
)
VALUES = (np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), np.array([2.0, 0.0, 1.0], np.float32))


@pytest.fixture
def view(tmp_path: Path) -> StepView:
    """A step of two microbatches, of which one tensor has its values."""
    columns = StepColumns()
    for names, rows, table in ((columns.calls, CALLS, "calls"), (columns.records, RECORDS, "records")):
        assert all(len(row) == len(names) for row in rows), table
        for name, cells in zip(names, zip(*rows, strict=True), strict=True):
            names[name].extend(cells)  # type: ignore[attr-defined]
    kept = HAS_STATISTICS | HAS_DIGEST
    columns.summaries = np.stack([summarise_array(values, kept, "float32") for values in VALUES])
    for values in VALUES:
        columns.add_kind("float32", values.shape)
    columns.stacks = {0: ["net.py:5 forward | a(x)", "train.py:1"], 1: ["net.py:6 forward | x * y"]}
    writer = RunWriter(tmp_path, rank=0)
    writer.begin_run({"run_id": "1"})
    facts = {"fqn": "a.weight", "shape": [2, 2], "dtype": "float32", "requires_grad": True}
    writer.write_rank({"parameters": [facts]})
    place = writer.chunks(3).write("0", "float32", (2, 2), VALUES[0].data)
    columns.summary_tensor[0] = place, "0"
    writer.finish_step(3, columns)
    return step_view(Trace(tmp_path), 3, 0)


def test_calls(view: StepView) -> None:
    assert view.kind[:3] == ["module", "module", "api"]
    assert view.parent == [-1, 0, 1, 0, -1, 4, -1, -1]
    assert view.children(0) == [1, 3]
    assert view.children(-1) == [0, 4, 6, 7]
    assert view.enclosing(2) == [1, 0]
    assert (view.caller(2), view.caller(1), view.caller(0)) == ("a", "", None)
    assert view.named("module", "a") == [1, 5]
    assert list(view.calls_of_kind("parameter")) == [6, 7]
    assert [dict(view.arguments(call)) for call in (0, 2, 3)] == [{}, {"other": 2}, {}]
    assert view.facts["parameters"][0]["fqn"] == "a.weight"


def test_places(view: StepView) -> None:
    assert view.places[2] == "0|train|module|#0/a#0/torch.mul#0"
    assert view.same_place(view, 1) == [1]
    assert view.same_place(view, 1, microbatch=False) == [1, 5]
    assert view.innermost_frame(3) == "net.py:6 forward | x * y"
    assert view.innermost_frame(2) == "net.py:5 forward | a(x)", "of the call around it"
    assert view.innermost_frame(5) is None


def test_records(view: StepView) -> None:
    assert view.records(1) == [0, 1]
    assert view.records(1, "backward") == []
    assert view.record(1, "forward", "output.0") == 1
    assert view.record(1, "forward", "output.0", 1) is None
    assert view.record_microbatch == [0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert view.reason[3] == "too large"
    assert view.frame["module"].to_list()[:3] == ["", "", "a"]
    assert view.frame_of("forward", "output.0")["record"].to_list() == [1, 2, 4]
    assert view.holding_reference == frozenset()


def test_parameters(view: StepView) -> None:
    assert view.parameters == ["b", "a.weight"]
    assert view.parameters_with(*LOCAL) == ["b", "a.weight"]
    assert view.parameter("a.weight", *LOCAL) == 8
    assert view.parameter_records("a.weight", *LOCAL) == [7, 8]
    assert view.parameter("b", *WEIGHT) is None
    assert view.parameter_slots("a.weight", "param_grad") == ["local"]
    assert view.parameter_call("b") == 7


def test_tensors(view: StepView) -> None:
    record = view.parameter("a.weight", *WEIGHT)
    assert (view.dtype(record), view.shape(record)) == ("float32", (2, 2))
    assert view.norm(record) == pytest.approx(np.linalg.norm(VALUES[0]))
    assert view.digest(record) == view.digest(0) != view.digest(1)
    value, sample = view.value(record), view.sample(record, limit=2)
    assert value is not None
    assert sample is not None
    assert value.dtype == np.float64
    assert value.tolist() == VALUES[0].tolist()
    assert sample.tolist() == [1.0, 3.0]
    assert view.value(1) is None, "its values were not kept"


@pytest.mark.parametrize("record", [None, 3])
def test_nothing_is_known_of_nothing(view: StepView, record: int | None) -> None:
    of = (view.summary, view.digest, view.norm, view.dtype, view.shape, view.sketch, view.raw, view.value)
    assert [one(record) for one in of] == [None] * len(of)


def test_the_last_few_are_kept(view: StepView) -> None:
    assert step_view(view.source, 3, 0) is view
    assert view_if_there(view.source, 3, 0) is view
    assert view_if_there(view.source, 4, 0) is None
    assert view_if_there(view.source, 3, 1) is None


def test_a_large_one_is_kept_until_it_is_done_with(view: StepView, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Trace(view.source.path)
    forget_large(view.source, other)
    assert step_view(view.source, 3, 0) is view
    monkeypatch.setattr(views, "_LARGE", 0)
    forget_large(other)
    assert step_view(view.source, 3, 0) is view
    forget_large(view.source)
    assert step_view(view.source, 3, 0) is not view


def test_what_a_replay_wrote(view: StepView) -> None:
    states = {"record": [0, 1, 2], "state": ["equal", "replaced", "free"]}
    pl.DataFrame(states).write_parquet(rank_dir(view.source.path, 3, 0) / "forced.parquet")
    again = StepView(view.source, view.tables)
    assert again.holding_reference == frozenset({0, 1})


@pytest.mark.parametrize(
    ("numbers", "zero"),
    [([0.0, -0.0], True), ([0.0, 1e-30], False), ([0.0, np.inf], False), ([np.nan, 0.0], False)],
    ids=["zeros", "a small number", "infinite", "not a number"],
)
def test_what_is_not_finite_is_no_zero(numbers: list[float], zero: bool, tmp_path: Path) -> None:
    made = Recorder()
    made.record(made.call("parameter", "w"), "param_grad", "local", np.array(numbers, np.float32))
    view = step_view(made.write(tmp_path), 0, 0)
    assert view.is_all_zero(view.parameter("w", *LOCAL)) is zero
    assert not view.is_all_zero(None)
