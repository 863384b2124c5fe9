"""Names of the files and folders of a trace."""

from __future__ import annotations

import re
from pathlib import Path

MANIFEST = "manifest.json"
PROCESSES = "processes"
"""folder of traces of other process groups of the same job"""
_STEP = re.compile(r"step_(\d{6,})$")
_EVENT = re.compile(r"step_(\d+)\.(\w+)\.rank_(\d+)\.json$")
_RANK = re.compile(r"rank_(\d{5,})$")
_OWN = re.compile(
    r"(manifest\.json|scalars|ranks|code|tokens|rl|processes|noise|monitor|step_\d{6,})(\.writing-\d+)?$"
)


def is_own(name: str) -> bool:
    """Whether a trace keeps a file or folder of this name beside its manifest.

    Example:
        >>> is_own("step_000000"), is_own("reports")
        (True, False)
    """
    return _OWN.match(name) is not None


def is_part_of_trace(path: Path, root: Path) -> bool:
    """Whether ``path`` lies in what the trace ``root`` keeps; both are absolute, without links."""
    if not path.is_relative_to(root) or path == root or not (root / MANIFEST).is_file():
        return False
    return is_own(path.relative_to(root).parts[0])


def step_dir(root: Path, step: int) -> Path:
    """Folder of one step."""
    return root / f"step_{step:06d}"


def rank_dir(root: Path, step: int, rank: int) -> Path:
    """Folder of one rank in one step."""
    return step_dir(root, step) / f"rank_{rank:05d}"


def scalars_file(root: Path, rank: int) -> Path:
    """The scalars of one rank, one JSON object a line."""
    return root / "scalars" / f"rank_{rank:05d}.jsonl"


def rank_file(root: Path, rank: int) -> Path:
    """What one rank says of itself: coordinate, parameters, limits, failures."""
    return root / "ranks" / f"rank_{rank:05d}.json"


def code_file(root: Path, rank: int) -> Path:
    """The program's functions that a rank's first step reaches, compressed JSON."""
    return root / "code" / f"rank_{rank:05d}.json.gz"


def monitor_dir(root: Path) -> Path:
    """What a monitor leaves besides scalars."""
    return root / "monitor"


def series_dir(root: Path, rank: int) -> Path:
    """Series of one rank (``store.series``)."""
    return monitor_dir(root) / f"rank_{rank:05d}"


def events_dir(root: Path) -> Path:
    """Alarms, one JSON file each."""
    return monitor_dir(root) / "events"


def mismatch_file(root: Path) -> Path:
    """Training against inference, one JSON object a step."""
    return monitor_dir(root) / "mismatch.jsonl"


def event_file(root: Path, step: int, rule: str, rank: int) -> Path:
    """The file of one alarm."""
    return events_dir(root) / f"step_{step:06d}.{rule}.rank_{rank:05d}.json"


def parse_event_file(name: str) -> tuple[int, str, int] | None:
    """Step, rule and rank of an alarm by its file's name; None for another file.

    Example:
        >>> parse_event_file("step_000012.spike.rank_00003.json")
        (12, 'spike', 3)
    """
    match = _EVENT.fullmatch(name)
    return None if match is None else (int(match[1]), match[2], int(match[3]))


def other_traces(root: Path) -> list[Path]:
    """Traces of other process groups of the same job, below this one."""
    return sorted(path.parent for path in root.glob(f"{PROCESSES}/*/{MANIFEST}"))


def chunk_name(chunk: int) -> str:
    """File name of one chunk of stored tensors, inside ``tensors/``."""
    return f"chunk_{chunk:05d}.safetensors"


def ranks(root: Path) -> set[int]:
    """Ranks that have left anything."""
    found = {p.stem for p in (*root.glob("ranks/rank_*.json"), *root.glob("scalars/rank_*.jsonl"))}
    found |= {p.name.partition(".")[0] for p in root.glob("step_*/rank_*")}
    return {int(m.group(1)) for m in map(_RANK.match, found) if m}


def rank_paths(root: Path, rank: int) -> list[Path]:
    """Everything one rank has left, steps it never finished included."""
    name = f"rank_{rank:05d}"
    steps = [*root.glob(f"step_*/{name}"), *root.glob(f"step_*/{name}.writing-*")]
    watched = [series_dir(root, rank), *events_dir(root).glob(f"step_*.{name}.json")]
    return [*steps, *watched, rank_file(root, rank), scalars_file(root, rank), code_file(root, rank)]


def whole_steps(root: Path) -> dict[int, list[int]]:
    """Ranks that have finished each step; not incomplete ones (under a temporary name)."""
    found: dict[int, list[int]] = {}
    for folder in sorted(root.iterdir()):
        match = _STEP.match(folder.name)
        if match and folder.is_dir():
            ranks = sorted(int(m.group(1)) for m in map(_RANK.match, (p.name for p in folder.iterdir())) if m)
            if ranks:
                found[int(match.group(1))] = ranks
    return dict(sorted(found.items()))
