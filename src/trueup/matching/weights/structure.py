"""Weights of a port that was never converted, paired by layers and shapes alone: a plan to be edited.

Neither values nor known names help here, so every entry is a proposal (``how: structure``); a conversion
stops and leaves the plan to a person. What stands at the same place of each layer is one kind (``kinds.py``),
and kinds are paired: one goes to the only one of its shape (or of the shape transposed), a fused one is put
together of those whose rows add up to its own, and the rest of equal shapes is paired by likeness of name. In
which layout a fused weight holds its parts its name tells, or leaves open (``fused.py``); for groups of heads
the number of attention heads must be known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import partial
from itertools import accumulate, combinations, pairwise

from trueup.matching.weights.fused import Arrangement, arrangements
from trueup.matching.weights.kinds import Place, WeightKind, fits, kinds_of, with_stacks_apart
from trueup.matching.weights.table import WeightTable
from trueup.matching.weights.uses import uses_of
from trueup.weights.converting import PROPOSED, is_vocabulary
from trueup.weights.layouts import Steps, put_together, taken_apart
from trueup.weights.plan import Permute, PlannedWeight, Reshape, Slice, SourcePiece

ONLY_ONE, ONE_OF_SEVERAL = 0.5, 0.3
"""confidence of the only weight of its shape in a layer, and of one chosen among several"""
_ROLES = (("q", "k", "v"), ("query", "key", "value"), ("k", "v"), ("gate", "up"), ("w1", "w3"))
"""what is fused, in its usual order"""
_KERNEL = "kernel"
"""what Flax and Keras call a matrix, which is (in, out)"""
_MOST_FUSED = 3
_MOST_LEFT = 40
"""weights of a layer among which sums of rows are looked for: costs time"""

Shape = tuple[int, ...]
_LayoutOf = Callable[[str, Sequence[str], Sequence[Shape]], Arrangement]
_TURN: Steps = (Permute(dims=(1, 0)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A kind of the target, and the kinds it is made of.

    ``steps`` are of each source, ``whole`` of what they are joined to along ``dim``; then the target is
    transposed, if it is ``turned``."""

    target: WeightKind
    sources: tuple[WeightKind, ...]
    steps: tuple[Steps, ...]
    dim: int = 0
    whole: Steps = ()
    turned: bool = False
    confidence: float

    @property
    def is_square(self) -> bool:
        """Whether its shape does not tell (out, in) from (in, out)."""
        return len(self.target.shape) == 2 and len(set(self.target.shape)) == 1

    @property
    def is_transposed(self) -> bool:
        """Whether one side is (in, out) and the other (out, in)."""
        return self.turned != any(steps[:1] == _TURN for steps in self.steps)

    @property
    def is_one(self) -> bool:
        """Whether it is one weight of one other, as it is or transposed."""
        return len(self.sources) == 1 and self.steps in ((_TURN,), ((),))


@dataclass(slots=True)
class _Left:
    """The kinds that are left of both sides, by the name of their first weight."""

    targets: dict[str, WeightKind]
    sources: dict[str, WeightKind]
    towers: frozenset[str]
    """first words of names, where a model has several parts with layers of their own"""
    uses: tuple[Mapping[str, str | None], Mapping[str, str | None]]
    """of the target's and the source's weights"""
    together: Counter[tuple[str, str]] = field(default_factory=Counter)
    """how often names of two towers were paired"""

    def take(self, target: str, *sources: str) -> None:
        """These are paired."""
        self.together.update(self._towers_of(target, source) for source in sources)
        self.targets.pop(target, None)
        for source in sources:
            self.sources.pop(source, None)

    def times_together(self, target: str, source: str) -> int:
        """How often weights of the same two towers were paired; 0 outside towers."""
        towers = self._towers_of(target, source)
        return self.together[towers] if self.towers.issuperset(towers) else 0

    def _towers_of(self, target: str, source: str) -> tuple[str, str]:
        return target.partition(".")[0], source.partition(".")[0]


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
    own, other = (
        kinds_of({name: tuple(table.facts(name).shape) for name in sorted(names, key=_natural)})
        for names, table in ((left_target, target), (left_source, source))
    )
    own, other = with_stacks_apart(own, other)
    if _most(own) != _most(other):
        return []
    left = _Left(
        targets={one.name: one for one in own},
        sources={one.name: one for one in other},
        uses=(uses_of(left_target), uses_of(left_source)),
        towers=_towers(own) | _towers(other) if _towers(own) and _towers(other) else frozenset(),
    )
    layout = partial(_layout, num_heads=num_heads, second=second)
    fused, split = partial(_fused, layout=layout), partial(_split, layout=layout)
    named = partial(_fused, layout=layout, named=True), partial(_split, layout=layout, named=True)
    pairs = [pair for step in (*named, _only_ones, fused, split, _only_ones, _alike) for pair in step(left)]
    shapes = {name: tuple(target.facts(name).shape) for name in left_target}
    return [entry for pair in _turned_alike(pairs) for entry in _entries(pair, shapes)]


