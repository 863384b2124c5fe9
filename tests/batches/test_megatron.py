"""Batches into an indexed dataset and out of it; a dataset of any origin, dealt out to steps and ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.batches.made import arrays, ids, recording, same
from trueup.batches.indexed_dataset import write_indexed_dataset
from trueup.batches.megatron import NAME, write_megatron
from trueup.batches.recorded import RecordedBatches
from trueup.batches.source import BatchPlace
from trueup.errors import ConfigError, TraceError

counts = st.integers(1, 3)


@settings(max_examples=20, deadline=None)
@given(steps=counts, microbatches=counts, ranks=counts, rows=counts)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, steps: int, microbatches: int, ranks: int, rows: int
) -> None:
    folder = tmp_path_factory.mktemp("megatron")
    batches = recording(steps, microbatches, ranks, rows=rows)
    assert write_megatron(folder, batches.items(), facts={}) == np.uint16
    for path in (folder, folder / NAME, folder / f"{NAME}.idx", folder / f"{NAME}.bin"):
        read = RecordedBatches.open(path)
        assert read.places == sorted(batches)
        assert all(same(read.at(place), batches[place]) for place in batches)


def test_a_last_label_that_is_ignored_stays_so_and_rows_without_labels_too(tmp_path: Path) -> None:
    batch = arrays()
    batch["labels"][0, -1] = -100
    mask = {"loss_mask": (batch["labels"] != -100).astype(np.float32), "attention_mask": np.ones((2, 8))}
    write_megatron(tmp_path / "a", [(BatchPlace(0, 0, 0), batch | mask)], facts={})
    assert same(RecordedBatches.open(tmp_path / "a").read(0, 0)[0], batch)
    bare = arrays(shift=None)
    write_megatron(tmp_path / "b", [(BatchPlace(0, 0, 0), bare)], facts={})
    assert same(RecordedBatches.open(tmp_path / "b").read(0, 0)[0], bare)


def hole(name: str) -> dict[str, Any]:
    found = arrays()
    if name in ("loss_mask", "attention_mask"):
        return found | {name: np.where(np.arange(8) == 3, 0, np.ones((2, 8)))}
    found[name] = found[name].copy()
    found[name][0, 3] = -100
    return found


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (hole("labels"), "labels that are ignored"),
        (arrays(shift=0), "are not the next token"),
        (hole("tokens"), "negative token ids"),
        (hole("loss_mask"), "a loss_mask that leaves positions out"),
        (hole("attention_mask"), "an? attention_mask that leaves positions out"),
    ],
)
def test_what_cannot_be_held_is_refused(tmp_path: Path, batch: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        write_megatron(tmp_path / "new", [(BatchPlace(0, 0, 0), batch)], facts={})
    assert not (tmp_path / "new").exists()


def test_labels_in_some_batches_only_are_refused(tmp_path: Path) -> None:
    both = [(BatchPlace(0, 0, 0), arrays()), (BatchPlace(1, 0, 0), arrays(shift=None))]
    with pytest.raises(ConfigError, match="some batches have labels and some have none"):
        write_megatron(tmp_path / "new", both, facts={})


@settings(max_examples=30, deadline=None)
@given(length=st.integers(1, 9), size=counts, ranks=counts, microbatches=counts, total=st.integers(60, 200))
def test_a_stream_is_cut_and_dealt_out_as_megatron_s_sampler_does(
    tmp_path_factory: pytest.TempPathFactory,
    length: int,
    size: int,
    ranks: int,
    microbatches: int,
    total: int,
) -> None:
    prefix = tmp_path_factory.mktemp("stream") / "corpus"
    stream = np.arange(total)
    write_indexed_dataset(prefix, np.split(stream, [7, 7, 30, 55]), documents=[2, 3])
    options = {
        "seq_length": length,
        "micro_batch_size": size,
        "num_ranks": ranks,
        "num_microbatches": microbatches,
    }
    a_step = size * ranks * microbatches
    if (total - 1) // length < a_step:
        with pytest.raises(ConfigError, match=f"one step wants {a_step}"):
            RecordedBatches.open(prefix, **options)
        return
    read = RecordedBatches.open(prefix, labels="recorded", **options)
    assert len(read.steps) == (total - 1) // length // a_step
    begins = []
    for step in read.steps:
        for microbatch in range(microbatches):
            for rank in range(ranks):
                batch = read.read(step, rank)[microbatch]
                assert np.array_equal(batch["labels"], batch["tokens"] + 1)
                begins += batch["tokens"][:, 0].tolist()
    assert begins == [row * length for row in range(len(begins))]


def test_sequences_of_one_length_are_rows_and_others_need_seq_length(tmp_path: Path) -> None:
    rows = ids(0, 6, 9)
    write_indexed_dataset(tmp_path / "rows", list(rows))
    read = RecordedBatches.open(tmp_path / "rows", micro_batch_size=3)
    assert read.read(1, 0)[0]["tokens"].tolist() == rows[3:, :-1].tolist()
    assert read.read(1, 0)[0]["labels"].tolist() == rows[3:, 1:].tolist()
    write_indexed_dataset(tmp_path / "ragged", [rows[0], rows[1, :4]])
    with pytest.raises(
        ConfigError, match="sequences of 4 to 9 tokens, no rows of one length: give seq_length"
    ):
        RecordedBatches.open(tmp_path / "ragged")
    write_indexed_dataset(tmp_path / "empty", [])
    with pytest.raises(ConfigError, match="holds 0 rows, one step wants 1"):
        RecordedBatches.open(tmp_path / "empty")


def test_counts_have_no_place_where_batches_json_says_them(tmp_path: Path) -> None:
    write_megatron(tmp_path, recording(1, 1, 1).items(), facts={})
    with pytest.raises(ConfigError, match="says which row is whose"):
        RecordedBatches.open(tmp_path, num_ranks=2)
    file = tmp_path / "batches.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps(told | {"rows": told["rows"][:1]}))
    with pytest.raises(TraceError, match=r"holds 2 sequences, batches\.json names 1"):
        RecordedBatches.open(tmp_path)
    file.write_text(json.dumps(told | {"rows": [[1]]}))
    with pytest.raises(TraceError, match="not what trueup wrote"):
        RecordedBatches.open(tmp_path)
