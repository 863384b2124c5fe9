"""A page of advice: the verdict, where errors start and do not just pass, their usual causes, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from textwrap import fill
from typing import Any

import polars as pl
import yaml

from trueup.reporting.formatting import count, number, plain, ratio, short_frame, short_site
from trueup.reporting.model import BEYOND, PAGE, Report, Verdict

NUM_SUSPECTS = 8
NUM_PER_PHASE = 4
_FOLLOWS = {
    "loss": ("forward",),
    "param_grad": ("forward", "loss", "backward"),
    "optimizer": ("forward", "loss", "backward", "param_grad"),
}
"""Phases whose differences are consequences where one of these phases differs already."""

WIDTH = 100


def write_advisor(report: Report, path: Path) -> None:
    """Write the advice as text; it always says something a person can act on."""
    page = path.parent / PAGE
    path.write_text(plain_lines(advice(report, page if page.is_file() else None)), encoding="utf-8")


def plain_lines(lines: Iterator[str]) -> str:
    """Lines as one text without control characters."""
    return "\n".join("\n".join(plain(part) for part in line.split("\n")) for line in lines) + "\n"


def advice(report: Report, page: Path | None = None) -> Iterator[str]:
    """The lines of the advice; ``page`` is the report that was written already."""
    verdict = report.verdict
    yield f"trueup: advice on {report.path('target')} against {report.path('reference')}"
    yield ""
    yield f"VERDICT  {verdict.outcome}: {verdict.headline}"
    if verdict.where:
        place = f"step {verdict.step}, rank {verdict.rank}, {verdict.phase}"
        yield f"Where    {verdict.where} ({place})"
        for side in ("target", "reference"):
            for frame in report.frames(report.first(), side)[:1]:
                yield f"         {side}: {' | '.join(part for part in short_frame(frame) if part)}"
    for sentence in verdict.evidence:
        yield _wrapped("- " + sentence)
    if verdict.before:
        yield _wrapped("- before it: " + verdict.before)
    yield ""
    yield from _suspects(report)
    yield from _precision(report)
    yield from _unmatched(report)
    yield "NEXT"
    yield from _next(verdict.with_page(page))


def _next(verdict: Verdict) -> Iterator[str]:
    """A command stands on a line of its own, whole: it is copied."""
    if not verdict.advice:
        yield "  trueup compare TARGET REFERENCE -o OUT"
        yield "  then read OUT/report.html"
    for line in (verdict.next, verdict.next_note):
        if line:
            yield f"  {line}"


def _wrapped(text: str, indent: str = "  ") -> str:
    return fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False)


def _suspects(report: Report) -> Iterator[str]:
    suspects = _starting_calls(report)
    if not suspects:
        if report.verdict.outcome == "differ":
            yield "SUSPECTS\n  Every difference arrives with inputs: see parameters, data, unmatched.\n"
        return
    rules = yaml.safe_load((files("trueup.reporting") / "advice.yaml").read_text(encoding="utf-8"))
    roles = {
        (row["module"], row["name"]): row["role"]
        for row in report.precision.select(pl.col("module", "name", "role").cast(pl.String))
        .unique()
        .collect(engine="streaming")
        .iter_rows(named=True)
    }
    yield "SUSPECTS, in execution order: what differs although what goes into it does not"
    differing = _differing_phases(report)
    given: set[int] = set()
    for place, row in enumerate(suspects, start=1):
        role = roles.get((row["module"], row["name"])) or _role(rules["roles"], row)
        yield ""
        yield f"  {place}. {short_site(row['site'])}   [{row['phase']}{', ' + role if role else ''}]"
        yield (
            f"     rel L2 {number(row['rel_l2'])}, allowed {number(row['tolerance'])}: "
            f"{ratio(row['score'])}, judged from {row['evidence']}"
        )
        for frame in report.frames(row, "target")[:1]:
            yield f"     {' | '.join(part for part in short_frame(frame) if part)}"
        rule = _rule(rules["rules"], role, row["phase"])
        if id(rule) not in given:
            given.add(id(rule))
            yield _wrapped(f"usual causes: {rule['causes']}.", "     ")
            for check in rule["check"]:
                yield _wrapped("-> " + _check(check, differing), "     ")
    yield ""


def _check(check: str | Mapping[str, Any], differing: set[str]) -> str:
    """What to look at; a sentence that rests on phases which agree only where they do."""
    if isinstance(check, str):
        return check
    return str(check["otherwise" if differing & set(check["agreeing"]) else "say"])


def _differing_phases(report: Report) -> set[str]:
    """Phases with a record beyond tolerance, in the verdict's step and rank."""
    rows = _rows_of_verdict(report).filter(pl.col("status").is_in(BEYOND))
    return set(rows.select(pl.col("phase").unique()).collect(engine="streaming")["phase"].to_list())


