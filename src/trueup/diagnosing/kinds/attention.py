"""What an attention did, told by computing it again: from the reference's queries, keys and values to what
goes into its output projection, first as the reference must have done it, then with one thing changed.

Needs no calls inside: a fused kernel, another framework and a module captured from outside are all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np

from trueup.comparing.thresholds import MASKED_BELOW
from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.evidence.facts import Known
from trueup.diagnosing.kinds.attended import PAIRINGS, Attention, Triple
from trueup.diagnosing.kinds.rule import Found, origin_reason
from trueup.diagnosing.kinds.solved import Solved
from trueup.diagnosing.kinds.thresholds import (
    ANGLES_LEAVE,
    CHANGE_EXPLAINS,
    CHANGE_LEAVES,
    CLOSE_ROUNDINGS,
    FULL_SHARE,
    REPRODUCED,
    REPRODUCED_EXACTLY,
    SOFTMAX_LEAVES,
    UNIT_CIRCLE,
)
from trueup.types.arrays import Bools, Floats
from trueup.types.codes.kinds import CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindCode
from trueup.types.reason import Number, Place

HEAD_SIZES = (64, 128, *(size for size in range(4, 258, 2) if size not in (64, 128)))
"""those of large models first: of heads that explain alike, the first"""
THETAS = (1e2, 1e8)
"""between which a rotary theta is searched for"""
ALIBI = 8.0
"""head i of n has the slope 2 ** (-8 i / n): ALiBi, of numbers of heads that are powers of two"""
TOKENS, FEW_TOKENS = 96, 24
"""looked at of one sequence: enough to tell, quick for a large model; fewer while theta is searched for"""
THETA_NEAR = 1.1
"""times the theta of few tokens, within which that of all is searched for"""
MAX_SOURCES = 12
"""places of q, k and v that are tried"""
LIKELIEST = 6
"""ways, by what they leave, of which further numbers are searched for"""
CAPS = (1.0, 500.0)
"""between which a cap of the scores is searched for: models have 20 to 50"""
SLOPES = (0.05, 8.0)
"""between which the step of ALiBi's exponents is searched for: 8 by the number of heads"""


def attention_fault(evidence: Evidence) -> Solved | None:
    """How the target attends otherwise; None where the site is no attention or the way is none known."""
    t, r = _made(evidence)
    if t is None or r is None or t.shape != r.shape or t.ndim != 3 or evidence.origin.phase != "forward":
        return None
    finite: Bools = np.asarray(np.isfinite(t).all(axis=(1, 2)))
    if not finite.any() or not np.isfinite(r).all() or t.shape[-1] % 8:
        return None
    around = evidence.surroundings
    words = (*around.module.split("."), *around.name.split("."), around.type or "")
    if not any("att" in word.lower() and "norm" not in word.lower() for word in words):
        return None  # a norm behind an attention is none
    # Rows that see nothing are zeros or NaN: what is left must tell.
    made: Bools = np.asarray(finite & t.any(axis=(1, 2)) & r.any(axis=(1, 2)))
    apart = np.linalg.norm(np.where(finite[:, None, None], t - r, 0.0).reshape(len(t), -1), axis=1)
    row = _row(evidence, np.where(made, apart, 0.0) if (made & (apart > 0)).any() else apart)
    hints = _hints(evidence, t.shape, row)
    for given in _sources(evidence, t.shape, row):
        found = _explained(evidence, given, hints, t[row, :TOKENS], r[row, :TOKENS])
        if found is not None:
            of_all = finite.all() or found.found.sentence.code is KindReason.MASK_INVERTED
            return found if of_all else None
    return None


