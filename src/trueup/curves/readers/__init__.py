"""Readers of training logs: one small module a format, told apart by what a file holds."""

from __future__ import annotations

from pathlib import Path

from trueup.curves.readers import epoch_step, loop, megatron, mindformers, nanotron, torchtitan, verl
from trueup.curves.readers.protocol import LogRows, Reader
from trueup.curves.readers.tables import Csv, JsonLines, JsonList, Parquet
from trueup.curves.readers.tensorboard import EventFile
from trueup.curves.readers.trainer import CONSOLE, TrainerState
from trueup.curves.readers.words import NamedNumbers

READERS: tuple[Reader, ...] = (
    EventFile(),
    Parquet(),
    megatron.FORMAT,
    mindformers.FORMAT,
    epoch_step.FORMAT,
    nanotron.FORMAT,
    verl.FORMAT,
    torchtitan.FORMAT,
    TrainerState(),
    JsonLines(),
    Csv(),
    JsonList(),
    CONSOLE,
    loop.NANOGPT,
    loop.STEPS,
    NamedNumbers(),
)
"""In the order they are asked: what is surest to recognise first."""


def reader_of(head: bytes, path: Path) -> Reader | None:
    """The reader that knows a file which begins with ``head``."""
    return next((reader for reader in READERS if reader.recognises(head, path)), None)


__all__ = ["READERS", "LogRows", "Reader", "reader_of"]
