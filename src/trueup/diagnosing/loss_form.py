"""What a cross-entropy is, told by the gradient that it sends back to its logits.

With p = softmax(z), y the one-hot label, V words, the loss of a token is -log p[y], smoothed by s, plus a
z-loss of coefficient c, over d; its gradient is linear in 1 / d, s / d and c / d:

    dL/dz = (p - y) / d + s (y - 1 / V) / d + 2 c logsumexp(z) p / d

Least squares over all tokens that count gives the three, and how well each is known.

A token that does not count sends nothing back. Where its label is left out of the sum, but not of what
smooths, the mean over all words is left of it: u (p - 1 / V) / d, which no label is part of.

It may also be one of logits over a temperature t: (softmax(z / t) - y) / (t d). Of
words that are not the label its logarithm is linear in z, with a slope of 1 / t. Small logits tell the two
apart badly: it has a temperature where that leaves by far less of the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trueup.diagnosing.thresholds import LOSS_FORM_BETTER, LOSS_FORM_RESIDUAL, SOLVED_Z
from trueup.types.arrays import Bools, Floats, Ints

MAX_NUMBERS = 1 << 22
"""logits that are looked at"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossForm:
    """The form of one microbatch's loss; each number with its standard error."""

    divisor: float
    smoothing: float
    smoothing_error: float
    z_loss: float
    z_loss_error: float
    temperature: float = 1.0
    temperature_error: float = 0.0
    ignored_smoothing: float = 0.0
    """u of tokens that do not count; 0 where they send nothing back, or something else"""


