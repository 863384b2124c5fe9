"""Which of the statements that two functions write otherwise tell the difference.

Functions written by two hands differ in most statements, and in most of them by names alone. What is written
alike but for names of variables is the same expression; of its variables both sides then have the same,
which gives each variable its counterpart. An expression that is used with a variable whose counterpart is
another is told first, with the statements that gave the two their values. Next come statements that name
something which the other function names nowhere, and last those that only say the same in another way. Within
each the one nearest to what the function returns comes first, going back by what it is made from.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

ALIKE = 0.5
"""share of two statements' text from which on they may be counterparts"""
_LEAST_NODES = 3
"""of an expression that tells: a name alone is none"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement of a function, as it is shown."""

    text: str
    shape: str
    """with variables as ``_``"""
    words: frozenset[str]
    """names that are no variables, and constants"""
    loads: tuple[str, ...]
    stores: tuple[str, ...]
    variables: tuple[str, ...] = ()
    """in the order of the text"""
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """shape of each expression in it -> its variables"""


def in_telling_order(
    sides: tuple[Sequence[str], Sequence[str]],
    changed: tuple[Sequence[int], Sequence[int]],
    arguments: tuple[Sequence[str], Sequence[str]],
) -> tuple[list[int], list[int]]:
    """Numbers of the changed statements of both sides, the most telling first.

    ``sides``: all statements of both functions; ``arguments``: the names that they are given.
    """
    target, reference = (_read(lines, names) for lines, names in zip(sides, arguments, strict=True))
    pairs = _pairs(target, reference)
    crossed = _crossed(target, reference, pairs)
    found = []
    for number, (own, other) in enumerate(((target, reference), (reference, target))):
        known = frozenset[str]().union(*(one.words for one in other))
        near = _distances(own)
        partner = {pair[number]: pair[1 - number] for pair in pairs}
        telling = {
            at
            for at, one in enumerate(own)
            if one.words - known
            or (at in partner and other[partner[at]].words - frozenset().union(*(o.words for o in own)))
        }
        rank = {at: 0 if at in crossed[number] else 1 if at in telling else 2 for at in changed[number]}
        found.append(sorted(changed[number], key=lambda at, r=rank, n=near: (r[at], n[at], at)))  # type: ignore[misc]
    return found[0], found[1]


def are_renamed(*sides: tuple[Sequence[str], Sequence[str]]) -> bool:
    """Whether two functions, by statements and arguments, are the same but for names of variables, each of
    which stands for one of the other's."""
    target, reference = (_read(lines, names) for lines, names in sides)
    to, back = dict[str, str](), dict[str, str]()
    for one, other in zip(target, reference, strict=True):
        if one.shape != other.shape or len(one.variables) != len(other.variables):
            return False
        for a, b in zip(one.variables, other.variables, strict=True):
            if to.setdefault(a, b) != b or back.setdefault(b, a) != a:
                return False
    return all(to.get(a, a) == b for a, b in zip(sides[0][1], sides[1][1], strict=False))


def _read(lines: Sequence[str], arguments: Sequence[str]) -> list[Statement]:
    trees = [_parsed(line) for line in lines]
    stored = {
        node.id
        for tree in trees
        if tree is not None
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    variables = frozenset((*stored, *arguments)) - {"self"}
    return [_statement(line, tree, variables) for line, tree in zip(lines, trees, strict=True)]


def _parsed(line: str) -> ast.stmt | None:
    """One statement; of a block its head."""
    for text in (line, f"{line} pass", f"if 1: pass\n{line} pass"):
        try:
            found = ast.parse(text).body
        except SyntaxError:
            continue
        return found[0] if found else None
    return None


def _statement(line: str, tree: ast.stmt | None, variables: frozenset[str]) -> Statement:
    if tree is None:
        return Statement(text=line, shape=line, words=frozenset({line}), loads=(), stores=())
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in variables]
    shape, held = _shape(tree, variables)
    words = (word for node in ast.walk(tree) if (word := _word(node)) is not None)
    return Statement(
        text=line,
        shape=shape,
        variables=held,
        words=frozenset(words) - variables,
        loads=tuple(node.id for node in names if isinstance(node.ctx, ast.Load)),
        stores=tuple(node.id for node in names if isinstance(node.ctx, ast.Store)),
        parts=_parts(tree, variables),
    )


