"""The dataset section of a MindFormers configuration for a folder of recorded batches."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

from trueup.errors import ConfigError

FILE = "mindformers.yaml"

_HEAD = """\
# The dataset section of a MindFormers configuration, for the batches in this folder. NumpyDataloader reads
# step_N/rank_R/tokens.npy and labels.npy in the order of N; register it in mindformers/dataset as MindSpore's
# guide to large-model accuracy shows.
"""
_SHIFTED = """\
# The labels are the next tokens already: the model must not cut input_ids or labels by one position again (in
# llama.py, take tokens = input_ids and leave labels as they are).
"""
_SECTION = """\
train_dataset: &train_dataset
  data_loader:
    dataset_dir: {folder}
    shuffle: False
  input_columns: {columns}
  batch_size: {batch_size}  # rows of a microbatch; runner_config.batch_size, where set, must be the same
  num_parallel_workers: 1
  python_multiprocessing: False
  drop_remainder: True
  repeat: 1
train_dataset_task:
  type: NumpyDataloader
  dataset_config: *train_dataset
"""


def dataset_yaml(
    folder: Path,
    *,
    batch_size: int,
    columns: Sequence[str] = ("input_ids", "labels"),
    note: str | None = None,
) -> str:
    """The section as text; ``note`` is a comment above it.

    Example:
        >>> print(dataset_yaml(Path("/data/batches"), batch_size=4))      # doctest: +SKIP
        train_dataset: &train_dataset
        ...

    Raises:
        ConfigError: the batch size is no whole number from 1 on.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size={batch_size}: expected an integer of at least 1")
    comments = _HEAD + (_SHIFTED if "labels" in columns else "")
    if note is not None:
        comments += "".join(f"# {line}\n" for line in textwrap.wrap(note, 108))
    listed = json.dumps(list(columns))
    where = json.dumps(str(folder), ensure_ascii=False)
    return comments + _SECTION.format(folder=where, columns=listed, batch_size=batch_size)
