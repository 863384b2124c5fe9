"""Words, operators and redirections of a shell script, as bash parts them; nothing is expanded here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

PAIRS = {"(": ")", "{": "}"}
_OPERATORS = ("&&", "||", ";;&", ";;", ";&", "|&", "\n", ";", "&", "|", "(", ")")
_REDIRECTION = re.compile(r"&>>?|<<<|<<-?|<>|>>|>\||[<>]&|[<>]")
_PLACEHOLDER = re.compile(r"<[A-Za-z](?:[\w ./:-]*[\w.])?>(?=[\s\"')]|$)")
"""``<path to the data>`` of a template, where bash would redirect"""
_BEFORE_COMMAND = frozenset(
    {"if", "elif", "then", "else", "do", "while", "until", "!", "{", "time", "for", "let"}
)
"""words after which a command may stand: there ``((`` begins an arithmetic command"""


@dataclass(frozen=True, slots=True)
class Here:
    """What a command reads from its script: a here-document or a here-string."""

    text: str
    literal: bool
    """whether its variables stay as they are: the delimiter was quoted"""


@dataclass(frozen=True, slots=True)
class Token:
    """A raw word (quotes and variables still in it), an operator, or what a command reads."""

    text: str
    line: int
    operator: bool = False
    here: Here | None = None


@dataclass(slots=True)
class _Lexer:
    text: str
    line: int
    index: int = 0
    word: str = ""
    start: int = 0
    in_test: bool = False
    """between ``[[`` and ``]]``, where signs of other commands are comparisons"""
    begins: bool = True
    """whether a command may begin here"""
    waiting: list[tuple[str, bool, bool, int]] = field(default_factory=list)
    """here-documents that begin at the next line: delimiter, tabs stripped, literal, line"""

    def all(self) -> Iterator[Token]:
        """Every token, last a line end."""
        while self.index < len(self.text):
            yield from self._next()
        yield from self._ended()
        yield Token("\n", self.line, operator=True)

    def _next(self) -> Iterator[Token]:
        text, at = self.text, self.index
        if continued := re.compile(r"\\\r?\n").match(text, at):
            yield from self._ended()
            self.index, self.line = continued.end(), self.line + 1
        elif text[at] == "#" and not self.word:
            end = text.find("\n", at)
            self.index = len(text) if end < 0 else end
        elif text[at] != "\n" and text[at].isspace():
            yield from self._ended()
            self.index += 1
        elif text.startswith("((", at) and not self.word and self.begins:
            self._take(text[at : closing(text, at, "(", ")") + 1])
            yield from self._ended()
        elif text[at] in "\n;" or not self.in_test:
            yield from self._sign()
        else:
            self._take(taken(text, at, self.word))

    def _sign(self) -> Iterator[Token]:
        """An operator or a redirection, or the next part of a word."""
        text, at = self.text, self.index
        found = _REDIRECTION.match(text, at)
        if placeholder := _PLACEHOLDER.match(text, at):
            self._take(placeholder.group())
        elif found and text[found.end() : found.end() + 1] == "(" and found.group() in "<>":
            self._take(text[at : closing(text, found.end(), "(", ")") + 1])
        elif found:
            yield from self._redirected(found.group())
        elif text[at] == "(" and (self.word[-1:] in ("$", "=") or (self.word and self.word[-1] in "@?+*!")):
            self._take(taken(text, at, "="))
        elif sign := next((sign for sign in _OPERATORS if text.startswith(sign, at)), ""):
            yield from self._ended()
            yield Token(sign, self.line, operator=True)
            self.index, self.begins = at + len(sign), True
            self.in_test = self.in_test and sign not in ("\n", ";")
            if sign == "\n":
                self.line += 1
                yield from self._documents()
        else:
            self._take(taken(text, at, self.word))

    def _take(self, part: str) -> None:
        self.start = self.start if self.word else self.line
        self.word += part
        self.index += len(part)
        self.line += part.count("\n")

    def _ended(self) -> Iterator[Token]:
        if self.word:
            self.in_test = self.word == "[[" or (self.in_test and self.word != "]]")
            self.begins = self.word in _BEFORE_COMMAND
            yield Token(self.word, self.start)
        self.word = ""

    def _redirected(self, sign: str) -> Iterator[Token]:
        """Past a redirection and its target; a here-document is read at the end of the line."""
        if self.word.isdigit() or re.fullmatch(r"\{\w+\}", self.word):
            self.word = ""
        yield from self._ended()
        self.index += len(sign)
        while self.text[self.index : self.index + 1] in (" ", "\t"):
            self.index += 1
        target, line = "", self.line
        while self.index < len(self.text) and not (
            self.text[self.index].isspace() or self.text[self.index] in ";&|()<>"
        ):
            part = taken(self.text, self.index, target)
            target += part
            self.index += len(part)
            self.line += part.count("\n")
        if sign in ("<<", "<<-"):
            delimiter = re.sub(r"[\"'\\]", "", target)
            self.waiting.append((delimiter, sign == "<<-", delimiter != target, line))
        elif sign == "<<<":
            yield Token("", line, here=Here(target, literal=False))

    def _documents(self) -> Iterator[Token]:
        """The here-documents that begin on this line; each stands behind the line end of its command."""
        for delimiter, stripped, literal, line in self.waiting:
            lines = []
            while self.index < len(self.text):
                end = self.text.find("\n", self.index)
                end = len(self.text) if end < 0 else end
                one = self.text[self.index : end]
                self.index, self.line = min(end + 1, len(self.text)), self.line + 1
                one = one.lstrip("\t") if stripped else one
                if one.rstrip("\r") == delimiter:
                    break
                lines.append(one)
            yield Token("", line, here=Here("\n".join(lines), literal))
        self.waiting.clear()


def tokens(text: str, first_line: int = 1) -> list[Token]:
    """The tokens of a script; remarks, line continuations and redirections to files are gone.

    What a command reads from the script stands before the line end of its command.
    """
    found: list[Token] = []
    for token in _Lexer(text, first_line).all():
        is_document = token.here is not None and found and found[-1].text == "\n" and found[-1].operator
        found.insert(len(found) - 1 if is_document else len(found), token)
    return found


def taken(text: str, index: int, word: str) -> str:
    """The next part of a word: one character, or a whole quotation, substitution or list."""
    character = text[index]
    if character == "\\":
        return text[index : index + 2]
    if character == "'":
        end = text.find("'", index + 1)
        return text[index : end + 1] if end > 0 else text[index:]
    if character in '"`':
        return text[index : closing_quote(text, index) + 1]
    if character in PAIRS and (word.endswith("$") or (character == "(" and word.endswith("="))):
        return text[index : closing(text, index, character, PAIRS[character]) + 1]
    return character


def closing_quote(text: str, index: int) -> int:
    """Where the quotation that begins here ends."""
    quote, at = text[index], index + 1
    while at < len(text) and text[at] != quote:
        inside = text[at + 1 : at + 2] if quote == '"' and text[at] == "$" else ""
        if inside in PAIRS:
            at = closing(text, at + 1, inside, PAIRS[inside]) + 1
            continue
        at += 2 if text[at] == "\\" else 1
    return at


def closing(text: str, index: int, opening: str, closed_by: str) -> int:
    """Where the pair that opens here is closed; the last character where it is not."""
    depth, at = 0, index
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        if text[at] in "\"'":
            at = closing_quote(text, at) + 1
            continue
        if text[at] == "#" and text[at - 1].isspace() and opening == "(":
            at = (text.find("\n", at) + len(text) + 1) % (len(text) + 1)
            continue
        depth += (text[at] == opening) - (text[at] == closed_by)
        if depth == 0:
            return at
        at += 1
    return len(text) - 1
