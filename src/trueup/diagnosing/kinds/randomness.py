"""Other random numbers were drawn."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, permutations

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.arguments import RANDOM_FUNCTIONS
from trueup.diagnosing.kinds.fitting import close, roundoff_of
from trueup.diagnosing.kinds.rule import BEFORE_UPDATE, Found, KindRule, origin_reason
from trueup.diagnosing.kinds.thresholds import CHANCE_Z, DRAWN_VALUES, FULL_SHARE, MIN_NUMBERS
from trueup.matching.names import family
from trueup.types.arrays import Bools, Floats
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode

_MOST_DIMS = 5
"""of a tensor whose orders are tried: 119 beside its own"""


def _dropout(evidence: Evidence) -> Found | None:
    """Dropout masks of the same rate at other places."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.size < DRAWN_VALUES:
        return _dropout_statistics(evidence)
    a, b = t == 0, r == 0
    target, reference, both = int((a & ~b).sum()), int((b & ~a).sum()), ~a & ~b
    # What is zero on both sides may be masked for good: rates are those among what is not.
    if min(target, reference) < MIN_NUMBERS or int(both.sum()) < MIN_NUMBERS:
        return None
    if float(close(t[both], r[both], roundoff_of(evidence)).mean()) < FULL_SHARE:
        return None
    rate = target / (target + int(both.sum()))
    if (locked := _one_along(a, b)) is not None:
        side, dims = locked
        sentence = origin_reason(
            evidence, KindReason.DROPPED_ALONG, side=side, dims=[str(dim) for dim in dims]
        )
        return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=(CauseCode.DRAWN_ONCE,))
    if abs(target - reference) > CHANCE_Z * np.sqrt(target + reference):
        return None
    if (laid := _other_layout(a, b)) is not None:
        side, order = laid
        channels_last = order == (0, *range(2, a.ndim), 1) and a.ndim > 3
        facts = {} if channels_last else {"order": tuple(map(str, order))}
        sentence = origin_reason(evidence, KindReason.DROPPED_IN_OTHER_LAYOUT, side=side, rate=rate, **facts)
        return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=(CauseCode.MEMORY_FORMAT,))
    if (shared := _ranks_drop_the_same(evidence)) is not None:
        return shared
    sentence = origin_reason(
        evidence, KindReason.OTHER_ELEMENTS_DROPPED, rate=rate, target=target, reference=reference
    )
    return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)


def _one_along(target: Bools, reference: Bools) -> tuple[str, tuple[int, ...]] | None:
    """The side whose mask is one all along some dimensions, where the other side's is drawn for each element,
    and these dimensions; rates agree as far as the fewer draws tell. What is zero on both sides is none of
    either mask where that would break it: it may be masked for good."""
    if target.ndim > _MOST_DIMS:
        return None
    free = ~(target & reference)
    wide = [dim for dim in range(target.ndim) if target.shape[dim] > 1]
    subsets = [dims for size in range(len(wide) - 1, 0, -1) for dims in combinations(wide, size)]
    for dims in subsets:
        for side, one, other in (("target", target, reference), ("reference", reference, target)):
            if not _is_one(one & free, free, dims) or _is_one(other & free, free, dims):
                continue
            lines = one.any(axis=dims)
            rates, drawn = (float(lines.mean()), float(other.mean())), (lines.size, other.size)
            spread = sum(drawn_of * (1 - drawn_of) / num for drawn_of, num in zip(rates, drawn, strict=True))
            if lines.size >= DRAWN_VALUES and abs(rates[0] - rates[1]) <= CHANCE_Z * np.sqrt(spread):
                return side, dims
    return None


def _is_one(dropped: Bools, free: Bools, dims: tuple[int, ...]) -> bool:
    """Whether along these dimensions all that may be dropped is, or nothing."""
    some, shown = dropped.any(axis=dims), (free & ~dropped).any(axis=dims)
    return not (some & shown).any()


def _other_layout(target: Bools, reference: Bools) -> tuple[str, tuple[int, ...]] | None:
    """The side that drops the other's elements, counted with its dimensions in another order, and that order:
    numbers are drawn in the order in which a tensor lies in memory."""
    if target.ndim > _MOST_DIMS:
        return None
    for order in list(permutations(range(target.ndim)))[1:]:
        for side, last, first in (("target", target, reference), ("reference", reference, target)):
            if (last.transpose(order).ravel() == first.ravel()).mean() >= FULL_SHARE:
                return side, order
    return None


