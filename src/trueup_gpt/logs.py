"""What a run says: ``log/rank_N/info.log``, ``error.log``, ``metrics.jsonl``, TensorBoard, terminal."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from trueup import EventWriter
from trueup_gpt.result import StepResult

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def step_line(result: StepResult, *, epoch: int, milliseconds: float, tokens_per_second: float) -> str:
    """The line of one step, in the form of the original with fields of ours at the end.

    Example:
        >>> step_line(result, epoch=0, milliseconds=1403.24, tokens_per_second=5838.0)  # doctest: +SKIP
        'train: Epoch:0, Step:5, Loss: 10.341485, Finite_grads: True, Loss_scale: 4096.0, Learning_rate: ...
    """
    rates = "".join(f"{rate:.6e}," for rate in result.learning_rates)
    return (
        f"train: Epoch:{epoch}, Step:{result.step}, Loss: {result.loss:.6f}, Finite_grads: {result.finite}, "
        f"Loss_scale: {result.loss_scale}, Learning_rate: ({rates}), Time: {milliseconds:.2f} ms, "
        f"Grad_norm: {result.grad_norm:.6f}, Tokens_per_second: {tokens_per_second:.0f}"
    )


class RunLog:
    """One process's log; the first of them also writes metrics and TensorBoard files, and speaks.

    Args:
        output: ``output_dir``.
        rank: of this process.
        speaks: whether it writes to the terminal.
        tensorboard: write its files.
    """

    def __init__(self, output: Path, rank: int, *, speaks: bool = True, tensorboard: bool = True) -> None:
        folder = output / "log" / f"rank_{rank}"
        folder.mkdir(parents=True, exist_ok=True)
        self._logger = logging.Logger(f"trueup_gpt.rank_{rank}")
        self._add(logging.FileHandler(folder / "info.log", encoding="utf-8"), logging.INFO)
        self._add(logging.FileHandler(folder / "error.log", encoding="utf-8"), logging.WARNING)
        self._speaks = speaks and rank == 0
        self.printer: Callable[[str], None] = print
        self.tokens_per_second = 0.0
        self.memory = ""
        """largest so far, as text; empty on a CPU"""
        self._metrics: TextIO | None = None
        self._board: EventWriter | None = None
        if rank == 0:
            self._metrics = (output / "metrics.jsonl").open("a", encoding="utf-8")
            self._board = EventWriter(output / "tensorboard") if tensorboard else None

    def _add(self, handler: logging.Handler, level: int) -> None:
        handler.setLevel(level)
        handler.setFormatter(logging.Formatter(_FORMAT))
        self._logger.addHandler(handler)

    def info(self, message: str) -> None:
        """To the log, and to the terminal."""
        self._logger.info(message)
        if self._speaks:
            self.printer(message)
            sys.stdout.flush()

    def warning(self, message: str) -> None:
        """To both logs, and to the terminal."""
        self._logger.warning(message)
        if self._speaks:
            print(f"warning: {message}", file=sys.stderr, flush=True)

    def error(self, message: str) -> None:
        """To both logs; the command line says it on the terminal."""
        self._logger.error(message)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of a step, in full: one JSON object a line."""
        if self._metrics is not None:
            self._metrics.write(json.dumps({"step": step, **values}) + "\n")
            self._metrics.flush()
        if self._board is not None:
            self._board.add(step, values)

    def close(self) -> None:
        """Write what is held back."""
        for handler in list(self._logger.handlers):
            handler.close()
            self._logger.removeHandler(handler)
        for one in (self._metrics, self._board):
            if one is not None:
                one.close()
