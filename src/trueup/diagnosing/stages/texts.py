"""Rows of a batch as text, where the tokenizer is at hand: a fault in data is often plain to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueup.errors import ConfigError

NUM_ROWS = 3
_LONGEST = 240


def texts_shown(
    target: dict[str, NDArray[np.int64]], reference: dict[str, NDArray[np.int64]], tokenizer: Path | None
) -> list[dict[str, Any]]:
    """A few rows decoded on both sides, and whether encoding the text again gives the ids back; empty without
    a tokenizer.

    Raises:
        ConfigError: the folder holds no tokenizer that can be read.
    """
    if tokenizer is None:
        return []
    coder = _open(tokenizer)
    shown = []
    for name in [n for n in target if n in reference][:1]:
        mine, theirs = target[name], reference[name]
        chosen = np.random.default_rng(0).permutation(min(len(mine), len(theirs)))[:NUM_ROWS]
        for row in sorted(int(r) for r in chosen):
            entry = {"where": f"{name}, row {row}"}
            for side, ids in (("target", mine[row]), ("reference", theirs[row])):
                text = coder.decode(ids.tolist())
                again = coder.encode(text, add_special_tokens=False)
                entry |= {side: text[:_LONGEST], f"{side}_encodes_back": again == ids.tolist()}
            shown.append(entry)
    return shown


def _open(folder: Path) -> Any:
    """A tokenizer of the transformers library, from a local folder and nowhere else."""
    if not folder.is_dir():
        raise ConfigError(
            f"--tokenizer {folder}: no such folder; a local folder with tokenizer.json is wanted"
        )
    try:
        from transformers import AutoTokenizer  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise ConfigError("--tokenizer needs the transformers library: pip install transformers") from error
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"--tokenizer {folder}: no tokenizer that can be read: {str(error).splitlines()[0]}"
        ) from error
