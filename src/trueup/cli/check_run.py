"""``trueup check-run``: what must be true of any training, checked on one run without a reference."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trueup.capture.options import CaptureOptions, Level, StepSet
from trueup.cli.capture import one_of
from trueup.cli.printing import warning_line
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.diagnosing.checks import CheckOutcome
    from trueup.store import TraceSource

_KEPT = frozenset({"labels", "integers", "dropout"})
"""values the checks need; of everything else statistics are enough"""
_RUN, _AGAIN, _RESULT = "run", "again", "checks.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """How the program is run."""

    folder: Path
    level: Level
    steps: StepSet
    seed: int | None
    overwrite: bool
    once: bool
    to_the_end: bool
    as_json: bool


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="TRACE | -- COMMAND", help="A trace, or the training command, as always."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Keep traces and checks.json in this folder.")
    ] = None,
    steps: Annotated[str, typer.Option(help="Steps to check, such as 0-3; two in a row at least.")] = "0-1",
    level: Annotated[str, typer.Option(metavar="L0|L1|mix", help="Modules, API calls or both.")] = "mix",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed random, numpy and torch from outside.")
    ] = None,
    again: Annotated[
        Path | None,
        typer.Option("--again", metavar="TRACE", help="With a trace: the same program, run again."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Do not run the program a second time.")] = False,
    to_the_end: Annotated[
        bool, typer.Option("--to-the-end", help="Do not stop the program once the steps are captured.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="CHECK", help="Only this check; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace traces that are there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Check a training run by itself: no reference, no edit of the script.

    The program runs twice, and is stopped when the steps are captured. Ends with 0 where all checks passed, 1
    where one failed, 2 where one could not be decided.
    """
    from trueup.diagnosing.checks import check_run, exit_code
    from trueup.importers import open_trace

    if not words:
        raise ConfigError("a trace or a command is missing: trueup check-run -- python train.py")
    chosen = [name.strip() for text in only or [] for name in text.split(",")]
    _check_names(chosen)
    if len(words) == 1 and Path(words[0]).is_dir():
        second = None if again is None else open_trace(again)
        outcomes = check_run(open_trace(Path(words[0])), again=second, only=chosen)
        _show(outcomes, headline=words[0], folder=output, as_json=as_json, quiet=quiet)
        raise typer.Exit(exit_code(outcomes))
    if len(words) == 1 and shutil.which(words[0]) is None:
        raise ConfigError(f"{words[0]} is neither the folder of a trace nor a command")
    if again is not None:
        raise ConfigError("--again goes with a trace; a command is run again by itself")
    with _folder(output) as folder:
        plan = _Plan(
            folder=folder,
            level=one_of(Level, level, what="--level"),
            steps=StepSet.parse(steps),
            seed=seed,
            overwrite=overwrite or output is None,
            once=once,
            to_the_end=to_the_end,
            as_json=as_json,
        )
        first, second = _run_program(words, plan)
        outcomes = check_run(first, again=second, only=chosen)
        _show(outcomes, headline=" ".join(words), folder=output, as_json=as_json, quiet=quiet)
    raise typer.Exit(exit_code(outcomes))


def _check_names(names: list[str]) -> None:
    """Raise for a check that there is not, before anything is run.

    Raises:
        ConfigError: naming those that there are.
    """
    from trueup.diagnosing.checks import CHECKS

    known = [check.name for check in CHECKS]
    for name in names:
        if name not in known:
            raise ConfigError(f"--only {name!r}: there is {', '.join(known)}")


def _run_program(words: list[str], plan: _Plan) -> tuple[TraceSource, TraceSource | None]:
    """Capture the program, twice unless told otherwise; how it ends is said, and is no outcome of a check."""
    from trueup.capture.launch import launch
    from trueup.store import Trace

    traces: list[Trace] = []
    for name in (_RUN,) if plan.once else (_RUN, _AGAIN):
        options = CaptureOptions(
            output=plan.folder / name,
            level=plan.level,
            steps=plan.steps,
            store_values_of=_KEPT,
            seed=plan.seed,
            overwrite=plan.overwrite,
        )
        said: list[str] = []
        with _stdout_to_stderr() if plan.as_json else contextlib.nullcontext():
            status = launch(options, words, say=said.append, stop_when_captured=not plan.to_the_end)
        if not (options.output / "manifest.json").exists() or not Trace(options.output).steps():
            problem = said[0] if said else f"exit status {status}"
            raise ConfigError(f"nothing to check: {problem}")
        if status:
            warning_line(f"the program ended with exit status {status}; what it made until then is checked")
        traces.append(Trace(options.output))
    return traces[0], traces[1] if len(traces) > 1 else None


@contextlib.contextmanager
def _folder(output: Path | None) -> Iterator[Path]:
    if output is not None:
        yield output.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="trueup-check-run-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """The program's output makes way: standard output is for the JSON document alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _show(
    outcomes: list[CheckOutcome], *, headline: str, folder: Path | None, as_json: bool, quiet: bool
) -> None:
    from trueup.diagnosing.checks import exit_code

    document = {
        "run": headline,
        "exit_code": exit_code(outcomes),
        "checks": [outcome.to_json() for outcome in outcomes],
    }
    text = json.dumps(_finite(document), ensure_ascii=False, allow_nan=False, indent=2, default=str)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _RESULT).write_text(text + "\n", encoding="utf-8")
    if as_json:
        print(text)
    elif not quiet:
        from rich.console import Console

        from trueup.cli.checklist import print_checklist

        print_checklist(outcomes, Console(highlight=False), headline=headline)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