def loss_form(
    logits: Floats, labels: Ints, gradient: Floats, counts: Bools, *, roundoff: float
) -> LossForm | None:
    """The form of a cross-entropy; None where the gradient is of no such loss, or of too few tokens to tell.

    Args:
        logits: (N, V).
        labels: (N,); looked at where ``counts``.
        gradient: (N, V), without a loss scale.
        counts: (N,), the tokens that count.
        roundoff: unit roundoff of the gradient's dtype.
    """
    rows = np.flatnonzero(counts & np.abs(gradient).max(axis=1, initial=0.0).astype(bool))
    rows = rows[: max(MAX_NUMBERS // max(logits.shape[1], 1), 1)]
    z, g, y = logits[rows], gradient[rows], labels[rows]
    if len(rows) < 2 or z.shape[1] < 3 or not (np.isfinite(z).all() and np.isfinite(g).all()):
        return None
    p, log_total = _softmax(z)
    one_hot = np.zeros_like(p)
    one_hot[np.arange(len(y)), y] = 1.0
    terms = np.stack(
        [
            (p - one_hot).ravel(),
            (one_hot - 1.0 / p.shape[1]).ravel(),
            (2 * log_total * p).ravel(),
        ]
    )
    plain, divided = _solved(terms, g.ravel(), roundoff), _of_temperature(z, g, one_hot, roundoff)
    if plain is None or divided is None:
        found = next((form for form, _ in filter(None, (plain, divided))), None)
    else:
        found = divided[0] if divided[1] < LOSS_FORM_BETTER * plain[1] else plain[0]
    if found is None or counts.all():
        return found
    return replace(found, ignored_smoothing=_of_ignored(logits, gradient, counts) * found.divisor)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWeights:
    """What a loss multiplies the log-probability of each token's word by, with a minus."""

    values: Floats
    """0 where nothing is sent back"""
    errors: Floats
    """by which rounding may have changed each"""
    words: Ints
    """-1 where nothing is sent back"""


def token_weights(logits: Floats, gradient: Floats, near: float) -> TokenWeights | None:
    """The weights of a loss that is made of log-probabilities of one word a token, whatever stands around
    them: the gradient of a token's logits is then one number times softmax - one-hot, and the word is where
    the gradient has the sign that it has nowhere else. Where the word is all but certain, little of that is
    left of the rounding of 1 - p.

    Args:
        logits: (..., V), of at least three words: with two every gradient that sums to 0 has that form.
        gradient: likewise.
        near: what rounding leaves over, relative to the weight.

    Returns:
        None where some token's gradient has another form.
    """
    width = logits.shape[-1]
    if (
        width < 3
        or logits.size > MAX_NUMBERS
        or not (np.isfinite(logits).all() and np.isfinite(gradient).all())
    ):
        return None
    g = gradient.reshape(-1, width)
    p, _ = _softmax(logits.reshape(-1, width))
    rows = np.arange(len(g))
    values, errors, left, words = (np.full(len(g), fill) for fill in (0.0, 0.0, np.inf, -1))
    for chosen in (g.argmin(axis=1), g.argmax(axis=1)):
        made = p.copy()
        made[rows, chosen] -= 1.0
        size = np.linalg.norm(made, axis=1)
        factors = np.divide((made * g).sum(axis=1), size**2, out=np.zeros(len(g)), where=size > 0)
        rest = np.linalg.norm(g - factors[:, None] * made, axis=1)
        better = (rest < left) & g.any(axis=1)
        error = np.divide(near * np.abs(factors), size, out=np.zeros(len(g)), where=size > 0)
        values, errors = np.where(better, factors, values), np.where(better, error, errors)
        words, left = np.where(better, chosen, words), np.where(better, rest, left)
    live = words >= 0
    if not live.any() or (left[live] > near * np.abs(values[live])).any():
        return None
    shape = logits.shape[:-1]
    return TokenWeights(
        values=values.reshape(shape), errors=errors.reshape(shape), words=words.reshape(shape)
    )


def _of_ignored(logits: Floats, gradient: Floats, counts: Bools) -> float:
    """What the tokens that do not count are smoothed by, over the divisor."""
    rows = np.flatnonzero(~counts & np.abs(gradient).max(axis=1, initial=0.0).astype(bool))
    rows = rows[: max(MAX_NUMBERS // max(logits.shape[1], 1), 1)]
    z, g = logits[rows], gradient[rows].ravel()
    if len(rows) < 2 or not (np.isfinite(z).all() and np.isfinite(g).all()):
        return 0.0
    made = (_softmax(z)[0] - 1.0 / z.shape[1]).ravel()
    square = float(made @ made)
    factor = float(made @ g) / square if square > 0 else 0.0
    is_all = np.linalg.norm(g - factor * made) <= LOSS_FORM_RESIDUAL * np.linalg.norm(g)
    return factor if is_all and factor > 0 else 0.0


def _softmax(z: Floats) -> tuple[Floats, Floats]:
    """softmax(z) and logsumexp(z) of every row."""
    largest = z.max(axis=1, keepdims=True)
    total = np.exp(z - largest).sum(axis=1, keepdims=True)
    return np.exp(z - largest) / total, largest + np.log(total)


def _of_temperature(z: Floats, g: Floats, one_hot: Floats, roundoff: float) -> tuple[LossForm, float] | None:
    """The form, and what it leaves of the gradient; None where that is of no such loss.

    Least squares of log g over z, per token about its own means, weighted with g: words of tiny gradients may
    have underflowed.
    """
    w = np.where((one_hot == 0) & (g > 0), g, 0.0)
    total = np.where(w.sum(axis=1, keepdims=True) > 0, w.sum(axis=1, keepdims=True), 1.0)
    sides = (z, np.log(g, out=np.zeros_like(g), where=w > 0))
    x, y = (values - (values * w).sum(axis=1, keepdims=True) / total for values in sides)
    square = float((w * x * x).sum())
    slope = float((w * x * y).sum()) / square if square > 0 else 0.0
    if slope <= 0:
        return None
    made = (_softmax(z * slope)[0] - one_hot).ravel()
    a = float(made @ g.ravel()) / float(made @ made)
    left, length = float(np.linalg.norm(g.ravel() - a * made)), float(np.linalg.norm(g))
    if a <= 0 or left > LOSS_FORM_RESIDUAL * length:
        return None
    apart = np.where(w > 0, np.maximum(np.abs(y - slope * x), roundoff), 0.0)
    form = LossForm(
        divisor=slope / a,
        smoothing=0.0,
        smoothing_error=0.0,
        z_loss=0.0,
        z_loss_error=0.0,
        temperature=1 / slope,
        temperature_error=float(np.linalg.norm(w * x * apart)) / square / slope**2 + roundoff / slope,
    )
    return form, left / length


def _has_neither(form: LossForm) -> bool:
    """Whether neither smoothing nor a z-loss shows: of tokens that are all about as likely, the terms of a
    loss are nearly one another's multiples, and fitted together each is known by far worse than the sum."""
    of_smoothing = abs(form.smoothing) <= SOLVED_Z * form.smoothing_error
    return of_smoothing and abs(form.z_loss) <= SOLVED_Z * form.z_loss_error


def _solved(terms: Floats, gradient: Floats, roundoff: float) -> tuple[LossForm, float] | None:
    """The form without a temperature, and what it leaves of the gradient: normal equations scaled to unit
    diagonal; errors follow from the residual, at least from rounding."""
    sizes = np.linalg.norm(terms, axis=1)
    length = float(np.linalg.norm(gradient))
    if not (sizes > 0).all() or length == 0:
        return None
    matrix = (terms / sizes[:, None]) @ (terms / sizes[:, None]).T
    try:
        inverse = np.linalg.inv(matrix)
    except np.linalg.LinAlgError:
        return None
    a, b, c = (inverse @ ((terms / sizes[:, None]) @ gradient)) / sizes
    left = float(np.linalg.norm(gradient - np.array([a, b, c]) @ terms))
    if a <= 0 or left > LOSS_FORM_RESIDUAL * length:
        return None
    errors = np.sqrt(np.maximum(np.diag(inverse), 0.0)) * max(left, roundoff * length) / sizes
    form = LossForm(
        divisor=float(1 / a),
        smoothing=float(b / a),
        smoothing_error=float(np.hypot(errors[1], errors[0] * b / a) / a),
        z_loss=float(c / a),
        z_loss_error=float(np.hypot(errors[2], errors[0] * c / a) / a),
    )
    by_itself = float(terms[0] @ gradient) / float(sizes[0]) ** 2
    if by_itself > 0 and _has_neither(form):
        form = replace(form, divisor=1 / by_itself)
    return form, left / length
