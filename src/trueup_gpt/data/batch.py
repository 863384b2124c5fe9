"""One microbatch, as the model takes it."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from trueup.errors import ConfigError
from trueup.types.arrays import Array as Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Token ids with their labels; all (B, T)."""

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    """weight of each token in the loss, float32"""
    attention_mask: Tensor | None = None
    """true where a token is real"""
    positions: Tensor | None = None
    """of the tokens in their row; None: 0 to T - 1"""

    @classmethod
    def from_arrays(cls, arrays: dict[str, Ids], vocab_size: int, where: str) -> Batch:
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
        return cls(
            tokens=torch.from_numpy(tokens),
            labels=torch.from_numpy(np.where(counted, labels, 0)),
            loss_mask=torch.from_numpy(mask.astype(np.float32)),
            attention_mask=None if attention is None else torch.from_numpy(attention.astype(bool)),
        )

    def to(self, device: torch.device) -> Batch:
        """On that device."""
        if device.type == "cpu":
            return self
        given: dict[str, Tensor | None] = {one.name: getattr(self, one.name) for one in fields(self)}
        moved = {name: x.to(device, non_blocking=True) for name, x in given.items() if x is not None}
        return Batch(**moved)

    def named(self) -> dict[str, Tensor]:
        """What is there, by the names of the model's arguments, without the tokens."""
        given = {
            "labels_BT": self.labels,
            "loss_mask_BT": self.loss_mask,
            "attention_mask_BT": self.attention_mask,
            "positions_BT": self.positions,
        }
        return {name: tensor for name, tensor in given.items() if tensor is not None}
