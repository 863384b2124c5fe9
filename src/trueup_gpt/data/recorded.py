"""Batches that another run recorded, in its order."""

from __future__ import annotations

from pathlib import Path

from trueup.batches.recorded import RecordedBatches
from trueup.errors import ConfigError
from trueup.types.arrays import Array as Ids
from trueup_gpt.config import Config
from trueup_gpt.data.batch import Batch
from trueup_gpt.data.source import Portion


class RecordedSource:
    """Step n is the n-th recorded one; the microbatches of its ranks are dealt out to ours."""

    def __init__(self, path: Path, config: Config) -> None:
        self._batches, self._config = RecordedBatches.open(path), config
        self._steps = list(self._batches.steps)
        self._places = {
            step: sorted(
                (place for place in self._batches.places if place.step == step),
                key=lambda place: (place.microbatch, place.rank),
            )
            for step in self._steps
        }
        self.num_rows = len(self._batches.places) * config.dataset.batch_size

    def read(self, portion: Portion) -> list[Batch[Ids]]:
        """See ``Source``.

        Raises:
            ConfigError: the step was not recorded, with another number of microbatches, or without labels.
        """
        path = self._batches.source.path
        if portion.step >= len(self._steps):
            raise ConfigError(f"{path} holds {len(self._steps)} steps: set training_iters to no more")
        step = self._steps[portion.step]
        places, wanted = self._places[step], portion.num_microbatches * portion.dp_size
        if len(places) != wanted:
            raise ConfigError(
                f"{path} has {len(places)} microbatches in step {step}; {portion.dp_size} dp ranks "
                f"with micro_batch_num {portion.num_microbatches} read {wanted}: set micro_batch_num to "
                f"{max(1, len(places) // portion.dp_size)}"
            )
        found = []
        for number in portion.numbers():
            arrays = self._batches.at(places[number])
            if "labels" not in arrays:
                raise ConfigError(f"{path} holds no labels: capture with --preset diagnose")
            found.append(
                Batch.from_arrays(arrays, self._config.model.vocab_size, f"{path}, {places[number]}")
            )
        return found

    def epoch(self, step: int, rows_of_step: int) -> int:
        """Always the first: a recording is read once."""
        return 0
