"""A page of advice: the verdict, the calls that introduce errors, their usual causes, what to check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import polars as pl

from trueup.reporting.comparison.report import (
    bracketed_words,
    next_lines,
    place_of,
    sources_of,
    unmatched_words,
)
from trueup.reporting.comparison.result import EXCEEDING, ComparisonResult
from trueup.reporting.document import (
    OUTCOMES,
    Block,
    Document,
    Look,
    Paragraph,
    Section,
    Source,
    Span,
    fact,
    facts,
    reason_text,
    source_fact,
)
from trueup.reporting.formatting import count, number, plain, ratio, short_frame, short_site
from trueup.types.codes import SuspectCode
from trueup.types.reason import Reason, reason
from trueup.types.result import ResultRow
from trueup.types.site import shown_name
from trueup.types.status import Outcome
from trueup.wording import advice, headline

NUM_SUSPECTS, NUM_PER_PHASE, NUM_PRECISION, NUM_UNMATCHED = 8, 4, 6, 5
_FOLLOWS = {
    "loss": ("forward",),
    "param_grad": ("forward", "loss", "backward"),
    "optimizer": ("forward", "loss", "backward", "param_grad"),
}
"""Phases whose differences are consequences where one of these phases differs already."""
_ROLES = (
    ("norm", "norm"),
    ("softmax", "softmax|attention"),
    ("embedding", "embed"),
    ("rotary", "rope|rotary"),
    ("dropout", "dropout"),
    ("activation", "gelu|silu|relu|swiglu|sigmoid|tanh"),
    ("loss", "cross_entropy|loss"),
    ("linear", "linear|matmul|addmm|bmm|einsum|__matmul__|conv"),
    ("collective", "all_reduce|reduce_scatter|all_gather|all_to_all"),
)
"""Role and pattern of API or class names, for calls that are not in the precision table."""
_BY_ROLE = {
    "norm": SuspectCode.NORM,
    "rotary": SuspectCode.ROTARY,
    "softmax": SuspectCode.SOFTMAX,
    "embedding": SuspectCode.EMBEDDING,
    "dropout": SuspectCode.DROPOUT,
    "activation": SuspectCode.ACTIVATION,
    "linear": SuspectCode.LINEAR,
    "head": SuspectCode.LINEAR,
    "bias_add": SuspectCode.LINEAR,
    "residual": SuspectCode.FORWARD,
    "other": SuspectCode.FORWARD,
}
"""In the forward pass."""
_BY_PHASE = {
    "param": SuspectCode.WEIGHT,
    "loss": SuspectCode.LOSS,
    "backward": SuspectCode.BACKWARD,
    "param_grad": SuspectCode.PARAMETER_GRADIENT,
    "collective": SuspectCode.COLLECTIVE,
    "optimizer": SuspectCode.OPTIMIZER,
}
_EARLIER = {SuspectCode.BACKWARD: {"forward", "loss"}, SuspectCode.OPTIMIZER: {"param_grad"}}
"""Phases that decide what to check."""


def advice_report(result: ComparisonResult, *, page: Path | None = None) -> Document:
    """Advice on two runs; ``page`` is the report that was written."""
    verdict = result.verdict
    place = (Span(plain(verdict.where or ""), Look.STRONG), place_of(result)) if verdict.where else ()
    rows = [
        fact("target", plain(result.path("target"))),
        fact("reference", plain(result.path("reference"))),
        fact("location", *place),
        source_fact(sources_of(result)),
        fact("evidence", *map(reason_text, verdict.evidence)),
        fact("preceding", reason_text(verdict.before) if verdict.before else ""),
    ]
    return Document(
        title="Advice",
        mark=OUTCOMES[verdict.outcome],
        headline=plain(headline(verdict.headline)),
        blocks=(
            facts(rows),
            *_suspects(result),
            _precision(result),
            _unmatched(result),
            Section(title="Next step", blocks=_next(result, page)),
        ),
    )


def _next(result: ComparisonResult, page: Path | None) -> tuple[Block, ...]:
    lines = next_lines(result, str(page or "")) or [
        Span("trueup compare TARGET REFERENCE -o OUT", Look.COMMAND),
        "Then read OUT/report.html",
    ]
    return tuple(Paragraph(line=line) for line in lines)


def _suspects(result: ComparisonResult) -> Iterator[Section | Paragraph]:
    suspects = starting_calls(result)
    title = "Suspects, in execution order: calls whose output differs although their inputs agree"
    if not suspects and result.verdict.outcome is Outcome.DIFFER:
        nothing = "Every difference is in the inputs already: see parameters, data and unmatched records."
        yield Section(title="Suspects", blocks=(Paragraph(line=nothing),))
    elif suspects:
        yield Paragraph(line=Span(title, Look.STRONG))
    roles = _known_roles(result)
    differing = differing_phases(result)
    shown: set[SuspectCode] = set()
    for at, row in enumerate(suspects, start=1):
        role = roles.get((row["module"], row["name"])) or _role(row)
        causes = causes_of(role, row["phase"], differing)
        yield _suspect(result, at, row, role, None if causes.code in shown else causes)
        shown.add(causes.code)  # type: ignore[arg-type]


def _suspect(result: ComparisonResult, at: int, row: ResultRow, role: str, causes: Reason | None) -> Section:
    measured = f"rel L2 {number(row['rel_l2'])}, tolerance {number(row['tolerance'])}"
    frames = [Source("target", *short_frame(plain(frame))) for frame in result.frames(row, "target")[:1]]
    rows = [
        fact("measured", f"{measured} ({ratio(row['score'])} tolerance), from {row['evidence']}"),
        source_fact(frames),
        *(
            []
            if causes is None
            else [fact("usual causes", reason_text(causes)), fact("check", *_checks(causes))]
        ),
    ]
    note = ", ".join(part for part in (str(row["phase"]).replace("_", " "), role) if part)
    return Section(title=f"{at}. {short_site(plain(row['site']))}", note=note, blocks=(facts(rows),))


def _checks(causes: Reason) -> list[str]:
    return (advice(causes) or "").split("; ")


def causes_of(role: str, phase: str, differing: set[str]) -> Reason:
    """The usual causes of a difference that starts at a call of this role, in this phase."""
    code = _BY_ROLE.get(role) if phase == "forward" else _BY_PHASE.get(phase)
    code = code or SuspectCode.OTHER
    if code not in _EARLIER:
        return reason(code)
    return reason(code, earlier_phase_differs=bool(differing & _EARLIER[code]))


def _known_roles(result: ComparisonResult) -> Mapping[tuple[str | None, str], str]:
    """Roles of calls, by module and name, from the precision table."""
    columns = pl.col("module", "name", "role").cast(pl.String)
    rows = result.precision.select(columns).unique().collect(engine="streaming")
    return {(module, name): role for module, name, role in rows.iter_rows()}


def _role(row: ResultRow) -> str:
    words = f"{row['name']} {row['type'] or ''}"
    return next((role for role, pattern in _ROLES if re.search(pattern, words, re.IGNORECASE)), "")


def differing_phases(result: ComparisonResult) -> set[str]:
    """Phases with a record that exceeds its tolerance, in the verdict's step and rank."""
    rows = _rows_of_verdict(result).filter(pl.col("status").is_in(EXCEEDING))
    return set(rows.select(pl.col("phase").unique()).collect(engine="streaming")["phase"].to_list())