def _rows_of_verdict(report: Report) -> pl.LazyFrame:
    """Records of the verdict's step and rank, words as text."""
    rows = report.records.with_columns(
        pl.col("status", "phase", "slot", "kind", "module", "name", "type", "evidence").cast(pl.String)
    )
    if report.verdict.step is not None and report.verdict.rank is not None:
        rows = rows.filter((pl.col("step") == report.verdict.step) & (pl.col("rank") == report.verdict.rank))
    return rows


def _starting_calls(report: Report) -> list[dict[str, Any]]:
    """First records beyond tolerance of calls that got agreeing inputs, of the verdict's step and rank."""
    beyond = pl.col("status").is_in(BEYOND)
    rows = _rows_of_verdict(report)
    received = pl.col("slot").str.starts_with(
        pl.when(pl.col("phase") == "backward").then(pl.lit("output")).otherwise(pl.lit("input"))
    )
    call = ["step", "rank", "phase", pl.coalesce("target_call", "reference_call")]
    arrived = (beyond & received).any().over(call)
    starting = rows.with_columns(_arrived=arrived).filter(beyond & ~received & ~pl.col("_arrived"))
    chosen = starting.sort("step", "order").unique(["phase", "module"], keep="first", maintain_order=True)
    return _spread(chosen.head(400).collect(engine="streaming").to_dicts())


def _spread(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what only follows: phases after one that differs, and modules around one already named; a call
    at the root is in no module."""
    differing = {row["phase"] for row in rows}
    kept: list[dict[str, Any]] = []
    for row in rows:
        inside = f"{row['module']}." if row["module"] else ""
        around = any(
            other["phase"] == row["phase"] and (other["module"] or "").startswith(inside) for other in kept
        )
        of_phase = sum(other["phase"] == row["phase"] for other in kept)
        if not around and of_phase < NUM_PER_PHASE and not differing & set(_FOLLOWS.get(row["phase"], ())):
            kept.append(row)
    return kept[:NUM_SUSPECTS]


def _role(patterns: list[Mapping[str, str]], row: Mapping[str, Any]) -> str:
    text = f"{row['name']} {row['type'] or ''}"
    return next((str(entry["role"]) for entry in patterns if re.search(entry["pattern"], text)), "")


def _rule(rules: list[dict[str, Any]], role: str, phase: str) -> dict[str, Any]:
    for rule in rules:
        if (not rule["phases"] or phase in rule["phases"]) and (not rule["roles"] or role in rule["roles"]):
            return rule
    return rules[-1]


def _precision(report: Report) -> Iterator[str]:
    table = report.precision.filter(pl.col("differs")).sort("order").collect(engine="streaming")
    if table.height == 0:
        return
    yield f"PRECISION: {count(table.height, 'call')} in other dtypes than the reference"
    lines = []
    for row in table.iter_rows(named=True):
        name = short_site(str(row["name"] if row["name"] != row["module"] else row["type"]))
        place = f"{row['module'] or '(root)'} · {name} ({row['role']})"
        lines.append(f"- {place}: {row['note'] or 'dtypes differ'}")
    yield from (_wrapped(line) for line in list(dict.fromkeys(lines))[:6])
    yield ""


def _unmatched(report: Report) -> Iterator[str]:
    groups = report.unmatched()
    if not groups:
        return
    agree = (
        "all lie between matched sites that agree"
        if report.summary.get("bracketed")
        else "not all lie between sites that agree"
    )
    yield f"UNMATCHED: {count(report.num_unmatched_groups(), 'group')} seen in one run only; {agree}"
    for group in groups[:5]:
        yield _wrapped(
            f"- {group['side']}: {short_site(group['name'])} in {group['module'] or '(root)'}, "
            f"{count(int(group['count']), 'record')}: {group['reason']}"
        )
    yield ""
