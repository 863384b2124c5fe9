"""What every kind of data gives: the microbatches of a step, for one data-parallel rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from trueup.errors import ConfigError
from trueup.types.arrays import Array as Ids
from trueup_gpt.config import Config
from trueup_gpt.data.batch import Batch
from trueup_gpt.initial import seed_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Which microbatches of a step to read."""

    step: int
    dp_rank: int
    dp_size: int
    num_microbatches: int
    """of one rank"""

    def numbers(self) -> list[int]:
        """Their numbers among all ranks': microbatch m of rank d is m * dp_size + d."""
        return [m * self.dp_size + self.dp_rank for m in range(self.num_microbatches)]


class Source(Protocol):
    """Data for a run."""

    @property
    def num_rows(self) -> int:
        """Rows of one epoch."""

    def read(self, portion: Portion) -> list[Batch[Ids]]:
        """The microbatches of one rank in one step: they depend on nothing but what is asked for."""

    def epoch(self, step: int, rows_of_step: int) -> int:
        """The epoch in which a step begins."""


class TokenRows(Protocol):
    """Rows of T + 1 token ids."""

    def __len__(self) -> int:
        """How many."""

    def __getitem__(self, number: int) -> Ids:
        """Ids (T + 1,)."""


class RowSource:
    """Rows in their order, or in another for each epoch; after the last comes the first of the next epoch."""

    def __init__(
        self, rows: TokenRows, config: Config, *, first: int = 0, count: int | None = None, name: str = ""
    ) -> None:
        self._rows, self._config, self._first, self._name = rows, config, first, name
        self.num_rows = len(rows) - first if count is None else count
        if self.num_rows < 1:
            raise ConfigError(f"{name} has not one row of seq_length {config.model.seq_length} + 1 tokens")
        self._order: tuple[int, Ids] = -1, np.zeros(0, np.int64)

    def read(self, portion: Portion) -> list[Batch[Ids]]:
        """See ``Source``."""
        size = self._config.dataset.batch_size
        start = portion.step * size * portion.num_microbatches * portion.dp_size
        return [self._batch(start + number * size, size) for number in portion.numbers()]

    def epoch(self, step: int, rows_of_step: int) -> int:
        """See ``Source``."""
        return step * rows_of_step // self.num_rows

    def _batch(self, start: int, size: int) -> Batch[Ids]:
        ids = np.stack([self._row(start + number) for number in range(size)])
        arrays = {"tokens": ids[:, :-1], "labels": ids[:, 1:]}
        if self._config.dataset.eod_mask_loss:
            arrays["loss_mask"] = arrays["tokens"] != self._config.dataset.eos_token_id
        return Batch.from_arrays(arrays, self._config.model.vocab_size, self._name)

    def _row(self, number: int) -> Ids:
        epoch, place = divmod(number, self.num_rows)
        if self._config.dataset.shuffle:
            if self._order[0] != epoch:
                self._order = epoch, self._shuffled(epoch)
            place = int(self._order[1][place])
        return self._rows[self._first + place]

    def _shuffled(self, epoch: int) -> Ids:
        seed = seed_of(self._config.training.seed, "rows", epoch)
        return np.random.default_rng(seed).permutation(self.num_rows)
