"""Arguments of calls that one side's code gives and the other's does not."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from trueup.matching.arguments import has_default
from trueup.store.code import ProgramCode, ProgramFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument that a call lacks."""

    name: str
    function: str
    """that is called"""
    default: str
    """what it takes instead; empty where that is not known"""
    value: str = ""
    """what the other side gives"""


def stands_for(code: ProgramCode, function: ProgramFunction) -> ProgramFunction:
    """The function that one is put in place of: ``@wraps(original)`` on what dispatches to it."""
    for _ in range(4):
        tree = _function(function.source)
        names = [] if tree is None else [_wrapped(one) for one in tree.decorator_list]
        inner = next(
            (found for name in names if name and (found := code.function(function.calls.get(name)))), None
        )
        if inner is None:
            break
        function = inner
    return function


def _wrapped(decorator: ast.expr) -> str | None:
    if not isinstance(decorator, ast.Call) or len(decorator.args) != 1:
        return None
    name = ast.unparse(decorator.func).rpartition(".")[2]
    return ast.unparse(decorator.args[0]) if name == "wraps" else None


def not_passed_on(wrapper: ProgramFunction, inner: ProgramFunction) -> list[Argument]:
    """Arguments that a function takes by the names of another's, and does not hand on where it calls that."""
    tree, called = _function(wrapper.source), _function(inner.source)
    if tree is None or called is None:
        return []
    names = {name for name, value in wrapper.calls.items() if isinstance(value, int)}
    call = _only_call(tree, names)
    if call is None:
        return []
    own = {one.arg for one in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)}
    every = [one.arg for one in (*called.args.posonlyargs, *called.args.args)]
    if every[:1] in (["self"], ["cls"]) and len(call.args) < len(every):
        every = every[1:]
    given = {*every[: len(call.args)], *(word.arg for word in call.keywords)}
    defaults = _defaults(called)
    left = [name for name in defaults if name in own and name not in given]
    return [Argument(name=name, function=inner.name, default=defaults[name]) for name in left]


def _only_call(tree: ast.AST, names: set[str]) -> ast.Call | None:
    """The one call of a function of these names, with all that it is given written out."""
    every = (one for one in ast.walk(tree) if isinstance(one, ast.Call))
    calls = [one for one in every if ast.unparse(one.func).rpartition(".")[2] in names]
    if len(calls) != 1 or any(isinstance(one, ast.Starred) for one in calls[0].args):
        return None
    return None if any(word.arg is None for word in calls[0].keywords) else calls[0]


def lacking(
    own: Sequence[str], other: Sequence[str], function: ProgramFunction, code: ProgramCode
) -> Argument | None:
    """The one argument by name that a statement's call lacks beside its counterpart, which is the same but
    for that; None where more differs, or another call has it in exchange."""
    pairs = list(zip(own, other, strict=False))
    found = [one for pair in pairs if (one := _lacks(*pair)) is not None]
    is_moved = any(_lacks(there, here) is not None for here, there in pairs)
    if len(own) != len(other) or len(found) != 1 or is_moved:
        return None
    called, word = found[0]
    name = called.rpartition(".")[2]
    reached = function.calls.get(called, function.calls.get(name))
    if isinstance(reached, str) and has_default(reached, *word):
        return None
    inner = code.function(reached)
    tree = None if inner is None else _function(inner.source)
    default = "" if tree is None else _defaults(tree).get(word[0], "")
    return Argument(name=word[0], function=name, default=default, value=word[1])


def _lacks(own: str, other: str) -> tuple[str, tuple[str, str]] | None:
    """The call, and the argument with its value, by which the second of two statements has one more."""
    try:
        trees = ast.parse(own), ast.parse(other)
    except SyntaxError:
        return None
    calls = [one for one in ast.walk(trees[1]) if isinstance(one, ast.Call)]
    target = ast.dump(trees[0])
    for call in calls:
        for word in list(call.keywords):
            if word.arg is None:
                continue
            call.keywords.remove(word)
            same = ast.dump(trees[1]) == target
            if same:
                return ast.unparse(call.func), (word.arg, ast.unparse(word.value))
            call.keywords.append(word)
            call.keywords.sort(key=lambda one: (one.lineno, one.col_offset))
    return None


def _function(source: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        body = ast.parse(textwrap.dedent(source)).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    first = body[0] if body else None
    return first if isinstance(first, (ast.FunctionDef, ast.AsyncFunctionDef)) else None


def _defaults(tree: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    every = [*tree.args.posonlyargs, *tree.args.args]
    tail = every[len(every) - len(tree.args.defaults) :]
    found = {one.arg: ast.unparse(value) for one, value in zip(tail, tree.args.defaults, strict=True)}
    by_name = zip(tree.args.kwonlyargs, tree.args.kw_defaults, strict=True)
    return found | {one.arg: ast.unparse(value) for one, value in by_name if value is not None}
