"""The commands of a shell script as bash groups them: lists, branches, loops and functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from trueup.checklist.readers.shell_tokens import Here, Token, tokens

Raw = tuple[str, int]
"""a raw word, with quotes and variables still in it, and its line"""
_JOINERS = ("&&", "||", "|", "|&")
_CLOSING = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One simple command: raw words, and what it reads from the script."""

    words: list[Raw]
    here: Here | None = None

    @property
    def line(self) -> int:
        """Where it begins."""
        return self.words[0][1]


@dataclass(frozen=True, slots=True)
class Chain:
    """Commands one after the other, each with what joins it to the one before: ``&&``, ``||`` or ``|``."""

    parts: list[tuple[str, Node]]


@dataclass(frozen=True, slots=True)
class Negated:
    """``! command``."""

    node: Node


@dataclass(frozen=True, slots=True)
class If:
    """The tests of an ``if`` with what runs where each holds, and its line; of ``else`` an empty test."""

    clauses: list[tuple[list[Node], list[Node], int]]


@dataclass(frozen=True, slots=True)
class CaseBranch:
    """What a ``case`` looks at, and the patterns with what runs for them."""

    subject: Raw
    clauses: list[tuple[list[Raw], list[Node]]]


@dataclass(frozen=True, slots=True)
class For:
    """A ``for`` over words; over the arguments where there are none, over what is unknown with ``((``."""

    name: str
    words: list[Raw] | None
    body: list[Node]


@dataclass(frozen=True, slots=True)
class While:
    """A loop as long as its test holds, or with ``until`` as long as it does not."""

    test: list[Node]
    body: list[Node]
    until: bool
    line: int


@dataclass(frozen=True, slots=True)
class ShellFunction:
    """A function that a later command may call."""

    name: str
    body: list[Node]


@dataclass(frozen=True, slots=True)
class Group:
    """``{ ... }`` or ``( ... )``."""

    body: list[Node]


Node: TypeAlias = ShellCommand | Chain | Negated | If | CaseBranch | For | While | ShellFunction | Group


def parsed(text: str, first_line: int = 1) -> list[Node]:
    """The commands of a script. What does not close ends with the script."""
    parser = _Parser(tokens(text, first_line))
    found: list[Node] = []
    while parser.at < len(parser.tokens):
        found += parser.block()
        parser.at += 1  # past a word that closes nothing
    return found


def words_in(text: str, first_line: int = 1) -> list[Raw]:
    """The raw words of a list in brackets, or of a command's text."""
    return [
        (token.text, token.line) for token in tokens(text, first_line) if not token.operator and token.text
    ]


def commands(nodes: list[Node]) -> Iterator[ShellCommand]:
    """Every simple command in these, at any depth; of functions too."""
    for node in nodes:
        match node:
            case ShellCommand():
                yield node
            case Chain():
                yield from commands([part for _, part in node.parts])
            case Negated():
                yield from commands([node.node])
            case If():
                for test, body, _ in node.clauses:
                    yield from commands([*test, *body])
            case CaseBranch():
                for _, body in node.clauses:
                    yield from commands(body)
            case While():
                yield from commands([*node.test, *node.body])
            case _:
                yield from commands(node.body)


