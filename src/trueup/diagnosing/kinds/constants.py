"""Solves for a constant of a known function from its input and outputs: eps of a norm, temperature of a
softmax, rate of a dropout, which activation it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.evidence.facts import Floats
from trueup.diagnosing.kinds.functions import ACTIVATIONS
from trueup.diagnosing.kinds.naming import number, percent

_ROWS = 4096
SIGNIFICANT = 5.0
_EVEN_ERRORS = 12.0
"""standard errors that the eps of single rows may lie apart"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One constant on both sides."""

    name: str
    target: str
    reference: str
    confidence: float

    @property
    def sentence(self) -> str:
        """``eps of the norm is 1e-06 for 1e-05 (fitted)``."""
        return f"{self.name} is {self.target} for {self.reference} (fitted from the values)"


def fitted_constants(evidence: Evidence) -> Iterator[Constant]:
    """Constants that differ, of every function this site may be."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.size < 16 or evidence.origin.phase != "forward":
        return
    yield from _dropout_rate(evidence, t, r)
    if not (np.isfinite(t).all() and np.isfinite(r).all()):
        return
    yield from _softmax(t, r, evidence.roundoff)
    x = _input(evidence, t.shape)
    if x is None or not np.isfinite(x).all():
        return
    yield from _norm(evidence, x, t, r)
    yield from _activation(x, t, r, evidence.roundoff)


def _input(evidence: Evidence, shape: tuple[int, ...]) -> Floats | None:
    """The one input of the output's shape, if both sides worked on the same."""
    if evidence.origin.slot.startswith("input"):
        return None  # an input is not made of its call's inputs
    for pair in evidence.surroundings.inputs:
        if pair.agree is not False and pair.given is not None and pair.given.shape == shape:
            return evidence.values_of(pair.given)
    return None


# -- norms ------------------------------------------


def _norm(evidence: Evidence, x: Floats, t: Floats, r: Floats) -> Iterator[Constant]:
    """y = w (x - m) / sqrt(v + eps) + b, with m = mean (LayerNorm) or 0 (RMSNorm).

    Per row c = <y - b, w (x - m)> / ||w (x - m)||^2 = 1 / sqrt(v + eps), so eps = 1 / c^2 - v; the mean over
    rows weighted by how well each is known.
    """
    width = x.shape[-1]
    if width < 8 or x.ndim < 2:
        return
    weight, bias = _affine(evidence, width)
    rows = x.reshape(-1, width)[:_ROWS], t.reshape(-1, width)[:_ROWS], r.reshape(-1, width)[:_ROWS]
    for centred in (True, False):
        centre = rows[0] - rows[0].mean(axis=1, keepdims=True) if centred else rows[0]
        spread = np.square(centre).mean(axis=1)
        sides = [_solve(centre * weight, y - bias, spread) for y in rows[1:]]
        if sides[1] is None:
            continue
        if sides[0] is None:
            return
        (eps_t, error_t), (eps_r, error_r) = sides[0], sides[1]
        error = float(np.hypot(error_t, error_r))
        if abs(eps_t - eps_r) > SIGNIFICANT * error and abs(eps_t - eps_r) > 0.02 * abs(eps_r):
            yield Constant(
                name="eps of the norm",
                target=_two_digits(eps_t),
                reference=_two_digits(eps_r),
                confidence=0.95,
            )
        return


def _affine(evidence: Evidence, width: int) -> tuple[Floats, Floats]:
    """Weight and bias of the norm; ones and zeros where it has none that are known."""
    weight, bias = np.ones(width), np.zeros(width)
    around = evidence.surroundings
    for pair in (*around.inputs, *around.parameters, *around.nearby):
        last = pair.slot.rpartition(".")[2]
        known = pair.given
        if last in ("weight", "bias") and known is not None and known.shape == (width,):
            values = known.values()
            if values is not None and np.isfinite(values).all():
                weight, bias = (values, bias) if last == "weight" else (weight, values)
    return weight, bias


