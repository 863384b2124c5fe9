"""What ``trueup check --prepare`` and ``--expand`` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trueup.checklist.both_sides import BothReduced, RungPair
from trueup.checklist.prepare import Reduced
from trueup.reporting.checklist_rows import shown
from trueup.reporting.document import (
    Column,
    Document,
    Look,
    Mark,
    Row,
    Span,
    Table,
    Tone,
    fact,
    facts,
)
from trueup.reporting.formatting import count, plain

_CHECK = (
    "trueup check TARGET_RUNG REFERENCE_RUNG --no-recommendations "
    "(a rung may put back what the guide advises against)"
)
_LADDER = "run both sides at each step; the first step whose runs disagree names the feature that causes it"
_ONE = (
    "prepare the other side too (trueup check TARGET REFERENCE --prepare), trueup check the two, "
    "then trueup capture --preset diagnose both"
)


def reduced_report(result: Reduced) -> Document:
    """The files, what changed in them, and what to do with them."""
    ladder = len(result.rungs) > 1
    title = (
        f"{count(len(result.rungs), 'configuration')}, from the reduced one up to the full job"
        if ladder
        else "The configuration of a first, deterministic reproduction"
    )
    files = [] if ladder else [str(path) for path in result.rungs[0].files]
    return Document(
        title=title,
        mark=Mark("✓", "written", Tone.GOOD),
        headline=title,
        blocks=(
            _rungs(result) if ladder else _changes(result),
            facts(
                [
                    fact("by hand", *(Span(plain(one), tone=Tone.WARN) for one in result.unreachable)),
                    fact("written", *files),
                    fact("environment", str(result.environment)),
                    fact("to check", Span(_CHECK, Look.COMMAND) if ladder else ""),
                    fact("next step", Span(_LADDER if ladder else _ONE, Look.COMMAND)),
                ]
            ),
        ),
    )


def both_reduced_report(result: BothReduced) -> Document:
    """Every rung of both sides, whether the two are aligned on it, and what to do with them."""
    agreed = not result.exit_code
    title = (
        f"{count(len(result.pairs), 'configuration')} of both sides, "
        f"{'the same training on every one' if agreed else 'not the same training on every one'}"
    )
    rows = [
        Row(
            cells=(
                _number(one.files, at),
                pair.name,
                _differing(pair),
            ),
            mark=Mark("✓", "aligned", Tone.GOOD) if not pair.differs else Mark("✗", "not aligned", Tone.BAD),
            loud=bool(pair.differs),
        )
        for at, (pair, one) in enumerate(zip(result.pairs, result.sides["target"].rungs, strict=True))
    ]
    columns = (Column(title="step"), Column(title="name", grow=True), Column(title="both sides", grow=True))
    ladder = len(result.pairs) > 1
    return Document(
        title=title,
        mark=Mark("✓", "written", Tone.GOOD) if agreed else Mark("✗", "not aligned", Tone.BAD),
        headline=title,
        blocks=(
            Table(columns=columns, rows=tuple(rows)),
            facts(
                [
                    *(
                        fact(
                            f"{side}, by hand",
                            *(Span(plain(one), tone=Tone.WARN) for one in one_side.unreachable),
                        )
                        for side, one_side in result.sides.items()
                    ),
                    fact("written", *(str(one.environment.parent) for one in result.sides.values())),
                    fact("environment", *(str(one.environment) for one in result.sides.values())),
                    fact("next step", Span(_LADDER, Look.COMMAND) if ladder else ""),
                ]
            ),
        ),
    )


def _differing(pair: RungPair) -> str:
    """In what the two sides of a rung differ: first what the given configurations do not differ in."""
    new = ", ".join(name for name in pair.differs if name not in pair.given)
    given = ", ".join(name for name in pair.differs if name in pair.given)
    parts = [new, f"as given: {given}" if given else ""]
    return "; ".join(filter(None, parts)) or "the same training"


def _number(files: Sequence[Path], at: int) -> str:
    """The number of a rung's folder, which is the same on both sides; steps that change nothing have none."""
    number = files[0].parent.name.partition("_")[0] if files else ""
    return f"{int(number)}" if number.isdigit() else f"{at}"


def _changes(result: Reduced) -> Table:
    rows = [
        Row(
            cells=(
                change.field,
                (Span(f"{shown(change.before)} → ", Look.QUIET), Span(shown(change.after), Look.STRONG)),
                Span(", ".join(change.keys), Look.QUIET),
            )
        )
        for change in result.changes
        if change.before != change.after
    ]
    columns = (
        Column(title="field", grow=True),
        Column(title="change", grow=True),
        Column(title="keys", grow=True, below=True),
    )
    return Table(columns=columns, rows=tuple(rows))


def _rungs(result: Reduced) -> Table:
    rows = [
        Row(cells=(_number(rung.files, at), rung.name, ", ".join(rung.adds), f"{rung.files[0].parent.name}/"))
        for at, rung in enumerate(result.rungs)
    ]
    columns = (
        Column(title="step"),
        Column(title="name", grow=True),
        Column(title="adds", grow=True),
        Column(title="folder"),
    )
    return Table(columns=columns, rows=tuple(rows))