def _most(kinds: Sequence[WeightKind]) -> int:
    """How many layers there are: as many weights as most kinds have, of those that have several."""
    counts = Counter(len(kind.places) for kind in kinds if len(kind.places) > 1)
    return max(counts, key=lambda count: (counts[count], -count), default=1)


def _towers(kinds: Sequence[WeightKind]) -> frozenset[str]:
    """First words of names with several layers, where there are several such words."""
    words = frozenset(kind.name.partition(".")[0] for kind in kinds if len(kind.places) > 1)
    return words if len(words) > 1 else frozenset()


def _natural(name: str) -> list[tuple[int, int | str]]:
    return [(0, int(word)) if word.isdigit() else (1, word) for word in re.split(r"(\d+)", name)]


def _one(target: WeightKind, source: WeightKind, confidence: float) -> _Pair:
    steps = _TURN if target.shape != source.shape else ()
    return _Pair(target=target, sources=(source,), steps=(steps,), confidence=confidence)


def _only_ones(left: _Left) -> Iterator[_Pair]:
    for kind in list(left.targets.values()):
        alike = [other for other in left.targets.values() if fits(kind.size, other.size)]
        there = [other for other in left.sources.values() if fits(kind.size, other.size)]
        if len(alike) == len(there) == 1:
            yield _one(kind, there[0], ONLY_ONE)
            left.take(kind.name, there[0].name)


def _fused(left: _Left, *, layout: _LayoutOf, named: bool = False) -> Iterator[_Pair]:
    """A target put together of sources; with ``named`` only where its name says of which."""
    for kind in list(left.targets.values()):
        if not named and any(fits(kind.size, its.size) for its in left.sources.values()):
            continue
        parts, whole_turned, parts_turned = _parts(kind, left.sources, named=named)
        if not parts:
            continue
        shapes = [_turned(part.shape, parts_turned) for part in parts]
        found = layout(kind.name, [part.name for part in parts], shapes)
        joining = put_together(found.layout, shapes, found.heads, query=False, name=kind.name)
        yield _Pair(
            target=kind,
            sources=parts,
            steps=tuple((*(_TURN if parts_turned else ()), *steps) for steps in joining.pieces),
            dim=joining.dim,
            whole=joining.steps,
            turned=whole_turned,
            confidence=ONE_OF_SEVERAL,
        )
        left.take(kind.name, *(part.name for part in parts))


def _layout(
    name: str, parts: Sequence[str], shapes: Sequence[Shape], *, num_heads: int | None, second: bool
) -> Arrangement:
    """How ``parts`` lie in ``name``."""
    attention = len(parts) == len(_ROLES[0]) and _roles_of(parts) is not None
    found = arrangements(name, parts, shapes, attention=attention, num_heads=num_heads)
    return found[-1 if second else 0]


def _split(left: _Left, *, layout: _LayoutOf, named: bool = False) -> Iterator[_Pair]:
    """Targets that are rows of one source."""
    for kind in list(left.sources.values()):
        if not named and any(fits(kind.size, its.size) for its in left.targets.values()):
            continue
        parts, whole_turned, parts_turned = _parts(kind, left.targets, named=named)
        shapes = [_turned(part.shape, parts_turned) for part in parts]
        cuts = _cut(kind.name, _turned(kind.shape, whole_turned), parts, shapes, layout)
        for part, steps in zip(parts, cuts, strict=True):
            whole = (*(_TURN if whole_turned else ()), *steps)
            yield _Pair(
                target=part,
                sources=(kind,),
                steps=(whole,),
                turned=parts_turned,
                confidence=ONE_OF_SEVERAL,
            )
            left.take(part.name, kind.name)


def _turned(shape: Shape, is_turned: bool) -> Shape:
    return shape[::-1] if is_turned else shape


def _cut(
    name: str, shape: Shape, parts: Sequence[WeightKind], shapes: Sequence[Shape], layout: _LayoutOf
) -> list[Steps]:
    """What takes each of ``parts`` out of ``name``."""
    if not parts:
        return []
    found = layout(name, [part.name for part in parts], shapes)
    if found.layout != "concat":
        return taken_apart(found.layout, shape, len(parts), found.heads, query=False, name=name)
    ends = list(accumulate((one[0] for one in shapes), initial=0))
    return [(Slice(dim=0, start=start, stop=stop),) for start, stop in pairwise(ends)]


def _parts(
    whole: WeightKind, there: Mapping[str, WeightKind], *, named: bool
) -> tuple[tuple[WeightKind, ...], bool, bool]:
    """Those whose rows add up to those of ``whole``, in their usual order; whether it, and whether they, are
    (in, out). None where two choices are as good."""
    as_many = [kind for kind in there.values() if len(kind.places) == len(whole.places)]
    if named:
        roles = _roles_in(whole.name)
        as_many = [kind for kind in as_many if any(_has(kind.name, role) for role in roles)]
    for whole_turned, parts_turned in ((False, False), (True, False), (False, True), (True, True)):
        shape = _turned(whole.shape, whole_turned)
        shapes = {kind.name: _turned(kind.shape, parts_turned) for kind in as_many}
        if (whole_turned or parts_turned) and len(shape) != 2:
            continue
        names = _adding_up(shape, shapes)
        if names and not (named and _roles_of(names) is None):
            return tuple(there[name] for name in names), whole_turned, parts_turned
    return (), False, False


