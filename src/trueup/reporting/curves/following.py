"""The screen of curves that are still growing."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from trueup.curves.comparison import CurveComparison
from trueup.reporting.curves.report import curves_report
from trueup.reporting.document import reason_text
from trueup.reporting.formatting import plain
from trueup.reporting.render import show
from trueup.reporting.render.terminal import screen

_NOTHING = 2


def watch(updates: Iterator[CurveComparison | str], console: Console, *, quiet: bool = False) -> int:
    """Draw every update in place until interrupted, then leave the last one standing; the exit status of it.

    Where the output is no terminal, one line an update.
    """
    last: CurveComparison | None = None
    try:
        if quiet or not console.is_terminal:
            for update in updates:
                last = update if isinstance(update, CurveComparison) else last
                if not quiet:
                    console.print(line(update), soft_wrap=True)
        else:
            with Live(console=console, auto_refresh=False, screen=True) as live:
                for update in updates:
                    if isinstance(update, CurveComparison):
                        last = update
                        live.update(screen(curves_report([update]), width=console.width), refresh=True)
                    elif last is None:
                        live.update(Text(update), refresh=True)
    except KeyboardInterrupt:
        pass
    if last is None:
        return _NOTHING
    if console.is_terminal and not quiet:
        show(curves_report([last]), console)
    return last.judgement.outcome.exit_code


def line(update: CurveComparison | str) -> str:
    """One update as one line."""
    if isinstance(update, str):
        return plain(update)
    step = int(update.paired.steps[-1])
    return f"step {step:,}  {update.judgement.outcome.value}  {reason_text(update.judgement.headline)}"
