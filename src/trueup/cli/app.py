"""Registers the verbs, and turns errors into one line and an exit status."""

from __future__ import annotations

import errno
import itertools
import os
import re
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Protocol

import typer

from trueup import __version__
from trueup.cli.command_from import SingleCommand, Verb, command_from, listed
from trueup.cli.printing import error_line, hint_line
from trueup.cli.words import refuse_empty_words, rewritten, with_msprobe_s_flags, with_verb_first
from trueup.errors import ConfigError, NothingCompared, TraceError, TrueupError, WeightsError

_EXPECTED = {"valid integer": "an integer", "valid number": "a number"}
_NO_VALUE = re.compile(r"Option '([^']+)' requires (?:an argument|(\d+) arguments)")
_BEYOND = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)")


class UsageProblem(Protocol):
    """An error of the command-line library."""

    def format_message(self) -> str:
        """What it says itself."""


_DEBUG = "TRUEUP_DEBUG"
_BAD_USE = 2
USAGE = {
    "capture": "-o RUN -- python train.py",
    "accept": "TARGET REFERENCE -o OUT",
    "alias": "msprobe",
    "check": "TARGET_CONFIG REFERENCE_CONFIG",
    "check-run": "-- python train.py",
    "compare": "TARGET REFERENCE -o OUT",
    "compare-weights": "TARGET REFERENCE",
    "convert-weights": "SRC DST --to NAME",
    "curves": "TARGET --reference REF REF2 -o OUT",
    "match": "TARGET REFERENCE -o MAP.yaml",
    "diagnose": "TARGET REFERENCE -o OUT",
    "dump-config": "--kind full --path /dump",
    "inspect": "RUN",
    "export": "RUN DIR",
    "mismatch": "TOKENS.npz",
    "monitor": "RUN",
    "noise": "--reference RUN -- python train.py",
    "replay": "--reference RUN -o OUT -- python train.py",
    "seed-all": "--seed 1234",
}
"""verb -> how it is called"""
_HINTS: dict[type[TrueupError], str] = {
    ConfigError: "trueup {verb} --help lists every option",
    TraceError: "trueup inspect FOLDER lists the contents of a trace",
    WeightsError: "trueup {verb} --help lists the weight formats that are read and written",
    NothingCompared: "trueup inspect FOLDER --step N lists the sites of a step; is it the same model?",
}
_HINT_OF_CURVES = "trueup curves --help lists the log formats that are read, and how runs are named"
_HINT_OF_PAIRING = "trueup compare-weights --help explains how weights are paired"

app = typer.Typer(
    name="trueup",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Finds out why two training runs of the same large model differ, with evidence.",
    epilog="Start with: trueup capture -o runs/reference -- python train.py",
)


def function_of(verb: str) -> Verb:
    """The function of a verb, in the module of its name."""
    function: Verb = import_module(f"trueup.cli.{verb.replace('-', '_')}").command
    return function


def _register(verb: str) -> None:
    app.registered_commands = [one for one in app.registered_commands if one.name != verb]
    followed = "-- python" in USAGE[verb] and verb != "check-run"
    settings = {"allow_interspersed_args": False} if followed else None
    app.command(name=verb, cls=SingleCommand, context_settings=settings)(command_from(function_of(verb)))


def _list_all() -> None:
    """Every verb with its first line, for help: without the options, which are most of the time."""
    registered = {one.name for one in app.registered_commands}
    for verb in USAGE:
        if verb not in registered:
            app.command(name=verb)(listed(function_of(verb)))


def _print_version(asked: bool) -> None:
    if asked:
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
    """Commands that other packages register under ``trueup.commands``, loaded when one is called, or for
    help."""
    from importlib.metadata import entry_points

    for entry in entry_points(group="trueup.commands"):
        if verb in ("", entry.name) and entry.name not in {one.name for one in app.registered_commands}:
            app.command(name=entry.name, cls=SingleCommand)(entry.load())


