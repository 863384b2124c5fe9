"""Where a dump's files are, and reading its JSON: large, maybe cut off, with bare NaN or foreign bytes."""

from __future__ import annotations

import codecs
import gc
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from trueup.errors import TraceError

DUMP, STACK, CONSTRUCT, TENSORS = "dump.json", "stack.json", "construct.json", "dump_tensor_data"
_STEP = re.compile(r"step(\d+)$")
_RANK = re.compile(r"(rank|proc)(\d*)$")
_HEAD_BYTES = 1 << 16
_HEAD_FIELD = re.compile(r'"(task|level|framework)"\s*:\s*"([^"\\]*)"')


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Bytes that are no UTF-8 become a readable ``\\xNN``, spelled so that it survives the JSON reader."""
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"\\\\x{byte:02x}" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("trueup.json_escape", _escaped)


def step_of(folder: Path) -> int | None:
    """``stepN`` -> N."""
    match = _STEP.match(folder.name)
    return int(match.group(1)) if match else None


def rank_of(folder: Path) -> int | None:
    """``rankN`` -> N, ``proc<pid>`` -> 0: msprobe names by process what is not distributed."""
    match = _RANK.match(folder.name)
    if not match:
        return None
    return int(match.group(2) or 0) if match.group(1) == "rank" else 0


def pid_of(folder: Path) -> int | None:
    """``proc<pid>`` -> pid."""
    match = _RANK.match(folder.name)
    return int(match.group(2)) if match and match.group(1) == "proc" and match.group(2) else None


def dump_folders(path: Path) -> dict[int, dict[int, Path]]:
    """The folders that hold a ``dump.json``, by step and rank; empty where ``path`` is no dump.

    ``path`` is the dump_path itself, one of its step folders, one of their rank folders, or a ``dump.json``.

    Raises:
        TraceError: one step was written by several processes without ranks, so that it is several traces.
    """
    if path.name == DUMP and path.is_file():
        path = path.parent
    if (path / DUMP).is_file():
        return {step_of(path.parent) or 0: {rank_of(path) or 0: path}}
    if not path.is_dir():
        return {}
    ranks = _ranks(path)
    if ranks:
        return {step_of(path) or 0: ranks}
    steps = {s: f for f in path.iterdir() if (s := step_of(f)) is not None and f.is_dir()}
    found = {step: _ranks(steps[step]) for step in sorted(steps)}
    return {step: ranks for step, ranks in found.items() if ranks}


def folders_without_dump(path: Path) -> list[str]:
    """Folders of ranks below a dump_path, or below one step, that should hold a ``dump.json`` and do not; a
    step without any rank too.

    Example:
        >>> folders_without_dump(Path("dump_path"))         # doctest: +SKIP
        ['step0/proc8478']
    """
    if not path.is_dir() or (path / DUMP).is_file():
        return []
    steps = sorted((f for f in path.iterdir() if step_of(f) is not None and f.is_dir()), key=_number)
    found: list[str] = []
    for step in steps or [path]:
        ranks = [f for f in sorted(step.iterdir()) if rank_of(f) is not None and f.is_dir()]
        bare = [f for f in ranks if not (f / DUMP).is_file()] if ranks else [step]
        found += [str(f.relative_to(path)) for f in bare]
    return found


def _number(step: Path) -> int:
    return step_of(step) or 0


def _ranks(step: Path) -> dict[int, Path]:
    folders = [f for f in sorted(step.iterdir()) if rank_of(f) is not None and (f / DUMP).is_file()]
    found: dict[int, Path] = {}
    for folder in folders:
        rank = rank_of(folder) or 0
        if rank in found:
            names = ", ".join(f.name for f in folders)
            raise TraceError(
                f"{step} holds the dumps of several processes that knew no rank ({names}); "
                f"give one of these folders, for example {folder}"
            )
        found[rank] = folder
    return dict(sorted(found.items()))


def read_head(file: Path) -> dict[str, str]:
    """``task``, ``level`` and ``framework`` of a ``dump.json``, from its first bytes.

    Older dumps do not name their framework; it then shows in the entries.

    Raises:
        TraceError: the file is empty or cannot be read.
    """
    try:
        with file.open("rb") as stream:
            text = stream.read(_HEAD_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise TraceError(f"{file} cannot be read: {error}") from error
    if not text.strip():
        raise TraceError(_empty(file))
    before_data = text.partition('"data"')[0]
    head = dict(_HEAD_FIELD.findall(before_data))
    if "framework" not in head:
        head["framework"] = "mindspore" if re.search(r'"mindspore\.|"Cell\.', text) else "pytorch"
    return head


def read_json(file: Path) -> dict[str, object]:
    """The object in ``file``.

    Raises:
        TraceError: missing, empty, cut off, or not a JSON object; says at which line and byte.
    """
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise TraceError(f"{file} cannot be read: {error.strerror or error}") from error
    if not raw.strip(b" \t\r\n\0"):
        raise TraceError(_empty(file))
    text = _text(raw)
    try:
        with no_garbage_collection():
            content: object = json.loads(text)
    except RecursionError:
        raise TraceError(f"{file} nests values too deeply to be a dump of msprobe") from None
    except ValueError as error:
        raise TraceError(_malformed(file, text, error)) from None
    if not isinstance(content, dict):
        raise TraceError(f"{file} holds a JSON {type(content).__name__}, not the object msprobe writes")
    if re.search(r"\\u[dD][89a-fA-F]", text):
        return cast("dict[str, object]", _without_surrogates(content))
    return content


def _text(raw: bytes) -> str:
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "trueup.json_escape")


def _without_surrogates(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [_without_surrogates(v) for v in value]
    if isinstance(value, dict):
        return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
    return value


def _empty(file: Path) -> str:
    return (
        f"{file} is empty: the run ended before msprobe wrote it (it writes at debugger.stop() and step()). "
        "Dump again, or leave this step out with --steps."
    )


def _malformed(file: Path, text: str, error: ValueError) -> str:
    line, column, position = getattr(error, "lineno", 0), getattr(error, "colno", 0), getattr(error, "pos", 0)
    place = f"{file}, line {line} column {column} (character {position} of {len(text)})"
    if position >= len(text.rstrip()) - 1 or "Unterminated" in str(error):
        return (
            f"{place}: the file is cut off; the run was probably killed while msprobe wrote it. "
            "Dump again, or leave this step out."
        )
    return f"{place}: this is not JSON ({getattr(error, 'msg', error)}). Was the file edited by hand?"


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Millions of small objects are made and none is garbage; the collector would only cost time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
