"""How a stored weight holds the plain ones it is made of, as moving steps in both directions.

Plain weights are (out features, in features), one a projection and expert, and q and k have their rotary
halves apart, as Hugging Face's Llama has them. H are the query heads, G the key/value heads (query groups), d
the head size, r = H / G.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from trueup.errors import ConfigError
from trueup.weights.plan import MovingStep, Permute, Reshape, Slice
from trueup.weights.shapes import Shape

Steps = tuple[MovingStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Attention heads of a model; None where it is not known."""

    num_heads: int | None = None
    num_kv_heads: int | None = None

    def both(self, why: str) -> tuple[int, int]:
        """H and G; G is H where only H is known.

        Raises:
            ConfigError: not known.
        """
        if self.num_heads is None:
            raise ConfigError(
                f"{why} depends on the number of attention heads; add --num-heads (and --num-kv-heads where "
                "they differ), or put the model's config.json beside the weights"
            )
        groups = self.num_kv_heads or self.num_heads
        if self.num_heads % groups:
            raise ConfigError(f"{self.num_heads} attention heads do not divide into {groups} key/value heads")
        return self.num_heads, groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """How plain weights become a stored one: steps of each, the join, and steps of the whole."""

    pieces: tuple[Steps, ...]
    join: str | None = None
    dim: int = 0
    steps: Steps = ()


Layout = Literal[
    "same",
    "concat",
    "concat_qkv",
    "concat_transposed",
    "grouped_qkv",
    "interleaved_rotary",
    "interleaved_rows",
    "stacked",
]


def taken_apart(layout: str, shape: Shape, num: int, heads: Heads, *, query: bool, name: str) -> list[Steps]:
    """For each of the ``num`` plain weights in a stored one, the steps that take it out: at most one slice.

    Args:
        layout: a ``Layout``.
        shape: of the stored weight.
        heads: of the model, where the layout depends on them.
        query: of ``interleaved_rotary``: whether it is q, with H heads, or k, with G.
        name: of the stored weight, for errors.

    Raises:
        ConfigError: the shape does not fit the layout, or heads are not known.
    """
    if layout == "same" or (layout == "interleaved_rows" and num == 1):
        return [()]
    if layout == "interleaved_rotary":
        count = heads.both(name)[0 if query else 1]
        return [_swapped_pairs(shape, (count, -1, 2), name)]
    if layout == "interleaved_rows":
        return _every_other(shape, num, name)
    if layout == "stacked":
        return _unstacked(shape, num, name)
    if layout == "grouped_qkv":
        return _ungrouped(shape, heads.both(name), name)
    turned = layout == "concat_transposed" and len(shape) == 2
    rows = shape[-1] if turned else _rows(shape, name)
    shares = _qkv_shares(heads.both(name)) if layout == "concat_qkv" else [1] * num
    before: Steps = (Permute(dims=(1, 0)),) if turned else ()
    if num == 1:
        return [before]
    return [(*before, cut) for cut in _cuts(rows, shares, name)]


def put_together(layout: str, shapes: Sequence[Shape], heads: Heads, *, query: bool, name: str) -> Joining:
    """How plain weights of ``shapes`` become the stored one; the inverse of ``taken_apart``.

    Raises:
        ConfigError: the shapes do not fit the layout, or heads are not known.
    """
    pieces: tuple[Steps, ...] = ((),) * len(shapes)
    join = "concat" if len(shapes) > 1 else None
    if layout == "interleaved_rotary":
        count = heads.both(name)[0 if query else 1]
        return Joining(pieces=(_swapped_pairs(shapes[0], (count, 2, -1), name),))
    if layout == "grouped_qkv":
        return _grouped(shapes, heads.both(name)[1], name)
    if layout == "interleaved_rows" and len(shapes) > 1:
        return _by_rows(shapes, name)
    if layout == "concat_transposed" and len(shapes[0]) == 2:
        return Joining(pieces=pieces, join=join, steps=(Permute(dims=(1, 0)),))
    return Joining(pieces=pieces, join=join)


