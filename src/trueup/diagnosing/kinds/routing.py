"""What a router of experts did, told by computing it again from its input and weight.

Which function makes scores of its logits, over what the weights of the chosen experts are normalised, by what
they are multiplied, how experts are chosen, in which dtype the logits are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.evidence.facts import Known, SlotPair
from trueup.diagnosing.kinds.fitting import roundoff_of
from trueup.diagnosing.kinds.rule import Found, origin_reason
from trueup.diagnosing.kinds.solved import Solved
from trueup.diagnosing.kinds.thresholds import (
    ANGLES_LEAVE,
    CHANGE_EXPLAINS,
    CLOSE_ROUNDINGS,
    FITTED_ROWS,
    HARDLY,
    MANY_NUMBERS,
    MIN_NUMBERS,
    NEAR_ONE,
    NEARLY,
    REPRODUCED,
    REPRODUCED_EXACTLY,
)
from trueup.diagnosing.thresholds import LOSS_FORM_BETTER
from trueup.numerics.dtypes import rounded_to
from trueup.types.arrays import Bools, Floats, Ints
from trueup.types.codes.kinds import CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindCode
from trueup.types.reason import Number, Place

MAX_EXPERTS, MAX_CHOSEN = 1024, 64
"""experts of a router, and those chosen for a token"""
MAX_SLOPES = 1 << 24
"""derivatives of scores by logits that are held at a time"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weighing:
    """How the weights of the chosen experts are made."""

    scores: str
    """``softmax`` or ``sigmoid``"""
    over: str = "none"
    """normalised over the ``chosen`` experts, ``all`` of them, or ``none``"""
    biased: bool = False
    """what is added for the choice is in the weights too"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choosing:
    """How experts are chosen."""

    groups: int = 1
    kept: int = 1
    by: str = "max"
    """a group is as good as its ``max``, or as the ``sum`` of its two best"""
    biased: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Routed:
    """One side's chosen experts and their weights, (rows, k)."""

    index: Ints
    weights: Floats


def routing_fault(evidence: Evidence) -> Solved | None:
    """How the target routes otherwise; None where the site is no router's output or the way is none known."""
    origin, around = evidence.origin, evidence.surroundings
    if origin.phase == "backward" and origin.slot.startswith("output"):
        return _term_of_scores(evidence)
    if origin.phase != "forward" or not origin.slot.startswith("output"):
        return None
    given, weight = _input_and_weight(evidence)
    if given is None or weight is None:
        return None
    logits, offset = given @ weight.T, _offset((*around.parameters, *around.buffers), len(weight))
    sides = [_routed(around.outputs, logits, reference=one) for one in (False, True)]
    target, reference = sides
    if target is None or reference is None or target.index.shape != reference.index.shape:
        return None
    if reference.weights.size < MIN_NUMBERS:
        return None
    if evidence.target_values is not None and evidence.target_values.size == 1:
        return _balance_fault(evidence, logits, offset, reference)
    return _weighing_fault(evidence, logits, offset, target, reference) or (
        _choosing_fault(evidence, logits, offset, target, reference)
        or _rounding_fault(evidence, given, weight, offset, target, reference)
    )


# -- what the router is given and gives ------------------------------------------


def _input_and_weight(evidence: Evidence) -> tuple[Floats | None, Floats | None]:
    """(rows, width) and (experts, width); the reference's where a replay put them in."""
    around = evidence.surroundings
    for pair in around.parameters:
        weight = _values(pair.given)
        if weight is None or weight.ndim != 2 or not 1 < len(weight) <= MAX_EXPERTS:
            continue
        for one in around.inputs:
            given = _values(one.given) if one.agree is not False else None
            if given is not None and given.ndim > 1 and given.shape[-1] == weight.shape[1]:
                return given.reshape(-1, weight.shape[1])[:FITTED_ROWS], weight
    return None, None


def _values(known: Known | None) -> Floats | None:
    values = known.values() if known is not None and known.is_floating else None
    return values if values is not None and np.isfinite(values).all() else None


def _offset(held: tuple[SlotPair, ...], experts: int) -> Floats | None:
    """What is added to the scores of experts for the choice."""
    found = [_values(pair.given) for pair in held if pair.given and pair.given.shape == (experts,)]
    return found[0] if len(found) == 1 else None


