"""Weights at the start, rank by rank, and what the parts of several ranks together are of the reference's."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from itertools import permutations

import polars as pl

from trueup.diagnosing.stages.context import Context, is_beyond, is_compared
from trueup.diagnosing.stages.weight_change import WeightChange, change_of, held_whole, joined
from trueup.diagnosing.whose import axis_that_parts
from trueup.store import StepView
from trueup.store.view import WEIGHT
from trueup.types.codes import WeightsCode as Weights
from trueup.types.layout import Layout
from trueup.types.placement import Shard
from trueup.types.reason import Reason, reason

Apart = tuple[str, str, WeightChange]
"""target's name, reference's, how they differ"""


@dataclass(slots=True)
class Sorted:
    """Weights by how they compare; names are the target's."""

    equal: list[str] = field(default_factory=list)
    """bit-identical"""
    rounded: dict[str, tuple[str, str]] = field(default_factory=dict)
    """agree within the rounding of their dtypes, those of the target and of the reference"""
    apart: list[Apart] = field(default_factory=list)
    open: list[Reason] = field(default_factory=list)
    """why they could not be compared"""


def sorted_out(
    target: StepView, reference: StepView, pairs: list[tuple[str, str]], within: Container[str]
) -> Sorted:
    """Weights of one rank; ``within``: those of other dtypes that the comparison found to agree, which
    decides where values were not stored."""
    found = Sorted()
    for fqn, other in pairs:
        a, b = target.parameter(fqn, *WEIGHT), reference.parameter(other, *WEIGHT)
        digests = target.digest(a), reference.digest(b)
        if None in digests:
            found.open.append(reason(Weights.NO_DIGEST, parameter=fqn))
            continue
        dtypes = str(target.dtype(a)), str(reference.dtype(b))
        if digests[0] == digests[1] and dtypes[0] == dtypes[1]:
            found.equal.append(fqn)
            continue
        values = target.value(a), reference.value(b)
        change = change_of(*values, *dtypes)
        if change is None or (any(one is None for one in values) and fqn in within):
            found.rounded[fqn] = dtypes
        else:
            found.apart.append((fqn, other, change))
    found.apart = [_of_another(one, target, reference) for one in found.apart]
    return found


def _of_another(one: Apart, target: StepView, reference: StepView) -> Apart:
    """The same, or that the weight holds bit for bit what one other weight of the reference holds; of one
    number everywhere, as norms begin with, nobody can tell whose it is."""
    fqn, other, change = one
    if change.name == "constant" or target.is_one_number(target.parameter(fqn, *WEIGHT)):
        return one
    own, other_digest = _digest(target, fqn), _digest(reference, other)
    held = [name for name in reference.parameters if _digest(reference, name) == own]
    if len(held) != 1 or held[0] == other:
        return one
    mutual = held[0] in target.parameters and _digest(target, held[0]) == other_digest
    held_by = reason(Weights.OF_ANOTHER, parameter=held[0])
    name = "exchanged" if mutual else "of_another"
    return fqn, other, WeightChange(name=name, kind="transposed_or_permuted", evidence=held_by)


def _digest(book: StepView, fqn: str) -> int | None:
    return book.digest(book.parameter(fqn, *WEIGHT))


@dataclass(frozen=True, slots=True)
class Whose:
    """The processes that a weight which differs is about."""

    axis: str | None = None
    ranks: tuple[int, ...] = ()


# In one piece: one way to differ after another, of each weight and its ranks.
def over_ranks(known: Sorted, context: Context) -> dict[str, Whose]:
    """Adds to what the first rank showed what all others do; which ranks each of them is about, and where
    several differ, whether their parts together are the reference's in another order."""
    by_rank: dict[str, dict[int, Apart]] = {one[0]: {context.ranks[0]: one} for one in known.apart}
    for rank in context.ranks[1:]:
        target, reference = context.pair(0, rank)
        named = ((fqn, context.matched.get(fqn, fqn)) for fqn in target.parameters)
        pairs = [(fqn, other) for fqn, other in named if reference.parameter(other, *WEIGHT) is not None]
        for one in sorted_out(target, reference, pairs, context.rounded_weights).apart:
            by_rank.setdefault(one[0], {})[rank] = one
    found, whose, held = [], {}, []
    for fqn, of_rank in by_rank.items():
        one = next(iter(of_rank.values()))
        axis, change = _laid_out(one, context) if len(of_rank) > 1 else (None, None)
        if change is not None and change.name in _WHOLE and _makes_the_same(fqn, context):
            held.append(fqn)  # gathered where they are used
            continue
        if one[2].evidence.code is Weights.NOT_STORED and _is_cut_in_one(one, context):
            known.open.append(reason(Weights.CUT_IN_ONE, parameter=fqn))
            continue
        ranks = () if axis or len(of_rank) == len(context.ranks) else tuple(of_rank)
        whose[fqn] = Whose(axis or axis_that_parts(ranks, context.ranks, context.mesh), ranks)
        found.append((*one[:2], change or _of_ranks(one, tuple(of_rank), ranks, context) or one[2]))
    known.equal = [fqn for fqn in known.equal if fqn not in by_rank] + held
    known.apart = found
    return whose