def _word(node: ast.AST) -> str | None:
    """What a node names: a variable too."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Constant):
        return repr(node.value)
    return node.arg if isinstance(node, ast.keyword) else None


def _parts(tree: ast.stmt, variables: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """Shape of each expression with a variable -> its variables, without what values are given to."""
    found: dict[str, tuple[str, ...]] = {}
    for node in ast.walk(tree):
        is_given = isinstance(getattr(node, "ctx", None), ast.Store)
        if isinstance(node, ast.expr) and not is_given and sum(1 for _ in ast.walk(node)) >= _LEAST_NODES:
            shape, held = _shape(node, variables)
            if held:
                found.setdefault(shape, held)
    return found


def _shape(node: ast.AST, variables: frozenset[str]) -> tuple[str, tuple[str, ...]]:
    """The text with ``_`` for variables, and those in the order of the text."""
    text = ast.dump(node)
    held = [one for one in ast.walk(node) if isinstance(one, ast.Name) and one.id in variables]
    for one in held:
        text = text.replace(f"Name(id={one.id!r}", "Name(id='_'")
    return text, tuple(_in_order(node, variables))


def _in_order(node: ast.AST, variables: frozenset[str]) -> Iterator[str]:
    if isinstance(node, ast.Name) and node.id in variables:
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child, variables)


def _pairs(target: Sequence[Statement], reference: Sequence[Statement]) -> list[tuple[int, int]]:
    """Counterparts: statements of one shape in their order, then those most alike."""
    own, other = ([one.shape for one in side] for side in (target, reference))
    matcher = SequenceMatcher(None, own, other, autojunk=False)
    found = [(i + n, j + n) for i, j, size in matcher.get_matching_blocks() for n in range(size)]
    left = [
        set(range(len(side))) - {pair[at] for pair in found} for at, side in enumerate((target, reference))
    ]
    alike = sorted(
        (
            (SequenceMatcher(None, target[i].text, reference[j].text, autojunk=False).ratio(), i, j)
            for i in left[0]
            for j in left[1]
        ),
        reverse=True,
    )
    for ratio, i, j in alike:
        if ratio >= ALIKE and i in left[0] and j in left[1]:
            found.append((i, j))
            left[0].discard(i)
            left[1].discard(j)
    return sorted(found)


def _crossed(
    target: Sequence[Statement], reference: Sequence[Statement], pairs: Sequence[tuple[int, int]]
) -> tuple[set[int], set[int]]:
    """Statements with an expression of both functions that is used with other variables, and those that gave
    them their values."""
    partner, once = dict(pairs), _once(target).keys() & _once(reference).keys()
    at_reference = _once(reference)
    own: dict[str, tuple[str, int]] = {}
    """variable of the target -> its counterpart, and the statement that gave it its value"""
    other: dict[str, tuple[str, int]] = {}
    crossed = set[int](), set[int]()
    for i, one in enumerate(target):
        for shape, held in one.parts.items():
            if shape not in once:
                continue
            j = at_reference[shape]
            for a, b in zip(held, reference[j].parts[shape], strict=False):
                if a not in own and b not in other:
                    own[a], other[b] = (b, -1), (a, -1)
                elif own.get(a, ("",))[0] != b and a in own and b in other:
                    crossed[0].update({i, own[a][1]} - {-1})
                    crossed[1].update({j, *(_gave(reference, b, j))})
        if i in partner and len(one.stores) == len(reference[partner[i]].stores):
            for a, b in zip(one.stores, reference[partner[i]].stores, strict=True):
                own[a], other[b] = (b, i), (a, partner[i])
        else:
            for a in one.stores:
                own.pop(a, None)
    return crossed


def _gave(side: Sequence[Statement], name: str, before: int) -> list[int]:
    """The last statement before one that gave a variable its value."""
    return [at for at in range(before) if name in side[at].stores][-1:]


def _once(side: Sequence[Statement]) -> dict[str, int]:
    """Shapes of expressions that one statement alone has -> its number."""
    counts = Counter(shape for one in side for shape in one.parts)
    return {shape: at for at, one in enumerate(side) for shape in one.parts if counts[shape] == 1}


def _distances(side: Sequence[Statement]) -> list[int]:
    """How many steps back from what is returned each statement is, by what it gives values to."""
    found = [len(side)] * len(side)
    wanted = {at: 0 for at, one in enumerate(side) if one.text.startswith("return")} or {len(side) - 1: 0}
    todo = sorted(wanted)
    while todo:
        at = todo.pop(0)
        found[at] = min(found[at], wanted[at])
        for name in side[at].loads:
            for giver in _gave(side, name, at):
                if giver not in wanted or wanted[giver] > wanted[at] + 1:
                    wanted[giver] = wanted[at] + 1
                    todo.append(giver)
    return found
