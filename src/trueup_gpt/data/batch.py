"""One microbatch, as the model takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Generic, TypeVar

import numpy as np

from trueup.errors import ConfigError
from trueup.types.arrays import Array as Ids
from trueup_gpt.parallel.layout import TOKENS
from trueup_gpt.parallel.mesh import Mesh

TensorT = TypeVar("TensorT")
OtherT = TypeVar("OtherT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Generic[TensorT]):
    """Token ids with their labels, arrays or a framework's tensors; all (B, T)."""

    tokens: TensorT
    labels: TensorT
    loss_mask: TensorT
    """weight of each token in the loss, float32"""
    attention_mask: TensorT | None = None
    """true where a token is real"""
    positions: TensorT | None = None
    """of the tokens in their row; None: 0 to T - 1"""

    @staticmethod
    def from_arrays(arrays: dict[str, Ids], vocab_size: int, where: str) -> Batch[Ids]:
        """Arrays ``tokens`` and ``labels``, and where they are there ``loss_mask`` and ``attention_mask``.

        A label below 0 does not count in the loss.

        Raises:
            ConfigError: an id is not in the vocabulary, or a mask is not (B, T).
        """
        tokens, labels = arrays["tokens"].astype(np.int64), arrays["labels"].astype(np.int64)
        counted = labels >= 0
        for name, ids in (("token", tokens), ("label", labels[counted])):
            if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
                wrong = int(ids.max()) if int(ids.max()) >= vocab_size else int(ids.min())
                raise ConfigError(f"{where}: {name} id {wrong} is not in a vocabulary of {vocab_size}")
        mask = arrays.get("loss_mask", np.ones(tokens.shape)) * counted
        attention = arrays.get("attention_mask")
        for name, array in (("loss_mask", mask), ("attention_mask", attention)):
            if array is not None and array.shape != tokens.shape:
                raise ConfigError(
                    f"{where}: {name} is {array.shape}; expected {tokens.shape}, that of tokens"
                )
        return Batch(
            tokens=tokens,
            labels=np.where(counted, labels, 0),
            loss_mask=mask.astype(np.float32),
            attention_mask=None if attention is None else attention.astype(bool),
        )

    def map(self, function: Callable[[TensorT], OtherT]) -> Batch[OtherT]:
        """The function of every tensor that is there."""
        given: dict[str, TensorT | None] = {one.name: getattr(self, one.name) for one in fields(self)}
        return Batch(**{name: function(x) for name, x in given.items() if x is not None})

    def named(self) -> dict[str, TensorT]:
        """What is there, by the names of the model's arguments, without the tokens."""
        given = {
            "labels_BT": self.labels,
            "loss_mask_BT": self.loss_mask,
            "attention_mask_BT": self.attention_mask,
            "positions_BT": self.positions,
        }
        return {name: tensor for name, tensor in given.items() if tensor is not None}


def sequence_part(batch: Batch[Ids], mesh: Mesh) -> Batch[Ids]:
    """The tokens of one context-parallel rank: the i-th and the i-th last of 2 cp parts, for equal work."""
    cp = mesh.size("cp")
    if cp == 1:
        return batch
    segments = TOKENS.segments(batch.tokens.shape[1], cp, mesh.coordinate("cp"))
    own = np.concatenate([np.arange(start, start + size) for start, size in segments])
    cut = batch.map(lambda x: np.take(x, own, axis=1))
    return cut if cut.positions is not None else replace(cut, positions=own[None])
