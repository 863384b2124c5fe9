"""``trueup match``: which module, weight and call of one run corresponds to which of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trueup.cli.printing import print_json
from trueup.cli.shared import AllRows, Json, Overwrite, TracePair
from trueup.comparing.options import MappingOption
from trueup.errors import ConfigError
from trueup.types.option import Option

if TYPE_CHECKING:
    from rich.console import Console

    from trueup.matching.report import Line, MatchReport

_PARTS = ("modules", "weights", "calls")
MOST_LINES = 40
"""lines of a table on the screen; the file has all"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchOptions:
    """What is matched, and where the pairs go."""

    output: Annotated[
        Path | None, Option("Write the pairs as YAML, to be edited and given to --map.", "-o --output YAML")
    ] = None
    mapping: MappingOption = None
    overwrite: Overwrite = False
    step: Annotated[int | None, Option("Match on this step.", "--step", default="the first", least=0)] = None
    all_rows: AllRows = False
    as_json: Json = False


def command(runs: TracePair, options: MatchOptions) -> int:
    """Pair the modules, weights and calls of two runs, of one program or of two implementations.

    Uncertain pairs come first. Exit status: 0 if none is uncertain, 1 if one is, 2 if nothing can be paired.
    """
    from trueup.importers import open_trace
    from trueup.matching.mapping import read_mapping
    from trueup.matching.report import match_traces, write_map
    from trueup.wording import document, text

    output = options.output
    if output is not None and output.is_file() and not options.overwrite:
        raise ConfigError(f"{output} exists already; --overwrite replaces it, -o names another file")
    given = None if options.mapping is None else read_mapping(options.mapping)
    report = match_traces(open_trace(runs.target), open_trace(runs.reference), step=options.step, given=given)
    if output is not None:
        write_map(report, output, text)
    if options.as_json:
        lines = {name: [document(line) for line in getattr(report, name)] for name in _PARTS}
        print_json({**lines, "across": report.across, "exit_code": report.exit_code})
    else:
        from rich.console import Console

        _show(report, Console(), most=None if options.all_rows else MOST_LINES, output=output)
    return report.exit_code


def _show(report: MatchReport, console: Console, *, most: int | None, output: Path | None) -> None:
    for title, lines in (
        ("Uncertain", report.unsure),
        ("Modules", report.modules),
        ("Weights", report.weights),
        ("Calls", report.calls if most is None else []),
    ):
        _table(title, _collapsed(lines), console, most)
    for name in _PARTS:
        lines = getattr(report, name)
        paired = sum(line.paired for line in lines)
        only_target = sum(line.reference is None for line in lines)
        only_reference = sum(line.target is None for line in lines)
        console.print(
            f"{name}: {paired} paired, {only_target} only in the target, {only_reference} only in the "
            f"reference"
        )
    if output is not None:
        console.print(f"written to {output}; edit it and use it: trueup compare --map {output}")


def _collapsed(lines: Sequence[Line]) -> list[tuple[Line, int]]:
    """Lines that differ only in the number of their layer, as one with a count."""
    from trueup.matching.names import like

    collapsed: dict[tuple[str, ...], tuple[Line, int]] = {}
    for line in lines:
        key = *(like(name or "") for name in (line.target, line.reference, _why(line))), line.how
        first, count = collapsed.get(key, (line, 0))
        collapsed[key] = first, count + 1
    return list(collapsed.values())


def _why(line: Line) -> str:
    from trueup.wording import text

    return "" if line.reason is None else text(line.reason)


def _table(title: str, lines: list[tuple[Line, int]], console: Console, most: int | None) -> None:
    from rich.table import Table
    from rich.text import Text

    if not lines:
        return
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("target", "reference", "how", "confidence", "count"):
        table.add_column(
            name, overflow="fold", justify="right" if name in ("confidence", "count") else "left"
        )
    shown = lines if most is None else lines[:most]
    for line, count in shown:
        confidence = f"{line.confidence:.2f}" if line.paired else ""
        cells = (line.target or "—", line.reference or "—", line.how or _why(line), confidence, str(count))
        table.add_row(*map(Text, cells))
    console.print(table)
    if len(shown) < len(lines):
        console.print(f"and {len(lines) - len(shown)} more: --all")
    console.print()
