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
        if not cut or factors.keys() != here or any(abs(one - 1) > CLIP_NEAR for one in factors.values()):
            continue
        norms = _norms(context.pair(0, rank)[number], here)
        counts = [abs(norm * own.factor / other.clipped_norm - 1) <= CLIP_NEAR for norm in norms]
        place = "neither" if counts[0] == counts[1] else "out" if counts[0] else "in"
        facts = {"factor": own.factor, "rest": norms[0], "all": norms[1], "limit": other.clipped_norm}
        shared = {"parameters": who, "side": side, "counts": place}
        return reason(Clip.LEFT_OUT, **shared), reason(Clip.OTHERS_CUT, **shared, **facts)
    return None


def _norms(book: StepView, names: set[str]) -> tuple[float, float]:
    """Of the accumulated gradients without these, and of all."""
    held = {f: book.norm(book.parameter(f, *ACCUMULATED)) or 0.0 for f in book.parameters}
    rest = math.sqrt(sum(norm**2 for fqn, norm in held.items() if fqn not in names))
    return rest, math.sqrt(sum(norm**2 for norm in held.values()))
