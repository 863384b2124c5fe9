"""What a damaged trace gives when it is read: a sentence, an error that names the file, never silence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.comparing.traces import network
from trueup.errors import TraceError
from trueup.store import RunWriter, Trace, layout


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
