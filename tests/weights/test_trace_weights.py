"""The initial weights in a trace: of one rank, of pipeline stages, of replicas, of shards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.importers.made_trace import TraceMaker
from trueup.errors import WeightsError
from trueup.weights.opening import open_weights

ONES, TWOS = np.ones((2, 3), np.float32), np.full((2, 3), 2, np.float32)


def write(
    root: Path,
    rank: int = 0,
    *,
    step: int = 0,
    values: bool = True,
    placement: str | None = None,
    **weights: np.ndarray,  # type: ignore[type-arg]
) -> None:
    maker = TraceMaker(values=values)
    for name, array in weights.items():
        dtype = "bfloat16" if array.dtype == np.uint16 else "float32"
        maker.tensor(maker.call("parameter", name), "param", "value", array, dtype)
        maker.tensor(maker.call("parameter", name), "param_grad", "accumulated", array + 1, dtype)
    if placement is not None:
        maker._columns.kinds[0] = (*maker._columns.kinds[0][:3], placement)
    maker.write(root, step=step, rank=rank, world_size=2)


def test_parameters_and_not_their_gradients(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0xC000], np.uint16)
    write(tmp_path, a=ONES, b=bits)
    weights = open_weights(tmp_path)
    assert {name: info.dtype for name, info in weights.table.items()} == {"a": "float32", "b": "bfloat16"}
    assert np.array_equal(weights.read("a"), ONES)
    assert weights.read("b").tolist() == bits.tolist()
    assert weights.remarks == ()
    assert np.array_equal(open_weights(tmp_path / "manifest.json").read("a"), ONES)


def test_stages_are_put_together_and_replicas_taken_once(tmp_path: Path) -> None:
    write(tmp_path, 0, first=ONES, shared=TWOS)
    write(tmp_path, 1, last=TWOS, shared=TWOS)
    weights = open_weights(tmp_path)
    assert list(weights.table) == ["first", "shared", "last"]
    assert np.array_equal(weights.read("last"), TWOS)
    assert weights.remarks == ()


def test_what_ranks_hold_parts_of_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, 0, whole=ONES, part=ONES)
    write(tmp_path, 1, whole=ONES, part=TWOS)
    weights = open_weights(tmp_path)
    assert list(weights.table) == ["whole"]
    assert weights.remarks == ("part is left out: ranks 0 and 1 hold different values of it (shards?)",)


def test_a_shard_that_says_so_is_left_out_though_it_is_alone(tmp_path: Path) -> None:
    shard = {"global_shape": [4, 3], "offset": [0, 0], "mesh": {"dp": 2}, "placements": ["S(0)"]}
    write(tmp_path, part=ONES, whole=TWOS, placement=json.dumps(shard))
    weights = open_weights(tmp_path)
    assert list(weights.table) == ["whole"]
    assert weights.remarks == ("part is left out: rank 0 holds a shard of it",)


def test_a_later_step_is_remarked(tmp_path: Path) -> None:
    write(tmp_path, step=5, a=ONES)
    assert open_weights(tmp_path).remarks == ("these are the weights at step 5, the first one captured",)


def test_a_trace_without_values(tmp_path: Path) -> None:
    write(tmp_path, values=False, a=ONES)
    with pytest.raises(WeightsError, match="holds no values of parameters; capture with --preset diagnose"):
        open_weights(tmp_path)
    for table in tmp_path.glob("step_*"):
        table.rename(tmp_path / "gone")
    with pytest.raises(WeightsError, match="has no whole step"):
        open_weights(tmp_path)