# In one piece: the two forms in which routers give what they chose.
def _routed(outputs: tuple[SlotPair, ...], logits: Floats, *, reference: bool) -> _Routed | None:
    """What one side chose: experts and weights side by side, or a weight of each expert, most of them 0."""
    made = [pair.reference if reference else pair.target for pair in outputs]
    weights = [
        values.reshape(-1, values.shape[-1])[:FITTED_ROWS]
        for one in made
        if (values := _values(one)) is not None and values.ndim > 1
    ]
    rows, experts = logits.shape
    for one in made:
        whole = None if one is None or one.is_floating or one.dtype == "bool" else one.raw
        if whole is None or whole.ndim < 2 or whole.shape[-1] >= experts:
            continue
        index = np.asarray(whole, dtype=np.int64).reshape(-1, whole.shape[-1])[:FITTED_ROWS]
        if len(index) != rows or index.min() < 0 or index.max() >= experts:
            continue
        beside = next((w for w in weights if w.shape == index.shape), None)
        if beside is not None:
            return _Routed(index=index, weights=beside)
    for dense in weights:
        used = dense != 0
        num = used.sum(axis=1)
        if dense.shape == logits.shape and len(num) and num.min() == num.max() and 0 < num[0] < experts:
            index = np.nonzero(used)[1].reshape(rows, -1)
            return _Routed(index=index, weights=np.take_along_axis(dense, index, axis=1))
    return None


# -- how the weights are made ------------------------------------------


def _made(way: _Weighing, logits: Floats, offset: Floats | None, index: Ints) -> Floats:
    scores = scores_of(way.scores, logits)
    picked = np.take_along_axis(
        scores + offset if way.biased and offset is not None else scores, index, axis=1
    )
    if way.over == "none":
        return picked
    whole = picked if way.over == "chosen" else scores
    return np.asarray(picked / whole.sum(axis=1, keepdims=True))


def scores_of(name: str, logits: Floats) -> Floats:
    """``softmax`` over experts or ``sigmoid`` of logits (rows, experts), float64."""
    if name == "sigmoid":
        return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logits, -700, 700))))
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _weighed(
    logits: Floats, offset: Floats | None, side: _Routed, limit: float
) -> tuple[_Weighing, float] | None:
    """The one form that gives a side's weights, and the factor on it; None where none does, or several."""
    biases = (False,) if offset is None or not offset.any() else (False, True)
    found: list[tuple[float, _Weighing, float]] = []
    for scores in ("softmax", "sigmoid"):
        for over in ("none", "chosen", "all") if scores == "sigmoid" else ("none", "chosen"):
            if over == "chosen" and side.index.shape[1] == 1:
                continue  # all weights are 1
            for biased in biases:
                way = _Weighing(scores=scores, over=over, biased=biased)
                made = _made(way, logits, offset, side.index)
                square, size = float(np.square(made).sum()), float(np.linalg.norm(side.weights))
                if square == 0 or size == 0:
                    continue
                factor = float((made * side.weights).sum()) / square
                found.append((float(np.linalg.norm(side.weights - factor * made)) / size, way, factor))
    found.sort(key=lambda one: one[0])
    if not found or found[0][0] > limit or (len(found) > 1 and found[0][0] > CHANGE_EXPLAINS * found[1][0]):
        return None
    return found[0][1], found[0][2]


def _weighing_fault(
    evidence: Evidence, logits: Floats, offset: Floats | None, target: _Routed, reference: _Routed
) -> Solved | None:
    limit = max(CLOSE_ROUNDINGS * evidence.roundoff, REPRODUCED_EXACTLY)
    own, expected = (_weighed(logits, offset, side, limit) for side in (target, reference))
    if own is None or expected is None:
        return None
    (one, factor), (other, usual) = own, expected
    sides: dict[str, Number | Place]
    if one.scores != other.scores:
        sides = {"target": one.scores, "reference": other.scores}
        return _solved(evidence, KindCode.CONSTANT_ARGUMENT, KindReason.ROUTER_SCORES, sides)
    if one.biased != other.biased:
        sides = {"side": "target" if one.biased else "reference"}
        return _solved(evidence, KindCode.MISSING_OR_EXTRA_TERM, KindReason.ROUTER_BIAS_WEIGHS, sides)
    if one.over != other.over:
        sides = {"target": one.over, "reference": other.over}
        left_out = "none" in sides.values()
        kind = KindCode.MISSING_OR_EXTRA_TERM if left_out else KindCode.CONSTANT_ARGUMENT
        return _solved(evidence, kind, KindReason.ROUTER_NORMALISED, sides)
    if abs(factor / usual - 1) > NEAR_ONE:
        sides = {"target": factor, "reference": usual}
        return _solved(evidence, KindCode.CONSTANT_ARGUMENT, KindReason.ROUTER_FACTOR, sides)
    return None


# -- how experts are chosen ------------------------------------------


