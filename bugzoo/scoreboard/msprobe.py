"""What msprobe's own compare says of the same runs: the first row it marks, read kindly."""

from __future__ import annotations

import csv
import json
import os
import re
import site
from pathlib import Path

from bugzoo.scoreboard.answers import FAILED, NOT_RUN, Answer, Named
from bugzoo.scoreboard.commands import ROOT, CommandFailed, Program, run

WORKER = Path(__file__).resolve().parent / "under_msprobe.py"
MARKS = ("error", "warning", "different")


def home() -> Path | None:
    """Where msprobe's environment keeps its programs, None where there is none."""
    given = Path(os.environ.get("TRUEUP_MSPROBE_VENV", ROOT / ".cache" / "msprobe-venv"))
    return given / "bin" if (given / "bin" / "msprobe").exists() else None


def _python() -> str:
    """The Python of its environment; ``python -m tests.warm make zoo`` has one with its imports done."""
    return os.environ.get("WARM_MSPROBE") or f"{home()}/python"


def capture(program: Program, out: Path) -> None:
    """A dump of both steps."""
    spec = {
        "base": program.base.name,
        "entry": program.entry.name if program.entry else None,
        "checkpoint": str(program.checkpoint) if program.checkpoint else None,
        "output": str(out),
        "libraries": site.getsitepackages(),
    }
    out.mkdir(parents=True, exist_ok=True)
    ranks = program.base.ranks
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    together = launcher if ranks > 1 else []
    run([_python(), *together, str(WORKER), json.dumps(spec)])


def answer(program: Program, reference: Path, folder: Path) -> Answer:
    """Its answer for one entry; the reference's dump is there already."""
    if home() is None:
        return Answer(state=NOT_RUN, note="msprobe is not set up")
    target = folder / "msprobe"
    try:
        capture(program, target)
        marked = [row for step in (0, 1) for row in _marked(target, reference, step)]
    except (CommandFailed, KeyError) as error:
        return Answer(state=FAILED, note=f"{type(error).__name__}: {error}"[-1500:])
    if not marked:
        return Answer(outcome="agree")
    first = next((name for name, mark in marked if mark != "warning"), marked[0][0])
    named = Named(stage=None, site=_module_of(first), headline=f"{first}; {len(marked)} rows marked")
    return Answer(outcome="differ", named=[named])


def _marked(target: Path, reference: Path, step: int) -> list[tuple[str, str]]:
    """Rows it does not pass, rank by rank in its order: name and mark."""
    out = target.parent / f"msprobe-step{step}"
    sides = ["-tp", str(target / f"step{step}"), "-gp", str(reference / f"step{step}")]
    run([_python(), "-m", "msprobe.msprobe", "compare", *sides, "-o", str(out)])
    found: list[tuple[str, str]] = []
    for path in sorted(out.glob("*.csv")):
        with path.open(newline="") as file:
            rows = [(row["NPU Name"], row["Result"].lower()) for row in csv.DictReader(file)]
        found += [row for row in rows if row[1] in MARKS]
    return found


def _module_of(name: str) -> str:
    """``Module.layers.0.ln1.LayerNorm.forward.0.input.0`` is ``layers.0.ln1``'s."""
    match = re.match(r"Module\.(.*)\.[^.]+\.(?:forward|backward|parameters_grad)\.", name)
    return match[1].removeprefix("module.") if match else name
