"""What an optimizer's step was, measured from its own numbers: weight before and after, gradient, moments.

Adam's update is linear in two known directions, ``after - before = -lr * d - lr * decay * before`` with
``d = m' / (sqrt(v') + eps)``; the moments are linear in the gradient. Least squares gives each constant with
the error that rounding leaves it, so that two runs can be compared by what their optimizers *did*, whatever
gradients they got, and whatever they say of their own settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trueup.diagnosing.stepbook import CLIPPED, UPDATED, WEIGHT, Floats, StepBook
from trueup.numerics.dtypes import DTYPES, dtype_from_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A constant of the update, and how far rounding may have moved it."""

    value: float
    error: float

    def apart(self, other: Measured) -> float:
        """How many errors two are apart; a thousandth of the value counts as no difference."""
        gap = abs(self.value - other.value)
        allowed = 4 * (self.error + other.error) + 1e-3 * abs(other.value)
        return gap / allowed if allowed > 0 else (0.0 if gap == 0 else np.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One parameter's update in one run."""

    fqn: str
    moved: bool
    dtype: str | None
    after_dtype: str | None
    state_dtypes: dict[str, str]
    count: float | None
    """steps the optimizer has counted for it"""
    length: float
    """norm of after - before"""
    constants: dict[str, Measured] = field(default_factory=dict)
    """``lr weight_decay beta1 beta2 eps momentum``, those that can be told"""
    bias_corrected: bool | None = None
    coupled: bool | None = None
    """weight decay enters the moments, as in Adam with L2"""
    moments: float | None = None
    """what the rule of the first moment leaves unexplained of it, from the step before's, over its norm"""
    residual: float | None = None
    """what the rule leaves unexplained of the update, over its norm"""


def updates(
    book: StepBook, before: StepBook | None, settings: dict[str, dict[str, Any]]
) -> dict[str, Update]:
    """One entry a parameter the optimizer stepped on; ``settings`` are what each declares."""
    found = {}
    for fqn in book.parameters:
        if book.parameter(fqn, *UPDATED) is not None:
            found[fqn] = _update(fqn, book, before, settings.get(fqn, {}))
    return found


def declared(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """fqn -> what its optimizer group says, with the optimizer's class under ``class``."""
    optimizers = facts.get("optimizers") or []
    found = {}
    for entry in facts.get("parameters") or []:
        place = entry.get("optimizer_group")
        if place and place[0] < len(optimizers) and place[1] < len(optimizers[place[0]]["groups"]):
            group = dict(optimizers[place[0]]["groups"][place[1]])
            group.pop("num_params", None)
            found[entry["fqn"]] = {"class": optimizers[place[0]]["class"], **group}
    return found


def _update(fqn: str, book: StepBook, before: StepBook | None, settings: dict[str, Any]) -> Update:
    at = book.parameter(fqn, *WEIGHT)
    start, end = book.sample(at), book.sample(book.parameter(fqn, *UPDATED))
    gradient = book.sample(book.parameter(fqn, *CLIPPED))
    state = {
        s.removeprefix("state."): book.parameter(fqn, "optimizer", s) for s in book.slots(fqn, "optimizer")
    }
    state.pop("param", None)
    dtypes = {name: precision_of(book, record) for name, record in state.items()}
    count = book.sample(state.get("step"))
    same = book.digest(at) is not None and book.digest(at) == book.digest(book.parameter(fqn, *UPDATED))
    facts: dict[str, Any] = {
        "fqn": fqn,
        "moved": not same,
        "dtype": book.dtype(at),
        "after_dtype": precision_of(book, book.parameter(fqn, *UPDATED)),
        "state_dtypes": dtypes,
        "count": None if count is None else float(count.ravel()[0]),
        "length": 0.0,
    }
    if start is None or end is None or gradient is None or start.shape != end.shape:
        return Update(**facts)
    p, g, moved = start.ravel(), gradient.ravel(), (end - start).ravel()
    facts["length"] = float(np.linalg.norm(moved))
    if g.size != p.size or not p.size:
        return Update(**facts)
    if "exp_avg" in state and "exp_avg_sq" in state:
        old = {
            k: None if before is None else before.sample(before.parameter(fqn, "optimizer", f"state.{k}"))
            for k in ("exp_avg", "exp_avg_sq")
        }
        first, second = (book.sample(state[k]) for k in ("exp_avg", "exp_avg_sq"))
        if first is not None and second is not None:
            return Update(**facts, **_adam(p, g, moved, first.ravel(), second.ravel(), old, facts, settings))
    return Update(**facts, **_gradient_descent(p, g, moved, book, state, facts, settings))


def precision_of(book: StepBook, record: int | None) -> str:
    """The dtype its values need: bfloat16 where each float32 of it would survive that cast."""
    found = book.raw(record)
    if found is None or found[0] != "float32" or found[1].size < 8:
        return str(book.dtype(record))
    flat = found[1].reshape(-1)
    bits = np.ascontiguousarray(flat[:: max(1, flat.size // 4096)]).view(np.uint32)
    bits = bits[bits << np.uint32(1) != 0]
    coarse = len(bits) >= 8 and not np.any(bits & np.uint32(0xFFFF))
    return "bfloat16" if coarse else "float32"


# -- Adam ------------------------------------------


def _adam(
    p: Floats,
    g: Floats,
    moved: Floats,
    m: Floats,
    v: Floats,
    old: dict[str, Floats | None],
    facts: dict[str, Any],
    settings: dict[str, Any],
) -> dict[str, Any]:
    count = facts["count"] or 1.0
    m0, v0 = (None if (o := old[k]) is None else o.ravel() for k in ("exp_avg", "exp_avg_sq"))
    constants: dict[str, Measured] = {}
    first: tuple[Measured, float] | None = None
    roundoff = _roundoff(facts["state_dtypes"].get("exp_avg"))
    coupled: tuple[Measured, Measured] | None = None
    if count <= 1.5 or m0 is not None:
        first = _decayed(m, np.zeros_like(m) if m0 is None else m0, g, roundoff)
        if first is not None and first[1] > 1e-4 and np.any(p):
            coupled = _coupled(m, g, p, m0)
            if coupled is not None:
                constants["beta1"], constants["weight_decay"] = coupled
        if first is not None and not coupled:
            constants["beta1"] = first[0]
        grown = _decayed(v, np.zeros_like(v) if v0 is None else v0, g * g, roundoff)
        if grown is not None and not coupled:
            constants["beta2"] = grown[0]
    b1 = constants["beta1"].value if "beta1" in constants else float(settings.get("betas", (0.9, 0.999))[0])
    b2 = constants["beta2"].value if "beta2" in constants else float(settings.get("betas", (0.9, 0.999))[1])
    noise = _roundoff(facts["after_dtype"]) * float(
        np.sqrt(np.mean(np.square(p)) + np.mean(np.square(moved)))
    )
    eps = float(settings.get("eps", 1e-8))
    with np.errstate(divide="ignore", invalid="ignore"):
        first_hat = m / (1 - b1**count)
        second_hat = np.sqrt(np.maximum(v / (1 - b2**count), 0))
        raw = np.sqrt(np.maximum(v, 0))
    best = _best_fit(
        moved, {True: (first_hat, second_hat), False: (m, raw)}, eps, p, noise, settings.get("lr")
    )
    told: dict[str, Any] = {"constants": constants, "coupled": coupled is not None}
    if m0 is not None and first is not None and coupled is None:
        told["moments"] = first[1]
    if best is None:
        return told
    corrected, (rate, decay, residual) = best
    constants["lr"] = rate
    if decay is not None and coupled is None:
        constants["weight_decay"] = decay
    top, bottom = (m, raw) if corrected is False else (first_hat, second_hat)
    pull = 0.0 if decay is None or coupled is not None else decay.value
    measured = _eps(moved, top, bottom, p, rate.value, pull, noise)
    if measured is not None:
        constants["eps"] = measured
    return told | {"bias_corrected": corrected, "residual": residual}


Fit = tuple[Measured, Measured | None, float]
_USUAL_EPS = (1e-8, 1e-6, 1e-5, 1e-10, 1e-15)


def _best_fit(
    moved: Floats,
    moments: dict[bool, tuple[Floats, Floats]],
    eps: float,
    p: Floats,
    noise: float,
    lr: float | None,
) -> tuple[bool | None, Fit] | None:
    """Whether the moments were corrected, and the fit; with another eps where the one set explains badly."""
    tried: list[tuple[float, bool | None, Fit]] = []
    for guess in (eps, *(e for e in _USUAL_EPS if e != eps)):
        fits = {way: _two_directions(moved, *pair, guess, p, noise) for way, pair in moments.items()}
        corrected = _corrected(fits, lr)
        fit = fits[corrected is not False]
        if fit is not None:
            tried.append((fit[2], corrected, fit))
            if guess == eps and fit[2] < 1e-3:
                break
    if not tried:
        return None
    _, corrected, fit = min(tried, key=lambda entry: entry[0])
    return corrected, fit


def _decayed(new: Floats, old: Floats, added: Floats, roundoff: float) -> tuple[Measured, float] | None:
    """beta of ``new = beta * old + (1 - beta) * added``, and the residual."""
    base, step = new - added, old - added
    square = float(step @ step)
    norm = float(np.linalg.norm(new))
    if not square or not norm:
        return None
    beta = float(base @ step) / square
    residual = float(np.linalg.norm(base - beta * step)) / norm
    error = max(roundoff, residual) * norm / np.sqrt(square)
    return Measured(value=beta, error=float(error)), residual


def _coupled(m: Floats, g: Floats, p: Floats, m0: Floats | None) -> tuple[Measured, Measured] | None:
    """beta1 and weight decay where a multiple of the weights went into the first moment beside the
    gradient."""
    columns = np.stack([g, p] if m0 is None else [g, p, m0], 1)
    solved, *_ = np.linalg.lstsq(columns, m, rcond=None)
    norm = float(np.linalg.norm(m))
    rest = float(np.linalg.norm(m - columns @ solved)) / norm
    share = abs(float(solved[1])) * float(np.linalg.norm(p)) / norm
    if rest > 1e-4 or share < 1e-4 or not solved[0]:
        return None
    decay = float(solved[1] / solved[0])
    return Measured(value=1 - float(solved[0]), error=rest), Measured(
        value=decay, error=abs(decay) * rest / share
    )


def _two_directions(
    moved: Floats, top: Floats, bottom: Floats, eps: float, p: Floats, noise: float
) -> tuple[Measured, Measured | None, float] | None:
    """lr and weight decay, from the elements whose direction eps touches least."""
    known = bottom[bottom > 0]
    if not len(known) or not np.any(moved):
        return None
    live = bottom >= float(np.quantile(known, 0.5))
    if live.sum() < 2:
        return None
    d, q, u = top[live] / (bottom[live] + eps), p[live], -moved[live]
    if not np.any(d):
        return None
    a, b, c = float(d @ d), float(d @ q), float(q @ q)
    determinant = a * c - b * b
    if c > 0 and determinant > 1e-6 * a * c:
        rate = (float(d @ u) * c - float(q @ u) * b) / determinant
        pull = (float(q @ u) * a - float(d @ u) * b) / determinant
        errors = noise * np.sqrt(c / determinant), noise * np.sqrt(a / determinant)
    else:  # of one direction, as ones and signs: how much of it is decay cannot be told
        rate, pull, errors = float(d @ u) / a, 0.0, (np.inf if c > 0 else noise / np.sqrt(a), np.inf)
    rest = float(np.linalg.norm(u - rate * d - pull * q)) / float(np.linalg.norm(u))
    lr = Measured(value=rate, error=float(errors[0]))
    if not rate or not np.isfinite(errors[1]):
        return lr, None, rest
    decay = Measured(value=pull / rate, error=float(errors[1] / abs(rate)))
    return lr, decay, rest


def _corrected(
    fits: dict[bool, tuple[Measured, Measured | None, float] | None], lr: float | None
) -> bool | None:
    """Whether the moments were corrected for starting at zero: which of the two gives the learning rate that
    was set."""
    known = {way: fit[0].value for way, fit in fits.items() if fit is not None}
    if not lr or len(known) < 2 or known[True] <= 0 or known[False] <= 0:
        return None
    gaps = {way: abs(np.log(rate / lr)) for way, rate in known.items()}
    if abs(gaps[True] - gaps[False]) < 0.02:
        return None
    return bool(gaps[True] < gaps[False])


def _eps(
    moved: Floats, top: Floats, bottom: Floats, p: Floats, lr: float, decay: float, noise: float
) -> Measured | None:
    """eps, from the elements where it matters most against rounding."""
    if lr <= 0:
        return None
    quotient = -(moved + lr * decay * p) / lr
    with np.errstate(divide="ignore", invalid="ignore"):
        found = top / quotient - bottom
        error = np.abs(top / (quotient * quotient)) * (noise / lr + 2e-7 * np.abs(quotient)) + 2e-7 * bottom
    good = np.isfinite(found) & np.isfinite(error) & (quotient != 0) & (top != 0) & (bottom > 0)
    if good.sum() < 8:
        return None
    best = np.argsort(error[good])[: max(8, int(good.sum() * 0.02))]
    return Measured(value=float(np.median(found[good][best])), error=float(np.median(error[good][best])))


# -- SGD ------------------------------------------


def _gradient_descent(
    p: Floats,
    g: Floats,
    moved: Floats,
    book: StepBook,
    state: dict[str, int | None],
    facts: dict[str, Any],
    settings: dict[str, Any],
) -> dict[str, Any]:
    if settings.get("class", "SGD") not in ("SGD", "Momentum"):
        return {}
    buffer = book.sample(state["momentum_buffer"]) if "momentum_buffer" in state else None
    direction = g if buffer is None else buffer.ravel()
    noise = _roundoff(facts["after_dtype"]) * float(np.sqrt(np.mean(np.square(p))))
    fit = _two_directions(moved, direction, np.ones_like(direction), 0.0, p, noise)
    if fit is None:
        return {}
    constants = {"lr": fit[0]}
    if buffer is None and fit[1] is not None:
        constants["weight_decay"] = fit[1]
    return {"constants": constants, "residual": fit[2]}


def _roundoff(name: str | None) -> float:
    return dtype_from_name(name).eps if name in DTYPES else 6e-8
