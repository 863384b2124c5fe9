"""Words of a shell script: variables, arrays and substitutions expanded as bash would, nothing run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trueup.checklist.readers.shell_parameters import CHANGES, calculated, changed, printed
from trueup.checklist.readers.shell_tokens import PAIRS, closing, closing_quote
from trueup.checklist.readers.shell_tree import Raw, ShellCommand, parsed, words_in

ASSIGN = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?=)(.*)$", re.DOTALL)
"""an assignment: name, index, sign, value"""
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?]")
_BRACED = re.compile(r"([#!]?)([A-Za-z_]\w*|[0-9]+|[@*#])(\[[^\]]*\])?(.*)$", re.DOTALL)
_OTHERWISE = re.compile(r"(:?[-=+?])(.*)$", re.DOTALL)
_PLAIN = re.compile(r"\$\{(\w+)(?:\[0\])?\}|\$(\w+)")
_BARE = re.compile(r"(?<![\w{$])[A-Za-z_]\w*")
_CALCULATED = re.compile(r"([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)(.+)$", re.DOTALL)
_STEPPED = re.compile(r"(?:([A-Za-z_]\w*)(\+\+|--)|(\+\+|--)([A-Za-z_]\w*))$")
_KEYED = re.compile(r"\[([^\]]+)\]=(.*)$", re.DOTALL)
CHANGING = frozenset({"RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME", "BASHPID", "PPID"})
"""variables that the shell itself sets, to another number in each run"""
_ESCAPED = ("$", "`", '"', "\\", "\n")
"""what a backslash takes the meaning of between double quotes; before anything else it is a character"""
_BLANK = "\ue000"
"""in the place of a blank inside a command substitution, at which its word must not fall apart"""
_KEPT = {ord(blank): 0xE010 + at for at, blank in enumerate(" \t\n")}
_GIVEN_BACK = {sign: blank for blank, sign in _KEPT.items()}
"""the same of blanks between quotes in a word of which another part falls apart"""


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
    maps: dict[str, dict[str, str]] = field(default_factory=dict)
    """arrays with names for indices"""
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
        name, index, sign, value = match.groups()
        if index is not None:
            self._assign_element(name, expanded_text(index, self), sign, expanded_text(value, self), line)
        elif value.startswith("(") and value.endswith(")"):
            self._assign_list(name, sign, words_in(value[1:-1], line), line)
        else:
            text = expanded_text(value, self)
            self.set(name, self.texts.get(name, ("", line))[0] + text if sign == "+=" else text, line)
        return name

    def set(self, name: str, text: str, line: int) -> None:
        """The variable holds this text."""
        self.texts[name] = (text, line)
        self.arrays.pop(name, None)

    def _assign_list(self, name: str, sign: str, words: Sequence[Raw], line: int) -> None:
        self.texts.setdefault(name, ("", line))
        keyed = [(match, at) for word, at in words if (match := _KEYED.match(word))]
        if keyed:
            held = self.maps.setdefault(name, {}) if sign == "+=" else {}
            self.maps[name] = held
            for match, _ in keyed:
                held[expanded_text(match[1], self)] = expanded_text(match[2], self)
            return
        items = [part for raw in words for part in expanded(*raw, self)]
        self.arrays[name] = [*(self.arrays.get(name, []) if sign == "+=" else []), *items]

    def _assign_element(self, name: str, index: str, sign: str, value: str, line: int) -> None:
        self.texts.setdefault(name, ("", line))
        number = None if name in self.maps else calculated(index)
        held = self.arrays.setdefault(name, []) if number is not None else []
        if number is not None and 0 <= number <= len(held):
            before = held[number][0] if sign == "+=" and number < len(held) else ""
            held[number : number + 1] = [(before + value, line)]
            return
        table = self.maps.setdefault(name, {})
        table[index] = (table.get(index, "") if sign == "+=" else "") + value

    def calculate(self, text: str, line: int) -> int | None:
        """Carry out ``(( A = B * 8 ))`` or ``(( A++ ))``; its number, None where not known."""
        text = text.strip()
        if step := _STEPPED.match(text):
            name, sign = (step[1], step[2]) if step[1] else (step[4], step[3])
            text = f"{name} {sign[0]}= 1"
        assigned = _CALCULATED.match(text)
        if not assigned:
            return calculated(_numbers_in(text, self.aside()))
        name, operator, value = assigned.groups()
        number = calculated(_numbers_in(f"{name} {operator} ({value})" if operator else value, self.aside()))
        self.set(name, str(number) if number is not None else f"$(({one_word(value)}))", line)
        return number


def expanded(word: str, line: int, variables: Variables) -> list[Raw]:
    """The words a raw word becomes: unquoted variables are split at blanks, arrays into their elements."""
    listed = _elements_of(word, line, variables)
    if listed is not None:
        return listed
    origin = re.fullmatch(r"\$\{?(\w+)\}?", word.strip('"'))
    if origin and origin.group(1) in variables.texts:
        held, at = variables.texts[origin.group(1)]
        line = at if " " in held else line or at
    text = expanded_text(word, variables)
    if word[:1] == "'" and word.find("'", 1) == len(word) - 1:
        return [(text, line)]  # its variables are for the shell that it is given to
    quoted = word[:1] in "\"'" and word[-1:] == word[:1]
    if quoted and " --" not in f" {text}":
        return [(text, line)]
    if quoted:
        return [(part.strip("'\""), line) for part in _split(text)]
    if "$" in word or "`" in word or "\n" in text:
        parts = _split(expanded_text(word, variables, kept=True))
        return [(part.translate(_GIVEN_BACK), line) for part in parts]
    return [(text, line)] if text else []


def _elements_of(word: str, line: int, variables: Variables) -> list[Raw] | None:
    """The words of ``"${A[@]}"``, ``$@`` or ``"${@:2}"``; None of any other word, or where they are open."""
    bare = word.strip('"')
    array = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", bare)
    if array and array.group(1) in variables.arrays:
        items = variables.arrays[array.group(1)]
        if word != bare:
            return list(items)
        return [(part, at) for text, at in items for part in (_split(text) if " " in text else [text])]
    if array and variables.text(array.group(1)) == "":
        return []
    rest = re.fullmatch(r"\$(?:@|\*|\{[@*](?::(\d+))?\})", bare)
    if rest and variables.arguments is not None:
        return [(text, line) for text in variables.arguments[max(0, int(rest[1] or 1) - 1) :]]
    return None


def one_word(substitution: str) -> str:
    """A command substitution, which is not run, as one word: :func:`plain` gives its blanks back."""
    return _BLANK.join(substitution.split())


def plain(text: str) -> str:
    """The text as it was written, with the blanks of its command substitutions."""
    return text.replace(_BLANK, " ")


def open_in(text: str) -> bool:
    """Whether something only the shell knows is left in an expanded text."""
    return any(sign in text for sign in ("${", "$(", "`"))


def _split(text: str) -> list[str]:
    """At blanks, as bash parts what a variable holds: quotes in it are characters like any other."""
    return [part for part in text.replace("\\\n", " ").split() if part != "\\"]


def quoted(text: str) -> str:
    """An expanded text as one word of a script: what was left open is for its shell to put in."""
    result, index, is_open = "", 0, False
    while index < len(text):
        end = index
        if text.startswith(("${", "$("), index):
            end = closing(text, index + 1, text[index + 1], PAIRS[text[index + 1]]) + 1
        elif text[index] == "`":
            end = closing_quote(text, index) + 1
        is_open = is_open or end > index
        result += text[index:end] or ("\\" * (text[index] in '\\"$') + text[index])
        index = max(end, index + 1)
    return f'"{result}"' if is_open else shlex.quote(text)


def expanded_text(word: str, variables: Variables, quote: str = "", *, kept: bool = False) -> str:
    """A raw word as one text: quotes off, variables put in; what cannot be known stays as ``${NAME}``.

    ``quote``: what the word stands between. ``kept``: blanks at which the word does not fall apart, between
    quotes or behind a backslash, become signs that stand for them.
    """
    result, index = "", 0
    while index < len(word):
        character, value, within = word[index], word[index], quote
        index += 1
        if character == "\\" and quote != "'":
            value = word[index : index + 1]
            value = ("\\" if quote and value not in _ESCAPED else "") + ("" if value == "\n" else value)
            index, within = index + 1, "\\"
        elif not quote and word.startswith("$'", index - 1):
            value, index = _ansi(word, index + 1)
            within = "'"
        elif character in "\"'" and quote in ("", character):
            quote, value = "" if quote else character, ""
        elif character == "$" and quote != "'":
            value, index = _variable(word, index - 1, variables)
        elif character == "`" and quote != "'":
            end = closing_quote(word, index - 1)
            value = _substituted(word[index - 1 : end + 1], word[index:end], variables)
            index = end + 1
        result += value.translate(_KEPT) if kept and within else value
    return result


def _ansi(word: str, index: int) -> tuple[str, int]:
    """``$'a\\tb'`` from behind its first quote: the text, and where the word goes on."""
    end = index
    while end < len(word) and word[end] != "'":
        end += 2 if word[end] == "\\" else 1
    return printed(word[index:end].replace("%", "%%"), ()) or word[index:end], end + 1


def given_words(words: Sequence[Raw], variables: Variables) -> list[Raw]:
    """The arguments of a command of the shell itself: a quoted one is one text, whatever is in it."""
    found = []
    for raw, line in words:
        single = raw[:1] in ('"', "'") and _elements_of(raw, line, variables) is None
        found += [(expanded_text(raw, variables), line)] if single else expanded(raw, line, variables)
    return found


def _variable(word: str, index: int, variables: Variables) -> tuple[str, int]:
    rest = word[index + 1 :]
    if rest.startswith("(("):
        end = closing(word, index + 1, "(", ")")
        return _arithmetic(word[index + 3 : end - 1], variables), end + 1
    if rest.startswith("("):
        end = closing(word, index + 1, "(", ")")
        return _substituted(word[index : end + 1], word[index + 2 : end], variables), end + 1
    if rest.startswith("{"):
        end = closing(word, index + 1, "{", "}")
        return _braced(word[index + 2 : end], variables), end + 1
    match = _NAME.match(rest)
    if not match:
        return "$", index + 1
    return _looked_up(match.group(), variables), index + 1 + match.end()


def _substituted(whole: str, inside: str, variables: Variables) -> str:
    """What a command prints, where that stands in the script: ``cat <<EOF``, ``echo``, ``expr``."""
    nodes = parsed(inside)
    if len(nodes) == 1 and isinstance(nodes[0], ShellCommand):
        command = nodes[0]
        name = command.words[0][0]
        if name == "cat" and len(command.words) == 1 and command.here is not None:
            return here_text(command, variables).rstrip("\n")
        known = variables.aside()
        words = [text for text, _ in given_words(command.words[1:], known)]
        if name == "printf" and words and not any(map(open_in, words)) and words[0] != "-v":
            text = printed(words[0], words[1:])
            return one_word(_filled(whole, variables)) if text is None else text.rstrip("\n")
        if name == "expr" and (number := calculated(" ".join(words))) is not None:
            return str(number)
        if name == "echo" and words and not any(map(open_in, words)) and not words[0].startswith("-"):
            return " ".join(words)
    return one_word(_filled(whole, variables))


def here_text(command: ShellCommand, variables: Variables) -> str:
    """What a command reads from the script, with its variables put in where bash does."""
    if command.here is None:
        return ""
    if command.here.literal:
        return command.here.text
    parts = re.split(r"([\"'])", command.here.text)
    return "".join(part if part in ("'", '"') else expanded_text(part, variables, '"') for part in parts)


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
        return variables.arrays[name][0][0] if variables.arrays[name] else ""
    text = variables.text(name)
    if text is not None:
        return text
    variables.missing.add(name)
    return f"${{{name}}}"


def _element(name: str, index: str | None, variables: Variables) -> str | None:
    """A variable's text, an element, or all elements; None where it is not known."""
    if index is None:
        return _looked_up(name, variables) if name in variables.arrays else variables.text(name)
    items = [text for text, _ in variables.arrays.get(name, [])]
    table = variables.maps.get(name)
    key = expanded_text(index[1:-1], variables)
    if key in ("@", "*"):
        return (
            " ".join(table.values() if table is not None else items)
            if table or items
            else variables.text(name)
        )
    if table is not None:
        return table.get(key, "")
    number = calculated(_numbers_in(key, variables.aside()))
    if name in variables.arrays and number is not None:
        return items[number] if -len(items) <= number < len(items) else ""
    return variables.text(name) if number == 0 else None


