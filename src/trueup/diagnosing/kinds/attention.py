"""What an attention did, told by computing it again: from the reference's queries, keys and values to what
goes into its output projection, first as the reference must have done it, then with one thing changed.

Needs no calls inside: a fused kernel, another framework and a module captured from outside are all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.evidence.facts import Floats
from trueup.diagnosing.kinds.grids import rounded_to
from trueup.diagnosing.kinds.naming import number
from trueup.diagnosing.kinds.solved import Solved

HEAD_SIZES = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
THETAS = (1e4, 5e5, 1e6, 1e3, 1e5, 5e4, 1e7)
TOKENS, KV_HEADS = 96, 4
"""looked at of one sequence: enough to tell, and as quick for a large model"""
REPRODUCED = 0.02
"""relative error up to which the reference counts as understood"""
MAX_HYPOTHESES = 12
"""places of q, k and v that are tried"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One way to attend."""

    head: int
    turned: str | None
    """rotary embedding on ``halves`` or on ``pairs`` of neighbours; None: no rotary embedding"""
    theta: float = 1e4
    scale: float = 1.0
    last: int | None = 0
    """a token sees up to its own place plus this; None: all"""
    in_turn: bool = False
    """query heads take key heads one after the other, not in groups"""
    regrouped: str | None = None
    """rows of a fused projection are taken as if they lay ``by group`` or ``by kind``, and do not"""
    back: bool = False
    """the rotary embedding turns the other way for keys"""
    dtype: str | None = None
    """softmax is rounded to it"""
    angles: str | None = None
    """cosines and sines are"""

    def of(self, q: Floats, k: Floats, v: Floats) -> Floats:
        """(tokens, query width), (tokens, key width) twice -> (tokens, query width)."""
        length = len(q)
        heads, groups = q.shape[1] // self.head, k.shape[1] // self.head
        if self.regrouped is not None:
            q, k, v = _regrouped(q, k, v, groups, self.regrouped)
        q, k, v = (np.asarray(x.reshape(length, -1, self.head).transpose(1, 0, 2)) for x in (q, k, v))
        q, k = self._turn(q, 1.0), self._turn(k, -1.0 if self.back else 1.0)
        taken = [h % groups if self.in_turn else h * groups // heads for h in range(heads)]
        scores = self._rounded((q @ k[taken].transpose(0, 2, 1)) * self.scale)
        if self.last is not None:
            place = np.arange(length)
            scores = np.where(place[None, :] <= place[:, None] + self.last, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = self._rounded(weights / weights.sum(axis=-1, keepdims=True))
        return np.asarray((weights @ v[taken]).transpose(1, 0, 2).reshape(length, -1))

    def _rounded(self, values: Floats) -> Floats:
        return values if self.dtype is None else rounded_to(values, self.dtype)

    def _turn(self, x: Floats, way: float) -> Floats:
        if self.turned is None:
            return x
        angle = np.outer(np.arange(x.shape[1]), self.theta ** -(np.arange(0, self.head, 2) / self.head))
        cos, sin = np.cos(angle), way * np.sin(angle)
        if self.angles is not None:
            cos, sin = rounded_to(cos, self.angles), rounded_to(sin, self.angles)
        half = self.head // 2
        first, second = (
            (x[..., :half], x[..., half:]) if self.turned == "halves" else (x[..., ::2], x[..., 1::2])
        )
        turned = first * cos - second * sin, second * cos + first * sin
        if self.turned == "halves":
            return np.concatenate(turned, axis=-1)
        return np.stack(turned, axis=-1).reshape(x.shape)


def _regrouped(q: Floats, k: Floats, v: Floats, groups: int, how: str) -> tuple[Floats, Floats, Floats]:
    """Queries of each group beside its key and value, against all queries, then keys, then values."""
    length, widths = len(q), [q.shape[1] // groups, k.shape[1] // groups, v.shape[1] // groups]
    if how == "by kind":
        parts = [x.reshape(length, groups, -1) for x in (q, k, v)]
        fused = np.concatenate(parts, axis=2).reshape(length, -1)
        cuts = np.cumsum([q.shape[1], k.shape[1]])
        first, second, third = np.split(fused, cuts, axis=1)
        return first, second, third
    by_group = np.concatenate([q, k, v], axis=1).reshape(length, groups, -1)
    first, second, third = np.split(by_group, np.cumsum(widths[:2]), axis=2)
    return first.reshape(length, -1), second.reshape(length, -1), third.reshape(length, -1)


def attention_fault(evidence: Evidence) -> Solved | None:
    """How the target attends otherwise; None where the site is no attention or the way is none known."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.ndim != 3 or evidence.origin.phase != "forward":
        return None
    if not (np.isfinite(t).all() and np.isfinite(r).all()) or t.shape[-1] % 8:
        return None
    around = evidence.surroundings
    if "att" not in (around.module + around.name + (around.type or "")).lower():
        return None
    for q, k, v in _sources(evidence, t.shape):
        found = _explained(q, k, v, t[0, :TOKENS], r[0, :TOKENS])
        if found is not None:
            return found
    return None


def _sources(evidence: Evidence, shape: tuple[int, ...]) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Queries, keys and values of one sequence, wherever three outputs inside the module may be such."""
    known = [
        either
        for pair in evidence.surroundings.nearby
        if pair.slot.startswith("output") and (either := pair.reference or pair.target) is not None
        if len(either.shape) == 3 and either.shape[:2] == shape[:2] and either.is_floating
    ]
    tried = 0
    for one, other, third in zip(known, known[1:], known[2:], strict=False):
        fits = one.shape[2] == shape[2] and other.shape == third.shape and shape[2] % other.shape[2] == 0
        values = [x.values() if fits else None for x in (one, other, third)]
        if (
            tried < MAX_HYPOTHESES
            and values[0] is not None
            and values[1] is not None
            and values[2] is not None
        ):
            tried += 1
            yield values[0][0, :TOKENS], values[1][0, :TOKENS], values[2][0, :TOKENS]
    for one in known:
        size, left = shape[2], one.shape[2] - shape[2]
        fused = one.values() if left > 0 and left % 2 == 0 and size % (left // 2) == 0 else None
        if tried < MAX_HYPOTHESES and fused is not None:
            tried += 1
            row = fused[0, :TOKENS]
            yield row[:, :size], row[:, size : size + left // 2], row[:, size + left // 2 :]


def _explained(q: Floats, k: Floats, v: Floats, t: Floats, r: Floats) -> Solved | None:
    gap = float(np.linalg.norm(t - r))
    if gap == 0:
        return None
    base = _as_the_reference(q, k, v, r, gap)
    if base is None:
        return None
    plain = base.of(q, k, v)

    def left(way: Attention) -> float:
        """Share of the difference that a change does not explain."""
        return float(np.linalg.norm((t - r) - (way.of(q, k, v) - plain))) / gap

    change, residual = min(((c, left(c.way)) for c in _changes(base, left)), key=lambda found: found[1])
    if residual > change.most:
        return None
    return Solved(
        kind=change.kind,
        sentence=f"computed again from queries, keys and values, {change.said} gives the target's numbers",
        confidence=0.96 if residual < 0.1 else 0.9,
    )


def _as_the_reference(q: Floats, k: Floats, v: Floats, r: Floats, gap: float) -> Attention | None:
    """The way that gives the reference's numbers."""
    size = float(np.linalg.norm(r))
    best, least = None, min(REPRODUCED * size, 0.3 * gap)
    for head in (h for h in HEAD_SIZES if k.shape[1] % h == 0 and q.shape[1] % h == 0):
        turns = [(None, 1e4), *((how, theta) for theta in THETAS for how in ("halves", "pairs"))]
        for turned, theta in turns:
            for last in (0, None):
                way = Attention(head=head, turned=turned, theta=theta, scale=head**-0.5, last=last)
                error = float(np.linalg.norm(way.of(q, k, v) - r))
                if error < least:
                    best, least = way, error
                    if error < 1e-4 * size:
                        return best
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    kind: str
    said: str
    way: Attention
    most: float = 0.25
    """share of the difference it may leave"""


def _changes(base: Attention, left: Callable[[Attention], float]) -> Iterator[_Change]:
    for last, said in (
        (1, "a token that sees its successor"),
        (-1, "a token that does not see itself"),
        (None, "no mask"),
    ):
        if base.last is not None and last != base.last and last != -1:
            yield _Change(kind="wrong_mask", said=said, way=replace(base, last=last))
    if base.last is None:
        yield _Change(kind="wrong_mask", said="a causal mask", way=replace(base, last=0))
    yield _Change(
        kind="transposed_or_permuted",
        said="taking the key heads in turn for each query head",
        way=replace(base, in_turn=not base.in_turn),
    )
    for how, said in (("by kind", "group by group"), ("by group", "kind by kind")):
        yield _Change(
            kind="transposed_or_permuted",
            said=f"a fused projection whose rows lie {said} and are taken otherwise",
            way=replace(base, regrouped=how),
        )
    if base.turned is not None:
        other = "pairs" if base.turned == "halves" else "halves"
        words = {"halves": "halves", "pairs": "neighbouring pairs"}
        said = f"a rotary embedding on {words[other]} for {words[base.turned]}"
        yield _Change(kind="transposed_or_permuted", said=said, way=replace(base, turned=other))
        yield _Change(
            kind="missing_or_extra_term", said="no rotary embedding", way=replace(base, turned=None)
        )
        said = "a rotary embedding that turns keys the other way"
        yield _Change(kind="wrong_sign", said=said, way=replace(base, back=True))
        yield from (_theta(base, theta) for theta in THETAS if theta != base.theta)
        for dtype in ("float16", "bfloat16"):
            said = f"cosines and sines in {dtype}"
            yield _Change(kind="dtype_or_rounding", said=said, way=replace(base, angles=dtype), most=0.6)
        yield _theta(base, _fitted(lambda theta: left(replace(base, theta=theta)), 1e2, 1e8))
    for dtype in ("float16", "bfloat16"):
        said = f"a softmax in {dtype}"
        yield _Change(kind="dtype_or_rounding", said=said, way=replace(base, dtype=dtype), most=0.75)
    scale = _fitted(lambda scale: left(replace(base, scale=scale)), base.scale / 64, base.scale * 64)
    said = (
        f"scores scaled by {number(float(f'{scale:.4g}'))} for {number(float(f'{base.scale:.6g}'))} (fitted)"
    )
    yield _Change(kind="constant_argument", said=said, way=replace(base, scale=scale))


def _theta(base: Attention, theta: float) -> _Change:
    said = f"a rotary theta of {number(float(f'{theta:.3g}'))} for {number(base.theta)}"
    return _Change(kind="constant_argument", said=said, way=replace(base, theta=theta))


def _fitted(error: Callable[[float], float], low: float, high: float) -> float:
    """The argument of the smallest error: the best of a grid of powers, then golden section around it."""
    grid = np.geomspace(low, high, 61)
    errors = [error(float(one)) for one in grid]
    at = int(np.argmin(errors))
    a, b = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, len(grid) - 1)])
    ratio = (np.sqrt(5.0) - 1) / 2
    for _ in range(30):
        c, d = b - ratio * (b - a), a + ratio * (b - a)
        if error(c) < error(d):
            b = d
        else:
            a = c
    return (a + b) / 2