def _solve(direction: Floats, y: Floats, spread: Floats) -> tuple[float, float] | None:
    """eps and its standard error; None where y is no such norm."""
    square = np.square(direction).sum(axis=1)
    usable = square > 0
    if not usable.any():
        return None
    direction, y, spread, square = direction[usable], y[usable], spread[usable], square[usable]
    c = (direction * y).sum(axis=1) / square
    left = np.sqrt(np.square(y - c[:, None] * direction).sum(axis=1))
    size = np.sqrt(np.square(y).sum(axis=1))
    if not (c > 0).all() or float(np.median(left / np.maximum(size, 1e-300))) > 0.02:
        return None
    each = 1.0 / np.square(c) - spread
    # The relative error of c is that of the residual spread over the row; eps inherits 2 (v + eps) of it.
    error = 2.0 * (spread + np.abs(each)) * np.maximum(left / size / np.sqrt(direction.shape[1]), 1e-16)
    weights = 1.0 / np.square(error)
    mean = float((each * weights).sum() / weights.sum())
    # Another factor of the whole would want another eps in every row.
    if float(np.median(np.abs(each - mean) / error)) > _EVEN_ERRORS and len(each) > 1:
        return None
    scatter = float(np.sqrt((weights * np.square(each - mean)).sum() / weights.sum() / len(each)))
    return mean, max(scatter, float(1.0 / np.sqrt(weights.sum())))


def _two_digits(value: float) -> str:
    return f"{value:.2g}"


# -- softmax, dropout, activations ------------------------------------------


def _softmax(t: Floats, r: Floats, rounding: float) -> Iterator[Constant]:
    """log t = s log r + a constant per row: another scale before the softmax."""
    if t.ndim < 2 or t.shape[-1] < 3:
        return
    a, b = t.reshape(-1, t.shape[-1])[:_ROWS], r.reshape(-1, t.shape[-1])[:_ROWS]
    if (a < 0).any() or (b < 0).any():
        return
    if max(np.abs(a.sum(axis=1) - 1).max(), np.abs(b.sum(axis=1) - 1).max()) > 0.02:
        return
    seen = (a > 1e-12) & (b > 1e-12)
    if seen.sum() < 8:
        return
    logs = [np.where(seen, np.log(np.where(seen, v, 1.0)), 0.0) for v in (a, b)]
    count = np.maximum(seen.sum(axis=1, keepdims=True), 1)
    x, y = (np.where(seen, v - v.sum(axis=1, keepdims=True) / count, 0.0) for v in logs)
    square = float((y * y).sum())
    if square == 0:
        return
    slope = float((x * y).sum()) / square
    left = float(np.sqrt(np.square(x - slope * y).sum() / square))
    error = max(left / np.sqrt(seen.sum()), rounding)
    if left < 0.02 * max(1.0, abs(slope)) and slope > 0 and abs(slope - 1) > SIGNIFICANT * 2 * error:
        yield Constant(
            name="the factor before the softmax",
            target=f"{number(slope)} times",
            reference="1",
            confidence=0.94,
        )


def _dropout_rate(evidence: Evidence, t: Floats, r: Floats) -> Iterator[Constant]:
    """Shares of zeros that chance does not bring together, scattered, the rest scaled to match."""
    p, q = float((t == 0).mean()), float((r == 0).mean())
    if p == q or max(p, q) >= 0.999 or t.size < 32:
        return
    x = _input(evidence, t.shape)
    if x is None:
        return
    chance = np.sqrt((p * (1 - p) + q * (1 - q)) / t.size)
    if abs(p - q) <= SIGNIFICANT * chance or not (_drops(x, t, p) and _drops(x, r, q)):
        return
    yield Constant(name="the dropout rate", target=_rate(p), reference=_rate(q), confidence=0.965)


def _drops(x: Floats, y: Floats, rate: float) -> bool:
    """Whether y is x / (1 - rate) where it is not zero."""
    kept = (y != 0) & (x != 0)
    if not kept.any() or rate >= 1:
        return False
    ratio = y[kept] / x[kept]
    middle = float(np.median(ratio))
    even = float((np.abs(ratio / middle - 1) < 0.01).mean()) if middle else 0.0
    return even > 0.98 and abs(middle * (1 - rate) - 1) < 0.2


def _rate(share: float) -> str:
    return "none" if share == 0 else percent(share)


def _activation(x: Floats, t: Floats, r: Floats, rounding: float) -> Iterator[Constant]:
    """Which of the known functions each side is."""
    sample = slice(None, None, max(x.size // (1 << 16), 1))
    a, b, c = (v.ravel()[sample] for v in (x, t, r))
    named = [_which(a, y, rounding) for y in (b, c)]
    if named[0] is not None and named[1] is not None and named[0] != named[1]:
        yield Constant(name="the activation", target=named[0], reference=named[1], confidence=0.95)


def _which(x: Floats, y: Floats, rounding: float) -> str | None:
    size = float(np.linalg.norm(y))
    if size == 0:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        left = {name: float(np.linalg.norm(f(x) - y)) / size for name, f in ACTIVATIONS.items()}
    best = min(left, key=lambda name: left[name])
    others = [v for name, v in left.items() if name != best]
    limit = max(8 * rounding, 2e-6)
    return best if left[best] <= limit and min(others) > 2 * left[best] else None
