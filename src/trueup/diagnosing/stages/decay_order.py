"""Weight decay applied to the updated weight, or to the weight before: told from both runs' updates.

With p the rate times the decay, w the weight and a what the rest of the rule adds,

    before:  w' = (1 - p) w + a          after:  w' = (1 - p) (w + a)

so that of one gradient and the same moments after - before = -p a, a = before - (1 - p) w. p is known of the
side that decays before, from its own update; least squares of both give it once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from trueup.diagnosing.kinds.thresholds import MIN_NUMBERS
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.gaps import sides_of
from trueup.diagnosing.thresholds import DECAY_ORDER_NEAR
from trueup.diagnosing.update_rule import Update
from trueup.store import StepView
from trueup.store.view import UPDATED, WEIGHT
from trueup.types.arrays import Floats
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Finding
from trueup.types.reason import reason

_ITERATIONS = 3
"""p changes what it is fitted to by its own size: three leave p ** 4"""
_MOMENTS = ("state.exp_avg", "state.exp_avg_sq")


def with_order_of_decay(findings: list[Finding], context: Context) -> list[Finding]:
    """The findings, led by the order of decay where classes differ and one decays what it has updated."""
    if not any(one.headline.place("key") == "class" for one in findings):
        return findings
    side = decays_after(context)
    if side is None:
        return findings
    order = {one: "after the update" if one == side else "before it" for one in ("target", "reference")}
    headline = reason(Stages.DECAY_ORDER, **order)
    return [
        replace(
            one,
            headline=headline,
            evidence=(headline, *one.evidence),
            kinds=tuple(replace(kind, sentence=headline) for kind in one.kinds),
            causes=(),
        )
        if one.headline.place("key") == "class"
        else one
        for one in findings
    ]


def decays_after(context: Context) -> str | None:
    """Which run applies weight decay after the update where the other does before; None where no step shows
    that of all parameters that decay, or shows it of one that does not."""
    for at in range(min(2, len(context.steps))):
        books, updates = context.pair(at), sides_of(context, at)
        for side, after, before in (("target", 0, 1), ("reference", 1, 0)):
            pulls = {names: _pull(updates[before].get(names[before])) for names in context.matched.items()}
            known = {names: pull for names, pull in pulls.items() if pull is not None}
            largest = max(known.values(), default=0.0)
            if largest <= 0:
                continue
            shown = [
                (pull, fitted)
                for names, pull in known.items()
                if (fitted := _fitted((books[after], names[after]), (books[before], names[before]), largest))
                is not None
            ]
            if _all_hold(shown, largest):
                return side
    return None


def _pull(update: Update | None) -> float | None:
    """Rate times decay, as its own update shows them."""
    known = {} if update is None else update.known
    if "lr" not in known or "weight_decay" not in known:
        return None
    return known["lr"].value * known["weight_decay"].value


def _all_hold(shown: list[tuple[float, float]], largest: float) -> bool:
    """Whether each parameter's fitted p is its own: that of those which decay, and none of the others'."""
    decays = [(pull, fitted) for pull, fitted in shown if pull > DECAY_ORDER_NEAR * largest]
    near = all(abs(fitted - pull) <= DECAY_ORDER_NEAR * largest for pull, fitted in shown)
    return near and len(decays) > 1


def _fitted(after: tuple[StepView, str], before: tuple[StepView, str], largest: float) -> float | None:
    """p of one parameter; None where the two sides' updates are not of one weight and the same moments.

    Another place of eps, which such classes have, adds d a / sqrt(v) to first order: fitted beside p.
    """
    sides = [[one for one in _values(*side) if one is not None] for side in (after, before)]
    if any(len(side) < 2 + len(_MOMENTS) for side in sides):
        return None
    (w, x, *moments), (u, y, *others) = ([one.ravel() for one in side] for side in sides)
    if w.shape != u.shape or not np.array_equal(w, u) or not w.any():
        return None
    for one, same in zip(moments, others, strict=True):
        apart = DECAY_ORDER_NEAR * largest * np.linalg.norm(same)
        if one.shape != w.shape or same.shape != w.shape or np.linalg.norm(one - same) > apart:
            return None
    seen = others[-1] > 0
    w, x, y, root = w[seen], x[seen], y[seen], np.sqrt(others[-1][seen])
    if len(w) < MIN_NUMBERS:
        return None
    p = 0.0
    for _ in range(_ITERATIONS):
        a = y - (1 - p) * w
        columns = np.stack([a, a / root], axis=1)
        sizes = np.linalg.norm(columns, axis=0)
        if not sizes.all():
            return None
        p = -float((np.linalg.lstsq(columns / sizes, x - y, rcond=None)[0] / sizes)[0])
    return p


def _values(book: StepView, fqn: str) -> Iterator[Floats | None]:
    for kind in (WEIGHT, UPDATED, *(("optimizer", slot) for slot in _MOMENTS)):
        yield book.sample(book.parameter(fqn, *kind))
