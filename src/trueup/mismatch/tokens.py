"""Every sampled token of a run with its two log-probs, flat: token after token, sequence after sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from trueup.types.arrays import Bools, Floats, Ints

_Number = TypeVar("_Number", np.int64, np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """The tokens that count: those of a mask. All arrays have one entry a token.

    Sampled tokens are conditioned on what came before in their sequence, so that of two log-probs of one
    token the difference is one of models, not of data.
    """

    rollout: Floats
    """natural log-prob by the inference engine that sampled the token"""
    training: Floats
    """by the trainer, before the update"""
    equal: Bools
    """bit-identical as stored"""
    sequence: Ints
    """number of its sequence, ascending"""
    position: Ints
    """within the response"""
    step: Ints
    """training step; 0 where the files do not say"""
    ids: Ints | None = None
    """token ids"""
    noise: Floats | None = None
    """by a benign variant of the trainer's forward: the rollout's dtype, another batch or packing"""
    num_empty: tuple[tuple[int, int], ...] = ()
    """step -> sequences without a token that counts, which verl's means over rows include"""

    @cached_property
    def log_ratio(self) -> Floats:
        """log(training / rollout), per token; NaN where a side is not finite."""
        with np.errstate(invalid="ignore"):
            difference = self.training - self.rollout
        return np.where(np.isfinite(difference), difference, np.nan)

    @cached_property
    def starts(self) -> Ints:
        """The first token of each sequence."""
        return np.flatnonzero(np.diff(self.sequence, prepend=-1)).astype(np.int64)

    @cached_property
    def lengths(self) -> Ints:
        """Tokens of each sequence."""
        return np.diff(self.starts, append=len(self.sequence)).astype(np.int64)

    @property
    def steps(self) -> list[int]:
        """Steps, ascending."""
        return [int(step) for step in np.unique(self.step)]

    def of_step(self, step: int) -> Tokens:
        """The tokens of one step."""
        part = self.where(self.step == step)
        return replace(part, num_empty=tuple(one for one in self.num_empty if one[0] == step))

    def where(self, keep: Bools) -> Tokens:
        """Some of the tokens."""
        return Tokens(
            rollout=self.rollout[keep],
            training=self.training[keep],
            equal=self.equal[keep],
            sequence=self.sequence[keep],
            position=self.position[keep],
            step=self.step[keep],
            ids=None if self.ids is None else self.ids[keep],
            noise=None if self.noise is None else self.noise[keep],
        )

    def by_sequence(self, values: Floats) -> Floats:
        """Sums of a value over the tokens of each sequence."""
        return np.add.reduceat(values, self.starts) if len(values) else values


def joined(batches: Sequence[Tokens]) -> Tokens:
    """Batches as one, in order; ids and noise where every batch has them."""
    sequences = [0, *np.cumsum([len(batch.starts) for batch in batches]).tolist()]
    return Tokens(
        rollout=np.concatenate([batch.rollout for batch in batches]),
        training=np.concatenate([batch.training for batch in batches]),
        equal=np.concatenate([batch.equal for batch in batches]),
        sequence=np.concatenate(
            [
                before + np.repeat(np.arange(len(batch.starts)), batch.lengths)
                for before, batch in zip(sequences[:-1], batches, strict=True)
            ]
        ).astype(np.int64),
        position=np.concatenate([batch.position for batch in batches]),
        step=np.concatenate([batch.step for batch in batches]),
        ids=_all([batch.ids for batch in batches]),
        noise=_all([batch.noise for batch in batches]),
        num_empty=tuple(one for batch in batches for one in batch.num_empty),
    )


def _all(arrays: Sequence[NDArray[_Number] | None]) -> NDArray[_Number] | None:
    known = [one for one in arrays if one is not None]
    return np.concatenate(known) if len(known) == len(arrays) else None
