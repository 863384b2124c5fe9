"""The public and the blind part as Markdown: the worst first, dtypes and process counts apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from bugzoo.public.entries import PublicEntry, public_entries
from bugzoo.public.judging import HALF, MISLEADING, NOTHING, YES, CauseJudged, is_place, is_stage, judge_cause
from bugzoo.scoreboard.answers import Answer, from_compare, from_diagnose

Raw = dict[str, Any]
HERE = Path(__file__).resolve().parent
RESULTS, BLIND_COUNTS = HERE / "results.json", HERE / "blind.json"
BLIND_BEFORE = HERE / "blind_before.json"
"""figures of the blind part as they were when nobody had looked at what is said of it"""
OF_ROOT = ("loss", "(root)")
CAUSES = (MISLEADING, NOTHING, HALF, YES)
OPENED = """The blind part, a quarter that a hash of the names chose, was opened on 27 November 2026: nobody
had looked at what is said of its faults until then. The figures before that:
"""
SINCE = """Three faults whose causes had been told truly, by codes that were not written down for them, were
given these codes (with them the same answers are 82 % yes, 14 % half, 5 % misleading). What the other four
showed was mended ([decision 96](../docs/decisions/0096-what-a-blind-part-showed.md)). Nothing is blind since;
the figures after that:
"""
HEAD = """Mistakes that people reported in public, in model families and of kinds that no rule was made for
(`bugzoo/public`; what was said of each is in `bugzoo/public/results.json`). Each is run through `capture
--preset diagnose`, `noise -k 3` of the reference once a program, `compare` and `diagnose --replay`.

**Cause**: whether headline, first kind and evidence of the first finding tell it, by codes, identifiers and
numbers that were written down beforehand: *yes*; *half* where the place is right; *nothing* where there is no
finding; *misleading* where anything stated is false, whatever else is said, or the runs are said to agree.
"""


@dataclass(frozen=True, kw_only=True)
class PublicRow:
    """One entry with its documents."""

    entry: PublicEntry
    raw: Raw

    @property
    def failed(self) -> bool:
        """Whether a command ended as it must not."""
        return "failed" in self.raw

    @property
    def diagnosed(self) -> Answer:
        """What ``diagnose --replay`` says."""
        return from_diagnose(self.raw["diagnose"], seconds=self.raw["diagnose_seconds"])

    @property
    def compared(self) -> Answer:
        """What ``compare`` says; the loss, and what the whole model is given and gives, are the root's."""
        said = from_compare(self.raw["compare"], seconds=self.raw["compare_seconds"])
        named = [replace(one, site="" if one.site in OF_ROOT else one.site) for one in said.named]
        return replace(said, named=named)

    @property
    def cause(self) -> CauseJudged:
        """Of a fault."""
        if self.failed:
            return CauseJudged(cause=NOTHING, false=[])
        return judge_cause(self.entry, self.raw["diagnose"], self.diagnosed)

    def is_right(self, what: str) -> bool:
        """``compare`` (place), ``stage`` or ``place`` of the diagnosis."""
        if self.failed:
            return False
        answer = self.compared if what == "compare" else self.diagnosed
        named = answer.named[0] if answer.named and answer.outcome != "agree" else None
        if named is None:
            return False
        return is_stage(self.entry, named) if what == "stage" else is_place(self.entry, named)


def rows_of(raw: Iterable[Raw]) -> list[PublicRow]:
    """Those whose entry there is still."""
    known = public_entries()
    return [PublicRow(entry=known[one["entry"]], raw=one) for one in raw if one["entry"] in known]