def _roles_in(name: str) -> tuple[str, ...]:
    """What a weight holds by its name: ``wkv``, ``to_kv``, ``qkv_proj``, ``gate_up_proj``."""
    words = [word for word in re.split(r"[._]", name.lower()) if word not in ("weight", "bias", "proj")]
    joined = {words[-1].removeprefix("w"), "".join(words[-2:])} if words else set()
    return next((roles for roles in _ROLES if "".join(roles) in joined), ())


def _adding_up(shape: Shape, there: Mapping[str, Shape]) -> tuple[str, ...]:
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


def _alike(left: _Left) -> Iterator[_Pair]:
    """What is left of equal shapes, nearest names first; none where the numbers of them differ."""
    for kind in list(left.targets.values()):
        if kind.name not in left.targets:
            continue
        targets = [other for other in left.targets.values() if fits(kind.size, other.size)]
        sources = [other for other in left.sources.values() if fits(kind.size, other.size)]
        if len(targets) != len(sources):
            continue
        while targets:
            one, other = max(
                ((a, b) for a in targets for b in sources),
                key=lambda pair: _likeness((pair[0].name, pair[1].name), left),
            )
            yield _one(one, other, ONE_OF_SEVERAL)
            left.take(one.name, other.name)
            targets.remove(one)
            sources.remove(other)


def _turned_alike(pairs: Sequence[_Pair]) -> Iterator[_Pair]:
    """A square matrix is transposed where most others of its leaves (``kernel``, ``weight``) are, which their
    shapes tell, or where one side's leaf is that of a framework that keeps (in, out)."""
    votes: Counter[tuple[str, str]] = Counter()
    for pair in pairs:
        if len(pair.target.shape) == 2 and not pair.is_square and not is_vocabulary(pair.target.name):
            votes[_leaves(pair)] += 1 if pair.is_transposed else -1
    for pair in pairs:
        own, other = _leaves(pair)
        turned = votes[own, other] > 0 or (not votes[own, other] and (own == _KERNEL) != (other == _KERNEL))
        yield replace(pair, steps=(_TURN,)) if pair.is_one and pair.is_square and turned else pair


def _leaves(pair: _Pair) -> tuple[str, str]:
    own, other = (kind.name.rpartition(".")[2] for kind in (pair.target, pair.sources[0]))
    return own, other


def _entries(pair: _Pair, shapes: Mapping[str, Shape]) -> Iterator[PlannedWeight]:
    """One entry a stored weight of the target; none of a stack whose parts are no rows one after another."""
    for name, numbers in pair.target.by_name():
        pieces = tuple(
            SourcePiece(source=place.name, steps=(*_at(place, shapes_of), *steps))
            for number in numbers
            for kind, steps in zip(pair.sources, pair.steps, strict=True)
            for place, shapes_of in ((kind.places[number], kind.shape),)
        )
        whole, turn = pair.whole, _TURN if pair.turned else ()
        if pair.target.places[numbers[0]].at:
            if pair.dim or whole:
                return
            one = _turned(pair.target.shape, pair.turned)
            stacked = (Reshape(shape=(len(numbers), *one)),)
            turn = (Permute(dims=(0, 2, 1)),) if pair.turned else ()
            whole, turn = stacked, (*turn, Reshape(shape=shapes[name]))
        yield PlannedWeight(
            target=name,
            pieces=pieces,
            join="concat" if len(pieces) > 1 else None,
            dim=pair.dim,
            steps=(*whole, *turn),
            how=PROPOSED,
            confidence=pair.confidence,
        )


def _at(place: Place, shape: Shape) -> Steps:
    """Takes one of a stack."""
    cuts = tuple(Slice(dim=depth, start=at, stop=at + 1) for depth, at in enumerate(place.at))
    return (*cuts, Reshape(shape=shape)) if cuts else ()


def _likeness(pair: tuple[str, str], left: _Left) -> tuple[bool, int, int, float]:
    """Weight with weight and bias with bias, then what the field's words say of both, then the part of the
    model (a tower) that each is in, then the letters."""
    one, other = pair
    uses = left.uses[0][one], left.uses[1][other]
    use = 0 if None in uses else 1 if uses[0] == uses[1] else -1
    letters = SequenceMatcher(None, _own_words(one), _own_words(other)).ratio()
    return _is_bias(one) == _is_bias(other), use, left.times_together(one, other), letters


def _is_bias(name: str) -> bool:
    return name.rpartition(".")[2].lower() in ("bias", "beta", "b")


def _own_words(name: str) -> str:
    return ".".join(name.split(".")[-3:])
