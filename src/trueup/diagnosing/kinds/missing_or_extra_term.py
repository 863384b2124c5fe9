"""The difference is another tensor: one term of a sum too few, too many, or with another factor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

import numpy as np

from trueup.diagnosing.evidence import Evidence, Known, SlotPair, Vectors
from trueup.diagnosing.evidence.vectors import length
from trueup.diagnosing.kinds.fitting import (
    at_most,
    explained,
    fit,
    holds_everywhere,
    rank_of,
    roundoff_of,
)
from trueup.diagnosing.kinds.other_use import other_use
from trueup.diagnosing.kinds.rule import Found, KindRule, origin_reason
from trueup.diagnosing.kinds.solved import solved
from trueup.diagnosing.kinds.taken import call_of, is_input, taken
from trueup.diagnosing.kinds.thresholds import (
    ALIKE_COSINE,
    APPLIED_ROUNDINGS,
    CLOSE_ROUNDINGS,
    FACTOR_NEAR_ONE,
    FULL_SHARE,
    MANY_NUMBERS,
    MIN_NUMBERS,
    MOST_SHARE,
    REPEATED_ROWS,
    SINGLE_NEAR_ONE,
    SOLVED_RESIDUAL,
    SOME_SHARE,
    SUMMED_ROUNDINGS,
    UNRELATED,
)
from trueup.numerics.activations import ACTIVATIONS
from trueup.types.arrays import Floats
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode
from trueup.types.reason import Reason

_MAX_CANDIDATES = 64
_MAX_COMPARED = 6


def _comparable(evidence: Evidence) -> Vectors | None:
    vectors = evidence.vectors if evidence.same_shape else None
    return None if vectors is None or vectors.difference == 0 else vectors


# -- nothing at all ------------------------------------------


def side_of_nothing(evidence: Evidence) -> str | None:
    """Which side's floating result is zero everywhere, where the other's is zero nowhere that counts: no mask
    hides all, and a branch that is switched off returns nothing else."""
    t, r = evidence.target_values, evidence.reference_values
    known = evidence.target
    if evidence.origin.phase != "forward" or known is None or not known.is_floating:
        return None
    if t is None or r is None or t.shape != r.shape or t.size < MIN_NUMBERS:
        return None
    for side, nothing, other in (("target", t, r), ("reference", r, t)):
        if not nothing.any() and np.isfinite(other).all() and (other != 0).mean() > FULL_SHARE:
            return side
    return None


def _all_zero(evidence: Evidence) -> Found | None:
    side = side_of_nothing(evidence)
    if side is None:
        return None
    return Found(
        rank=EvidenceRank.EVERY_ELEMENT, sentence=origin_reason(evidence, KindReason.ALL_ZERO, side=side)
    )


# -- a tensor of the same shape ------------------------------------------


def _term(evidence: Evidence) -> Found | None:
    """t - r is a multiple of a tensor known nearby."""
    vectors = _comparable(evidence)
    if vectors is None:
        return None
    best: Found | None = None
    for name, known in _promising(evidence):
        x = vectors.like(known)
        if x is None or _alike(x, vectors.reference) or _alike(x, vectors.target):
            continue
        if _is_made_of_both(evidence, known):
            continue
        found = fit(vectors.target - vectors.reference, x)
        if found is None or (vectors.num_values == 1 and abs(abs(found.factor) - 1) > SINGLE_NEAR_ONE):
            continue
        share = explained(evidence, vectors, found.residual, z=found.z)
        # With a tensor and a factor to choose, more of the difference must be explained.
        rank = rank_of(share, vectors, least=SOME_SHARE if _is_one(found.factor) else MOST_SHARE)
        if rank is None or not holds_everywhere(evidence, x, found.factor):
            continue
        if not _is_one(found.factor):
            if vectors.exact and found.residual > _rounded(evidence, vectors):
                continue  # resembles it: of what was normalised, each row has a factor of its own
            rank = at_most(rank, EvidenceRank.FITTED)
        if best is None or (-rank.place, share) > (-best.rank.place, best.measure):
            best = Found(rank=rank, measure=share, sentence=_term_reason(evidence, found.factor, name))
    return best


def _is_made_of_both(evidence: Evidence, term: Known) -> bool:
    """Whether a call was given the target's value and the reference's, and made the term of them: that t is
    r + (t - r) holds of any two tensors and tells nothing."""
    t, r = evidence.target, evidence.reference
    if t is None or r is None:
        return False
    call = call_of(term)
    for side in ("target", "reference"):
        known = [one for pair in _pairs(evidence) if (one := getattr(pair, side)) is not None]
        given = [one for one in known if call_of(one) == call and is_input(one)]
        if given and all(any(one.same_bits(whole) for one in given) for whole in (t, r)):
            return True
    return False


def _rounded(evidence: Evidence, vectors: Vectors) -> float:
    """What a few roundings of either side leave over."""
    relative = max(CLOSE_ROUNDINGS * vectors.rounding, evidence.origin.tolerance or 0.0)
    return relative * max(vectors.norm, vectors.target_norm)


def _raised(evidence: Evidence) -> Found | None:
    """What is left of both sides without one tensor that both have, and divided by another, are positive
    numbers of which one side's are the other's to one power: a variance where the other multiplies by a
    deviation, a root or a half of a logarithm left out (docs/decisions/0096)."""
    vectors = _comparable(evidence)
    if vectors is None or not vectors.exact or vectors.num_values < MANY_NUMBERS:
        return None
    if evidence.origin.phase != "forward" or vectors.one_sided:
        return None
    shared: list[tuple[str | None, Floats | None]] = [(None, None), *_shared_tensors(evidence, vectors)]
    step = max(len(vectors.target) // _MOST_RAISED, 1)
    t, r = vectors.target[::step], vectors.reference[::step]
    for (less, a), (over, b) in product(shared, shared):
        if less is not None and less == over:
            continue
        given = [None if one is None else one[::step] for one in (a, b)]
        own, other = (_log_and_slack(x, given[0], given[1], roundoff_of(evidence)) for x in (t, r))
        power = None if own is None or other is None else _power(*own, *other)
        if power is not None:
            sentence = origin_reason(
                evidence, KindReason.RAISED, power=power, less=less or "", over=over or ""
            )
            return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)
    return None


_MOST_RAISED = 1 << 16
"""numbers that are looked at"""


def _shared_tensors(evidence: Evidence, vectors: Vectors) -> list[tuple[str, Floats]]:
    """The first few floating tensors around that both sides' code worked on, bit for bit, of this shape."""
    found: dict[str, Floats] = {}
    bits: list[Known] = []
    for pair in _pairs(evidence):
        known = pair.reference
        if known is None or not known.is_floating or not pair.agree or any(map(known.same_bits, bits)):
            continue
        values = vectors.like(known)
        if values is not None and values.any():
            bits.append(known)
            found[known.name] = values
        if len(found) >= _MAX_COMPARED:
            break
    return list(found.items())


