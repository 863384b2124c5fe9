"""Statements and words of a shell script, and variables expanded as bash would."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from trueup.checklist.expression import NOTHING, Unset, parsed
from trueup.errors import ConfigError

ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?=)(.*)$", re.DOTALL)
"""an assignment: name, sign, value"""
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?]")
_BRACED = re.compile(r"(#?)([A-Za-z_]\w*|[0-9@*]+)(\[[@*0-9]+\])?(?:(:?[-=+?])(.*))?$", re.DOTALL)
_PLAIN = re.compile(r"\$\{(\w+)(?:\[0\])?\}|\$(\w+)")
_BARE = re.compile(r"(?<![\w{$])[A-Za-z_]\w*")
_ARITHMETIC = re.compile(r"[\d\s+\-*/%()]+$")
_ENDS = {"\n", ";", "&", "|"}
_PAIRS = {"(": ")", "{": "}"}
_BLANK = "\ue000"
"""in the place of a blank inside a command substitution, at which its word must not fall apart"""

Raw = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ShellStatement:
    """Raw words, quotes and variables still in them, each with its line."""

    words: list[Raw]

    @property
    def line(self) -> int:
        """Where it begins."""
        return self.words[0][1]


@dataclass(slots=True)
class Variables:
    """What a script has assigned so far: texts and arrays, each with the line it was written at."""

    texts: dict[str, tuple[str, int]] = field(default_factory=dict)
    arrays: dict[str, list[Raw]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    script: str | None = None
    """where the script lies: its ``$0``"""
    arguments: Sequence[str] | None = None
    """what the script is called with; None where that is not known"""
    passed_over: set[str] = field(default_factory=set)
    """names assigned only in branches that are not taken: empty, as in a shell"""

    def aside(self) -> Variables:
        """The same variables, for a look that leaves no trace in what is missing."""
        return replace(self, missing=set())

    def text(self, name: str) -> str | None:
        """The text of a variable or an argument; None where the script leaves it open."""
        if name in self.texts:
            return self.texts[name][0]
        if name in ("0", "BASH_SOURCE"):
            return self.script
        if self.arguments is not None and name in ("@", "*"):
            return " ".join(self.arguments)
        if self.arguments is not None and name == "#":
            return str(len(self.arguments))
        if self.arguments is not None and name.isdigit() and name != "0":
            return next(iter(self.arguments[int(name) - 1 :]), "")
        return "" if name in self.passed_over else None

    def shift(self) -> None:
        """``shift``: the arguments move up by one."""
        if self.arguments is not None:
            self.arguments = self.arguments[1:]

    def assign(self, word: str, line: int) -> str | None:
        """The name, where the raw word is an assignment, which is carried out; else None."""
        match = ASSIGN.match(word)
        if not match:
            return None
        name, sign, value = match.groups()
        if value.startswith("(") and value.endswith(")"):
            items = [
                part
                for statement in statements(value[1:-1], line)
                for raw in statement.words
                for part in expanded(*raw, self)
            ]
            before = self.arrays.get(name, []) if sign == "+=" else []
            self.arrays[name] = [*before, *items]
            self.texts.setdefault(name, ("", line))
            return name
        text = expanded_text(value, self)
        if sign == "+=":
            text = self.texts.get(name, ("", line))[0] + text
        self.texts[name] = (text, line)
        self.arrays.pop(name, None)
        return name


def statements(text: str, first_line: int = 1) -> list[ShellStatement]:
    """The statements of a script; remarks and line continuations are gone, a list in brackets is one word."""
    found: list[ShellStatement] = []
    words: list[Raw] = []
    for word, line, ends in _words(text, first_line):
        if word:
            words.append((word, line))
        if ends and words:
            found.append(ShellStatement(words))
            words = []
    return found


def _words(text: str, line: int) -> Iterator[tuple[str, int, bool]]:
    """Raw words with their lines; an empty one ends a statement."""
    index, word, start = 0, "", line
    inside_test = False
    while index < len(text):
        character = text[index]
        if character == "\\" and text[index + 1 : index + 2] in ("\n", "\r"):
            index += 3 if text[index + 1 : index + 3] == "\r\n" else 2
            line += 1
            if word:
                yield word, start, False
            word, start = "", line
            continue
        if character == "#" and not word:
            index = (text.find("\n", index) + len(text) + 1) % (len(text) + 1)
            continue
        if character.isspace() or (character in _ENDS and not (inside_test and character in "&|")):
            if word:
                inside_test = word == "[[" or (inside_test and word != "]]")
                yield word, start, False
            if character in _ENDS:
                yield "", line, True
            line += character == "\n"
            index += 1
            word, start = "", line
            continue
        taken = _taken(text, index, word)
        line += taken.count("\n")
        word += taken
        index += len(taken)
    yield word, start, False
    yield "", line, True


def _taken(text: str, index: int, word: str) -> str:
    """The next part of a word: one character, or a whole quotation, substitution or list."""
    character = text[index]
    if character == "\\":
        return text[index : index + 2]
    if character == "'":
        end = text.find("'", index + 1)
        return text[index : end + 1] if end > 0 else text[index:]
    if character in '"`':
        return text[index : _closing_quote(text, index) + 1]
    if character in _PAIRS and (word.endswith("$") or (character == "(" and word.endswith("="))):
        return text[index : _closing(text, index, character, _PAIRS[character]) + 1]
    return character


def _closing_quote(text: str, index: int) -> int:
    quote, at = text[index], index + 1
    while at < len(text) and text[at] != quote:
        inside = text[at + 1 : at + 2] if quote == '"' and text[at] == "$" else ""
        if inside in _PAIRS:
            at = _closing(text, at + 1, inside, _PAIRS[inside]) + 1
            continue
        at += 2 if text[at] == "\\" else 1
    return at


def _closing(text: str, index: int, opening: str, closing: str) -> int:
    depth, at = 0, index
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        if text[at] in "\"'":
            at = _closing_quote(text, at) + 1
            continue
        if text[at] == "#" and text[at - 1].isspace() and opening == "(":
            at = (text.find("\n", at) + len(text) + 1) % (len(text) + 1)
            continue
        depth += (text[at] == opening) - (text[at] == closing)
        if depth == 0:
            return at
        at += 1
    return len(text) - 1


def expanded(word: str, line: int, variables: Variables) -> list[Raw]:
    """The words a raw word becomes: unquoted variables are split at blanks, arrays into their elements."""
    bare = word.strip('"')
    match = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", bare)
    if match and match.group(1) in variables.arrays:
        return list(variables.arrays[match.group(1)])
    origin = re.fullmatch(r"\$\{?(\w+)\}?", bare)
    if origin and origin.group(1) in variables.texts:
        line = (
            variables.texts[origin.group(1)][1]
            if " " in variables.texts[origin.group(1)][0]
            else line or variables.texts[origin.group(1)][1]
        )
    text = expanded_text(word, variables)
    if word[:1] == "'" and word.find("'", 1) == len(word) - 1:
        return [(text, line)]  # its variables are for the shell that it is given to
    quoted = word[:1] in "\"'" and word[-1:] == word[:1]
    if quoted and " --" not in f" {text}":
        return [(text, line)]
    if "$" in word or quoted or "\n" in text:
        return [(part, line) for part in _split(text)]
    return [(text, line)] if text else []


def _one_word(substitution: str) -> str:
    """A command substitution, which is not run, as one word: :func:`plain` gives its blanks back."""
    return _BLANK.join(substitution.split())


def plain(text: str) -> str:
    """The text as it was written, with the blanks of its command substitutions."""
    return text.replace(_BLANK, " ")


def open_in(text: str) -> bool:
    """Whether something only the shell knows is left in an expanded text."""
    return any(sign in text for sign in ("${", "$(", "`"))


def _split(text: str) -> list[str]:
    return [part.strip("'\"") for part in text.replace("\\\n", " ").split() if part != "\\"]


def quoted(text: str) -> str:
    """An expanded text as one word of a script: what was left open is for its shell to put in."""
    result, index, is_open = "", 0, False
    while index < len(text):
        end = index
        if text.startswith(("${", "$("), index):
            end = _closing(text, index + 1, text[index + 1], _PAIRS[text[index + 1]]) + 1
        elif text[index] == "`":
            end = _closing_quote(text, index) + 1
        is_open = is_open or end > index
        result += text[index:end] or ("\\" * (text[index] in '\\"$') + text[index])
        index = max(end, index + 1)
    return f'"{result}"' if is_open else shlex.quote(text)


def expanded_text(word: str, variables: Variables) -> str:
    """A raw word as one text: quotes off, variables put in; what cannot be known stays as ``${NAME}``."""
    result, index = "", 0
    quote = ""
    while index < len(word):
        character = word[index]
        if character == "\\" and quote != "'":
            following = word[index + 1 : index + 2]
            result += "" if following == "\n" else following
            index += 2
        elif character in "\"'" and quote in ("", character):
            quote = "" if quote else character
            index += 1
        elif character == "$" and quote != "'":
            value, index = _variable(word, index, variables)
            result += value
        elif character == "`":
            end = _closing_quote(word, index)
            result, index = result + _one_word(_filled(word[index : end + 1], variables)), end + 1
        else:
            result += character
            index += 1
    return result


def _variable(word: str, index: int, variables: Variables) -> tuple[str, int]:
    rest = word[index + 1 :]
    if rest.startswith("(("):
        end = _closing(word, index + 1, "(", ")")
        return _arithmetic(word[index + 3 : end - 1], variables), end + 1
    if rest.startswith("("):
        end = _closing(word, index + 1, "(", ")")
        return _one_word(_filled(word[index : end + 1], variables)), end + 1
    if rest.startswith("{"):
        end = _closing(word, index + 1, "{", "}")
        return _braced(word[index + 2 : end], variables), end + 1
    match = _NAME.match(rest)
    if not match:
        return "$", index + 1
    return _looked_up(match.group(), variables), index + 1 + match.end()


def _filled(substitution: str, variables: Variables) -> str:
    """A command substitution with the script's own variables put in, but for what stands in single quotes."""
    parts = re.split(r"('[^']*')", substitution)
    known = variables.aside()

    def value(match: re.Match[str]) -> str:
        text = known.text(match[1] or match[2])
        return match[0] if text is None else text

    return "".join(part if part[:1] == "'" else _PLAIN.sub(value, part) for part in parts)


