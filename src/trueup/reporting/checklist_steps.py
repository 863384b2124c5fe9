"""What ``trueup check --prepare`` and ``--expand`` wrote, on one screen."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trueup.checklist.prepare import Reduced
from trueup.reporting.checklist_model import shown
from trueup.reporting.formatting import count, plain


def print_reduced(result: Reduced, console: Console) -> None:
    """Print the files, what changed in them, and what to do with them."""
    console.print(screen(result))


def screen(result: Reduced) -> RenderableType:
    """The whole screen as one renderable."""
    ladder = len(result.rungs) > 1
    title = (
        f"{count(len(result.rungs), 'configuration')}, from the reduced one up to the whole job"
        if ladder
        else "The configuration of a first, deterministic reproduction"
    )
    parts: list[RenderableType] = [Text(""), Text.assemble((" ✓ ", "bold green"), (title, "bold"))]
    parts.append(Padding(_rungs(result) if ladder else _changes(result), (1, 0, 0, 3)))
    parts += [
        Padding(Text.assemble(("by hand  ", "yellow"), plain(sentence)), (0, 0, 0, 3))
        for sentence in result.unreachable
    ]
    parts += [Padding(_closing(result, ladder=ladder), (1, 0, 0, 3)), Text("")]
    return Group(*parts)


def _changes(result: Reduced) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for change in result.changes:
        if change.before != change.after:
            table.add_row(
                change.field,
                Text.assemble((shown(change.before), "dim"), " → ", (shown(change.after), "bold")),
                Text(", ".join(change.keys), style="dim", overflow="fold"),
            )
    return table


def _rungs(result: Reduced) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for number, rung in enumerate(result.rungs):
        table.add_row(
            Text(f"{number:2d}", style="dim"),
            Text(rung.name, style="bold"),
            Text(", ".join(rung.adds), overflow="fold"),
            Text(plain(rung.files[0].parent.name + "/"), style="dim"),
        )
    return table


def _closing(result: Reduced, *, ladder: bool) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(style="dim", width=12, no_wrap=True)
    table.add_column(overflow="fold")
    if not ladder:
        for path in result.rungs[0].files:
            table.add_row("written", Text(plain(str(path))))
    table.add_row("environment", Text(plain(str(result.environment))))
    words = (
        "climb both sides together; the first rung whose runs disagree names the feature that parts them"
        if ladder
        else "prepare the other side too, trueup check the two, then trueup capture --preset diagnose both"
    )
    table.add_row("next", Text(words, style="cyan"))
    return table
