"""Runs of ``program`` on a GPU: every way once without capture and once with it, at most eight at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.capture.programs import environment
from tests.gpu.program import WAYS

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("program.py")
CAPTURE = ("capture", "--level", "mix", "--sketch")
WITH_VALUES = ("capture", "--preset", "diagnose")
TIMEOUT_SECONDS = 150


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: what it printed, and where its trace is if it was captured."""

    results: list[dict[str, Any]]
    trace: Path
    errors: str


def words_of(way: str, fault: str, device: str) -> list[str]:
    """The program's command line."""
    return [sys.executable, str(PROGRAM), way, fault, "--device", device]


def trueup(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command of trueup."""
    return ran([sys.executable, "-m", "trueup", *map(str, words)], cwd)


def ran(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command to its end."""
    path = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return subprocess.run(
        words,
        cwd=cwd,
        env=environment(PYTHONPATH=os.pathsep.join(path), OMP_NUM_THREADS="2"),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


def one(folder: Path, name: str, *, captured: tuple[str, ...] = ()) -> Ran:
    """``way``, ``way-fault`` or ``way-fault-cpu``; twice in one process where it is not captured."""
    way, fault, device, *_ = [*name.split("-"), "", ""][:3]
    program = words_of(way, fault or "none", device or "cuda:0")
    trace = folder / (name + ("-values" if captured == WITH_VALUES else ""))
    try:
        if captured:
            done = trueup(*captured, "-o", trace, "--", *program, cwd=folder)
        else:
            done = ran([*program, "--times", "2"], folder)
        output, errors = done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        output, errors = "", f"{error}\n{(error.stderr or b'')[-3000:]!r}"
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    return Ran([json.loads(line[7:]) for line in lines], trace, errors)


NAMES = sorted(WAYS) if "GPU_WAYS" not in os.environ else os.environ["GPU_WAYS"].split(",")
COMPILED = ("compiled", "reduced")
"""ways whose kernels are chosen by time: two processes may not choose the same"""
EXTRA = ("plain-none-cpu", "plain-eps", "plain-scale", "plain-rate")
AGREE = (
    ("plain-none", "plain"), ("eager", "plain"), ("fused", "plain"), ("loop", "plain"), ("offload", "plain"),
    ("checkpoint", "plain"), ("side", "plain"), ("compiled", "plain"), ("reduced", "plain"),
    ("graphed", "plain"), ("segments", "plain"), ("parallel", "plain"), ("sharded", "plain"),
    ("plain", "plain-none-cpu"), ("flash", "math"), ("autocast", "flash"), ("reduced", "compiled"),
)  # fmt: skip
"""pairs, target first, that differ by rounding or not at all"""
APART = (
    ("tf32", "plain"), ("autocast", "plain"), ("whole", "plain"), ("half", "plain"),
    ("plain-eps", "plain"), ("plain-scale", "plain"), ("plain-rate", "plain"),
)  # fmt: skip
DIAGNOSED = ("plain", "fused", "plain-eps", "plain-scale", "plain-rate", "tf32", "autocast")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one command."""

    status: int
    said: str
    out: Path


def all_runs(folder: Path, num_workers: int = 12) -> dict[str, Ran]:
    """By name; those of ``bare NAME`` without capture, ``again NAME`` once more in a process of its own,
    those of ``NAME values`` for a diagnosis. Without capture first: compilers then find what they made."""
    bare: Asked = {f"bare {name}": (name, ()) for name in NAMES}
    rest: Asked = {f"again {name}": (name, ()) for name in NAMES if name in COMPILED}
    rest |= {name: (name, CAPTURE) for name in (*NAMES, *EXTRA, "plain-none")}
    rest |= {f"{name} values": (name, WITH_VALUES) for name in DIAGNOSED}
    return {**_all(folder, bare, num_workers), **_all(folder, rest, num_workers)}


Asked = dict[str, tuple[str, tuple[str, ...]]]
"""key -> name of a run, and how it is captured"""


def _all(folder: Path, asked: Asked, num_workers: int) -> dict[str, Ran]:
    with ThreadPoolExecutor(num_workers) as pool:
        made = {key: pool.submit(one, folder, name, captured=how) for key, (name, how) in asked.items()}
        return {key: run.result() for key, run in made.items()}


def all_verdicts(folder: Path, num_workers: int = 12) -> dict[str, Verdict]:
    """``compare TARGET REFERENCE`` of every pair, ``diagnose NAME`` against the plain run."""
    with ThreadPoolExecutor(num_workers) as pool:
        made = {f"compare {a} {b}": pool.submit(_compared, folder, a, b) for a, b in (*AGREE, *APART)}
        made |= {f"diagnose {name}": pool.submit(_diagnosed, folder, name) for name in DIAGNOSED}
        return {key: verdict.result() for key, verdict in made.items()}


def _compared(folder: Path, target: str, reference: str) -> Verdict:
    out = folder / f"compare-{target}-{reference}"
    return _verdict(folder, out, "compare", folder / target, folder / reference)


def _diagnosed(folder: Path, name: str) -> Verdict:
    way, fault = [*name.split("-"), "none"][:2]
    replay = " ".join(words_of(way, fault, "cuda:0"))
    traces = folder / f"{name}-values", folder / "plain-values"
    return _verdict(folder, folder / f"diagnose-{name}", "diagnose", *traces, "--replay", replay)


def _verdict(folder: Path, out: Path, *words: str | Path) -> Verdict:
    done = trueup(*words, "-o", out, cwd=folder)
    said = done.stdout + done.stderr
    out.with_suffix(".txt").write_text(f"exit {done.returncode}\n{said}", encoding="utf-8")
    return Verdict(done.returncode, said, out)


def device_or_none() -> str | None:
    """What the machine has."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
