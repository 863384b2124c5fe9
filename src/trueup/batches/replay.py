"""``trueup.ReplayDataset``: recorded batches, given to a program of either framework."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np

from trueup import adapters
from trueup.adapters.replay_dataset import Item
from trueup.adapters.replay_dataset import ReplayDataset as NumpyReplayDataset
from trueup.batches.recorded import LabelForm, RecordedBatches
from trueup.batches.source import LABELS, TOKENS, Arrays, BatchPlace, is_whole
from trueup.capture.frameworks import framework_in_use
from trueup.errors import ConfigError
from trueup.types.arrays import Array

_NUMPY = "numpy"
_ITEMS = ("microbatch", "row")
_RANK_VARIABLES = ("RANK", "RANK_ID")
"""set by torchrun; by msrun and MindSpore's rank tables"""
_COLUMNS = ("loss_mask", "attention_mask", "position_ids")

Columns = Sequence[str] | Mapping[str, str]


class ReplayItems:
    """Microbatches of one rank, or their rows, in the order of the run; read when they are asked for."""

    def __init__(
        self, batches: RecordedBatches, *, rank: int, per: str, columns: Columns | None, dtype: str | None
    ) -> None:
        self._batches, self._per = batches, per
        self._as_tuple = columns is not None and not isinstance(columns, Mapping)
        self._dtype = None if dtype is None else np.dtype(dtype)
        target = batches.of_rank(rank)
        arrays = batches.at(target[0])
        self._columns = _chosen(columns, arrays, batches)
        self.names = tuple(self._columns)
        self._at = [(place, row) for place in target for row in self._rows(place)]
        self._last: tuple[BatchPlace, Arrays] | None = None

    @property
    def places(self) -> list[BatchPlace]:
        """Step, microbatch and rank of each item."""
        return [place for place, _ in self._at]

    def __len__(self) -> int:
        return len(self._at)

    def __getitem__(self, index: int) -> Item:
        place, row = self._at[index]
        arrays = self._read(place)
        missing = [name for name in self._columns.values() if name not in arrays]
        if missing:
            raise ConfigError(
                f"{self._batches.source.path}: {place} has no {', '.join(missing)}, others have"
            )
        found = {
            column: self._cast(name, arrays[name] if row is None else arrays[name][row])
            for column, name in self._columns.items()
        }
        return tuple(found.values()) if self._as_tuple else found

    def _rows(self, place: BatchPlace) -> Sequence[int | None]:
        return [None] if self._per == "microbatch" else range(len(self._batches.at(place)[TOKENS]))

    def _read(self, place: BatchPlace) -> Arrays:
        """Rows of one microbatch follow one another: the last one read is kept."""
        if self._last is None or self._last[0] != place:
            self._last = place, self._batches.at(place)
        return self._last[1]

    def _cast(self, name: str, array: Array) -> Array:
        """A copy that belongs to the item, integers in the dtype that was asked for."""
        if self._dtype is None or not is_whole(array):
            return np.array(array)
        limits = np.iinfo(self._dtype)
        if array.size and not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
            raise ConfigError(
                f"{name} runs from {array.min()} to {array.max()}, which does not fit dtype={self._dtype}"
            )
        return array.astype(self._dtype)


