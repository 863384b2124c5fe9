"""Modules of two implementations paired by the weights inside them, under any names.

A module is known by the weights it holds whole: the same set on both sides is the same module. Where several
nested modules hold the same set (an embedding and what wraps it), the owner of the weights goes with the
owner, the outermost with the outermost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trueup.matching.families import family_of
from trueup.matching.thresholds import ALMOST
from trueup.matching.weights import Atom
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason, reason

BY_WEIGHTS, BY_MOST_WEIGHTS, BY_NAME = 0.99, 0.8, 0.85


Returned = Mapping[str, frozenset[int]]
"""module -> numbers of elements of the tensors it returns"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulePair:
    """Two modules that do the same."""

    target: str
    reference: str
    how: str
    confidence: float


@dataclass(slots=True)
class ModulePairs:
    """Pairs, and a reason for each module without one."""

    pairs: list[ModulePair] = field(default_factory=list)
    why_target: dict[str, Reason] = field(default_factory=dict)
    why_reference: dict[str, Reason] = field(default_factory=dict)

    def reference_of(self) -> dict[str, str]:
        """Target name -> reference name."""
        return {pair.target: pair.reference for pair in self.pairs}

    def add(self, target: str, reference: str, how: str, confidence: float) -> bool:
        """Note a pair unless one of the two has a partner."""
        if any(p.target == target or p.reference == reference for p in self.pairs):
            return False
        self.pairs.append(ModulePair(target=target, reference=reference, how=how, confidence=confidence))
        return True


