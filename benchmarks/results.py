"""What a benchmark found: rows a person reads, raw numbers beside them, the machine they were taken on."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
from processes import ROOT, msprobe_bin

FOLDER = ROOT / "benchmarks" / "results"
QUICK_FOLDER = ROOT / "out" / "benchmarks"
"""A quick run measures too little to be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    what: str
    bar: str = ""
    """what trueup must reach; empty: for information"""
    trueup: str
    msprobe: str = ""
    met: bool | None = None
    """None where there is no bar"""
    note: str = ""


@dataclass(kw_only=True)
class Results:
    """One benchmark's findings; ``save`` puts them where ``run_all.py`` reads them."""

    name: str
    title: str
    method: str
    """how it was measured, in a few sentences"""
    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Note a row and print it: long benchmarks show where they are."""
        self.rows.append(row)
        print(line(row), flush=True)

    def save(self, *, quick: bool) -> None:
        """Write ``results/NAME.json``; of a quick run, one that is not kept."""
        folder = QUICK_FOLDER if quick else FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        content = {**asdict(self), "date": now, "quick": quick, "machine": machine(), "versions": versions()}
        (folder / f"{self.name}.json").write_text(json.dumps(content, indent=1) + "\n")


def line(row: Row) -> str:
    """A row as one line of fixed columns."""
    met = {True: "met", False: "MISSED", None: ""}[row.met]
    return f"{row.what:66} {row.bar:>10} {row.trueup:>14} {row.msprobe:>14} {met:>7}  {row.note}".rstrip()


def heading() -> str:
    """The names of ``line``'s columns."""
    return line(Row(what="what", bar="bar", trueup="trueup", msprobe="msprobe"))


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    made = argparse.ArgumentParser(description=(description or "").partition("\n\n")[0])
    made.add_argument(
        "--quick", action="store_true", help="short settings, to see that it runs; results go to out/"
    )
    return made


def machine() -> dict[str, Any]:
    """The machine, in words that name no host."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def versions() -> dict[str, str | None]:
    """Of everything whose speed is in the figures."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("trueup", "torch", "numpy", "polars", "pyarrow"):
        found[package] = importlib.metadata.version(package)
    home = msprobe_bin()
    found["msprobe"] = None if home is None else version_in(home / "python", "mindstudio-probe")
    found["msprobe_torch"] = None if home is None else version_in(home / "python", "torch")
    return found


def version_in(python: Path, package: str) -> str:
    """Version of a package in another environment."""
    program = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown"
    names = [said.partition(":")[2].strip() for said in text.splitlines() if said.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
