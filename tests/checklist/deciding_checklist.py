"""Cases whose measured quantity is a number at will, for every entry of ``checklist/thresholds.py``."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tests.deciding import decides
from trueup.batches.indexed_dataset import write_indexed_dataset
from trueup.checklist.configuration import Configuration
from trueup.checklist.data_ids import DataIds, ids_of, judge_ids
from trueup.checklist.dialect import CanonicalValue, ValueOrigin
from trueup.types.arrays import Array


def found(documents: list[list[int]]) -> DataIds:
    """What a data set of these documents says."""
    with TemporaryDirectory() as folder:
        rows: list[Array] = [np.array(document, np.int32) for document in documents]
        write_indexed_dataset(Path(folder) / "data", rows, dtype=np.dtype("<i4"))
        return ids_of(Path(folder) / "data")


def documents(number: int, ended: int) -> list[list[int]]:
    """Documents of many lengths, of which so many end with 7."""
    return [[*range(10, 14 + at % 3), 7 if at < ended else 20 + at] for at in range(number)]


@decides("checklist.fewest_documents")
def fewest_documents(number: float) -> object:
    return found(documents(int(number), int(number))).end


@decides("checklist.shared_end", margin=0.02)
def shared_end(share: float) -> object:
    return found(documents(100, round(100 * share))).end


@decides("checklist.padding_run")
def padding_run(length: float) -> object:
    return found([[*range(10, 14 + at % 3), *[9] * int(length)] for at in range(20)]).padding


@decides("checklist.padded_rows", margin=0.1)
def padded_rows(share: float) -> object:
    rows = round(100 * share)
    return found([[10, 11 + at % 5, *([9] * 6 if at < rows else [30 + at])] for at in range(100)]).padding


@decides("checklist.ends_a_row", margin=0.1)
def ends_a_row(times: float) -> object:
    """Padded rows whose last id before the padding is in their text too; none where it is there too often."""
    more = round(100 * (times - 1))
    rows = [
        [7 if at * 5 + k < more else 100 + k for k in range(5)]
        + [20 + at % 7] * (at % 3)
        + [7]
        + [0] * (8 - at % 3)
        for at in range(100)
    ]
    with TemporaryDirectory() as folder:
        place = Path(folder) / "step_0" / "rank_0"
        place.mkdir(parents=True)
        np.save(place / "tokens.npy", np.array(rows))
        return ids_of(Path(folder)).end


@decides("checklist.unknown_share", margin=0.1)
def unknown_share(share: float) -> object:
    ids = [0] * round(10_000 * share)
    data = found([[*ids, *range(1, 10_001 - len(ids))]])
    side = Configuration(
        translations=(),
        values={"unk_token_id": CanonicalValue(value=0, origin=ValueOrigin.SET)},
        unreadable={},
    )
    return [one.key for one in judge_ids([data], side, None)]
