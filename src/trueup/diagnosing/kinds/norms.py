"""What a norm did: its eps, where eps is added, which variance it takes, how it applies its weight; told from
input and output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.grids import ROUNDOFF, dtype_of_error
from trueup.diagnosing.kinds.rule import Found, origin_reason
from trueup.diagnosing.kinds.thresholds import (
    CHANCE_Z,
    EXACT_SHARE,
    EXACT_TIE,
    FACTOR_NEAR_ONE,
    FEW_NUMBERS,
    FITTED_ROWS,
    FORM_LEAVES,
    REPRODUCED,
    ROW_EPS_Z,
)
from trueup.numerics.dtypes import DTYPES, rounded_to
from trueup.types.arrays import Floats
from trueup.types.codes.kinds import KindReason, NormForm
from trueup.types.finding import EvidenceRank
from trueup.types.reason import reason

_TINY = float(np.finfo(np.float64).tiny)
_EXACT = float(np.finfo(np.float64).eps)
_COARSE = ("bfloat16", "float16")
_USUAL_EPS = (1e-5, 1e-6, 1e-8, 1e-12, 0.0)
_EXACT_ROWS, _EXACT_NUMBERS, _EXACT_TRIED, _EXACT_PASSES = 32, 256, 17, 4
"""rows that are worked out and numbers of each, values of eps that are tried around the best one, and how
often that is done"""


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
    dtype = evidence.target.dtype if evidence.target is not None else "float32"
    own, usual = (_fits(side, dtype) for side in sides)
    if not usual:
        return
    form, (eps, error) = next(iter(usual.items()))
    same = own.get(form)
    if same is None:
        yield from _other_form(evidence, own, usual)
        return
    chance, gap = float(np.hypot(same[1], error)), abs(same[0] - eps)
    if gap > CHANCE_Z * chance and gap > FACTOR_NEAR_ONE * abs(eps):
        sides_eps = {"target": _or_zero(*same), "reference": _or_zero(eps, error)}
        sentence = origin_reason(evidence, KindReason.NORM_EPS, **sides_eps)
        yield Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)


def _or_zero(eps: float, error: float) -> float:
    """Zero where that is as near as chance, as of a norm without an eps, whose fit may fall below it."""
    return eps if eps > CHANCE_Z * error else 0.0


def _other_form(evidence: Evidence, own: _Fits, usual: _Fits) -> Iterator[Found]:
    """The one thing of the norm's form that the target does otherwise, where that explains every row."""
    reference = next(iter(usual))
    for name in (field.name for field in fields(_Form)):
        for form in dict.fromkeys(getattr(form, name) for form in _FORMS):
            other = replace(reference, **{name: form})
            # Forms that both sides fit cannot be told apart on these rows.
            if other not in own or other in usual:
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


_Fits = dict[_Form, tuple[float, float]]
"""eps and its standard error by form, the usual forms first"""


def _fits(rows: _Rows, dtype: str) -> _Fits:
    """The forms that y, of this dtype, may be of. Rounding hides that a mean near 0 is not taken; of two
    forms, the one that leaves clearly less is that of y."""
    found = {form: fit for form in _FORMS if (fit := _eps(rows, form)) is not None}
    least = min((fit.left for fit in found.values()), default=0.0)
    found = {form: fit for form, fit in found.items() if leaves_no_more(fit.left, least)}
    if dtype in _COARSE:
        return _coarse_fits(rows, found, dtype)
    return {form: eps for form, fit in found.items() if (eps := _rounded_rows(fit, dtype)) is not None}


def _rounded_rows(fit: _Fit, dtype: str) -> tuple[float, float] | None:
    """Eps of all rows and its error. Where a coarser dtype's rounding is left of y, the norm was computed in
    that dtype, and the one number that divides a row is rounded as coarsely as its elements are."""
    if fit.of_all is None:
        return None
    eps, error = fit.of_all
    inside = dtype_of_error(fit.left)
    if inside is None or ROUNDOFF[inside] <= DTYPES[dtype].eps:
        return eps, error
    return eps, error + 2 * ROUNDOFF[inside] * fit.spread


def _coarse_fits(rows: _Rows, found: dict[_Form, _Fit], dtype: str) -> _Fits:
    """The forms that give y bit for bit with some eps, and half of how far others give as much of it; where
    none does, those that fit, with the error of roundings that are no chance.

    Elements of a coarse dtype are rounded together where x and y have one grid: a factor near 1 rounds all of
    a row back to x. A fit is off by up to two roundings of the rows' squares then, however many rows there
    are. What an eps gives, rounded in turn, is not.
    """
    exact = {form: _exact_eps(rows, form, fit, dtype) for form, fit in found.items()}
    if given := that_give_most(exact):
        return given
    return {  # not bit for bit: in another dtype, or rounded on the way
        form: (fit.of_all[0], fit.of_all[1] + 2 * DTYPES[dtype].eps * fit.spread)
        for form, fit in found.items()
        if fit.of_all is not None
    }


def leaves_no_more(left: float, least: float) -> bool:
    """Whether a form leaves no more of y than the best one, up to what rounding may add."""
    return left <= FORM_LEAVES * max(least, _EXACT)


def that_give_most(exact: Mapping[_Form, tuple[float, float, float]]) -> _Fits:
    """Of forms with eps, its error and the share of y they give: those that give it, and as much as any."""
    most = max((share for _, _, share in exact.values()), default=0.0)
    if most < EXACT_SHARE:
        return {}
    return {form: (eps, error) for form, (eps, error, share) in exact.items() if share > most - EXACT_TIE}


