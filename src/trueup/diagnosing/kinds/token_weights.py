"""A loss of log-probabilities (of preferences, of advantages, of rows) gives each token a weight: both sides'
weights are read off the gradients of the logits, and compared.

Differences that are one number a row come from what a row is multiplied by. Where that is an advantage, its
mean and its divisor are those of a block of rows: a difference that sums to 0 over each block leaves the mean
as it was, one that is the same throughout a block changes it alone. Rows of opposite weights are pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.rule import Found, whole_origin_reason
from trueup.diagnosing.kinds.solved import Solved
from trueup.diagnosing.kinds.thresholds import CLOSE_ROUNDINGS, FAR_ROUNDINGS, FINEST_ROUNDOFF, MIN_NUMBERS
from trueup.diagnosing.loss_form import TokenWeights, token_weights
from trueup.types.arrays import Bools, Floats, Ints
from trueup.types.codes.kinds import CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindCode, Stage
from trueup.types.reason import Reason, reason

_TIMES = FAR_ROUNDINGS / CLOSE_ROUNDINGS
_SHOWN = 3


def weighted_otherwise(evidence: Evidence, roundoff: float) -> Solved | None:
    """Which weights the loss gives rows, or tokens, on both sides; None where they are one factor apart, or
    the loss is not made of log-probabilities."""
    if evidence.origin.stage is not Stage.LOSS:
        return None
    near = CLOSE_ROUNDINGS * max(roundoff, FINEST_ROUNDOFF)
    own, other = evidence.target_run, evidence.reference_run
    for microbatch, sent in own.sent_back.items():
        expected, logits = other.sent_back.get(microbatch), other.sent_from.get(microbatch)
        if expected is None or logits is None or not sent.shape == expected.shape == logits.shape:
            continue
        target = token_weights(own.sent_from.get(microbatch, logits), sent, near)
        reference = token_weights(logits, expected, near)
        if target is None or reference is None or (target.words != reference.words).any():
            continue
        rows = _Rows.of(target, reference)
        if rows is not None:
            sentence = _sentence(evidence, rows)
            is_shifted = any(part.code is KindReason.WEIGHTS_MARGIN for part in sentence.parts)
            found = Found(
                rank=EvidenceRank.EVERY_ELEMENT,
                measure=1.0,
                sentence=sentence,
                causes=(CauseCode.MARGIN_OF_PAIRS if is_shifted else CauseCode.WEIGHTS_OF_ROWS,),
            )
            return Solved(kind=KindCode.WRONG_SCALE, found=found)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Weights of tokens that count, by rows: (N, T)."""

    target: Floats
    reference: Floats
    errors: Floats
    """of their differences"""
    live: Bools

    @classmethod
    def of(cls, target: TokenWeights, reference: TokenWeights) -> _Rows | None:
        """None where one factor makes one of the other, or too few rows differ to tell."""
        t, r = (x.values.reshape(len(x.values), -1) for x in (target, reference))
        words = reference.words.reshape(t.shape)
        errors = (target.errors + reference.errors).reshape(t.shape)
        factor = float((t * r).sum() / np.square(r).sum())
        scaled = np.abs(t - factor * r) <= _TIMES * errors
        if scaled.all() or (words >= 0).sum() < MIN_NUMBERS or len(t) < 2:
            return None
        rows = cls(target=t, reference=r, errors=errors, live=words >= 0)
        kept = rows.live.any(axis=1)
        return cls(target=t[kept], reference=r[kept], errors=errors[kept], live=rows.live[kept])

    @property
    def counts(self) -> Ints:
        """Tokens of each row."""
        return np.asarray(self.live.sum(axis=1))

    def of_row(self, values: Floats) -> Floats | None:
        """The number of each row; None where tokens of one row have several."""
        held = np.where(self.live, values, np.nan)
        middle = np.nanmedian(held, axis=1)
        apart = np.abs(np.where(self.live, values - middle[:, None], 0.0))
        return None if (apart > 2 * self.errors).any() else middle

    @property
    def error(self) -> Floats:
        """Of each row's number."""
        return np.asarray(np.where(self.live, self.errors, 0.0).max(axis=1))


def _sentence(evidence: Evidence, rows: _Rows) -> Reason:
    target, reference = rows.of_row(rows.target), rows.of_row(rows.reference)
    apart = rows.of_row(rows.target - rows.reference)
    parts: list[Reason] = []
    if target is None or reference is None:
        unit, at = "token", np.argwhere(rows.live & (np.abs(rows.target - rows.reference) > rows.errors))
        shown = [tuple(int(n) for n in one) for one in at[:_SHOWN]]
        names = [f"{row}:{column}" for row, column in shown]
        sides = [[float(values[one]) for one in shown] for values in (rows.target, rows.reference)]
    else:
        unit, names = "row", [str(n) for n in range(min(_SHOWN, len(target)))]
        sides = [[float(n) for n in values[:_SHOWN]] for values in (target, reference)]
        parts += _lengths(rows, target, reference)
        parts += _margin(rows, target, reference)
        parts += _pairs(rows, target, reference)
    if apart is not None and not parts:
        parts += _blocks(rows, apart)
    return whole_origin_reason(
        evidence,
        KindReason.WEIGHTS_OF_TOKENS,
        *parts,
        unit=unit,
        per_row=apart is not None,
        num=len(rows.target) if apart is not None else int(rows.live.sum()),
        names=tuple(names),
        target=tuple(f"{n:.4g}" for n in sides[0]),
        reference=tuple(f"{n:.4g}" for n in sides[1]),
    )


