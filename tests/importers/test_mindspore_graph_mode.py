"""A GPT dumped in graph mode: views, operators under the scopes of other cells, beside PyTorch runs of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.importers.dumps import rows
from trueup.comparing.run import compare
from trueup.importers import open_trace
from trueup.importers.mindspore.operators import listed_names
from trueup.importers.mindspore.views import UNKNOWN_VIEW
from trueup.store import StepTables, TraceSource


def values(trace: TraceSource, row: dict) -> np.ndarray:
    stored = trace.tensor(0, 0, row)
    assert stored is not None
    return stored.data.view(np.float32).reshape(stored.shape)


def called(tables: StepTables, module: str, name: str, ordinal: int = 0) -> list[dict]:
    """Records of a call in a module."""
    names = tables.calls["name"].cast(pl.String)
    found = [
        call
        for call, parent, own, number in tables.calls.select("call", "parent", "name", "ordinal").iter_rows()
        if own == f"mindspore.ops.{name}" and number == ordinal and parent is not None
        if names[parent] == module
    ]
    return [r for call in found for r in rows(tables, f"mindspore.ops.{name}") if r["call"] == call]


@pytest.mark.parametrize("layer", [0, 1])
def test_views_are_read_where_they_lie(graph_gpt: Path, layer: int) -> None:
    """The parts of a split, transposed and repeated heads, beside what they are computed from."""
    trace = open_trace(graph_gpt)
    tables = trace.read(0, 0)
    where = f"stack.{layer}.mix"
    whole = {
        r["slot"]: values(trace, r)
        for r in called(tables, where, "SplitWithSizeView")
        if r["summary"] >= 0 and r["dtype"] == "float32"
    }
    fused = whole["input.0"]
    assert np.array_equal(np.concatenate([whole[f"output.{k}"] for k in range(3)], -1), fused)
    (value,) = (r for r in called(tables, where, "TransposeExtView", 2) if r["slot"] == "output.0")
    expected = fused[..., -8:].reshape(2, 8, 2, 4).transpose(0, 2, 1, 3)
    assert np.array_equal(values(trace, value), expected)
    (repeated,) = (r for r in called(tables, where, "Reshape", 6) if r["slot"] == "output.0")
    assert np.array_equal(values(trace, repeated), np.repeat(expected, 2, axis=1))


def test_operators_stand_in_the_cells_they_ran_in(graph_gpt: Path) -> None:
    """Of functions that another cell called first, and of those they are expanded into."""
    tables = open_trace(graph_gpt).read(0, 0)
    norm = ["Square", "_MeanExt.ReduceMean", "Add", "Rsqrt", "Mul"]
    for layer in (0, 1):
        for module in (f"stack.{layer}.before_mix", f"stack.{layer}.before_feed"):
            assert all(called(tables, module, name) for name in norm), module
        for module in ("mix.fused_in", "mix.merge", "feed.widen", "feed.narrow"):
            assert called(tables, f"stack.{layer}.{module}", "_MatMulExt.BatchMatMul"), module
        assert called(tables, f"stack.{layer}", "Add", 1)
        assert called(tables, f"stack.{layer}.mix", "Softmax")


def test_without_the_graph_a_view_has_no_values(graph_gpt: Path, tmp_path: Path) -> None:
    shutil.copytree(graph_gpt, tmp_path / "dump")
    shutil.rmtree(tmp_path / "dump/rank_0/graphs")
    tables = open_trace(tmp_path / "dump").read(0, 0)
    split = [r for r in rows(tables, "mindspore.ops.SplitWithSizeView", ordinal=0) if "output" in r["slot"]]
    assert {(r["summary"], r["reason"]) for r in split} == {(None, UNKNOWN_VIEW)}


def test_renumbered_operators_are_found_in_order() -> None:
    names = listed_names(["C-op1", "C-op0", "M-op0"], ["M-op0", "C-op7", "C-op6"])
    assert names == {"M-op0": "M-op0", "C-op0": "C-op6", "C-op1": "C-op7"}
    assert listed_names(["C-op0"], ["C-op6", "C-op7"]) == {}


@pytest.mark.torch
@pytest.mark.parametrize("name", ["torchtitan", "megatron"])
@pytest.mark.parametrize("turned", [False, True])
def test_it_is_paired_with_a_pytorch_run_and_agrees(
    graph_gpt: Path, tmp_path: Path, name: str, turned: bool
) -> None:
    from tests.matching.implementations.capture import captured, matched
    from tests.matching.implementations.sizes import SMALL
    from tests.matching.implementations.truth import scored

    run = captured(tmp_path, name, sizes="small", sgd=True)
    target, reference = (run, graph_gpt) if turned else (graph_gpt, run)
    names = (name, "mindspore_graph") if turned else ("mindspore_graph", name)
    (match,) = matched(target, reference, steps=(0,))
    score = scored(match, *names, SMALL)
    assert score.wrong == []
    assert score.module_share >= 0.98
    assert score.output_share >= 0.80, score.missed
    assert compare(target, reference).exit_code == 0
