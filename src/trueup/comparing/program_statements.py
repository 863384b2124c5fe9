"""Statements of a program's functions, read from their source: how they are shown and compared."""

from __future__ import annotations

import ast
import copy
import difflib
import textwrap
from functools import lru_cache

from trueup.comparing.telling_statements import are_renamed
from trueup.numerics.dtypes import DTYPES
from trueup.store.code import ProgramFunction

LINES = 5
"""statements of a function that are shown of a side"""
_WIDTH = 160


def same_statements(target: ProgramFunction, reference: ProgramFunction) -> bool:
    if not target.source or not reference.source:
        return target.digest == reference.digest
    if (target.source, target.name) == (reference.source, reference.name):
        return True
    same = target.source == reference.source or compared_of(target) == compared_of(reference)
    same = same or _are_renamed(target, reference)
    return same and not nested_otherwise(target, reference)


def _are_renamed(target: ProgramFunction, reference: ProgramFunction) -> bool:
    """Whether nothing but names of variables differs, each for one other throughout."""
    sides = [(statements_of(one), arguments_of(one)) for one in (target, reference)]
    return len(sides[0][0]) == len(sides[1][0]) and are_renamed(*sides)


def arguments_of(function: ProgramFunction) -> list[str]:
    """The names that a function is given its arguments by."""
    try:
        body = ast.parse(textwrap.dedent(function.source)).body
    except (SyntaxError, ValueError, RecursionError):
        return []
    _, arguments, _ = _parts_of(body, function.name)
    return [] if arguments is None else [one.arg for one in (*arguments.posonlyargs, *arguments.args)]


def nested_otherwise(target: ProgramFunction, reference: ProgramFunction) -> list[int]:
    """The statements that stand in another block, by number, where all are the same in the same order."""
    sides = [read_statements(one.source, one.name)[3] for one in (target, reference)]
    if len(sides[0]) != len(sides[1]):
        return []
    return [
        n for n, (one, other) in enumerate(zip(*sides, strict=True)) if one.count("\n") != other.count("\n")
    ]