def _dropout_of_one_side(evidence: Evidence) -> Found | None:
    """Some elements of one side are 0 and all others are the other side's times 1 / (1 - p), with as many
    zeros as a chance of p gives. A mask alone scales nothing. Of a call that returns several tensors, as an
    attention does its weights, any may show it."""
    found = _dropped_in_one(evidence, evidence.target_values, evidence.reference_values)
    if found is not None or evidence.origin.phase != "forward" or "output" not in evidence.origin.slot:
        return found
    for pair in evidence.surroundings.outputs:
        known = pair.target, pair.reference
        if pair.slot == evidence.origin.slot or not all(one is not None and one.is_floating for one in known):
            continue
        t, r = (evidence.values_of(one) if one is not None else None for one in known)
        found = _dropped_in_one(evidence, t, r)
        if found is not None:
            return found
    return None


def _dropped_in_one(evidence: Evidence, t: Floats | None, r: Floats | None) -> Found | None:
    if t is None or r is None or t.shape != r.shape or t.size < DRAWN_VALUES:
        return None
    for side, dropped, whole in (("target", t, r), ("reference", r, t)):
        live = whole != 0
        zeros = live & (dropped == 0)
        kept = live & ~zeros
        num, total = int(zeros.sum()), int(live.sum())
        if num < MIN_NUMBERS or int(kept.sum()) < MIN_NUMBERS or ((dropped != 0) & ~live).any():
            continue
        factor = float(np.median(dropped[kept] / whole[kept]))
        rate = 1.0 - 1.0 / factor if factor > 1 else 0.0
        spread = CHANCE_Z * np.sqrt(total * rate * (1 - rate))
        if rate <= 0 or abs(num - rate * total) > spread:
            continue
        if float(close(dropped[kept], factor * whole[kept], roundoff_of(evidence)).mean()) < FULL_SHARE:
            continue
        sentence = origin_reason(evidence, KindReason.DROPPED_ON_ONE_SIDE, side=side, rate=rate, num=num)
        return Found(
            rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=(CauseCode.DROPOUT_ON_ONE_SIDE,)
        )
    return None


def _dropout_statistics(evidence: Evidence) -> Found | None:
    """A random function whose zeros are as many, give or take chance."""
    t, r = evidence.target, evidence.reference
    if (
        t is None
        or r is None
        or not evidence.same_shape
        or not _is_random(evidence)
        or t.numel < DRAWN_VALUES
    ):
        return None
    p, q = t.statistic("num_zero") / t.numel, r.statistic("num_zero") / r.numel
    if not (0 < p < 1 and abs(p - q) <= CHANCE_Z * np.sqrt(2 * p * (1 - p) / t.numel)):
        return None
    sentence = origin_reason(
        evidence, KindReason.RATES_AGREE, call=evidence.surroundings.name, target=p, reference=q
    )
    return Found(rank=EvidenceRank.CONSISTENT, sentence=sentence)


def _is_random(evidence: Evidence) -> bool:
    around = evidence.surroundings
    short = (around.type or "").lower() if around.kind == "module" else family(around.name)
    return any(word in short for word in RANDOM_FUNCTIONS)


def _recomputed(evidence: Evidence) -> Found | None:
    """Recomputation in backward gave other values than the forward it repeats. That of a module beside says
    it of random functions alone: they draw from one state."""
    if evidence.origin.phase not in ("backward", "param_grad"):
        return None
    apart = [p for p in evidence.elsewhere.recomputed if p.agree is False]
    if not apart or apart[0].target is None:
        return None
    call, module = apart[0].target.name.rpartition(", ")[0], evidence.origin.module
    is_beside = bool(module) and not f"{call}.".startswith(f"{module}.")
    if is_beside and not _is_random(evidence):
        return None
    return Found(
        rank=EvidenceRank.EVERY_ELEMENT,
        sentence=origin_reason(evidence, KindReason.RECOMPUTED_OTHERWISE, place=apart[0].target.name),
        causes=(CauseCode.STATE_NOT_RESTORED,),
        advice=AdviceCode.RESTORE_STATE,
    )


def _one_stream(evidence: Evidence) -> Found | None:
    """Ranks that should draw their own numbers drop the same elements."""
    return _ranks_drop_the_same(evidence) if _is_random(evidence) else None


def _ranks_drop_the_same(evidence: Evidence) -> Found | None:
    """Of what is known to be drawn."""
    elsewhere = evidence.elsewhere
    if len(elsewhere.target_ranks) < 2 or len(elsewhere.reference_ranks) < 2:
        return None
    others = [known for _, known in elsewhere.reference_ranks[:2]]
    reference = [evidence.values_of(known) for known in others]
    target = [evidence.values_of(known) for _, known in elsewhere.target_ranks[:2]]
    for at, (known, other) in enumerate(zip(elsewhere.target_ranks, others, strict=False)):
        if target[at] is None and known[1].digest == other.digest is not None:  # a replay keeps what differs
            target[at] = reference[at]
    if any(v is None or v.size < DRAWN_VALUES or v.all() for v in (*target, *reference)):
        return None  # nothing is dropped
    if not _same_zeros(target) or _same_zeros(reference):
        return None
    return Found(
        rank=EvidenceRank.EVERY_ELEMENT,
        sentence=origin_reason(evidence, KindReason.RANKS_DROP_THE_SAME),
        causes=(CauseCode.SHARED_STREAM,),
    )


