"""Launch scripts: what a shell would put on the training command's line, found without running anything."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trueup.checklist.readers import command_line, environment
from trueup.checklist.readers.shell_branches import Branches
from trueup.checklist.readers.shell_words import (
    ASSIGN,
    ShellStatement,
    Variables,
    expanded,
    expanded_text,
    plain,
    statements,
)
from trueup.checklist.settings import Setting, SettingsDocument, Undecided
from trueup.errors import ConfigError

_STARTERS = (
    "torchrun",
    "python",
    "python3",
    "deepspeed",
    "accelerate",
    "srun",
    "mpirun",
    "msrun",
    "eval",
    "exec",
    "bash",
    "sh",
)
_SKIPPED = frozenset(
    {"echo", "printf", "mkdir", "cd", "rm", "exit", "set", "source", ".", "sleep", "tee", "cat"}
)
_SETUP = frozenset({"source", ".", "ulimit", "module", "conda", "unset"})
_DECLARING = ("export", "declare", "local", "readonly", "typeset")
_FEWEST_FLAGS = 3


def looks_like(text: str) -> bool:
    """Whether this is a script with a training command in it."""
    head = text.lstrip()[:200]
    shebang = head.startswith("#!") and any(shell in head.splitlines()[0] for shell in ("bash", "/sh", "zsh"))
    if shebang:
        return True
    begun = (line.strip().partition(" ")[0] for line in text.splitlines())
    if any(map(_starts, begun)) and " --" in text:
        return True
    words = text.split()
    return any(map(command_line.is_of_verl, words)) and any(map(_starts, words))


def _starts(word: str) -> bool:
    return word.rpartition("/")[2] in _STARTERS


def documents(text: str, path: str, arguments: Sequence[str] | None = None) -> list[SettingsDocument]:
    """The documents of a launch script: the flags of its training command, and the variables it exports.

    Args:
        text: the script.
        path: its name, for places.
        arguments: what it is called with; None where that is not known.

    Raises:
        ConfigError: there is no training command in it.
    """
    run = _Run(path, Variables(script=str(Path(path).resolve()), arguments=arguments))
    run.all(statements(text))
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


@dataclass(slots=True)
class _Run:
    """A script gone through once: assignments kept, branches taken where their test can be decided."""

    path: str
    variables: Variables = field(default_factory=Variables)
    exported: dict[str, Setting] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)
    command: list[command_line.Word] = field(default_factory=list)
    branches: Branches = field(default_factory=Branches)
    possible: set[str] = field(default_factory=set)
    """variables assigned in a branch only the shell decides"""
    holders: set[str] = field(default_factory=set)
    """those of them that hold flags"""
    undecided: dict[str, Setting] = field(default_factory=dict)
    """the flags they hold"""

    def all(self, script: list[ShellStatement]) -> None:
        """Go through every statement."""
        for statement in script:
            self._one(statement)

    def notes(self) -> Iterator[str]:
        """What a reader of the result must know."""
        if self.branches.undecided:
            lines = ", ".join(map(str, self.branches.undecided[:5]))
            yield f"{self.path}: left out, as only the shell can decide it: the branch at line {lines}"
        if self.variables.missing:
            names = ", ".join(sorted(self.variables.missing)[:8])
            yield f"{self.path}: not set in this script, so left open: {names}"

    def assembled(self) -> list[command_line.Word]:
        """Flags kept in variables that no command was seen to use."""
        best: list[command_line.Word] = []
        for name in self.variables.texts:
            words = [(text, self._place(line)) for text, line in expanded(f"${name}", 0, self.variables)]
            if _num_flags(words) > max(_FEWEST_FLAGS, _num_flags(best)):
                best = words
        return best

    def _one(self, statement: ShellStatement) -> None:
        beside = self.branches.follow(statement, self.variables)
        if beside is None:
            return
        if self.branches.taken:
            self._run(beside)
        else:
            self._not_run(beside)

    def _not_run(self, statement: ShellStatement) -> None:
        """A branch passed over leaves its variables empty; one only the shell decides may add its flags."""
        for word, line in statement.words:
            match = ASSIGN.match(word)
            if match is None or match.group(1) in self.variables.texts:
                continue
            name, _, value = match.groups()
            if self.branches.taken is None:
                self.possible.add(name)
                self._may_add(name, value.strip("()"), line)
            else:
                self.variables.passed_over.add(name)
        self.variables.passed_over -= self.possible

    def _may_add(self, name: str, value: str, line: int) -> None:
        """Flags a variable may hold: what they say only the shell knows."""
        words = [(text, self._place(line)) for text, line in expanded(value, line, self.variables.aside())]
        for key, setting in command_line.flags(words).items():
            self.holders.add(name)
            unknown = Undecided(f"only the shell decides what {name} holds")
            self.undecided[key] = Setting(key, unknown, setting.place)

    def _run(self, statement: ShellStatement) -> None:
        words = statement.words
        if words[0][0] == "shift":
            self.variables.shift()
        if words[0][0] in _SETUP:
            texts = (expanded(word, line, self.variables) for word, line in words)
            self.setup.append(plain(" ".join(text for found in texts for text, _ in found)))
        exporting = words[0][0] in _DECLARING
        options = _declaring_options(words) if exporting else ""
        seen = words[0][0] == "export" or "x" in options
        index = len(options.split()) + (words[0][0] in ("then", "do", "{") or exporting)
        before: list[tuple[str, int]] = []
        while index < len(words) and (name := self.variables.assign(*words[index])) is not None:
            before.append((name, words[index][1]))
            index += 1
        if seen or (index < len(words) and not exporting):
            self._export(before)
        if words[0][0] == "export":
            self._export([(name, line) for name, line in words[index:] if name in self.variables.texts])
        if index < len(words) and words[index][0] not in _SKIPPED and not exporting:
            self._command(words[index:])

    def _export(self, names: list[tuple[str, int]]) -> None:
        """Variables the training command sees: exported, or set before a command."""
        for name, line in names:
            text = plain(expanded_text(f"${{{name}}}", self.variables))
            self.exported[name] = Setting(name, text, self._place(line))

    def _command(self, raw: list[tuple[str, int]]) -> None:
        """Keep the command where it starts a program and has more flags than the one kept so far."""
        words = [
            (text, self._place(line)) for word, at in raw for text, line in expanded(word, at, self.variables)
        ]
        starts = any(_starts(word) for word, _ in words[:1]) or any(
            word.endswith(".py") or word == "-m" for word, _ in words
        )
        if starts and _num_flags(words) > _num_flags(self.command):
            self.command = [
                part
                for word, place in words
                for part in _inner(word, place, self.variables)
                if not self._held(part)
            ]

    def _held(self, word: command_line.Word) -> bool:
        """Whether this is a variable whose flags are kept as undecided: no value of the flag before it."""
        return word[0].removeprefix("${").removesuffix("}") in self.holders and word[0].startswith("${")

    def _place(self, line: int) -> str:
        return f"{self.path}:{line}" if line else self.path


def _declaring_options(words: Sequence[tuple[str, int]]) -> str:
    """``-a`` of ``declare -a NAME=(...)``."""
    return " ".join(word for word, _ in itertools.takewhile(lambda one: one[0].startswith("-"), words[1:]))


def _num_flags(words: Sequence[tuple[str, object]]) -> int:
    parts = (part for word, _ in words for part in word.split())
    return sum(part.startswith("--") or command_line.is_of_verl(part) for part in parts)


def _inner(word: str, place: str, variables: Variables) -> list[command_line.Word]:
    """A quoted command inside a command (``eval "torchrun ..."``, ``bash -c '...'``) as its words."""
    if " --" not in word:
        return [(word, place)]
    raw = max((statement.words for statement in statements(word)), key=_num_flags)
    return [(text, place) for part, _ in raw for text, _ in expanded(part, 0, variables)]
