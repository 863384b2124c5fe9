"""The columns of a step in memory."""

from __future__ import annotations

import gc
from pathlib import Path

from trueup.capture.recorder import Recorder
from trueup.store import RunWriter


def test_a_step_becomes_columns_without_a_search_for_garbage(tmp_path: Path) -> None:
    """Objects made by the thousand make Python look through all that the program holds."""
    recorder = Recorder(RunWriter(tmp_path, rank=0), 0)
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
