"""Monotone alignment of two sequences of calls: equal runs first, dynamic programming in the gaps between
them.

Linear in the length where the sequences mostly agree: runs of equal tokens are skipped as arrays, after a
difference the nearest common three-gram resynchronises, and only what lies between is aligned exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trueup.matching.codes import Codes, Hashes

_GRAM = 3
_FIRST_WINDOW = 256
_MAX_CELLS = 4_000_000
_ONLY_NAME = 1e-3
"""Weight of a pair of other shapes: never worth giving up one whose shapes agree."""

EXACT_WITH_DETAILS, EXACT_WITH_SHAPES, EXACT, FAMILY, SAME_CLASS, ONLY_CANDIDATE, REORDERED = (
    0.98,
    0.93,
    0.7,
    0.85,
    0.8,
    0.5,
    0.75,
)
"""Confidence of a pair by what agrees: everything, all but arguments, the name only, the family of functions
with shapes, a module's class with shapes, the only calls left at this place, a unique name and shape
elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Children of one call, in execution order, as hashes; ``type`` is a module's class, -1 for other
    calls."""

    exact: Hashes
    family: Hashes
    shapes: Hashes
    details: Hashes
    kind: Codes
    type: Codes

    def __len__(self) -> int:
        return len(self.exact)

    def part(self, begin: int, end: int) -> Sequence:
        """Items ``begin`` to ``end``."""
        at = slice(begin, end)
        return Sequence(
            exact=self.exact[at],
            family=self.family[at],
            shapes=self.shapes[at],
            details=self.details[at],
            kind=self.kind[at],
            type=self.type[at],
        )


@dataclass(slots=True)
class SequenceAlignment:
    """Pairs of positions with the pass and confidence of each, and what each unpaired item faces on the other
    side."""

    target: list[int] = field(default_factory=list)
    reference: list[int] = field(default_factory=list)
    passes: list[str] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    facing_target: dict[int, list[int]] = field(default_factory=dict)
    facing_reference: dict[int, list[int]] = field(default_factory=dict)

    def add(self, target: int, reference: int, name: str, confidence: float) -> None:
        """Note one pair."""
        self.target.append(target)
        self.reference.append(reference)
        self.passes.append(name)
        self.confidence.append(confidence)


def align(target: Sequence, reference: Sequence) -> SequenceAlignment:
    """Align two sequences of calls; equal items keep their order, what moved is found by a unique name and
    shape."""
    found = SequenceAlignment()
    left, right = _run_tokens(target, reference)
    gaps: list[tuple[int, int, int, int, int, int]] = []
    for i, j, length in _runs(left, right):
        begin_i, begin_j = gaps[-1][4:] if gaps else (0, 0)
        gaps.append((begin_i, i, begin_j, j, i + length, j + length))
        _add_run(found, target, reference, i, j, length)
    begin_i, begin_j = gaps[-1][4:] if gaps else (0, 0)
    gaps.append((begin_i, len(target), begin_j, len(reference), 0, 0))
    for i0, i1, j0, j1, _, _ in gaps:
        if i1 > i0 and j1 > j0:
            _align_gap(found, target, reference, (i0, i1), (j0, j1))
    _add_reordered(found, target, reference)
    _note_facing(found, gaps)
    return found


def _run_tokens(target: Sequence, reference: Sequence) -> tuple[Hashes, Hashes]:
    """Tokens with shapes, unless most shapes differ (another batch size): then names alone."""
    left, right = target.exact ^ target.shapes, reference.exact ^ reference.shapes
    shared = min(np.isin(left, right).sum(), np.isin(right, left).sum())
    names = target.exact, reference.exact
    if 2 * shared < min(np.isin(*names).sum(), np.isin(*names[::-1]).sum()):
        return target.exact, reference.exact
    return left, right


def _runs(left: Hashes, right: Hashes) -> list[tuple[int, int, int]]:
    """Runs (i, j, length) of equal items, ascending in both: common start, resynchronised middle, common
    end."""
    tail = _common(left[::-1], right[::-1])
    end_i, end_j = len(left), len(right)
    grams = _grams(left), _grams(right)
    runs, i, j = [], 0, 0
    while i < end_i and j < end_j:
        length = _common(left[i:], right[j:])
        if length:
            runs.append((i, j, length))
            i, j = i + length, j + length
        step = _resynchronise(grams[0][i:], grams[1][j:])
        if step is None:
            break
        i, j = i + step[0], j + step[1]
    tail = min(tail, end_i - i, end_j - j)
    if tail > 0:
        runs.append((end_i - tail, end_j - tail, tail))
    return runs


def _common(left: Hashes, right: Hashes) -> int:
    """Length of the common beginning, looked at in growing blocks."""
    size, at, block = min(len(left), len(right)), 0, 64
    while at < size:
        stop = min(at + block, size)
        differ = np.flatnonzero(left[at:stop] != right[at:stop])
        if len(differ):
            return at + int(differ[0])
        at, block = stop, block * 4
    return size


def _grams(tokens: Hashes) -> Hashes:
    if len(tokens) < _GRAM:
        return tokens[:0]
    with np.errstate(over="ignore"):
        total: Hashes = tokens[: len(tokens) - _GRAM + 1].copy()
        for k in range(1, _GRAM):
            total = total * np.uint64(0x9E3779B97F4A7C15) + tokens[k : len(tokens) - _GRAM + 1 + k]
    return total


def _resynchronise(left: Hashes, right: Hashes) -> tuple[int, int] | None:
    """Smallest step on both sides after which the next three items agree."""
    window = _FIRST_WINDOW
    while len(left) and len(right):
        a, b = left[:window], right[:window]
        words, first = np.unique(b, return_index=True)
        at = np.minimum(np.searchsorted(words, a), len(words) - 1)
        hit = np.flatnonzero(words[at] == a)
        if len(hit):
            total = hit + first[at[hit]]
            best = int(np.argmin(total))
            return int(hit[best]), int(first[at[hit[best]]])
        if window >= max(len(left), len(right)):
            return None
        window *= 4
    return None


def _add_run(
    found: SequenceAlignment, target: Sequence, reference: Sequence, i: int, j: int, length: int
) -> None:
    details = target.details[i : i + length] == reference.details[j : j + length]
    shapes = target.shapes[i : i + length] == reference.shapes[j : j + length]
    sure = np.where(details, EXACT_WITH_DETAILS, np.where(shapes, EXACT_WITH_SHAPES, EXACT))
    found.target.extend(range(i, i + length))
    found.reference.extend(range(j, j + length))
    found.passes.extend(["aligned"] * length)
    found.confidence.extend(sure.tolist())


def _elsewhere(sequence: Sequence, other: Sequence) -> NDArray[np.bool_]:
    """Modules whose names the other side has too: such a one is no module of another name."""
    return np.asarray((sequence.type >= 0) & np.isin(sequence.exact, other.exact))


def _similarity(
    target: Sequence, reference: Sequence, named: tuple[NDArray[np.bool_], NDArray[np.bool_]]
) -> NDArray[np.float32]:
    """Confidence of every possible pair; 0 where two calls cannot be the same."""

    def same(a: NDArray[np.generic], b: NDArray[np.generic]) -> NDArray[np.bool_]:
        return np.asarray(a[:, None] == b[None, :])

    exact, shapes = same(target.exact, reference.exact), same(target.shapes, reference.shapes)
    sure = np.zeros(exact.shape, np.float32)
    classes = same(target.type, reference.type) & (target.type >= 0)[:, None]
    sure[classes & shapes] = SAME_CLASS
    sure[same(target.family, reference.family) & shapes] = FAMILY
    sure[named[0][:, None] | named[1][None, :]] = 0
    sure[exact] = EXACT
    sure[exact & shapes] = EXACT_WITH_SHAPES
    sure[exact & same(target.details, reference.details)] = EXACT_WITH_DETAILS
    return sure


def _align_gap(
    found: SequenceAlignment, whole: Sequence, other: Sequence, at: tuple[int, int], at_other: tuple[int, int]
) -> None:
    target, reference, i0, j0 = whole.part(*at), other.part(*at_other), at[0], at_other[0]
    if len(target) * len(reference) > _MAX_CELLS:
        pairs = _by_occurrence(target.exact, reference.exact)
        for i, j in pairs:
            found.add(i0 + i, j0 + j, "aligned", EXACT)
        return
    named = _elsewhere(target, other), _elsewhere(reference, whole)
    sure = _similarity(target, reference, named)
    pairs = _best_path(np.where(sure == np.float32(EXACT), np.float32(_ONLY_NAME), sure))
    for i, j in pairs:
        exact = target.exact[i] == reference.exact[j]
        found.add(i0 + i, j0 + j, "aligned" if exact else "renamed", float(sure[i, j]))
    left = sorted(set(np.flatnonzero(~named[0]).tolist()) - {i for i, _ in pairs})
    right = sorted(set(np.flatnonzero(~named[1]).tolist()) - {j for _, j in pairs})
    if len(left) == len(right) == 1 and _interchangeable(target, reference, left[0], right[0]):
        found.add(i0 + left[0], j0 + right[0], "renamed", ONLY_CANDIDATE)


def _interchangeable(target: Sequence, reference: Sequence, i: int, j: int) -> bool:
    return bool(
        target.kind[i] == reference.kind[j] and target.shapes[i] == reference.shapes[j] and target.shapes[i]
    )


def _best_path(sure: NDArray[np.float32]) -> list[tuple[int, int]]:
    """Monotone pairing of greatest total confidence, by dynamic programming; a gap costs nothing."""
    rows, columns = sure.shape
    score = np.zeros((rows + 1, columns + 1), np.float32)
    for i in range(rows):
        row = np.maximum(score[i, 1:], score[i, :-1] + sure[i])
        score[i + 1, 1:] = np.maximum.accumulate(row)
    pairs, i, j = [], rows, columns
    while i and j:
        if score[i, j] == score[i - 1, j]:
            i -= 1
        elif score[i, j] == score[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]


def _by_occurrence(left: Hashes, right: Hashes) -> list[tuple[int, int]]:
    """The n-th occurrence of a token with the n-th on the other side, the longest ascending part of that."""
    places: dict[tuple[int, int], int] = {}
    seen: dict[int, int] = {}
    for j, token in enumerate(right.tolist()):
        seen[token] = seen.get(token, -1) + 1
        places[token, seen[token]] = j
    seen.clear()
    pairs = []
    for i, token in enumerate(left.tolist()):
        seen[token] = seen.get(token, -1) + 1
        if (token, seen[token]) in places:
            pairs.append((i, places[token, seen[token]]))
    return _longest_ascending(pairs)


def _longest_ascending(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    import bisect

    ends: list[int] = []
    last: list[int] = []
    before = [-1] * len(pairs)
    for index, (_, j) in enumerate(pairs):
        at = bisect.bisect_left(ends, j)
        before[index] = last[at - 1] if at else -1
        ends[at : at + 1] = [j]
        last[at : at + 1] = [index]
    chain, index = [], last[-1] if last else -1
    while index >= 0:
        chain.append(pairs[index])
        index = before[index]
    return chain[::-1]


def _add_reordered(found: SequenceAlignment, target: Sequence, reference: Sequence) -> None:
    left = np.setdiff1d(np.arange(len(target)), np.array(found.target, np.int64))
    right = np.setdiff1d(np.arange(len(reference)), np.array(found.reference, np.int64))
    if not len(left) or not len(right):
        return
    keys_left, keys_right = (target.exact ^ target.shapes)[left], (reference.exact ^ reference.shapes)[right]
    words, at, counts = np.unique(keys_right, return_index=True, return_counts=True)
    unique_right = {int(w): int(right[a]) for w, a, c in zip(words, at, counts, strict=True) if c == 1}
    words, at, counts = np.unique(keys_left, return_index=True, return_counts=True)
    for word, where, count in zip(words, at, counts, strict=True):
        if count == 1 and int(word) in unique_right:
            sure = EXACT_WITH_SHAPES if target.type[left[where]] >= 0 else REORDERED
            found.add(int(left[where]), unique_right[int(word)], "reordered", sure)


def _note_facing(found: SequenceAlignment, gaps: list[tuple[int, int, int, int, int, int]]) -> None:
    """For items without a partner, the other side's items without one between the same neighbours."""
    paired_target, paired_reference = set(found.target), set(found.reference)
    for i0, i1, j0, j1, _, _ in gaps:
        left = [i for i in range(i0, i1) if i not in paired_target]
        right = [j for j in range(j0, j1) if j not in paired_reference]
        found.facing_target.update(dict.fromkeys(left, right[:4]))
        found.facing_reference.update(dict.fromkeys(right, left[:4]))
