"""Opens ``dataset_dir``, of any format."""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path

from trueup.batches.indexed_dataset import files_of, prefix_of
from trueup.batches.npy_folder import is_npy_folder
from trueup.errors import ConfigError
from trueup_gpt.config import Config
from trueup_gpt.data.recorded import RecordedSource
from trueup_gpt.data.rows import rows_from_indexed, rows_from_npy, rows_from_text, text_of
from trueup_gpt.data.source import RowSource, Source, TokenRows

PYDOC = "pydoc:topics"
"""Python's own documentation, 0.5 MB of English that is always there"""


def open_data(config: Config) -> tuple[Source, Source | None]:
    """The training data, and the validation data where there is some.

    Raises:
        ConfigError: nothing there, or nothing that is read.
        TraceError: a file is damaged.
    """
    dataset = config.dataset
    held_out = None
    if dataset.validation_dir is not None:
        held_out = _open(dataset.validation_dir, config)
    path = dataset.dataset_dir
    if _is_recording(path):
        return RecordedSource(path, config), held_out
    rows = _rows(path, config)
    kept = int(len(rows) * dataset.validation_share)
    if kept and held_out is None:
        held_out = RowSource(rows, config, first=len(rows) - kept, count=kept, name=str(path))
    return RowSource(rows, config, count=len(rows) - kept, name=str(path)), held_out


def _open(path: Path, config: Config) -> Source:
    if _is_recording(path):
        return RecordedSource(path, config)
    return RowSource(_rows(path, config), config, name=str(path))


def _is_recording(path: Path) -> bool:
    return path.is_dir() and (is_npy_folder(path) or (path / "manifest.json").exists())


def _rows(path: Path, config: Config) -> TokenRows:
    length = config.model.seq_length
    if str(path) == PYDOC:
        text = "\n".join(value for _, value in sorted(pydoc_data.topics.topics.items()))
        return rows_from_text(text.encode(), length)
    prefix = prefix_of(path)
    if files_of(prefix)[1].exists():
        return rows_from_indexed(prefix, length)
    if not path.exists():
        raise ConfigError(
            f"dataset_dir {path} is not there; for a trial {PYDOC} is English text that comes with Python"
        )
    if path.suffix == ".npy":
        return rows_from_npy(path, length)
    inside = sorted([*path.glob("*.npy"), *path.glob("*.idx")]) if path.is_dir() else []
    if len(inside) > 1:
        raise ConfigError(f"{path} holds {len(inside)} datasets; name one of them, such as {inside[0]}")
    if inside:
        return _rows(inside[0], config)
    return rows_from_text(text_of(path, config.dataset.eos_token_id), length)