def _log_and_slack(
    x: Floats, less: Floats | None, over: Floats | None, rounding: float
) -> tuple[Floats, Floats] | None:
    """log((x - less) / over) of numbers, and how far roundings move it: infinitely where too little is left
    or the divisor is zero; None where that is half of them, or where any other quotient is not positive."""
    rest, size = (x, np.abs(x)) if less is None else (x - less, np.abs(x) + np.abs(less))
    divisor = np.ones_like(x) if over is None else over
    slack = CLOSE_ROUNDINGS * rounding * size
    known = (np.abs(rest) > slack) & (divisor != 0)
    quotient = np.divide(rest, divisor, out=np.ones_like(x), where=known)
    if 2 * known.sum() <= len(x) or quotient.min() <= 0:
        return None
    return np.log(quotient), np.divide(slack, np.abs(rest), out=np.full_like(x, np.inf), where=known)


def _power(target: Floats, own: Floats, reference: Floats, other: Floats) -> float | None:
    """k of ``target = k reference`` where that holds of every number within its slack; None where none does,
    where the reference's are nearly one number, or k is 1 or 0."""
    known = np.isfinite(own) & np.isfinite(other)
    if known.sum() < MANY_NUMBERS:
        return None
    t, r, error = target[known], reference[known], (own + other)[known]
    square = float(np.dot(r / error, r / error))
    if square == 0:
        return None
    power = float(np.dot(t / error, r / error)) / square
    apart = np.abs(t - power * r) <= error * max(1.0, abs(power))
    # One factor for all, or none at all on one side, is no power: numbers must be told apart from both.
    away = min(abs(power - 1), abs(power)) * np.abs(r - np.median(r))
    is_clear = 2 * (away > 2 * error * max(1.0, abs(power))).mean() > 1
    return power if apart.all() and is_clear else None


def _may_be_one(name: str, other: str, both: Sequence[set[str]]) -> bool:
    """Whether both are one tensor of the two runs, so that a difference came in with it; or each is of one
    run alone, perhaps counterparts that are apart for the same reason. ``both``: names of what both have."""
    return name == other or {name, other} in both or not {name, other} & set().union(*both)


