"""The cascade that pairs calls: one protocol, each pass adding pairs that earlier ones left open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trueup.matching.align import Sequence, SequenceAlignment, align
from trueup.matching.codes import Codes, Hashes, mix, sum_by
from trueup.matching.tree import TreeSide, Words

PASSES = ("site", "aligned", "renamed", "reordered", "map", "weights", "name", "tensor", "flow")
PASS_CODE = {name: code for code, name in enumerate(PASSES)}


@dataclass(slots=True)
class CallPairs:
    """What has been paired so far. ``reference_of`` and ``target_of`` are inverse to each other, -1 where
    open."""

    reference_of: Codes
    target_of: Codes
    pass_code: NDArray[np.int8]
    confidence: NDArray[np.float32]
    facing_target: dict[int, list[int]] = field(default_factory=dict)
    """unpaired target call -> unpaired reference calls at the same place"""
    facing_reference: dict[int, list[int]] = field(default_factory=dict)

    @classmethod
    def open(cls, num_target: int, num_reference: int) -> CallPairs:
        """Nothing paired yet."""
        return cls(
            reference_of=np.full(num_target, -1, np.int64),
            target_of=np.full(num_reference, -1, np.int64),
            pass_code=np.full(num_target, -1, np.int8),
            confidence=np.zeros(num_target, np.float32),
        )

    def add(
        self, target: Codes, reference: Codes, pass_code: Codes | int, confidence: NDArray[np.float32] | float
    ) -> None:
        """Pair calls one to one; calls paired before keep their partner."""
        still = (self.reference_of[target] < 0) & (self.target_of[reference] < 0)
        t, r = target[still], reference[still]
        self.reference_of[t], self.target_of[r] = r, t
        self.pass_code[t] = pass_code if isinstance(pass_code, int) else pass_code[still]
        self.confidence[t] = confidence if isinstance(confidence, float) else confidence[still]


class CallPass(Protocol):
    """One rule of the cascade between runs of one program; two implementations are paired in ``across``."""

    def __call__(self, target: TreeSide, reference: TreeSide, words: Words, pairs: CallPairs) -> None:
        """Add the pairs this rule is sure of."""


def match_calls(target: TreeSide, reference: TreeSide, words: Words) -> CallPairs:
    """Pair the calls of one step on one rank; every pass only adds to what those before it found."""
    pairs = CallPairs.open(target.num_calls, reference.num_calls)
    for run in CASCADE:
        run(target, reference, words, pairs)
    return pairs


def parameters_by_name(target: TreeSide, reference: TreeSide, words: Words, pairs: CallPairs) -> None:
    """Parameters of the same name, wrappers left out."""
    left, right = (_of_kind(side, words, "parameter") for side in (target, reference))
    _, i, j = np.intersect1d(
        _occurrence_keys(target, left), _occurrence_keys(reference, right), return_indices=True
    )
    pairs.add(left[i], right[j], PASS_CODE["site"], 1.0)


def tree_descent(target: TreeSide, reference: TreeSide, words: Words, pairs: CallPairs) -> None:
    """From the top level down: children of a pair are paired one by one where both sequences agree, else
    aligned."""
    left, right = _Children(target, words), _Children(reference, words)
    memo: Memo = {}
    parents_t, parents_r = np.array([-1]), np.array([-1])
    while len(parents_t):
        same = left.same_as(right, parents_t, parents_r)
        for at in np.flatnonzero(same & ~left.same_shapes_as(right, parents_t, parents_r)).tolist():
            same[at] = not _aligned_fits_better(left, right, int(parents_t[at]), int(parents_r[at]), memo)
        _pair_in_order(left, right, parents_t[same], parents_r[same], pairs)
        for p, q in zip(parents_t[~same].tolist(), parents_r[~same].tolist(), strict=True):
            _pair_aligned(left, right, p, q, pairs, memo)
        children = left.of_many(parents_t)
        _by_arguments(target, reference, words, children, pairs)
        parents_t = children[(pairs.reference_of[children] >= 0) & left.has_children[children]]
        parents_r = pairs.reference_of[parents_t]


def wrappers(target: TreeSide, reference: TreeSide, words: Words, pairs: CallPairs) -> None:
    """Wrappers (DistributedDataParallel) around calls that were paired, where both sides have one."""
    inner = np.flatnonzero((target.wrapped_by >= 0) & (pairs.reference_of >= 0))
    while len(inner):
        outer_r = reference.wrapped_by[pairs.reference_of[inner]]
        outer_t = target.wrapped_by[inner]
        both = (outer_t >= 0) & (outer_r >= 0)
        pairs.add(outer_t[both], outer_r[both], PASS_CODE["site"], 1.0)
        inner = outer_t[both]


def parameters_by_module(target: TreeSide, reference: TreeSide, words: Words, pairs: CallPairs) -> None:
    """Parameters whose module was paired under another name, then the rest by last name component, shape and
    order."""
    renamed = _renamed_modules(target, reference, words, pairs)
    left = [c for c in _of_kind(target, words, "parameter") if pairs.reference_of[c] < 0]
    right = [c for c in _of_kind(reference, words, "parameter") if pairs.target_of[c] < 0]
    if not left or not right:
        return
    by_name = {words.name[reference.plain[c]]: c for c in right}
    for call in left:
        owner, _, last = words.name[target.plain[call]].rpartition(".")
        partner = (
            by_name.get(f"{renamed[owner]}.{last}" if renamed.get(owner) else last)
            if owner in renamed
            else None
        )
        if partner is not None and target.shapes[call] == reference.shapes[partner]:
            pairs.add(np.array([call]), np.array([partner]), PASS_CODE["renamed"], 0.9)
    _parameters_by_content(target, reference, words, pairs)
    _parameters_in_order(target, reference, words, pairs)


def _parameters_by_content(target: TreeSide, reference: TreeSide, words: Words, pairs: CallPairs) -> None:
    """Parameters of other names that begin with the same bits, which no other has: a wrapper around one of
    several alike (an adapter) must not move the others up."""
    sides = []
    for side, known in ((target, pairs.reference_of), (reference, pairs.target_of)):
        calls = np.array([c for c in _of_kind(side, words, "parameter") if known[c] < 0], np.int64)
        bits = _first_bits(side, words, calls)
        values, first, times = np.unique(bits, return_index=True, return_counts=True)
        once = (times == 1) & (values != 0)
        sides.append((values[once], calls[first[once]]))
    _, i, j = np.intersect1d(sides[0][0], sides[1][0], assume_unique=True, return_indices=True)
    pairs.add(sides[0][1][i], sides[1][1][j], PASS_CODE["renamed"], 0.9)


def _first_bits(side: TreeSide, words: Words, calls: Codes) -> Hashes:
    """Digest of what each parameter holds as the step begins; 0 where it is not known."""
    held = np.isin(side.record_phase, [words.phase.index("param")] if "param" in words.phase else [])
    records = np.flatnonzero(held & (side.record_summary >= 0))[::-1]
    found = np.zeros(side.num_calls, np.uint64)
    found[side.record_call[records]] = side.summary_digest[side.record_summary[records]]
    return found[calls]


def _parameters_in_order(target: TreeSide, reference: TreeSide, words: Words, pairs: CallPairs) -> None:
    last = np.array([hash(w.rpartition(".")[2]) for w in words.name], np.int64)
    left = np.array([c for c in _of_kind(target, words, "parameter") if pairs.reference_of[c] < 0], np.int64)
    right = np.array([c for c in _of_kind(reference, words, "parameter") if pairs.target_of[c] < 0], np.int64)
    if not len(left) or not len(right):
        return

    def sequence(side: TreeSide, calls: Codes) -> Sequence:
        token = mix(last[side.plain[calls]], side.shapes[calls].view(np.int64))
        nothing = np.full(len(calls), -1, np.int64)
        shapes = side.shapes[calls]
        return Sequence(exact=token, family=token, shapes=shapes, details=token, kind=nothing, type=nothing)

    found = align(sequence(target, left), sequence(reference, right))
    order = [k for k, name in enumerate(found.passes) if name == "aligned"]
    t, r = left[np.array(found.target, np.int64)[order]], right[np.array(found.reference, np.int64)[order]]
    pairs.add(t, r, PASS_CODE["renamed"], 0.6)
    rest = left[pairs.reference_of[left] < 0], right[pairs.target_of[right] < 0]
    if np.array_equal(
        target.shapes[rest[0]], reference.shapes[rest[1]]
    ):  # other names, the same shapes in order
        pairs.add(*rest, PASS_CODE["renamed"], 0.6)


CASCADE: tuple[CallPass, ...] = (parameters_by_name, tree_descent, wrappers, parameters_by_module)


def _of_kind(side: TreeSide, words: Words, kind: str) -> Codes:
    return np.flatnonzero(side.kind == (words.kind.index(kind) if kind in words.kind else -2))


def _occurrence_keys(side: TreeSide, calls: Codes) -> NDArray[np.uint64]:
    return mix(side.plain[calls], side.microbatch[calls], side.mode[calls], side.ordinal[calls])


def _renamed_modules(target: TreeSide, reference: TreeSide, words: Words, pairs: CallPairs) -> dict[str, str]:
    modules = _of_kind(target, words, "module")
    modules = modules[pairs.reference_of[modules] >= 0]
    here, there = target.plain[modules], reference.plain[pairs.reference_of[modules]]
    return {words.name[a]: words.name[b] for a, b in np.unique(np.stack([here, there], 1), axis=0).tolist()}


class _Children:
    """Children of every call in execution order, parameters left out; parent -1 is the top level."""

    def __init__(self, side: TreeSide, words: Words) -> None:
        self.side = side
        leave_out = side.wrapper | (
            side.kind == (words.kind.index("parameter") if "parameter" in words.kind else -2)
        )
        calls = np.flatnonzero(~leave_out)
        self.calls = calls[np.argsort(side.parent[calls], kind="stable")]
        parent = side.parent[self.calls] + 1
        self.count = np.bincount(parent, minlength=side.num_calls + 1)
        self.start = np.cumsum(self.count) - self.count
        self.has_children = self.count[1:] > 0
        position = np.arange(len(self.calls)) - self.start[parent]
        self.sequence = sum_by(parent, mix(side.exact[self.calls], position), side.num_calls + 1)
        self.shapes = sum_by(parent, mix(side.shapes[self.calls], position), side.num_calls + 1)

    def of(self, parent: int) -> Codes:
        """Children of one call."""
        begin = self.start[parent + 1]
        return self.calls[begin : begin + self.count[parent + 1]]

    def of_many(self, parents: Codes) -> Codes:
        """Children of several calls, one after the other."""
        counts = self.count[parents + 1]
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.asarray(self.calls[np.repeat(self.start[parents + 1], counts) + offsets])

    def same_as(self, other: _Children, target: Codes, reference: Codes) -> NDArray[np.bool_]:
        """Where both sequences of children are the same calls in the same order."""
        count = self.count[target + 1] == other.count[reference + 1]
        return np.asarray(count & (self.sequence[target + 1] == other.sequence[reference + 1]))

    def same_shapes_as(self, other: _Children, target: Codes, reference: Codes) -> NDArray[np.bool_]:
        """Where the children's tensors have the same shapes, one by one."""
        return np.asarray(self.shapes[target + 1] == other.shapes[reference + 1])

    def as_sequence(self, parent: int) -> Sequence:
        """Children of one call, ready to be aligned."""
        calls, side = self.of(parent), self.side
        return Sequence(
            exact=side.exact[calls],
            family=side.family[calls],
            shapes=side.shapes[calls],
            details=side.details[calls],
            kind=side.kind[calls],
            type=side.type[calls],
        )