def _exact_eps(rows: _Rows, form: _Form, fit: _Fit, dtype: str) -> tuple[float, float, float]:
    """The eps that gives most of y, half of how far others give as much, and the share of y it gives."""
    step = max(1, len(rows.x) // _EXACT_ROWS)
    rows = replace(rows, x=rows.x[::step], y=rows.y[::step])
    of_form = _Parts(*_parts(rows, form))
    middle, width = max(fit.mean, 0.0), 8 * DTYPES[dtype].eps * (fit.spread + abs(fit.mean))
    tried, shares = (
        np.array(_USUAL_EPS),
        np.array([_share_given(rows, form, of_form, eps, dtype) for eps in _USUAL_EPS]),
    )
    for _ in range(_EXACT_PASSES):
        near = np.linspace(max(middle - width, 0.0), middle + width, _EXACT_TRIED)
        tried = np.concatenate([tried, near])
        shares = np.concatenate([shares, [_share_given(rows, form, of_form, eps, dtype) for eps in near]])
        middle, width = float(tried[int(np.argmax(shares))]), 4 * width / _EXACT_TRIED
    alike = shares > shares.max() - EXACT_TIE
    best = float(tried[int(np.argmax(alike))])  # a usual one of those that give as much
    return best, float(np.abs(tried[alike] - best).max() + width) / 2, float(shares.max())


def _share_given(rows: _Rows, form: _Form, parts: _Parts, eps: float, dtype: str) -> float:
    """Of the elements of y, those that the form gives with this eps, however its results are rounded."""
    step = max(1, rows.x.shape[1] // _EXACT_NUMBERS)
    d = np.sqrt(parts.spread) + eps if form.eps is NormForm.EPS_OUTSIDE else np.sqrt(parts.spread + eps)
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = parts.centre[:, ::step] / d[:, None]
    weight, bias, y = parts.weight[::step], rows.bias[::step], rows.y[:, ::step]
    early = rounded_to(unit, dtype) * weight
    products = (unit * weight, early, rounded_to(early, dtype))
    return max(float((rounded_to(one + bias, dtype) == y).mean()) for one in products)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Of a form, for all rows."""

    centre: Floats
    """x - m"""
    weight: Floats
    spread: Floats
    """variance of each row"""


@dataclass(frozen=True, slots=True)
class _Fit:
    """What y says of a form's eps."""

    mean: float
    """over rows, weighted by how well each is known"""
    of_all: tuple[float, float] | None
    """eps and its standard error; None where rows have different ones, or a negative one"""
    spread: float
    """variance of the rows that tell most"""
    left: float
    """share of y that is left over"""


def _eps(rows: _Rows, form: _Form) -> _Fit | None:
    """None where y is no such norm."""
    width = rows.x.shape[1]
    centre, weight, spread = _parts(rows, form)
    direction, y = centre * weight, rows.y - rows.bias
    square = np.square(direction).sum(axis=1)
    usable = square > 0
    if not usable.any():
        return None
    direction, y, spread, square = direction[usable], y[usable], spread[usable], square[usable]
    c = (direction * y).sum(axis=1) / square
    left = np.sqrt(np.square(y - c[:, None] * direction).sum(axis=1))
    size = np.sqrt(np.square(y).sum(axis=1))
    unexplained = float(np.median(left / np.maximum(size, _TINY)))
    if not (c > 0).all() or unexplained > REPRODUCED:
        return None
    # The relative error of c is that of the residual spread over the row; what d holds inherits it.
    relative = np.maximum(left / size / np.sqrt(width), _EXACT / 2)
    if form.eps is NormForm.EPS_OUTSIDE:
        each = 1.0 / c - np.sqrt(spread)
        error = (np.sqrt(spread) + np.abs(each)) * relative
    else:
        each = 1.0 / np.square(c) - spread
        error = 2.0 * (spread + np.abs(each)) * relative
    weights = 1.0 / np.square(error)
    weights /= weights.sum()
    mean, known = float((each * weights).sum()), float((spread * weights).sum())
    return _Fit(mean, _mean_eps(each, error), known, unexplained)


def _parts(rows: _Rows, form: _Form) -> tuple[Floats, Floats, Floats]:
    """x - m, w, and the variance of each row."""
    width = rows.x.shape[1]
    centre = rows.x - rows.x.mean(axis=1, keepdims=True) if form.mean is NormForm.CENTRED else rows.x
    weight = 1.0 + rows.weight if form.weight is NormForm.ONE_PLUS_WEIGHT else rows.weight
    unbiased = width / (width - 1) if form.variance is NormForm.UNBIASED else 1
    return centre, weight, np.square(centre).mean(axis=1) * unbiased


def _mean_eps(each: Floats, error: Floats) -> tuple[float, float] | None:
    """The eps of all rows and its standard error; None where rows have different ones, or a negative one."""
    weights = 1.0 / np.square(error)
    mean = float((each * weights).sum() / weights.sum())
    if float(np.median(np.abs(each - mean) / error)) > ROW_EPS_Z and len(each) > 1:
        return None
    scatter = float(np.sqrt((weights * np.square(each - mean)).sum() / weights.sum() / len(each)))
    own = max(scatter, float(1.0 / np.sqrt(weights.sum())))
    return None if mean < -CHANCE_Z * own else (mean, own)