def run(argv: list[str]) -> int:
    """Run one command and return its exit status; a person's mistake is one line, never a traceback."""
    argv = with_msprobe_s_flags(with_verb_first(argv))
    verb = next((word for word in argv if not word.startswith("-")), "")
    try:
        if verb in USAGE:
            _register(verb)
            argv = rewritten(argv, function_of(verb))
        else:
            _list_all()
            _add_installed(verb)
        refuse_empty_words(argv)
        status = app(args=argv, prog_name="trueup", standalone_mode=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # not 1, which would say that the runs differ
        return _failed(error, argv, verb)
    return status if isinstance(status, int) else 0


def _failed(error: Exception, argv: list[str], verb: str) -> int:
    """One line for a mistake of a person or the system; a traceback for a bug."""
    if hasattr(error, "format_message"):
        return _misused(error, argv, verb)
    if _is_full(error) and not os.environ.get(_DEBUG):
        error_line(
            f"no space left on the disk of {_written_to(argv)}: what {verb} wrote there is not complete"
        )
        hint_line("make room there, or name another place, and run the command again")
        return _BAD_USE
    deep = isinstance(error, RecursionError)  # of a parser that went into a person's file
    known = deep or isinstance(error, (TrueupError, OSError))
    if not known or os.environ.get(_DEBUG):
        traceback.print_exception(error)
    if isinstance(error, TrueupError):
        error_line(str(error))
        hint_line(_hint_of(error, verb))
    elif deep:
        error_line(f"{verb}: something is nested too deeply to be read: {error}")
        hint_line(f"is each file the one that was meant? {_DEBUG}=1 shows where")
    elif isinstance(error, OSError):
        error_line(f"{error.filename or verb}: {error.strerror or error}")
        hint_line(f"is it the path that was meant? trueup {verb} --help says what each argument is")
    else:
        error_line(f"internal error in trueup: {type(error).__name__}: {error}")
    return _BAD_USE


def _is_full(error: Exception) -> bool:
    """Whether a disk has no room: libraries say it each in its own way, PyTorch's writer by its stream."""
    message = str(error).lower()
    return (
        getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        or (isinstance(error, OSError) and "no space left" in message)
        or "basic_ios::clear: iostream error" in message
    )


def _written_to(argv: Sequence[str]) -> str:
    """The place that a command line names to write to."""
    for word, after in itertools.pairwise(argv):
        if word in ("-o", "--output", "--tensorboard", "--keep"):
            return after
    return argv[2] if argv[0] in ("export", "convert-weights") and len(argv) > 2 else "the output"


def _hint_of(error: TrueupError, verb: str) -> str:
    if verb == "curves":
        return _HINT_OF_CURVES
    if isinstance(error, NothingCompared) and verb == "compare-weights":
        return _HINT_OF_PAIRING
    return _HINTS[next(kind for kind in _HINTS if isinstance(error, kind))].format(verb=verb)


def _misused(error: Exception, argv: list[str], verb: str) -> int:
    """An error of the command-line library: an unknown option, a missing argument; or no argument at all."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
        return _BAD_USE
    error_line(sentence_of(error, argv, f"trueup {verb} {USAGE.get(verb, '')}"))  # type: ignore[arg-type]
    known = verb in {one.name for one in app.registered_commands}
    hint_line(f"trueup {verb} --help lists every option" if known else "trueup --help lists the commands")
    return _BAD_USE


def sentence_of(error: UsageProblem, argv: Sequence[str], usage: str) -> str:
    """One sentence for an error of the command-line library; ``usage`` shows how the verb is called.

    Example:
        >>> class Wrong:
        ...     param = type("Option", (), {"opts": ["--seed"]})
        ...     format_message = lambda self: "Invalid value for '--seed': Input should be a valid integer"
        >>> sentence_of(Wrong(), ["capture", "--seed", "x"], "trueup capture -o RUN -- COMMAND")
        "--seed: expected an integer (got 'x')"
    """
    message = " ".join(error.format_message().split()).replace("Value error, ", "")
    missing = re.match(r"Missing (?:argument|option) '([^']+)'", message)
    if missing is not None:
        return f"{missing[1].split(' / ')[0]} is missing: {usage}"
    valueless = _NO_VALUE.match(message)
    if valueless is not None:
        return f"{valueless[1]}: expected {valueless[2] or 'a'} value{'s' if valueless[2] else ''} after it"
    beyond = _BEYOND.match(message)
    if beyond is not None:
        return f"unexpected {'arguments' if ' ' in beyond[1] else 'argument'}: {beyond[1]}; expected {usage}"
    names = getattr(getattr(error, "param", None), "opts", [])
    for word, what in _EXPECTED.items():
        if names and word in message:
            option, value = _given(names, argv)
            return f"{option}: expected {what} (got {value!r})"
    return message


def _given(names: Sequence[str], argv: Sequence[str]) -> tuple[str, str]:
    """An option as a person wrote it, and its value."""
    for word, after in zip(argv, [*argv[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            return name, value if equals else after
    return names[-1], ""