def _pair_in_order(
    left: _Children, right: _Children, target: Codes, reference: Codes, pairs: CallPairs
) -> None:
    t, r = left.of_many(target), right.of_many(reference)
    parent = left.side.parent[t]
    from_parent = np.where(parent >= 0, pairs.confidence[np.maximum(parent, 0)], np.float32(1))
    pass_code = np.where(left.side.plain[t] == right.side.plain[r], PASS_CODE["site"], PASS_CODE["renamed"])
    pairs.add(t, r, pass_code, from_parent.astype(np.float32))


def _by_arguments(
    target: TreeSide, reference: TreeSide, words: Words, children: Codes, pairs: CallPairs
) -> None:
    """Calls of one module that get the same tensors and each other arguments, in another order on either side
    (that of a set): paired by their arguments.

    None of them is given what another one makes, so that their order is no part of the computation.
    """
    kind = words.kind.index("module") if "module" in words.kind else -2
    t = children[(pairs.reference_of[children] >= 0) & (target.kind[children] == kind)]
    t = t[target.arguments[t] != reference.arguments[pairs.reference_of[t]]]
    groups: dict[tuple[int, int], list[int]] = {}
    for call in t.tolist():
        groups.setdefault((int(target.parent[call]), int(target.exact[call])), []).append(call)
    for calls in groups.values():
        others = pairs.reference_of[calls].tolist()
        own, other_arguments = target.arguments[calls].tolist(), reference.arguments[others].tolist()
        if len(set(own)) < len(own) or sorted(own) != sorted(other_arguments):
            continue
        if not (_given_alike(target, calls, words) and _given_alike(reference, others, words)):
            continue
        at = dict(zip(other_arguments, others, strict=True))
        for call, argument in zip(calls, own, strict=True):
            pairs.reference_of[call], pairs.target_of[at[argument]] = at[argument], call
        pairs.pass_code[calls] = PASS_CODE["reordered"]


