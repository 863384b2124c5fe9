"""Attention computed in float64 in one of the ways in which programs do it, rightly or not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trueup.numerics.dtypes import rounded_to
from trueup.types.arrays import Bools, Floats

Triple = tuple[Floats, Floats, Floats]
PAIRINGS = ("halves", "pairs")
"""elements that a rotary embedding rotates together: those of two halves, or neighbours"""
_USUAL_THETA = 1e4  # of the rotary embedding's paper; no way without an embedding reads it


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One way to attend."""

    head: int
    pairing: str | None = None
    """one of ``PAIRINGS``; None: no rotary embedding"""
    theta: float = _USUAL_THETA
    table: tuple[Floats, Floats] | None = None
    """cosines and sines, (tokens, head // 2), where the program's own are known; theta is not read then"""
    laid: str | None = None
    """the pairing that cosines and sines are laid out for; None: the same"""
    scale: float = 1.0
    crossing: bool = False
    """keys and values are of another sequence, of another length"""
    last: int | None = 0
    """a token sees up to its own place plus this; None: all"""
    hidden: Bools | None = None
    """(tokens, keys): what the program's own mask hides besides, where it is known"""
    alternating: bool = False
    """query heads take key heads one after the other, not in groups"""
    regrouped: str | None = None
    """rows of a fused projection are taken as if they lay ``by group`` or ``by kind``, and do not"""
    exchanged: bool = False
    """keys are taken for values, and values for keys"""
    inclusive: bool = False
    """frequencies from 1 to 1 / theta, both ends included; else as many as are below the end"""
    keys_backward: bool = False
    """keys are rotated the other way"""
    backward: bool = False
    """queries and keys both are"""
    rotated: int | None = None
    """first elements of a head that are rotated; None: all"""
    rotated_last: bool = False
    """the last ones are, not the first"""
    frequencies_of: int | None = None
    """number of elements by which the exponents are divided; None: those that are rotated"""
    cap: float | None = None
    """scores are cap * tanh(scores / cap); None: as they are"""
    slopes: float | None = None
    """head i of ALiBi adds 2 ** (-slopes * i), i from 1, times how far back a key is; None: nothing"""
    merged: bool = True
    """heads of a token are put side by side; else the tokens of a head are"""
    dtype: str | None = None
    """softmax is rounded to it"""
    over_queries: bool = False
    """softmax runs over the queries of a key, not over the keys of a query"""
    masked_late: bool = False
    """what is hidden is taken out of the softmax's result, whose rows sum to less than one then"""
    angles: str | None = None
    """cosines and sines are"""

    def of(self, q: Floats, k: Floats, v: Floats) -> Floats:
        """(tokens, query width), (keys, key width) twice -> (tokens, query width)."""
        length = len(q)
        heads, groups = q.shape[1] // self.head, k.shape[1] // self.head
        if self.exchanged:
            k, v = v, k
        if self.regrouped is not None:
            q, k, v = _regrouped(q, k, v, groups, self.regrouped)
        q, k, v = (np.asarray(x.reshape(len(x), -1, self.head).transpose(1, 0, 2)) for x in (q, k, v))
        way = -1.0 if self.backward else 1.0
        q, k = self._rotated(q, way), self._rotated(k, -way if self.keys_backward else way)
        taken = [h % groups if self.alternating else h * groups // heads for h in range(heads)]
        scores = (q @ k[taken].transpose(0, 2, 1)) * self.scale
        if self.cap is not None:
            scores = self.cap * np.tanh(scores / self.cap)
        if self.slopes is not None:
            back = np.arange(k.shape[1])[None, :] - np.arange(length)[:, None]
            scores = scores + 2.0 ** (-self.slopes * np.arange(1, heads + 1))[:, None, None] * back
        scores = self._rounded(scores)
        hidden = self._hides(length, k.shape[1])
        if not self.masked_late:
            scores = np.where(hidden, -np.inf, scores)
        axis = -2 if self.over_queries else -1
        top = scores.max(axis=axis, keepdims=True)
        weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
        total = weights.sum(axis=axis, keepdims=True)
        weights = np.where(hidden, 0.0, self._rounded(weights / np.where(total > 0, total, 1.0)))
        made = weights @ v[taken]
        return np.asarray((made.transpose(1, 0, 2) if self.merged else made).reshape(length, -1))

    def blind(self, tokens: int, keys: int) -> Bools:
        """Tokens that see no key, as pads before a sequence: what is made of them is a choice."""
        return np.asarray(self._hides(tokens, keys).all(axis=1))

    def _hides(self, tokens: int, keys: int) -> Bools:
        """(tokens, keys): what a token does not see."""
        hidden = np.zeros((tokens, keys), dtype=bool) if self.hidden is None else self.hidden
        if self.last is not None:
            hidden = hidden | (np.arange(keys)[None, :] > np.arange(tokens)[:, None] + self.last)
        return np.asarray(hidden)

    def _rounded(self, values: Floats) -> Floats:
        return values if self.dtype is None else rounded_to(values, self.dtype)

    def _rotated(self, x: Floats, way: float) -> Floats:
        if self.pairing is None:
            return x
        size = self.rotated
        if size is not None and size < x.shape[-1]:
            turned = replace(self, rotated=None, frequencies_of=self.frequencies_of or size)
            if self.rotated_last:
                return np.concatenate((x[..., :-size], turned._rotated(x[..., -size:], way)), axis=-1)
            return np.concatenate((turned._rotated(x[..., :size], way), x[..., size:]), axis=-1)
        if self.table is not None:
            cos, sin = (one[: x.shape[1]] for one in self.table)
        else:
            half = x.shape[-1] // 2
            whole = half if self.frequencies_of is None else self.frequencies_of / 2
            exponents = np.arange(half) / (whole - self.inclusive if half > 1 else 1)
            angle = np.outer(np.arange(x.shape[1]), self.theta**-exponents)
            cos, sin = np.cos(angle), np.sin(angle)
        sin = way * sin
        if self.angles is not None:
            cos, sin = rounded_to(cos, self.angles), rounded_to(sin, self.angles)
        laid = self.pairing if self.laid is None else self.laid
        cos, sin = (
            np.concatenate((one, one), axis=-1) if laid == "halves" else np.repeat(one, 2, -1)
            for one in (cos, sin)
        )
        return np.asarray(x * cos + _turned(x, self.pairing) * sin)


def _turned(x: Floats, pairing: str) -> Floats:
    """A quarter turn of every pair."""
    if pairing == "halves":
        half = x.shape[-1] // 2
        return np.concatenate((-x[..., half:], x[..., :half]), axis=-1)
    return np.stack((-x[..., 1::2], x[..., ::2]), axis=-1).reshape(x.shape)


def _regrouped(q: Floats, k: Floats, v: Floats, groups: int, how: str) -> Triple:
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