def _in_place(evidence: Evidence) -> Found | None:
    """t - r is one tensor known nearby less another one: the first is added in place of the second."""
    vectors = _comparable(evidence)
    if vectors is None or not vectors.exact or vectors.num_values < MIN_NUMBERS:
        return None
    known = [(name, x) for name, one in _candidates(evidence) if (x := vectors.like(one)) is not None]
    known = known[:_MAX_COMPARED]
    difference = vectors.target - vectors.reference
    allowed = min(_rounded(evidence, vectors), (1.0 - FULL_SHARE) * vectors.difference)
    both = [{p.target.name, p.reference.name} for p in _pairs(evidence) if p.target and p.reference]
    for (name, x), (other, y) in permutations(known, 2):
        if _may_be_one(name, other, both):
            continue
        if min(length(x), length(y)) <= 2 * allowed or length(x - y) <= 2 * allowed:
            continue  # as much as nothing, or alike: one of them alone, or another would do as well
        if length(difference - x + y) <= allowed and holds_everywhere(evidence, x - y, 1.0):
            sentence = origin_reason(evidence, KindReason.TERM_IN_PLACE, term=name, other=other)
            return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)
    return None


def _pairs(evidence: Evidence) -> list[SlotPair]:
    """What stands around the origin, of both runs, and of its parameter what there was before."""
    around = evidence.surroundings
    pairs = [*around.inputs, *around.parameters, *around.nearby]
    if evidence.parameter is not None:
        facts = evidence.parameter
        made_since = () if evidence.origin.phase == "param_grad" else facts.updated
        pairs += [facts.before, *(p for _, p in facts.gradients), *made_since, *facts.state_before]
    return pairs


def _candidates(evidence: Evidence) -> Iterator[tuple[str, Known]]:
    """Tensors of the origin's shape that a term may have been: of the module, or of the parameter."""
    own = (evidence.target, evidence.reference)
    seen: list[Known] = []
    for pair in _pairs(evidence):
        for known in (pair.reference, pair.target):
            if known is None or own[0] is None or known.shape != own[0].shape or not known.is_floating:
                continue
            if any(known.same_bits(o) for o in own if o is not None) or any(known.same_bits(s) for s in seen):
                continue
            seen.append(known)
            if len(seen) > _MAX_CANDIDATES:
                return
            yield known.name, known


def _promising(evidence: Evidence) -> list[tuple[str, Known]]:
    """The few candidates whose sketches lie along the difference; all where there are no sketches."""
    t, r = evidence.target, evidence.reference
    every = list(_candidates(evidence))
    if t is None or r is None or t.sketch is None or r.sketch is None or len(every) <= _MAX_COMPARED:
        return every
    difference = t.sketch - r.sketch
    left = []
    for name, known in every:
        found = None if known.sketch is None else fit(difference, known.sketch)
        left.append((np.inf if found is None else found.residual, name, known))
    left.sort(key=lambda entry: entry[0])
    return [(name, known) for _, name, known in left[:_MAX_COMPARED]]


def _alike(x: Floats, y: Floats) -> bool:
    sizes = length(x) * length(y)
    return len(x) > 1 and sizes > 0 and abs(float(np.dot(x, y))) > ALIKE_COSINE * sizes


def _is_one(factor: float) -> bool:
    return abs(abs(factor) - 1) < FACTOR_NEAR_ONE


def _term_reason(evidence: Evidence, factor: float, name: str) -> Reason:
    code = KindReason.TERM
    if _is_one(factor):
        code = KindReason.TERM_MISSING if factor < 0 else KindReason.TERM_EXTRA
    return origin_reason(evidence, code, term=name, factor=factor)


# -- a step left out ------------------------------------------


def _skipped(evidence: Evidence) -> Found | None:
    """The target's value is, bit for bit, another tensor the reference had on its way here."""
    if _comparable(evidence) is None or evidence.origin.phase not in ("forward", "backward"):
        return None
    found = taken(evidence)
    if (
        found is None
        or found.is_beside
        or found.is_usual_before
        or found.other.name == _own_name(evidence)
        or _leaves_out_some(evidence, found.other)
    ):
        return None
    sentence = origin_reason(evidence, KindReason.STEP_LEFT_OUT, place=found.other.name)
    return Found(rank=EvidenceRank.FITTED, sentence=sentence)


