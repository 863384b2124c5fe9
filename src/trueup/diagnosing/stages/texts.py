"""Rows of a batch as text, input over label, where the tokenizer is at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trueup.diagnosing.stages.batch import StepBatch
from trueup.errors import ConfigError
from trueup.types.arrays import Ints

NUM_ROWS = 3
_LONGEST = 240


def texts_shown(target: StepBatch, reference: StepBatch, tokenizer: Path | None) -> list[dict[str, object]]:
    """A few random rows of the first input, decoded on both sides with the labels under them, and whether
    encoding the text again gives the ids back; empty without a tokenizer.

    Raises:
        ConfigError: the folder holds no tokenizer that can be read.
    """
    if tokenizer is None:
        return []
    coder = open_tokenizer(tokenizer)
    names = [name for name in target.ids if name in reference.ids][:1]
    shown = []
    for name in names:
        num_rows = min(len(target.ids[name]), len(reference.ids[name]))
        for row in sorted(np.random.default_rng(0).permutation(num_rows)[:NUM_ROWS].tolist()):
            entry: dict[str, object] = {"where": f"{name}, row {row}"}
            for side, batch in (("target", target), ("reference", reference)):
                entry |= _row(coder, batch, name, row, side)
            shown.append(entry)
    return shown


def _row(coder: Any, batch: StepBatch, name: str, row: int, side: str) -> dict[str, Any]:
    ids = batch.ids[name][row]
    text = coder.decode(ids.tolist())
    again = coder.encode(text, add_special_tokens=False)
    found = {side: text[:_LONGEST], f"{side}_encodes_back": again == ids.tolist()}
    labels = _labels_of_row(batch, name, row)
    if labels is not None:
        live = labels[(labels != batch.ignore_index) & (labels >= 0)]
        found[f"{side}_labels"] = coder.decode(live.tolist())[:_LONGEST]
    return found


def _labels_of_row(batch: StepBatch, name: str, row: int) -> Ints | None:
    """The row's labels, where the labels of its microbatch can be cut into as many rows."""
    microbatch = int(name.split(",")[0].removeprefix("microbatch "))
    labels, rows = batch.labels.get(microbatch), len(batch.ids[name])
    if labels is None or labels.size % rows:
        return None
    found: Ints = labels.reshape(rows, -1)[row]
    return found


def require_folder(folder: Path | None) -> None:
    """Raise where a folder is named that is not there, before anything takes time.

    Raises:
        ConfigError: it is not a folder.
    """
    if folder is not None and not folder.is_dir():
        raise ConfigError(
            f"--tokenizer {folder}: no such folder; expected a local folder with tokenizer.json"
        )


def open_tokenizer(folder: Path) -> Any:
    """A tokenizer of the transformers library, from a local folder and nowhere else."""
    require_folder(folder)
    try:
        from transformers import AutoTokenizer  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise ConfigError("--tokenizer needs the transformers library: pip install transformers") from error
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"--tokenizer {folder}: no tokenizer that can be read: {why}") from error
