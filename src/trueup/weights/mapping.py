"""A conversion plan from naming maps: the source's family to plain weights, plain weights to the target's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from trueup.errors import ConfigError
from trueup.weights.layouts import Heads, Joining, put_together, stacked_together, taken_apart
from trueup.weights.name_map import (
    NameMap,
    NameRule,
    family_names,
    filled,
    matched,
    name_map,
    of_same_names,
    unwrapped,
)
from trueup.weights.plan import ConversionPlan, PlannedWeight, SourcePiece
from trueup.weights.shapes import Shape, moved_shape
from trueup.weights.weight_set import Table

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|(?<=\.weight)\d+$")
"""of a layer or an expert; the 1 of ``w1`` is none"""

_OWN_NAMES = "megatron"
"""who asks for this family means the program that its names come from"""
_VERSION = re.compile(r"-\d+\.\d+(-\w+)?$")
"""of a family, in its name: who asks for it knows"""


@dataclass(slots=True)
class _Plain:
    """The plain weights of a source: the piece that gives each, its shape; and what no rule reads."""

    pieces: dict[str, SourcePiece] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


def family_of(table: Collection[str]) -> str | None:
    """The family whose map reads most of ``table``, or None where each leaves more than it reads.

    Example:
        >>> family_of({"tok_embeddings.weight": ...})
        'torchtitan-llama'

    Of families with the same names it is the first (``families_of``).
    """
    kinds = Counter(_NUMBER.sub("0", unwrapped(name)) for name in table)  # a model has few kinds of names
    best, most = None, 0
    for family in family_names():
        rules = name_map(family)
        read = sum(count for name, count in kinds.items() if rules.rule_of(name) is not None)
        ignored = sum(count for name, count in kinds.items() if rules.ignores(name))
        if read > most and 2 * (read + ignored) > len(table):
            best, most = family, read
    return best


def families_of(table: Table) -> tuple[str, ...]:
    """``family_of``, then the families of its names that hold a weight of ``table`` in another layout."""
    best = family_of(table)
    return () if best is None else _apart(best, table)


def _apart(family: str, table: Table) -> tuple[str, ...]:
    """``family``, and those of its names whose rules for weights of ``table`` differ from its own."""
    names = {_NUMBER.sub("0", unwrapped(name)) for name in table}
    own = [name_map(family).rule_of(name) for name in names]
    others = (other for other in of_same_names(family) if other != family)
    return (family, *(other for other in others if [name_map(other).rule_of(name) for name in names] != own))


def assumed(source: Table, *, to: str | None, source_family: str | None, made: Table) -> Iterator[str]:
    """What ``plan_from_maps`` took for granted: families whose names others have too, in other layouts."""
    if to not in family_names():
        return
    read = families_of(source) if source_family is None else ()
    for family, *others in (one for one in (read, _apart(to, made)) if len(one) > 1):
        how, option = ("read as", "--from") if family != to else ("written as", "--to")
        if family == to and (family == _OWN_NAMES or _VERSION.search(family)):
            continue
        other = "; ".join(f"{name_map(one).versions}: {option} {one}" for one in others)
        yield f"{how} {family} ({name_map(family).versions}), whose names have other layouts too ({other})"


def plan_from_maps(
    source: Table,
    *,
    to: str,
    source_family: str | None = None,
    heads: Heads | None = None,
    whole: bool = True,
) -> ConversionPlan:
    """The plan that makes the weights of family ``to`` of ``source``.

    Args:
        source: names and shapes of what is there.
        to: a family of ``family_names()``.
        source_family: its family; by default the one that reads most of it.
        heads: attention heads; wanted where a layout of either side depends on them.
        whole: a weight that one map cannot read or the other has no place for is an error; else it is
            listed in ``only_source``, with the buffers that models compute themselves.

    Raises:
        ConfigError: no family fits, a weight is left over, shapes that do not fit, unknown heads.
    """
    target_rules = name_map(to)
    family = source_family or family_of(source)
    if family is None:
        some = ", ".join(list(source)[:3])
        raise ConfigError(
            f"no naming map reads these weights ({some}, ...); say which with --from "
            f"({', '.join(family_names())}), give a plan with --plan, or a target with --like"
        )
    rules, heads = name_map(family), heads or Heads()
    plain = _read(source, rules, heads)
    entries, used = _written(plain, target_rules, heads)
    unwritten = dict.fromkeys(piece.source for name, piece in plain.pieces.items() if name not in used)
    unread = [name for name in plain.unread if not rules.ignores(unwrapped(name))]
    if whole and unread:
        raise ConfigError(f"the map {family} has no rule for {_some(unread)}; is it another family (--from)?")
    if whole and unwritten:
        raise ConfigError(f"the map {to} has no place for {_some(list(unwritten))}")
    if not entries:
        raise ConfigError(f"nothing of {family} can be converted to {to}")
    return ConversionPlan(entries=tuple(entries), only_source=(*plain.unread, *unwritten))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _read(source: Table, rules: NameMap, heads: Heads) -> _Plain:
    plain = _Plain()
    bare = {unwrapped(name): info.shape for name, info in source.items()}
    for name, info in source.items():
        found = rules.rule_of(unwrapped(name))
        if found is None:
            plain.unread.append(name)
            continue
        rule, values = found
        parts = _parts_of(rule, values, info.shape, bare)
        query = rule.heads == "query"
        steps = taken_apart(rule.layout, info.shape, len(parts), heads, query=query, name=name)
        for part, moving in zip(parts, steps, strict=True):
            if part in plain.pieces:
                raise ConfigError(f"{plain.pieces[part].source} and {name} are both {part}")
            plain.pieces[part] = SourcePiece(source=name, steps=moving)
            plain.shapes[part] = moved_shape(info.shape, moving)
    return plain


def _parts_of(rule: NameRule, values: dict[str, str], shape: Shape, bare: dict[str, Shape]) -> list[str]:
    """Names of the plain weights in a stored one, in its order."""
    if rule.layout == "stacked":
        experts = range(shape[0] if shape else 0)
        return [filled(part, values | {"expert": str(expert)}) for expert in experts for part in rule.parts]
    parts = [filled(part, values) for part in rule.parts]
    if rule.gated_by is not None:
        behind = bare.get(filled(rule.gated_by, values))
        if behind is not None and shape and len(behind) == 2 and behind[1] == shape[0]:
            return parts[-1:]
    return parts


def _written(plain: _Plain, rules: NameMap, heads: Heads) -> tuple[list[PlannedWeight], set[str]]:
    entries: dict[str, PlannedWeight] = {}
    used: set[str] = set()
    for part in plain.pieces:
        if part in used:
            continue
        for rule, values in _rules_with(part, rules):
            parts = _parts_there(rule, values, plain)
            if parts and not used.intersection(parts):
                name = filled(rule.name, values)
                entries[name] = _entry(name, rule, parts, plain, heads)
                used.update(parts)
                break
    return list(entries.values()), used


def _rules_with(part: str, rules: NameMap) -> Iterator[tuple[NameRule, dict[str, str]]]:
    """Rules of a family that hold the plain weight ``part``."""
    for rule in rules.rules:
        for pattern in rule.parts:
            if (values := matched(pattern, part)) is not None:
                yield rule, values
                break


def _parts_there(rule: NameRule, values: dict[str, str], plain: _Plain) -> list[str]:
    """The plain weights a stored one is to hold; empty where one is missing or the rule does not hold."""
    if rule.unless is not None and filled(rule.unless, values) in plain.pieces:
        return []
    if rule.layout == "stacked":
        parts: list[str] = []
        for expert in range(len(plain.pieces)):
            some = [filled(part, values | {"expert": str(expert)}) for part in rule.parts]
            if not all(part in plain.pieces for part in some):
                break
            parts += some
        return parts
    parts = [filled(part, values) for part in rule.parts]
    if rule.gated_by is not None and parts[0] not in plain.pieces:
        parts = parts[-1:]
    return parts if all(part in plain.pieces for part in parts) else []


def _entry(name: str, rule: NameRule, parts: list[str], plain: _Plain, heads: Heads) -> PlannedWeight:
    shapes = [plain.shapes[part] for part in parts]
    if rule.layout == "stacked":
        how: Joining = stacked_together(shapes, len(parts) // len(rule.parts))
    else:
        how = put_together(rule.layout, shapes, heads, query=rule.heads == "query", name=name)
    pieces = tuple(
        SourcePiece(source=plain.pieces[part].source, steps=(*plain.pieces[part].steps, *steps))
        for part, steps in zip(parts, how.pieces, strict=True)
    )
    return PlannedWeight(target=name, pieces=pieces, join=how.join, dim=how.dim, steps=how.steps, how="map")
