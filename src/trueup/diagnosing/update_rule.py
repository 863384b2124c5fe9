"""What an optimizer's step was, measured from its own numbers: weight before and after, gradient, moments.

The fits themselves are in `optimizer_fit`; here they are put together for each parameter of a captured step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from trueup.diagnosing.optimizer_fit import (
    FittedConstant,
    UpdateFit,
    adam_directions,
    fit_coupled_moment,
    fit_eps,
    fit_moment,
    fit_steady_update,
    fit_update,
    roundoff_of,
)
from trueup.diagnosing.thresholds import (
    BETA_KNOWN,
    CORRECTION_APART,
    IMPRECISE_FIT,
    MOMENT_REST,
    PRECISION_FEWEST,
    UPDATE_REST,
)
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepView
from trueup.store.view import ACCUMULATED, CLIPPED, LOCAL, UPDATED, WEIGHT
from trueup.types.arrays import Floats

_USUAL_EPS = (1e-8, 1e-6, 1e-5, 1e-10, 1e-15)
"""tried where the declared one does not explain an update: defaults of libraries, and what papers set"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStep:
    """The flat arrays of one parameter's step, and what is known of their precision."""

    before: Floats
    moved: Floats
    gradient: Floats
    first: Floats | None = None
    """``exp_avg`` after the step"""
    second: Floats | None = None
    first_before: Floats | None = None
    """``exp_avg`` before the step, where it was captured"""
    second_before: Floats | None = None
    buffer: Floats | None = None
    """``momentum_buffer`` after the step"""
    count: float | None = None
    dtype: str | None = None
    """the precision of the updated weight"""
    moment_dtype: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """what the optimizer group declares"""

    @property
    def is_finite(self) -> bool:
        """Whether all that it holds are numbers."""
        held = (self.before, self.moved, self.gradient, self.first, self.second, self.first_before)
        every = (*held, self.second_before, self.buffer)
        return all(bool(np.isfinite(one).all()) for one in every if one is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFit:
    """What a step's arrays tell of the optimizer."""

    constants: Mapping[str, FittedConstant] = field(default_factory=dict)
    """``lr weight_decay beta1 beta2 eps``, those that can be determined"""
    bias_corrected: bool | None = None
    coupled: bool | None = None
    """weight decay enters the moments, as in Adam with L2"""
    moments: float | None = None
    """what the rule of the first moment leaves unexplained of it, from the step before's, over its norm"""
    residual: float | None = None
    """what the rule leaves unexplained of the update, over its norm"""
    eps_inside: bool | None = None
    """eps is added to the second moment before its root is taken; None where that cannot be told"""

    @property
    def known(self) -> Mapping[str, FittedConstant]:
        """The constants without those of an update that the rule does not explain."""
        if (self.residual or 0.0) <= IMPRECISE_FIT:
            return self.constants
        return {key: of for key, of in self.constants.items() if key not in ("lr", "weight_decay", "eps")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Update(StepFit):
    """One parameter's update in one run."""

    fqn: str
    moved: bool
    dtype: str | None
    after_dtype: str | None
    state_dtypes: dict[str, str]
    count: float | None
    """steps the optimizer has counted for it"""
    length: float = 0.0
    """norm of after - before"""
    most_spacings: float | None = None
    """the largest change of a weight, in distances between numbers of its dtype; None of float32 and finer"""
    held_dtype: str | None = None
    """that of the tensor which is updated, whatever its values need"""
    has_gradient: bool = True
    """one other than zero reached the optimizer; else a weight rightly stays as it is"""
    gradient_norm: float | None = None
    """of what reached the optimizer"""
    weight_norm: float | None = None
    """before"""


def updates(
    book: StepView, before: StepView | None, settings: dict[str, dict[str, Any]]
) -> dict[str, Update]:
    """One entry a parameter the optimizer stepped on; ``settings`` are what each declares."""
    found = {}
    for fqn in book.parameters:
        if book.parameter(fqn, *UPDATED) is not None:
            found[fqn] = _update(fqn, book, before, settings.get(fqn, {}))
    return found


def _has_gradient(fqn: str, book: StepView) -> bool:
    for kind in (CLIPPED, ACCUMULATED, LOCAL):
        if book.parameters_with(*kind):
            record = book.parameter(fqn, *kind)
            return record is not None and not book.is_all_zero(record)
    return True


# In one piece: one measurement, of what a step holds of one parameter; any part of it may be missing.
def _update(fqn: str, book: StepView, before: StepView | None, settings: dict[str, Any]) -> Update:
    at, after = book.parameter(fqn, *WEIGHT), book.parameter(fqn, *UPDATED)
    state = {
        s.removeprefix("state."): book.parameter(fqn, "optimizer", s)
        for s in book.parameter_slots(fqn, "optimizer")
    }
    state.pop("param", None)
    count = book.sample(state.get("step"))
    update = Update(
        fqn=fqn,
        moved=book.digest(at) is None or book.digest(at) != book.digest(after),
        dtype=book.dtype(at),
        after_dtype=_updated_dtype(
            book, at, after, moves=settings.get("lr") != 0 and _has_gradient(fqn, book)
        ),
        held_dtype=book.dtype(after),
        state_dtypes={
            name: dtype for name, record in state.items() if (dtype := precision_of(book, record)) is not None
        },
        count=None if count is None else float(count.ravel()[0]),
        has_gradient=_has_gradient(fqn, book),
        gradient_norm=book.norm(book.parameter(fqn, *CLIPPED)),
        weight_norm=book.norm(at),
    )
    start, end, gradient = book.sample(at), book.sample(after), book.sample(book.parameter(fqn, *CLIPPED))
    if at is None and before is not None:  # a master: as the step before left it
        start = before.sample(before.parameter(fqn, *UPDATED))
    if start is None or end is None or gradient is None or start.shape != end.shape:
        return update
    with np.errstate(invalid="ignore"):  # infinite on both sides
        moved = (end - start).ravel()
    update = replace(
        update, length=float(np.linalg.norm(moved)), most_spacings=_most_spacings(start, moved, update.dtype)
    )
    if gradient.size != start.size or not start.size:
        return update

    def flat(name: str, of: StepView | None = book) -> Floats | None:
        if of is None or name not in state:
            return None
        found = of.sample(state[name] if of is book else of.parameter(fqn, "optimizer", f"state.{name}"))
        return None if found is None else found.ravel()

    adam = "exp_avg" in state and "exp_avg_sq" in state
    fitted = fit_step(
        OptimizerStep(
            before=start.ravel(),
            moved=moved,
            gradient=-gradient.ravel() if settings.get("maximize") else gradient.ravel(),
            first=flat("exp_avg") if adam else None,
            second=flat("exp_avg_sq") if adam else None,
            first_before=flat("exp_avg", before) if adam else None,
            second_before=flat("exp_avg_sq", before) if adam else None,
            buffer=flat("momentum_buffer"),
            count=update.count,
            dtype=update.after_dtype,
            moment_dtype=update.state_dtypes.get("exp_avg"),
            settings=settings,
        )
    )
    return replace(update, **{f.name: getattr(fitted, f.name) for f in fields(fitted)})


def _most_spacings(start: Floats, moved: Floats, dtype: str | None) -> float | None:
    if dtype not in ("bfloat16", "float16"):
        return None
    known = DTYPES[dtype]
    with np.errstate(divide="ignore"):
        exponents = np.floor(np.log2(np.abs(start.ravel())))
    spacing = 2 * known.eps * np.exp2(np.maximum(exponents, np.log2(known.smallest_normal)))
    return float(np.max(np.abs(moved) / spacing, initial=0.0))


def _updated_dtype(book: StepView, at: int | None, after: int | None, *, moves: bool) -> str | None:
    """The dtype an update is made in; None where nothing moved, so that values made of a coarse copy are as
    coarse as it was (``moves``: asked where the weight before is not recorded, as of a master)."""
    found = precision_of(book, after)
    before = book.digest(at)
    stayed = not moves if before is None else before == book.digest(after)
    return None if stayed and found != book.dtype(after) else found


_EXPONENT = np.uint32(0x7F800000)
"""of a float32; all set: infinity or NaN"""


def precision_of(book: StepView, record: int | None) -> str | None:
    """The dtype its values need: bfloat16 where each float32 of it would survive that cast. None where the
    trace does not hold the record."""
    found = book.raw(record)
    if found is None or found[0] != "float32" or found[1].size < PRECISION_FEWEST:
        return book.dtype(record)
    flat = found[1].reshape(-1)
    bits = np.ascontiguousarray(flat[:: max(1, flat.size // 4096)]).view(np.uint32)
    bits = bits[
        (bits << np.uint32(1) != 0) & (bits & _EXPONENT != _EXPONENT)
    ]  # zeros, infinities and NaN fit any
    coarse = len(bits) >= PRECISION_FEWEST and not np.any(bits & np.uint32(0xFFFF))
    return "bfloat16" if coarse else "float32"


def fit_step(step: OptimizerStep) -> StepFit:
    """The constants of the step: Adam's where it keeps two moments, otherwise gradient descent's; none of a
    step that holds NaN or infinities."""
    if not step.is_finite:
        return StepFit()
    if step.first is not None and step.second is not None:
        return _adam(step, step.first, step.second)
    return _gradient_descent(step)


# -- Adam ------------------------------------------


def _adam(step: OptimizerStep, first: Floats, second: Floats) -> StepFit:
    p, moved, settings, count = step.before, step.moved, step.settings, step.count or 1.0
    constants, coupled, moments = _moment_constants(step, first, second, count)
    beta1, beta2 = (float(b) for b in settings.get("betas", (0.9, 0.999)))
    betas = _beta(constants.get("beta1"), beta1), _beta(constants.get("beta2"), beta2)
    noise = roundoff_of(step.dtype) * float(np.sqrt(np.mean(np.square(p)) + np.mean(np.square(moved))))
    directions = adam_directions(first, second, count=count, betas=betas)
    eps = float(settings.get("eps", 1e-8))
    pulling = np.zeros_like(p) if coupled else p  # what decay there is lies in the moments
    best = _best_fit(moved, directions, eps, pulling, noise, settings.get("lr"))
    if best is None:
        return StepFit(constants=constants, coupled=coupled, moments=moments)
    inside, corrected = _inside_or_not(moved, directions, best, eps, p, noise)
    fit = best[1]
    if inside and inside[0]:
        constants["lr"] = inside[1].rate
        decay = None if coupled else _decay(inside[1])
        known = constants if decay is None else {**constants, "weight_decay": decay}
        return StepFit(
            constants=known,
            coupled=coupled,
            moments=moments,
            bias_corrected=corrected,
            residual=inside[1].residual,
            eps_inside=True,
        )
    constants["lr"] = fit.rate
    decay = None if coupled else _decay(fit)
    if decay is not None:
        constants["weight_decay"] = decay
    unknown = 0.0  # decay of weights that are all alike, such as a new norm's, is no other than a rate
    if decay is None and not coupled:
        unknown = float(settings.get("weight_decay", 0.0)) * float(np.sqrt(np.mean(np.square(p))))
    measured = fit_eps(
        moved,
        *directions[corrected is not False],
        p,
        fit.rate.value,
        0.0 if decay is None else decay.value,
        noise + abs(fit.rate.value) * unknown,
    )
    if measured is not None:
        constants["eps"] = measured
    return StepFit(
        constants=constants,
        coupled=coupled,
        moments=moments,
        bias_corrected=corrected,
        residual=fit.residual,
        eps_inside=inside[0] if inside else None,
    )


def _beta(measured: FittedConstant | None, declared: float) -> float:
    """The measured one, if its distance from 1, which the correction divides by, is known well."""
    return measured.value if measured and measured.error < BETA_KNOWN * abs(1 - measured.value) else declared


def _inside_or_not(
    moved: Floats,
    directions: Mapping[bool, tuple[Floats, Floats]],
    best: tuple[bool | None, UpdateFit],
    eps: float,
    p: Floats,
    noise: float,
) -> tuple[tuple[bool, UpdateFit] | None, bool | None]:
    """``_eps_inside``, and whether the bias is corrected. A rule that explains nothing tells no correction:
    then eps inside the root is tried with the other one too."""
    corrected, fit = best
    inside = _eps_inside(moved, directions[corrected is not False], eps, p, noise)
    if fit.residual >= UPDATE_REST and not (inside and inside[0]):
        other = _eps_inside(moved, directions[corrected is False], eps, p, noise)
        if other and other[0]:
            return other, None if corrected is None else not corrected
    return inside, corrected


def _eps_inside(
    moved: Floats, direction: tuple[Floats, Floats], eps: float, p: Floats, noise: float
) -> tuple[bool, UpdateFit] | None:
    """Whether m / sqrt(v + eps) explains every element of the update and m / (sqrt(v) + eps) does not, and
    that fit; None where both or neither do."""
    top, bottom = direction
    roots = np.sqrt(np.square(bottom) + eps), bottom + eps
    if not all((root > 0).all() for root in roots):
        return None
    fits = [fit_update(moved, top / root, p, noise=noise) for root in roots]
    if fits[0] is None or fits[1] is None:
        return None
    explained = [fit.residual < UPDATE_REST for fit in fits if fit is not None]
    return None if explained[0] == explained[1] else (explained[0], fits[0])


def _moment_constants(
    step: OptimizerStep, first: Floats, second: Floats, count: float
) -> tuple[dict[str, FittedConstant], bool, float | None]:
    """The betas (and weight decay, where it enters the moments), whether it does, and the residual of the
    first moment from the step before's."""
    constants: dict[str, FittedConstant] = {}
    g, m0, v0 = step.gradient, step.first_before, step.second_before
    if count > 1 and m0 is None:
        return constants, False, None
    roundoff = roundoff_of(step.moment_dtype)
    decayed = fit_moment(first, m0, g, roundoff=roundoff)
    if decayed is not None and decayed[1] > max(MOMENT_REST, roundoff) and np.any(step.before):
        coupled = fit_coupled_moment(first, g, step.before, m0, roundoff=roundoff)
        if coupled is not None:
            constants["beta1"], constants["weight_decay"] = coupled
            return constants, True, None
    if decayed is not None:
        constants["beta1"] = decayed[0]
    grown = fit_moment(second, v0, g * g, roundoff=roundoff)
    if grown is not None:
        constants["beta2"] = grown[0]
    return constants, False, None if m0 is None or decayed is None else decayed[1]


def _best_fit(
    moved: Floats,
    directions: dict[bool, tuple[Floats, Floats]],
    eps: float,
    p: Floats,
    noise: float,
    lr: float | None,
) -> tuple[bool | None, UpdateFit] | None:
    """Whether the moments were corrected, and the fit; with another eps where the one set explains badly."""
    tried: list[tuple[float, bool | None, UpdateFit]] = []
    for guess in (eps, *(e for e in _USUAL_EPS if e != eps)):
        fits = {way: fit_steady_update(moved, *pair, guess, p, noise) for way, pair in directions.items()}
        corrected = _corrected(fits, lr)
        fit = fits[corrected is not False]
        if fit is not None:
            tried.append((fit.residual, corrected, fit))
            if guess == eps and fit.residual < UPDATE_REST:
                break
    if not tried:
        return None
    _, corrected, fit = min(tried, key=lambda entry: entry[0])
    return corrected, fit


def _decay(fit: UpdateFit) -> FittedConstant | None:
    """Weight decay as it is configured, over the rate; None where it cannot be determined."""
    rate = fit.rate.value
    if not rate or not np.isfinite(fit.pull.error):
        return None
    return FittedConstant(value=fit.pull.value / rate, error=fit.pull.error / abs(rate))


def _corrected(fits: dict[bool, UpdateFit | None], lr: float | None) -> bool | None:
    """Whether the moments were corrected for starting at zero: which of the two gives the learning rate that
    was set."""
    known = {way: fit.rate.value for way, fit in fits.items() if fit is not None}
    if not lr or len(known) < 2 or known[True] <= 0 or known[False] <= 0:
        return None
    gaps = {way: abs(np.log(rate / lr)) for way, rate in known.items()}
    if abs(gaps[True] - gaps[False]) < CORRECTION_APART:
        return None
    return bool(gaps[True] < gaps[False])


# -- SGD ------------------------------------------


def _descent(step: OptimizerStep) -> Floats:
    """What is taken off the weights, but for the decay: with Nesterov's momentum the gradient and what the
    buffer will have become."""
    if step.buffer is None:
        return step.gradient
    if not step.settings.get("nesterov"):
        return step.buffer
    decayed = step.gradient + float(step.settings.get("weight_decay") or 0.0) * step.before
    return np.asarray(decayed + float(step.settings.get("momentum") or 0.0) * step.buffer)


def _gradient_descent(step: OptimizerStep) -> StepFit:
    if step.settings.get("class", "SGD") not in ("SGD", "Momentum"):
        return StepFit()
    if step.moved.size < 2:
        return StepFit()
    direction = _descent(step)
    noise = roundoff_of(step.dtype) * float(np.sqrt(np.mean(np.square(step.before))))
    fit = fit_update(step.moved, direction, step.before, noise=noise)
    if fit is None:
        return StepFit()
    constants = {"lr": fit.rate}
    decay = _decay(fit)
    if step.buffer is None and decay is not None:
        constants["weight_decay"] = decay
    return StepFit(constants=constants, residual=fit.residual)