def figures(rows: list[PublicRow]) -> list[str]:
    """Tables without names: totals, and by dtype and number of processes, the worst first."""
    faults = [row for row in rows if not row.entry.is_benign]
    benign = [row for row in rows if row.entry.is_benign]
    lines = [
        "| faults | cause: misleading | nothing | half | yes | compare: place "
        "| diagnose: stage | place | seconds | noise: seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups = [(name, [row for row in faults if chosen(row.entry)]) for name, chosen in GROUPS]
    rated = sorted((g for g in groups[1:] if g[1]), key=lambda group: _share(group[1], YES))
    lines += [_line(f"{name} ({len(group)})", group) for name, group in [groups[0], *rated] if group]
    lines += ["", "| benign | called a fault | undecided | exit 0 |", "|---|---|---|---|"]
    for name, chosen in GROUPS:
        group = [row for row in benign if chosen(row.entry)]
        if group:
            outcomes = ["failed" if row.failed else row.diagnosed.outcome for row in group]
            counts = [outcomes.count(one) for one in ("differ", "undecided", "agree")]
            lines.append(f"| {name} ({len(group)}) | {' | '.join(map(str, counts))} |")
    failed = sum(row.failed for row in rows)
    if any(row.raw.get("is_warm") for row in rows):
        lines += ["", "Seconds are without the imports of PyTorch and transformers."]
    return [*lines, "", *([f"No answer to {failed} entries: a command failed.", ""] if failed else [])]


GROUPS: list[tuple[str, Callable[[PublicEntry], bool]]] = [
    ("all", lambda entry: True),
    ("fp32, one process", lambda entry: entry.dtype == "fp32" and entry.processes == 1),
    ("bf16 and fp16, one process", lambda entry: entry.dtype != "fp32" and entry.processes == 1),
    ("two processes", lambda entry: entry.processes == 2),
]


def _share(rows: list[PublicRow], cause: str) -> float:
    return sum(row.cause.cause == cause for row in rows) / len(rows)


def _line(name: str, rows: list[PublicRow]) -> str:
    cells = [f"{_share(rows, cause):.0%}" for cause in CAUSES]
    cells += [
        f"{sum(row.is_right(what) for row in rows) / len(rows):.0%}" for what in ("compare", "stage", "place")
    ]
    answered = [row for row in rows if not row.failed]
    taken = [[row.raw["diagnose_seconds"] for row in answered], [_noise_seconds(row) for row in answered]]
    cells += [f"{median(seconds):.0f}" if seconds else "" for seconds in taken]
    return f"| {name} | {' | '.join(cells)} |"


def _noise_seconds(row: PublicRow) -> float:
    return float(row.raw["reference_seconds"]["noise"])


def details(rows: list[PublicRow]) -> list[str]:
    """Every fault and every control, the worst first."""
    faults = sorted(
        (row for row in rows if not row.entry.is_benign), key=lambda row: CAUSES.index(row.cause.cause)
    )
    lines = ["| fault | program | true | cause | false | compare | stage | place | said |", "|---" * 9 + "|"]
    for row in faults:
        judged, entry = row.cause, row.entry
        marks = ["yes" if row.is_right(what) else "**no**" for what in ("compare", "stage", "place")]
        name = f"[{entry.name}]({entry.link})" if entry.link.startswith("http") else entry.name
        said = "a command failed" if row.failed else row.raw["diagnose"]["headline"]
        cells = [
            name,
            entry.base,
            entry.summary,
            judged.cause,
            ", ".join(dict.fromkeys(judged.false)),
            *marks,
            said,
        ]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    lines += ["", "| benign | program | outcome | said |", "|---|---|---|---|"]
    order = ("differ", "undecided", "agree")
    benign = [row for row in rows if row.entry.is_benign]
    for row in sorted(benign, key=lambda row: -1 if row.failed else order.index(str(row.diagnosed.outcome))):
        outcome = "failed" if row.failed else str(row.diagnosed.outcome)
        shown = f"**{outcome}**" if outcome != "agree" else outcome
        said = "a command failed" if row.failed else row.raw["diagnose"]["headline"]
        lines.append(f"| {row.entry.name} | {row.entry.base} | {shown} | {said.replace('|', '/')} |")
    return [*lines, ""]


def section() -> list[str]:
    """Of the scoreboard, from the kept results."""
    if not RESULTS.exists():
        return []
    rows = rows_of(json.loads(RESULTS.read_text(encoding="utf-8")))
    lines = ["## Public part\n", HEAD, *figures(rows)]
    if BLIND_COUNTS.exists():
        for words, counts in ((OPENED, BLIND_BEFORE), (SINCE, BLIND_COUNTS)):
            lines += [words, *json.loads(counts.read_text(encoding="utf-8"))]
    return lines


def all_entries() -> list[str]:
    """Of the scoreboard: every entry of the public part."""
    if not RESULTS.exists():
        return []
    return [
        "## Entries of the public part\n",
        *details(rows_of(json.loads(RESULTS.read_text(encoding="utf-8")))),
    ]
