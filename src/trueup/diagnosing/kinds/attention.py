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
    MASKED_BELOW,
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
TOKENS, FEW_TOKENS = 96, 24
"""looked at of one sequence: enough to tell, quick for a large model; fewer while theta is searched for"""
THETA_NEAR = 1.1
"""times the theta of few tokens, within which that of all is searched for"""
MAX_SOURCES = 12
"""places of q, k and v that are tried"""


def attention_fault(evidence: Evidence) -> Solved | None:
    """How the target attends otherwise; None where the site is no attention or the way is none known."""
    t, r = _made(evidence)
    if t is None or r is None or t.shape != r.shape or t.ndim != 3 or evidence.origin.phase != "forward":
        return None
    if not (np.isfinite(t).all() and np.isfinite(r).all()) or t.shape[-1] % 8:
        return None
    around = evidence.surroundings
    if "att" not in (around.module + around.name + (around.type or "")).lower():
        return None
    row = int(np.argmax(np.linalg.norm((t - r).reshape(len(t), -1), axis=1)))
    hints = _hints(evidence, t.shape, row)
    for given in _sources(evidence, t.shape, row):
        found = _explained(evidence, given, hints, t[row, :TOKENS], r[row, :TOKENS])
        if found is not None:
            return found
    return None


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
    planes = values[min(row, len(values) - 1)]
    plane = np.broadcast_to(planes.reshape(-1, *planes.shape[-2:])[0], (tokens, planes.shape[-1]))
    plane = plane[:TOKENS, :TOKENS]
    for hidden in (plane == 0, plane != 0) if mask.dtype == "bool" else (plane <= MASKED_BELOW,):
        if hidden.any() and not hidden.all(axis=-1).any():
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


def _explained(evidence: Evidence, given: Triple, hints: Hints, t: Floats, r: Floats) -> Solved | None:
    gap = float(np.linalg.norm(t - r))
    base = None if gap == 0 else _as_the_reference(given, hints, r, gap)
    if base is None:
        return None
    plain = base.of(*given)

    def left(way: Attention) -> float:
        """Share of the difference that a change does not explain."""
        return float(np.linalg.norm((t - r) - (way.of(*given) - plain))) / gap

    change, residual = min(((c, left(c.way)) for c in _changes(base, left)), key=lambda found: found[1])
    rounding = CLOSE_ROUNDINGS * evidence.roundoff * float(np.linalg.norm(r)) / gap
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
    KindReason.MASK_BEGINS: (CauseCode.OTHER_WINDOW,),
}
"""of what a mask does otherwise"""


# -- what the reference did ------------------------------------------


def _as_the_reference(given: Triple, hints: Hints, r: Floats, gap: float) -> Attention | None:
    """The way that gives the reference's numbers; its theta is solved for."""
    q, k, v = given
    size = float(np.linalg.norm(r))

    def error(way: Attention, tokens: int | None = None) -> float:
        return float(np.linalg.norm(way.of(q[:tokens], k[:tokens], v[:tokens]) - r[:tokens]))

    ways = _ways(hints, q, k)
    best = min(ways, key=error, default=None)
    if best is None or error(best) < REPRODUCED_EXACTLY * size:
        return best
    for way in ways if best.table is None or error(best) > REPRODUCED * size else ():
        if way.crossing:  # places of another sequence are rotated by no theta of these
            continue
        # What a token sees is known of few tokens only where it sees none that come after them.
        tokens = FEW_TOKENS if way.last == 0 else None
        for pairing in PAIRINGS:
            rotated = replace(way, pairing=pairing)
            theta = _theta_of(rotated, partial(error, tokens=tokens), *THETAS, points=25)
            best = min(best, replace(rotated, theta=theta), key=error)
            if error(best) < REPRODUCED_EXACTLY * size:
                return best
    if best.pairing is not None and best.table is None:
        near = best.theta / THETA_NEAR, best.theta * THETA_NEAR
        best = replace(best, theta=_theta_of(best, error, *near, points=9))
    return best if error(best) < min(REPRODUCED * size, CHANGE_LEAVES * gap) else None


def _ways(hints: Hints, q: Floats, k: Floats) -> list[Attention]:
    """Ways in which a reference may attend, without an embedding or with the one that is known."""
    heads = [h for h in hints.heads if k.shape[1] % h == 0 and q.shape[1] % h == 0]
    lasts = (0, None) if len(q) == len(k) else (None,)
    crossing = len(q) != len(k)
    ways = [Attention(head=h, scale=h**-0.5, last=last, crossing=crossing) for h in heads for last in lasts]
    masks = [mask for mask in hints.hidden if mask.shape == (len(q), len(k))]
    ways += [replace(way, hidden=mask) for mask in masks for way in ways if way.last is None]
    if hints.table is not None and len(q) == len(k):
        half = hints.table[0].shape[1]
        ways += [
            replace(way, pairing=pairing, table=hints.table)
            for way in ways
            for pairing in PAIRINGS
            if way.head == 2 * half
        ]
    return ways


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


def _changes(base: Attention, left: Callable[[Attention], float]) -> Iterator[_Change]:
    yield from _masks(base)
    order = KindCode.TRANSPOSED_OR_PERMUTED
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


def _masks(base: Attention) -> Iterator[_Change]:
    if base.hidden is not None:
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


def _fitted(error: Callable[[float], float], low: float, high: float, *, points: int = 61) -> float:
    """The argument of the smallest error: the best of a grid of powers, then golden section around it."""
    grid = np.geomspace(low, high, points)
    at = int(np.argmin([error(float(one)) for one in grid]))
    a, b = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, len(grid) - 1)])
    ratio = (np.sqrt(5) - 1) / 2
    for _ in range(30):
        c, d = b - ratio * (b - a), a + ratio * (b - a)
        if error(c) < error(d):
            b = d
        else:
            a = c
    return (a + b) / 2
