"""``trueup.ReplayDataset``: the recorded batches, in their order, for numpy and torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trueup
from tests.batches.made import arrays, recording, same, saved_by_hand
from trueup.adapters.replay_dataset import ReplayDataset as NumpyDataset
from trueup.batches.npy_folder import write_npy_folder
from trueup.batches.recorded import RecordedBatches
from trueup.batches.source import Arrays, BatchPlace
from trueup.errors import ConfigError


@pytest.fixture
def batches() -> dict[BatchPlace, Arrays]:
    return recording(2, 2, 2, rows=3)


@pytest.fixture
def folder(tmp_path: Path, batches: dict[BatchPlace, Arrays]) -> Path:
    write_npy_folder(tmp_path / "x", batches.items(), dict.fromkeys(batches, 3), facts={})
    return tmp_path / "x"


def of_rank(batches: dict[BatchPlace, Arrays], rank: int) -> list[Arrays]:
    return [found for place, found in sorted(batches.items()) if place.rank == rank]


@pytest.mark.parametrize("rank", [0, 1])
def test_microbatches_come_in_their_order(folder: Path, batches: dict[BatchPlace, Arrays], rank: int) -> None:
    dataset = trueup.ReplayDataset(folder, framework="numpy", rank=rank)
    assert type(dataset) is NumpyDataset
    assert len(dataset) == 4
    assert [place[:2] for place in dataset.places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for expected in (of_rank(batches, rank), of_rank(batches, rank)):
        assert all(same(item, batch) for item, batch in zip(dataset, expected, strict=True))
    assert same(dataset[-1], of_rank(batches, rank)[-1])
    with pytest.raises(IndexError):
        dataset[4]


def test_rows_come_in_their_order(folder: Path, batches: dict[BatchPlace, Arrays]) -> None:
    dataset = trueup.ReplayDataset(folder, framework="numpy", per="row", columns=["labels", "tokens"])
    rows = [(b["labels"][row], b["tokens"][row]) for b in of_rank(batches, 0) for row in range(3)]
    assert len(dataset) == 12
    for item, expected in zip(dataset, rows, strict=True):
        assert [part.tolist() for part in item] == [part.tolist() for part in expected]


def test_columns_under_the_program_s_names_and_another_dtype(folder: Path) -> None:
    columns = {"input_ids": "tokens", "labels": "labels"}
    item = trueup.ReplayDataset(folder, framework="numpy", columns=columns, dtype="int32")[0]
    assert list(item) == ["input_ids", "labels"]
    assert {array.dtype for array in item.values()} == {np.dtype("int32")}


def test_items_share_no_memory(folder: Path) -> None:
    dataset = trueup.ReplayDataset(folder, framework="numpy", per="row")
    dataset[0]["tokens"][:] = 0
    assert dataset[0]["tokens"].any()


@pytest.mark.parametrize(("variable", "rank"), [("RANK", 1), ("RANK_ID", 1)])
def test_the_rank_is_the_launcher_s(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str, rank: int
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert trueup.ReplayDataset(folder, framework="numpy").places[0].rank == 0
    monkeypatch.setenv(variable, str(rank))
    assert trueup.ReplayDataset(folder, framework="numpy").places[0].rank == rank
    monkeypatch.setenv(variable, "x")
    with pytest.raises(ConfigError, match=f"{variable}='x' is no rank"):
        trueup.ReplayDataset(folder, framework="numpy")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"framework": "jax"}, "framework='jax': expected one of torch, mindspore, numpy"),
        ({"per": "epoch"}, "per='epoch': expected one of microbatch, row"),
        ({"dtype": "float32"}, "dtype='float32': expected the name of an integer type"),
        ({"dtype": "int7"}, "dtype='int7'"),
        ({"columns": "tokens"}, "columns='tokens': expected a list of names"),
        ({"columns": []}, "a list of names"),
        ({"columns": ["tokens", "mask"]}, "holds no 'mask'; it holds labels, tokens"),
        ({"rank": 7}, "no batches of rank 7"),
        ({"num_ranks": 2}, "only of an indexed dataset"),
    ],
)
def test_a_wrong_argument_is_named(folder: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trueup.ReplayDataset(folder, **({"framework": "numpy"} | more))


def test_an_opened_recording_has_its_choices_made(folder: Path) -> None:
    opened = RecordedBatches.open(folder, labels="unshifted")
    item = trueup.ReplayDataset(opened, framework="numpy")[0]
    assert np.array_equal(item["labels"][:, 1:], item["tokens"][:, 1:])
    with pytest.raises(ConfigError, match="are chosen where the recording is opened"):
        trueup.ReplayDataset(opened, labels="recorded")


def test_an_id_that_does_not_fit_and_a_column_that_ends_are_named(tmp_path: Path) -> None:
    big = arrays()
    big["tokens"] = big["tokens"] + 300
    dataset = trueup.ReplayDataset(saved_by_hand(tmp_path / "a", [big]), framework="numpy", dtype="uint8")
    with pytest.raises(ConfigError, match=r"tokens runs from .* does not fit dtype=uint8"):
        dataset[0]
    saved_by_hand(tmp_path / "b", [arrays(), arrays(shift=None)])
    dataset = trueup.ReplayDataset(tmp_path / "b", framework="numpy")
    with pytest.raises(ConfigError, match="step 1, microbatch 0, rank 0 has no labels, others have"):
        dataset[1]


@pytest.mark.torch
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_of_torch_gives_what_was_recorded(
    folder: Path, batches: dict[BatchPlace, Arrays], num_workers: int
) -> None:
    from torch import Tensor
    from torch.utils.data import DataLoader, Dataset

    whole = trueup.ReplayDataset(folder)  # torch is what this program has imported
    rows = trueup.ReplayDataset(folder, framework="torch", per="row")
    assert isinstance(whole, Dataset)
    expected = of_rank(batches, 0)
    for dataset, size in ((whole, None), (rows, 3)):
        loader: Any = DataLoader(dataset, batch_size=size, num_workers=num_workers)  # type: ignore[arg-type]
        given = list(loader)
        assert all(isinstance(array, Tensor) for item in given for array in item.values())
        assert all(
            same({name: array.numpy() for name, array in item.items()}, batch)
            for item, batch in zip(given, expected, strict=True)
        )
