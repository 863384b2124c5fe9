"""Launch scripts: what a shell would put on the training command's line, found without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trueup.checklist.readers import command_line, environment
from trueup.checklist.readers.shell_run import Run, starts
from trueup.checklist.readers.shell_words import Variables, plain
from trueup.checklist.settings import SettingsDocument
from trueup.errors import ConfigError


def looks_like(text: str) -> bool:
    """Whether this is a script with a training command in it."""
    head = text.lstrip()[:200]
    shebang = head.startswith("#!") and any(shell in head.splitlines()[0] for shell in ("bash", "/sh", "zsh"))
    if shebang:
        return True
    begun = (line.strip().partition(" ")[0] for line in text.splitlines())
    if any(map(starts, begun)) and " --" in text:
        return True
    words = text.split()
    return any(map(command_line.is_of_verl, words)) and any(map(starts, words))


def documents(text: str, path: str, arguments: Sequence[str] | None = None) -> list[SettingsDocument]:
    """The documents of a launch script: the flags of its training command, and the variables it exports.

    Args:
        text: the script.
        path: its name, for places.
        arguments: what it is called with; None where that is not known.

    Raises:
        ConfigError: there is no training command in it.
    """
    run = Run(path, Variables(script=str(Path(path).resolve()), arguments=arguments))
    run.all(text)
    words = [(plain(word), place) for word, place in run.command or run.assembled()]
    if not words:
        raise ConfigError(
            f"{path}: no training command in this script; expected a line with flags such as --num-layers"
        )
    found = command_line.from_words(words, path=path, kind="shell")
    notes = tuple(run.notes())
    first = found[0]
    found[0] = replace(
        first,
        settings={**run.undecided, **first.settings},
        notes=notes,
        exports={**{name: str(one.value) for name, one in run.exported.items()}, **first.exports},
        setup=tuple(run.setup),
    )
    exported = environment.known(run.exported)
    if exported:
        found.append(
            SettingsDocument(dialect="environment", path=path, settings=exported, kind="environment")
        )
    return found
