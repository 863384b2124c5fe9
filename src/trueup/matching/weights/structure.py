"""Weights of a port that was never converted, paired by layers and shapes alone: a plan to be edited.

Neither values nor known names help here, so every entry is a proposal (``how: structure``); a conversion
stops and leaves the plan to a person. Layers are paired in order; in a layer a weight goes to the only one of
its shape (or of the shape transposed), a fused one is put together of those whose rows add up to its own, and
the rest of equal shapes is paired by likeness of name. In which layout a fused weight holds its parts its
name tells, or leaves open (``fused.py``); for groups of heads the number of attention heads must be known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from itertools import accumulate, combinations, pairwise

from trueup.matching.weights.fused import Arrangement, arrangements
from trueup.matching.weights.table import WeightTable
from trueup.weights.converting import PROPOSED
from trueup.weights.layouts import Steps, put_together, taken_apart
from trueup.weights.plan import Permute, PlannedWeight, Slice, SourcePiece

ONLY_ONE, ONE_OF_SEVERAL = 0.5, 0.3
"""confidence of the only weight of its shape in a layer, and of one chosen among several"""
_NUMBER = re.compile(r"\d+")
_ROLES = (("q", "k", "v"), ("query", "key", "value"), ("k", "v"), ("gate", "up"), ("w1", "w3"))
"""what is fused, in its usual order"""
_USES = tuple(
    (use, re.compile(pattern))
    for use, pattern in (
        ("query", r"((w|to|linear)?_?)(q|query)(_?(proj|lin|linear))?"),
        ("key", r"((w|to|linear)?_?)(k|key)(_?(proj|lin|linear))?"),
        ("value", r"((w|to|linear)?_?)(v|value)(_?(proj|lin|linear))?"),
        ("embedding", r"tok|tokens?|wte|table|(\w+_)?emb(ed\w*)?"),
        (
            "output",
            r"w?o|(w|o|to|c|attn|attention)?_?(out|output|proj)(_?(proj|layer))?|dense|(lm_?)?head|unembed",
        ),
        ("gate", r"w_?gate|gate(_?proj)?|w1"),
        ("up", r"w_?up|up(_?proj)?|w3"),
        ("down", r"w_?down|down(_?proj)?|w2"),
        ("first norm", r"(n|ln|norm)_?1|input_(layer)?norm|attention_norm|attn_norm"),
        ("second norm", r"(n|ln|norm)_?2|post_attention_(layer)?norm|ffn_norm|mlp_norm|pre_mlp_(layer)?norm"),
    )
)
"""use of a weight -> what families of models call it (w1, w3, w2 as Llama and Mixtral have them)"""
_MOST_FUSED = 3
_MOST_LEFT = 40
"""weights of a layer among which sums of rows are looked for: costs time"""

Shape = tuple[int, ...]
_LayoutOf = Callable[[str, Sequence[str], Sequence[Shape]], Arrangement]


@dataclass(slots=True)
class _Layer:
    """What is left of one layer on both sides, by name."""

    targets: dict[str, Shape]
    sources: dict[str, Shape]

    def take(self, target: str, *sources: str) -> None:
        """These are paired."""
        self.targets.pop(target, None)
        for source in sources:
            self.sources.pop(source, None)


def by_structure(
    target: WeightTable,
    source: WeightTable,
    left_target: Sequence[str],
    left_source: Sequence[str],
    *,
    num_heads: int | None = None,
    second: bool = False,
) -> list[PlannedWeight]:
    """Proposals for the weights that are left on both sides; none where the numbers of layers differ.

    Args:
        num_heads: attention heads (of the queries), where they are known.
        second: take the less likely layout of a fused weight whose name leaves it open.

    Raises:
        ConfigError: a fused weight lies by groups of heads, and their number is not known, or does not fit.
    """
    target_layers = _layers(left_target, target)
    source_layers = _layers(left_source, source)
    if len(target_layers) != len(source_layers):
        return []
    found: list[PlannedWeight] = []
    for own, other in zip(target_layers, source_layers, strict=True):
        layer = _Layer(targets=dict(own), sources=dict(other))
        layout = partial(_layout, num_heads=num_heads, second=second)
        fused, split = partial(_fused, layout=layout), partial(_split, layout=layout)
        for step in (_only_ones, fused, split, _only_ones, _alike):
            found += list(step(layer))
    return found


def _layers(names: Sequence[str], table: WeightTable) -> list[dict[str, Shape]]:
    """Names with their shapes: those without a number, then layer by layer."""
    groups: dict[int, dict[str, Shape]] = {-1: {}}
    for name in sorted(names, key=_natural):
        number = _NUMBER.search(name.rpartition(".")[0])
        groups.setdefault(int(number[0]) if number else -1, {})[name] = tuple(table.facts(name).shape)
    return [groups[number] for number in sorted(groups)]


def _natural(name: str) -> list[tuple[int, int | str]]:
    return [(0, int(word)) if word.isdigit() else (1, word) for word in re.split(r"(\d+)", name)]


def _one(target: str, source: str, layer: _Layer, confidence: float) -> PlannedWeight:
    turned = layer.targets[target] != layer.sources[source]
    piece = SourcePiece(source=source, steps=(Permute(dims=(1, 0)),) if turned else ())
    return PlannedWeight(target=target, pieces=(piece,), how=PROPOSED, confidence=confidence)


def _fits(one: Shape, other: Shape) -> bool:
    return one == other or (len(one) == 2 and one == other[::-1])


def _only_ones(layer: _Layer) -> Iterator[PlannedWeight]:
    for name, shape in list(layer.targets.items()):
        alike = [other for other, its in layer.targets.items() if _fits(shape, its)]
        there = [other for other, its in layer.sources.items() if _fits(shape, its)]
        if len(alike) == len(there) == 1:
            yield _one(name, there[0], layer, ONLY_ONE)
            layer.take(name, there[0])


def _fused(layer: _Layer, *, layout: _LayoutOf) -> Iterator[PlannedWeight]:
    """A target put together of sources."""
    for name, shape in list(layer.targets.items()):
        if any(_fits(shape, its) for its in layer.sources.values()):
            continue
        parts = _parts(shape, layer.sources)
        if parts:
            shapes = [layer.sources[part] for part in parts]
            found = layout(name, parts, shapes)
            joining = put_together(found.layout, shapes, found.heads, query=False, name=name)
            yield PlannedWeight(
                target=name,
                pieces=tuple(
                    SourcePiece(source=part, steps=steps)
                    for part, steps in zip(parts, joining.pieces, strict=True)
                ),
                join="concat",
                dim=joining.dim,
                steps=joining.steps,
                how=PROPOSED,
                confidence=ONE_OF_SEVERAL,
            )
            layer.take(name, *parts)


def _layout(
    name: str, parts: Sequence[str], shapes: Sequence[Shape], *, num_heads: int | None, second: bool
) -> Arrangement:
    """How ``parts`` lie in ``name``."""
    attention = len(parts) == len(_ROLES[0]) and _roles_of(parts) is not None
    found = arrangements(name, parts, shapes, attention=attention, num_heads=num_heads)
    return found[-1 if second else 0]


def _split(layer: _Layer, *, layout: _LayoutOf) -> Iterator[PlannedWeight]:
    """Targets that are rows of one source."""
    for name, shape in list(layer.sources.items()):
        if any(_fits(shape, its) for its in layer.targets.values()):
            continue
        parts = _parts(shape, layer.targets)
        shapes = [layer.targets[part] for part in parts]
        for part, steps in zip(parts, _cut(name, shape, parts, shapes, layout), strict=True):
            piece = SourcePiece(source=name, steps=steps)
            yield PlannedWeight(target=part, pieces=(piece,), how=PROPOSED, confidence=ONE_OF_SEVERAL)
            layer.take(part, name)


def _cut(
    name: str, shape: Shape, parts: Sequence[str], shapes: Sequence[Shape], layout: _LayoutOf
) -> list[Steps]:
    """What takes each of ``parts`` out of ``name``."""
    if not parts:
        return []
    found = layout(name, parts, shapes)
    if found.layout != "concat":
        return taken_apart(found.layout, shape, len(parts), found.heads, query=False, name=name)
    ends = list(accumulate((one[0] for one in shapes), initial=0))
    return [(Slice(dim=0, start=start, stop=stop),) for start, stop in pairwise(ends)]


def _parts(shape: Shape, there: dict[str, Shape]) -> tuple[str, ...]:
    """Those whose rows add up to ``shape``, in their usual order; none where two choices are as good."""
    fitting = [name for name, its in there.items() if its and its[1:] == shape[1:] and its[0] < shape[0]]
    if not shape or len(fitting) > _MOST_LEFT:
        return ()
    sums = [
        chosen
        for count in range(2, _MOST_FUSED + 1)
        for chosen in combinations(fitting, count)
        if sum(there[name][0] for name in chosen) == shape[0]
    ]
    ranked = sorted(sums, key=_rank, reverse=True)
    if not ranked or (len(ranked) > 1 and _rank(ranked[0]) == _rank(ranked[1])):
        return ()
    return _in_usual_order(ranked[0])


def _rank(names: Sequence[str]) -> tuple[bool, bool]:
    parents = {name.rpartition(".")[0].rpartition(".")[0] for name in names}
    return _roles_of(names) is not None, len(parents) == 1


def _roles_of(names: Sequence[str]) -> dict[str, int] | None:
    """Place of each name in a set of roles that they are, all of it; None where they are no such set."""
    for roles in _ROLES:
        places = {name: at for name in names for at, role in enumerate(roles) if _has(name, role)}
        if len(roles) == len(names) == len(set(places.values())):
            return places
    return None


def _has(name: str, role: str) -> bool:
    return re.search(rf"(^|[._]|w){role}($|[._]|proj|_?lin)", name.lower()) is not None


def _in_usual_order(names: Sequence[str]) -> tuple[str, ...]:
    roles = _roles_of(names)
    order: Callable[[str], int] = (lambda name: roles[name]) if roles is not None else names.index
    return tuple(sorted(names, key=order))


def _alike(layer: _Layer) -> Iterator[PlannedWeight]:
    """What is left of equal shapes, nearest names first; none where the numbers of them differ."""
    for name, shape in list(layer.targets.items()):
        if name not in layer.targets:
            continue
        target_names = [other for other, its in layer.targets.items() if _fits(shape, its)]
        source_names = [other for other, its in layer.sources.items() if _fits(shape, its)]
        if len(target_names) != len(source_names):
            continue
        while target_names:
            one, other = max(
                ((a, b) for a in target_names for b in source_names),
                key=_likeness,
            )
            yield _one(one, other, layer, ONE_OF_SEVERAL)
            layer.take(one, other)
            target_names.remove(one)
            source_names.remove(other)


def _likeness(pair: tuple[str, str]) -> tuple[bool, int, float]:
    """Weight with weight and bias with bias, then what the field's words say of both, then the letters."""
    one, other = pair
    uses = _use_of(one), _use_of(other)
    use = 0 if None in uses else 1 if uses[0] == uses[1] else -1
    letters = SequenceMatcher(None, _own_words(one), _own_words(other)).ratio()
    return _is_bias(one) == _is_bias(other), use, letters


def _is_bias(name: str) -> bool:
    return name.rpartition(".")[2].lower() in ("bias", "beta", "b")


def _use_of(name: str) -> str | None:
    """What a weight is for, by the last word of its name that says it."""
    words = reversed(name.lower().split("."))
    return next((use for word in words for use, means in _USES if means.fullmatch(word)), None)


def _own_words(name: str) -> str:
    return ".".join(name.split(".")[-3:])
