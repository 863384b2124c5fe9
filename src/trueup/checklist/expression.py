"""The small language of the checklist's YAML files: Python's expressions over keys, nothing that can act."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast

from trueup.errors import ConfigError

_BINARY: dict[type[ast.operator], Callable[[object, object], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: lambda first, second: _product(first, second),
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_MOST_ITEMS = 1_000_000
_COMPARE: dict[type[ast.cmpop], Callable[..., bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_FUNCTIONS: dict[str, Callable[..., object]] = {
    "int": int,
    "float": float,
    "str": str,
    "len": len,
    "min": min,
    "max": max,
    "abs": abs,
    "round": round,
    "ceil": math.ceil,
    "lower": lambda text: str(text).lower(),
    "round_up": lambda number, multiple: -(-int(number) // int(multiple)) * int(multiple),
    "translate": lambda value, table: table.get(value, value),
    "starts": lambda text, head: str(text).startswith(head),
    "contains": lambda text, part: part in str(text),
    "count": lambda value: len(value) if isinstance(value, list) else len(str(value).split(",")),
    "count_of": lambda text, part: str(text).count(part),
    "main_pattern": lambda pattern: str(pattern).partition("/")[0].replace("|", ""),
    "leading_zeros": lambda pattern: _leading_zeros(pattern),
    "layers": lambda number: list(range(int(number))),
    "layers_with": lambda kinds, wanted: [at for at, kind in enumerate(items_of(kinds)) if kind == wanted],
    "windowed": lambda freq, num: _windowed(freq, num),
    "unrotated": lambda freq, num: _every(freq, num),
    "window": lambda value: _window(value),
    "train_share": lambda shares: str(shares).partition(",")[0],
    "prompts": lambda user, assistant: _prompts(str(user), str(assistant)),
    "layer_step": lambda freq: freq if isinstance(freq, int) and freq > 0 else 1,
    "dense_after": lambda freq: _dense_after(freq),
}


def items_of(pattern: object) -> list[object]:
    """The items of a list, which may be written as ``([0]*3+[1]*58)``; none of one number for all layers."""
    items = parsed(pattern).evaluate(NOTHING) if isinstance(pattern, str) else pattern
    return list(items) if isinstance(items, (list, tuple)) else []


def _leading_zeros(pattern: object) -> int:
    """Zeros a list begins with."""
    items = items_of(pattern)
    return next((index for index, item in enumerate(items) if item), len(items))


def _dense_after(pattern: object) -> list[int]:
    """Zeros after the first one of a list: layers without experts behind the leading ones."""
    start = _leading_zeros(pattern)
    return [at for at, item in enumerate(items_of(pattern)) if at >= start and not item]


def _windowed(freq: object, num_layers: int) -> list[int]:
    """Layers with the window: ones of a list; of a number n all but every n-th."""
    if isinstance(freq, int) and freq > 0:
        return [at for at in range(num_layers) if (at + 1) % freq]
    return [at for at, item in enumerate(items_of(freq)) if item]


def _window(value: object) -> int:
    """Tokens a window reaches back: of ``1024``, ``1024,0``, ``(1024, 0)`` or a list; 0 where it is open."""
    first = value[0] if isinstance(value, (list, tuple)) else value
    if isinstance(first, str):
        first = float(first.strip("()[] ").replace(",", " ").split()[0])
    return max(0, int(cast(float, first)))


def _prompts(user: str, assistant: str) -> str:
    """The template that puts one text before each message of a person and another before each answer."""
    content = "{{ message['content'] }}"
    return (
        "{% for message in messages %}{% if message['role'] == 'user' %}"
        f"{_literal(user)}{content}{{% else %}}{_literal(assistant)}{content}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{_literal(assistant)}{{% endif %}}"
    )


def _literal(text: str) -> str:
    return "{{ " + repr(text) + " }}"


def _every(freq: object, num_layers: int) -> list[int]:
    """Ones of a list; of a number n every n-th."""
    if isinstance(freq, int) and freq > 0:
        return [at for at in range(num_layers) if (at + 1) % freq == 0]
    return [at for at, item in enumerate(items_of(freq)) if item]


_LAZY = frozenset({"first", "given", "known", "key"})


class Unset(Exception):
    """A name has no value here."""


class Scope(Protocol):
    """Where an expression looks its names up."""

    def value(self, name: str) -> object:
        """The value of a dotted name. Raises ``Unset``."""

    def given(self, name: str) -> bool:
        """Whether a person set it."""

    def mark(self) -> int:
        """Where the record of what was read stands."""

    def back(self, mark: int) -> None:
        """Forget what was read since; it led nowhere."""


Compute = Callable[[Scope], Any]


class _Nothing:
    """The scope of expressions without names."""

    def value(self, name: str) -> object:
        raise Unset(name)

    def given(self, name: str) -> bool:
        return False

    def mark(self) -> int:
        return 0

    def back(self, mark: int) -> None:
        return


NOTHING: Scope = _Nothing()


@dataclass(frozen=True, slots=True)
class Expression:
    """One parsed expression.

    Beside Python's operators it knows ``first(a, b)`` (the first key a person set, else the first that has
    a value), ``given(a)`` (a person set it), ``known(a)`` (it has a value), ``key("a.b-c")`` (a key that is
    no identifier), ``unset`` (no value), ``translate(a, {...})``, ``round_up(a, multiple)``,
    ``leading_zeros(a)``, ``count(a)`` (items of a list, or of text with commas), ``lower``, ``starts``,
    ``contains``, ``count_of(a, b)``, ``main_pattern(a)`` (the layers of a hybrid model without its stages),
    ``window(a)`` (tokens a window reaches back), ``prompts(a, b)`` (the template of two
    prefixes) and the arithmetic of ``int float str len min max abs round ceil``.
    """

    text: str
    names: tuple[str, ...]
    """every dotted name it may read, in the order written"""
    compute: Compute
    """its value in a scope; errors as they come"""
    plain_keys: tuple[str, ...]
    """the keys it stands for where it is one key, or ``first`` of keys; else none"""

    def evaluate(self, scope: Scope) -> object:
        """Its value.

        Raises:
            Unset: it depends on a name that has none. ``and`` / ``or`` still decide where the rest decides.
            ConfigError: operands that do not go together.
        """
        try:
            return self.compute(scope)
        except (TypeError, ValueError, ArithmeticError, KeyError, IndexError, AttributeError) as error:
            raise ConfigError(f"cannot compute {self.text!r}: {error}") from error


@lru_cache(maxsize=4096)
def parsed(text: str) -> Expression:
    """The expression a YAML file wrote.

    Raises:
        ConfigError: it is not one, or uses what the language has not.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        _check(tree)
        compute = _compiled(tree)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"not an expression of the checklist: {text!r} ({error})") from error
    names = tuple(dict.fromkeys(name for name in _names(tree) if name != "unset"))
    return Expression(text, names, compute, _plain_keys(tree))


