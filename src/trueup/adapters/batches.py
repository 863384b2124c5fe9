"""Another batch in the place of the program's own, between its data loader and its loop.

Batches are numbered from 0 as loaders give them to training. Those read while the model is in evaluation
mode or gradients are off are left alone, and so are those of a loader whose batch went into a forward without
gradients: all but its first, which comes before that can be known. A program that reads its data otherwise
gets its own batches; the trace says so.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar
from weakref import WeakKeyDictionary

BatchT = TypeVar("BatchT")


class BatchChange:
    """One batch given every time, or one left out."""

    def __init__(
        self, *, only: int | None, skip: int | None, is_evaluating: Callable[[], bool], source: str
    ) -> None:
        """``is_evaluating``: whether a batch asked for now is not for training; ``source`` names loaders."""
        self._source_word = source
        self.only = only
        self.skip = skip
        self._is_evaluating = is_evaluating
        self.num_read = 0
        """training batches that loaders have made so far"""
        self.num_given = 0
        self.skipped = False
        self.beyond_an_epoch = False
        self._kept: object = None
        self._kept_from: ChangedBatches | None = None
        self._roles: WeakKeyDictionary[object, str] = WeakKeyDictionary()
        self._awaiting: ChangedBatches | None = None
        """source of the last batch, until its use is known"""

    def used(self, *, training: bool) -> None:
        """The batch last given goes into a forward."""
        source, self._awaiting = self._awaiting, None
        if source is None or source.loader in self._roles:
            return
        self._roles[source.loader] = "training" if training else "evaluation"
        if training:
            source.drawn.clear()
            return
        self.num_read -= source.num_read
        self.num_given -= source.num_given
        self.skipped &= not source.skipped
        if self._kept_from is source:
            self._kept, self._kept_from = None, None
        source.give_back()

    def next(self, source: ChangedBatches) -> object:
        """The batch the program gets; StopIteration where its own loader ends."""
        if source.pending:
            return source.pending.popleft()
        evaluating = self._is_evaluating()
        if evaluating or self._roles.get(source.loader) == "evaluation":
            return next(source.inner)
        self._awaiting = source
        if self.skip is not None:
            return self._next_but_one(source)
        return self._the_one(source)

    def _next_but_one(self, source: ChangedBatches) -> object:
        if self.num_read == self.skip:
            self._read(source)
            self.skipped = source.skipped = True
        return self._read(source)

    def _the_one(self, source: ChangedBatches) -> object:
        if self._kept_from is None and not self._look_ahead(source):
            self.beyond_an_epoch = True
            if not source.pending:
                raise StopIteration
            return source.pending.popleft()
        if source.ahead:
            source.ahead -= 1
        else:
            self._read(source)
        self.num_given += 1
        source.num_given += 1
        return _own_copy(self._kept)

    def _look_ahead(self, source: ChangedBatches) -> bool:
        """Read up to the wanted batch; an epoch that ends before it runs as it is."""
        while True:
            number = self.num_read
            try:
                batch = self._read(source)
            except StopIteration:
                source.pending.extend(source.drawn)
                source.drawn.clear()
                source.ahead = 0
                return False
            source.drawn.append(batch)
            source.ahead += 1
            if number == self.only:
                self._kept, self._kept_from = batch, source
                return True

    def _read(self, source: ChangedBatches) -> object:
        batch = next(source.inner)
        self.num_read += 1
        source.num_read += 1
        return batch

    def facts(self) -> dict[str, object]:
        """What was changed so far."""
        if self.only is not None:
            late = {"epochs_before_as_they_are": True} if self.beyond_an_epoch else {}
            return {"only_batch": {"batch": self.only, "given": self.num_given, **late}}
        return {"skip_batch": {"batch": self.skip, "skipped": self.skipped}}

    def unkept(self) -> list[str]:
        """What was asked for and did not happen."""
        what = f"--only-batch {self.only}" if self.only is not None else f"--skip-batch {self.skip}"
        if self.num_given or self.skipped:
            return []
        if not self.num_read:
            return [f"{what} had no effect: no {self._source_word} gave a batch to training in this program"]
        return [f"{what} had no effect: the run read {self.num_read} batches, numbered from 0"]


def _own_copy(batch: BatchT) -> BatchT:
    """A copy the program may write to, unless the batch is of a kind that cannot be copied."""
    try:
        return copy.deepcopy(batch)
    except Exception:
        return batch


class ChangedBatches:
    """Stands for the iterator of one loader; what else it can do, the iterator itself does."""

    def __init__(self, change: BatchChange, loader: object, inner: Iterator[object]) -> None:
        self.change = change
        self.loader = loader
        self.inner = inner
        self.num_read = self.num_given = 0
        self.skipped = False
        self.ahead = 0
        """batches read before their turn"""
        self.drawn: deque[object] = deque()
        """those batches, until it is known that they are training's"""
        self.pending: deque[object] = deque()
        """batches of the program's own that are still to be given"""

    def give_back(self) -> None:
        """The batches are evaluation's: give what was read before its turn, the first has been replaced."""
        self.pending.extend(list(self.drawn)[1:])
        self.drawn.clear()
        self.ahead = 0

    def __iter__(self) -> ChangedBatches:
        return self

    def __next__(self) -> object:
        return self.change.next(self)

    def __len__(self) -> int:
        return len(self.inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)
