"""``trueup check-run``: what must be true of any training, checked on one run without a reference."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trueup.capture.options import CaptureOptions, Level, StepSet
from trueup.cli.check import names_from_words
from trueup.cli.printing import json_text, notes, stdout_to_stderr, warning_line
from trueup.cli.shared import Overwrite, Printed
from trueup.errors import ConfigError
from trueup.types.option import Option, expected

if TYPE_CHECKING:
    from trueup.diagnosing.checks import CheckOutcome
    from trueup.store import TraceSource

_STORED = frozenset({"labels", "integers", "dropout"})
"""values the checks need; of everything else statistics are enough"""
_RUN, _AGAIN, _RESULT = "run", "again", "checks.json"


def checks_from_words(words: Sequence[str], place: str) -> tuple[str, ...]:
    """Names of checks.

    Raises:
        ConfigError: there is no such check.
    """
    from trueup.diagnosing.checks import CHECKS

    known, names = [check.name for check in CHECKS], names_from_words(words, place)
    for name in names:
        if name not in known:
            raise expected(place, f"one of: {', '.join(known)}", name)
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRunOptions:
    """What is checked, and how the program is run."""

    words: Annotated[
        tuple[str, ...], Option("A trace, or the training command, unchanged.", argument="TRACE | -- COMMAND")
    ] = ()
    output: Annotated[
        Path | None, Option("Keep traces and checks.json in this folder.", "-o --output DIR")
    ] = None
    steps: Annotated[
        StepSet, Option("Steps to check, at least two consecutive ones.", "--steps", read=StepSet.parse)
    ] = field(default_factory=lambda: StepSet(((0, 1),)))
    level: Annotated[Level, Option("Modules, API calls or both.", "--level")] = Level.MIX
    seed: Annotated[
        int | None, Option("Seed random, numpy and the framework from outside.", "--seed", least=0)
    ] = None
    again: Annotated[
        Path | None, Option("With a trace: a second run of the same program.", "--again TRACE")
    ] = None
    once: Annotated[bool, Option("Do not run the program a second time.", "--once")] = False
    to_the_end: Annotated[
        bool, Option("Do not stop the program when the steps are captured.", "--to-the-end")
    ] = False
    only: Annotated[
        tuple[str, ...],
        Option(
            "Only this check: labels, finite, range, gradients, grad_norm, updates, master_weights, "
            "repeatable, streams, own_batches or replicas; may be repeated.",
            "--only CHECK",
            read_all=checks_from_words,
        ),
    ] = ()
    compile_parity: Annotated[
        bool,
        Option(
            "Only this: does the program compute the same with torch.compile and without? It runs 4 times.",
            "--compile-parity",
            excludes="once",
        ),
    ] = False
    overwrite: Overwrite = False


def command(options: CheckRunOptions, printed: Printed) -> int:
    """Check a training run by itself: no reference, no edit of the script.

    The program runs twice, and is stopped when the steps are captured. Exit status: 0 if all checks passed,
    1 if one failed, 2 if one could not be decided.
    """
    from trueup.diagnosing.checks import check_run, exit_code
    from trueup.importers import open_trace

    words = options.words
    if options.compile_parity and len(words) == 1 and Path(words[0]).is_dir():
        raise ConfigError("--compile-parity runs the program itself: expected a command (got a trace)")
    if not words:
        raise ConfigError("a trace or a command is missing: trueup check-run -- python train.py")
    status = 0
    with contextlib.ExitStack() as stack:
        if len(words) == 1 and Path(words[0]).is_dir():
            _check_of_trace(options)
            first = open_trace(Path(words[0]))
            second = None if options.again is None else _second_run(options.again, first)
        else:
            _check_command(options)
            folder = stack.enter_context(_folder(options.output))
            if options.compile_parity:
                outcomes = _compile_parity(options, folder, printed)
                _show(outcomes, headline=" ".join(words), folder=options.output, printed=printed)
                return exit_code(outcomes)
            first, second, status = _run_program(options, folder, printed)
        outcomes = check_run(first, again=second, only=list(options.only), status=status)
        _show(outcomes, headline=" ".join(words), folder=options.output, printed=printed)
    return exit_code(outcomes)


def _check_of_trace(options: CheckRunOptions) -> None:
    """What the options say of a run that is over has no effect."""
    default = CheckRunOptions()
    for name in ("steps", "level", "seed", "once", "to_the_end"):
        if getattr(options, name) != getattr(default, name):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} has no effect with a trace, whose run is over: expected a command")


def _second_run(again: Path, first: TraceSource) -> TraceSource:
    """The other trace, which is no copy of the first: a trace always repeats itself."""
    from trueup.importers import open_trace

    second = open_trace(again)
    run_id = first.manifest.get("run_id")
    same_run = run_id is not None and run_id == second.manifest.get("run_id")
    if same_run or second.path.resolve() == first.path.resolve():
        raise ConfigError(
            f"--again: {again} is the run that is checked: expected a second run of its program"
        )
    return second


def _check_command(options: CheckRunOptions) -> None:
    if len(options.words) == 1 and shutil.which(options.words[0]) is None:
        raise ConfigError(f"{options.words[0]} is neither the folder of a trace nor a command")
    if options.compile_parity and options.only:
        raise ConfigError("--only has no effect with --compile-parity, which checks nothing else")
    if options.again is not None:
        raise ConfigError("--again has no effect without a trace: a command is run twice anyway")


def _run_program(
    options: CheckRunOptions, folder: Path, printed: Printed
) -> tuple[TraceSource, TraceSource | None, int]:
    """Capture the program, by default twice; with the exit status of the first run that failed, else 0."""
    from trueup.capture.launch import launch
    from trueup.store import Trace

    traces: list[Trace] = []
    failed = 0
    for name in (_RUN,) if options.once else (_RUN, _AGAIN):
        capture = CaptureOptions(
            output=folder / name,
            level=options.level,
            steps=options.steps,
            store_values_of=_STORED,
            seed=options.seed,
            overwrite=options.overwrite or options.output is None,
        )
        messages: list[str] = []
        with stdout_to_stderr(active=printed.as_json):
            status = launch(
                capture, options.words, say=messages.append, stop_when_captured=not options.to_the_end
            )
        if not (capture.output / "manifest.json").exists() or not Trace(capture.output).steps():
            raise ConfigError(f"nothing to check: {messages[0] if messages else f'exit status {status}'}")
        failed = failed or status
        if status:
            warning_line(
                f"the program ended with exit status {status}; what it produced until then is checked"
            )
        traces.append(Trace(capture.output))
    return traces[0], traces[1] if len(traces) > 1 else None, failed


def _compile_parity(options: CheckRunOptions, folder: Path, printed: Printed) -> list[CheckOutcome]:
    from trueup.diagnosing.parity import capture_pair, parity

    with stdout_to_stderr(active=printed.as_json):
        pair = capture_pair(
            options.words,
            folder,
            options.steps,
            seed=options.seed,
            overwrite=options.overwrite or options.output is None,
            to_the_end=options.to_the_end,
            say=notes(quiet=printed.quiet),
        )
    return parity(*pair)


@contextlib.contextmanager
def _folder(output: Path | None) -> Iterator[Path]:
    if output is not None:
        yield output.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="trueup-check-run-") as folder:
        yield Path(folder)


def _show(outcomes: list[CheckOutcome], *, headline: str, folder: Path | None, printed: Printed) -> None:
    from trueup.diagnosing.checks import exit_code
    from trueup.wording import document

    result = {
        "run": headline,
        "exit_code": exit_code(outcomes),
        "checks": outcomes,
    }
    text = json_text(document(result), non_finite="null")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _RESULT).write_text(text + "\n", encoding="utf-8")
    if printed.as_json:
        print(text)
    elif not printed.quiet:
        from rich.console import Console

        from trueup.cli.checklist import print_checklist

        print_checklist(outcomes, Console(highlight=False), headline=headline)