def _module_left_out(evidence: Evidence) -> Found | None:
    """One run has, bit for bit, what a module is given where the other has what that module returns."""
    t, r = evidence.target, evidence.reference
    if (
        t is None
        or r is None
        or not evidence.same_shape
        or t.numel < MIN_NUMBERS
        or t.same_bits(r) is not False
    ):
        return None
    for maker in evidence.surroundings.makers:
        other, values = (
            (t, evidence.reference_values) if maker.side == "reference" else (r, evidence.target_values)
        )
        if "drop" in (maker.type or "").lower() or values is None:
            continue  # chance may leave out what it likes
        for given in maker.given:
            before = evidence.values_of(given) if given.same_bits(other) else None
            if before is None or before.shape != values.shape or _keeps_rows(before, values):
                continue
            side = "target" if maker.side == "reference" else "reference"
            sentence = origin_reason(evidence, KindReason.MODULE_LEFT_OUT, skipped=maker.module, side=side)
            return Found(rank=EvidenceRank.STATED, sentence=sentence, causes=(CauseCode.STEP_OF_COMPUTATION,))
    return None


def _keeps_rows(before: Floats, after: Floats) -> bool:
    """Whether a module hands on some samples as they are, as stochastic depth does."""
    return before.ndim > 1 and bool((before == after).reshape(len(before), -1).all(axis=1).any())


def _own_name(evidence: Evidence) -> str:
    """What another call of the module names the same slot: nothing lies between the two."""
    return f"{evidence.surroundings.module or '(root)'}, {evidence.origin.slot}"


def _leaves_out_some(evidence: Evidence, other: Known) -> bool:
    """Whether the reference leaves the step out for some of its samples: chance decides then (stochastic
    depth), and the target's draw may have been one for all."""
    r, held = evidence.reference_values, evidence.values_of(other)
    if r is None or held is None or r.shape != held.shape or r.ndim < 2:
        return False
    return bool((r == held).reshape(len(r), -1).all(axis=1).any())


def _activation_of_one_side(evidence: Evidence) -> Found | None:
    """One side's values are an activation function of the other's, element by element."""
    t, r, vectors = evidence.target_values, evidence.reference_values, _comparable(evidence)
    if t is None or r is None or vectors is None or evidence.origin.phase != "forward":
        return None
    if t.size < MIN_NUMBERS or t.shape != r.shape:
        return None
    if not (np.isfinite(t).all() and np.isfinite(r).all()):
        return None
    rounding = roundoff_of(evidence)
    for side, applied, plain in (("target", t, r), ("reference", r, t)):
        if not (plain < 0).any():  # of positive numbers relu is the identity
            continue
        for name, function in ACTIVATIONS.items():
            slack = APPLIED_ROUNDINGS * rounding * np.maximum(np.abs(plain), np.abs(applied))
            if (np.abs(function(plain) - applied) <= slack).all():
                sentence = origin_reason(
                    evidence, KindReason.ACTIVATION_OF_ONE_SIDE, side=side, function=name
                )
                return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)
    return None


# -- the same vector in every row ------------------------------------------


def _broadcast(evidence: Evidence) -> Found | None:
    """t - r constant along some dimensions: a bias, a table added to every sample, one number."""
    vectors, d = _comparable(evidence), _difference(evidence)
    if vectors is None or d is None:
        return None
    for repeated in _repeated_dims(d.shape):
        rows = int(np.prod([d.shape[i] for i in repeated]))
        if rows < REPEATED_ROWS:
            continue
        mean = d.mean(axis=repeated, keepdims=True)
        residual = length((d - mean).ravel())
        effect = length(mean.ravel()) * np.sqrt(rows)
        z = _above_chance(effect, residual, mean.size, d.size)
        share = explained(evidence, vectors, residual, z=z)
        rank = rank_of(share, vectors, least=MOST_SHARE)
        kept = [dim for dim in range(d.ndim) if dim not in repeated]
        if (not kept or (0 in kept and len(d) > 1)) and share < FULL_SHARE:
            continue  # a number for each row of each sample is no bias, and nearly equal numbers round alike
        if rank is not None and holds_everywhere(evidence, np.broadcast_to(mean, d.shape), 1.0):
            found = _repeated(evidence, np.squeeze(mean), kept, rank, share, num_samples=len(d))
            if found.sentence.code not in _UNKNOWN or _is_exact(evidence, vectors, residual):
                return found
    return None


def _is_exact(evidence: Evidence, vectors: Vectors, residual: float) -> bool:
    """Whether numbers that nobody knows, as many as a row has, leave no more than roundings: they explain a
    good part of any rows that are alike, and what rounding hides of them."""
    rounding = max(vectors.rounding, evidence.origin.tolerance or 0.0)
    left = CLOSE_ROUNDINGS * rounding * max(vectors.norm, vectors.target_norm)
    return explained(evidence, vectors, residual) >= MOST_SHARE and residual <= left


