"""Looks at a command before it runs: can capture get into it?"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from trueup.errors import ConfigError

_PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*)?t?$")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_WITH_VALUE = "cmWX"
_SHUTS_OUT = {
    "E": "ignores PYTHONPATH",
    "I": "ignores PYTHONPATH and the user's site",
    "S": "does not run the site module",
}


def check_command(command: Sequence[str], *, path: str | None = None) -> str:
    """The program that ``command`` runs; a Python that it starts directly is known to read the start-up file.

    Text, not a ``Path``: that would drop the ``./`` of ``./script.sh``, and the system would look for a
    ``script.sh`` in PATH.

    Raises:
        ConfigError: nothing to run, no such program, or a python started with -E, -I or -S.

    Example:
        >>> check_command(["python", "-I", "train.py"])   # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        trueup.errors.ConfigError: python -I ignores PYTHONPATH ...
    """
    if not command or not command[0]:
        raise ConfigError(
            "no command to run. Write it after two dashes: trueup capture -o RUN -- python train.py"
        )
    program = _find(command[0], path=path)
    _check_words(command, where="the captured command")
    _check_words(_shebang(Path(program)), where=f"the first line of {command[0]}")
    return program


def _find(word: str, *, path: str | None) -> str:
    program = shutil.which(word, path=path)
    if program is not None:
        return program
    if Path(word).is_dir():
        raise ConfigError(f"cannot run {word}: it is a folder")
    if Path(word).is_file() and os.sep not in word and os.access(word, os.X_OK):
        raise ConfigError(f"cannot run {word}: no such command in PATH. Try: ./{word}")
    if Path(word).is_file():
        hint = f"python {word}" if word.endswith(".py") else f"sh {word}, or make it executable"
        raise ConfigError(f"cannot run {word}: it is not an executable file. Try: {hint}")
    if word.startswith("-"):
        raise ConfigError(
            f"cannot run {word!r}: options of trueup go before the two dashes, the command after them"
        )
    if _ASSIGNMENT.match(word):
        raise ConfigError(
            f"cannot run {word!r}: it sets a variable, which needs a shell. Try: env {word} ..."
        )
    raise ConfigError(
        f"cannot run {word!r}: no such command. Is the environment active, and the name spelled right?"
    )


def _check_words(words: Sequence[str], *, where: str) -> None:
    for position, word in enumerate(words):
        if not _PYTHON.match(os.path.basename(word)):
            continue
        for flag in _python_flags(words[position + 1 :]):
            if flag in _SHUTS_OUT:
                raise ConfigError(
                    f"{where} starts {os.path.basename(word)} with -{flag}, which {_SHUTS_OUT[flag]}: "
                    f"capture cannot get in. Leave -{flag} out, or use trueup.Tracer inside the program."
                )


def _python_flags(words: Sequence[str]) -> list[str]:
    """Single-letter options of a python command line, up to its script, ``-c`` or ``-m``."""
    flags: list[str] = []
    rest = iter(words)
    for word in rest:
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(rest, None)
            continue
        if not word.startswith("-") or word == "-":
            break
        for index, letter in enumerate(word[1:], start=1):
            flags.append(letter)
            if letter in _WITH_VALUE:
                if letter in "cm":
                    return flags
                if index == len(word) - 1:
                    next(rest, None)
                break
    return flags


def _shebang(program: Path) -> list[str]:
    """The interpreter line of a script; for a long one installers write ``#!/bin/sh`` and a second line."""
    try:
        with program.open("rb") as file:
            head = file.read(4096)
    except OSError:
        return []
    if not head.startswith(b"#!"):
        return []
    lines = head.decode("utf-8", "replace").splitlines()
    words = lines[0][2:].split()
    if len(lines) > 1 and lines[1].startswith("'''exec'"):
        try:
            words += shlex.split(lines[1].removeprefix("'''exec'"))
        except ValueError:
            return words
    return words