def _is_cut_in_one(one: Apart, context: Context) -> bool:
    """Whether each rank of one run alone holds a part of a weight: the parts of all ranks along an axis are,
    along one dimension, together as long as what each rank of the other run holds. Digests of a part and of a
    whole differ whatever they hold."""
    for axis in context.mesh.wide_axes:
        books = [context.pair(0, rank) for rank in context.mesh.group(context.ranks[0], [axis])]
        names = one[0], one[1]
        shapes = [
            [tuple(book[side].shape(book[side].parameter(names[side], *WEIGHT)) or ()) for book in books]
            for side in (0, 1)
        ]
        if any(_are_parts(parts, whole) for parts, whole in permutations(shapes)):
            return True
    return False


def _are_parts(parts: list[tuple[int, ...]], whole: list[tuple[int, ...]]) -> bool:
    """Whether shapes are those of parts of one tensor, which each of the others is."""
    if len(set(whole)) != 1 or any(len(part) != len(whole[0]) for part in parts):
        return False
    return any(
        all(part[:dim] + part[dim + 1 :] == whole[0][:dim] + whole[0][dim + 1 :] for part in parts)
        and sum(part[dim] for part in parts) == size
        for dim, size in enumerate(whole[0])
    )


def _makes_the_same(fqn: str, context: Context) -> bool:
    """Whether the module of a weight, and all of the forward pass, makes the same numbers in both runs."""
    rows = context.of_phases("forward", "loss")
    own = (pl.col("name") == fqn.rpartition(".")[0]) & pl.col("slot").str.starts_with("output")
    return not rows.filter(own & is_compared()).is_empty() and rows.filter(is_beyond()).is_empty()


_WHOLE = ("whole_in_target", "whole_in_reference")


def _of_ranks(
    one: Apart, apart: tuple[int, ...], ranks: tuple[int, ...], context: Context
) -> WeightChange | None:
    return _part_of_another_rank(one, apart, context) or _own_of_ranks(one, ranks, context)


def _part_of_another_rank(one: Apart, apart: tuple[int, ...], context: Context) -> WeightChange | None:
    """That each of the ranks holds what one other rank of the reference holds of this weight, bit for bit,
    and the reference's ranks all hold other parts."""
    if one[2].name not in _DRAWN:
        return None
    books = {rank: context.pair(0, rank) for rank in context.ranks}
    held = {rank: _digest(other, one[1]) for rank, (_, other) in books.items()}
    if None in held.values() or len(set(held.values())) < len(held):
        return None
    whose = {digest: rank for rank, digest in held.items()}
    taken = [whose.get(_digest(books[rank][0], one[0])) for rank in apart]
    if None in taken:
        return None
    parts = {"ranks": [str(rank) for rank in apart], "others": [str(rank) for rank in taken]}
    evidence = reason(Weights.PART_OF_ANOTHER_RANK, **parts)
    return WeightChange(name="part_of_another_rank", kind="transposed_or_permuted", evidence=evidence)


def _own_of_ranks(one: Apart, ranks: tuple[int, ...], context: Context) -> WeightChange | None:
    """That the ranks hold values of their own, drawn otherwise, where the reference's all hold the same."""
    if not ranks or one[2].name not in _DRAWN:
        return None
    books = [context.pair(0, rank) for rank in context.ranks]
    names = one[0], one[1]
    held = [{_digest(book[side], names[side]) for book in books} for side in (0, 1)]
    if len(held[1]) != 1 or None in held[1] or not held[1] < held[0]:
        return None
    evidence = reason(Weights.OWN_OF_RANKS, ranks=[str(rank) for rank in ranks])
    return WeightChange(name="own_of_ranks", kind="randomness", evidence=evidence)


_DRAWN = ("other_draw", "other_init", "related", "near")
"""ways to differ of values that were drawn, or trained, otherwise"""


def cut_along(apart: list[Apart], layout: Layout) -> dict[str, Whose]:
    """Of weights put together from ranks that are the reference's in another order: the only axis along which
    they are cut."""
    found = {}
    for fqn, _, change in apart:
        placed = layout.of_parameter(fqn, "param", "value").placements
        axes = [axis for axis in layout.wide_axes if isinstance(placed.get(axis), Shard)]
        if change.kind == "transposed_or_permuted" and len(axes) == 1:
            found[fqn] = Whose(axes[0])
    return found


def _laid_out(one: Apart, context: Context) -> tuple[str | None, WeightChange | None]:
    """The axis along which the ranks' parts, put together, are the reference's in another order, or are what
    each rank of the other run holds."""
    for axis in context.mesh.wide_axes:
        group = context.mesh.group(context.ranks[0], [axis])
        books = [context.pair(0, rank) for rank in group]
        target = [book.value(book.parameter(one[0], *WEIGHT)) for book, _ in books]
        reference = [book.value(book.parameter(one[1], *WEIGHT)) for _, book in books]
        change = held_whole(target, reference)
        if change is not None:
            return axis, change
        for dim in range(target[0].ndim if target[0] is not None else 0):
            whole, other = joined(target, dim), joined(reference, dim)
            if whole is None or other is None:
                continue
            dtype = books[0][0].dtype(books[0][0].parameter(one[0], *WEIGHT))
            change = change_of(whole, other, dtype, dtype)
            if change is not None and change.kind == "transposed_or_permuted":
                return axis, change
    return None, None
