"""Series: what was appended is what is read, while it grows and after columns were added."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trueup.errors import TraceError
from trueup.store.series import SeriesReader, SeriesWriter, StepBlock


def block(**numbers: float) -> StepBlock:
    return StepBlock(tuple(numbers), {"norm": np.asarray(list(numbers.values()), float)})


def test_rows_are_read_while_the_file_is_open(tmp_path: Path) -> None:
    writer = SeriesWriter(tmp_path / "s")
    for step in range(3):
        writer.append(step, {"gradient": block(a=step, b=2 * step)})
        series = SeriesReader(tmp_path / "s").series("gradient", "norm")
        assert series is not None
        assert series.steps.tolist() == list(range(step + 1))
        assert series.values[-1].tolist() == [step, 2 * step]
    writer.close()


def test_a_new_name_or_kind_begins_a_segment_and_what_was_not_measured_is_nan(tmp_path: Path) -> None:
    writer = SeriesWriter(tmp_path / "s")
    writer.append(0, {"gradient": block(a=1)})
    writer.append(1, {"gradient": block(a=2, b=3), "weight": block(a=9)})
    writer.append(2, {"gradient": block(b=4)})
    writer.append(3, {"gradient": block(b=5, a=6)})
    writer.close()
    reader = SeriesReader(tmp_path / "s")
    series = reader.series("gradient", "norm")
    assert series is not None
    assert series.names == ("a", "b")
    np.testing.assert_array_equal(series.values, [[1, np.nan], [2, 3], [np.nan, 4], [6, 5]])
    assert len(list((tmp_path / "s").glob("*.json"))) == 2
    assert reader.kinds == {"gradient": ("norm",), "weight": ("norm",)}
    last = reader.series("gradient", "norm", last=1)
    assert last is not None
    assert last.steps.tolist() == [3]


def test_a_row_half_written_is_left_out(tmp_path: Path) -> None:
    writer = SeriesWriter(tmp_path / "s")
    writer.append(0, {"gradient": block(a=1)})
    writer.append(1, {"gradient": block(a=2)})
    writer.close()
    (rows,) = (tmp_path / "s").glob("*.rows")
    rows.write_bytes(rows.read_bytes()[:-2])
    series = SeriesReader(tmp_path / "s").series("gradient", "norm")
    assert series is not None
    assert series.steps.tolist() == [0]


def test_steps_trained_again_are_there_once(tmp_path: Path) -> None:
    for first in (0, 2):
        writer = SeriesWriter(tmp_path / "s")
        for step in range(first, first + 4):
            writer.append(step, {"gradient": block(a=10 * first + step)})
        writer.close()
    series = SeriesReader(tmp_path / "s").series("gradient", "norm")
    assert series is not None
    assert series.steps.tolist() == [0, 1, 2, 3, 4, 5]
    assert series.values[:, 0].tolist() == [0, 1, 22, 23, 24, 25]


def test_a_header_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "series_000.json").write_text('{"version": 99, "kinds": []}')
    with pytest.raises(TraceError, match="version 99"):
        SeriesReader(tmp_path)
