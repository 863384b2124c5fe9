"""``trueup replay``: run the target with the reference's values put in, and name the code that errs."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trueup.capture.options import Level, StepSet
from trueup.cli.printing import note_line
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from rich.text import Text

    from trueup.diagnosing.replay import ReplayOutcome
    from trueup.types import Origin

_MOST_STEPS = 1000
_NUM_SHOWN = 12
_WHAT = "What to replay"


def command(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="The target's training command.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option("--reference", help="A trace with values of the run that is trusted.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder the replay goes to.")] = None,
    target: Annotated[
        Path | None,
        typer.Option("--target", help="A trace of the command as it runs by itself. Default: made first."),
    ] = None,
    level: Annotated[
        str,
        typer.Option(metavar="L0|L1|mix", help="Force modules, API calls or both.", rich_help_panel=_WHAT),
    ] = "L0",
    inside: Annotated[
        list[str] | None,
        typer.Option(
            "--inside", metavar="MODULE", help="API calls of this module alone.", rich_help_panel=_WHAT
        ),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(help="Such as 0,1. Default: the first of the reference.", rich_help_panel=_WHAT),
    ] = None,
    noise_replay: Annotated[
        list[Path] | None,
        typer.Option(
            "--noise-replay",
            metavar="DIR",
            help="A replay of a benign variant: how far one may be from the reference.",
        ),
    ] = None,
    refine: Annotated[
        bool, typer.Option(help="Run again at API level inside the modules that were found.")
    ] = True,
    gradients: Annotated[
        str | None,
        typer.Option(
            metavar="[DIR]",
            help="Put in nothing but the reference's gradients, before clipping and the optimizer; or those "
            "of a folder of grad_1.npy, grad_2.npy, ...",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a replay that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Run a command with the reference's values put in at every matched call: what differs, errs there.

    With --json the program's own output goes to standard error. Exit status 0: nothing differs;
    1: something does; 2: bad use, or undecided.
    """
    if gradients is not None:
        from trueup.cli.replay_gradients import replay_gradients

        say = (lambda _: None) if quiet or as_json else note_line
        status = replay_gradients(
            gradients,
            reference=reference,
            output=output,
            target=target,
            command=command or [],
            overwrite=overwrite,
            say=say,
        )
        raise typer.Exit(status)
    from trueup.diagnosing.replay import ReplayOutcome, run_replay
    from trueup.wording import document

    if reference is None:
        raise ConfigError("say which run is trusted: trueup replay --reference RUN -o OUT -- python train.py")
    if output is None:
        raise ConfigError("say where the replay is to go: add -o OUT")
    if not command:
        raise ConfigError(
            "say how to run the target, after two dashes: "
            f"trueup replay --reference {reference} -o {output} -- python train.py"
        )
    noise = _noise(noise_replay or [], reference)
    say = (lambda _: None) if quiet or as_json else note_line
    with _own_output_apart() if as_json else nullcontext():
        run_replay(
            command,
            reference=reference,
            output=output,
            target=target,
            level=_level(level, inside),
            inside=inside or (),
            steps=_steps(steps),
            refine=refine,
            noise=noise,
            overwrite=overwrite,
            say=say,
        )
    outcome = ReplayOutcome.read(output, reference, noise=noise)
    if as_json:
        print(json.dumps(_finite(document(outcome)), ensure_ascii=False, indent=2))
    elif not quiet:
        _show(outcome, command)
    raise typer.Exit(outcome.exit_code)


def _noise(folders: Sequence[Path], reference: Path) -> Any:
    """What the benign variants' replays show, None without any."""
    from trueup.diagnosing.replay import ReplayNoise
    from trueup.store import Trace

    return ReplayNoise.measured(folders, Trace(reference)) if folders else None


def _level(word: str, inside: list[str] | None) -> str:
    """API calls too where a module is named to look inside of."""
    known = {choice.value.lower(): choice.value for choice in Level}
    if word.lower() not in known:
        raise ConfigError(f"--level {word!r}: one of {', '.join(known.values())} is wanted")
    return Level.MIX.value if inside and known[word.lower()] == Level.L0.value else known[word.lower()]


def _steps(text: str | None) -> frozenset[int] | None:
    ranges = None if text is None else StepSet.parse(text).ranges
    if ranges is None:
        return None
    if sum(last - first + 1 for first, last in ranges) > _MOST_STEPS:
        raise ConfigError(f"--steps {text}: more than {_MOST_STEPS} steps")
    return frozenset(number for first, last in ranges for number in range(first, last + 1))


@contextmanager
def _own_output_apart() -> Iterator[None]:
    """Standard output is the document's alone: what the program prints goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _finite(value: Any) -> Any:
    """The document with null in the place of infinities and NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


# -- the screen ------------------------------------------


def _show(outcome: ReplayOutcome, command: Sequence[str]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
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
    from rich.text import Text

    ranks = "" if len(outcome.ranks) == 1 else f" on {len(outcome.ranks)} ranks"
    where = f"step {outcome.step}{ranks}"
    total = outcome.equal + outcome.replaced
    agree = f"{outcome.equal:,} of {total:,} tensors bit for bit the reference's"
    if not total:
        return Text.assemble(("? ", "bold yellow"), ("nothing could be forced", "bold"), f" in {where}")
    if not outcome.origins:
        said = "no module differs by itself"
        return Text.assemble(("✓ ", "bold green"), (said, "bold"), f"; {where}, {agree}")
    count = len(outcome.origins)
    said = f"{count} modules make errors of their own" if count > 1 else "1 module makes an error of its own"
    return Text.assemble(("✗ ", "bold red"), (said, "bold"), f"; {where}, {agree}")


def _lines(number: int, origin: Origin) -> list[Text]:
    from rich.text import Text

    from trueup.reporting.formatting import plain, short_site
    from trueup.wording import text

    head = Text.assemble(
        (f" {number} ", "bold red"), (plain(short_site(origin.site)), "bold"), f"  {origin.stage.value}"
    )
    lines = [head]
    if origin.source:
        lines.append(Text.assemble(("   made at  ", "dim"), plain(origin.source)))
    for index, one in enumerate(origin.evidence[:3]):
        label = "   because  " if index == 0 else " " * 12
        lines.append(Text.assemble((label, "dim"), plain(short_site(text(one)))))
    if len(origin.evidence) > 3:
        lines.append(Text(f"{'':12}and {len(origin.evidence) - 3} more", style="dim"))
    return lines


def _closing(outcome: ReplayOutcome, command: Sequence[str]) -> list[Text]:
    from rich.text import Text

    from trueup.reporting.formatting import plain
    from trueup.wording import text
    from trueup.wording.phrase import count

    lines = [Text("")]
    for index, left in enumerate(outcome.left[:4]):
        label = "not replaced" if index == 0 else " " * 12
        lines.append(
            Text.assemble(
                (label, "dim"),
                plain(f"{count(left.count, 'tensor')}: {text(left.reason)} ({left.examples[0]})"),
            )
        )
    if len(outcome.left) > 4:
        lines.append(Text(f"{'':12}and {len(outcome.left) - 4} reasons more", style="dim"))
    lines.append(Text.assemble(("next        ", "dim"), (plain(_next(outcome, command)), "bold cyan")))
    if outcome.origins and not outcome.can_refine:
        lines.append(Text(f"{'':12}and replay on that: the call inside is named then", style="dim"))
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
