"""What a path may be, and what is said of everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.importers.dumps import module_entry, write_dump
from trueup.errors import TraceError
from trueup.importers import open_trace
from trueup.importers.msprobe.reader import MsprobeDump
from trueup.store import RunWriter, Trace

ENTRY = {"Module.fc.Linear.forward.0": module_entry()}


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        read_all(path)
    return str(caught.value)


def read_all(path: Path) -> None:
    trace = open_trace(path)
    for step, ranks in trace.steps().items():
        for rank in ranks:
            trace.read(step, rank)


def test_our_own_trace_and_a_dump(tmp_path: Path) -> None:
    RunWriter(tmp_path / "ours", rank=0).begin_run({"framework": "pytorch"})
    assert isinstance(open_trace(tmp_path / "ours"), Trace)
    assert isinstance(open_trace(tmp_path / "ours/manifest.json"), Trace)
    write_dump(tmp_path / "theirs/step3/rank1", ENTRY)
    dump = open_trace(tmp_path / "theirs")
    assert isinstance(dump, MsprobeDump)
    assert dump.steps() == {3: [1]}


def test_several_steps_are_in_numerical_order(tmp_path: Path) -> None:
    for step in (10, 2, 0):
        write_dump(tmp_path / f"step{step}/proc77", ENTRY)
    assert open_trace(tmp_path).steps() == {0: [0], 2: [0], 10: [0]}


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "reference_").mkdir()
    assert refusal(tmp_path / "reference") == f"no such trace: {tmp_path / 'reference'}", (
        "a folder is no trace"
    )
    for name in ("reference_2", "Reference", "target", "a", "b"):
        RunWriter(tmp_path / name, rank=0).begin_run({"framework": "pytorch"})
    near = f"did you mean {tmp_path / 'Reference'} or {tmp_path / 'reference_2'}?"
    assert refusal(tmp_path / "referense").endswith(near)
    far = refusal(tmp_path / "zzz")
    assert f"traces in {tmp_path}: " in far
    assert "reference_," not in far
    assert refusal(tmp_path / "nowhere" / "zzz").endswith("zzz"), "where there is not even a folder"


def test_an_empty_folder_and_one_of_something_else(tmp_path: Path) -> None:
    message = refusal(tmp_path)
    assert "manifest.json" in message
    assert "stepN/rankN/dump.json" in message
    assert "an empty folder" in message
    (tmp_path / "notes.txt").write_text("hello")
    assert "found notes.txt" in refusal(tmp_path)
    assert "is a file of no kind that is read" in refusal(tmp_path / "notes.txt")


def test_several_traces_are_named(tmp_path: Path) -> None:
    write_dump(tmp_path / "a/step0/proc1", ENTRY)
    RunWriter(tmp_path / "b", rank=0).begin_run({"framework": "pytorch"})
    message = refusal(tmp_path)
    assert "holds 2 traces (a, b)" in message


def test_one_trace_below_is_pointed_to(tmp_path: Path) -> None:
    write_dump(tmp_path / "dump/step0/proc1", ENTRY)
    assert f"{tmp_path / 'dump'} is: give that" in refusal(tmp_path)


def test_processes_without_ranks_are_several_traces(tmp_path: Path) -> None:
    for pid in (11, 12):
        write_dump(tmp_path / f"step0/proc{pid}", ENTRY)
    assert "proc11, proc12" in refusal(tmp_path)
    assert open_trace(tmp_path / "step0/proc12").steps() == {0: [0]}


def test_parts_of_a_dump_are_led_to_the_whole(tmp_path: Path) -> None:
    folder = write_dump(tmp_path / "step0/proc1", ENTRY, construct={}, stack={})
    assert f"give {folder / 'dump.json'}" in refusal(folder / "stack.json")


def test_a_step_without_its_json(tmp_path: Path) -> None:
    (tmp_path / "step0/proc1/dump_tensor_data").mkdir(parents=True)
    assert "was the run killed" in refusal(tmp_path)
    (tmp_path / "step0/proc1/debug.json").write_text("{}")
    assert "debug" in refusal(tmp_path)


def test_empty_cut_off_and_malformed_json(tmp_path: Path) -> None:
    file = write_dump(tmp_path / "step0/proc1", ENTRY) / "dump.json"
    whole = file.read_text()
    file.write_text("")
    assert "is empty" in refusal(tmp_path)
    assert str(file) in refusal(tmp_path)
    file.write_bytes(b"\0" * 100)
    assert "is empty" in refusal(tmp_path)
    for cut in (5, len(whole) // 3, len(whole) // 2, len(whole) - 2):
        file.write_text(whole[:cut])
        assert "cut off" in refusal(tmp_path), cut
    file.write_text(whole.replace('"input_args":', '"input_args";'))
    message = refusal(tmp_path)
    assert "line 8 column" in message
    assert "not JSON" in message
    file.write_text("[1, 2]")
    assert "JSON list" in refusal(tmp_path)
    file.write_text('{"task": "statistics"}')
    assert "no object 'data'" in refusal(tmp_path)
    file.write_text("[" * 100_000)
    assert str(file) in refusal(tmp_path)


def test_construct_and_stack_may_be_missing_or_empty_but_not_broken(tmp_path: Path) -> None:
    folder = write_dump(tmp_path / "step0/proc1", ENTRY, construct={})
    (folder / "stack.json").write_text("")
    assert open_trace(tmp_path).read(0, 0).calls.height == 1
    (folder / "construct.json").write_text('{"a": ')
    assert "construct.json" in refusal(tmp_path)


def test_a_step_or_rank_that_is_not_there(tmp_path: Path) -> None:
    write_dump(tmp_path / "step4/rank0", ENTRY)
    with pytest.raises(TraceError, match="no step 5 of rank 0; it has step 4"):
        open_trace(tmp_path).read(5, 0)


def test_a_step_without_dump_is_said_to_be_left_out(tmp_path: Path) -> None:
    for name in ("step0/rank0", "step0/rank1", "step1/rank0", "step1/rank1", "step10/rank0"):
        write_dump(tmp_path / name, ENTRY, construct={})
    assert open_trace(tmp_path).missing(0) == []
    (tmp_path / "step0/rank0/dump.json").unlink()
    (tmp_path / "step0/rank1/dump.json").unlink()
    (tmp_path / "step10/rank0/dump.json").unlink()
    said = open_trace(tmp_path).missing(0)
    assert [sentence.partition(" holds no dump.json: it is left out")[0] for sentence in said] == [
        "step0/rank0",
        "step0/rank1",
        "step10/rank0",
    ]
    assert open_trace(tmp_path / "step1").missing(0) == []
    assert open_trace(tmp_path / "step1/rank0").missing(0) == []


def test_steps_without_construct_are_said(tmp_path: Path) -> None:
    write_dump(tmp_path / "step0/rank0", ENTRY, construct={})
    write_dump(tmp_path / "step1/rank0", ENTRY)
    write_dump(tmp_path / "step2/rank0", ENTRY)
    (tmp_path / "step2/rank0/construct.json").write_text("")
    (sentence,) = open_trace(tmp_path).missing(0)
    assert "no construct.json, or an empty one, in step 1, 2: which module made a call" in sentence
    assert open_trace(tmp_path).missing(1) == []
