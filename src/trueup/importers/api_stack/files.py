"""Where a dump of ptdbg_ascend lies, by step and rank; found without the tables that its reader fills."""

from __future__ import annotations

import re
from pathlib import Path

from trueup.errors import TraceError

SUFFIX = ".pkl"
_RANK, _STEP = re.compile(r"rank(\d+)"), re.compile(r"step(\d+)")
_LAYOUTS = (
    *("*.pkl", "rank*/*.pkl", "step*/rank*/*.pkl", "*/rank*/*.pkl"),
    *("*/step*/rank*/*.pkl", "step*/*/rank*/*.pkl"),
)


def api_stack_files(path: Path) -> dict[int, dict[int, Path]]:
    """The ``.pkl`` files under ``path``, by step and rank; empty where there is none.

    Raises:
        TraceError: several of one rank in one step.
    """
    if path.is_file():
        return {0: {0: path}} if path.suffix == SUFFIX else {}
    listed = (sorted(filter(_is_text, path.glob(layout))) for layout in _LAYOUTS)
    files = next((found for found in listed if found), [])
    steps: dict[int, dict[int, Path]] = {}
    for file in files:
        step, rank = _number(_STEP, file), _number(_RANK, file)
        known = steps.setdefault(step, {}).setdefault(rank, file)
        if known != file:
            raise TraceError(f"{path} holds several dumps of one rank ({known}, {file}); give one of them")
    return {step: dict(sorted(steps[step].items())) for step in sorted(steps)}


def _is_text(file: Path) -> bool:
    """Whether it may be such a list: any program may leave real pickles in its folders."""
    try:
        with file.open("rb") as stream:
            return stream.read(1) in (b"[", b"")
    except OSError:
        return False


def _number(pattern: re.Pattern[str], file: Path) -> int:
    return next((int(m.group(1)) for parent in file.parents if (m := pattern.fullmatch(parent.name))), 0)
