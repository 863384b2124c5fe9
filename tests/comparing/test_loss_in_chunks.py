"""A loss worked out in chunks is made with the same labels as a whole one; other labels stay a difference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.diagnosing.checks.trainings import Training, capture
from trueup.batches.trace_batches import TraceBatches
from trueup.comparing.losses.inputs import LossInputs
from trueup.comparing.run import compare
from trueup.importers import open_trace
from trueup.store import step_view
from trueup.types.codes import RecordCode
from trueup.types.status import Status

Cut = Callable[[Tensor, int], list[Tensor]]


def one_after_another(whole: Tensor, num: int) -> list[Tensor]:
    return list(whole.flatten(0, 1).chunk(num))


def along_the_length(whole: Tensor, num: int) -> list[Tensor]:
    return [part.flatten(0, 1) for part in whole.chunk(num, dim=1)]


def ignoring(labels: Tensor) -> Tensor:
    """The last tokens of every row do not count, so that the last chunk holds no label that does."""
    labels = labels.clone()
    labels[:, -9:] = -100
    return labels


def in_chunks(
    cut: Cut, num: int, labels_of: Callable[[Tensor], Tensor] = ignoring
) -> Callable[[Training], None]:
    def change(training: Training) -> None:
        def loss(model: torch.nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
            parts = zip(cut(model(ids), num), cut(labels_of(labels), num), strict=True)
            total = sum(F.cross_entropy(x, y, reduction="sum") for x, y in parts)
            return total / (labels_of(labels) != -100).sum()

        training.loss = loss

    return change


WHOLE = in_chunks(one_after_another, 1)
WAYS = {
    "one after another": in_chunks(one_after_another, 4),
    "uneven": in_chunks(one_after_another, 5),
    "along the length": in_chunks(along_the_length, 3),
}


def label_rows(comparison: object) -> list[dict]:
    table = [row for table in comparison.tables for row in table.to_pylist()]  # type: ignore[attr-defined]
    return [row for row in table if row["phase"] == "loss" and row["slot"].startswith("labels")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture(tmp_path_factory.mktemp("whole") / "trace", WHOLE)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_labels_in_chunks_are_no_difference(whole: Path, way: str, tmp_path: Path) -> None:
    chunked = capture(tmp_path / "chunked", WAYS[way])
    comparison = compare(chunked, whole)
    assert comparison.exit_code == 0
    paired = [row for row in label_rows(comparison) if row["status"] != Status.UNMATCHED.value]
    assert {row["status"] for row in paired} == {Status.WITHIN_NOISE.value}
    rows = [row for table in comparison.tables for row in table.to_pylist()]
    recut = [row for row in rows if row["reason_code"] == RecordCode.REGROUPED]
    assert recut
    assert {row["status"] for row in recut} == {Status.UNDECIDED.value}


def test_chunks_cut_along_the_length_and_one_after_another(tmp_path: Path) -> None:
    traces = [capture(tmp_path / str(at), way) for at, way in enumerate(WAYS.values())]
    assert compare(traces[1], traces[2]).exit_code == 0


def rolled(labels: Tensor) -> Tensor:
    return ignoring(labels.roll(1, 1))


def of_other_rows(labels: Tensor) -> Tensor:
    return ignoring(labels.flip(0))


def one_changed(labels: Tensor) -> Tensor:
    labels = ignoring(labels)
    labels[0, 3] = (labels[0, 3] + 1) % 90
    return labels


@pytest.mark.parametrize("labels_of", [rolled, of_other_rows, one_changed])
@pytest.mark.parametrize("cut", [one_after_another, along_the_length])
def test_other_labels_in_chunks_are_a_difference(
    whole: Path, cut: Cut, labels_of: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    comparison = compare(capture(tmp_path / "chunked", in_chunks(cut, 4, labels_of)), whole)
    assert comparison.exit_code != 0
    statuses = {row["status"] for row in label_rows(comparison) if row["slot"] == "labels"}
    assert statuses.isdisjoint({Status.WITHIN_NOISE.value, Status.EQUAL.value})


@pytest.mark.parametrize("way", WAYS)
def test_every_reader_has_the_whole_labels(whole: Path, way: str, tmp_path: Path) -> None:
    chunked = capture(tmp_path / "chunked", WAYS[way])
    sides = [open_trace(path) for path in (chunked, whole)]
    labels = [LossInputs.of(step_view(side, 1, 0)).labels[0] for side in sides]
    assert np.array_equal(labels[0].ravel(), labels[1].ravel())
    batches = [TraceBatches(side) for side in sides]
    for place in batches[1].places:
        assert np.array_equal(*(source.read(place)["labels"] for source in batches))
