"""Opens single files of a trace: at any path the system can spell, and never one that would wait for a
writer."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path

from trueup.errors import TraceError


def refuse_irregular(path: Path) -> None:
    """Stop before a FIFO, a device or a folder is opened: reading a FIFO waits for a writer, for ever.

    Raises:
        TraceError: it is there, and is no regular file.
        OSError: it is not there, or may not be looked at.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise TraceError(
            f"{path} is not a regular file (it is a folder, a FIFO, a socket or a device); "
            "put back the file that the capture wrote, or capture again"
        )


def parquet_from_path(path: Path) -> Path | io.BytesIO:
    """What polars is to read: the path itself or, where it is no UTF-8, which polars refuses, its content.

    Raises:
        TraceError: no regular file.
        OSError: it cannot be read.
    """
    refuse_irregular(path)
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        return io.BytesIO(path.read_bytes())
    return path


def text_from_file(path: Path) -> str:
    """All of a text file; bytes that are no UTF-8 are replaced.

    Raises:
        TraceError: no regular file.
        OSError: it cannot be read.
    """
    refuse_irregular(path)
    return path.read_text(encoding="utf-8", errors="replace")


def object_from_json(text: str, where: str) -> dict[str, object]:
    """The JSON object in ``text``; ``where`` is the file, and perhaps the line, a message names.

    Raises:
        TraceError: it is JSON of another kind.
        ValueError: it is no JSON.
    """
    try:
        content: object = json.loads(text)
    except RecursionError:
        raise ValueError("values are nested too deeply") from None
    if not isinstance(content, dict):
        raise TraceError(
            f"{where} holds a JSON {_KINDS[type(content)]} where trueup writes an object ({{...}}); "
            "was it edited by hand? Put back what the capture wrote, or capture again"
        )
    return content


_KINDS = {
    list: "array",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
