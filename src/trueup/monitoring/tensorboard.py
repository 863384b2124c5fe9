"""Writes what a monitor saw as a TensorBoard event file, without TensorBoard or TensorFlow.

A file is records of length, checksum of the length, message, checksum of the message (CRC-32C, masked). All
steps that have the same scalars have messages of the same length: they are filled into one template, and
their checksums are computed side by side.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from trueup.monitoring.reader import NUMBERS, MonitoredRun
from trueup.weights.protobuf import field_bytes

_WALL_TIME, _STEP, _VERSION, _SUMMARY = 1, 2, 3, 5
_VALUE, _TAG, _SIMPLE = 1, 1, 2
_VARINT, _FIXED64, _FIXED32 = 0, 1, 5
_STEP_BYTES = 5
"""a step is written as a number of always so many bytes, its leading zeros included"""
_ROWS = 1024
"""steps filled in at once"""
_MORE = ("local_norm", "num_not_finite", "tokens", "skipped")

Bytes = NDArray[np.uint8]


def export_tensorboard(run: MonitoredRun, folder: Path) -> Path:
    """Write every number of a run, one tag each: ``loss``, ``gradient/l2_norm/layers.0.attn.qkv.weight``.

    Returns the file. NaN of a scalar is written; what was not measured at a step is not.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    times = run.numbers("time")
    steps = run.numbers("step").astype(np.int64)
    first = int(times[0]) if len(times) else 0
    path = folder / f"events.out.tfevents.{first:010d}.trueup.rank_{run.rank:05d}"
    with path.open("wb") as file:
        _write(file, _records(_version(float(first))))
        names = [name for name in (*NUMBERS, *_MORE) if any(name in line for line in run.lines)]
        values = np.stack([run.numbers(name) for name in names], axis=1) if names else np.zeros((0, 0))
        there = np.asarray([[line.get(name) is not None for name in names] for line in run.lines], bool)
        _write_rows(file, names, steps, times, values, there)
        time_of = dict(zip(steps.tolist(), times.tolist(), strict=True))
        for kind, columns in run.reader().kinds.items():
            for column in columns:
                series = run.series(kind, column)
                if series is None:
                    continue
                tags = [f"{kind}/{column}/{name}" for name in series.names]
                when = np.asarray([time_of.get(step, float(first)) for step in series.steps.tolist()])
                known = ~np.isnan(series.values)
                _write_rows(file, tags, series.steps, when, series.values.astype(np.float64), known)
    return path


def _write_rows(
    file: BinaryIO,
    tags: Sequence[str],
    steps: NDArray[np.int64],
    times: NDArray[np.float64],
    values: NDArray[np.float64],
    there: NDArray[np.bool_],
) -> None:
    for begin in range(0, len(steps), _ROWS):
        rows = slice(begin, begin + _ROWS)
        patterns, pattern_of = np.unique(there[rows], axis=0, return_inverse=True)
        messages: dict[int, bytes] = {}
        for number, pattern in enumerate(patterns):
            chosen = np.flatnonzero(pattern_of.reshape(-1) == number)
            if pattern.any():
                filled = _events(
                    [tag for tag, present in zip(tags, pattern, strict=True) if present],
                    steps[rows][chosen],
                    times[rows][chosen],
                    values[rows][np.ix_(chosen, np.flatnonzero(pattern))],
                )
                for place, record in zip(chosen.tolist(), _records(filled), strict=True):
                    messages[place] = record.tobytes()
        file.write(b"".join(messages[place] for place in sorted(messages)))


def _events(
    tags: Sequence[str], steps: NDArray[np.int64], times: NDArray[np.float64], values: NDArray[np.float64]
) -> Bytes:
    """One message a step, (steps, bytes)."""
    simple = bytes([_SIMPLE << 3 | _FIXED32]) + bytes(4)
    entries = [field_bytes(_VALUE, field_bytes(_TAG, tag.encode()) + simple) for tag in tags]
    head = bytes([_WALL_TIME << 3 | _FIXED64]) + bytes(8) + bytes([_STEP << 3 | _VARINT]) + bytes(_STEP_BYTES)
    body = b"".join(entries)
    template = np.frombuffer(head + field_bytes(_SUMMARY, body), np.uint8)
    messages = np.repeat(template[None], len(steps), axis=0)
    messages[:, 1:9] = times.astype("<f8").view(np.uint8).reshape(-1, 8)
    for place in range(_STEP_BYTES):
        more = 0x80 if place < _STEP_BYTES - 1 else 0
        messages[:, 10 + place] = (steps >> (7 * place) & 0x7F) | more
    ends = len(template) - len(body) + np.cumsum([len(entry) for entry in entries])
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(values.astype("<f4")).view(np.uint8).reshape(len(steps), -1, 4)
    for place, end in enumerate(ends.tolist()):
        messages[:, end - 4 : end] = floats[:, place]
    return messages


def _version(time: float) -> Bytes:
    wall = bytes([_WALL_TIME << 3 | _FIXED64]) + struct.pack("<d", time)
    return np.frombuffer(wall + field_bytes(_VERSION, b"brain.Event:2"), np.uint8)[None]


def _records(messages: Bytes) -> Bytes:
    """The messages with their lengths and checksums, (steps, bytes)."""
    num, length = messages.shape
    prefix = np.frombuffer(struct.pack("<Q", length), np.uint8)
    head = np.concatenate([prefix, _checksum(prefix[None])[0]])
    return np.concatenate([np.repeat(head[None], num, axis=0), messages, _checksum(messages)], axis=1)


def _write(file: BinaryIO, records: Bytes) -> None:
    file.write(records.tobytes())


def _checksum(rows: Bytes) -> Bytes:
    """Masked CRC-32C of every row, four bytes each."""
    crc = crc32c(rows).astype(np.uint64)
    masked = ((crc >> np.uint64(15) | crc << np.uint64(17)) + np.uint64(0xA282EAD8)) & np.uint64(0xFFFFFFFF)
    four: Bytes = masked.astype("<u4").view(np.uint8).reshape(-1, 4)
    return four


def crc32c(rows: Bytes) -> NDArray[np.uint32]:
    """CRC-32C (Castagnoli) of every row.

    Example:
        >>> hex(crc32c(np.frombuffer(b"123456789", np.uint8)[None])[0])
        '0xe3069283'
    """
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(rows.T):
        crc = _TABLE[(crc ^ column) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    final: NDArray[np.uint32] = crc ^ np.uint32(0xFFFFFFFF)
    return final


def _table() -> Iterator[int]:
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


_TABLE = np.fromiter(_table(), np.uint32, 256)