def _braced(inside: str, variables: Variables) -> str:
    match = _BRACED.match(inside)
    if not match:
        return f"${{{inside}}}"
    mark, name, index, rest = match.groups()
    if mark == "!" and not (rest or index):
        return _indirect(name, inside, variables)
    if mark == "#" and index in ("[@]", "[*]") and (name in variables.arrays or name in variables.maps):
        return str(len(variables.maps.get(name) or variables.arrays.get(name, [])))
    value = _element(name, index, variables)
    if other := _OTHERWISE.match(rest):
        return _otherwise(name, value, other[1], other[2], variables)
    if value is None:
        variables.missing.add(name)
        return f"${{{inside}}}"
    if mark == "#":
        return f"${{{inside}}}" if open_in(value) else str(len(value))
    new = _changed(value, rest, variables) if rest else value
    return f"${{{inside}}}" if new is None else new


def _indirect(name: str, inside: str, variables: Variables) -> str:
    """``${!NAME}``: the variable that NAME names."""
    held = variables.text(name) or ""
    return _looked_up(held, variables) if held.isidentifier() else f"${{{inside}}}"


def _changed(value: str, rest: str, variables: Variables) -> str | None:
    """``${X%%-*}`` and its kin; None where the shell is to make the change."""
    change = CHANGES.match(rest)
    if change is None or open_in(value):
        return None
    return changed(value, change[1], expanded_text(change[2], variables))


def _otherwise(name: str, value: str | None, sign: str, other: str, variables: Variables) -> str:
    """``${X:-default}`` and its kin; ``=`` also assigns."""
    if sign.endswith("+"):
        return expanded_text(other, variables) if value is not None and (value or ":" not in sign) else ""
    if sign.endswith("?"):  # what follows is said where the variable is not set, and is no value
        return _looked_up(name, variables) if value is None else value
    if value is not None and (value or not sign.startswith(":")):
        return value
    text = expanded_text(other, variables)
    if sign.endswith("="):
        variables.set(name, text, variables.texts.get(name, ("", 0))[1])
    return text


def _arithmetic(text: str, variables: Variables) -> str:
    """``$((A * 8))`` where all of it is known; else the whole of it, as far as it is known, as one word."""
    filled = _numbers_in(text, variables)
    number = calculated(filled)
    return one_word(f"$(({filled}))") if number is None else str(number)


def _numbers_in(text: str, variables: Variables) -> str:
    """An arithmetic expression with its variables put in."""
    filled = expanded_text(text, variables)
    return _BARE.sub(lambda match: _looked_up(match.group(), variables), filled)
