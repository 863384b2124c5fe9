"""What runs the microbatches of a step, as both halves have it, and the shapes between pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, SupportsFloat, TypeVar

from trueup.errors import ConfigError
from trueup.types.arrays import Array
from trueup_gpt.config import Config
from trueup_gpt.data import Batch
from trueup_gpt.parallel.mesh import Mesh

LossT_co = TypeVar("LossT_co", bound=SupportsFloat, covariant=True)


class Runner(Protocol[LossT_co]):
    """Forward and backward of all microbatches of a step."""

    def run(
        self, batches: Sequence[Batch[Array]], weights: Sequence[float], *, backward: bool
    ) -> Sequence[LossT_co]:
        """Losses of the microbatches, where this process has the last stage; gradients accumulate.

        Args:
            batches: the microbatches.
            weights: what each loss is multiplied by in backward.
            backward: false: losses alone.
        """


def tokens_shape(config: Config, mesh: Mesh) -> tuple[int, int]:
    """Of the token ids of a microbatch in this process: rows, tokens."""
    return config.dataset.batch_size, config.model.seq_length // mesh.size("cp")


def stream_shape(config: Config, mesh: Mesh) -> tuple[int, int, int]:
    """Of what one pipeline stage sends to the next."""
    rows, length = tokens_shape(config, mesh)
    if config.parallel.sequence_parallel:
        length //= mesh.size("tp")
    first, second = (length, rows) if config.tokens_dim == 0 else (rows, length)
    return first, second, config.model.hidden_size


def check_shape(given: tuple[int, ...], planned: tuple[int, ...]) -> None:
    """Whether a microbatch's tokens have the shape that a pipeline was made for.

    Raises:
        ConfigError: another one would meet buffers of the one that was told.
    """
    if given != planned:
        raise ConfigError(
            f"a microbatch of {given} tokens in a pipeline that was made for "
            f"{planned}: set batch_size and seq_length to those of the data"
        )
