"""Launch scripts: what a shell would put on the training command's line, found without running anything."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass, field

from trueup.checklist.readers import command_line, environment
from trueup.checklist.readers.shell_conditions import holds
from trueup.checklist.readers.shell_words import Statement, Variables, expanded, expanded_text, statements
from trueup.checklist.settings import Document, Setting
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
_FEWEST_FLAGS = 3


def looks_like(text: str) -> bool:
    """Whether this is a script with a training command in it."""
    head = text.lstrip()[:200]
    shebang = head.startswith("#!") and any(shell in head.splitlines()[0] for shell in ("bash", "/sh", "zsh"))
    begun = (line.strip().partition(" ")[0].rpartition("/")[2] for line in text.splitlines())
    return shebang or (any(word in _STARTERS for word in begun) and " --" in text)


def documents(text: str, path: str) -> list[Document]:
    """The documents of a launch script: the flags of its training command, and the variables it exports.

    Raises:
        ConfigError: there is no training command in it.
    """
    run = _Run(path)
    run.all(statements(text))
    words = run.command or run.assembled()
    if not words:
        raise ConfigError(
            f"{path}: no training command in this script; a line with flags such as --num-layers is wanted"
        )
    found = command_line.from_words(words, path=path, kind="shell")
    notes = tuple(run.notes())
    first = found[0]
    found[0] = Document(
        dialect=first.dialect, path=path, settings=first.settings, data=first.data, kind="shell", notes=notes
    )
    exported = environment.known(run.exported)
    if exported:
        found.append(Document(dialect="environment", path=path, settings=exported, kind="environment"))
    return found


@dataclass(slots=True)
class _Run:
    """A script gone through once: assignments kept, branches taken where their test can be decided."""

    path: str
    variables: Variables = field(default_factory=Variables)
    exported: dict[str, Setting] = field(default_factory=dict)
    command: list[command_line.Word] = field(default_factory=list)
    undecided: list[int] = field(default_factory=list)
    stack: list[list[bool]] = field(default_factory=list)
    """of every open `if` and `case`: whether this branch runs, and whether one was taken or may have been"""
    subjects: list[str | None] = field(default_factory=list)
    """what every open `case` looks at; None where that is not known"""

    def all(self, script: list[Statement]) -> None:
        """Go through every statement."""
        for statement in script:
            self._one(statement)

    def notes(self) -> Iterator[str]:
        """What a reader of the result must know."""
        if self.undecided:
            lines = ", ".join(map(str, self.undecided[:5]))
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

    def _one(self, statement: Statement) -> None:
        word = statement.words[0][0]
        if word in ("if", "elif", "else", "fi"):
            self._branch(word, statement)
        elif word == "case" and len(statement.words) > 1:
            self._case(statement)
        elif word == "esac" and self.subjects:
            self.subjects.pop()
            self.stack[-1:] = []
        elif self.subjects and word.endswith(")") and "(" not in word:
            self._pattern(word[:-1], statement)
        elif all(running for running, _ in self.stack):
            self._run(statement)

    def _branch(self, word: str, statement: Statement) -> None:
        if word == "fi":
            self.stack[-1:] = []
        elif word == "if":
            running = all(running for running, _ in self.stack)
            taken = holds(statement, self.variables) if running else False
            if taken is None:
                self.undecided.append(statement.line)
            self.stack.append([bool(taken), taken is not False])
        elif self.stack:
            _, done = self.stack[-1]
            taken = False if done else True if word == "else" else holds(statement, self.variables)
            self.stack[-1] = [bool(taken), done or taken is not False]

    def _case(self, statement: Statement) -> None:
        self.variables.missing, before = set(), self.variables.missing
        subject = expanded_text(statement.words[1][0], self.variables)
        known = not self.variables.missing and "$(" not in subject
        self.variables.missing = before
        if not known and all(running for running, _ in self.stack):
            self.undecided.append(statement.line)
        self.subjects.append(subject if known else None)
        self.stack.append([False, False])
        if len(statement.words) > 3:  # the first pattern stands on the same line
            self._one(Statement(statement.words[3:]))

    def _pattern(self, pattern: str, statement: Statement) -> None:
        subject, (_, done) = self.subjects[-1], self.stack[-1]
        plain = expanded_text(pattern, self.variables)
        taken = subject is not None and not done and fnmatch.fnmatchcase(subject, plain)
        self.stack[-1] = [taken, done or taken]
        if len(statement.words) > 1:
            self._one(Statement(statement.words[1:]))

    def _run(self, statement: Statement) -> None:
        words = statement.words
        index = 0
        exporting = words[0][0] in ("export", "declare", "local", "readonly", "typeset")
        if words[0][0] in ("then", "do", "{", "export", "declare", "local", "readonly", "typeset"):
            index = 1
        while index < len(words) and (name := self.variables.assign(*words[index])) is not None:
            if exporting:
                text = expanded_text(f"${{{name}}}", self.variables)
                self.exported[name] = Setting(name, text, self._place(words[index][1]))
            index += 1
        if index < len(words) and words[index][0] not in _SKIPPED and not exporting:
            self._command(words[index:])

    def _command(self, raw: list[tuple[str, int]]) -> None:
        """Keep the command where it starts a program and has more flags than the one kept so far."""
        words = [
            (text, self._place(line)) for word, at in raw for text, line in expanded(word, at, self.variables)
        ]
        starts = any(word.rpartition("/")[2] in _STARTERS for word, _ in words[:1]) or any(
            word.endswith(".py") for word, _ in words
        )
        if starts and _num_flags(words) > _num_flags(self.command):
            self.command = [part for word, place in words for part in _inner(word, place)]

    def _place(self, line: int) -> str:
        return f"{self.path}:{line}" if line else self.path


def _num_flags(words: list[command_line.Word]) -> int:
    return sum(part.startswith("--") for word, _ in words for part in word.split())


def _inner(word: str, place: str) -> list[command_line.Word]:
    """A quoted command inside a command (`eval "torchrun ..."`) as its words."""
    return [(part, place) for part in word.split()] if " --" in word else [(word, place)]