def _lengths(rows: _Rows, target: Floats, reference: Floats) -> list[Reason]:
    """Where one side gives all tokens one weight, and the other all rows, whatever they hold."""
    if (rows.counts == rows.counts[0]).all():
        return []
    laws = []
    for values in (target, reference):
        fits = {
            "tokens": _is_one(values, rows.error),
            "rows": _is_one(values * rows.counts, rows.error * rows.counts),
        }
        laws.append(next((law for law, holds in fits.items() if holds), None))
    if None in laws or laws[0] == laws[1]:
        return []
    return [reason(KindReason.WEIGHTS_LAW, target=laws[0], reference=laws[1])]


def _is_one(values: Floats, errors: Floats) -> bool:
    return bool((np.abs(values - np.median(values)) <= _TIMES * errors).all())


def _pairs(rows: _Rows, target: Floats, reference: Floats) -> list[Reason]:
    """Where each row has another of the opposite weight, on both sides: the two answers of a pair, of whose
    log-probabilities some loss counts the margin."""
    half = len(target) // 2
    if len(target) % 2 or half < 2:
        return []
    for step, first in ((half, np.arange(half)), (1, np.arange(0, 2 * half, 2))):
        held = [
            (np.abs(values[first] + values[first + step]) <= _TIMES * rows.error[first]).all()
            for values in (target, reference)
        ]
        if all(held):
            return [reason(KindReason.WEIGHTS_PAIRED, step=step, num=half)]
    return []


def _margin(rows: _Rows, target: Floats, reference: Floats) -> list[Reason]:
    """Where rows weigh as in one logistic loss whose argument h is another by one number for all of them:

        r = c sigmoid(-h), t = c sigmoid(s - h)  <=>  c t - c k r + (k - 1) t r = 0,  k = exp(s),

    with log-probabilities summed over a row, or their mean. Two unknowns: asked of four rows of other weights
    at least, and not where a factor and a constant do as well."""
    if (np.sign(target) != np.sign(reference)).any():
        return []
    for each in (np.ones(len(target)), rows.counts):
        t, r = np.abs(target) * each, np.abs(reference) * each
        top = float(max(t.max(), r.max()))
        t, r, near = t / top, r / top, _TIMES * rows.error * each / top
        if (np.diff(np.sort(r)) > near.max()).sum() < MIN_NUMBERS - 1:
            continue
        *_, (a, b, d) = np.linalg.svd(np.stack([t, -r, t * r], axis=1))[2]
        if a * b <= 0 or d == 0:
            continue
        k = b / a
        limit = (k - 1) * a / d
        linear = np.stack([r, np.ones_like(r)], axis=1)
        rest = t - linear @ np.linalg.lstsq(linear, t, rcond=None)[0]
        fitted = k * r / (1 + (k - 1) * r / limit)
        if limit > 1 and (np.abs(t - fitted) <= near).all() and (np.abs(rest) > near).any():
            return [reason(KindReason.WEIGHTS_MARGIN, shift=-math.log(k))]
    return []


def _blocks(rows: _Rows, apart: Floats) -> list[Reason]:
    """What the differences, of tokens or of the rows' sums, do in every one of equal blocks of rows: they are
    one number in the largest such blocks, or sum to 0 in the smallest. Two rows of opposite differences may
    be a pair, and what all rows do is that of another term as well: neither is told."""
    sizes = [size for size in range(2, len(apart)) if len(apart) % size == 0]
    of_sums, of_tokens = (apart * rows.counts, rows.error * rows.counts), (apart, rows.error)
    if _is_one(*of_sums) or _is_one(*of_tokens):
        return []
    for law, by_size in (("mean", sizes[::-1]), ("scale", sizes)):
        for size in by_size:
            for values, errors in (of_sums, of_tokens):
                blocks, near = values.reshape(-1, size), _TIMES * errors.reshape(-1, size)
                left = blocks - np.median(blocks, axis=1, keepdims=True)
                even = (np.abs(left) <= near).all()
                zero = (np.abs(blocks.sum(axis=1)) <= near.sum(axis=1)).all()
                if even if law == "mean" else zero:
                    is_pair = law == "scale" and size == 2
                    return [] if is_pair else [reason(KindReason.WEIGHTS_BY_ROWS, size=size, law=law)]
    return []