def changed(target: ProgramFunction, reference: ProgramFunction) -> tuple[list[int], list[int]]:
    """The statements of each side that the other does not have there, by number."""
    only_a: list[int] = []
    only_b: list[int] = []
    matcher = difflib.SequenceMatcher(None, compared_of(target), compared_of(reference), autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag != "equal":
            only_a += range(i, j)
            only_b += range(k, m)
    return only_a, only_b


def given_otherwise(target: ProgramFunction, reference: ProgramFunction) -> list[str]:
    """The functions, by the names they are called by, whose calls are given other arguments, where nothing
    else differs in the statements of both sides."""
    own, other = (
        [compared_of(one)[n] for n in of]
        for one, of in zip((target, reference), changed(target, reference), strict=True)
    )
    if len(own) != len(other):
        return []
    found = dict[str, None]()
    for pair in zip(own, other, strict=True):
        calls = [_calls_of(line) for line in pair]
        if [[name for name, _ in side] for side in calls] == [[], []]:
            return []
        apart = {a for (a, given), (_, wanted) in zip(*calls, strict=False) if given != wanted}
        if len({_with_bare_calls(line, apart) for line in pair}) != 1:
            return []
        found.update(dict.fromkeys(sorted(apart)))
    return list(found)


def _calls_of(line: str) -> list[tuple[str, str]]:
    """What a statement calls, in the order of the text, and what each call is given."""
    tree = _parsed(line)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None else []
    return [(ast.unparse(one.func), _given(one)) for one in calls]


def _given(call: ast.Call) -> str:
    return ", ".join(ast.unparse(one) for one in (*call.args, *call.keywords))


def _with_bare_calls(line: str, names: set[str]) -> str:
    """The statement, with nothing given to these functions."""
    tree = _parsed(line)
    return line if tree is None else ast.unparse(ast.fix_missing_locations(_NothingGiven(names).visit(tree)))


class _NothingGiven(ast.NodeTransformer):
    """Takes the arguments of some functions' calls off."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Of any depth."""
        self.generic_visit(node)
        if ast.unparse(node.func) in self._names:
            node.args, node.keywords = [], []
        return node


def _parsed(line: str) -> ast.stmt | None:
    """A statement, or the head of a block."""
    try:
        (found,) = ast.parse(line + (" pass" if line.endswith(":") else "")).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    return found


def cast_otherwise(target: ProgramFunction, reference: ProgramFunction) -> bool:
    """Whether nothing but casts to other dtypes differs: the same is computed, in another precision."""
    sides = [compared_of(one) for one in (target, reference)]
    bare = [[line for line in map(_without_casts, side) if line is not None] for side in sides]
    if sides[0] == sides[1] or bare[0] == bare[1]:
        return sides[0] != sides[1]
    results = [_result(statements_of(one)) for one in (target, reference)]
    uncast = [
        _result([line for line in map(_without_casts, statements_of(one)) if line is not None])
        for one in (target, reference)
    ]
    return None not in uncast and uncast[0] == uncast[1] and results[0] != results[1]


def _result(lines: list[str]) -> str | None:
    """What a function without branches returns, as one expression of what it is given, names numbered as they
    occur; None of other functions."""
    values: dict[str, ast.expr] = {}
    for line in lines:
        try:
            (found,) = ast.parse(line).body
        except (SyntaxError, ValueError, RecursionError):
            return None
        if isinstance(found, ast.Return) and found.value is not None and line is lines[-1]:
            return ast.unparse(_Numbered().visit(_Inlined(values).visit(found.value)))
        if not (isinstance(found, ast.Assign) and isinstance(found.targets[0], ast.Name)):
            return None
        values[found.targets[0].id] = _Inlined(values).visit(found.value)
    return None


class _Inlined(ast.NodeTransformer):
    """Puts the values of variables in their place."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self._values = dict(values)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Of a variable."""
        return copy.deepcopy(self._values.get(node.id, node))


class _Numbered(ast.NodeTransformer):
    """Names what is left by the order in which it occurs."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Of an argument, or of what stands outside."""
        return ast.Name(id=self._names.setdefault(node.id, f"name_{len(self._names)}"), ctx=node.ctx)


@lru_cache(maxsize=4096)
def _without_casts(line: str) -> str | None:
    """A statement, or the head of a block, without casts; None where it does nothing else."""
    body = " pass" if line.endswith(":") else ""
    try:
        (found,) = ast.parse(line + body).body
    except (SyntaxError, ValueError, RecursionError):
        return line
    bare = _Uncast().visit(found)
    is_single = isinstance(bare, ast.Assign) and len(bare.targets) == 1
    if is_single and ast.unparse(bare.targets[0]) == ast.unparse(bare.value):
        return None
    return ast.unparse(ast.fix_missing_locations(bare))


class _Uncast(ast.NodeTransformer):
    """Takes casts off: ``x.float()`` and ``x.to(torch.bfloat16)`` are ``x``, ``dtype=`` is not given."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Of any depth."""
        self.generic_visit(node)
        given = [*node.args, *(word.value for word in node.keywords if word.arg == "dtype")]
        if isinstance(node.func, ast.Attribute):
            name, of = node.func.attr, node.func.value
            plain = name in _CASTS and not given and not node.keywords
            if plain or (name in _CASTS_LIKE and len(given) == 1):
                return of
            if name in _MAY_CAST and len(given) == 1 and len(node.keywords) <= 1 and _is_dtype(given[0]):
                return of
            if name == "cast" and len(node.args) == 2 and _is_dtype(node.args[1]):
                return node.args[0]
        node.keywords = [word for word in node.keywords if word.arg != "dtype"]
        return node


_CASTS = ("float", "half", "bfloat16", "double")
_CASTS_LIKE = ("type_as",)
_MAY_CAST = ("to", "type", "astype")


def _is_dtype(node: ast.expr) -> bool:
    last = ast.unparse(node).rpartition(".")[2]
    return last in DTYPES or last in _CASTS or last.endswith("dtype")


def before(function: ProgramFunction, numbers: list[int]) -> str:
    """The statement ahead of the first of these."""
    first = numbers[0]
    return joined(statements_of(function)[first - 1 : first]) if first else ""


def place_of(function: ProgramFunction, numbers: list[int]) -> str:
    """Where a function begins; of a script, which is all of its file, the outermost statement around the
    first of these."""
    file, _, _ = function.at.rpartition(":")
    lines = read_statements(function.source, function.name)[2]
    return f"{file}:{lines[numbers[0]]}" if function.name == "<module>" and numbers and lines else function.at


def from_difference(lines: list[str], others: list[str]) -> list[str]:
    """Statements, those too long to be shown from shortly before where they differ from the other side's."""
    found = []
    for line, other in zip(lines, others, strict=True):
        same = next((n for n, pair in enumerate(zip(line, other, strict=False)) if pair[0] != pair[1]), 0)
        start = same - _WIDTH // 2
        too_long = max(len(line), len(other)) > _WIDTH and start > 0
        found.append("…" + line[start:] if too_long else line)
    return found


def joined(lines: list[str]) -> str:
    shown = [line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…" for line in lines[:LINES]]
    more = len(lines) - len(shown)
    return "; ".join(shown) + (f"; … {more} more" if more else "")


def statements_of(function: ProgramFunction) -> list[str]:
    """One line a statement, without comments, docstring and annotations."""
    return read_statements(function.source, function.name)[0]


def compared_of(function: ProgramFunction) -> list[str]:
    """The same, with arguments named by their position."""
    return read_statements(function.source, function.name)[1]


@lru_cache(maxsize=4096)
def read_statements(source: str, name: str) -> tuple[list[str], list[str], list[int], list[str]]:
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
