"""Folders of arrays: what is written is read, what a program saved by hand too, and mistakes are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.batches.made import arrays, recording, same, saved_by_hand
from trueup.batches.npy_folder import NpyBatches, write_npy_folder
from trueup.batches.recorded import RecordedBatches
from trueup.batches.source import Arrays, BatchPlace
from trueup.errors import ConfigError, TraceError

counts = st.integers(1, 3)


def written(folder: Path, batches: dict[BatchPlace, Arrays], *, by_row: bool = False) -> int:
    rows = {place: len(found["tokens"]) for place, found in batches.items()}
    return write_npy_folder(folder, batches.items(), rows, by_row=by_row, facts={"ignore_index": -100})


@settings(max_examples=25, deadline=None)
@given(steps=counts, microbatches=counts, ranks=counts, rows=counts, by_row=st.booleans())
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    steps: int,
    microbatches: int,
    ranks: int,
    rows: int,
    by_row: bool,
) -> None:
    folder = tmp_path_factory.mktemp("batches")
    batches = recording(steps, microbatches, ranks, rows=rows)
    num = written(folder, batches, by_row=by_row)
    assert num == steps * microbatches * (rows if by_row else 1)
    read = NpyBatches(folder)
    assert read.places == sorted(batches)
    assert all(same(read.read(place), batches[place]) for place in batches)


def test_microbatches_of_different_width_and_ranks_with_fewer_rows_are_kept_apart(tmp_path: Path) -> None:
    batches = {
        BatchPlace(4, 0, 0): arrays(0, rows=3, length=5),
        BatchPlace(4, 1, 0): arrays(1, rows=1, length=9),
        BatchPlace(4, 0, 1): arrays(2, rows=1, length=7),
    }
    written(tmp_path, batches, by_row=True)
    read = NpyBatches(tmp_path)
    assert all(same(read.read(place), batches[place]) for place in batches)


def test_folders_bear_the_number_of_their_step_where_that_is_one(tmp_path: Path) -> None:
    written(tmp_path, {BatchPlace(step, 0, 0): arrays(step) for step in (5, 10, 9)})
    assert {path.name for path in tmp_path.glob("step_*")} == {"step_5", "step_9", "step_10"}
    assert [place.step for place in NpyBatches(tmp_path).places] == [5, 9, 10]


def test_folders_saved_by_hand_are_forwards_in_numeric_order(tmp_path: Path) -> None:
    batches = [arrays(seed) for seed in range(12)]
    saved_by_hand(tmp_path, batches)
    one = RecordedBatches.open(tmp_path)
    assert list(one.steps) == list(range(12))
    assert same(one.read(10, 0)[0], batches[10])
    several = RecordedBatches.open(tmp_path, num_microbatches=4)
    assert list(several.steps) == [0, 1, 2]
    assert [found["tokens"].tolist() for found in several.read(2, 0)] == [
        batches[number]["tokens"].tolist() for number in (8, 9, 10, 11)
    ]
    with pytest.raises(ConfigError, match="12 step_N folders, no multiple of 5"):
        RecordedBatches.open(tmp_path, num_microbatches=5)


def test_rows_that_share_an_array_are_not_written_apart(tmp_path: Path) -> None:
    found = arrays() | {"attention_mask": np.ones((1, 1, 8, 8), bool)}
    with pytest.raises(ConfigError, match="attention_mask has not one entry a row"):
        written(tmp_path, {BatchPlace(0, 0, 0): found}, by_row=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokens", None, "lacks tokens.npy"),
        ("tokens", np.zeros((2, 8)), r"float64 of shape \[2, 8\]; expected integers"),
        ("tokens", np.zeros(8, np.int64), r"shape \[8\]"),
        ("labels", np.zeros((3, 8), np.int64), "one row of integers for each row"),
        ("labels", np.zeros((2, 8)), "holds float64"),
        ("tokens", b"", "tokens.npy is not a whole .npy file"),
        ("labels", b"\x93NUMPY\x01\x00junk", "labels.npy is not a whole .npy file"),
        ("tokens", np.array([{}], object), "tokens.npy holds Python objects"),
    ],
)
def test_a_bad_array_is_named(tmp_path: Path, name: str, content: Any, message: str) -> None:
    file = saved_by_hand(tmp_path, [arrays()]) / "step_0" / "rank_0" / f"{name}.npy"
    file.unlink()
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        np.save(file, content, allow_pickle=True)
    with pytest.raises(TraceError, match=message):
        RecordedBatches.open(tmp_path).read(0, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "of version 2"),
        ({"pieces": [{"folder": 0}]}, "pieces.0.step: Field required"),
        ({"pieces": None}, "pieces: Input should be a valid list"),
        ({"ignore_index": float("inf")}, "ignore_index: Input should be a valid integer"),
        ({"ignore_index": "none"}, "ignore_index: Input should be a valid integer"),
        ({"ignore_index": "-100"}, "ignore_index: Input should be a valid integer"),
        ({"pieces": [{"folder": 7, "step": 0, "microbatch": 0, "ranks": [0]}]}, "step_7/rank_0 is missing"),
    ],
)
def test_a_bad_batches_json_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    written(tmp_path, recording(1, 1, 1))
    file = tmp_path / "batches.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(TraceError, match=message):
        NpyBatches(tmp_path)


def test_a_broken_batches_json_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is no recording of batches"):
        RecordedBatches.open(tmp_path)
    with pytest.raises(TraceError, match="holds no step_N/rank_R"):
        NpyBatches(tmp_path)
    written(tmp_path, recording(1, 1, 1))
    with pytest.raises(ConfigError, match="num_microbatches has no place"):
        RecordedBatches.open(tmp_path, num_microbatches=2)
    (tmp_path / "batches.json").write_text("{")
    with pytest.raises(TraceError, match="is not JSON"):
        RecordedBatches.open(tmp_path)