def _given_alike(side: TreeSide, calls: list[int], words: Words) -> bool:
    """Whether all of the calls are given the same tensors in the forward pass."""
    inputs = [code for code, slot in enumerate(words.slot) if slot.startswith("input")]
    forward = [code for code, phase in enumerate(words.phase) if phase == "forward"]
    rows = np.flatnonzero(np.isin(side.record_call, calls) & np.isin(side.record_slot, inputs))
    rows = rows[np.isin(side.record_phase[rows], forward)]
    given: dict[int, set[tuple[int, int]]] = {call: set() for call in calls}
    for row in rows.tolist():
        summary = int(side.record_summary[row])
        digest = int(side.summary_digest[summary]) if summary >= 0 else 0
        given[int(side.record_call[row])].add((int(side.record_slot[row]), digest or -1 - summary))
    return all(one == given[calls[0]] for one in given.values())


Memo = dict[tuple[bytes, bytes], SequenceAlignment]


def _aligned_fits_better(left: _Children, right: _Children, target: int, reference: int, memo: Memo) -> bool:
    """Whether alignment pairs more calls of equal shapes than one-by-one pairing does: one op went, one like
    it came."""
    found = _alignment(left, right, target, reference, memo)
    a, b = left.as_sequence(target).shapes, right.as_sequence(reference).shapes
    aligned = int((a[np.array(found.target, np.int64)] == b[np.array(found.reference, np.int64)]).sum())
    return aligned > int((a == b).sum())


