"""TensorBoard's files, read back by the definitions of their format."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from trueup import EventWriter
from trueup.store.events import crc32c, records


def _records(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = struct.unpack("<Q", data[:8])[0]
        body, data = data[12 : 12 + size], data[16 + size :]
        found.append(body)
    return found


def _fields(data: bytes) -> dict[int, list[int | bytes]]:
    """Number -> values of a message, by protocol buffers' wire types 0, 1, 2 and 5."""
    found: dict[int, list[int | bytes]] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = number()
        kind = key & 7
        if kind == 0:
            found.setdefault(key >> 3, []).append(number())
            continue
        size = {1: 8, 5: 4}.get(kind) or number()
        found.setdefault(key >> 3, []).append(data[at : at + size])
        at += size
    return found


def test_numbers_are_read_back(tmp_path: Path) -> None:
    board = EventWriter(tmp_path / "board")
    board.add(0, {"loss": 5.5, "learning_rate": 0.1})
    board.add(300, {"loss": float("nan")})
    board.close()
    (file,) = (tmp_path / "board").iterdir()
    assert file.name.startswith("events.out.tfevents.")
    first, *events = [_fields(one) for one in _records(file.read_bytes())]
    assert first[3] == [b"brain.Event:2"]
    assert [one[2] for one in events] == [[0], [300]]
    assert abs(struct.unpack("<d", events[0][1][0])[0] - file.stat().st_mtime) < 60  # type: ignore[arg-type]
    values = [_fields(value) for value in _fields(events[0][5][0])[1]]  # type: ignore[arg-type]
    assert [(v[1][0], struct.unpack("<f", v[2][0])[0]) for v in values] == [  # type: ignore[arg-type]
        (b"loss", 5.5),
        (b"learning_rate", pytest.approx(0.1)),
    ]


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (bytes(range(32)), 0x46DD794E)],
)
def test_checksums_are_those_of_rfc_3720(data: bytes, expected: int) -> None:
    """Appendix B.4."""
    assert int(crc32c(np.frombuffer(data, np.uint8)[None])[0]) == expected


def test_a_record_begins_as_those_of_tensorboard() -> None:
    """The first bytes of every file that TensorBoard's own writer makes."""
    head = records(np.zeros((1, 24), np.uint8)).tobytes()[:12]
    assert head.hex(" ") == "18 00 00 00 00 00 00 00 a3 7f 4b 22"
