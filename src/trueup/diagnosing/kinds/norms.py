"""What a norm did: its eps, where eps is added, which variance it takes, how it applies its weight; told from
input and output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.rule import Found, origin_reason
from trueup.diagnosing.kinds.thresholds import (
    CHANCE_Z,
    FACTOR_NEAR_ONE,
    FEW_NUMBERS,
    FITTED_ROWS,
    REPRODUCED,
    ROW_EPS_Z,
)
from trueup.types.arrays import Floats
from trueup.types.codes.kinds import KindReason, NormForm
from trueup.types.finding import EvidenceRank
from trueup.types.reason import reason

_TINY = float(np.finfo(np.float64).tiny)
_EXACT = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """y = w (x - m) / d + b: what m, w and d are."""

    mean: NormForm = NormForm.NOT_CENTRED
    weight: NormForm = NormForm.WEIGHT
    eps: NormForm = NormForm.EPS_INSIDE
    variance: NormForm = NormForm.BIASED


_FORMS = tuple(
    _Form(mean=mean, weight=weight, eps=eps, variance=variance)
    for mean, weight, eps, variance in product(
        (NormForm.CENTRED, NormForm.NOT_CENTRED),
        (NormForm.WEIGHT, NormForm.ONE_PLUS_WEIGHT),
        (NormForm.EPS_INSIDE, NormForm.EPS_OUTSIDE),
        (NormForm.BIASED, NormForm.UNBIASED),
    )
)
"""the usual ones first: where all rows vary alike, forms of d cannot be told apart"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Input and output of a norm, of shape (rows, width), its weight and bias, of shape (width,)."""

    x: Floats
    y: Floats
    weight: Floats
    bias: Floats


def norm_fault(evidence: Evidence, x: Floats, t: Floats, r: Floats) -> Iterator[Found]:
    """y = w (x - m) / sqrt(v + eps) + b, with m = mean (LayerNorm) or 0 (RMSNorm), and its variants.

    Per row c = <y - b, w (x - m)> / ||w (x - m)||^2 = 1 / sqrt(v + eps), so eps = 1 / c^2 - v; the mean over
    rows weighted by how well each is known. A variant of d gives one eps for all rows in its own form alone.
    """
    width = x.shape[-1]
    if width < FEW_NUMBERS or x.ndim < 2:
        return
    weight, bias = _affine(evidence, width)
    first, target, reference = (values.reshape(-1, width)[:FITTED_ROWS] for values in (x, t, r))
    sides = [_Rows(x=first, y=y, weight=weight, bias=bias) for y in (target, reference)]
    known = next(((form, fit) for form in _FORMS if (fit := _eps(sides[1], form)) is not None), None)
    if known is None:
        return
    form, (eps, error) = known
    same = _eps(sides[0], form)
    if same is None:
        yield from _other_form(evidence, sides, form)
        return
    chance, gap = float(np.hypot(same[1], error)), abs(same[0] - eps)
    if gap > CHANCE_Z * chance and gap > FACTOR_NEAR_ONE * abs(eps):
        sentence = origin_reason(evidence, KindReason.NORM_EPS, target=same[0], reference=eps)
        yield Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)


def _other_form(evidence: Evidence, sides: list[_Rows], reference: _Form) -> Iterator[Found]:
    """The one thing of the norm's form that the target does otherwise, where that explains every row."""
    for name in (field.name for field in fields(_Form)):
        for form in dict.fromkeys(getattr(form, name) for form in _FORMS):
            other = replace(reference, **{name: form})
            # Forms that both sides fit cannot be told apart on these rows.
            if other == reference or _eps(sides[0], other) is None or _eps(sides[1], other) is not None:
                continue
            parts = (reason(form), reason(getattr(reference, name)))
            sentence = origin_reason(evidence, KindReason.NORM_FORM, *parts)
            yield Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)
            return


_OTHER_NAMES = {"gamma": "weight", "beta": "bias"}
"""of MindSpore's norms"""


def _affine(evidence: Evidence, width: int) -> tuple[Floats, Floats]:
    """Weight and bias of the norm; ones and zeros where it has none that are known."""
    weight, bias = np.ones(width), np.zeros(width)
    around = evidence.surroundings
    for pair in (*around.inputs, *around.parameters, *around.nearby):
        last = pair.slot.rpartition(".")[2]
        last = _OTHER_NAMES.get(last, last)
        known = pair.given
        if last in ("weight", "bias") and known is not None and known.shape == (width,):
            values = known.values()
            if values is not None and np.isfinite(values).all():
                weight, bias = (values, bias) if last == "weight" else (weight, values)
    return weight, bias


def _eps(rows: _Rows, form: _Form) -> tuple[float, float] | None:
    """eps and its standard error; None where y is no such norm."""
    width = rows.x.shape[1]
    centred = form.mean is NormForm.CENTRED
    centre = rows.x - rows.x.mean(axis=1, keepdims=True) if centred else rows.x
    weight = 1.0 + rows.weight if form.weight is NormForm.ONE_PLUS_WEIGHT else rows.weight
    spread = np.square(centre).mean(axis=1) * (
        width / (width - 1) if form.variance is NormForm.UNBIASED else 1
    )
    direction, y = centre * weight, rows.y - rows.bias
    square = np.square(direction).sum(axis=1)
    usable = square > 0
    if not usable.any():
        return None
    direction, y, spread, square = direction[usable], y[usable], spread[usable], square[usable]
    c = (direction * y).sum(axis=1) / square
    left = np.sqrt(np.square(y - c[:, None] * direction).sum(axis=1))
    size = np.sqrt(np.square(y).sum(axis=1))
    if not (c > 0).all() or float(np.median(left / np.maximum(size, _TINY))) > REPRODUCED:
        return None
    # The relative error of c is that of the residual spread over the row; what d holds inherits it.
    relative = np.maximum(left / size / np.sqrt(width), _EXACT / 2)
    if form.eps is NormForm.EPS_OUTSIDE:
        each = 1.0 / c - np.sqrt(spread)
        error = (np.sqrt(spread) + np.abs(each)) * relative
    else:
        each = 1.0 / np.square(c) - spread
        error = 2.0 * (spread + np.abs(each)) * relative
    return _mean_eps(each, error)


def _mean_eps(each: Floats, error: Floats) -> tuple[float, float] | None:
    """The eps of all rows and its standard error; None where rows have different ones, or a negative one."""
    weights = 1.0 / np.square(error)
    mean = float((each * weights).sum() / weights.sum())
    if float(np.median(np.abs(each - mean) / error)) > ROW_EPS_Z and len(each) > 1:
        return None
    scatter = float(np.sqrt((weights * np.square(each - mean)).sum() / weights.sum() / len(each)))
    own = max(scatter, float(1.0 / np.sqrt(weights.sum())))
    return None if mean < -CHANCE_Z * own else (mean, own)