def _row(evidence: Evidence, apart: Floats) -> int:
    """The sequence that is looked at: the one that differs most, of those with the fewest tokens that see
    nothing, as pads before a sequence do. What is made for those is a program's own choice."""
    blind = np.zeros(len(apart))
    for pair in evidence.surroundings.nearby:
        mask = (pair.reference or pair.target) if pair.slot.startswith("input") else None
        if mask is None or len(mask.shape) < 3 or mask.shape[0] != len(apart) or mask.shape[-2] == 1:
            continue
        values = mask.values() if mask.is_floating or mask.dtype == "bool" else None
        if values is None or not (mask.dtype == "bool" or (values <= MASKED_BELOW).any()):
            continue
        planes = values.reshape(len(values), -1, values.shape[-1])
        hidden = (planes == 0, planes != 0) if mask.dtype == "bool" else (planes <= MASKED_BELOW,)
        blind += sum(one.all(axis=-1).sum(axis=-1) for one in hidden)
    likely = np.flatnonzero((blind == blind.min()) & (apart > 0))
    return int(likely[np.argmax(apart[likely])] if len(likely) else np.argmax(apart))


def _made(evidence: Evidence) -> tuple[Floats | None, Floats | None]:
    """What attention gave on both sides: the origin's values; of attention weights what the module made of
    them, and gave on."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or t.ndim != 4 or t.shape[-1] != t.shape[-2]:
        return t, r
    for pair in evidence.surroundings.nearby:
        given, other = pair.target, pair.reference
        if pair.agree is not False or given is None or other is None or not pair.slot.startswith("input"):
            continue
        if given.shape == other.shape and given.shape[:-1] == (len(t), t.shape[-1]):
            return given.values(), other.values()
    return None, None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What stands around the attention tells of it."""

    heads: tuple[int, ...] = HEAD_SIZES
    """sizes of a head, likeliest first"""
    table: tuple[Floats, Floats] | None = None
    """cosines and sines of a rotary embedding, (tokens, half a head)"""
    hidden: tuple[Bools, ...] = ()
    """what masks of the sequence that is looked at may hide, (tokens, keys); none that hides all of a row"""