_UNKNOWN = (KindReason.OFFSET_BY_ROW, KindReason.OFFSET_BY_TABLE)


def _difference(evidence: Evidence) -> Floats | None:
    """t - r of floating values, all finite."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.ndim < 1 or t.size < REPEATED_ROWS:
        return None
    if evidence.target is None or not evidence.target.is_floating:
        return None
    with np.errstate(invalid="ignore"):
        d: Floats = t - r
    return d if np.isfinite(d).all() else None


def _above_chance(effect: float, residual: float, num_fitted: int, num: int) -> float:
    """Standard errors by which ``num_fitted`` means explain more than they would of mere scatter."""
    if residual == 0 or num_fitted * 2 > num:
        return np.inf if residual == 0 else 0.0
    with np.errstate(over="ignore"):
        ratio = float(np.square(np.float64(effect) / residual)) * (num - num_fitted)
    return float((ratio - num_fitted) / np.sqrt(2.0 * num_fitted))


def _repeated_dims(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Which dimensions the difference may be constant along, the most first."""
    num = len(shape)
    return list(dict.fromkeys([tuple(range(num)), tuple(range(num - 1)), (0,), (num - 1,)]))


def _repeated(
    evidence: Evidence, mean: Floats, kept: list[int], rank: EvidenceRank, share: float, *, num_samples: int
) -> Found:
    """Which vector it is that was added, if it is one that is known."""
    if mean.ndim == 0:
        sentence = origin_reason(evidence, KindReason.OFFSET, offset=float(mean))
        return Found(rank=at_most(rank, EvidenceRank.FITTED), measure=share, sentence=sentence)
    for name, candidate in _vectors_of_shape(evidence, mean):
        found = fit(mean.ravel(), candidate.ravel())
        if found is not None and found.residual < SOLVED_RESIDUAL * length(mean.ravel()):
            least = rank if _is_one(found.factor) else at_most(rank, EvidenceRank.FITTED)
            return Found(rank=least, measure=share, sentence=_term_reason(evidence, found.factor, name))
    if 0 in kept and num_samples > 1:
        sentence = origin_reason(evidence, KindReason.OFFSET_BY_ROW)
    else:
        shape, dims = [str(n) for n in mean.shape], [str(dim) for dim in kept]
        sentence = origin_reason(evidence, KindReason.OFFSET_BY_TABLE, dims=dims, shape=shape)
    return Found(rank=at_most(rank, EvidenceRank.FITTED), measure=share, sentence=sentence)


def _vectors_of_shape(evidence: Evidence, mean: Floats) -> Iterator[tuple[str, Floats]]:
    around = evidence.surroundings
    for pair in (*around.parameters, *around.inputs, *around.nearby):
        for known in (pair.reference, pair.target):
            values = None
            if known is not None and known.numel == mean.size and known.is_floating:
                values = known.values()
            if known is None or values is None or not np.isfinite(values).all():
                continue
            if np.squeeze(values).shape == mean.shape:
                yield (pair.slot if pair in around.parameters else known.name), np.squeeze(values)


# -- what is left ------------------------------------------


def by_elimination(evidence: Evidence) -> Found | None:
    """Where no kind is seen: a guess, and said to be one."""
    vectors = evidence.vectors
    if vectors is None or evidence.origin.phase not in ("forward", "loss", "backward", "param_grad"):
        return None
    if not SUMMED_ROUNDINGS * vectors.rounding < vectors.rel < UNRELATED:
        return None
    facts = {"single": 1} if vectors.num_values == 1 else {} if vectors.exact else {"of_sketches": 1}
    sentence = origin_reason(evidence, KindReason.NOTHING_ELSE, rel_l2=vectors.rel, **facts)
    return Found(rank=EvidenceRank.BY_ELIMINATION, sentence=sentence)


RULE = KindRule(
    code=KindCode.MISSING_OR_EXTRA_TERM,
    family=KindClass.MODEL,
    looks=(
        solved(KindCode.MISSING_OR_EXTRA_TERM),
        _all_zero,
        other_use,
        _activation_of_one_side,
        _module_left_out,
        _skipped,
        _broadcast,
        _in_place,
        _raised,
        _term,
    ),
    causes=(CauseCode.TERM_LEFT_OUT, CauseCode.STEP_OF_COMPUTATION),
    advice=AdviceCode.COMPARE_TERMS,
    place="last of those that explain every element: nearly any other kind adds a term, and says which",
)