def _plain_keys(tree: ast.expr) -> tuple[str, ...]:
    nodes = tree.args if isinstance(tree, ast.Call) and _is_call(tree, "first") else [tree]
    keys = [_key(node) for node in nodes]
    return tuple(key for key in keys if key is not None) if all(keys) else ()


def _is_call(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value)
        return None if head is None else f"{head}.{node.attr}"
    return None


def _key(node: ast.expr) -> str | None:
    """A dotted name, or an element of one: ``optimizer.betas[0]``."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        head = _dotted(node.value)
        return None if head is None else f"{head}[{node.slice.value!r}]"
    if isinstance(node, ast.Call) and _is_call(node, "key") and isinstance(node.args[0], ast.Constant):
        return str(node.args[0].value)
    return _dotted(node)


def _names(node: ast.AST) -> list[str]:
    name = _key(node) if isinstance(node, ast.expr) else None
    if name is not None:
        return [name]
    below = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    return [found for child in below for found in _names(child)]


def _check(node: ast.AST) -> None:
    """Only what ``_compiled`` knows."""
    if isinstance(node, ast.Call):
        if (
            not isinstance(node.func, ast.Name)
            or node.func.id not in _FUNCTIONS.keys() | _LAZY
            or node.keywords
        ):
            raise ValueError(f"no such function: {ast.unparse(node)}")
        for argument in node.args:
            _check(argument)
        return
    known = (
        *(
            ast.Name,
            ast.Attribute,
            ast.Subscript,
            ast.Constant,
            ast.BinOp,
            ast.BoolOp,
            ast.UnaryOp,
            ast.Compare,
        ),
        *(ast.IfExp, ast.List, ast.Tuple, ast.Dict, ast.Load, ast.And, ast.Or, ast.Not, ast.USub),
        *_BINARY,
        *_COMPARE,
    )
    if not isinstance(node, known):
        raise ValueError(f"not known here: {type(node).__name__}")
    for child in ast.iter_child_nodes(node):
        _check(child)


def _compiled(node: ast.expr) -> Compute:
    """What an expression computes of a scope, made once: a rule is asked of every setting of every side."""
    name = _dotted(node)
    if name is not None:
        return lambda scope: scope.value(name)
    match node:
        case ast.Constant(value=constant):
            return lambda scope: constant
        case ast.Subscript():
            value, index = _compiled(node.value), _compiled(node.slice)
            return lambda scope: _element(value(scope), index(scope))
        case ast.BinOp():
            operate, left, right = _BINARY[type(node.op)], _compiled(node.left), _compiled(node.right)
            return lambda scope: operate(_number(left(scope)), _number(right(scope)))
        case ast.UnaryOp():
            operand = _compiled(node.operand)
            if isinstance(node.op, ast.Not):
                return lambda scope: not operand(scope)
            return lambda scope: -operand(scope)
        case ast.BoolOp():
            return _boolean(node)
        case ast.Compare():
            return _comparison(node)
        case ast.IfExp():
            test, body, otherwise = map(_compiled, (node.test, node.body, node.orelse))
            return lambda scope: body(scope) if test(scope) else otherwise(scope)
        case ast.List() | ast.Tuple():
            items = [_compiled(item) for item in node.elts]
            return lambda scope: [item(scope) for item in items]
        case ast.Dict():
            keys = [_compiled(key) for key in node.keys if key is not None]
            pairs = list(zip(keys, map(_compiled, node.values), strict=True))
            return lambda scope: {key(scope): value(scope) for key, value in pairs}
        case ast.Call(func=ast.Name(id=function)):
            return _call(function, node.args)
    raise ValueError(f"not known here: {ast.unparse(node)}")


def _number(value: object) -> object:
    """An operand of arithmetic; text is none, though Python would repeat it."""
    if isinstance(value, str):
        raise TypeError(f"{value!r} is not a number")
    return value


def _product(first: object, second: object) -> object:
    """A product, or a list repeated, of no more items than any model has layers."""
    for items, times in ((first, second), (second, first)):
        if isinstance(items, list) and isinstance(times, int) and len(items) * times > _MOST_ITEMS:
            raise ValueError(f"a list of {len(items) * times} items; expected at most {_MOST_ITEMS}")
    return operator.mul(first, second)


def _element(value: Any, index: Any) -> Any:
    if isinstance(value, Mapping):
        if index not in value:
            raise Unset(str(index))
        return value[index]
    if not isinstance(value, (list, tuple)) or not -len(value) <= index < len(value):
        raise Unset(str(index))
    return value[index]


def _boolean(node: ast.BoolOp) -> Compute:
    """Three-valued: what one operand settles, an unset other one does not unsettle."""
    settling, operands = isinstance(node.op, ast.Or), [_compiled(operand) for operand in node.values]

    def decided(scope: Scope) -> bool:
        unset = None
        for operand in operands:
            try:
                if bool(operand(scope)) is settling:
                    return settling
            except Unset as error:
                unset = error
        if unset is not None:
            raise unset
        return not settling

    return decided


def _comparison(node: ast.Compare) -> Compute:
    first = _compiled(node.left)
    signs = [_COMPARE[type(sign)] for sign in node.ops]
    others = list(zip(signs, map(_compiled, node.comparators), strict=True))

    def compared(scope: Scope) -> bool:
        left = first(scope)
        for holds, operand in others:
            right = operand(scope)
            if not holds(left, right):
                return False
            left = right
        return True

    return compared


def _call(function: str, arguments: list[ast.expr]) -> Compute:
    if function == "key":
        name = _key(ast.Call(ast.Name("key"), arguments, [])) or ""
        return lambda scope: scope.value(name)
    operands = [_compiled(argument) for argument in arguments]
    if function not in _LAZY:
        called = _FUNCTIONS[function]
        return lambda scope: called(*(operand(scope) for operand in operands))
    keys = [_key(argument) or "" for argument in arguments]
    if function == "given":
        return lambda scope: any(scope.given(key) for key in keys)
    if function == "known":
        return lambda scope: any(True for _ in _known(operands, scope))
    texts = [ast.unparse(argument) for argument in arguments]

    def first(scope: Scope) -> object:
        given = next((at for at, key in enumerate(keys) if scope.given(key)), None)
        asked = slice(None) if given is None else slice(given, given + 1)
        for value in _known(operands[asked], scope):
            return value
        raise Unset(", ".join(texts[asked]))

    return first


def _known(operands: list[Compute], scope: Scope) -> Iterator[object]:
    """The values of those that have one, each computed when it is asked for."""
    for operand in operands:
        mark = scope.mark()
        try:
            value = operand(scope)
        except Unset:
            scope.back(mark)
            continue
        yield value
