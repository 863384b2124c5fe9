"""What a damaged trace gives when it is read: a sentence, an error that names the file, never silence."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typing_extensions import Required, TypedDict

from tests.comparing.traces import network
from trueup.errors import TraceError
from trueup.store import RunWriter, Trace, layout
from trueup.store.checked import document_from_file


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A trace of one step that lacks nothing."""
    path = tmp_path / "run"
    network().write(path, values=True)
    writer = RunWriter(path, rank=0)
    writer.write_rank({"rank": 0, "parameters": []})
    writer.append_scalars({"step": 0, "loss": 1.0})
    return path


def read_all(path: Path) -> None:
    trace = Trace(path)
    tables = trace.read(0, 0)
    trace.tensor(0, 0, tables.summaries.row(0, named=True))
    trace.scalars(0)
    trace.rank_facts(0)


def test_a_whole_trace_lacks_nothing(whole: Path) -> None:
    assert Trace(whole).missing(0) == []
    read_all(whole)


def test_a_trace_without_steps_owes_nothing(tmp_path: Path) -> None:
    RunWriter(tmp_path, rank=0).begin_run({})
    assert Trace(tmp_path).missing(0) == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: layout.rank_file(run, 0).unlink(), "ranks/rank_00000.json is not there: the settings"),
        (lambda run: layout.rank_file(run, 0).write_text("{nope"), "ranks/rank_00000.json cannot be read"),
        (lambda run: layout.rank_file(run, 0).write_text("[" * 100_000), "cannot be read: the settings"),
        (lambda run: layout.scalars_file(run, 0).unlink(), "scalars/rank_00000.jsonl is not there: loss"),
        (lambda run: layout.scalars_file(run, 0).write_text(""), "it has no line of step 0: loss"),
        (
            lambda run: layout.scalars_file(run, 0).write_text("\x00\n"),
            "1 of its lines cannot be read, it",
        ),
        (lambda run: layout.scalars_file(run, 0).write_text('{"step": [0]}\n'), "1 of its lines cannot"),
    ],
)
def test_what_is_missing_is_said(whole: Path, damage: Callable[[Path], Any], said: str) -> None:
    damage(whole)
    (sentence,) = Trace(whole).missing(0)
    assert said in sentence
    assert "compared" in sentence
    read_all(whole)


def test_half_a_last_line_is_no_loss_and_half_a_line_within_is(whole: Path) -> None:
    file = layout.scalars_file(whole, 0)
    line = file.read_text()
    file.write_text(line + '{"step": 1, "lo')
    assert Trace(whole).missing(0) == []
    assert Trace(whole).scalars(0) == [json.loads(line)]
    file.write_text('{"step": 1, "lo\n' + line)
    assert "1 of its lines cannot be read" in Trace(whole).missing(0)[0]
    assert Trace(whole).scalars(0) == [json.loads(line)]


@pytest.mark.parametrize(("content", "kind"), [("[]", "array"), ("null", "null"), ("3", "number")])
@pytest.mark.parametrize("name", ["manifest.json", "ranks/rank_00000.json", "scalars/rank_00000.jsonl"])
def test_json_of_the_wrong_kind_is_named(whole: Path, name: str, content: str, kind: str) -> None:
    (whole / name).write_text(content)
    with pytest.raises(TraceError, match=rf"{name}.* holds a JSON {kind} where .* capture again"):
        read_all(whole)


@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "ranks/rank_00000.json",
        "scalars/rank_00000.jsonl",
        "step_000000/rank_00000/calls.parquet",
        "step_000000/rank_00000/tensors/chunk_00000.safetensors",
    ],
)
@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir])
@pytest.mark.timeout(60)
def test_what_is_no_regular_file_is_refused(whole: Path, name: str, put: Callable[[Path], None]) -> None:
    (whole / name).unlink()
    put(whole / name)
    with pytest.raises(TraceError, match=f"{name} is not a regular file"):
        read_all(whole)


def test_a_path_that_is_no_utf8_is_read(whole: Path) -> None:
    odd = whole.rename(Path(os.fsdecode(os.fsencode(whole.parent) + b"/nu\xfftf")))
    assert Trace(odd).read(0, 0).records.height > 0
    read_all(odd)


@pytest.mark.parametrize(
    ("table", "column", "cell", "said"),
    [
        ("calls", "arguments", '{"input.dim": 1', "is no JSON"),
        ("calls", "arguments", "[1]", "valid dictionary"),
        ("calls", "arguments", '{"ignore_index": "text"}', "ignore_index: Input should be a valid integer"),
        ("calls", "arguments", '{"ignore_index": NaN}', "ignore_index: Input should be a valid integer"),
        ("calls", "arguments", '{"ignore_index": -1, "input.dim": [1, null]}', None),
        ("summaries", "placement", "{}", "whole: Field required"),
        ("summaries", "placement", '{"whole": [4], "where": [[[0, 2]]]}', None),
        ("summaries", "placement", '{"whole": [4], "where": [0, 2]}', "where.0: Input should be"),
        ("summaries", "placement", '{"global_shape": [4], "offset": [0]}', "mesh: Field required"),
        (
            *("summaries", "placement"),
            '{"global_shape": [4], "offset": [0], "mesh": {"dp": 2}, "placements": ["S(0)"]}',
            None,
        ),
    ],
)
def test_a_cell_that_capture_does_not_write_is_named(
    whole: Path, table: str, column: str, cell: str, said: str | None
) -> None:
    file = layout.rank_dir(whole, 0, 0) / f"{table}.parquet"
    frame = pl.read_parquet(file)
    cells = [cell, *[None] * (frame.height - 1)]
    frame.with_columns(pl.Series(column, cells, pl.Categorical)).write_parquet(file)
    if said is None:
        read_all(whole)
        return
    with pytest.raises(TraceError, match=f"{table}\\.parquet, {column}: .*{re.escape(said)}.*--steps"):
        read_all(whole)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is not there. Do it again"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "holds a JSON array"),
        ('{"version": 2, "num": 1}', "is of version 2, this trueup reads 1. Do it again"),
        ('{"version": 1}', "num: Field required"),
        ('{"version": 1, "num": NaN}', "num: Input should be a valid integer"),
        ('{"version": 1, "num": "1"}', "num: Input should be a valid integer"),
        ('{"version": 1, "num": 1.0}', "num: Input should be a valid integer"),
        ('{"version": 1, "num": 1, "share": 1' + "0" * 400 + "}", "share: Input should be a valid number"),
    ],
)
def test_a_damaged_document_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "numbers.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(TraceError, match=f"numbers\\.json.*{re.escape(said)}"):
        document_from_file(file, Numbers, version="version", versions=(1,), remedy="Do it again")


def test_a_document_is_what_was_written(tmp_path: Path) -> None:
    held = {"version": 1, "num": 1, "share": 2, "later": [1]}
    (tmp_path / "numbers.json").write_text(json.dumps(held))
    found = document_from_file(
        tmp_path / "numbers.json", Numbers, version="version", versions=(1,), remedy=""
    )
    assert found == held


class Numbers(TypedDict, total=False):
    """A document of two numbers."""

    num: Required[int]
    share: float
