"""Recorded batches by step and rank: labels are moved exactly once, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.batches.made import arrays, ids, recording, same, saved_by_hand
from trueup.batches.recorded import LabelForm, RecordedBatches
from trueup.errors import ConfigError, TraceError


@settings(max_examples=25, deadline=None)
@given(recorded=st.sampled_from([0, 1]), form=st.sampled_from(list(LabelForm)), seed=st.integers(0, 50))
def test_labels_are_moved_once_whichever_way_they_were_recorded(
    tmp_path_factory: pytest.TempPathFactory, recorded: int, form: LabelForm, seed: int
) -> None:
    saved = [arrays(seed + number, shift=recorded) for number in range(3)]
    folder = saved_by_hand(tmp_path_factory.mktemp("batches"), saved)
    read = RecordedBatches.open(folder, labels=form)
    assert read.label_shift == recorded
    wanted = {LabelForm.SHIFTED: 1, LabelForm.UNSHIFTED: 0, LabelForm.RECORDED: recorded}[form]
    for step, batch in enumerate(saved):
        found = read.read(step, 0)[0]
        labels = batch["labels"]
        if wanted > recorded:
            labels = np.concatenate([labels[:, 1:], np.full((2, 1), -100)], axis=1)
        elif wanted < recorded:
            labels = np.concatenate([np.full((2, 1), -100), labels[:, :-1]], axis=1)
        assert same(found, {"tokens": batch["tokens"], "labels": labels})


def test_ignored_labels_and_the_loss_mask_are_moved_with_them(tmp_path: Path) -> None:
    batch = arrays(shift=0)
    batch["labels"] = np.where(np.arange(8) < 3, -100, batch["labels"])
    batch["loss_mask"] = (batch["labels"] != -100).astype(np.float32)
    read = RecordedBatches.open(saved_by_hand(tmp_path, [batch])).read(0, 0)[0]
    expected = np.concatenate([batch["labels"][:, 1:], [[-100], [-100]]], axis=1)
    assert np.array_equal(read["labels"], expected)
    assert np.array_equal(read["loss_mask"], (expected != -100).astype(np.float32))


def test_labels_of_another_kind_are_given_as_recorded(tmp_path: Path) -> None:
    unrelated = arrays() | {"labels": ids(9, 2, 8)}
    read = RecordedBatches.open(saved_by_hand(tmp_path, [unrelated]))
    assert read.label_shift is None
    assert same(read.read(0, 0)[0], unrelated)


def test_one_label_a_row_is_given_as_recorded(tmp_path: Path) -> None:
    classes = arrays() | {"labels": np.array([3, 1])}
    assert same(RecordedBatches.open(saved_by_hand(tmp_path, [classes])).read(0, 0)[0], classes)


def test_labels_moved_twice_are_given_as_recorded_with_a_warning(tmp_path: Path) -> None:
    twice = arrays(shift=2)
    read = RecordedBatches.open(saved_by_hand(tmp_path, [twice]))
    with pytest.warns(UserWarning, match="2 places ahead of the tokens, not one"):
        assert same(read.read(0, 0)[0], twice)


def test_what_is_given_may_be_written_to(tmp_path: Path) -> None:
    read = RecordedBatches.open(saved_by_hand(tmp_path, [arrays()]))
    read.read(0, 0)[0]["tokens"][:] = 0
    assert same(read.read(0, 0)[0], arrays())


def test_steps_ranks_and_places(tmp_path: Path) -> None:
    batches = recording(2, 1, 2)
    for place, found in batches.items():
        at = tmp_path / f"step_{place.step}" / f"rank_{place.rank}"
        at.mkdir(parents=True)
        for name, array in found.items():
            np.save(at / f"{name}.npy", array)
    read = RecordedBatches.open(tmp_path)
    assert read.steps == {0: [0, 1], 1: [0, 1]}
    assert [place for place, _ in read] == sorted(batches)
    assert len(read) == 4
    with pytest.raises(ConfigError, match="no batches of rank 5; it has those of 0, 1"):
        read.of_rank(5)
    with pytest.raises(ConfigError, match="no batch of step 9, rank 0"):
        read.read(9, 0)


def test_a_step_that_lacks_a_rank_is_no_run_of_that_rank(tmp_path: Path) -> None:
    saved_by_hand(tmp_path, [arrays(), arrays(1)])
    one = saved_by_hand(tmp_path / "other", [arrays(2)], rank=1)
    (one / "step_0" / "rank_1").rename(tmp_path / "step_0" / "rank_1")
    with pytest.raises(ConfigError, match="no batch of rank 1 in step 1"):
        RecordedBatches.open(tmp_path).of_rank(1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"labels": "moved"}, "labels='moved': expected one of shifted, unshifted, recorded"),
        ({"num_microbatches": 0}, "num_microbatches=0: expected an integer"),
        ({"num_microbatches": True}, "num_microbatches=True"),
        ({"seq_length": 1.5}, "seq_length=1.5"),
        ({"seq_length": 4, "num_ranks": 2}, "seq_length, num_ranks: only of an indexed dataset"),
    ],
)
def test_a_wrong_argument_is_named(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    saved_by_hand(tmp_path, [arrays()])
    with pytest.raises(ConfigError, match=message):
        RecordedBatches.open(tmp_path, **more)


def test_what_is_no_recording_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such recording of batches"):
        RecordedBatches.open(tmp_path / "nope")
    (tmp_path / "x.txt").write_text("hello")
    with pytest.raises(TraceError, match="is no recording of batches"):
        RecordedBatches.open(tmp_path)
    with pytest.raises(TraceError, match="is no recording of batches"):
        RecordedBatches.open(tmp_path / "x.txt")