def _choosing_fault(
    evidence: Evidence, logits: Floats, offset: Floats | None, target: _Routed, reference: _Routed
) -> Solved | None:
    sides = [_sets(side.index, logits.shape[1]) for side in (target, reference)]
    if np.array_equal(sides[0], sides[1]):
        return None
    scores = (
        "softmax"
        if _weighed(logits, offset, reference, REPRODUCED) is None
        else _kind_of_scores(logits, offset, reference)
    )
    k = target.index.shape[1]
    own, expected = (_chosen(scores_of(scores, logits), offset, side, k) for side in sides)
    if own is None or expected is None or own == expected:
        return None
    code = KindReason.ROUTER_CHOICE
    facts: dict[str, Number | Place] = {}
    for name, way in (("target", own), ("reference", expected)):
        facts[f"{name}_groups"], facts[f"{name}_kept"] = way.groups, way.kept
        facts[f"{name}_by"], facts[f"{name}_biased"] = way.by, way.biased
    return _solved(evidence, KindCode.CONSTANT_ARGUMENT, code, facts)


def _kind_of_scores(logits: Floats, offset: Floats | None, side: _Routed) -> str:
    known = _weighed(logits, offset, side, REPRODUCED)
    return "softmax" if known is None else known[0].scores


def _sets(index: Ints, experts: int) -> Bools:
    """(rows, experts): whether an expert is chosen."""
    out = np.zeros((len(index), experts), dtype=bool)
    np.put_along_axis(out, index, True, axis=1)
    return out


def _chosen(scores: Floats, offset: Floats | None, chosen: Bools, k: int) -> _Choosing | None:
    """The plainest way of choosing that gives the experts of nearly all rows, where no other does."""
    for ways in (_plain_ways(offset), _grouped_ways(scores.shape[1], k, offset)):
        fitting = [
            way
            for way in ways
            if (_sets(_choice(way, scores, offset, k), scores.shape[1]) == chosen).all(axis=1).mean()
            >= NEARLY
        ]
        if fitting:
            return fitting[0] if len(fitting) == 1 else None
    return None


def _plain_ways(offset: Floats | None) -> list[_Choosing]:
    biases = (False,) if offset is None or not offset.any() else (True, False)
    return [_Choosing(biased=biased) for biased in biases]


def _grouped_ways(experts: int, k: int, offset: Floats | None) -> Iterator[_Choosing]:
    for groups in range(2, experts):
        size, rest = divmod(experts, groups)
        for kept in range(1, groups) if not rest and size > 1 else ():
            if kept * size >= k:
                for by in ("max", "sum"):
                    for plain in _plain_ways(offset):
                        yield replace(plain, groups=groups, kept=kept, by=by)


def _choice(way: _Choosing, scores: Floats, offset: Floats | None, k: int) -> Ints:
    choice = scores + offset if way.biased and offset is not None else scores
    if way.groups > 1:
        grouped = choice.reshape(len(choice), way.groups, -1)
        best = np.sort(grouped, axis=2)[..., ::-1]
        value = best[..., 0] if way.by == "max" else best[..., :2].sum(axis=2)
        kept = _sets(np.argsort(-value, axis=1, kind="stable")[:, : way.kept], way.groups)
        choice = np.where(np.repeat(kept, grouped.shape[2], axis=1), choice, -np.inf)
    return np.asarray(np.argsort(-choice, axis=1, kind="stable")[:, :k])


# -- what it adds to the loss ------------------------------------------


def _term_of_scores(evidence: Evidence) -> Solved | None:
    """A term of the loss that weighs experts' mean scores, sum_i v_i mean(p_i) of p = softmax(z), as a loss
    for balance does with v the experts' shares of the tokens: its gradient by a token's logits is
    p (v - p.v) with one v for all tokens. Least squares gives v (but for a number that is added to all of
    it); another term, such as one number an expert, leaves more of the difference."""
    t, r = evidence.target_values, evidence.reference_values
    outputs = (pair for pair in evidence.surroundings.outputs if pair.slot == evidence.origin.slot)
    known = next((pair.given for pair in outputs if pair.agree is not False), None)
    logits = None if known is None else known.values()
    if t is None or r is None or logits is None or not t.shape == r.shape == logits.shape or t.ndim < 2:
        return None
    width = t.shape[-1]
    rows = min(t.size // max(width, 1), FITTED_ROWS, MAX_SLOPES // max(width, 1) ** 2)
    if not 2 < width <= MAX_EXPERTS or rows < MANY_NUMBERS:
        return None
    t, r, z = (one.reshape(-1, width)[:rows] for one in (t, r, logits))
    apart, sides = t - r, float(np.linalg.norm(t) + np.linalg.norm(r))
    if not (np.isfinite(apart).all() and np.isfinite(z).all() and apart.any()):
        return None
    p = scores_of("softmax", z)
    slopes = p[:, :, None] * (np.eye(width) - p[:, None, :])
    normal = np.einsum("nki,nkj->ij", slopes, slopes)
    v = np.linalg.pinv(normal, hermitian=True) @ np.einsum("nki,nk->i", slopes, apart)
    left = float(np.linalg.norm(apart - slopes @ v))
    of_numbers = float(np.linalg.norm(apart - apart.mean(axis=0)))
    rounding = CLOSE_ROUNDINGS * roundoff_of(evidence) * sides
    if left > rounding or left > min(LOSS_FORM_BETTER * of_numbers, HARDLY * float(np.linalg.norm(apart))):
        return None
    sentence = origin_reason(evidence, KindReason.TERM_OF_SCORES, experts=width)
    found = Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=(CauseCode.BALANCE_TERM,))
    return Solved(kind=KindCode.MISSING_OR_EXTRA_TERM, found=found)


