"""Tells what kind of trace a path is."""

from __future__ import annotations

from pathlib import Path

from trueup.errors import TraceError
from trueup.importers.msprobe import files
from trueup.importers.msprobe.reader import MsprobeDump
from trueup.store import Trace, TraceSource, layout

_LOOKED_FOR = (
    f"a trueup trace ({layout.MANIFEST}) and a dump of msprobe ({files.DUMP}, or stepN/rankN/{files.DUMP}, "
    f"or stepN/procN/{files.DUMP})"
)
_MAX_NAMED = 8


def open_trace(path: Path) -> TraceSource:
    """The trace at ``path``, whoever wrote it.

    ``path`` is a trueup trace, or of an msprobe dump its dump_path, one step, one rank, or a ``dump.json``.

    Example:
        >>> open_trace(Path("runs/reference")).steps()      # doctest: +SKIP
        {0: [0]}

    Raises:
        TraceError: nothing there, nothing we read, or several traces; says which.
    """
    path = Path(path)
    if not path.exists():
        raise TraceError(f"no such trace: {path}{_nearest(path)}")
    if (path / layout.MANIFEST).is_file():
        return Trace(path)
    if path.name == layout.MANIFEST:
        return Trace(path.parent)
    if path.is_file() and path.name != files.DUMP:
        raise TraceError(_wrong_file(path))
    if files.dump_folders(path):
        return MsprobeDump(path)
    raise TraceError(_not_a_trace(path))


def _wrong_file(path: Path) -> str:
    if path.suffix == ".pkl":
        return (
            f"{path} is a pickle, as msprobe's predecessors wrote it; loading one can execute code, so it "
            f"is not read. Dump again with a version of msprobe that writes {files.DUMP}."
        )
    if path.name in (files.STACK, files.CONSTRUCT):
        return f"{path} only describes a dump; give {path.with_name(files.DUMP)} or its folder"
    return f"{path} is a file of no kind that is read here; give the folder of {_LOOKED_FOR}"


def _not_a_trace(path: Path) -> str:
    inside = [child for child in _folders(path) if _is_trace(child)]
    if len(inside) > 1:
        named = ", ".join(str(c.relative_to(path)) for c in inside[:_MAX_NAMED])
        return f"{path} holds {len(inside)} traces ({named}); give one of them, for example {inside[0]}"
    if inside:
        return f"{path} is not a trace itself, but {inside[0]} is: give that"
    there = sorted(child.name for child in path.iterdir())
    named = ", ".join(there[:_MAX_NAMED]) + (
        f" and {len(there) - _MAX_NAMED} more" if len(there) > _MAX_NAMED else ""
    )
    message = f"{path} is no trace: looked for {_LOOKED_FOR}; found {named or 'an empty folder'}"
    return message + _hint(path)


def _hint(path: Path) -> str:
    if any(path.glob("**/debug.json")):
        return ". It holds only debug.json: msprobe's level 'debug' records what save() was given, not calls."
    if any(path.glob("**/*.pkl")):
        return (
            ". Pickles are not read, because loading one can execute code; dump again with a current msprobe."
        )
    if any(path.glob("**/.dump_metadata")) or any(path.glob("**/statistic.csv")):
        return ". It looks like MindSpore's own dump, which is not read yet."
    if any(path.glob("step_*/rank_*.writing-*")):
        return f". A capture began here and left no {layout.MANIFEST}; was the process killed at its start?"
    if any(path.glob("step*/*")):
        return f". Its steps hold no {files.DUMP}: was the run killed before debugger.stop() or step()?"
    return ""


def _folders(path: Path) -> list[Path]:
    """Children and grandchildren, not below a step of anything."""
    children = [c for c in sorted(path.iterdir()) if c.is_dir()]
    return children + [g for c in children if not _is_trace(c) for g in sorted(c.iterdir()) if g.is_dir()]


def _is_trace(path: Path) -> bool:
    if (path / layout.MANIFEST).is_file():
        return True
    try:
        return bool(files.dump_folders(path))
    except TraceError:
        return True


def _nearest(path: Path) -> str:
    parent = path.parent
    if not parent.is_dir():
        return ""
    there = sorted(child.name for child in parent.iterdir() if child.is_dir())
    return f"; {parent} holds {', '.join(there[:_MAX_NAMED])}" if there else ""
