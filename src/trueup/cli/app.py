"""Puts the verbs together, and turns errors into one line and an exit status."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import typer

from trueup import __version__
from trueup.cli import (
    accept,
    capture,
    check,
    check_run,
    compare,
    compare_weights,
    convert_weights,
    curves,
    diagnose,
    dump_config,
    export,
    inspect,
    match,
    monitor,
    noise,
    replay,
    seed_all,
)
from trueup.cli.misuse import refuse_empty_words, sentence_of
from trueup.cli.printing import error_line, hint_line
from trueup.cli.replay_gradients import with_gradients_named
from trueup.cli.several import SEVERAL, with_each_named
from trueup.errors import ConfigError, NothingCompared, TraceError, TrueupError, WeightsError

_DEBUG = "TRUEUP_DEBUG"
_BAD_USE = 2
_VERBS = (
    "accept",
    "capture",
    "check",
    "check-run",
    "compare",
    "compare-weights",
    "convert-weights",
    "curves",
    "diagnose",
    "dump-config",
    "match",
    "inspect",
    "export",
    "monitor",
    "noise",
    "replay",
    "seed-all",
)
_HINTS: dict[type[TrueupError], str] = {
    ConfigError: "trueup {verb} --help lists every option",
    TraceError: "trueup inspect FOLDER shows what a trace holds",
    WeightsError: "trueup {verb} --help says which files of weights are read and written",
    NothingCompared: "trueup inspect FOLDER --step N lists the sites of a step; is it the same model?",
}

app = typer.Typer(
    name="trueup",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Finds out why two training runs of the same large model do not agree, and says so with evidence.",
    epilog="Start with: trueup capture -o runs/reference -- python train.py",
)
app.command(name="capture", context_settings={"allow_interspersed_args": False})(capture.command)
app.command(name="accept")(accept.command)
app.command(name="check")(check.command)
app.command(name="check-run")(check_run.command)
app.command(name="compare")(compare.command)
app.command(name="compare-weights")(compare_weights.command)
app.command(name="convert-weights")(convert_weights.command)
app.command(name="curves")(curves.command)
app.command(name="match")(match.command)
app.command(name="diagnose")(diagnose.command)
app.command(name="dump-config")(dump_config.command)
app.command(name="inspect")(inspect.command)
app.command(name="export")(export.command)
app.command(name="monitor")(monitor.command)
app.command(name="noise", context_settings={"allow_interspersed_args": False})(noise.command)
app.command(name="replay", context_settings={"allow_interspersed_args": False})(replay.command)
app.command(name="seed-all")(seed_all.command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"trueup {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of trueup itself."""


def _add_installed(verb: str) -> None:
    """Commands that other packages register under ``trueup.commands``, loaded when one or help is wanted."""
    from importlib.metadata import entry_points

    for entry in entry_points(group="trueup.commands"):
        if verb in ("", entry.name) and entry.name not in {one.name for one in app.registered_commands}:
            app.command(name=entry.name)(entry.load())


def run(argv: list[str]) -> int:
    """Run one command and return its exit status; a person's mistake is one line, never a traceback."""
    verb = next((word for word in argv if not word.startswith("-")), "")
    if verb not in _VERBS:
        _add_installed(verb)
    if verb == "capture":
        argv = capture.with_scope_joined(argv)
    argv = with_each_named(argv, SEVERAL.get(verb, ()))
    if verb == "replay":
        argv = with_gradients_named(argv)
    try:
        refuse_empty_words(argv)
        status = app(args=argv, prog_name="trueup", standalone_mode=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except TrueupError as error:
        if os.environ.get(_DEBUG):
            traceback.print_exc()
        error_line(str(error))
        hint_line(_hint_of(error, verb))
        return _BAD_USE
    except OSError as error:
        if os.environ.get(_DEBUG):
            traceback.print_exc()
        error_line(f"{error.filename or verb}: {error.strerror or error}")
        return _BAD_USE
    except Exception as error:  # not 1, which would say that the runs differ
        if hasattr(error, "format_message"):
            return _misused(error, argv, verb)
        traceback.print_exc()
        error_line(f"a fault in trueup itself: {type(error).__name__}: {error}")
        return _BAD_USE
    return status if isinstance(status, int) else 0


def _hint_of(error: TrueupError, verb: str) -> str:
    if verb == "curves":
        return "trueup curves --help says which logs are read and how runs are named"
    if isinstance(error, NothingCompared) and verb == "compare-weights":
        return "trueup compare-weights --help says how weights are paired"
    return _HINTS[next(kind for kind in _HINTS if isinstance(error, kind))].format(verb=verb)


def _misused(error: Exception, argv: list[str], verb: str) -> int:
    """An error of the command-line library: an unknown option, a missing argument; or no argument at all."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
        return _BAD_USE
    error_line(sentence_of(error, argv))
    known = verb in {one.name for one in app.registered_commands}
    hint_line(f"trueup {verb} --help lists every option" if known else "trueup --help lists the commands")
    return _BAD_USE
