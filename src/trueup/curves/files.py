"""Files of a run: plain or packed, and which of a folder belong together."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

from trueup.curves.readers import Reader, reader_of
from trueup.errors import TraceError

HEAD_BYTES = 1 << 20
_MAX_FILES = 5000
_UNPACK: dict[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": gzip.decompress,
    b"BZh": bz2.decompress,
    b"\xfd7zXZ": lzma.decompress,
}
_UNREAD = (
    ".safetensors",
    ".pt",
    ".pth",
    ".bin",
    ".ckpt",
    ".npy",
    ".npz",
    ".pkl",
    ".yaml",
    ".yml",
    ".py",
    ".sh",
    ".md",
    ".html",
    ".png",
    ".svg",
    ".pdf",
    ".xlsx",
)
"""of a folder: no logs; a report (its own sign-off too) has sentences with a step and a loss"""


def contents(path: Path, room: bytearray | None = None) -> bytes:
    """The bytes of a file, unpacked where it is gzip, bzip2 or xz.

    ``room``: memory they may be put into, which the next call with it overwrites: fresh memory costs as much
    time as reading does.

    Raises:
        TraceError: there is no such file, or it is damaged.
    """
    try:
        data = path.read_bytes() if room is None or not path.is_file() else _read_into(path, room)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    return _unpacked(data, path)


def _read_into(path: Path, room: bytearray) -> bytes:
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        room.extend(bytes(max(0, size - len(room))))
        del room[size:]
        with memoryview(room) as view:
            num = file.readinto(view) or 0
            while num < size and (more := file.readinto(view[num:])):
                num += more
    del room[num:]
    return cast(bytes, room)


def _unpacked(data: bytes, path: Path) -> bytes:
    for begin, unpack in _UNPACK.items():
        if data.startswith(begin):
            try:
                return unpack(data)
            except EOFError:
                return _whole_part(data, path)
            except (OSError, lzma.LZMAError, zlib.error) as error:
                raise TraceError(f"{path} is damaged: {error}") from error
    return data


def _whole_part(data: bytes, path: Path) -> bytes:
    """What can be unpacked of a gzip file that is still being written."""
    if not data.startswith(b"\x1f\x8b"):
        raise TraceError(f"{path} is cut off")
    unpacker, out = zlib.decompressobj(wbits=31), b""
    out = unpacker.decompress(data)
    return out[: out.rfind(b"\n") + 1]


def is_packed(path: Path) -> bool:
    """Whether the file cannot be read on from where it ended."""
    with path.open("rb") as file:
        begin = file.read(6)
    return any(begin.startswith(magic) for magic in _UNPACK)


def reader_for(path: Path, data: bytes) -> Reader | None:
    """The reader that knows a file, by its first megabyte or else, of a log with a long preface, all of
    it."""
    reader = reader_of(data[:HEAD_BYTES], path)
    return reader or (reader_of(data, path) if len(data) > HEAD_BYTES else None)


def candidates(folder: Path) -> list[Path]:
    """Files of a folder that may be logs.

    Raises:
        TraceError: there are far too many; expected a log or a folder of logs.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and path.is_file() and path.suffix not in _UNREAD and path.stat().st_size:
            found.append(path)
        if len(found) > _MAX_FILES:
            raise TraceError(f"{folder} holds more than {_MAX_FILES} files; name the log itself")
    return found
