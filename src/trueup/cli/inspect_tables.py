"""The tables ``trueup inspect`` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trueup.capture.launch.outcome import count, describe, shown_path, size
from trueup.store import StepTables, TraceSource, layout
from trueup.types.trace import ScalarLine

_MOST_STEPS = 40
_FULL_WIDTH = 120
_WORDS = ("phase", "slot", "dtype", "shape")
_STATISTICS = {"min": "minimum", "max": "maximum", "mean": "mean", "l2 norm": "l2_norm"}
_WIDE = ("dtype", "min", "max", "mean")
"""columns that a narrow terminal has no room for"""
_MODE_OF_INTEREST = ("eval", "recompute")


def print_overview(
    trace: TraceSource, steps: dict[int, list[int]], console: Console, *, rank: int | None
) -> None:
    """Facts of the run, one line a step and rank, and what capture could not do."""
    for line in _facts(trace, steps):
        console.print(line)
    if not steps:
        console.print(Text("no complete step", style="bold red"))
    rows = [(step, one) for step, ranks in steps.items() for one in ranks if rank is None or one == rank]
    if rows:
        console.print(_steps_table(trace, rows[:_MOST_STEPS]))
    if len(rows) > _MOST_STEPS:
        console.print(f"and {len(rows) - _MOST_STEPS} more; --step N shows one", style="dim")
    for line in _troubles(trace, sorted({one for _, one in rows} | ({0} if not rows else set()))):
        console.print(line)


def print_records(
    trace: TraceSource, console: Console, *, step: int, rank: int, find: str | None, limit: int
) -> int:
    """Records of one step of one rank, in execution order; returns how many there are that ``find`` keeps."""
    frame = records_with_sites(trace.read(step, rank))
    if find is not None:
        text = pl.concat_str("site", pl.lit(" "), pl.col("type").fill_null(""))
        wanted = text.str.to_lowercase().str.contains(find.lower(), literal=True)
        frame = frame.filter(wanted)
    rows = [_record_cells(row) for row in frame.head(limit).iter_rows(named=True)]
    left_out = _WIDE if console.is_terminal and console.width < _FULL_WIDTH else ()
    used = {name for row in rows for name, cell in row.items() if cell} - {*left_out}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("site", overflow="fold", min_width=24)
    for column in (*_WORDS, *_STATISTICS, "nan", "inf"):
        if column in used:
            table.add_column(column, justify="left" if column in _WORDS else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for name, cell in row.items() if name == "site" or name in used))
    if frame.height:
        console.print(f"step {step}, rank {rank}: {count(frame.height, 'record')}")
        console.print(table)
    if left_out and rows:
        words = f"{', '.join(left_out)}: in a terminal of {_FULL_WIDTH} columns or more, and in a file"
        console.print(words, style="dim")
    if frame.height > limit:
        console.print(f"and {frame.height - limit} more; --limit N or --find TEXT", style="dim")
    return frame.height


def _reasons(tables: StepTables) -> pl.Series:
    """Text that capture wrote about each record, else what is concluded of it."""
    from trueup.wording import text

    written: pl.Series = tables.records["reason"].cast(pl.String)
    if not tables.reasons:
        return written
    known = [text(tables.reasons[row]) if row in tables.reasons else None for row in range(len(written))]
    both: pl.Series = written.zip_with(written.is_not_null(), pl.Series(known, dtype=pl.String))
    return both


def records_with_sites(tables: StepTables) -> pl.DataFrame:
    """Records beside their summaries, with ``site``: ``layers.0.attn · torch.matmul[1] · output.0``."""
    calls = tables.calls.select("call", "parent", "kind", "name", "type", "ordinal", "mode", "microbatch")
    words = [pl.col(c).cast(pl.String) for c in ("kind", "name", "type", "mode")]
    calls = calls.with_columns(words)
    parents = calls.select(parent="call", parent_name="name")
    frame = (
        tables.records.drop("microbatch")
        .with_columns(pl.col("phase", "slot").cast(pl.String), reason=_reasons(tables))
        .join(calls, on="call", how="left", maintain_order="left")
        .join(parents, on="parent", how="left", maintain_order="left")
        .join(tables.summaries, on="summary", how="left", maintain_order="left")
    )
    below = pl.when(pl.col("kind").is_in(["api", "collective"]) & pl.col("parent_name").is_not_null())
    named = pl.when(pl.col("name") == "").then(pl.lit("(root)")).otherwise(pl.col("name"))
    parent = pl.when(pl.col("parent_name") == "").then(pl.lit("(root)")).otherwise(pl.col("parent_name"))
    call = pl.concat_str(
        named, pl.when(pl.col("ordinal") > 0).then(pl.format("[{}]", "ordinal")).otherwise(pl.lit(""))
    )
    owner = below.then(pl.concat_str(parent, pl.lit(" · "))).otherwise(pl.lit(""))
    unusual = (
        pl.when(pl.col("mode").is_in(_MODE_OF_INTEREST))
        .then(pl.format(" ({})", "mode"))
        .otherwise(pl.lit(""))
    )
    batch = (
        pl.when(pl.col("microbatch") > 0)
        .then(pl.format(" · microbatch {}", "microbatch"))
        .otherwise(pl.lit(""))
    )
    return frame.with_columns(site=pl.concat_str(owner, call, unusual, batch, pl.lit(" · "), pl.col("slot")))


def _facts(trace: TraceSource, steps: dict[int, list[int]]) -> Iterator[Text]:
    manifest = trace.manifest
    ranks = sorted({rank for there in steps.values() for rank in there})
    yield Text(shown_path(trace.path), style="bold")
    version = " ".join(str(manifest[k]) for k in ("framework", "framework_version") if manifest.get(k))
    level, task = manifest.get("level"), manifest.get("task")
    yield Text(f"{version}, level {level}, task {task}, world size {manifest.get('world_size', '?')}")
    command = manifest.get("command")
    if command:
        yield Text(f"command: {' '.join(map(str, command)) if isinstance(command, list) else command}")
    if manifest.get("created"):
        yield Text(f"created: {manifest['created']}")
    if steps:
        yield Text(f"{describe(list(steps), 'step')}; {describe(ranks, 'rank')}")
    for other in layout.other_traces(trace.path):
        yield Text(f"trace of another process group of the same job: {shown_path(other)}")


def _steps_table(trace: TraceSource, rows: list[tuple[int, int]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("step", "rank", "calls", "sites", "tensors", "stored", "on disk", "loss", "grad norm"):
        table.add_column(column, justify="right", no_wrap=True)
    scalars = {rank: {line.get("step"): line for line in trace.scalars(rank)} for _, rank in rows}
    for step, rank in rows:
        tables = trace.read(step, rank)
        line: ScalarLine = scalars[rank].get(step, {})
        stored = int(tables.summaries["tensor"].is_not_null().sum())
        cells = (step, rank, tables.calls.height, tables.records.height, tables.summaries.height, stored)
        disk = _bytes_on_disk(trace, step, rank)
        numbers = (_number(line.get("loss")), _number(line.get("grad_norm")))
        table.add_row(*(f"{cell:,}" for cell in cells), "" if disk is None else size(disk), *numbers)
    return table


def _bytes_on_disk(trace: TraceSource, step: int, rank: int) -> int | None:
    folder = layout.rank_dir(trace.path, step, rank)
    if not folder.is_dir():
        return None
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _troubles(trace: TraceSource, ranks: list[int]) -> Iterator[Text]:
    """What is missing, limits and failures, each sentence once, with the ranks that say it."""
    missing: dict[str, list[int]] = {}
    limits: dict[str, list[int]] = {}
    failures: dict[str, list[int]] = {}
    for rank in ranks:
        for sentence in trace.missing(rank):
            missing.setdefault(sentence, []).append(rank)
        facts = trace.rank_facts(rank)
        for sentence in facts.get("limits") or []:
            limits.setdefault(str(sentence), []).append(rank)
        for failure in facts.get("failures") or []:
            text = f"step {failure.get('step')}, {failure.get('site')}: {failure.get('error')}"
            failures.setdefault(text, []).append(rank)
    for sentence, there in missing.items():
        yield Text(f"missing ({describe(there, 'rank')}): {sentence}", style="yellow")
    for sentence, there in failures.items():
        yield Text(f"failure of capture ({describe(there, 'rank')}): {sentence}", style="red")
    for sentence, there in limits.items():
        yield Text(f"limit ({describe(there, 'rank')}): {sentence}", style="yellow")


def _record_cells(row: dict[str, Any]) -> dict[str, str]:
    """The cells of a record by their column; why there is no summary stands behind the site."""
    cells = dict.fromkeys(("site", *_WORDS, *_STATISTICS, "nan", "inf"), "")
    cells |= {"site": row["site"].rpartition(" · ")[0], "phase": row["phase"], "slot": row["slot"]}
    if row["dtype"] is None:
        return cells | {"site": f"{cells['site']}  {row['reason'] or ''}".rstrip()}
    num_inf = (row["num_posinf"] or 0) + (row["num_neginf"] or 0)
    return {
        **cells,
        "dtype": str(row["dtype"]),
        "shape": json.dumps(list(row["shape"])),
        **{name: _number(row[key]) for name, key in _STATISTICS.items()},
        "nan": str(row["num_nan"] or ""),
        "inf": str(num_inf or ""),
    }


def _number(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else ""
