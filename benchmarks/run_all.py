"""Run every benchmark and write docs/benchmarks.md from what they found.

``--report`` only writes the page again. ``--quick`` runs short settings and prints the page instead: such
figures say that the scripts work, not how fast anything is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import yaml
from processes import ROOT, msprobe_bin
from results import FOLDER, QUICK_FOLDER, parser

NAMES = [
    "step_time",
    "monitor",
    "mindspore_step_time",
    "tiny_calls",
    "compare_traces",
    "tensor_compare",
    "startup",
    "origin",
    "diagnose",
    "matching",
    "curves",
    "checklist",
    "train_throughput",
    "layouts",
    "mindspore_layouts",
    "mindspore_pairs",
    "mindspore_throughput",
]
PAGE = ROOT / "docs" / "benchmarks.md"
WHY = ROOT / "benchmarks" / "missed.yaml"
"""first column of a row -> why its bar is missed"""
INTRODUCTION = """# Benchmarks

What trueup must reach, what it does reach, and msprobe 26.2.0 beside it on the same machine in the same run.
Written by `make bench`; the raw numbers are in [benchmarks/results](../benchmarks/results). msprobe runs in
an environment of its own, which `benchmarks/setup_msprobe.sh` makes. Read ratios rather than seconds: those
are this machine's.
"""


def page(found: list[dict[str, Any]]) -> str:
    """The findings as Markdown, the bars missed first."""
    missed = [(one["title"], row) for one in found for row in one["rows"] if row["met"] is False]
    bars = sum(row["met"] is not None for one in found for row in one["rows"])
    return "\n".join([INTRODUCTION, _missed(missed, bars), *map(_section, found)])


def _missed(missed: list[tuple[str, dict[str, Any]]], bars: int) -> str:
    if not missed:
        return f"All {bars} bars are met.\n"
    why: dict[str, str] = (yaml.safe_load(WHY.read_text()) if WHY.exists() else None) or {}
    lines = [f"{bars - len(missed)} of {bars} bars are met. Missed:\n"]
    for title, row in missed:
        reason = why.get(row["what"], "the reason is not known yet")
        lines.append(f"- {title}, {row['what']}: {row['trueup']} for {row['bar']}. Why: {reason}")
    return "\n".join(lines) + "\n"


def _section(one: dict[str, Any]) -> str:
    notes = any(row["note"] for row in one["rows"])
    columns = ["what", "bar", "trueup", "msprobe", ""] + (["note"] if notes else [])
    lines = [f"## {one['title']}\n", one["method"] + "\n", _row(columns), _row(["---"] * len(columns))]
    for row in one["rows"]:
        met = {True: "met", False: "**missed**", None: ""}[row["met"]]
        cells = [row["what"], row["bar"], row["trueup"], row["msprobe"], met]
        lines.append(_row(cells + ([row["note"]] if notes else [])))
    return "\n".join(lines) + "\n\n" + _circumstances(one) + "\n"


def _circumstances(one: dict[str, Any]) -> str:
    machine, versions = one["machine"], one["versions"]
    named = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in one["settings"].items())
    return (
        f"*{one['date'][:10]}; {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, load "
        f"{machine['load_average'][0]} at the end; {named}; {settings}.*"
    )


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> int:
    """Run them in turn; returns 1 if one could not run. A missed bar is a finding, not a failure."""
    options = parser(__doc__)
    options.add_argument("--report", action="store_true", help="run nothing, write the page again")
    given = options.parse_args()
    if not given.report:
        msprobe_bin()
    failed = [] if given.report else [name for name in NAMES if not _runs(name, quick=given.quick)]
    folder = QUICK_FOLDER if given.quick else FOLDER
    paths = [folder / f"{name}.json" for name in NAMES]
    text = page([json.loads(path.read_text()) for path in paths if path.exists()])
    if given.quick:
        print("\n" + text)
    else:
        PAGE.write_text(text)
        print(f"\nwrote {PAGE.relative_to(ROOT)}")
    if failed:
        print(f"could not run: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _runs(name: str, *, quick: bool) -> bool:
    print(f"\n== {name}", flush=True)
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *(["--quick"] if quick else [])]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
