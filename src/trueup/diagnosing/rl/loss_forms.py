"""Policy and value losses as programs get them wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from trueup.diagnosing.rl.formulas import PolicyLoss, value_loss
from trueup.diagnosing.rl.tables import SequenceTable
from trueup.types.arrays import Floats
from trueup.types.codes import RLCode
from trueup.types.reason import Reason, reason

OF_SEQUENCES = (3e-4, 4e-4, 3e-3, 4e-3)
DUALS = (1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 10.0)
RANGES = (0.05, 0.1, 0.15, 0.2, 0.22, 0.25, 0.28, 0.3, 0.4, 0.5)
"""clip ranges in use"""


def policy_forms(loss: PolicyLoss, table: SequenceTable) -> Iterator[tuple[Reason, PolicyLoss]]:
    """Other clips, other ratios, the opposite sign, no weights."""
    if loss.weights is not None:
        yield reason(RLCode.WEIGHTS_IGNORED), replace(loss, weights=None)
    if loss.of_sequences is not None:
        yield reason(RLCode.TOKEN_RATIO), replace(loss, of_sequences=None)
        yield reason(RLCode.RATIO_SUMMED), replace(loss, by_length=False)
    yield reason(RLCode.NOT_CLIPPED), replace(loss, low=None, high=None, dual=None)
    yield reason(RLCode.NOT_CLIPPED), replace(loss, low=None, high=None)
    yield reason(RLCode.SYMMETRIC_CLIP, used=loss.low), replace(loss, high=loss.low)
    yield reason(RLCode.NO_DUAL_CLIP), replace(loss, dual=None)
    yield reason(RLCode.ONE_SIDED_CLIP, side="below", bound=_bound(loss.low, -1)), replace(loss, low=None)
    yield reason(RLCode.ONE_SIDED_CLIP, side="above", bound=_bound(loss.high, 1)), replace(loss, high=None)
    yield from _ranges(loss)
    for dual in {loss.dual, None}:
        yield reason(RLCode.SMALLER_LOSS), replace(loss, larger=False, dual=dual)
        yield reason(RLCode.CLIPPED_ONLY), replace(loss, only_clipped=True, dual=dual)
    if loss.dual is not None:
        yield reason(RLCode.DUAL_OF_ALL, bound=loss.dual), replace(loss, dual_of_all=True)
    yield reason(RLCode.SIGN), replace(loss, advantages=-loss.advantages)
    yield reason(RLCode.RATIO_INVERTED), replace(loss, log_probs=loss.old, old=loss.log_probs)
    for name in ("ref_log_probs", "rollout_log_probs"):
        other = table.get(name)
        if other is not None:
            yield reason(RLCode.RATIO_TO_OTHER, to=name), replace(loss, old=other)
    for dual in {loss.dual, None} if loss.of_sequences is None else ():
        yield reason(RLCode.SEQUENCE_RATIO), replace(loss, of_sequences=table.mask, dual=dual)


def _bound(width: float | None, side: int) -> float | None:
    return None if width is None else 1 + side * width


def _ranges(loss: PolicyLoss) -> Iterator[tuple[Reason, PolicyLoss]]:
    for used in DUALS if loss.dual is not None else ():
        if used != loss.dual:
            variant = reason(RLCode.CLIP_RANGE, name="clip_dual", used=used, wanted=loss.dual)
            yield variant, replace(loss, dual=used)
    for low, high in ((0.2, 0.28), (0.2, 0.2)) if loss.low is not None and loss.high is not None else ():
        if low != loss.low and high != loss.high:
            variant = reason(RLCode.CLIP_RANGE, name="clip_high", used=high, wanted=loss.high)
            yield variant, replace(loss, low=low, high=high)
    for used in RANGES if loss.of_sequences is None else (*RANGES, *OF_SEQUENCES):
        for name, wanted in (("low", loss.low), ("high", loss.high)):
            if wanted is not None and used != wanted:
                variant = reason(RLCode.CLIP_RANGE, name=f"clip_{name}", used=used, wanted=wanted)
                yield variant, replace(loss, low=used) if name == "low" else replace(loss, high=used)


def value_forms(
    predictions: Floats, values: Floats, returns: Floats, clip: float | None
) -> Iterator[tuple[Reason, Floats]]:
    """Of each token."""
    yield reason(RLCode.NOT_CLIPPED), value_loss(predictions, values, returns, None)
    if clip is not None:
        given = predictions, values, returns, clip
        yield reason(RLCode.SMALLER_LOSS), value_loss(*given, chosen=np.minimum)
        yield reason(RLCode.CLIPPED_ONLY), value_loss(*given, chosen=_second)


def _second(first: Floats, second: Floats) -> Floats:
    return second