@dataclass(slots=True)
class _Parser:
    tokens: list[Token]
    at: int = 0
    ends: frozenset[str] = field(default=_CLOSING)

    def block(self) -> list[Node]:
        """Commands up to a word or bracket that closes something."""
        found: list[Node] = []
        while True:
            while self._is(";", "\n", "&"):
                self.at += 1
            if self.at >= len(self.tokens) or self._is(")", ";;", ";&", ";;&") or self._word() in _CLOSING:
                return found
            before = self.at
            found.append(self._chain())
            self.at += self.at == before

    def _is(self, *signs: str) -> bool:
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        return token is not None and token.operator and token.text in signs

    def _word(self) -> str:
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        return "" if token is None or token.operator else token.text

    def _skip(self, *words: str) -> None:
        """Past line ends, and one of these words where it stands here."""
        while self._is(";", "\n"):
            self.at += 1
        self.at += self._word() in words and bool(words)

    def _chain(self) -> Node:
        parts: list[tuple[str, Node]] = [("", self._one())]
        while self._is(*_JOINERS):
            sign = self.tokens[self.at].text
            self.at += 1
            while self._is("\n"):
                self.at += 1
            parts.append((sign, self._one()))
        return Chain(parts) if len(parts) > 1 else parts[0][1]

    def _one(self) -> Node:
        word = self._word()
        line = self.tokens[min(self.at, len(self.tokens) - 1)].line
        if self._is("("):
            self.at += 1
            return self._closed(")")
        if word == "{":
            self.at += 1
            return self._closed("}")
        if word == "!":
            self.at += 1
            return Negated(self._one())
        if word == "if":
            return self._if()
        if word == "case":
            return self._case()
        if word in ("for", "select"):
            return self._for()
        if word in ("while", "until"):
            return self._while(line)
        return self._function() or self._command()

    def _closed(self, by: str) -> Group:
        body = self.block()
        self.at += self._is(by) or self._word() == by
        while self.at < len(self.tokens) and self.tokens[self.at].here is not None:
            self.at += 1
        return Group(body)

    def _if(self) -> If:
        clauses: list[tuple[list[Node], list[Node], int]] = []
        while self._word() in ("if", "elif", "else"):
            word, line = self._word(), self.tokens[self.at].line
            self.at += 1
            test = [] if word == "else" else self.block()
            self._skip("then")
            clauses.append((test, self.block(), line))
        self.at += self._word() == "fi"
        return If(clauses)

    def _case(self) -> CaseBranch:
        self.at += 1
        subject = (self._word(), self.tokens[min(self.at, len(self.tokens) - 1)].line)
        self.at += 1
        self._skip("in")
        clauses: list[tuple[list[Raw], list[Node]]] = []
        while self.at < len(self.tokens) and self._word() != "esac":
            patterns: list[Raw] = []
            while self.at < len(self.tokens) and not self._is(")"):
                if self._word():
                    patterns.append((self._word(), self.tokens[self.at].line))
                self.at += 1
            self.at += 1
            clauses.append((patterns, self.block()))
            while self._is(";;", ";&", ";;&", "\n", ";"):
                self.at += 1
        self.at += 1
        return CaseBranch(subject, clauses)

    def _for(self) -> For:
        self.at += 1
        name, words = self._word(), None
        is_counted = name.startswith("((")
        self.at += 1
        while self._is("\n"):
            self.at += 1
        if self._word() == "in":
            self.at += 1
            words = []
            while self.at < len(self.tokens) and not self._is(";", "\n"):
                words.append((self._word(), self.tokens[self.at].line))
                self.at += 1
        return For("" if is_counted else name, [("$(())", 0)] if is_counted else words, self._loop_body())

    def _while(self, line: int) -> While:
        until = self._word() == "until"
        self.at += 1
        return While(self.block(), self._loop_body(), until, line)

    def _loop_body(self) -> list[Node]:
        self._skip("do", "{")
        body = self.block()
        self.at += self._word() in ("done", "}")
        while self.at < len(self.tokens) and self.tokens[self.at].here is not None:
            self.at += 1
        return body

    def _function(self) -> ShellFunction | None:
        """``name() { ... }`` or ``function name { ... }``."""
        at = self.at
        self.at += self._word() == "function"
        keyword, name = self.at > at, self._word()
        self.at += 1
        brackets = self._is("(")
        if brackets:
            self.at += 1
            brackets = self._is(")")
            self.at += 1
        if not (brackets or keyword) or not name:
            self.at = at
            return None
        self._skip()
        body = self._one()
        return ShellFunction(name, body.body if isinstance(body, Group) else [body])

    def _command(self) -> ShellCommand:
        words: list[Raw] = []
        here = None
        while self.at < len(self.tokens) and not self.tokens[self.at].operator:
            token = self.tokens[self.at]
            here = token.here or here
            if token.here is None:
                words.append((token.text, token.line))
            self.at += 1
        line = self.tokens[min(self.at, len(self.tokens) - 1)].line
        return ShellCommand(words or [("", line)], here)
