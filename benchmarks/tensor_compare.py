"""Comparing stored tensors, in MB/s, next to msprobe.

Each tool captures one step of the GPT twice at level mix with values, the second time from weights that
differ by 1e-3 relatively, so that no tensor is equal and every one must be read; then compares its own
two captures.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from processes import TRUEUP, measure, msprobe_bin
from results import Results, Row, heading, parser
from turns import trained

BAR = 300
OPTIONS = {"level": "mix", "task": "tensor"}
METHOD = (
    "Bytes of tensor files on both sides over the wall seconds of the comparison from process start "
    "(so msprobe's 2 x 711 MB in 43 s counted as 33 MB/s). trueup stores shared storage once, hence "
    "has fewer bytes to read for the same step: the rate counts only bytes that are on disk."
)


def captured(python: Path, tool: str, folder: Path, size: dict[str, int]) -> int:
    """Capture reference and target; returns the bytes of tensors on disk, both sides."""
    for side, perturb in (("reference", 0.0), ("target", 1e-3)):
        how: dict[str, Any] = {"tool": tool, "options": OPTIONS, "output": str(folder / side), "keep": True}
        trained(python, "train_steps.py", **how, **size, steps=1, perturb=perturb)
    files = (path for suffix in ("*.safetensors", "*.pt") for path in folder.rglob(suffix))
    return sum(path.stat().st_size for path in files)


def trueup_rate(folder: Path, size: dict[str, int], repeats: int) -> dict[str, Any]:
    """Capture and compare with trueup."""
    num_bytes = captured(Path(sys.executable), "trueup", folder, size)
    command = [
        *TRUEUP,
        "compare",
        str(folder / "target"),
        str(folder / "reference"),
        "-o",
        str(folder / "out"),
    ]
    runs = [measure([*command, "--no-html", "--quiet"], allowed=(0, 1, 2)) for _ in range(repeats)]
    return _rate(num_bytes, [run.wall_seconds for run in runs])


def msprobe_rate(folder: Path, size: dict[str, int]) -> dict[str, Any] | None:
    """Capture and compare with msprobe; None where it is not set up."""
    home = msprobe_bin()
    if home is None:
        return None
    num_bytes = captured(home / "python", "msprobe", folder, size)
    sides = ["-tp", str(folder / "target" / "step0"), "-gp", str(folder / "reference" / "step0")]
    run = measure([str(home / "msprobe"), "compare", *sides, "-o", str(folder / "out")])
    return _rate(num_bytes, [run.wall_seconds])


def _rate(num_bytes: int, seconds: list[float]) -> dict[str, Any]:
    return {"bytes": num_bytes, "seconds": seconds, "mb_a_second": num_bytes / 1e6 / median(seconds)}


def main() -> None:
    """Measure both and write ``results/tensor_compare.json``."""
    given = parser(__doc__).parse_args()
    size = {"hidden": 64, "seq": 32} if given.quick else {"hidden": 256, "seq": 128}
    repeats = 1 if given.quick else 3
    settings = {**size, "repeats": repeats, "msprobe_repeats": 1}
    results = Results(
        name="tensor_compare", title="Comparing stored tensors", method=METHOD, settings=settings
    )
    print(heading())
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        ours = trueup_rate(Path(first), size, repeats)
        theirs = msprobe_rate(Path(second), size)
    results.raw = {"trueup": ours, "msprobe": theirs}
    row = Row(
        what="compare of two tensor traces",
        bar=f">= {BAR} MB/s",
        trueup=f"{ours['mb_a_second']:.0f} MB/s",
        msprobe="" if theirs is None else f"{theirs['mb_a_second']:.0f} MB/s",
        met=ours["mb_a_second"] >= BAR,
    )
    results.add(row)
    row = Row(
        what="the same, seconds",
        trueup=f"{median(ours['seconds']):.1f} s",
        msprobe="" if theirs is None else f"{theirs['seconds'][0]:.0f} s",
        note=f"{ours['bytes'] / 1e6:.0f} MB against {theirs['bytes'] / 1e6:.0f} MB" if theirs else "",
    )
    results.add(row)
    results.save(quick=given.quick)


if __name__ == "__main__":
    main()
