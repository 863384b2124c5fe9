"""What a person named as one side of a check, opened: files, folders, lists of them, a command line."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from trueup.checklist.readers import (
    checkpoint,
    command_line,
    environment,
    log,
    mappings,
    recipe,
    shell,
    trace,
    verl_log,
)
from trueup.checklist.settings import SettingsDocument
from trueup.errors import ConfigError

_LARGEST_BYTES = 64 << 20
_ENVIRONMENT = "environment.sh"
"""the variables that --prepare writes beside a configuration"""
_NAMED = (
    "config.json",
    "training_args.json",
    "trainer_state.json",
    "ds_config.json",
    "deepspeed.json",
    "environment.txt",
    "tokenizer_config.json",
    "chat_template.jinja",
)
_STRUCTURED = (".json", ".y", ".toml")
"""beginnings of suffixes of files that are no logs"""
_PICKLE = b"\x80"
_ZIP = b"PK\x03\x04"


def read_side(sources: Iterable[str]) -> list[SettingsDocument]:
    """Every document of one side; a source is a file, a folder, or the words of a command line.

    Raises:
        ConfigError: a source that is not there or no configuration.
    """
    return [document for source in sources for document in _source(source)]


def _source(source: str) -> list[SettingsDocument]:
    path = Path(source)
    if not _exists(path):
        if command_line.looks_like(source):
            return _with_named(command_line.documents(source, path="command line"), Path())
        if (call := _called(source)) is not None:
            return call
        parts = [part for part in source.split(",") if part]
        if len(parts) > 1:
            return [document for part in parts for document in _source(part)]
        raise ConfigError(f"no such file or folder: {source}")
    return _folder(path) if path.is_dir() else _file(path)


def _called(source: str) -> list[SettingsDocument] | None:
    """A launch script with the arguments it is started with: ``bash run.sh 7B 1e-5``."""
    try:
        words = shlex.split(source)
    except ValueError:
        return None
    words = words[1:] if words[:1] in (["bash"], ["sh"]) else words
    if not words or not (path := Path(words[0])).is_file():
        return None
    content = path.read_text(encoding="utf-8", errors="replace")
    if not shell.looks_like(content):
        return None
    return _with_named(shell.documents(content, str(path), arguments=words[1:]), path.parent)


def _with_named(documents: list[SettingsDocument], folder: Path) -> list[SettingsDocument]:
    """A command with the files of settings it names: beside the script, or from where trueup runs.

    Flags stand before what a file says, as programs have it.
    """
    command = documents[0]
    notes = list(command.notes)
    named: list[SettingsDocument] = []
    for text in command_line.config_files(command.settings):
        found = next((place for place in (folder / text, Path(text)) if place.is_file()), None)
        if found is None:
            notes.append(f"{command.path}: it names {text}, which is not there")
        else:
            named += _file(found)
    if named and not command_line.speaks(command):
        return [*named, *documents[1:]]
    return [replace(command, notes=tuple(notes)), *named, *documents[1:]]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a command line is too long for a name
        return False


def _folder(folder: Path) -> list[SettingsDocument]:
    """A trace, a model of Hugging Face, a checkpoint of Megatron; or the one configuration that is in it."""
    if trace.is_trace(folder):
        return trace.documents(folder)
    if (found := checkpoint.file_in(folder)) is not None:
        return _file(found)
    known = [folder / name for name in _NAMED if (folder / name).is_file()]
    if not known:
        known = sorted(
            p for p in folder.iterdir() if p.suffix in (".yaml", ".yml", ".toml", ".sh") and p.is_file()
        )
    if not known:
        raise ConfigError(f"{folder}: no configuration in this folder that is known; name the file")
    beside = [path for path in known if path.name != _ENVIRONMENT]
    if len(beside) == 1:
        known = [*beside, *(path for path in known if path.name == _ENVIRONMENT)]
    elif len(known) > 1 and known[0].name not in _NAMED:
        names = ", ".join(path.name for path in known[:6])
        raise ConfigError(
            f"{folder}: several configurations are in this folder ({names}); name the one that is meant"
        )
    return [document for path in known for document in _file(path)]


def _file(path: Path) -> list[SettingsDocument]:
    name = str(path)
    with path.open("rb") as stream:
        head = stream.read(4)
    if head[:1] == _PICKLE or head == _ZIP:
        return [checkpoint.document(path)]
    if path.stat().st_size > _LARGEST_BYTES and not log.looks_like_file(path):
        raise ConfigError(f"{name}: {path.stat().st_size >> 20} MiB is too large for a configuration")
    text = log.arguments_of(path)
    if text is not None:
        return [log.document(text, name)]
    printed = verl_log.configuration_of(path) if not path.suffix.startswith(_STRUCTURED) else None
    if printed is not None:
        found = mappings.document(printed, name)
        settings = {
            key: replace(one, place=name) for key, one in found.settings.items()
        }  # not a line of JSON
        return [replace(found, settings=settings)]
    content = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix in (".jinja", ".jinja2"):
        return [mappings.template(content, name)]
    if "\x00" in content:
        raise ConfigError(f"{name}: a binary file of a kind that is not known")
    if recipe.looks_like(content) and path.suffix.startswith(".y"):
        return recipe.documents(content, name)  # also where one of its keys holds lines of a script
    if shell.looks_like(content):
        return _with_named(shell.documents(content, name), path.parent)
    if environment.looks_like(content):
        return [environment.document(content, name)]
    if recipe.looks_like(content):
        return recipe.documents(content, name)
    if (lines := command_line.flags_of_file(content)) is not None:
        words = [(w, f"{name}:{number}") for number, line in lines for w in _words(line, f"{name}:{number}")]
        return _with_named(command_line.from_words(words, path=name, kind="shell"), path.parent)
    if (bare := log.bare_arguments(content)) is not None:
        return [log.document(bare, name)]
    return [mappings.document(content, name)]


def _words(line: str, place: str) -> list[str]:
    """As a shell takes them apart.

    Raises:
        ConfigError: a quotation has no end.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"{place}: {error} in {line!r}") from error
