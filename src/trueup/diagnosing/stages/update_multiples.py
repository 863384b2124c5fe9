"""Updates of a rule that nothing here knows, taken apart: multiples of the reference's and of the weight.

Whatever makes an update, ``target = factor * reference - pull * weight`` is a fit of two numbers; where it
holds of every element of every weight, the rules are one up to a factor (a rate, a scale by shape), or up to
what they take off the weight (decay).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trueup.diagnosing.optimizer_fit import fit_moment, fit_update, near_updates, roundoff_of
from trueup.diagnosing.thresholds import APART_AT_LEAST, APART_ERRORS, MOMENT_REST, PRECISION_FEWEST
from trueup.store import StepView
from trueup.store.view import CLIPPED, UPDATED, WEIGHT
from trueup.types.codes import StagesCode as Stages
from trueup.types.reason import Reason, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiple:
    """What one weight's update is of the reference's."""

    fqn: str
    shape: tuple[int, ...]
    factor: float
    pull: float
    """of the weight, taken off beside it"""


def multiples(
    target: StepView, reference: StepView, names: Sequence[str], matched: Mapping[str, str]
) -> list[Multiple]:
    """One of each of ``names`` that has enough numbers; none at all where one is no such multiple."""
    found = []
    for fqn in names:
        one = _multiple(target, reference, fqn, matched[fqn])
        if one is None:
            return []
        found += one
    return found


def _multiple(target: StepView, reference: StepView, fqn: str, other: str) -> list[Multiple] | None:
    """Of one weight: nothing where its values are not known or too few, None where it is no multiple."""
    after = target.parameter(fqn, *UPDATED)
    start = reference.value(reference.parameter(other, *WEIGHT))
    end, expected = target.value(after), reference.value(reference.parameter(other, *UPDATED))
    if start is None or end is None or expected is None:
        return []
    if not start.shape == end.shape == expected.shape or start.size < PRECISION_FEWEST:
        return []
    before, roundoff = start.ravel(), roundoff_of(target.dtype(after))
    moved, usual = end.ravel() - before, expected.ravel() - before
    noise = roundoff * float(np.sqrt(np.mean(np.square(expected))))
    fit = fit_update(moved, -usual, before, noise=noise)
    if fit is None:
        return None
    factor, pull = fit.rate, fit.pull
    made = before + factor.value * usual - pull.value * before
    if not near_updates(end.ravel(), made, before, roundoff):
        return None
    if APART_ERRORS * factor.error > APART_AT_LEAST:
        return []  # too little moves to tell a factor
    is_pulled = abs(pull.value) > APART_ERRORS * pull.error
    is_scaled = abs(factor.value - 1) > APART_AT_LEAST
    return [
        Multiple(
            fqn=fqn,
            shape=start.shape,
            factor=factor.value if is_scaled else 1.0,
            pull=pull.value if is_pulled else 0.0,
        )
    ]


def multiples_reasons(found: Sequence[Multiple]) -> tuple[Reason, ...]:
    """What all of them say together, the headline first; nothing where they say nothing."""
    if all(one.factor == 1 for one in found):
        pulls = sorted(one.pull for one in found if one.pull)
        return (reason(Stages.UPDATE_PULLED, low=pulls[0], high=pulls[-1]),) if pulls else ()
    groups = _grouped(found)
    shapes = [shape for group in groups for shape in {one.shape for one in group}]
    by_shape = len(groups) > 1 and len(set(shapes)) == len(shapes)
    lead = reason(Stages.UPDATE_SCALED, low=groups[0][0].factor, high=groups[-1][0].factor, by_shape=by_shape)
    factors = reason(
        Stages.UPDATE_FACTORS,
        factors=tuple(f"{group[0].factor:.6g}" for group in groups),
        nums=tuple(str(len(group)) for group in groups),
        names=tuple(min(group, key=found.index).fqn for group in groups),
    )
    return lead, factors


def shares_kept(
    target: StepView, reference: StepView, slots: Sequence[str], matched: Mapping[str, str]
) -> Reason | None:
    """The one state of ``slots`` that is, after the update, the same share of the gradient in all weights of
    a run, and another share in the other run's; None where it is not."""
    for slot in slots:
        pairs = []
        for fqn, other in matched.items():
            both = _share_kept(target, fqn, slot), _share_kept(reference, other, slot)
            if both[0] is not None and both[1] is not None:
                pairs.append((both[0], both[1]))
        if not pairs:
            continue
        ends = [(min(side), max(side)) for side in zip(*pairs, strict=True)]
        are_one = all(high - low <= APART_AT_LEAST * max(abs(low), abs(high)) for low, high in ends)
        target_share, reference_share = pairs[0]
        apart = abs(target_share - reference_share)
        if are_one and apart > APART_AT_LEAST * max(abs(target_share), abs(reference_share)):
            return reason(Stages.SHARE_KEPT, state=slot, target=target_share, reference=reference_share)
    return None


def _share_kept(view: StepView, fqn: str, slot: str) -> float | None:
    """What the state is times the gradient; None where it is no multiple of it."""
    gradient = view.value(view.parameter(fqn, *CLIPPED))
    kept = view.value(view.parameter(fqn, UPDATED[0], f"state.{slot}"))
    if gradient is None or kept is None or kept.shape != gradient.shape or gradient.size < PRECISION_FEWEST:
        return None
    fit = fit_moment(kept.ravel(), None, gradient.ravel())
    return None if fit is None or fit[1] > MOMENT_REST else 1 - fit[0].value


def _grouped(found: Sequence[Multiple]) -> list[list[Multiple]]:
    """By factor, the smallest first."""
    groups: list[list[Multiple]] = []
    for one in sorted(found, key=lambda one: one.factor):
        if groups and one.factor - groups[-1][0].factor <= APART_AT_LEAST * abs(one.factor):
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups
