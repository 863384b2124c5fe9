"""How long ``trueup --help`` and ``import trueup`` take, next to msprobe."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from processes import measure, msprobe_bin
from results import Results, Row, heading, parser

METHOD = (
    "Wall seconds from process start to process end of --help (the installed command), and of the "
    "import statement alone inside a fresh interpreter; median over the repeats after one that fills "
    "the file cache."
)
IMPORT = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


def seconds_of(command: list[str], repeats: int) -> list[float]:
    """Wall seconds of each run but the first."""
    return [measure(command).wall_seconds for _ in range(repeats + 1)][1:]


def seconds_to_import(python: Path | str, module: str, repeats: int) -> list[float]:
    """Seconds of the import statement in each run but the first."""
    command = [str(python), "-c", IMPORT.format(module)]
    return [float(measure(command).output.split()[-1]) for _ in range(repeats + 1)][1:]


def main() -> None:
    """Measure both and write ``results/startup.json``."""
    given = parser(__doc__).parse_args()
    repeats = 2 if given.quick else 9
    results = Results(name="startup", title="Start", method=METHOD, settings={"repeats": repeats})
    home = msprobe_bin()
    measured = {
        "--help": (
            0.4,
            seconds_of([str(Path(sys.executable).parent / "trueup"), "--help"], repeats),
            None if home is None else seconds_of([str(home / "msprobe"), "--help"], min(repeats, 3)),
        ),
        "import": (
            0.15,
            seconds_to_import(sys.executable, "trueup", repeats),
            None if home is None else seconds_to_import(home / "python", "msprobe", min(repeats, 3)),
        ),
    }
    print(heading())
    for what, (bar, ours, theirs) in measured.items():
        results.raw[what] = {"trueup": ours, "msprobe": theirs}
        row = Row(
            what=what,
            bar=f"<= {bar:g} s",
            trueup=f"{median(ours):.3f} s",
            msprobe="" if theirs is None else f"{median(theirs):.2f} s",
            met=median(ours) <= bar,
        )
        results.add(row)
    results.save(quick=given.quick)


if __name__ == "__main__":
    main()
