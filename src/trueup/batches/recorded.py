"""Recorded batches of any origin, by step and rank, with labels moved by one exactly once."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from pathlib import Path

from trueup.batches.labels import Agreement, agreement, moved, shift_of
from trueup.batches.opening import open_source
from trueup.batches.source import LABELS, LOSS_MASK, TOKENS, Arrays, BatchPlace, BatchSource
from trueup.errors import ConfigError

_LOOKED_AT = 32
"""batches that tell how the labels are moved"""
_FEW = 4
"""labels below which nothing is said of how they are moved"""


class LabelForm(str, Enum):
    """At which position a label stands."""

    SHIFTED = "shifted"
    """``labels[:, i]`` is the token after ``tokens[:, i]``: what a loss takes as it is"""
    UNSHIFTED = "unshifted"
    """``labels[:, i]`` is ``tokens[:, i]``: what Hugging Face's models take, which shift by themselves"""
    RECORDED = "recorded"
    """as it was recorded"""


class RecordedBatches:
    """Batches of a recording, each a dict of numpy arrays.

    ``tokens`` is (B, T) integers. ``labels`` and ``loss_mask``, where recorded, are (B, T) beside them, in
    the form asked for: whether recorded labels are moved already is told from the tokens, and those that are,
    or that stand in no fixed relation to the tokens, are never moved again. Dtypes are the recorded ones.

    Example:
        >>> batches = RecordedBatches.open(Path("batches"))         # doctest: +SKIP
        >>> batches.read(step=0, rank=0)[0]["tokens"].shape         # doctest: +SKIP
        (4, 128)
    """

    def __init__(self, source: BatchSource, *, labels: LabelForm = LabelForm.SHIFTED) -> None:
        self.source = source
        self.form = labels
        self.places = sorted(source.places)
        self._known = frozenset(self.places)

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        labels: LabelForm | str = LabelForm.SHIFTED,
        num_microbatches: int | None = None,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
        num_ranks: int | None = None,
    ) -> RecordedBatches:
        """The recording at ``path``: a trace, a folder of ``step_N/rank_R``, or Megatron's ``.bin``/``.idx``.

        Args:
            path: the trace or folder; of indexed files the prefix, either file, or what trueup exported.
            labels: the form of the labels that are given.
            num_microbatches: of a step, default 1. No effect on what trueup recorded or exported, which says.
            seq_length: tokens T of a row cut out of an indexed dataset; default: one row a sequence.
            micro_batch_size: rows B of a microbatch of an indexed dataset, default 1.
            num_ranks: data-parallel ranks an indexed dataset is dealt out to, default 1.

        Raises:
            ConfigError: an argument is wrong, or has no place with this recording.
            TraceError: nothing there, damaged, or no values of batches in it.
        """
        counts = {
            "num_microbatches": num_microbatches,
            "seq_length": seq_length,
            "micro_batch_size": micro_batch_size,
            "num_ranks": num_ranks,
        }
        for name, value in counts.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name}={value!r}: expected an integer of at least 1")
        try:
            form = LabelForm(labels)
        except ValueError:
            known = ", ".join(one.value for one in LabelForm)
            raise ConfigError(f"labels={labels!r}: expected one of {known}") from None
        return cls(open_source(Path(path), **counts), labels=form)

    @property
    def steps(self) -> dict[int, list[int]]:
        """Steps in order, with the ranks of each."""
        found: dict[int, set[int]] = {}
        for place in self.places:
            found.setdefault(place.step, set()).add(place.rank)
        return {step: sorted(ranks) for step, ranks in found.items()}

    @property
    def ranks(self) -> list[int]:
        """Ranks of any step."""
        return sorted({place.rank for place in self.places})

    def of_rank(self, rank: int) -> list[BatchPlace]:
        """Every microbatch of one rank, in order.

        Raises:
            ConfigError: the rank was not recorded, or not in every step.
        """
        target = [place for place in self.places if place.rank == rank]
        lacking = sorted(set(self.steps) - {place.step for place in target})
        if not target:
            ranks = ", ".join(map(str, self.ranks)) or "none"
            raise ConfigError(
                f"{self.source.path} has no batches of rank {rank}; it has those of {ranks}. Ranks that read "
                "the same data (tensor, context or pipeline parallel) may be given the rank of one of them"
            )
        if lacking:
            raise ConfigError(
                f"{self.source.path} has no batch of rank {rank} in step {lacking[0]}, other ranks have one: "
                "their steps would no longer belong together"
            )
        return target

    @cached_property
    def label_shift(self) -> int | None:
        """By how many places recorded labels are ahead of the tokens: 1 is moved already, 0 not yet.

        None: there are none, or they stand in no fixed relation to the tokens.
        """
        total: Agreement = Counter()
        for place in self.places[:: max(1, len(self.places) // _LOOKED_AT)]:
            arrays = self.source.read(place)
            tokens, labels = arrays[TOKENS], arrays.get(LABELS)
            if labels is not None and labels.shape == tokens.shape:
                total += agreement(labels, labels != self.source.ignore_index, tokens)
        found = shift_of(total)
        if found is None or total[found, "counted"] < _FEW:
            return None
        if found not in (0, 1):
            warnings.warn(
                f"{self.source.path}: its labels are {found} places ahead of the tokens, not one. They are "
                "given as recorded; look for a second shift in the program they were recorded from",
                UserWarning,
                stacklevel=2,
            )
        return found

    def read(self, step: int, rank: int) -> list[Arrays]:
        """The microbatches of one step of one rank, in order.

        Raises:
            ConfigError: no such step or rank.
            TraceError: a file is damaged.
        """
        places = [place for place in self.places if (place.step, place.rank) == (step, rank)]
        if not places:
            there = ", ".join(f"{s} (ranks {', '.join(map(str, r))})" for s, r in self.steps.items())
            raise ConfigError(f"{self.source.path} has no batch of step {step}, rank {rank}; steps: {there}")
        return [self.at(place) for place in places]

    def at(self, place: BatchPlace) -> Arrays:
        """One microbatch; the arrays may be written to.

        Raises:
            ConfigError: nothing was recorded there.
            TraceError: a file is damaged.
        """
        if place not in self._known:
            raise ConfigError(f"{self.source.path} has no batch of {place}")
        arrays = {name: array.copy() for name, array in self.source.read(place).items()}
        places = self._places_to_move()
        for name, fill in ((LABELS, self.source.ignore_index), (LOSS_MASK, 0)):
            if places and name in arrays and arrays[name].shape == arrays[TOKENS].shape:
                arrays[name] = moved(arrays[name], places, fill=fill)
        return arrays

    def _places_to_move(self) -> int:
        wanted = {LabelForm.SHIFTED: 1, LabelForm.UNSHIFTED: 0}.get(self.form)
        found = self.label_shift if wanted is not None else None
        return 0 if wanted is None or found not in (0, 1) else wanted - found

    def __len__(self) -> int:
        """Microbatches of all ranks."""
        return len(self.places)

    def __iter__(self) -> Iterator[tuple[BatchPlace, Arrays]]:
        """Every microbatch with its place, in order."""
        return ((place, self.at(place)) for place in self.places)
