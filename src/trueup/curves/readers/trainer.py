"""The Hugging Face Trainer: ``trainer_state.json``, and the dictionaries it prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from trueup.curves.columns import GRAD_NORM, LOSS
from trueup.curves.readers.lines import LineFormat
from trueup.curves.readers.protocol import LogRows
from trueup.curves.readers.scanning import Key
from trueup.curves.readers.tables import frame_from_objects
from trueup.errors import TraceError


class TrainerState:
    """``trainer_state.json``: ``log_history``, each entry the mean loss since the one before."""

    name = "trainer_state"
    title = "Hugging Face trainer_state.json"
    appendable = False

    def recognises(self, head: bytes, path: Path) -> bool:
        """Whether it is JSON with a ``log_history``."""
        return head.lstrip()[:1] == b"{" and (b'"log_history"' in head or path.name == "trainer_state.json")

    def read(self, data: bytes, path: Path, chosen: Mapping[str, str]) -> LogRows:
        """The entries that have a training loss; those of evaluation are left out.

        Raises:
            TraceError: it is not whole, or has no log_history.
        """
        try:
            history = json.loads(data)["log_history"]
            entries = [entry for entry in history if isinstance(entry, dict)]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TraceError(f"{path} is no whole trainer_state.json: {error}") from error
        rows = frame_from_objects(entries, chosen, path)
        return LogRows(frame=rows.frame, units=rows.units, notes=rows.notes, loss_is_mean=True)


CONSOLE = LineFormat(
    name="trainer_console",
    title="Hugging Face Trainer, console",
    marker="'loss': ",
    keys={
        LOSS: (Key("'loss': "),),
        GRAD_NORM: (Key("'grad_norm': "),),
        "learning_rate": (Key("'learning_rate': "),),
    },
    numbered=True,
    appendable=False,
    loss_is_mean=True,
)
