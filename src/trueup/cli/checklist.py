"""The checklist ``trueup check-run`` prints: one line a check, what failed opened up below it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trueup.diagnosing.checks import CheckOutcome, CheckVerdict
from trueup.reporting.formatting import count, plain, short_frame, short_site
from trueup.types.reason import Reason
from trueup.wording import command, text

_GLYPHS = {
    CheckVerdict.PASSED: ("✓", "green"),
    CheckVerdict.FAILED: ("✗", "red"),
    CheckVerdict.UNDECIDED: ("?", "yellow"),
    CheckVerdict.NOTHING: ("–", "dim"),
}
_MAX_PLACES = 3


def print_checklist(outcomes: Sequence[CheckOutcome], console: Console, *, headline: str) -> None:
    """Verdict first, then every check in the order a step runs."""
    console.print(checklist(outcomes, headline=headline))


def checklist(outcomes: Sequence[CheckOutcome], *, headline: str) -> RenderableType:
    """The whole list as one renderable."""
    parts: list[RenderableType] = [
        Text(""),
        _verdict(outcomes),
        Text(f"   {plain(headline)}", style="dim"),
        Text(""),
    ]
    for outcome in outcomes:
        parts += _lines(outcome)
    return Group(*parts, Text(""))


def _verdict(outcomes: Sequence[CheckOutcome]) -> Text:
    number = {verdict: sum(o.verdict is verdict for o in outcomes) for verdict in CheckVerdict}
    failed, undecided, passed = (
        number[v] for v in (CheckVerdict.FAILED, CheckVerdict.UNDECIDED, CheckVerdict.PASSED)
    )  # fmt: skip
    if failed:
        glyph, sentence = CheckVerdict.FAILED, f"{count(failed, 'check')} failed."
    elif undecided:
        glyph, sentence = CheckVerdict.UNDECIDED, f"{count(undecided, 'check')} could not be decided."
    elif passed:
        glyph, sentence = CheckVerdict.PASSED, "Everything that could be checked is in order."
    else:
        glyph, sentence = CheckVerdict.UNDECIDED, "There was nothing to check."
    rest = [f"{number[v]} {v.value}" for v in CheckVerdict if number[v]]
    mark, colour = _GLYPHS[glyph]
    return Text.assemble((f" {mark} ", f"bold {colour}"), (sentence, "bold"), f"  {', '.join(rest)}")


def _lines(outcome: CheckOutcome) -> list[RenderableType]:
    mark, colour = _GLYPHS[outcome.verdict]
    nothing = outcome.verdict is CheckVerdict.NOTHING
    title = Text.assemble((f"   {mark} ", f"bold {colour}"), (outcome.title, "dim" if nothing else "bold"))
    sentence = Text(short_site(plain(text(outcome.sentence))), style="dim" if nothing else "")
    lines: list[RenderableType] = [title, Padding(sentence, (0, 0, 0, 7))]
    if outcome.verdict in (CheckVerdict.FAILED, CheckVerdict.UNDECIDED):
        lines += [Padding(_place_table(outcome), (0, 0, 0, 7))] if outcome.places else []
    lines += [Padding(Text(plain(text(note)), style="dim"), (0, 0, 0, 7)) for note in outcome.notes]
    if outcome.next and not nothing:
        lines.append(Padding(Text(f"→ {plain(_advice(outcome.next))}", style="cyan"), (0, 0, 0, 7)))
    return lines


def _advice(what: Reason) -> str:
    typed = command(what)
    return text(what) if typed is None else f"{typed}  ({text(what)})"


def _place_table(outcome: CheckOutcome) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for number, place in enumerate(outcome.places[:_MAX_PLACES]):
        where = [
            f"step {place.step}" if place.step is not None else "",
            f"rank {place.rank}" if place.rank else "",
        ]
        when = " · ".join(part for part in where if part)
        site = Text.assemble((short_site(plain(place.site)), "bold"), (f"  {when}" if when else "", "dim"))
        table.add_row("at" if number == 0 else "", site)
        if place.source:
            frame, line = short_frame(plain(place.source))
            table.add_row("", Text.assemble((frame, "dim"), "  ", (line, "italic")))
        if place.detail:
            table.add_row("", Text(plain(text(place.detail)), style="dim"))
    more = len(outcome.places) - _MAX_PLACES
    if more > 0:
        table.add_row("", Text(f"and {more} more, with --json", style="dim"))
    return table
