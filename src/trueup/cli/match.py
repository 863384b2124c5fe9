"""``trueup match``: which module, weight and call of one run is which of the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trueup.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from trueup.matching.report import Line, MatchReport

MOST_LINES = 40
"""lines of a table on the screen; the file has all"""


def command(
    target: Annotated[Path, typer.Argument(help="The run under question.")],
    reference: Annotated[Path, typer.Argument(help="The run that is trusted.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the pairs as YAML, to be edited and given back."),
    ] = None,
    mapping: Annotated[
        Path | None, typer.Option("--map", help="Pairs that are given: what trueup match -o wrote.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a map that is there.")] = False,
    step: Annotated[int | None, typer.Option(min=0, help="Match on this step. Default: the first.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show every pair.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Pair the modules, weights and calls of two runs, of one program or of two implementations.

    What is unsure comes first. Ends with 0 if nothing is unsure, 1 if something is, 2 if nothing can be
    paired.
    """
    from trueup.importers import open_trace
    from trueup.matching.mapping import read_mapping
    from trueup.matching.report import match_traces, write_map
    from trueup.wording import text

    if output is not None and output.exists() and not overwrite:
        raise ConfigError(f"{output} is there already; --overwrite replaces it, -o writes another")
    given = None if mapping is None else read_mapping(mapping)
    report = match_traces(open_trace(target), open_trace(reference), step=step, given=given)
    if output is not None:
        write_map(report, output, text)
    if as_json:
        _print_json(report)
    else:
        from rich.console import Console

        _show(report, Console(), most=None if everything else MOST_LINES, output=output)
    raise typer.Exit(report.exit_code)


def _print_json(report: MatchReport) -> None:
    import json

    from trueup.wording import document

    parts = {
        name: [document(line) for line in getattr(report, name)] for name in ("modules", "weights", "calls")
    }
    print(json.dumps({**parts, "across": report.across, "exit_code": report.exit_code}, ensure_ascii=False))


def _show(report: MatchReport, console: Console, *, most: int | None, output: Path | None) -> None:
    for title, lines in (
        ("Unsure", report.unsure),
        ("Modules", report.modules),
        ("Weights", report.weights),
        ("Calls", report.calls if most is None else []),
    ):
        _table(title, _collapsed(lines), console, most)
    for name in ("modules", "weights", "calls"):
        lines = getattr(report, name)
        paired = sum(line.paired for line in lines)
        alone = [sum(line.reference is None for line in lines), sum(line.target is None for line in lines)]
        console.print(
            f"{name}: {paired} paired, {alone[0]} of the target and {alone[1]} of the reference alone"
        )
    if output is not None:
        console.print(f"written to {output}; edit it and give it back: trueup compare --map {output}")


def _collapsed(lines: Sequence[Line]) -> list[tuple[Line, int]]:
    """Lines that differ in their layer's number alone are one, with a count."""
    from trueup.matching.names import like

    found: dict[tuple[str, ...], tuple[Line, int]] = {}
    for line in lines:
        key = *(like(name or "") for name in (line.target, line.reference, _why(line))), line.how
        first, count = found.get(key, (line, 0))
        found[key] = first, count + 1
    return list(found.values())


def _why(line: Line) -> str:
    from trueup.wording import text

    return "" if line.reason is None else text(line.reason)


def _table(title: str, lines: list[tuple[Line, int]], console: Console, most: int | None) -> None:
    from rich.table import Table
    from rich.text import Text

    if not lines:
        return
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("target", "reference", "how", "sure", "times"):
        table.add_column(name, overflow="fold", justify="right" if name in ("sure", "times") else "left")
    shown = lines if most is None else lines[:most]
    for line, count in shown:
        sure = f"{line.confidence:.2f}" if line.paired else ""
        cells = (line.target or "—", line.reference or "—", line.how or _why(line), sure, str(count))
        table.add_row(*map(Text, cells))
    console.print(table)
    if len(shown) < len(lines):
        console.print(f"and {len(lines) - len(shown)} more: --all")
    console.print()