def ReplayDataset(
    source: Path | str | RecordedBatches,
    *,
    framework: str | None = None,
    rank: int | None = None,
    per: str = "microbatch",
    labels: LabelForm | str = LabelForm.SHIFTED,
    columns: Columns | None = None,
    dtype: str | None = None,
    num_microbatches: int | None = None,
    seq_length: int | None = None,
    micro_batch_size: int | None = None,
    num_ranks: int | None = None,
) -> NumpyReplayDataset:
    """Recorded batches as a data set of one rank: same order, same microbatches, labels shifted once.

    An item is one microbatch, a dict with ``tokens`` and ``labels``, (B, T) integers, and what else was
    recorded. For torch it is a ``torch.utils.data.Dataset`` (``DataLoader(dataset, batch_size=None)``), for
    MindSpore an iterable of tensors with ``generator_dataset()``, for numpy a plain sequence. ``places``
    tells the step, microbatch and rank of each item.

    Args:
        source: a trace, a folder of ``step_N/rank_R``, an indexed dataset, or one opened already.
        framework: ``torch``, ``mindspore`` or ``numpy``; default: the one the program has imported, numpy
            where it has imported none.
        rank: whose batches; default: that of RANK or RANK_ID, 0 where neither is set. Ranks that share their
            data (tensor, context, pipeline parallel) take the rank of one that was recorded.
        per: ``microbatch``, or ``row`` for a loader that makes the batches: ``tokens`` is then (T,).
        labels: ``shifted``: a loss takes them as they are. ``unshifted``: for models that shift by
            themselves, as Hugging Face's do; the last label of a row then has no place and is left out.
            ``recorded``: as they were.
        columns: recorded names, for a tuple in that order, such as ``("tokens", "labels")``; or the program's
            names for them, such as ``{"input_ids": "tokens", "labels": "labels"}``. Default: all, as a dict.
        dtype: of integers, such as ``int32``; default: as recorded. Indexed datasets give int64.
        num_microbatches, seq_length, micro_batch_size, num_ranks: as ``RecordedBatches.open`` has them.

    Raises:
        ConfigError: an argument is wrong, the rank or a column was not recorded, or an id does not fit.
        TraceError: nothing there, damaged, or no values of batches in it.

    Example:
        >>> loader = DataLoader(trueup.ReplayDataset("batches"), batch_size=None)      # doctest: +SKIP
    """
    _check(framework, per, dtype)
    counts = {
        "num_microbatches": num_microbatches,
        "seq_length": seq_length,
        "micro_batch_size": micro_batch_size,
        "num_ranks": num_ranks,
    }
    if not isinstance(source, RecordedBatches):
        source = RecordedBatches.open(source, labels=labels, **counts)
    elif any(count is not None for count in counts.values()) or labels != LabelForm.SHIFTED:
        raise ConfigError(
            "labels and counts are chosen where the recording is opened: RecordedBatches.open(...)"
        )
    items = ReplayItems(
        source, rank=_own_rank() if rank is None else rank, per=per, columns=columns, dtype=dtype
    )
    return _kind(framework)(items)


def _kind(framework: str | None) -> type[NumpyReplayDataset]:
    if framework is None:
        imported = any(name in sys.modules for name in adapters.FRAMEWORKS)
        framework = framework_in_use() if imported else _NUMPY
    if framework == _NUMPY:
        return NumpyReplayDataset
    module = import_module(".replay_dataset", adapters.load(framework).__name__)
    kind: type[NumpyReplayDataset] = module.ReplayDataset
    return kind


def _check(framework: str | None, per: str, dtype: str | None) -> None:
    known = (*adapters.FRAMEWORKS, _NUMPY)
    if framework is not None and framework not in known:
        raise ConfigError(f"framework={framework!r}: expected one of {', '.join(known)}")
    if per not in _ITEMS:
        raise ConfigError(f"per={per!r}: expected one of {', '.join(_ITEMS)}")
    try:
        whole = dtype is None or np.issubdtype(np.dtype(dtype), np.integer)
    except TypeError:
        whole = False
    if not whole:
        raise ConfigError(f"dtype={dtype!r}: expected the name of an integer type, such as int32")


def _own_rank() -> int:
    for name in _RANK_VARIABLES:
        text = os.environ.get(name)
        if text is not None:
            if not text.isdigit():
                raise ConfigError(f"{name}={text!r} is no rank; give rank=...")
            return int(text)
    return 0


def _chosen(columns: Columns | None, arrays: Arrays, batches: RecordedBatches) -> dict[str, str]:
    """The program's name -> the recorded one."""
    if columns is None:
        first = [name for name in (TOKENS, LABELS, *_COLUMNS) if name in arrays]
        return {name: name for name in [*first, *sorted(set(arrays) - set(first))]}
    if isinstance(columns, str) or not columns:
        raise ConfigError(f"columns={columns!r}: expected a list of names, or a dict")
    chosen = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    for name in chosen.values():
        if name not in arrays:
            raise ConfigError(
                f"{batches.source.path} holds no {name!r}; it holds {', '.join(sorted(arrays))}"
            )
    return chosen
