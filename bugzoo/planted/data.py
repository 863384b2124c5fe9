"""What goes wrong before the model sees a batch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bugzoo.data import END, PAD, Batch
from bugzoo.entries import plant
from bugzoo.trainer import Trainer


def change_batches(trainer: Trainer, change: Callable[[Batch], Batch]) -> None:
    """Put every microbatch through a function."""
    before = trainer.batches
    trainer.batches = lambda step: [change(dict(one)) for one in before(step)]  # type: ignore[method-assign]


def rolled(name: str, by: int) -> Callable[[Batch], Batch]:
    """A function that moves one tensor of a batch along its row."""
    return lambda given: {**given, name: given[name].roll(by, dims=1)}


@plant("loss-mask-shifted")
def loss_mask_shifted(trainer: Trainer) -> None:
    """The mask belongs to inputs, not to labels."""
    change_batches(trainer, rolled("mask", 1))


@plant("labels-shifted-twice")
def labels_shifted_twice(trainer: Trainer) -> None:
    """The data set shifts, and the collator too."""
    change_batches(trainer, rolled("labels", -1))


@plant("labels-not-shifted")
def labels_not_shifted(trainer: Trainer) -> None:
    """Nobody shifts: the model learns to copy."""
    change_batches(trainer, lambda given: {**given, "labels": given["ids"]})


@plant("same-shard")
def same_shard(trainer: Trainer) -> None:
    """The sampler does not know its rank."""
    trainer.shard = lambda: 0  # type: ignore[method-assign]


@plant("positions-not-reset")
def positions_not_reset(trainer: Trainer) -> None:
    """Packed documents count their positions on."""

    def run_on(given: Batch) -> Batch:
        positions = torch.arange(given["ids"].shape[1]).expand_as(given["ids"]).contiguous()
        return {**given, "positions": positions}

    change_batches(trainer, run_on)


@plant("rows-reordered")
def rows_reordered(trainer: Trainer) -> None:
    """Another seed of the shuffle, so that batches hold other rows."""
    before = trainer.batches
    trainer.batches = lambda step: before(step + 17)  # type: ignore[method-assign]


@plant("first-batch-skipped")
def first_batch_skipped(trainer: Trainer) -> None:
    """A batch read to look at its shape, and thrown away."""
    trainer.data_step += 1


@plant("end-dropped")
def end_dropped(trainer: Trainer) -> None:
    """The tokenizer adds no end of document."""

    def drop(given: Batch) -> Batch:
        without = torch.where(given["labels"] == END, torch.full_like(given["labels"], PAD), given["labels"])
        return {**given, "labels": without}

    change_batches(trainer, drop)


@plant("padding-counted")
def padding_counted(trainer: Trainer) -> None:
    """Padding is not told from text, and joins the loss."""
    change_batches(trainer, lambda given: {**given, "mask": torch.ones_like(given["mask"])})


@plant("batch-stuck")
def batch_stuck(trainer: Trainer) -> None:
    """An iterator made anew every step gives the first batch for ever."""
    before = trainer.batches
    trainer.batches = lambda step: before(0)  # type: ignore[method-assign]


@plant("ids-off-by-one")
def ids_off_by_one(trainer: Trainer) -> None:
    """A vocabulary with one more special token in front."""

    def moved(given: Batch) -> Batch:
        return {**given, "ids": (given["ids"] + 1).clamp(max=trainer.base.model.vocab_size - 1)}

    change_batches(trainer, moved)


@plant("documents-merged")
def documents_merged(trainer: Trainer) -> None:
    """The collator gives all documents of a row one number."""
    change_batches(trainer, lambda given: {**given, "documents": torch.ones_like(given["documents"])})
