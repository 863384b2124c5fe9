"""A launch script gone through as bash would, without running anything: variables, branches, the command."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from trueup.checklist.readers import command_line
from trueup.checklist.readers.shell_conditions import holds
from trueup.checklist.readers.shell_parameters import printed
from trueup.checklist.readers.shell_tree import (
    CaseBranch,
    Chain,
    For,
    Group,
    If,
    Negated,
    Node,
    Raw,
    ShellCommand,
    ShellFunction,
    While,
    commands,
    parsed,
)
from trueup.checklist.readers.shell_words import (
    ASSIGN,
    CHANGING,
    Variables,
    expanded,
    expanded_text,
    given_words,
    here_text,
    one_word,
    open_in,
    plain,
)
from trueup.checklist.settings import Setting, Undecided

_STARTERS = (
    *("torchrun", "python", "python3", "deepspeed", "accelerate", "srun", "mpirun", "msrun"),
    *("eval", "exec", "bash", "sh", "swift", "megatron", "llamafactory-cli", "axolotl"),
)
_SKIPPED = frozenset(
    {"echo", "printf", "mkdir", "cd", "rm", "exit", "set", "source", ".", "sleep", "tee", "cat"}
)
_SETUP = frozenset({"source", ".", "ulimit", "module", "conda", "unset"})
_DECLARING = ("export", "declare", "local", "readonly", "typeset")
_QUESTIONS = frozenset(
    {
        *("grep", "egrep", "command", "which", "type", "hash", "pgrep", "diff", "cmp", "nc", "ping", "curl"),
        *("nvidia-smi", "npu-smi", "getopts", "read", "find", "stat", "mountpoint", "lspci", "kill"),
    }
)
"""commands whose success is what a script asks; of any other it takes the success for granted"""
_SHELLS = frozenset({"sbatch", "bash", "sh"})
"""what runs the script it reads"""
_FEWEST_FLAGS = 3
_MOST_TURNS = 64
"""of a loop: more than the arguments of any launch script"""
_MOST_CALLS = 16
"""functions inside each other"""


class _Leave(Exception):
    """``break``, ``continue`` or ``return``."""

    def __init__(self, word: str, status: bool | None = True) -> None:
        super().__init__(word)
        self.word = word
        self.status = status


def starts(word: str) -> bool:
    """Whether the word starts a program."""
    return word.rpartition("/")[2] in _STARTERS


def num_flags(words: Sequence[tuple[str, object]]) -> int:
    """Flags among the words."""
    parts = (part for word, _ in words for part in word.split())
    return sum(part.startswith("--") or command_line.is_of_verl(part) for part in parts)


@dataclass(slots=True)
class Run:
    """A script gone through once: assignments kept, branches taken where their test can be decided."""

    path: str
    variables: Variables = field(default_factory=Variables)
    exported: dict[str, Setting] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)
    command: list[command_line.Word] = field(default_factory=list)
    functions: dict[str, list[Node]] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    open_tests: list[int] = field(default_factory=list)
    """lines of tests only the shell can decide"""
    possible: set[str] = field(default_factory=set)
    """variables assigned in a branch only the shell decides"""
    holders: set[str] = field(default_factory=set)
    """those of them that hold flags"""
    undecided: dict[str, Setting] = field(default_factory=dict)
    """the flags they hold"""
    depth: int = 0

    def all(self, script: str) -> None:
        """Go through the whole script; through functions nobody calls where no command was seen without."""
        self._tolerant(parsed(script))
        for name, body in self.functions.items():
            if not self.command and name not in self.called:
                self._tolerant(body)

    def notes(self) -> Iterator[str]:
        """What a reader of the result must know."""
        if self.open_tests:
            lines = ", ".join(map(str, list(dict.fromkeys(self.open_tests))[:5]))
            yield f"{self.path}: left out, as only the shell can decide it: the branch at line {lines}"
        if changing := self.variables.missing & CHANGING:
            yield f"{self.path}: another number in each run: {', '.join(sorted(changing))}"
        if missing := self.variables.missing - CHANGING:
            names = ", ".join(sorted(missing)[:8])
            yield f"{self.path}: not set in this script, so left open: {names}"

    def assembled(self) -> list[command_line.Word]:
        """Flags kept in variables that no command was seen to use."""
        best: list[command_line.Word] = []
        for name in self.variables.texts:
            raw = f"${{{name}[@]}}" if name in self.variables.arrays else f"${name}"
            words = [(text, self._place(line)) for text, line in expanded(raw, 0, self.variables)]
            if num_flags(words) > max(_FEWEST_FLAGS, num_flags(best)):
                best = words
        return best

    def _tolerant(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            try:
                self._one(node)
            except _Leave:
                continue

    def _all(self, nodes: Sequence[Node]) -> bool | None:
        """Go through commands one after the other; the status of the last one."""
        status: bool | None = True
        for node in nodes:
            status = self._one(node)
        return status

    def _one(self, node: Node) -> bool | None:
        """The status of one command: None where only the shell can tell."""
        match node:
            case ShellCommand():
                return self._command(node)
            case Chain():
                return self._chain(node)
            case Negated():
                status = self._one(node.node)
                return None if status is None else not status
            case If():
                return self._if(node)
            case CaseBranch():
                return self._case(node)
            case For():
                return self._for(node)
            case While():
                return self._while(node)
            case ShellFunction():
                self.functions[node.name] = node.body
                return True
            case Group():
                return self._all(node.body)

    def _chain(self, chain: Chain) -> bool | None:
        status: bool | None = True
        for sign, node in chain.parts:
            runs = True if sign in ("", "|", "|&") else status if sign == "&&" else _opposite(status)
            if runs:
                status = self._one(node)
            elif runs is None and self._holds_training([node]):
                self._one(node)
            elif runs is None:
                self._may_run([node], next(commands([node])).line)
            else:
                self._passed([node])
        return status

    def _if(self, branch: If) -> bool | None:
        decided: bool | None = False
        status: bool | None = True
        for test, body, line in branch.clauses:
            if decided is True:
                self._passed(body)
                continue
            found = self._all(test) if test else True
            if decided is None or found is None:
                decided = None
                self._may_run(body, line)
            elif found:
                decided, status = True, self._all(body)
            else:
                self._passed(body)
        return None if decided is None else status

    def _case(self, case: CaseBranch) -> bool | None:
        subject = expanded_text(case.subject[0], self.variables.aside())
        decided: bool | None = None if open_in(subject) else False
        for patterns, body in case.clauses:
            if decided is None:
                self._may_run(body, case.subject[1])
                continue
            texts = (expanded_text(pattern, self.variables) for pattern, _ in patterns)
            if not decided and any(fnmatch.fnmatchcase(subject, text) for text in texts):
                decided = True
                self._all(body)
            else:
                self._passed(body)
        return None if decided is None else True

    def _for(self, loop: For) -> bool | None:
        raw = loop.words if loop.words is not None else [('"$@"', 0)]
        found = [text for word, at in raw for text, _ in expanded(word, at, self.variables.aside())]
        if any(map(open_in, found)) or len(found) > _MOST_TURNS:
            self.variables.texts.pop(loop.name, None)
            return self._turn(loop.body)[1]
        status: bool | None = True
        for text in found:
            self.variables.set(loop.name, text, 0)
            leaves, status = self._turn(loop.body)
            if leaves:
                break
        return status

    def _while(self, loop: While) -> bool | None:
        for _ in range(_MOST_TURNS):
            test = self._all(loop.test)
            test = _opposite(test) if loop.until else test
            if test is None and self._holds_training(loop.body):
                return self._turn(loop.body)[1]
            if test is None:
                self._may_run(loop.body, loop.line)
                return None
            if not test or self._turn(loop.body)[0]:
                break
        return True

    def _turn(self, body: Sequence[Node]) -> tuple[bool, bool | None]:
        """One turn of a loop: whether it leaves the loop, and the status."""
        try:
            return False, self._all(body)
        except _Leave as leaving:
            if leaving.word == "return":
                raise
            return leaving.word == "break", True

    def _call(self, name: str, words: Sequence[Raw]) -> bool | None:
        """A function with its arguments."""
        self.called.add(name)
        if self.depth >= _MOST_CALLS:
            return None
        before = self.variables.arguments
        given = [text for word, line in words for text, _ in expanded(word, line, self.variables)]
        passed_on = before is None and given[-1:] in (["${@}"], ["${*}"])
        self.variables.arguments = None if passed_on and len(given) == 1 else given[: len(given) - passed_on]
        self.depth += 1
        try:
            return self._all(self.functions[name])
        except _Leave as leaving:
            return leaving.status
        finally:
            self.depth -= 1
            self.variables.arguments = before

    def _passed(self, nodes: Sequence[Node]) -> None:
        """A branch that is not taken leaves its variables empty."""
        for name, _, _ in _assigned(nodes):
            if name not in self.variables.texts and name not in self.possible:
                self.variables.passed_over.add(name)

    def _may_run(self, nodes: Sequence[Node], line: int) -> None:
        """A branch only the shell decides: its variables stay open, and may add their flags."""
        found = [one for one in _assigned(nodes) if one[0] not in self.variables.texts]
        if any(True for _ in _assigned(nodes)) or self._holds_training(nodes):
            self.open_tests.append(line)
        for name, value, at in found:
            self.possible.add(name)
            self._may_add(name, value.strip("()"), at)
        self.variables.passed_over -= self.possible

    def _may_add(self, name: str, value: str, line: int) -> None:
        """Flags a variable may hold: what they say only the shell knows."""
        texts = expanded_text(value, self.variables.aside()).split()
        for key, setting in command_line.flags([(text, self._place(line)) for text in texts]).items():
            self.holders.add(name)
            unknown = Undecided(f"only the shell decides what {name} holds")
            self.undecided[key] = Setting(key, unknown, setting.place)

    def _holds_training(self, nodes: Sequence[Node]) -> bool:
        """Whether a command with flags is started in these."""
        return any(
            starts(word) or word in self.functions
            for command in commands(list(nodes))
            for word, _ in command.words[:1]
        )

    def _command(self, command: ShellCommand) -> bool | None:
        words = command.words
        word = words[0][0]
        if word in ("break", "continue", "return"):
            raise _Leave(word, status=_returned(words))
        if word in ("[", "[[", "test"):
            return holds([raw for raw, _ in words], self.variables)
        if word.startswith("((") or word == "let":
            return _true(self._calculate(command))
        if word in self.functions:
            return self._call(word, words[1:])
        if word == "read":
            self._read(command)
        elif word == "shift":
            self._shift(words[1:])
        elif word == "printf" and len(words) > 3 and words[1][0] == "-v":
            self._printf(words[2:])
        elif word in (":", "true", "false"):
            for raw, _ in words[1:]:
                expanded_text(raw, self.variables)
            return word != "false"
        return self._simple(command)

    def _simple(self, command: ShellCommand) -> bool | None:
        """Assignments, what prepares the shell, or a program."""
        words = command.words
        first = words[0][0]
        if first in _SETUP:
            texts = (expanded(word, line, self.variables) for word, line in words)
            self.setup.append(plain(" ".join(text for found in texts for text, _ in found)))
        if first in _DECLARING:
            self._declare(words)
            return True
        names, rest = self._assign(words)
        if not rest:
            return True
        self._export(names)
        if rest[0][0] in _SKIPPED:
            return True
        self._program(rest)
        if command.here is not None and rest[0][0] in _SHELLS:
            self._tolerant(parsed(here_text(command, self.variables)))
        text = expanded_text(rest[0][0], self.variables.aside())
        return text == "true" if text in ("true", "false") else None if text in _QUESTIONS else True

    def _assign(self, words: Sequence[Raw]) -> tuple[list[Raw], Sequence[Raw]]:
        """Carry out the assignments that stand first: their names, and the words behind them."""
        names: list[Raw] = []
        for at, (word, line) in enumerate(words):
            if (name := self.variables.assign(word, line)) is None:
                return names, words[at:]
            names.append((name, line))
        return names, ()

    def _declare(self, words: Sequence[Raw]) -> None:
        """``export A=1 B``, ``declare -a A=(...)``, ``local a=$1``."""
        options = _declaring_options(words)
        names, rest = self._assign(words[1 + len(options.split()) :])
        if words[0][0] == "export" or "x" in options:
            self._export(names)
        if words[0][0] == "export":
            self._export([(name, line) for name, line in rest if name in self.variables.texts])

    def _export(self, names: Sequence[Raw]) -> None:
        """Variables the training command sees: exported, or set before a command."""
        for name, line in names:
            text = plain(expanded_text(f"${{{name}}}", self.variables))
            self.exported[name] = Setting(name, text, self._place(line))

    def _calculate(self, command: ShellCommand) -> int | None:
        """``(( A = 8 ))``, ``let A=8 B=9``: the last number."""
        first = command.words[0][0]
        parts = [first[2:-2]] if first.startswith("((") else [word for word, _ in command.words[1:]]
        return [None, *(self.variables.calculate(part.strip("\"'"), command.line) for part in parts)][-1]

    def _shift(self, words: Sequence[Raw]) -> None:
        number = expanded_text(words[0][0], self.variables) if words else "1"
        for _ in range(int(number) if number.isdigit() else 1):
            self.variables.shift()

    def _read(self, command: ShellCommand) -> None:
        """``read NAME <<< text``: the variable holds what stands in the script."""
        names = [word for word, _ in command.words[1:] if word.isidentifier()]
        if command.here is None or len(names) != 1 or any("a" in w for w, _ in command.words if w[:1] == "-"):
            for name in names:
                self.variables.texts.pop(name, None)
            return
        text = here_text(command, self.variables).strip()
        has_delimiter = any(word.startswith("-") and "d" in word for word, _ in command.words)
        self.variables.set(names[0], text if has_delimiter else text.partition("\n")[0], command.line)

    def _printf(self, words: Sequence[Raw]) -> None:
        """``printf -v NAME FORM ...``: the variable holds what is printed."""
        name, *texts = (text for text, _ in given_words(words, self.variables))
        form, *given = texts[1:] if texts[:1] == ["--"] and len(texts) > 1 else texts
        known = not any(map(open_in, (form, *given)))
        text = printed(form, given) if known else None
        as_given = one_word(f"$(printf {' '.join((form, *given))})")
        self.variables.set(name, as_given if text is None else text, words[0][1])

    def _program(self, raw: Sequence[Raw]) -> None:
        """Keep the command where it starts a program and has more flags than the one kept so far."""
        found = self._evaluated(raw) if raw[0][0] == "eval" else self._expanded(raw)
        words = [(text, self._place(line)) for text, line in found]
        begins = any(starts(word) for word, _ in words[:1]) or any(
            word.endswith(".py") or word == "-m" for word, _ in words
        )
        for (option, _), (text, _) in itertools.pairwise(words):
            if option == "-c" and " --" in text:
                self._tolerant(parsed(text))  # what it exports before its command
        if begins and num_flags(words) > num_flags(self.command):
            self.command = [
                part
                for word, place in words
                for part in _inner(word, place, self.variables)
                if not self._held(part)
            ]

    def _expanded(self, raw: Sequence[Raw]) -> list[Raw]:
        return [one for word, at in raw for one in expanded(word, at, self.variables)]

    def _evaluated(self, raw: Sequence[Raw]) -> list[Raw]:
        """``eval $CMD``: its words are parted once more, so that quotes inside a variable are quotes."""
        given = given_words(raw, self.variables)
        again = commands(parsed(" ".join(text for text, _ in given[1:])))
        lines = dict(reversed(given))
        best: Sequence[Raw] = max((command.words for command in again), key=num_flags, default=())
        return [
            *given[:1],
            *(
                (text, lines.get(text, raw[0][1]))
                for word, _ in best
                for text, _ in self._expanded([(word, 0)])
            ),
        ]

    def _held(self, word: command_line.Word) -> bool:
        """Whether this is a variable whose flags are kept as undecided: no value of the flag before it."""
        return word[0].removeprefix("${").removesuffix("}") in self.holders and word[0].startswith("${")

    def _place(self, line: int) -> str:
        return f"{self.path}:{line}" if line else self.path


def _opposite(status: bool | None) -> bool | None:
    return None if status is None else not status


def _true(number: int | None) -> bool | None:
    """The status of an arithmetic command."""
    return None if number is None else number != 0


def _returned(words: Sequence[Raw]) -> bool | None:
    """The status a ``return`` names."""
    return len(words) < 2 or words[1][0] == "0"


def _assigned(nodes: Sequence[Node]) -> Iterator[tuple[str, str, int]]:
    """Every assignment in these: name, raw value, line."""
    for command in commands(list(nodes)):
        for word, line in command.words:
            match = ASSIGN.match(word)
            if match is not None:
                yield match[1], match[4], line


def _declaring_options(words: Sequence[Raw]) -> str:
    """``-a`` of ``declare -a NAME=(...)``."""
    return " ".join(word for word, _ in itertools.takewhile(lambda one: one[0].startswith("-"), words[1:]))


def _inner(word: str, place: str, variables: Variables) -> list[command_line.Word]:
    """A quoted command inside a command (``eval "torchrun ..."``, ``bash -c '...'``) as its words."""
    if " --" not in word:
        return [(word, place)]
    raw = max((command.words for command in commands(parsed(word))), key=num_flags)
    return [(text, place) for part, _ in raw for text, _ in expanded(part, 0, variables)]
