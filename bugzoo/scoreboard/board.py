"""The scoreboard as Markdown, from the raw answers alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from bugzoo.bases import bases
from bugzoo.entries import HELD_OUT, TUNING, Entry, entries
from bugzoo.public import board as public
from bugzoo.scoreboard import reliability
from bugzoo.scoreboard.answers import RAN, Answer
from bugzoo.scoreboard.curves import MOST, Curves
from bugzoo.scoreboard.judging import Judged, judge
from bugzoo.scoreboard.runs import ACROSS, MODES, PASSIVE, REPLAY, SKETCHES, VALUES

Raw = dict[str, Any]
_MARK = {True: "yes", False: "**no**", None: ""}
_BARS = {
    (REPLAY, "stage"): 0.95,
    (REPLAY, "site"): 0.90,
    (REPLAY, "among_three"): 0.97,
    (REPLAY, "kind"): 0.70,
    (REPLAY, "whose"): 0.90,
    (ACROSS, "site"): 0.80,
    (VALUES, "site"): 0.80,
    (SKETCHES, "site"): 0.70,
}
_HEAD = """# Scoreboard of the fault collection

Written by `make zoo` (`bugzoo/zoo.py`); the raw answers are in `scoreboard.json`. Every entry is run through
trueup's public commands: `capture --preset diagnose` of both programs, `noise -k 3` of the reference once per
base, then

- *compare*: the verdict of `compare --json` on traces with values, with the noise profile;
- *compare from sketches*: the same on traces that hold statistics and sketches only;
- *diagnose*: `diagnose --json` on the traces alone; *diagnose with replay*: the same with `--replay`;
- *diagnose across layouts*: `diagnose --json` of the reference trainer's parallel layouts on the traces
  alone, against the same training in one process.

**Stage** and **site** are the first finding's; a fault that no module owns (data, settings of the optimizer)
counts as found where its stage is named. **Top 3**: a right site among the first three findings. **Kind**:
the first kind of the first finding is one of those expected. **Whose**: of several processes it names those
that err, or the axis of the mesh along which they do not agree. A **false alarm** is a control whose runs are
said to differ. What is expected stands in `bugzoo/planted/*.yaml`; which entries are held out, in
docs/decisions/0006-two-parts-of-the-collection.md.

