"""Which constant of an Adam that both programs write themselves is another one, where both move their weights
as its first step does, from the same bits of gradients and weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from trueup.diagnosing.optimizer_fit import FittedConstant
from trueup.diagnosing.own_adam import OwnAdam, own_adam
from trueup.diagnosing.thresholds import APART_ERRORS, CLIP_NEAR, EPS_FEWEST
from trueup.numerics.dtypes import DTYPES
from trueup.types.arrays import Floats
from trueup.types.codes import StagesCode as Stages
from trueup.types.reason import Reason, reason

SIDES = ("target", "reference")
BETAS2 = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995)
"""of second moments that programs use"""


class OwnMove(NamedTuple):
    """One weight in one run, flat."""

    moved: Floats
    gradient: Floats
    before: Floats
    rounding: float
    """of one element of ``moved``"""


class Conclusion(NamedTuple):
    """What a finding says of it."""

    headline: Reason
    evidence: tuple[Reason, ...]
    causes: tuple[Reason, ...]


# In one piece: one constant after the other, as an optimizer's step shows them.
def own_constants(target: Mapping[str, OwnMove], reference: Mapping[str, OwnMove]) -> Conclusion | None:
    """The constant that differs; None where the moves are no such steps, or no constant of theirs does.

    Args:
        target: by the target's names.
        reference: by the same names.
    """
    names = [fqn for fqn, one in target.items() if _is_given_alike(one, reference[fqn])]
    fits = {fqn: (own_adam(*target[fqn]), own_adam(*reference[fqn])) for fqn in names}
    known = [(one, other) for one, other in fits.values() if one is not None and other is not None]
    by_side = [[fqn for fqn, pair in fits.items() if pair[at] is not None] for at in (0, 1)]
    exact = len(by_side[1]) >= len(by_side[0])  # whose moves are an Adam's: 1 the reference's
    fitted = by_side[exact]
    if not fitted or 2 * len(fitted) < len(names):
        return None
    seen = reason(Stages.OWN_ADAM, side=SIDES[exact], num=len(fitted), total=len(target))
    if 2 * len(known) < len(fitted):
        runs = (target, reference)
        moves = [(runs[not exact][fqn].moved, runs[exact][fqn].moved) for fqn in fitted]
        return _of_a_coarse_state(moves, SIDES[not exact], seen)
    rates = [(one.rate, other.rate) for one, other in known]
    if (rate := _apart(rates)) is not None:
        sides = {"target": rate[0].value, "reference": rate[1].value}
        return Conclusion(reason(Stages.OWN_RATE, **sides), (seen,), ())
    decays = [(_decay(one), _decay(other)) for one, other in known]
    if (decay := _apart(decays, some=True)) is not None:
        sides = {"target": _known(decay[0]), "reference": _known(decay[1])}
        return Conclusion(reason(Stages.OWN_DECAY, **sides), (seen,), ())
    eps = _apart([(one.eps, other.eps) for one, other in known])
    if eps is None or eps[1].value <= 0 or eps[0].value <= 0:
        return None
    factor = eps[0].value / eps[1].value
    return Conclusion(reason(Stages.OWN_EPS, factor=factor), (seen,), tuple(_causes_of_eps(factor)))


def _is_given_alike(one: OwnMove, other: OwnMove) -> bool:
    return np.array_equal(one.gradient, other.gradient) and np.array_equal(one.before, other.before)


def _known(one: FittedConstant) -> float:
    """A constant; 0 where its error hides it."""
    return one.value if abs(one.value) > APART_ERRORS * one.error else 0.0


def _decay(one: OwnAdam) -> FittedConstant:
    return FittedConstant(value=one.pull.value / one.rate.value, error=one.pull.error / one.rate.value)


def _apart(
    pairs: Sequence[tuple[FittedConstant, FittedConstant]], *, some: bool = False
) -> tuple[FittedConstant, FittedConstant] | None:
    """The best known of pairs that are apart, where all that are known so well are by one factor (``some``:
    where some are)."""
    known = [pair for pair in pairs if all(math.isfinite(one.error) for one in pair)]
    least = min((one.error + other.error for one, other in known), default=math.inf)
    well = [pair for pair in known if sum(one.error for one in pair) <= _AS_WELL * least]
    differ = [pair for pair in (known if some else well) if pair[0].apart(pair[1]) > 1]
    if not differ or (not some and 2 * len(differ) < len(well)):
        return None
    best = min(differ, key=lambda pair: pair[0].error + pair[1].error)
    return best if some or all(_have_factor_of(best, pair) for pair in known) else None


def _have_factor_of(
    best: tuple[FittedConstant, FittedConstant], pair: tuple[FittedConstant, FittedConstant]
) -> bool:
    factor = best[0].value / best[1].value if best[1].value else math.inf
    other = FittedConstant(value=factor * pair[1].value, error=factor * pair[1].error)
    return pair[0].apart(other) <= 1


_AS_WELL = 10.0
"""times the least error: known as well"""


def _causes_of_eps(factor: float) -> Iterator[Reason]:
    for beta2 in BETAS2:
        for side, quotient in (("target", factor), ("reference", 1 / factor)):
            if abs(quotient * math.sqrt(1 - beta2) - 1) <= CLIP_NEAR:
                yield reason(Stages.EPS_BEFORE_CORRECTION, side=side, beta2=beta2)
                return
    yield reason(Stages.OTHER_EPS)
    yield reason(Stages.SCALED_TO_OPTIMIZER)


def _of_a_coarse_state(moves: Sequence[tuple[Floats, Floats]], side: str, seen: Reason) -> Conclusion | None:
    """Moves that differ, element by element, by no more than few roundings of a coarse dtype, about as often
    up as down: ``side``, whose moves come first, keeps what it makes them of in that dtype."""
    quotients = np.concatenate([one[other != 0] / other[other != 0] - 1.0 for one, other in moves])
    if quotients.size < EPS_FEWEST or not np.isfinite(quotients).all():
        return None
    largest = float(np.abs(quotients).max())
    for dtype in ("float16", "bfloat16"):
        eps = DTYPES[dtype].eps
        if eps / 4 <= largest <= 3 * eps and abs(float(np.median(quotients))) <= eps / 2:
            facts: dict[str, str | float] = {"side": side, "dtype": dtype, "rel_diff": largest}
            cause = reason(Stages.OWN_STATE_COARSE, dtype=dtype)
            return Conclusion(reason(Stages.OWN_STATE_ROUNDED, **facts), (seen,), (cause,))
    return None
