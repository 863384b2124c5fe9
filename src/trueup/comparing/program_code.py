"""Where the two programs' code differs, beginning at a place of the step and going on through what is called
there: functions under one name with other statements or other plain values, and functions of one side alone.

A difference in code is a fact, not a fault: it is told beside a place that differs, nearest first, and never
decides whether two runs agree.
"""

from __future__ import annotations

import ast
import difflib
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from trueup.numerics.dtypes import DTYPES
from trueup.store.code import Called, ProgramCode, ProgramFunction, Roots, code_of
from trueup.store.reader import TraceSource
from trueup.types.codes import BatchCode, EvidenceCode, StagesCode, VerdictCode
from trueup.types.reason import Reason, reason

MOST_PAIRS = 400
"""functions that are compared from one place on"""
SHOWN = 3
"""differences that are told of one place"""
_LINES = 4
"""statements of a function that are shown of a side"""
_WIDTH = 160
OF_ONE_PROCESS = frozenset(("", "None", "False", "0", "1"))
"""what a program with nothing to share keeps of how it is shared"""
_ABOUT_THE_CAUSE = (
    StagesCode.ALSO_IN,
    StagesCode.ACTS_HERE,
    StagesCode.SETTING_DIFFERS,
    EvidenceCode.BUFFER_DIFFERS,
    EvidenceCode.INPUT_OF_ONE_SIDE,
    BatchCode.NUM_COUNTED,
)
_WORD = re.compile(r"\w+")
_LOSS_AND_MORE = ("loss", "optimizer", "scalar", "param", "collective")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBook:
    """The programs of both sides."""

    target: ProgramCode
    reference: ProgramCode
    worlds: tuple[int, int] = (1, 1)
    """processes of both runs"""

    def near(self, module: str | None, phase: str | None) -> Near:
        """Differences nearest to a place: in the module's own forward, else in the modules around it, else in
        the functions that call the model.

        ``module``: "" is the root; None: outside the model.
        """
        for level, begins in enumerate(self._levels(module, phase)):
            found = tuple(_each_once(self._walked(begins, of_loss=phase == "loss")))
            if found:
                one_size = self.worlds[0] == self.worlds[1]
                return Near(reasons=found[:SHOWN], is_own=level == 0, is_of_one_size=one_size)
        return Near(reasons=(), is_own=False)

    def anywhere(self) -> tuple[Reason, ...]:
        """Differences of all that the step reaches, those inside the model first."""
        modules = [self._of_module(module) for module in self.target.types]
        begins = [*(pair for one in modules for pair in one), *self._outside("")]
        return tuple(_each_once(self._walked(begins)))[:SHOWN]

    def _levels(self, module: str | None, phase: str | None) -> Iterator[list[_Pair]]:
        if module is not None and phase not in _LOSS_AND_MORE:
            inner = module
            yield self._of_module(inner)
            while inner:
                inner = inner.rpartition(".")[0]
                yield self._of_module(inner)
        yield self._outside(phase or "")
        if module is None:
            yield self._of_module("")

    def _of_module(self, module: str) -> list[_Pair]:
        hung = [
            key for key in (*self.target.modules, *self.reference.modules) if key.startswith(f"{module} ")
        ]
        pairs = [
            _Pair(module or "the model", self.target.forward_of(module), self.reference.forward_of(module))
        ]
        pairs += [_Pair(key, self.target.modules.get(key), self.reference.modules.get(key)) for key in hung]
        return pairs if module in self.target.types and module in self.reference.types else []

    def _outside(self, phase: str) -> list[_Pair]:
        """The optimizer's step, and the functions above the model's call, innermost first."""
        roles = [_Pair(key, one, self.reference.roles.get(key)) for key, one in self.target.roles.items()]
        target, reference = self.target.frames, self.reference.frames
        frames = [_Pair(key, one, reference[key]) for key, one in target.items() if key in reference]
        frames += [_Pair(key, target[key], None) for key in _inside(target, reference)]
        frames += [_Pair(key, None, reference[key]) for key in _inside(reference, target)]
        return [*roles, *frames] if phase in ("optimizer", "param") else [*frames, *roles]

    def _walked(self, begins: list[_Pair], *, of_loss: bool = False) -> Iterator[Reason]:
        """Differences from these functions on, nearest first; of a loss, whose logits are given, without what
        modules run."""
        todo = list(begins)
        seen: set[tuple[Called | None, Called | None]] = set()
        run = (self.target.forwards, self.reference.forwards) if of_loss else (set[Called](), set[Called]())
        while todo and len(seen) < MOST_PAIRS:
            pair = todo.pop(0)
            if (pair.target, pair.reference) in seen:
                continue
            seen.add((pair.target, pair.reference))
            if pair.target in run[0] or pair.reference in run[1]:
                continue
            target, reference = self.target.function(pair.target), self.reference.function(pair.reference)
            if target is None or reference is None:
                if (one := _replaced(pair, target, reference)) is not None:
                    yield one
                continue
            if not _same_statements(target, reference):
                yield self._other_statements(pair.name, target, reference)
                continue
            yield from _other_values(target, reference, self.worlds)
            names = dict.fromkeys((*target.calls, *reference.calls))
            todo += [_Pair(name, target.calls.get(name), reference.calls.get(name)) for name in names]

    def _other_statements(self, name: str, target: ProgramFunction, reference: ProgramFunction) -> Reason:
        inside = (self.target.function(one) for one in target.calls.values())
        if any(one is not None and _same_statements(one, reference) for one in inside):
            return reason(
                EvidenceCode.CODE_WRAPPED,
                function=_shown_name(reference),
                side="target",
                text=_joined(_statements(target)),
                at=target.at,
            )
        inside = (self.reference.function(one) for one in reference.calls.values())
        if any(one is not None and _same_statements(one, target) for one in inside):
            return reason(
                EvidenceCode.CODE_WRAPPED,
                function=_shown_name(target),
                side="reference",
                text=_joined(_statements(reference)),
                at=reference.at,
            )
        at = _changed(target, reference)
        if not any(at) and (moved := _nested_otherwise(target, reference)):
            around = [_read(one.source, one.name)[3][moved[0]] for one in (target, reference)]
            return reason(
                EvidenceCode.CODE_NESTED_OTHERWISE,
                function=_shown_name(reference),
                text=_joined([_statements(target)[n] for n in moved]),
                target=around[0].rpartition("\n")[2],
                reference=around[1].rpartition("\n")[2],
                target_at=_at(target, moved),
                reference_at=_at(reference, moved),
            )
        shown = [[_statements(one)[n] for n in of] for one, of in zip((target, reference), at, strict=True)]
        places = {"target_at": _at(target, at[0]), "reference_at": _at(reference, at[1])}
        if sorted(shown[0]) == sorted(shown[1]):  # the same statements in another order
            before = [_before(one, of) for one, of in zip((target, reference), at, strict=True)]
            return reason(
                EvidenceCode.CODE_IN_OTHER_ORDER,
                function=_shown_name(reference),
                text=_joined(shown[0]),
                target=before[0],
                reference=before[1],
                **places,
            )
        if len(shown[0]) == len(shown[1]):
            shown = [_from_difference(*pair) for pair in (shown, shown[::-1])]
        telling = [_telling(own, other) for own, other in (shown, shown[::-1])]
        return reason(
            EvidenceCode.CODE_DIFFERS,
            function=_shown_name(reference),
            target=_joined(telling[0]),
            reference=_joined(telling[1]),
            **places,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """What differs in the code nearest to a place."""

    reasons: tuple[Reason, ...]
    is_own: bool
    """it is the code of the place itself, not of what is around it"""
    is_of_one_size: bool = True
    """both runs have as many processes"""

    def beside(self, evidence: tuple[Reason, ...], *, known: bool) -> tuple[Reason, ...]:
        """Evidence with what differs in the code: behind what names a cause that is known, ahead of how large
        the difference is; else ahead of all."""
        named = 1 if known else 0
        while known and named < len(evidence) and evidence[named].code in _ABOUT_THE_CAUSE:
            named += 1
        return (*evidence[:named], *self.reasons, *evidence[named:])

    @property
    def dtypes(self) -> frozenset[str]:
        """Dtypes that the code of the place itself names on one side alone."""
        sides: dict[str, set[str]] = {"target": set(), "reference": set()}
        for one in self.reasons if self.is_own else ():
            for side, named in sides.items():
                text = one.place("text") if one.place("side") == side else one.place(side)
                named.update(_WORD.findall(str(text)))
        return frozenset((sides["target"] ^ sides["reference"]) & DTYPES.keys())

    def headline(self, headline: Reason) -> Reason:
        """The headline of a difference without a known cause, with the code that differs at its place."""
        first = self.reasons[0] if self.is_own else None
        if first is None or first.code is EvidenceCode.CODE_CALLS_ANOTHER:
            return headline
        if first.code is EvidenceCode.CODE_VALUE_DIFFERS:
            values = {str(first.place("target")), str(first.place("reference"))}
            if not self.is_of_one_size and values & OF_ONE_PROCESS:
                return headline  # how many processes share the work, and how, is told of every program
            facts = {key: first.place(key) for key in ("name", "target", "reference")}
            return reason(VerdictCode.OTHER_VALUE_IN_CODE, headline, **facts)
        return reason(VerdictCode.OTHER_CODE, headline, function=first.place("function"))


@dataclass(frozen=True, slots=True)
class _Pair:
    name: str
    target: Called | None
    reference: Called | None


def _inside(frames: Roots, others: Roots) -> list[str]:
    """Functions on one side's stack alone, below one that is on both: what starts a program is no part."""
    names = list(frames)
    outermost = max((at for at, name in enumerate(names) if name in others), default=-1)
    return [name for name in names[: outermost + 1] if name not in others]


def code_book(target: TraceSource, reference: TraceSource, rank: int = 0) -> CodeBook | None:
    """The programs of two traces; None where one of them kept none."""
    sides = []
    for source in (target, reference):
        ranks = [rank, *sorted({one for ranks in source.steps().values() for one in ranks})]
        sides.append(next((found for one in ranks if (found := code_of(source, one)) is not None), None))
    of_target, of_reference = sides
    if of_target is None or of_reference is None or not of_target.names & of_reference.names:
        return None  # two programs that have nothing in common differ everywhere
    worlds = int(target.manifest.get("world_size") or 1), int(reference.manifest.get("world_size") or 1)
    return CodeBook(target=of_target, reference=of_reference, worlds=worlds)


def _replaced(
    pair: _Pair, target: ProgramFunction | None, reference: ProgramFunction | None
) -> Reason | None:
    """A function of the program on one side alone, or another of a library; None where nothing is known."""
    if target is None and reference is None:
        if pair.target is None or pair.reference is None or pair.target == pair.reference:
            return None
        return reason(
            EvidenceCode.CODE_CALLS_ANOTHER,
            name=pair.name,
            target=str(pair.target),
            reference=str(pair.reference),
        )
    one, side, other = (
        (target, "target", pair.reference) if target is not None else (reference, "reference", pair.target)
    )
    assert one is not None
    if other is None and "[" in pair.name:  # one more entry of a table changes nothing
        return None
    return reason(
        EvidenceCode.CODE_OF_ONE_SIDE,
        name=pair.name,
        function=_shown_name(one),
        side=side,
        text=_joined(_statements(one)),
        at=one.at,
        other=str(other or ""),
    )


def _other_values(
    target: ProgramFunction, reference: ProgramFunction, worlds: tuple[int, int]
) -> Iterator[Reason]:
    """Plain values that differ; the number of processes is what a launch gives, not what a program chose."""
    for name, value in target.values.items():
        both = value, reference.values.get(name)
        if name in reference.values and both[0] != both[1] and both != worlds:
            yield reason(
                EvidenceCode.CODE_VALUE_DIFFERS,
                name=name,
                function=_shown_name(target),
                target=str(value),
                reference=str(reference.values[name]),
                at=target.at,
            )


def _each_once(found: Iterator[Reason]) -> Iterator[Reason]:
    """Without repetitions: what runs in a step, then what made its parts, then values."""
    return iter(sorted(dict.fromkeys(found), key=_nearness))


def _nearness(one: Reason) -> int:
    if one.code is EvidenceCode.CODE_VALUE_DIFFERS:
        return 2
    return int(str(one.place("function")).endswith(("<module>", "__init__")))


def _shown_name(function: ProgramFunction) -> str:
    return function.name


def _same_statements(target: ProgramFunction, reference: ProgramFunction) -> bool:
    if not target.source or not reference.source:
        return target.digest == reference.digest
    same = target.source == reference.source or _compared(target) == _compared(reference)
    return same and not _nested_otherwise(target, reference)


def _nested_otherwise(target: ProgramFunction, reference: ProgramFunction) -> list[int]:
    """The statements that stand in another block, by number, where all are the same in the same order."""
    sides = [_read(one.source, one.name)[3] for one in (target, reference)]
    if len(sides[0]) != len(sides[1]):
        return []
    return [
        n for n, (one, other) in enumerate(zip(*sides, strict=True)) if one.count("\n") != other.count("\n")
    ]


def _changed(target: ProgramFunction, reference: ProgramFunction) -> tuple[list[int], list[int]]:
    """The statements of each side that the other does not have there, by number."""
    only_a: list[int] = []
    only_b: list[int] = []
    matcher = difflib.SequenceMatcher(None, _compared(target), _compared(reference), autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag != "equal":
            only_a += range(i, j)
            only_b += range(k, m)
    return only_a, only_b


def _before(function: ProgramFunction, numbers: list[int]) -> str:
    """The statement ahead of the first of these."""
    first = numbers[0]
    return _joined(_statements(function)[first - 1 : first]) if first else ""


def _at(function: ProgramFunction, numbers: list[int]) -> str:
    """Where a function begins; of a script, which is all of its file, the outermost statement around the
    first of these."""
    file, _, _ = function.at.rpartition(":")
    lines = _read(function.source, function.name)[2]
    return f"{file}:{lines[numbers[0]]}" if function.name == "<module>" and numbers and lines else function.at


def _from_difference(lines: list[str], others: list[str]) -> list[str]:
    """Statements, those too long to be shown from shortly before where they differ from the other side's."""
    found = []
    for line, other in zip(lines, others, strict=True):
        same = next((n for n, pair in enumerate(zip(line, other, strict=False)) if pair[0] != pair[1]), 0)
        start = same - _WIDTH // 2
        too_long = max(len(line), len(other)) > _WIDTH and start > 0
        found.append("…" + line[start:] if too_long else line)
    return found


def _telling(lines: list[str], others: list[str]) -> list[str]:
    """Of more statements than are shown those first that have a word which the other side has in none of its
    own, and gives no variable: what is called or named anew."""
    if len(lines) <= _LINES:
        return lines
    variables = {name for line in (*lines, *others) for name in _assigned(line)}
    known = variables.union(*map(_WORD.findall, others))
    new = [not known.issuperset(_WORD.findall(line)) for line in lines]
    return [
        line for wanted in (True, False) for line, is_new in zip(lines, new, strict=True) if is_new is wanted
    ]


def _assigned(line: str) -> list[str]:
    """Names that a statement gives values to."""
    left, equals, _ = line.partition(" = ")
    return _WORD.findall(left) if equals and "(" not in left else []


def _joined(lines: list[str]) -> str:
    shown = [line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…" for line in lines[:_LINES]]
    more = len(lines) - len(shown)
    return "; ".join(shown) + (f"; … {more} more" if more else "")


def _statements(function: ProgramFunction) -> list[str]:
    """One line a statement, without comments, docstring and annotations."""
    return _read(function.source, function.name)[0]


def _compared(function: ProgramFunction) -> list[str]:
    """The same, with arguments named by their position."""
    return _read(function.source, function.name)[1]


@lru_cache(maxsize=4096)
def _read(source: str, name: str) -> tuple[list[str], list[str], list[int], list[str]]:
    """Statements as they are shown and as they are compared, the line of the outermost around each, and the
    heads of the blocks around each, the outermost first, one a line."""
    text = textwrap.dedent(source)
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines, lines, [], []
    inside, arguments, decorators = _parts_of(body, name)
    if inside and isinstance(inside[0], ast.Expr) and isinstance(inside[0].value, ast.Constant):
        inside = inside[1:]
    inside = [_Bare().visit(one) for one in inside]
    lines = [f"@{ast.unparse(one)}" for one in decorators]
    shown = lines + _lines_of(inside)
    names = {} if arguments is None else _positions(arguments)
    compared = lines + _lines_of([_Renamed(names).visit(one) for one in inside])
    numbers = [one.lineno for one in inside for _ in _lines_of([one])]
    same = len(compared) == len(shown)
    return shown, compared if same else shown, [0] * len(lines) + numbers, [""] * len(lines) + _around(inside)


def _parts_of(body: list[ast.stmt], name: str) -> tuple[list[ast.stmt], ast.arguments | None, list[ast.expr]]:
    """Statements, arguments and decorators of a function, a lambda or a script."""
    first = body[0] if len(body) == 1 else None
    if name == "<module>":  # functions, classes and what is imported are compared where they are reached
        left_out = (*_DEFINED, ast.Import, ast.ImportFrom)
        return [one for one in body if not isinstance(one, left_out)], None, []
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Lambda):
        return [ast.Return(first.value.body)], first.value.args, []
    if isinstance(first, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return first.body, first.args, first.decorator_list
    return body, None, []


_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _lines_of(body: list[ast.stmt]) -> list[str]:
    text = "\n".join(ast.unparse(ast.fix_missing_locations(one)) for one in body)
    return [line.strip() for line in text.splitlines()]


def _around(body: list[ast.stmt]) -> list[str]:
    """The heads of the blocks around each line."""
    found, heads = [], list[tuple[int, str]]()
    text = "\n".join(ast.unparse(ast.fix_missing_locations(one)) for one in body)
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        while heads and heads[-1][0] >= depth:
            heads.pop()
        found.append("".join(f"\n{head}" for _, head in heads))
        heads.append((depth, line.strip()))
    return found


def _positions(arguments: ast.arguments) -> dict[str, str]:
    every = [*arguments.posonlyargs, *arguments.args]
    return {one.arg: f"argument_{number}" for number, one in enumerate(every)}


class _Bare(ast.NodeTransformer):
    """Takes annotations off."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        """``x: int = 1`` is ``x = 1``."""
        self.generic_visit(node)
        if node.value is None:
            return ast.Pass()
        return ast.Assign(targets=[node.target], value=node.value, lineno=node.lineno)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Of functions inside."""
        node.annotation = None
        return node


class _Renamed(ast.NodeTransformer):
    """Gives names other names."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Of a variable."""
        return ast.Name(id=self._names.get(node.id, node.id), ctx=node.ctx)