def _balance_fault(
    evidence: Evidence, logits: Floats, offset: Floats | None, reference: _Routed
) -> Solved | None:
    """A loss for balance, sum_i f_i P_i with P of all scores or of those of the chosen experts, or a z-loss,
    the mean square of log sum exp: what the two numbers are apart is the one such term exactly, its
    coefficient written with two digits."""
    t, r = evidence.target_values, evidence.reference_values
    rows, experts = logits.shape
    known = _weighed(logits, offset, reference, REPRODUCED)
    if t is None or r is None or r.size != 1 or rows >= FITTED_ROWS or known is None:
        return None
    apart = float(t.ravel()[0] - r.ravel()[0])
    error = CLOSE_ROUNDINGS * evidence.roundoff * max(abs(float(t.ravel()[0])), abs(float(r.ravel()[0])))
    if abs(apart) * NEAR_ONE <= error:
        return None  # too few digits are left to tell a coefficient
    chosen = _sets(reference.index, experts)
    scores = scores_of(known[0].scores, logits)
    shares = {"all": scores, "chosen": np.where(chosen, scores, 0.0)}
    balance = {
        name: float((chosen.mean(axis=0) * (part / part.sum(axis=1, keepdims=True)).mean(axis=0)).sum())
        for name, part in shares.items()
    }
    found: list[Solved] = []
    for factor in (float(experts), experts / reference.index.shape[1], 1.0):
        for name, other in (("all", "chosen"), ("chosen", "all")):
            if abs(factor * (balance[name] - balance[other]) - apart) <= error:
                sides: dict[str, Number | Place] = {"target": name, "reference": other}
                code = KindReason.ROUTER_BALANCE
                found.append(_solved(evidence, KindCode.CONSTANT_ARGUMENT, code, sides))
    top = logits.max(axis=1)
    square = float(np.square(top + np.log(np.exp(logits - top[:, None]).sum(axis=1))).mean())
    coefficient = abs(apart) / square
    plain = float(f"{coefficient:.1e}")
    if abs(coefficient - plain) * square <= error:
        sides = {"side": "target" if apart > 0 else "reference", "coefficient": plain}
        found.append(_solved(evidence, KindCode.MISSING_OR_EXTRA_TERM, KindReason.ROUTER_Z_LOSS, sides))
    return found[0] if len(found) == 1 else None


# -- in which dtype ------------------------------------------


def _rounding_fault(
    evidence: Evidence,
    given: Floats,
    weight: Floats,
    offset: Floats | None,
    target: _Routed,
    reference: _Routed,
) -> Solved | None:
    """Logits made of rounded numbers give the target's weights, where those of full precision give the
    reference's."""
    limit = max(CLOSE_ROUNDINGS * evidence.roundoff, REPRODUCED_EXACTLY)
    logits = given @ weight.T
    known = _weighed(logits, offset, reference, limit)
    same = (target.index == reference.index).all(axis=1)
    if known is None or same.sum() < MIN_NUMBERS:
        return None
    way, factor = known
    gap = (target.weights - reference.weights)[same]
    size = float(np.linalg.norm(gap))
    plain = factor * _made(way, logits, offset, reference.index)
    for dtype in ("float16", "bfloat16") if size > 0 else ():
        rounded = rounded_to(rounded_to(given, dtype) @ rounded_to(weight, dtype).T, dtype)
        other = factor * _made(way, rounded, offset, reference.index)
        left = float(np.linalg.norm(gap - (other - plain)[same])) / size
        if left <= ANGLES_LEAVE:
            rank = EvidenceRank.EVERY_ELEMENT if left < CHANGE_EXPLAINS else EvidenceRank.FITTED
            facts: dict[str, Number | Place] = {"dtype": dtype}
            return _solved(evidence, KindCode.DTYPE_OR_ROUNDING, KindReason.ROUTER_ROUNDED, facts, rank)
    return None


def _solved(
    evidence: Evidence,
    kind: KindCode,
    code: KindReason,
    facts: dict[str, Number | Place],
    rank: EvidenceRank = EvidenceRank.EVERY_ELEMENT,
) -> Solved:
    return Solved(kind=kind, found=Found(rank=rank, sentence=origin_reason(evidence, code, **facts)))
