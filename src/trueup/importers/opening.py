"""Tells what kind of trace a path is."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from pathlib import Path

from trueup.errors import TraceError
from trueup.importers.api_stack.files import SUFFIX, api_stack_files
from trueup.importers.mindspore.folders import STATISTIC, dump_folders
from trueup.importers.msprobe import files
from trueup.store import Trace, TracePart, TraceSource, layout

_LOOKED_FOR = (
    f"a trueup trace ({layout.MANIFEST}), a dump of msprobe ({files.DUMP}, or stepN/rankN/{files.DUMP}, "
    f"or stepN/procN/{files.DUMP}), MindSpore's own (rank_N/{{net}}/{{graph}}/{{iteration}}/), and one of "
    "ptdbg_ascend (rankN/api_stack_dump.pkl)"
)
_PART = re.compile(r"(?P<kind>step|rank|proc)(?P<number>\d+)|rank")
"""msprobe names a rank without a number where nothing is distributed"""
_MAX_NAMED = 8
_MAX_SUGGESTED = 3
_MAX_OPENED = 50
_ALIKE = 0.7
"""likeness from which a name may be what a typing error meant"""


def open_trace(path: Path) -> TraceSource:
    """The trace at ``path``, whoever wrote it.

    ``path`` is a trueup trace, or one step or rank of it where msprobe would have put it (``RUN/step0``,
    ``RUN/step0/rank0/dump.json``); or of an msprobe dump its dump_path, one step, one rank, or a
    ``dump.json``; of MindSpore's own dump the folder of ``path`` in its configuration, one rank, net, graph
    or iteration; or an ``api_stack_dump.pkl`` with what lies around it.

    Example:
        >>> open_trace(Path("runs/reference")).steps()      # doctest: +SKIP
        {0: [0]}

    Raises:
        TraceError: nothing there, nothing we read, or several traces; says which.
    """
    path = Path(path)
    if (part := _part_of_trace(path)) is not None:
        return part
    if not path.exists():
        raise TraceError(f"no such trace: {path}{_nearest(path)}")
    if (path / layout.MANIFEST).is_file():
        return Trace(path)
    if path.name == layout.MANIFEST:
        return Trace(path.parent)
    if not path.is_dir() and path.name not in (files.DUMP, STATISTIC) and path.suffix != SUFFIX:
        raise TraceError(_wrong_file(path))
    return _of_others(path)


def _of_others(path: Path) -> TraceSource:
    """Each reader is imported where it is needed: a trueup trace is opened without any."""
    if files.dump_folders(path):
        from trueup.importers.msprobe.reader import MsprobeDump

        return MsprobeDump(path)
    if dump_folders(path) is not None:
        from trueup.importers.mindspore.reader import MindsporeDump

        return MindsporeDump(path)
    if api_stack_files(path):
        from trueup.importers.api_stack.reader import ApiStackDump

        return ApiStackDump(path)
    raise TraceError(_not_a_trace(path))


def _part_of_trace(path: Path) -> TracePart | None:
    """Where msprobe would have written into a trueup trace: ``RUN/dump.json``, ``RUN/step0``,
    ``RUN/step0/rank0/dump.json``; None of any other path, and of what is there."""
    if path.exists():
        return None
    inside = path.parent if path.name == files.DUMP else path
    numbers: dict[str, int] = {}
    while (found := _PART.fullmatch(inside.name)) is not None and not inside.exists():
        if found["kind"] in ("step", "rank"):
            numbers[found["kind"]] = int(found["number"])
        inside = inside.parent
    if inside == path or not (inside / layout.MANIFEST).is_file():
        return None
    return TracePart(inside, step=numbers.get("step"), rank=numbers.get("rank"))


def traces_inside(path: Path) -> dict[str, Path]:
    """Traces and dumps in a folder that is none itself, by their place in it: what verl's profiler writes,
    ``step_2/actor_update``; steps in the order of their numbers. Empty where there is none."""
    if not path.is_dir() or _is_trace(path):
        return {}
    found = {str(child.relative_to(path)): child for child in _folders(path) if _is_trace(child)}
    return dict(sorted(found.items(), key=lambda one: [_number(part) for part in Path(one[0]).parts]))


def _number(name: str) -> tuple[str, int, str]:
    digits = re.search(r"\d+$", name)
    return (name, 0, name) if digits is None else (name[: digits.start()], int(digits[0]), name)


def _wrong_file(path: Path) -> str:
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
    message = f"{path} is not a trace: looked for {_LOOKED_FOR}; found {named or 'an empty folder'}"
    return message + _hint(path)


def _hint(path: Path) -> str:
    if any(path.glob("**/debug.json")):
        return ". It holds only debug.json: msprobe's level 'debug' records what save() was given, not calls."
    if any(path.glob("**/*.pkl")):
        return (
            ". Pickles are not read, because loading one can execute code; dump again with a current msprobe."
        )
    if any(path.glob("**/.dump_metadata")) or any(path.glob(f"**/{STATISTIC}")):
        return ". Below it lies a dump of MindSpore: give the folder that holds rank_0."
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
        return bool(files.dump_folders(path)) or dump_folders(path) is not None or bool(api_stack_files(path))
    except TraceError:
        return True


def _nearest(path: Path) -> str:
    """The traces beside it, those of a like name first; of many folders only the likeliest are opened."""
    parent = path.parent
    if not parent.is_dir():
        return ""
    names = [child.name for child in parent.iterdir() if child.is_dir()]
    names.sort(key=lambda name: (-_likeness(name, path.name), name))
    traces = [name for name in names[:_MAX_OPENED] if _is_trace(parent / name)]
    like = [name for name in traces if _likeness(name, path.name) >= _ALIKE][:_MAX_SUGGESTED]
    if like:
        return f"; did you mean {' or '.join(str(parent / name) for name in like)}?"
    named = ", ".join(sorted(traces[:_MAX_SUGGESTED]))
    return f"; traces in {parent}: {named}" if traces else ""


def _likeness(name: str, wanted: str) -> float:
    """From 0 to 1, upper and lower case alike."""
    return SequenceMatcher(None, name.lower(), wanted.lower()).ratio()
