"""``trueup replay``: run the target with the reference's values in place, and name the code that differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from trueup.capture.options import Level, StepSet
from trueup.cli.printing import notes, print_json, stdout_to_stderr
from trueup.cli.shared import Command, Overwrite, Printed, ReplayNoise
from trueup.errors import ConfigError
from trueup.types.option import Option
from trueup.types.trace import RankFacts

_what = partial(Option, panel="What to replay")
_MOST_STEPS = 1000
OF_REFERENCE = "reference"
"""value of ``--gradients`` without a folder: the gradients of the reference's trace"""


def steps_from_text(text: str, place: str) -> frozenset[int] | None:
    """The steps of ``0,5-8``, at most a thousand."""
    return StepSet.parse(text, place).numbers(place, _MOST_STEPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What is replayed, and where the result goes."""

    command: Command = ()
    reference: Annotated[Path | None, Option("Trace of the reference, with values.", "--reference TRACE")] = (
        None
    )
    output: Annotated[Path | None, Option("Folder of the replay.", "-o --output DIR")] = None
    target: Annotated[
        Path | None,
        Option("Trace of the command without replay.", "--target TRACE", default="captured first"),
    ] = None
    level: Annotated[Level, _what("Replace module calls, API calls or both.", "--level")] = Level.L0
    inside: Annotated[
        tuple[str, ...], _what("Replace API calls of this module only; may be repeated.", "--inside MODULE")
    ] = ()
    steps: Annotated[
        frozenset[int] | None,
        _what(
            "Steps to replay, such as 0,1.",
            "--steps",
            default="the first of the reference",
            read=steps_from_text,
        ),
    ] = None
    noise_replay: ReplayNoise = ()
    refine: Annotated[
        bool, Option("Run again at API level inside the modules that differ.", "--refine/--no-refine")
    ] = True
    gradients: Annotated[
        str | None,
        _what(
            "Replace only the gradients, before clipping and the optimizer: by the reference's, or by "
            "those of a folder of grad_1.npy, grad_2.npy, ...",
            "--gradients [DIR]",
            bare=OF_REFERENCE,
        ),
    ] = None
    overwrite: Overwrite = False


def command(options: ReplayOptions, printed: Printed) -> int:
    """Run a command with the reference's values in place at every matched call: what differs, errs there.

    With --json the program's own output goes to standard error. Exit status: 0 if nothing differs, 1 if
    something does, 2 for wrong usage or undecided.
    """
    say = notes(quiet=printed.quiet or printed.as_json)
    reference, output = _places(options)
    if options.gradients is not None:
        return _replay_gradients(options, reference, output, say)
    if not options.command:
        raise ConfigError(
            f"the command is missing: trueup replay --reference {reference} -o {output} -- python train.py"
        )
    from trueup.diagnosing.replay import ReplayNoise as MeasuredNoise
    from trueup.diagnosing.replay import ReplayOutcome, run_replay
    from trueup.store import Trace
    from trueup.wording import document

    folders = options.noise_replay
    noise = MeasuredNoise.measured(folders, Trace(reference)) if folders else None
    inside_modules = bool(options.inside) and options.level is Level.L0
    with stdout_to_stderr(active=printed.as_json):
        run_replay(
            options.command,
            reference=reference,
            output=output,
            target=options.target,
            level=(Level.MIX if inside_modules else options.level).value,
            inside=options.inside,
            steps=options.steps,
            refine=options.refine,
            noise=noise,
            overwrite=options.overwrite,
            say=say,
        )
    outcome = ReplayOutcome.read(output, reference, noise=noise)
    if printed.as_json:
        print_json(document(outcome), non_finite="null")
    elif not printed.quiet:
        from rich.console import Console

        from trueup.cli.replay_screen import print_outcome

        print_outcome(outcome, options.command, Console())
    return outcome.exit_code


def _places(options: ReplayOptions) -> tuple[Path, Path]:
    """Reference and output.

    Raises:
        ConfigError: one is missing.
    """
    if options.reference is None:
        flag = "--gradients " if options.gradients is not None else ""
        raise ConfigError(
            f"--reference is missing: trueup replay {flag}--reference RUN -o OUT -- python train.py"
        )
    if options.output is None:
        raise ConfigError("-o is missing: add -o OUT, the folder of the replay")
    return options.reference, options.output


def _replay_gradients(
    options: ReplayOptions, reference: Path, output: Path, say: Callable[[str], None]
) -> int:
    """The exit status: the program's own, 2 where no step was captured."""
    from trueup.diagnosing.gradients import run_gradient_replay
    from trueup.importers import open_trace

    files = None if options.gradients in (None, OF_REFERENCE) else Path(str(options.gradients))
    if files is not None and not files.is_dir():
        raise ConfigError(
            f"--gradients: no such folder: {files}; expected one with grad_1.npy, grad_2.npy, ..."
        )
    status = run_gradient_replay(
        options.command,
        reference=open_trace(reference),
        target=None if options.target is None else open_trace(options.target),
        output=output,
        files=files,
        overwrite=options.overwrite,
        say=lambda _: None,
    )
    trace = open_trace(output)
    for sentence in _gradient_notes(
        trace.rank_facts(min(r for ranks in trace.steps().values() for r in ranks))
    ):
        say(sentence)
    target = options.target if options.target is not None else output / "free"
    say(f"next: trueup diagnose {target} {reference} --gradients {output} -o OUT")
    return status


def _gradient_notes(facts: RankFacts) -> list[str]:
    """How many gradients were replaced, and which were not and why."""
    from trueup.store.left_free import left_free_from_plain
    from trueup.wording import text

    given = facts.get("given_gradients")
    if not isinstance(given, dict):
        return ["no gradient was replaced: no backward of a captured step ended"]
    notes = [f"{len(given['replaced'])} gradients were replaced before clipping"]
    kept = [(left["fqn"], text(left_free_from_plain(left["reason"]))) for left in given["free"][:4]]
    return notes + [f"{fqn} keeps its own gradient: {why}" for fqn, why in kept]
