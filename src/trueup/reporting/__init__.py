"""Reports: each family builds one document, which ``render`` draws on a terminal or writes to a file.

Here are those of a comparison, for the command line and for Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trueup.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from trueup.reporting.comparison.result import ComparisonLike, ComparisonResult

__all__ = ["FORMATS", "print_summary", "write_reports"]

_FILES = {
    "html": "report.html",
    "xlsx": "compare_result_{timestamp}.xlsx",
    "markdown": "report.md",
    "advisor": "advisor_{timestamp}.txt",
}
FORMATS = frozenset(_FILES)
"""What ``write_reports`` can write."""


def print_summary(
    comparison: ComparisonResult | ComparisonLike | Path,
    console: Console,
    *,
    reports: Mapping[str, Path] | None = None,
) -> None:
    """Print one screen; ``reports`` are the files that were written, by format."""
    from trueup.reporting.comparison.report import compare_report
    from trueup.reporting.comparison.result import damage_named, read_result
    from trueup.reporting.document import On
    from trueup.reporting.render import show

    with damage_named(comparison):
        show(compare_report(read_result(comparison), media=On.SCREEN, reports=reports), console)


def write_reports(
    comparison: ComparisonResult | ComparisonLike | Path,
    *,
    output: Path,
    formats: set[str],
    console: Console | None = None,
) -> dict[str, Path]:
    """Write the reports asked for into ``output`` and return their paths by format.

    Args:
        comparison: a comparison in memory, or the folder of its result files.
        output: folder of the files; made if missing.
        formats: any of ``html``, ``xlsx``, ``markdown``, ``advisor``; empty writes nothing.
        console: where the one-screen summary goes afterwards; None prints nothing.

    Raises:
        ConfigError: an unknown format.
        TraceError: the folder has no result.
    """
    unknown = sorted(formats - FORMATS)
    if unknown:
        raise ConfigError(
            f"unknown report format; expected any of: {', '.join(sorted(FORMATS))} (got {unknown[0]!r})"
        )
    from trueup.reporting.comparison.result import damage_named

    output.mkdir(parents=True, exist_ok=True)
    with damage_named(comparison):
        written = _written(comparison, output, formats)
        if console is not None:
            print_summary(comparison, console, reports=written)
    return written


def _written(
    comparison: ComparisonResult | ComparisonLike | Path, output: Path, formats: set[str]
) -> dict[str, Path]:
    from trueup.reporting.comparison.advice import advice_report
    from trueup.reporting.comparison.report import compare_report
    from trueup.reporting.comparison.result import read_result
    from trueup.reporting.document import On
    from trueup.reporting.render import write

    result = read_result(comparison)
    timestamp = datetime.now().strftime("%Y%m%d%H%M%S")
    written: dict[str, Path] = {}
    for name in (name for name in _FILES if name in formats):
        media = On.BOOK if name == "xlsx" else On.PAGE | On.TEXT
        path = output / _FILES[name].format(timestamp=timestamp)
        document = (
            advice_report(result, page=written.get("html"))
            if name == "advisor"
            else compare_report(result, media=media, reports=written)
        )
        written[name] = write(document, path)
    return written
