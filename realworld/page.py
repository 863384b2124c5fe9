"""The table of real programs, from their results."""

from __future__ import annotations

from typing import Any

from realworld.entries import Program
from realworld.trial import LEVELS, faults_of

HEAD = """# Real programs

Written by `make realworld`. Each program is a script in `realworld/programs` that trains with a library as
its users do, on a tiny random model, on the CPU. A row is one setting of one program.

- **bits**: losses of every step and final weights have the same bits with and without capture: at level L0
  with values, at mix, and at mix with all values.
- **again**: two runs of the same program agree (`trueup compare`, exit status 0).
- **seed**: another seed is found, and called a difference of data or weights.
- **check-run**: no check fails. `undecided` names those that cannot tell.
- **compare**, **diagnose**: of five planted faults (data, forward pass, loss, backward pass, optimizer) how
  many have the right stage and place in the first finding of `trueup compare`, and of
  `trueup diagnose --replay`.
- **compile parity**: `trueup check-run --compile-parity` passes, and of the operations that a compiler
  computes wrongly, one at a time, so many are named with their module.
- **time**: of the two captured steps, times that of the same steps without capture: at L0 with values, mix,
  and mix with values. These models compute next to nothing: it is what a call costs, not what a real
  training would see. Measured on a shared machine; single figures vary by a factor of two.
- -: not run yet.
"""


def page(results: dict[str, dict[str, Any]], programs: dict[str, Program]) -> str:
    """The whole page."""
    rows = [_row(programs[name], said) for name, said in results.items()]
    head = "| program | with | bits | again | seed | check-run | compare | diagnose | compile parity | time |"
    lines = [HEAD, head, "|---|---|---|---|---|---|---|---|---|---|", *rows, "", "## What does not hold", ""]
    left = [_line(programs[name], line) for name, said in results.items() for line in faults_of(said)]
    rest = [name for name in programs if name not in results]
    tail = ["", f"Not run yet: {', '.join(rest)}."] if rest else []
    return "\n".join([*lines, *(left or ["Nothing."]), *tail]) + "\n"


def _line(program: Program, line: str) -> str:
    why = next((why for start, why in program.known.items() if line.startswith(start)), None)
    return f"- `{program.name}`: {line.strip()}" + (f" (known: {why})" if why else "")


def _row(program: Program, said: dict[str, Any]) -> str:
    capture = said.get("capture", {})
    bits = ", ".join(
        f"{level} {'✓' if capture[level]['same_bits'] else '✗'}" for level in LEVELS if level in capture
    )
    times = " / ".join(f"{capture[level]['times_first_steps']:.1f}" for level in LEVELS if level in capture)
    versions = ", ".join(f"{name} {version}" for name, version in said["versions"].items() if name != "torch")
    again, seed = said.get("again"), said.get("seed")
    cells = [
        f"`{program.name}`: {program.summary}",
        versions or f"torch {said['versions'].get('torch', '')}",
        bits,
        _mark(again, again is not None and again["exit"] == 0),
        _mark(seed, seed is not None and seed["right"]),
        _checks(said.get("check_run")),
        _faults(said, "compare"),
        _faults(said, "diagnose"),
        _parity(said.get("parity")),
        times,
    ]
    return "| " + " | ".join(cells) + " |"


def _mark(said: dict[str, Any] | None, holds: bool) -> str:
    return "-" if said is None else "✓" if holds else "✗"


def _checks(said: dict[str, Any] | None) -> str:
    if said is None:
        return "-"
    failed, undecided = said.get("failed", []), said.get("undecided", [])
    words = [f"✗ {', '.join(failed)}" if failed else "✓"]
    return "; undecided: ".join([*words, *([", ".join(undecided)] if undecided else [])])


def _parity(said: dict[str, Any] | None) -> str:
    if not said:
        return "-"
    wrong = [by["right"] for name, by in said.items() if name != "none"]
    passed = "✓" if said.get("none", {}).get("right") else "✗"
    return f"{passed}; {sum(wrong)} of {len(wrong)}" if wrong else passed


def _faults(said: dict[str, Any], how: str) -> str:
    faults = said.get("faults", {})
    if not faults:
        return "-"
    wrong = [name for name, by in faults.items() if not by.get(how, {}).get("right")]
    right = f"{len(faults) - len(wrong)} of {len(faults)}"
    return f"{right} (not {', '.join(wrong)})" if wrong else right