def _looked_up(name: str, variables: Variables) -> str:
    if name in variables.arrays:
        return " ".join(text for text, _ in variables.arrays[name])
    text = variables.text(name)
    if text is not None:
        return text
    variables.missing.add(name)
    return f"${{{name}}}"


def _braced(inside: str, variables: Variables) -> str:
    match = _BRACED.match(inside)
    if not match:
        return f"${{{inside}}}"
    length, name, index, sign, other = match.groups()
    known = name in variables.arrays or variables.text(name) is not None
    if length and name in variables.arrays:
        return str(len(variables.arrays[name]))
    if index and name in variables.arrays and index[1:-1].isdigit():
        items = variables.arrays[name]
        return items[int(index[1:-1])][0] if int(index[1:-1]) < len(items) else ""
    if sign and sign.endswith("+"):
        return expanded_text(other, variables) if known else ""
    if sign and sign.endswith("?"):  # what follows is said where the variable is not set, and is no value
        return _looked_up(name, variables)
    if sign and (not known or (sign.startswith(":") and not _looked_up(name, variables))):
        return expanded_text(other, variables)
    return _looked_up(name, variables)


def _arithmetic(text: str, variables: Variables) -> str:
    """``$((A * 8))`` where all of it is known; else the whole of it, as far as it is known, as one word."""
    filled = expanded_text(text, variables)
    filled = _BARE.sub(lambda match: _looked_up(match.group(), variables), filled)
    whole = _one_word(f"$(({filled}))")
    if not _ARITHMETIC.match(filled) or "**" in filled:
        return whole
    try:
        return str(parsed(filled.replace("/", "//")).evaluate(NOTHING))
    except (ConfigError, Unset):
        return whole
