"""Gradients that one run hands to its optimizer as backward left them, where it cuts all others to a norm."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trueup.diagnosing.ledger import Clipping
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.thresholds import CLIP_NEAR
from trueup.store import StepView
from trueup.store.view import ACCUMULATED
from trueup.types.codes import ClippingCode as Clip
from trueup.types.reason import Reason, reason


def left_out_of_clipping(
    names: Sequence[str],
    who: str,
    clips: tuple[Clipping | None, Clipping | None],
    context: Context,
    rank: int,
) -> tuple[Reason, Reason] | None:
    """Headline and evidence where one side clips the norm of all gradients, and the other of all but these
    (by the target's names); None where that is not so.

    The factor of the others tells whether these count in the norm: it makes the norm of the others, or of all
    gradients, what the other run clips to.
    """
    for number, side in enumerate(("target", "reference")):
        own, other = clips[number], clips[1 - number]
        if own is None or other is None or own.way != "each" or other.way != "norm":
            continue
        matched = context.matched
        here = {name if number == 0 else matched.get(name, name) for name in names}
        factors = dict(own.uneven)
        cut = own.factor < 1 - CLIP_NEAR and other.factor < 1 - CLIP_NEAR
        times = sum(factors.values()) / max(len(factors), 1)
        if not cut or factors.keys() != here or any(_apart(one, times) for one in factors.values()):
            continue
        rest, every = _norms(context.pair(0, rank)[number], here)
        left, limit = math.sqrt(max(every**2 - rest**2, 0.0)), other.clipped_norm
        place = _counts(rest * own.factor, every * own.factor, left, times, limit)
        if place is None:
            continue
        facts = {
            "factor": own.factor,
            "rest": rest,
            "all": every,
            "limit": limit,
            "left": left,
            "times": times,
        }
        shared = {"parameters": who, "side": side, "counts": place}
        return reason(Clip.LEFT_OUT, **shared), reason(Clip.OTHERS_CUT, **shared, **facts)
    return None


def _counts(rest: float, every: float, left: float, times: float, limit: float) -> str | None:
    """How the gradients that are multiplied by ``times``, of norm ``left``, count: ``rest`` and ``every`` are
    what the factor of the others makes of their norm and of that of all. A norm of their own that is below
    the limit would leave them as they are, too; one above it is cut to the limit. None of another factor."""
    others_cut, all_cut = (not _apart(norm, limit) for norm in (rest, every))
    if _apart(times, 1):
        return "own" if others_cut and not all_cut and not _apart(left * times, limit) else None
    if others_cut == all_cut:
        return "neither"
    if not others_cut:
        return "in"
    return "out" if left > limit * (1 + CLIP_NEAR) else "below"


def _apart(one: float, other: float) -> bool:
    return abs(one - other) > CLIP_NEAR * abs(other)


def _norms(book: StepView, names: set[str]) -> tuple[float, float]:
    """Of the accumulated gradients without these, and of all."""
    held = {f: book.norm(book.parameter(f, *ACCUMULATED)) or 0.0 for f in book.parameters}
    rest = math.sqrt(sum(norm**2 for fqn, norm in held.items() if fqn not in names))
    return rest, math.sqrt(sum(norm**2 for norm in held.values()))
