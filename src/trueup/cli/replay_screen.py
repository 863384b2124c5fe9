"""What ``trueup replay`` prints: the verdict, every module that differs by itself, and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from trueup.reporting.formatting import plain, short_site
from trueup.wording import text
from trueup.wording.phrase import count

if TYPE_CHECKING:
    from rich.console import Console

    from trueup.diagnosing.replay import ReplayOutcome
    from trueup.types.finding import Origin

_NUM_SHOWN = 12


def print_outcome(outcome: ReplayOutcome, command: Sequence[str], console: Console) -> None:
    """The outcome of a replay of ``command``."""
    console.print(_headline(outcome), soft_wrap=True)
    for number, origin in enumerate(outcome.origins[:_NUM_SHOWN], start=1):
        console.print(Text(""))
        for line in _lines(number, origin):
            console.print(line, soft_wrap=True)
    more = len(outcome.origins) - _NUM_SHOWN
    if more > 0:
        console.print(Text(f"\n and {more} more: --json lists all"))
    for line in _closing(outcome, command):
        console.print(line, soft_wrap=True)


def _headline(outcome: ReplayOutcome) -> Text:
    ranks = "" if len(outcome.ranks) == 1 else f" on {len(outcome.ranks)} ranks"
    where = f"step {outcome.step}{ranks}"
    total = outcome.equal + outcome.replaced
    agree = f"{outcome.equal:,} of {total:,} tensors bit-identical to the reference"
    if not total:
        return Text.assemble(("? ", "bold yellow"), ("no tensor could be replaced", "bold"), f" in {where}")
    if not outcome.origins:
        headline = "no module introduces an error"
        return Text.assemble(("✓ ", "bold green"), (headline, "bold"), f"; {where}, {agree}")
    number = len(outcome.origins)
    headline = f"{number} modules introduce an error" if number > 1 else "1 module introduces an error"
    return Text.assemble(("✗ ", "bold red"), (headline, "bold"), f"; {where}, {agree}")


def _lines(number: int, origin: Origin) -> list[Text]:
    head = Text.assemble(
        (f" {number} ", "bold red"), (plain(short_site(origin.site)), "bold"), f"  {origin.stage.value}"
    )
    lines = [head]
    if origin.source:
        lines.append(Text.assemble(("   origin   ", "dim"), plain(origin.source)))
    for index, one in enumerate(origin.evidence[:3]):
        label = "   because  " if index == 0 else " " * 12
        lines.append(Text.assemble((label, "dim"), plain(short_site(text(one)))))
    if len(origin.evidence) > 3:
        lines.append(Text(f"{'':12}and {len(origin.evidence) - 3} more", style="dim"))
    return lines


def _closing(outcome: ReplayOutcome, command: Sequence[str]) -> list[Text]:
    lines = [Text("")]
    for index, left in enumerate(outcome.left[:4]):
        label = "unreplaced  " if index == 0 else " " * 12
        lines.append(
            Text.assemble(
                (label, "dim"),
                plain(f"{count(left.count, 'tensor')}: {text(left.reason)} ({left.examples[0]})"),
            )
        )
    if len(outcome.left) > 4:
        lines.append(Text(f"{'':12}and {len(outcome.left) - 4} more reasons", style="dim"))
    lines.append(Text.assemble(("next        ", "dim"), (plain(_next(outcome, command)), "bold cyan")))
    if outcome.origins and not outcome.can_refine:
        lines.append(Text(f"{'':12}then replay with that trace: it names the call inside", style="dim"))
    return lines


def _next(outcome: ReplayOutcome, command: Sequence[str]) -> str:
    again = f"-- {shlex.join(command)}"
    reference, output = outcome.reference, outcome.output
    if outcome.origins and not outcome.can_refine:
        return f"trueup capture --level mix --task tensor -o {reference}-api -- REFERENCE'S COMMAND"
    if outcome.origins:
        free = output / "free" if (output / "free").exists() else output
        return f"trueup diagnose {free} {reference} --replayed {output} -o {output}/diagnosis"
    return f"trueup replay --gradients --reference {reference} -o {output}-gradients {again}"