def _same_zeros(ranks: list[Floats | None]) -> bool:
    a, b = ranks
    return a is not None and b is not None and a.shape == b.shape and bool(((a == 0) == (b == 0)).all())


def _generators(evidence: Evidence) -> Found | None:
    """What a module computes that draws random numbers, in one run alone or where the generators of both do
    not stand alike as it begins. Both runs call it by one name; a fault beside the draws cannot be told."""
    origin, runs = evidence.origin, (evidence.target_run, evidence.reference_run)
    target, reference = (run.draws for run in runs)
    if origin.phase != "forward" or target is None or reference is None:
        return None
    if not all(origin.module in run.modules for run in runs):
        return None
    at = (origin.microbatch or 0, origin.module)
    sides = [side for side, of in (("target", target), ("reference", reference)) if at in of]
    if len(sides) == 1:
        sentence = origin_reason(evidence, KindReason.DRAWS_IN_ONE_RUN, side=sides[0])
        return Found(rank=EvidenceRank.CONSISTENT, sentence=sentence, causes=(CauseCode.NOISE_ON_ONE_SIDE,))
    if not sides or target[at] == reference[at]:
        return None
    alike = _stood_alike(target, reference, at)
    causes = (CauseCode.DRAWN_BEFORE,) if alike else (CauseCode.OTHER_SEED, CauseCode.DRAWN_BEFORE)
    if at in runs[0].drawn_by_ranks and at not in runs[1].drawn_by_ranks:  # as the reference's ranks do not
        causes = (CauseCode.SHARED_STREAM,)
    sentence = origin_reason(evidence, KindReason.GENERATOR_ELSEWHERE, **alike)
    return Found(rank=EvidenceRank.FITTED, sentence=sentence, causes=causes)


def _stood_alike(target: _Draws, reference: _Draws, at: tuple[int, str]) -> dict[str, str]:
    """The last module before one as which began the generators of both stood alike; of those that enclose it
    the innermost, where there is no other."""
    microbatch, module = at
    alike = [name for m, name in target if m == microbatch and target[m, name] == reference.get((m, name))]
    around = [name for name in alike if not name or f"{module}.".startswith(f"{name}.")]
    beside = [name for name in alike if name not in around]
    return {"after": (beside[-1:] or around)[0]} if alike else {}


_Draws = Mapping[tuple[int, str], tuple[int, ...]]


def _draws(evidence: Evidence) -> Found | None:
    """Unlike element by element, alike as a whole: two draws from one distribution."""
    t, r, vectors = evidence.target, evidence.reference, evidence.vectors
    if t is None or r is None or vectors is None or t.numel < DRAWN_VALUES or not t.is_floating:
        return None
    if evidence.origin.phase != "param" and not _is_random(evidence):
        return None
    if vectors.norm == 0 or vectors.target_norm == 0:
        return None
    mean_t, mean_r = t.statistic("mean"), r.statistic("mean")
    std_t, std_r = (
        np.sqrt(max(k.statistic("l2_norm") ** 2 / k.numel - k.statistic("mean") ** 2, 0.0)) for k in (t, r)
    )
    if not (std_t > 0 and std_r > 0):
        return None
    alike = abs(std_t / std_r - 1) < CHANCE_Z / np.sqrt(t.numel) * 2
    alike = alike and abs(mean_t - mean_r) < CHANCE_Z * std_r * np.sqrt(2 / t.numel)
    cosine = float(np.dot(vectors.target, vectors.reference)) / (vectors.norm * vectors.target_norm)
    centre = mean_t * mean_r * t.numel / (t.statistic("l2_norm") * r.statistic("l2_norm"))
    if not alike or abs(cosine - centre) > CHANCE_Z / np.sqrt(min(t.numel, vectors.size)):
        return None
    sentence = origin_reason(evidence, KindReason.ANOTHER_DRAW, target=std_t, reference=std_r, cosine=cosine)
    return Found(rank=EvidenceRank.FITTED if vectors.exact else EvidenceRank.CONSISTENT, sentence=sentence)


RULE = KindRule(
    code=KindCode.RANDOMNESS,
    family=KindClass.MODEL,
    looks=(_one_stream, _recomputed, _dropout, _dropout_of_one_side, _draws, _generators),
    causes=(CauseCode.OTHER_SEED, CauseCode.STATE_NOT_RESTORED, CauseCode.SHARED_STREAM),
    in_phases={CauseCode.STATE_NOT_RESTORED: BEFORE_UPDATE},
    advice=AdviceCode.SEED_ALIKE,
    place="zeros at other places look like a mask; that they are as many says that they were drawn",
)
