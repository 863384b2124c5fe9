"""The columns of a step in memory."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from trueup.capture.recorder import StepRecorder
from trueup.store import RunWriter, schema
from trueup.types.table_rows import CallRow, RecordRow


def test_a_step_becomes_columns_without_a_search_for_garbage(tmp_path: Path) -> None:
    """Objects made by the thousand make Python look through all that the program holds."""
    recorder = StepRecorder(RunWriter(tmp_path, rank=0), 0)
    gc.collect()
    searches: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            searches.append(info["generation"])

    gc.callbacks.append(note)
    try:
        for call in range(20_000):
            recorder.records.append((call, "forward", "output.0", 0, 0, False, None))
        columns = recorder.columns()
    finally:
        gc.callbacks.remove(note)
    assert list(columns.records["call"]) == list(range(20_000))
    assert len(searches) <= 1


def test_rows_have_the_columns_of_the_schema() -> None:
    assert ("call", *CallRow._fields) == tuple(column.name for column in schema.CALLS)
    assert RecordRow._fields == tuple(column.name for column in schema.RECORDS)


def test_a_row_and_its_cells_are_read_by_name(tmp_path: Path) -> None:
    calls = StepRecorder(RunWriter(tmp_path, rank=0), 0).calls
    for name in ("first", "second"):
        calls.append(CallRow(None, "module", name, None, 3, 1, "train", False, None, None, 0))
    assert calls[1].name == calls.cell(1, "name") == "second"
    assert calls[1].ordinal == calls.cell(1, "ordinal") == 3
    assert [name for _, _, name, *_ in calls] == ["first", "second"]
    with pytest.raises(IndexError):
        calls[2]