def _rows_of_verdict(result: ComparisonResult) -> pl.LazyFrame:
    """Records of the verdict's step and rank, categories as text."""
    categories = pl.col("status", "phase", "slot", "kind", "module", "name", "type", "evidence")
    return result.of_verdict().with_columns(categories.cast(pl.String))


def starting_calls(result: ComparisonResult) -> list[ResultRow]:
    """First records that exceed tolerance of calls whose inputs agree, of the verdict's step and rank."""
    exceeds = pl.col("status").is_in(EXCEEDING)
    received = pl.col("slot").str.starts_with(
        pl.when(pl.col("phase") == "backward").then(pl.lit("output")).otherwise(pl.lit("input"))
    )
    call = ["step", "rank", "phase", pl.coalesce("target_call", "reference_call")]
    arrived = (exceeds & received).any().over(call)
    rows = _rows_of_verdict(result).with_columns(_arrived=arrived)
    starting = rows.filter(exceeds & ~received & ~pl.col("_arrived"))
    chosen = starting.sort("step", "order").unique(["phase", "module"], keep="first", maintain_order=True)
    return without_consequences(
        cast(list[ResultRow], chosen.head(400).collect(engine="streaming").to_dicts())
    )


def without_consequences(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Without phases after one that differs, and without modules around one that is kept; a call at the root
    is in no module."""
    differing = {row["phase"] for row in rows}
    kept: list[ResultRow] = []
    for row in rows:
        inside = f"{row['module']}." if row["module"] else ""
        around = any(
            other["phase"] == row["phase"] and (other["module"] or "").startswith(inside) for other in kept
        )
        of_phase = sum(other["phase"] == row["phase"] for other in kept)
        if not around and of_phase < NUM_PER_PHASE and not differing & set(_FOLLOWS.get(row["phase"], ())):
            kept.append(row)
    return kept[:NUM_SUSPECTS]


def _precision(result: ComparisonResult) -> Section:
    table = result.precision.filter(pl.col("differs")).sort("order").collect(engine="streaming")
    lines = dict.fromkeys(map(_precision_line, table.iter_rows(named=True)))
    blocks = tuple(Paragraph(line=line) for line in list(lines)[:NUM_PRECISION])
    return Section(title=f"Precision: {count(table.height, 'call')} with different dtypes", blocks=blocks)


def _precision_line(row: Mapping[str, object]) -> str:
    name = short_site(str(row["name"] if row["name"] != row["module"] else row["type"]))
    return (
        f"{shown_name(str(row['module'] or ''))} · {name} ({row['role']}): {row['note'] or 'dtypes differ'}"
    )


def _unmatched(result: ComparisonResult) -> Section:
    lines = [
        f"{one.side}: {unmatched_words(one)} ({count(one.count, 'record')})"
        for one in result.unmatched[:NUM_UNMATCHED]
    ]
    return Section(
        title=f"Unmatched: {count(result.num_unmatched_groups, 'group')}, {bracketed_words(result)}",
        blocks=tuple(Paragraph(line=line) for line in lines),
    )