def stacked_together(shapes: Sequence[Shape], num_experts: int) -> Joining:
    """Experts one above the other: (experts, rows of an expert's parts, ...)."""
    rows = sum(shape[0] for shape in shapes)
    whole = Reshape(shape=(num_experts, rows // num_experts, *shapes[0][1:]))
    return Joining(pieces=((),) * len(shapes), join="concat" if len(shapes) > 1 else None, steps=(whole,))


def _rows(shape: Shape, name: str) -> int:
    if not shape:
        raise ConfigError(f"{name} is a scalar; it cannot hold several weights")
    return shape[0]


def _cuts(rows: int, shares: Sequence[int], name: str) -> list[Slice]:
    """Slices of dimension 0 in proportion to ``shares``."""
    if rows % sum(shares):
        raise ConfigError(f"{name}: {rows} rows do not divide into parts of {':'.join(map(str, shares))}")
    unit, at, cuts = rows // sum(shares), 0, []
    for share in shares:
        cuts.append(Slice(dim=0, start=at, stop=at + share * unit))
        at += share * unit
    return cuts


def _qkv_shares(heads: tuple[int, int]) -> list[int]:
    return [heads[0], heads[1], heads[1]]


def _unstacked(shape: Shape, num: int, name: str) -> list[Steps]:
    """(E, k rows, ...) as E k plain weights, expert by expert."""
    if len(shape) < 2 or shape[1] % (num // shape[0] if shape[0] else 1):
        raise ConfigError(f"{name} of shape {shape} is no stack of experts")
    flat = (shape[0] * shape[1], *shape[2:])
    return [(Reshape(shape=flat), cut) for cut in _cuts(flat[0], [1] * num, name)]


def _ungrouped(shape: Shape, heads: tuple[int, int], name: str) -> list[Steps]:
    """(G (r + 2) d, ...) as q (H d, ...), k and v (G d, ...)."""
    num, groups = heads
    rows, rest = _rows(shape, name), shape[1:]
    if rows % (num + 2 * groups):
        raise ConfigError(
            f"{name}: {rows} rows are not heads of one size for {num} query and {groups} key/value heads"
        )
    size, ratio = rows // (num + 2 * groups), num // groups
    grouped = Reshape(shape=(groups, (ratio + 2) * size, *rest))
    ends = (0, ratio * size, (ratio + 1) * size, (ratio + 2) * size)
    return [
        (grouped, Slice(dim=1, start=start, stop=stop), Reshape(shape=(groups * (stop - start), *rest)))
        for start, stop in pairwise(ends)
    ]


def _grouped(shapes: Sequence[Shape], groups: int, name: str) -> Joining:
    for shape in shapes:
        if not shape or shape[0] % groups:
            raise ConfigError(f"{name}: a part of shape {shape} does not divide into {groups} query groups")
    rows, rest = sum(shape[0] for shape in shapes), shapes[0][1:]
    return Joining(
        pieces=tuple((Reshape(shape=(groups, shape[0] // groups, *rest)),) for shape in shapes),
        join="concat",
        dim=1,
        steps=(Reshape(shape=(rows, *rest)),),
    )


def _every_other(shape: Shape, num: int, name: str) -> list[Steps]:
    """(k rows, ...) as k weights (rows, ...), of which one row each follow another."""
    if _rows(shape, name) % num:
        raise ConfigError(f"{name}: {shape[0]} rows do not divide into {num} weights row by row")
    rows, rest = shape[0] // num, shape[1:]
    seen = Reshape(shape=(rows, num, *rest))
    return [(seen, Slice(dim=1, start=at, stop=at + 1), Reshape(shape=(rows, *rest))) for at in range(num)]


def _by_rows(shapes: Sequence[Shape], name: str) -> Joining:
    if len(set(shapes)) != 1:
        raise ConfigError(f"{name}: weights of shapes {', '.join(map(str, shapes))} cannot lie row by row")
    rows, rest = _rows(shapes[0], name), shapes[0][1:]
    return Joining(
        pieces=((Reshape(shape=(rows, 1, *rest)),),) * len(shapes),
        join="concat",
        dim=1,
        steps=(Reshape(shape=(rows * len(shapes), *rest)),),
    )


def _swapped_pairs(shape: Shape, head: tuple[int, int, int], name: str) -> Steps:
    """Rows of each head seen as ``head`` (heads, then the two dimensions of the pairs), those exchanged."""
    count, rest = head[0], shape[1:]
    if not shape or shape[0] % (2 * count):
        raise ConfigError(f"{name} of shape {shape} has no pairs of rows in each of {count} heads")
    half = shape[0] // (2 * count)
    seen = tuple(half if length == -1 else length for length in head)
    dims = (0, 2, 1, *range(3, 3 + len(rest)))
    return (Reshape(shape=(*seen, *rest)), Permute(dims=dims), Reshape(shape=shape))