def _alignment(
    left: _Children, right: _Children, target: int, reference: int, memo: Memo
) -> SequenceAlignment:
    """The alignment of the children of two calls; repeated layers are aligned once."""
    a, b = left.as_sequence(target), right.as_sequence(reference)
    key = (a.exact.tobytes() + a.details.tobytes(), b.exact.tobytes() + b.details.tobytes())
    if key not in memo:
        memo[key] = align(a, b)
    return memo[key]


def _pair_aligned(
    left: _Children,
    right: _Children,
    target: int,
    reference: int,
    pairs: CallPairs,
    memo: Memo,
) -> None:
    t, r = left.of(target), right.of(reference)
    if not len(t) or not len(r):
        return
    found = _alignment(left, right, target, reference, memo)
    calls_t, calls_r = t[np.array(found.target, np.int64)], r[np.array(found.reference, np.int64)]
    codes = np.array([PASS_CODE[name] for name in found.passes], np.int64)
    sure = np.array(found.confidence, np.float32) * (
        pairs.confidence[target] if target >= 0 else np.float32(1)
    )
    pairs.add(calls_t, calls_r, codes, sure)
    pairs.facing_target.update({int(t[i]): r[js].tolist() for i, js in found.facing_target.items()})
    pairs.facing_reference.update({int(r[j]): t[js].tolist() for j, js in found.facing_reference.items()})