# In one piece: one line a hint, each of which may be missing.
def _hints(evidence: Evidence, shape: tuple[int, ...], row: int) -> Hints:
    """Heads by the attention weights' shape; masks, cosines and sines as the module was given them."""
    given, made = (
        [
            k
            for p in evidence.surroundings.nearby
            if p.slot.startswith(head) and (k := p.reference or p.target)
        ]
        for head in ("input", "output")
    )
    tokens, width = shape[1:]
    heads = [width // one.shape[1] for one in made if _is_weights(one.shape, tokens, width)]
    planes = [one for one in given if len(one.shape) > 2 and one.shape[-2] in (1, tokens)]
    planes += [one for one in given if one.shape == (shape[0], tokens) and one.dtype == "bool"]
    masks = [mask for one in planes for mask in _hidden(one, row, tokens)]
    table = _table([one for one in given if one.shape[-2:-1] == (tokens,) and one.shape[-1] < width])
    if table is not None:
        heads.insert(0, 2 * table[0].shape[1])
    fitting = dict.fromkeys(h for h in (*heads, *HEAD_SIZES) if h % 2 == 0)
    return Hints(heads=tuple(fitting), table=table, hidden=tuple(masks))


def _is_weights(shape: tuple[int, ...], tokens: int, width: int) -> bool:
    """Whether it is the shape of attention weights, (rows, heads, tokens, tokens)."""
    return len(shape) == 4 and shape[2] == tokens and shape[1] > 0 and width % shape[1] == 0


def _table(known: Sequence[Known]) -> tuple[Floats, Floats] | None:
    """Cosines and sines of the first sequence among what stands side by side."""
    for one, other in pairwise(known):
        alike = one.shape == other.shape and len(one.shape) > 2
        cos, sin = (x.values() if x.is_floating and alike else None for x in (one, other))
        if cos is not None and sin is not None and on_unit_circle(cos, sin):
            first, second = (x.reshape(-1, *x.shape[-2:])[0, :TOKENS] for x in (cos, sin))
            return _halved(first), _halved(second)
    return None


def on_unit_circle(cosines: Floats, sines: Floats) -> bool:
    """Whether two tables are the cosines and sines of some angles."""
    return bool((np.abs(cosines**2 + sines**2 - 1.0) <= UNIT_CIRCLE).all())


def _halved(table: Floats) -> Floats:
    """One entry for each pair that is rotated together: they stand in two halves, or side by side."""
    half = table.shape[1] // 2
    return table[:, :half] if np.array_equal(table[:, :half], table[:, half:]) else table[:, ::2]


def _hidden(mask: Known, row: int, tokens: int) -> Iterator[Bools]:
    """What a mask hides of one sequence; of booleans those that are false, or those that are true."""
    values = mask.values() if mask.is_floating or mask.dtype == "bool" else None
    if values is None:
        return
    planes = np.atleast_2d(values[min(row, len(values) - 1)])
    plane = np.broadcast_to(planes.reshape(-1, *planes.shape[-2:])[0], (tokens, planes.shape[-1]))
    plane = plane[:TOKENS, :TOKENS]
    for hidden in (plane == 0, plane != 0) if mask.dtype == "bool" else (plane <= MASKED_BELOW,):
        # Pads before a sequence see nothing: what is left must tell.
        if hidden.any() and hidden.all(axis=-1).mean() < 0.5:
            yield np.asarray(hidden)


# In one piece: two forms of one search, with one limit on what both try.
def _sources(evidence: Evidence, shape: tuple[int, ...], at: int) -> Iterator[Triple]:
    """Queries, keys and values of one sequence, wherever three outputs inside the module may be such; keys
    and values perhaps of another sequence than the queries."""
    known = [
        either
        for pair in evidence.surroundings.nearby
        if pair.slot.startswith("output") and (either := pair.reference or pair.target) is not None
        if len(either.shape) == 3 and either.shape[0] == shape[0] and either.is_floating
    ]
    yield from _after_norms(evidence, known, shape, at)
    tried = 0
    for one, other, third in zip(known, known[1:], known[2:], strict=False):
        fits = one.shape == shape and other.shape == third.shape and shape[2] % other.shape[2] == 0
        q, k, v = (x.values() if fits else None for x in (one, other, third))
        if tried < MAX_SOURCES and q is not None and k is not None and v is not None:
            tried += 1
            yield q[at, :TOKENS], k[at, :TOKENS], v[at, :TOKENS]
    for one, other in (*pairwise(known), *pairwise(known[::-1])):  # queries beside keys and values in one
        half, odd = divmod(other.shape[2], 2)
        fits = one.shape == shape and half > 0 and not odd and shape[2] % half == 0
        q, both = (x.values() if fits else None for x in (one, other))
        if tried < MAX_SOURCES and q is not None and both is not None:
            tried += 1
            yield q[at, :TOKENS], both[at, :TOKENS, :half], both[at, :TOKENS, half:]
    for one in known:
        size, left = shape[2], one.shape[2] - shape[2]
        fits = one.shape[1] == shape[1] and left > 0 and left % 2 == 0 and size % (left // 2) == 0
        fused = one.values() if fits else None
        if tried < MAX_SOURCES and fused is not None:
            tried += 1
            row = fused[at, :TOKENS]
            yield row[:, :size], row[:, size : size + left // 2], row[:, size + left // 2 :]


def _after_norms(
    evidence: Evidence, known: Sequence[Known], shape: tuple[int, ...], at: int
) -> Iterator[Triple]:
    """Queries and keys as norms inside return them, one head beside the other; values as wide as the keys."""
    heads = [
        laid
        for pair in evidence.surroundings.nearby
        if pair.slot.startswith("output") and (either := pair.reference or pair.target) is not None
        if len(either.shape) == 4 and either.shape[0] == shape[0] and either.is_floating
        if (laid := _side_by_side(either, shape[1], at)) is not None
    ]
    for q, k in pairwise(heads):
        if q.shape[1] != shape[2] or q.shape[1] % k.shape[1]:
            continue
        for one in known:
            whole = one.shape[2] if one.shape[1] == shape[1] else 0
            if whole in (k.shape[1], q.shape[1] + 2 * k.shape[1]) and (v := one.values()) is not None:
                yield q, k, v[at, :TOKENS, -k.shape[1] :]


def _side_by_side(one: Known, tokens: int, at: int) -> Floats | None:
    """(rows, tokens, heads, head) or (rows, heads, tokens, head) -> (tokens, width) of one row."""
    values = one.values() if tokens in one.shape[1:3] and one.shape[1] != one.shape[2] else None
    if values is None:
        return None
    row = values[at] if one.shape[1] == tokens else values[at].transpose(1, 0, 2)
    return np.asarray(row[:TOKENS].reshape(min(tokens, TOKENS), -1))


def _explained(evidence: Evidence, given: Triple, hints: Hints, t: Floats, r: Floats) -> Solved | None:
    gap = float(np.linalg.norm(t - r))
    base = None if gap == 0 else _as_the_reference(given, hints, r, gap)
    if base is None:
        return None
    plain = base.of(*given)
    seeing = ~base.blind(len(r), len(given[1]))
    gap = float(np.linalg.norm((t - r)[seeing]))
    if gap == 0:
        return None

    def left(way: Attention) -> float:
        """Share of the difference that a change does not explain."""
        return float(np.linalg.norm(((t - r) - (way.of(*given) - plain))[seeing])) / gap

    whole = evidence.target_values is not None and evidence.target_values.shape[1] == len(r)
    change, residual = min(
        ((c, left(c.way)) for c in _changes(base, left, whole)), key=lambda found: found[1]
    )
    rounding = CLOSE_ROUNDINGS * evidence.roundoff * float(np.linalg.norm(r[seeing])) / gap
    if residual > max(change.leaves, min(rounding, CHANGE_LEAVES)):
        return None
    rank = EvidenceRank.EVERY_ELEMENT if residual < CHANGE_EXPLAINS else EvidenceRank.FITTED
    sentence = origin_reason(evidence, change.code, **change.facts)
    causes = _CAUSES.get(change.code, ())
    if change.facts.get("hidden") == "window":
        causes = (CauseCode.OTHER_WINDOW,)
    return Solved(
        kind=change.kind, found=Found(rank=rank, measure=1 - residual, sentence=sentence, causes=causes)
    )


_CAUSES = {
    KindReason.SEES_SUCCESSOR: (CauseCode.CAUSAL_MASK,),
    KindReason.NO_MASK: (CauseCode.CAUSAL_MASK,),
    KindReason.CAUSAL_MASK_ADDED: (CauseCode.CAUSAL_MASK,),
    KindReason.MASK_UNUSED: (CauseCode.BORDERS_NOT_MASKED,),
    KindReason.MASK_INVERTED: (CauseCode.TRUE_HIDES,),
    KindReason.MASK_BEGINS: (CauseCode.OTHER_WINDOW,),
    KindReason.MASKED_AFTER_SOFTMAX: (CauseCode.MASK_MULTIPLIED,),
    KindReason.SOFTMAX_OVER_QUERIES: (CauseCode.OTHER_DIM,),
}
"""of what a mask does otherwise"""


# -- what the reference did ------------------------------------------


# In one piece: one search, whose later steps refine what the earlier ones leave.
def _as_the_reference(given: Triple, hints: Hints, r: Floats, gap: float) -> Attention | None:
    """The way that gives the reference's numbers; its theta, and a cap of the scores, are solved for."""
    q, k, v = given
    size = float(np.linalg.norm(r))

    def error(way: Attention, tokens: int | None = None) -> float:
        """What a way leaves of the tokens that see something, to all of them."""
        seeing = ~way.blind(len(q), len(k))[:tokens]
        apart = (way.of(q[:tokens], k[:tokens], v[:tokens]) - r[:tokens])[seeing]
        share = float(np.linalg.norm(r[:tokens][seeing])) / size
        return float(np.linalg.norm(apart)) / share if share > 0 else np.inf

    def exact(way: Attention | None) -> bool:
        return way is not None and error(way) < REPRODUCED_EXACTLY * size

    ways = _ways(hints, q, k)
    best = min(ways, key=error, default=None)
    if best is None or exact(best):
        return best
    rotations: list[tuple[float, Attention]] = []
    turning = best.table is None or error(best) > REPRODUCED * size
    for way in ways if turning else ():
        if (
            way.crossing or way.slopes is not None
        ):  # places of another sequence are rotated by no theta of these
            continue
        for pairing in PAIRINGS:
            rotated = _with_theta(replace(way, pairing=pairing), error)
            rotations.append((error(rotated), rotated))
            if exact(rotated):
                return rotated
    rotations.sort(key=lambda one: one[0])
    for _, way in [one for one in rotations[:LIKELIEST] if one[0] < size]:
        for part in (way.head // 2, way.head // 4):
            if part >= 4 and part % 2 == 0:
                rotated = _with_theta(replace(way, rotated=part, table=None), error)
                rotations.append((error(rotated), rotated))
    best = min((best, *(way for _, way in rotations)), key=error)
    best = _nearer(best, error)
    if not exact(best) and error(best) < 0.5 * size:  # a cap changes scores that are large
        likely = (best, *(way for _, way in sorted(rotations, key=lambda one: one[0])[:LIKELIEST]))
        best = min((best, *(_with_cap(way, error) for way in likely)), key=error)
        best = best if best.cap is None else _with_cap(_nearer(best, error), error)
    return best if error(best) < min(REPRODUCED * size, CHANGE_LEAVES * gap) else None


def _with_theta(way: Attention, error: Callable[..., float]) -> Attention:
    # What a token sees is known of few tokens only where it sees none that come after them.
    tokens = FEW_TOKENS if way.last == 0 else None
    return replace(way, theta=_theta_of(way, partial(error, tokens=tokens), *THETAS, points=25))


def _nearer(way: Attention, error: Callable[..., float]) -> Attention:
    """Theta solved for again, of all tokens, near that of few."""
    if way.pairing is None or way.table is not None:
        return way
    near = way.theta / THETA_NEAR, way.theta * THETA_NEAR
    return replace(way, theta=_theta_of(way, error, *near, points=9))


def _with_cap(way: Attention, error: Callable[..., float]) -> Attention:
    """With a cap of the scores, which no cap is unless it leaves far less."""
    cap = _fitted(lambda cap: error(replace(way, cap=cap)), *CAPS, points=25)
    capped = replace(way, cap=cap)
    plain = error(replace(way, cap=None))
    return capped if error(capped) < CHANGE_LEAVES * plain else way


def _ways(hints: Hints, q: Floats, k: Floats) -> list[Attention]:
    """Ways in which a reference may attend, without an embedding or with the one that is known."""
    heads = [h for h in hints.heads if k.shape[1] % h == 0 and q.shape[1] % h == 0]
    lasts = (0, None) if len(q) == len(k) else (None,)
    crossing = len(q) != len(k)
    ways = [Attention(head=h, scale=h**-0.5, last=last, crossing=crossing) for h in heads for last in lasts]
    masks = [mask for mask in hints.hidden if mask.shape == (len(q), len(k))]
    ways += [replace(way, hidden=mask) for mask in masks for way in ways if way.last is None]
    turned: list[Attention] = []
    if hints.table is not None and len(q) == len(k):
        size = 2 * hints.table[0].shape[1]
        turned = [
            replace(way, pairing=pairing, table=hints.table, rotated=size if size < way.head else None)
            for way in ways
            for pairing in PAIRINGS
            if way.head >= size
        ]
    if len(q) == len(k):
        ways += [replace(way, slopes=ALIBI / (q.shape[1] // way.head)) for way in ways]
    return ways + turned


def _theta_of(
    way: Attention, error: Callable[[Attention], float], low: float, high: float, *, points: int
) -> float:
    return _fitted(lambda theta: error(replace(way, theta=theta)), low, high, points=points)


# -- what the target changed ------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    kind: KindCode
    code: KindReason
    way: Attention
    leaves: float = CHANGE_LEAVES
    """share of the difference it may leave"""
    facts: dict[str, Number | Place] = field(default_factory=dict)


def _changes(base: Attention, left: Callable[[Attention], float], whole: bool) -> Iterator[_Change]:
    """``whole``: all tokens of the sequence are looked at."""
    yield from _masks(base)
    yield from _of_scores(base, left)
    order = KindCode.TRANSPOSED_OR_PERMUTED
    if whole:
        yield _Change(kind=order, code=KindReason.HEADS_NOT_MERGED, way=replace(base, merged=False))
        constant, way = KindCode.CONSTANT_ARGUMENT, replace(base, over_queries=True)
        yield _Change(kind=constant, code=KindReason.SOFTMAX_OVER_QUERIES, way=way)
    if base.hidden is not None or base.last is not None:
        way = replace(base, masked_late=True)
        yield _Change(kind=KindCode.WRONG_MASK, code=KindReason.MASKED_AFTER_SOFTMAX, way=way)
    yield _Change(kind=order, code=KindReason.KEYS_FOR_VALUES, way=replace(base, exchanged=True))
    way = replace(base, alternating=not base.alternating)
    yield _Change(kind=order, code=KindReason.KEY_HEADS_ALTERNATE, way=way)
    rows = (("by kind", KindReason.FUSED_ROWS_BY_GROUP), ("by group", KindReason.FUSED_ROWS_BY_KIND))
    for how, code in () if base.crossing else rows:
        yield _Change(kind=order, code=code, way=replace(base, regrouped=how))
    if base.pairing is not None:
        yield from _rotations(base, base.pairing, left)
    rounding = KindCode.DTYPE_OR_ROUNDING
    for dtype in ("float16", "bfloat16"):
        way, facts = replace(base, dtype=dtype), {"dtype": dtype}
        code = KindReason.SOFTMAX_ROUNDED
        yield _Change(kind=rounding, code=code, way=way, leaves=SOFTMAX_LEAVES, facts={**facts})
    scale = _fitted(lambda scale: left(replace(base, scale=scale)), base.scale / 64, base.scale * 64)
    yield _Change(
        kind=KindCode.CONSTANT_ARGUMENT,
        code=KindReason.SCORES_SCALED,
        way=replace(base, scale=scale),
        leaves=1
        - FULL_SHARE,  # the whole scale was to be chosen: what it leaves is of rounding, or it is none
        facts={"target": scale, "reference": base.scale},
    )


def _of_scores(base: Attention, left: Callable[[Attention], float]) -> Iterator[_Change]:
    """A cap of the scores, ALiBi's slopes. Numbers that are solved for must leave no more than rounding."""
    exact, other = 1 - FULL_SHARE, KindCode.MISSING_OR_EXTRA_TERM
    cap = _fitted(lambda cap: left(replace(base, cap=cap)), *CAPS)
    way, facts = replace(base, cap=cap), {"target": cap, "reference": base.cap or 0.0}
    if base.cap is None:
        sided: dict[str, Number | Place] = {"side": "target", "cap": cap}
        yield _Change(kind=other, code=KindReason.CAP_OF_ONE_SIDE, way=way, leaves=exact, facts=sided)
    else:
        code, constant = KindReason.SCORES_CAPPED, KindCode.CONSTANT_ARGUMENT
        yield _Change(kind=constant, code=code, way=way, leaves=exact, facts={**facts})
        sided = {"side": "reference", "cap": base.cap}
        yield _Change(kind=other, code=KindReason.CAP_OF_ONE_SIDE, way=replace(base, cap=None), facts=sided)
    if base.slopes is not None:
        sided = {"side": "reference"}
        yield _Change(
            kind=other, code=KindReason.ALIBI_OF_ONE_SIDE, way=replace(base, slopes=None), facts=sided
        )
        slopes = _fitted(lambda slopes: left(replace(base, slopes=slopes)), *SLOPES)
        yield _Change(
            kind=KindCode.CONSTANT_ARGUMENT,
            code=KindReason.ALIBI_SLOPES,
            way=replace(base, slopes=slopes),
            leaves=exact,
            facts={"target": 2.0**-slopes, "reference": 2.0**-base.slopes},
        )


def _masks(base: Attention) -> Iterator[_Change]:
    if base.hidden is not None:
        inverted = replace(base, hidden=~base.hidden)
        if not inverted.blind(*base.hidden.shape).all():
            yield _Change(kind=KindCode.WRONG_MASK, code=KindReason.MASK_INVERTED, way=inverted)
        rows, columns = np.indices(base.hidden.shape)
        hides_later = not base.crossing and base.hidden[columns > rows].all()
        if not base.crossing:
            yield from _beginnings(base, base.hidden)
        padded = base.hidden & (columns <= rows)
        if hides_later:
            for last, code in ((1, KindReason.SEES_SUCCESSOR), (None, KindReason.NO_MASK)):
                way = replace(base, last=last, hidden=padded if padded.any() else None)
                yield _Change(kind=KindCode.WRONG_MASK, code=code, way=way)
        if padded.any():
            way = replace(base, last=0 if hides_later else base.last, hidden=None)
            facts: dict[str, Number | Place] = {"left": "causal" if hides_later else "none"}
            facts["hidden"] = what_is_hidden(padded) if hides_later else "more"
            yield _Change(kind=KindCode.WRONG_MASK, code=KindReason.MASK_UNUSED, way=way, facts=facts)
        return
    if base.crossing:
        return
    if base.last is None:
        way = replace(base, last=0)
        yield _Change(kind=KindCode.WRONG_MASK, code=KindReason.CAUSAL_MASK_ADDED, way=way)
        return
    for last, code in ((1, KindReason.SEES_SUCCESSOR), (None, KindReason.NO_MASK)):
        yield _Change(kind=KindCode.WRONG_MASK, code=code, way=replace(base, last=last))


def what_is_hidden(earlier: Bools) -> str:
    """What a mask hides of earlier tokens, (tokens, tokens): ``padding``, the same tokens from all that are
    none of them; ``documents``, all that came before where the row began anew; a ``window``, all that are
    further back than a number of tokens; else ``more``. That all after one place hide all before it may be
    either of the first two."""
    place = np.arange(len(earlier))
    rows, columns = place[:, None], place[None]
    seen = (columns <= rows) & ~earlier
    back = (rows - columns)[seen].max()
    if np.array_equal(seen, (rows >= columns) & (rows - columns <= back)):
        return "window"
    first = seen.argmax(axis=1)
    begins = np.flatnonzero(first == place)
    of_row = begins[np.searchsorted(begins, place, side="right") - 1]
    if np.array_equal(first, of_row) and np.array_equal(
        seen, (columns >= first[:, None]) & (columns <= rows)
    ):
        return "documents" if len(begins) > 2 else "more"
    padding: Bools = np.asarray(earlier.any(axis=0))
    hidden: Bools = np.asarray(padding & (columns <= rows))
    alike = np.array_equal(earlier[~padding], hidden[~padding])
    return "padding" if alike and not padding[: int(np.argmax(~padding))].any() else "more"


def _beginnings(base: Attention, hidden: Bools) -> Iterator[_Change]:
    """A window that is one token longer, or shorter: tokens that see most of all see its first, and no edge
    of a document, at the beginning of what they may see."""
    seen = (~hidden).sum(axis=1)
    rows = np.flatnonzero(seen == seen.max())
    first = np.argmax(~hidden[rows], axis=1)
    longer, shorter = hidden.copy(), hidden.copy()
    inside = (first > 0) & ~hidden[rows - 1, first - 1]
    longer[rows[inside], first[inside] - 1] = False
    shorter[rows, first] = True
    for side, mask, num in (("target", longer, inside.sum()), ("reference", shorter, len(rows))):
        if num > 1 and seen.max() > 1:
            way = replace(base, hidden=mask)
            yield _Change(
                kind=KindCode.WRONG_MASK, code=KindReason.MASK_BEGINS, way=way, facts={"side": side}
            )


def _rotations(base: Attention, pairing: str, left: Callable[[Attention], float]) -> Iterator[_Change]:
    other = next(one for one in PAIRINGS if one != pairing)
    for laid in (None, pairing):  # the tables follow, or stay as they were
        yield _Change(
            kind=KindCode.TRANSPOSED_OR_PERMUTED,
            code=KindReason.ROTARY_PAIRING,
            way=replace(base, pairing=other, laid=laid),
            facts={"target": other, "reference": pairing},
        )
    without, backward = replace(base, pairing=None), replace(base, keys_backward=True)
    yield _Change(kind=KindCode.MISSING_OR_EXTRA_TERM, code=KindReason.NO_ROTARY, way=without)
    yield _Change(kind=KindCode.WRONG_SIGN, code=KindReason.KEYS_ROTATED_BACKWARD, way=backward)
    both = replace(base, backward=True)
    yield _Change(kind=KindCode.WRONG_SIGN, code=KindReason.BOTH_ROTATED_BACKWARD, way=both)
    yield from _parts(base)
    for dtype in ("float16", "bfloat16"):
        yield _Change(
            kind=KindCode.DTYPE_OR_ROUNDING,
            code=KindReason.COSINES_ROUNDED,
            way=replace(base, angles=dtype),
            leaves=ANGLES_LEAVE,
            facts={"dtype": dtype},
        )
    if base.table is not None:
        return
    theta = _fitted(lambda theta: left(replace(base, theta=theta)), *THETAS)
    if base.rotated is not None:
        divided = replace(base, frequencies_of=base.head)
        if left(divided) <= max(left(replace(base, theta=theta)), REPRODUCED_EXACTLY):
            sizes: dict[str, Number | Place] = {"target": base.head, "reference": base.rotated}
            code = KindReason.FREQUENCIES_OF_HEAD
            yield _Change(kind=KindCode.CONSTANT_ARGUMENT, code=code, way=divided, facts=sizes)
            return
    ends = replace(base, inclusive=True)
    if left(ends) <= max(left(replace(base, theta=theta)), REPRODUCED_EXACTLY):
        facts: dict[str, Number | Place] = {"number": base.head // 2, "theta": base.theta, "same": theta}
        code = KindReason.FREQUENCIES_INCLUSIVE
        yield _Change(kind=KindCode.CONSTANT_ARGUMENT, code=code, way=ends, facts=facts)
        return
    yield _Change(
        kind=KindCode.CONSTANT_ARGUMENT,
        code=KindReason.ATTENTION_THETA,
        way=replace(base, theta=theta),
        facts={"target": theta, "reference": base.theta},
    )


def _parts(base: Attention) -> Iterator[_Change]:
    """Other elements of a head are rotated: all, half or a quarter of them, or the last ones."""
    size, constant = base.rotated or base.head, KindCode.CONSTANT_ARGUMENT
    for part in {base.head, base.head // 2, base.head // 4} - {size} if base.table is None else ():
        if part >= 4 and part % 2 == 0:
            way = replace(base, rotated=None if part == base.head else part)
            facts: dict[str, Number | Place] = {"target": part, "reference": size}
            yield _Change(kind=constant, code=KindReason.ROTATED_PART, way=way, facts=facts)
    if size < base.head:
        way, order = replace(base, rotated_last=True), KindCode.TRANSPOSED_OR_PERMUTED
        yield _Change(kind=order, code=KindReason.ROTATED_LAST, way=way, facts={"number": size})


def _fitted(error: Callable[[float], float], low: float, high: float, *, points: int = 61) -> float:
    """The argument of the smallest error: the best of a grid of powers, then golden section around it."""
    grid = np.geomspace(low, high, points)
    at = int(np.argmin([error(float(one)) for one in grid]))
    a, b = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, len(grid) - 1)])
    ratio = (np.sqrt(5) - 1) / 2
    c, d = b - ratio * (b - a), a + ratio * (b - a)
    error_c, error_d = error(c), error(d)
    for _ in range(30):  # each step keeps one of the two places, and asks for one more
        if error_c < error_d:
            b, d, error_d = d, c, error_c
            c = b - ratio * (b - a)
            error_c = error(c)
        else:
            a, c, error_c = c, d, error_d
            d = a + ratio * (b - a)
            error_d = error(d)
    return (a + b) / 2