class Holdings:
    """Of each module of one side: which groups of equal weights lie wholly inside it."""

    def __init__(self, modules: Sequence[str], group_of: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        self.modules = list(modules)
        self._inside: dict[str, dict[int, int]] = {name: defaultdict(int) for name in self.modules}
        self.total: dict[int, int] = defaultdict(int)
        self.owners: dict[str, set[str]] = defaultdict(set)
        for weight, group in group_of.items():
            size = max(sizes.get(weight, 1), 1)
            self.total[group] += size
            self.owners[weight.rpartition(".")[0]].add(weight)
            for above in _above(weight):
                if above in self._inside:
                    self._inside[above][group] += size

    def whole(self, module: str) -> frozenset[int]:
        """Groups that lie wholly inside."""
        return frozenset(g for g, size in self._inside[module].items() if size == self.total[g])

    def partly(self, module: str) -> frozenset[int]:
        """Groups that lie inside in part only."""
        return frozenset(g for g, size in self._inside[module].items() if size < self.total[g])


def _above(name: str) -> list[str]:
    """All modules a weight lies in, the root among them."""
    parts = name.split(".")
    return [".".join(parts[:k]) for k in range(len(parts))]


def pair_modules(
    atoms: Sequence[Atom],
    target: tuple[Sequence[str], Mapping[str, int]],
    reference: tuple[Sequence[str], Mapping[str, int]],
    given: Mapping[str, str | None] | None = None,
    returned: tuple[Returned, Returned] = ({}, {}),
) -> ModulePairs:
    """Pairs of modules; each side gives its called modules' names and the sizes of its weights.

    ``given`` are pairs a person insists on; ``returned`` the sizes of what modules return, as far as known.
    """
    found = ModulePairs()
    unpaired = {one for one, other in (given or {}).items() if other is None}
    found.why_target.update(dict.fromkeys(unpaired, Reason(RecordCode.MAPPED_TO_NONE)))
    for one, other in (given or {}).items():
        if other is not None:
            found.add(one, other, "map", 1.0)
    target = [name for name in target[0] if name not in unpaired], target[1]
    here = Holdings(target[0], _groups(atoms, target[1], first=True), target[1])
    there = Holdings(reference[0], _groups(atoms, reference[1], first=False), reference[1])
    _same_weights(found, here, there, returned)
    _most_weights(found, here, there)
    _same_names(found, target[0], reference[0])
    _say_why(found, here, there)
    return found


def _groups(atoms: Sequence[Atom], sizes: Mapping[str, int], *, first: bool) -> dict[str, int]:
    """Weight -> number of its atom; a weight of no atom has a number of its own."""
    group = {
        name: number
        for number, atom in enumerate(atoms)
        for name in (atom.targets if first else atom.sources)
    }
    apart = len(atoms) if first else len(atoms) + 10**9
    return group | {name: apart + k for k, name in enumerate(sizes) if name not in group}


def _same_weights(
    found: ModulePairs, here: Holdings, there: Holdings, returned: tuple[Returned, Returned]
) -> None:
    sets: tuple[dict[frozenset[int], list[str]], ...] = ({}, {})
    for side, by_set in zip((here, there), sets, strict=True):
        for name in side.modules:
            if side.whole(name) and not side.partly(name):
                by_set.setdefault(side.whole(name), []).append(name)
    for weights, names in sets[0].items():
        for one, other in _nested(names, sets[1].get(weights, []), here, there, returned):
            found.add(one, other, "weights", BY_WEIGHTS)


def _nested(
    names: list[str],
    others: list[str],
    here: Holdings,
    there: Holdings,
    returned: tuple[Returned, Returned],
) -> list[tuple[str, str]]:
    """Modules with the same weights: outermost first on both sides; of chains of other lengths their ends."""
    names, others = sorted(names, key=_depth), sorted(others, key=_depth)
    if len(names) == len(others):
        return list(zip(names, others, strict=True))
    pairs = []
    one, other = _owner(names, here), _owner(others, there)
    if one is not None and other is not None:
        pairs.append((one, other))
        names, others = [n for n in names if n != one], [n for n in others if n != other]
    whole = [(a, b) for a in names for b in others if not (a and b) and _alike(a, b, returned)]
    return pairs + whole[:1]


def _alike(one: str, other: str, returned: tuple[Returned, Returned]) -> bool:
    """Whether two may return the same: a model that returns logits is not the one around it that returns the
    loss."""
    target, reference = returned[0].get(one), returned[1].get(other)
    return not target or not reference or bool(target & reference)


def _depth(name: str) -> int:
    return name.count(".") + 1 if name else 0


def _owner(names: list[str], side: Holdings) -> str | None:
    """The innermost that owns a weight itself."""
    return next((name for name in reversed(names) if side.owners.get(name)), None)


# In one piece: one search for mutual best pairs; its conditions are one rule.
def _most_weights(found: ModulePairs, here: Holdings, there: Holdings) -> None:
    """The mutually best of those left that share most of their weights (a norm fused into a projection)."""
    taken = {p.target for p in found.pairs}, {p.reference for p in found.pairs}
    left = [n for n in here.modules if n not in taken[0] and here.whole(n) and not here.partly(n)]
    right = [n for n in there.modules if n not in taken[1] and there.whole(n) and not there.partly(n)]
    score = {
        (a, b): _shared(here.whole(a), there.whole(b), here.total, there.total) for a in left for b in right
    }
    best_of = {a: max(((score[a, b], b) for b in right), default=(0.0, "")) for a in left}
    best_to = {b: max(((score[a, b], a) for a in left), default=(0.0, "")) for b in right}
    for a, (share, b) in best_of.items():
        is_only_best = (
            sum(score[a, other] == share for other in right) == 1 == sum(score[o, b] == share for o in left)
        )
        if share >= ALMOST and best_to[b][1] == a and is_only_best and not _contradicted(found, a, b):
            found.add(a, b, "weights", BY_MOST_WEIGHTS)


def _shared(
    one: frozenset[int], other: frozenset[int], sizes: Mapping[int, int], others: Mapping[int, int]
) -> float:
    if not one & other:
        return 0.0
    size = {g: sizes.get(g, others.get(g, 0)) for g in one | other}
    return sum(size[g] for g in one & other) / sum(size.values())


def _same_names(found: ModulePairs, target: Sequence[str], reference: Sequence[str]) -> None:
    """Modules without weights of their own that known families call the same (rotary, activation)."""
    families = family_of(target), family_of(reference)
    if families[0] is None or families[1] is None:
        return
    by_common = {c.name: n for n in reference if (c := families[1].common(n)) is not None and not c.parts}
    for name in target:
        common = families[0].common(name)
        if common is not None and not common.parts and common.name in by_common and "{" not in common.name:
            other = by_common[common.name]
            if not _contradicted(found, name, other):
                found.add(name, other, "name", BY_NAME)


def _contradicted(found: ModulePairs, target: str, reference: str) -> bool:
    """Whether what is inside one is paired with something outside the other."""
    return any(
        p.target.startswith(target + ".") != p.reference.startswith(reference + ".") for p in found.pairs
    )


def _say_why(found: ModulePairs, here: Holdings, there: Holdings) -> None:
    partner = found.reference_of()
    back = {b: a for a, b in partner.items()}
    for side, known, why, other_name in (
        (here, partner, found.why_target, "reference"),
        (there, back, found.why_reference, "target"),
    ):
        other = there if side is here else here
        of_set = {other.whole(n): n for n in other.modules if other.whole(n) and not other.partly(n)}
        for name in side.modules:
            if name not in known:
                why[name] = _reason(name, side, other, of_set, other_name)


def _reason(
    name: str, side: Holdings, other: Holdings, of_set: Mapping[frozenset[int], str], other_name: str
) -> Reason:
    if side.partly(name) and not side.whole(name):
        return reason(RecordCode.PART_OF_FUSED, side=other_name)
    if not side.whole(name):
        return reason(RecordCode.NO_WEIGHTS, side=other_name)
    split = {n for n in other.modules if other.partly(n) & side.whole(name) and other.owners.get(n)}
    if split and side.owners.get(name):
        return reason(RecordCode.FUSED, side=other_name, modules=sorted(split))
    if side.whole(name) in of_set and not side.partly(name):
        return reason(RecordCode.SAME_WEIGHTS, side=other_name, module=of_set[side.whole(name)] or "(root)")
    return reason(RecordCode.NO_SUCH_MODULE, side=other_name)