*msprobe* is its own `compare` (26.2.0, level L0, statistics) of both steps of the same programs: the module
of the first row it marks as error, else of the first warning, read kindly (where no module owns the fault,
any marked row counts). *Curve*: whether the printed losses of 20 steps part by more than {most:g}; *1st*:
whether the first loss differs in any printed digit.
"""


_CONFIDENCE = """What a conclusion's word is worth, over all modes (docs/decisions/0026-confidence.md;
`python bugzoo/calibration.py`): *divergence* is the place of `compare`, *place* and *kind* are those of
`diagnose`'s first finding.
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One entry with what was said of it."""

    entry: Entry
    raw: Raw

    def answer(self, mode: str) -> Answer | None:
        """What a command said; None where it was not asked."""
        plain = self.raw.get("answers", {}).get(mode)
        return Answer.from_json(plain) if plain else None

    def judged(self, mode: str) -> Judged:
        """Whether that is right."""
        return judge(self.entry, self.answer(mode))

    @property
    def msprobe(self) -> bool | None:
        """Whether msprobe names the site, or leaves a control alone."""
        plain = self.raw.get("msprobe")
        if plain is None or plain["state"] != RAN:
            return None
        answer = Answer.from_json(plain)
        if self.entry.is_benign:
            return answer.outcome == "agree"
        return bool(answer.named) and self.entry.is_site(answer.named[0].site)

    @property
    def curves(self) -> Curves | None:
        """The two loss curves."""
        plain = self.raw.get("curves")
        return Curves(**plain) if plain else None


def board(raw: Iterable[Raw]) -> str:
    """The whole page."""
    rows = [Row(entry=entries()[one["entry"]], raw=one) for one in raw if one["entry"] in entries()]
    faults = [row for row in rows if not row.entry.is_benign]
    controls = [row for row in rows if row.entry.is_benign]
    parts = [
        _HEAD.format(most=MOST),
        *public.section(),
        *_not_run(rows),
        "## Figures\n",
        *_figures(faults, controls),
        *_reliability(),
        "## Faults\n",
        *_faults(faults),
        "## Controls\n",
        *_controls(controls),
        *public.all_entries(),
    ]
    return "\n".join(parts) + "\n"


def _reliability() -> list[str]:
    """Of the counts that ``bugzoo/calibration.py`` has written."""
    if not reliability.RELIABILITY.exists():
        return []
    counts = json.loads(reliability.RELIABILITY.read_text(encoding="utf-8"))
    return ["## Confidence\n", _CONFIDENCE, *reliability.table(counts), ""]


def _not_run(rows: list[Row]) -> list[str]:
    """What is missing, in words, so that an empty column is not taken for a good one."""
    said = []
    for mode in MODES:
        asked = [row for row in rows if mode != ACROSS or bases()[row.entry.base].alone is not None]
        states = [answer.state for row in asked if (answer := row.answer(mode)) is not None]
        missing = len(asked) - states.count(RAN)
        if missing:
            said.append(f"- {mode}: no answer to {missing} of {len(asked)} entries")
    without = sum(row.raw.get("noise") != "measured" for row in rows)
    if without:
        said.append(f"- no noise profile for {without} of {len(rows)} entries")
    again = sum(bool(row.raw.get("is_judged_again")) for row in rows)
    if again:
        said.append(
            f"- answers to {again} of {len(rows)} entries are of kept runs judged again; seconds are older"
        )
    unasked = sum("curves" not in row.raw for row in rows)
    if unasked:
        said.append(f"- loss curves: no answer for {unasked} of {len(rows)} entries")
    plain = [row for row in rows if not bases()[row.entry.base].is_on_mindspore]
    unasked = sum("msprobe" not in row.raw for row in plain)
    if unasked:
        said.append(f"- msprobe: no answer for {unasked} of {len(plain)} entries on PyTorch")
    if len(plain) < len(rows):
        said.append(f"- msprobe is not run on the {len(rows) - len(plain)} entries on MindSpore")
    warm = sum(bool(row.raw.get("is_warm")) for row in rows)
    if warm:
        said.append(f"- seconds of {warm} of {len(rows)} entries are without the import of PyTorch")
    return ["To know:\n", *said, ""] if said else []


def _figures(faults: list[Row], controls: list[Row]) -> list[str]:
    lines = []
    for mode in MODES:
        lines += [
            f"### {mode}\n",
            "| faults | stage | site | top 3 | kind | whose | median seconds |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, chosen in _groups(faults):
            shares = [_share(chosen, mode, what) for what in COLUMNS]
            if not any(shares):
                continue
            lines.append(f"| {name} | {' | '.join(shares)} | {_seconds(chosen, mode)} |")
        alarms = [judged for row in controls if (judged := row.judged(mode).false_alarm) is not None]
        undecided = sum((a := row.answer(mode)) is not None and a.outcome == "undecided" for row in controls)
        lines += ["", f"False alarms: {sum(alarms)} of {len(alarms)} controls; undecided: {undecided}.", ""]
    lines += ["### Others\n", *_others(faults, controls), ""]
    return lines


COLUMNS = ("stage", "site", "among_three", "kind", "whose")


def _groups(faults: list[Row]) -> list[tuple[str, list[Row]]]:
    """All, both parts, and precisions in each."""
    wanted: list[tuple[str, Callable[[Entry], bool]]] = [
        ("all", lambda entry: True),
        (TUNING, lambda entry: entry.part == TUNING),
        (HELD_OUT, lambda entry: entry.part == HELD_OUT),
    ]
    wanted.append(("MindSpore against PyTorch", lambda entry: bases()[entry.base].is_on_mindspore))
    wanted.append(("several processes", lambda entry: bases()[entry.base].ranks > 1))
    for precision in ("fp32", "bf16", "fp16"):
        wanted.append((precision, partial(_is_one, precision=precision)))
        wanted += [
            (f"{precision}, {part}", partial(_is_one, precision=precision, part=part))
            for part in (TUNING, HELD_OUT)
        ]
    chosen = [(name, [row for row in faults if is_in(row.entry)]) for name, is_in in wanted]
    return [(f"{name} ({len(rows)})", rows) for name, rows in chosen if rows]


def _is_one(entry: Entry, *, precision: str, part: str | None = None) -> bool:
    return entry.precision == precision and part in (None, entry.part)


def _share(rows: list[Row], mode: str, what: str) -> str:
    """Right of asked, with the bar where there is one."""
    given = [right for row in rows if (right := getattr(row.judged(mode), what)) is not None]
    if not given or (what in ("kind", "whose") and mode in (VALUES, SKETCHES)):
        return ""
    share = sum(given) / len(given)
    bar = _BARS.get((mode, what))
    against = "" if bar is None else f" (bar {bar:.0%})"
    return f"{share:.0%}{against}"


def _seconds(rows: list[Row], mode: str) -> str:
    given = [a.seconds for row in rows if (a := row.answer(mode)) is not None and a.seconds is not None]
    return f"{median(given):.1f}" if given else ""


def _others(faults: list[Row], controls: list[Row]) -> list[str]:
    said = []
    named = [right for row in faults if (right := row.msprobe) is not None]
    alone = [right for row in controls if (right := row.msprobe) is not None]
    if named or alone:
        said.append(
            f"- msprobe: right site marked first for {sum(named)} of {len(named)} faults; "
            f"rows marked in {len(alone) - sum(alone)} of {len(alone)} controls"
        )
    curves = [curve for row in faults if (curve := row.curves) is not None]
    benign = [curve for row in controls if (curve := row.curves) is not None]
    if curves or benign:
        said.append(
            f"- loss curves: {sum(curve.is_seen for curve in curves)} of {len(curves)} faults part by more "
            f"than {MOST:g} in 20 steps, {sum(curve.first_equal for curve in curves)} print the same first "
            f"loss; {sum(curve.is_seen for curve in benign)} of {len(benign)} controls part as far"
        )
    return said


def _faults(rows: list[Row]) -> list[str]:
    last = " | kind | whose | msprobe | curve | 1st |"
    head = "| fault | base | part | expected | " + " | ".join(MODES) + last
    lines = ["For each command: stage, site, top 3.\n", head, "|---" * (head.count("|") - 1) + "|"]
    for row in rows:
        entry, curve = row.entry, row.curves
        where = entry.stage if entry.sites is None else f"{entry.stage}, `{entry.sites[0] or 'root'}`"
        cells = [entry.name, entry.base, entry.part, where]
        cells += [_cell(row, mode) for mode in MODES]
        cells += [_kind(row), _whose(row), _MARK[row.msprobe]]
        cells += [_MARK[curve and curve.is_seen], _MARK[curve and not curve.first_equal]]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return [*lines, ""]


def _cell(row: Row, mode: str) -> str:
    answer, judged = row.answer(mode), row.judged(mode)
    if answer is None or answer.state != RAN:
        return answer.state if answer else ""
    return " ".join(_MARK[right] for right in (judged.stage, judged.site, judged.among_three))


def _kind(row: Row) -> str:
    """Of the strongest command that answered."""
    for mode in (REPLAY, PASSIVE):
        answer = row.answer(mode)
        if answer is not None and answer.state == RAN:
            first = answer.named[0].kinds[0] if answer.named and answer.named[0].kinds else "none"
            return _MARK[True] if row.judged(mode).kind else f"**{first}**"
    return ""


def _whose(row: Row) -> str:
    """Of the strongest command that answered."""
    for mode in (REPLAY, PASSIVE):
        answer = row.answer(mode)
        if answer is not None and answer.state == RAN:
            first = answer.named[0] if answer.named else None
            said = "" if first is None else first.axis or ", ".join(map(str, first.ranks)) or "all"
            return f"**{said}**" if row.judged(mode).whose is False else _MARK[row.judged(mode).whose]
    return ""


def _controls(rows: list[Row]) -> list[str]:
    head = "| control | base | part | " + " | ".join(MODES) + " | msprobe | curve parts |"
    lines = [head, "|---" * (head.count("|") - 1) + "|"]
    for row in rows:
        entry, curve = row.entry, row.curves
        outcomes = [
            (answer.outcome if answer.state == RAN else answer.state) if (answer := row.answer(mode)) else ""
            for mode in MODES
        ]
        said = [f"**{outcome}**" if outcome == "differ" else str(outcome) for outcome in outcomes]
        apart = "" if curve is None else ("**yes**" if curve.is_seen else "no")
        alone = {True: "agree", False: "**marked**", None: ""}[row.msprobe]
        lines.append("| " + " | ".join([entry.name, entry.base, entry.part, *said, alone, apart]) + " |")
    return lines
