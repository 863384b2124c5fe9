"""The data: rows and their order, whatever the source, and who reads what."""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.layouts import configuration
from trueup.batches.indexed_dataset import write_indexed_dataset
from trueup.errors import ConfigError
from trueup_gpt.config import Config, config_from
from trueup_gpt.data import open_data
from trueup_gpt.data.source import Portion, Source

pytestmark = pytest.mark.torch

T = 16
IDS = np.random.default_rng(0).integers(0, 257, 1000)


def _config(path: Path | str, **dataset: Any) -> Config:
    return config_from(configuration(dataset={"dataset_dir": str(path), "shuffle": False, **dataset}))


def _rows(source: Source, steps: int = 3, dp: int = 1, microbatches: int = 2) -> np.ndarray[Any, Any]:
    """Rows of whole steps in their order over all ranks: (rows, T), with the last label beside them."""
    found = []
    for step in range(steps):
        numbered = {}
        for rank in range(dp):
            portion = Portion(step=step, dp_rank=rank, dp_size=dp, num_microbatches=microbatches // dp)
            numbered |= dict(zip(portion.numbers(), source.read(portion), strict=True))
        for _, batch in sorted(numbered.items()):
            assert np.array_equal(batch.tokens[:, 1:], batch.labels[:, :-1])
            found.append(np.concatenate([batch.tokens, batch.labels[:, -1:]], axis=1))
    return np.concatenate(found)


EXPECTED = np.stack([IDS[start : start + T + 1] for start in range(0, 12 * T, T)])


def test_a_stream_in_npy_and_in_megatrons_files_gives_the_same_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", IDS)
    write_indexed_dataset(tmp_path / "text_document", [IDS[:300], IDS[300:301], IDS[301:]])
    for name in ("ids.npy", "text_document", "text_document.bin"):
        source, held_out = open_data(_config(tmp_path / name))
        assert held_out is None
        assert np.array_equal(_rows(source), EXPECTED), name


def test_rows_of_an_array(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", IDS[: 20 * 40].reshape(20, 40))
    source, _ = open_data(_config(tmp_path / "rows.npy"))
    assert np.array_equal(_rows(source, 1), IDS[: 4 * 40].reshape(4, 40)[:, : T + 1])


def test_text_is_bytes_and_files_are_joined(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second " * 30)
    (tmp_path / "a.txt").write_text("first " * 30)
    source, _ = open_data(_config(tmp_path, eos_token_id=10))
    text = ("first " * 30 + "\n" + "second " * 30).encode()
    assert bytes(_rows(source, 1)[0].astype(np.uint8)) == text[: T + 1]
    first_of_second = 180 // T
    assert b"\nsecond" in bytes(_rows(source, 6)[first_of_second].astype(np.uint8))


def test_python_s_own_english_is_always_there() -> None:
    source, _ = open_data(_config("pydoc:topics"))
    first = sorted(pydoc_data.topics.topics.items())[0][1].encode()
    assert bytes(_rows(source, 1)[0].astype(np.uint8)) == first[: T + 1]


def test_ranks_read_what_one_process_would(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", IDS)
    source, _ = open_data(_config(tmp_path / "ids.npy", shuffle=True))
    alone = _rows(source, 20, 1, 4)
    assert np.array_equal(_rows(source, 20, 2, 4), alone)
    assert np.array_equal(_rows(source, 20, 4, 4), alone)


def test_each_epoch_has_every_row_once_in_another_order(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", IDS)
    source, _ = open_data(_config(tmp_path / "ids.npy", shuffle=True, batch_size=1))
    assert source.num_rows == 62
    rows = _rows(source, 124, 1, 1)
    first, second = (set(map(tuple, part)) for part in (rows[:62], rows[62:]))
    assert first == second
    assert not np.array_equal(rows[:62], rows[62:])
    assert (source.epoch(61, 1), source.epoch(62, 1)) == (0, 1)


def test_held_out_rows_are_not_trained_on(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", IDS)
    source, held_out = open_data(_config(tmp_path / "ids.npy", validation_share=0.1, batch_size=1))
    assert held_out is not None
    assert (source.num_rows, held_out.num_rows) == (56, 6)
    trained, kept = _rows(source, 56, 1, 1), _rows(held_out, 6, 1, 1)
    assert not set(map(tuple, trained)) & set(map(tuple, kept))


def test_recorded_batches_in_their_order_dealt_out_to_any_number(tmp_path: Path) -> None:
    for step in range(3):
        for rank in range(2):
            at = tmp_path / f"step_{step}" / f"rank_{rank}"
            at.mkdir(parents=True)
            rows = EXPECTED[4 * step + 2 * rank :][:2]
            np.save(at / "tokens.npy", rows[:, :-1])
            np.save(at / "labels.npy", rows[:, 1:])
    source, _ = open_data(_config(tmp_path))
    for dp in (1, 2):
        assert np.array_equal(_rows(source, 3, dp), EXPECTED)
    with pytest.raises(
        ConfigError, match=r"2 microbatches in step 0; 1 dp ranks .* set micro_batch_num to 2"
    ):
        source.read(Portion(step=0, dp_rank=0, dp_size=1, num_microbatches=3))
    with pytest.raises(ConfigError, match="holds 3 steps: set training_iters to no more"):
        source.read(Portion(step=3, dp_rank=0, dp_size=1, num_microbatches=2))


def test_end_of_document_tokens_may_not_count(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", IDS % 5)
    source, _ = open_data(_config(tmp_path / "ids.npy", eod_mask_loss=True, eos_token_id=3))
    batch = source.read(Portion(step=0, dp_rank=0, dp_size=1, num_microbatches=1))[0]
    assert np.array_equal(batch.loss_mask == 0, batch.tokens == 3)


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (IDS + 1, "token id 257 is not in a vocabulary of 257"),
        (IDS.astype(np.float32), r"float32 \(1000,\); expected integers"),
        (IDS[:10], r"has not one row of seq_length 16 \+ 1 tokens"),
        (IDS.reshape(100, 10), "rows of 10 tokens; seq_length 16 needs one more"),
    ],
)
def test_what_cannot_be_read_says_why(ids: Any, said: str, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", ids)
    with pytest.raises(ConfigError, match=said):
        _rows(open_data(_config(tmp_path / "ids.npy"))[0], 30)


def test_nothing_there_names_a_trial(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pydoc:topics is English text"):
        open_data(_config(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"holds no data: text \(\.txt"):
        open_data(_config(tmp_path))
