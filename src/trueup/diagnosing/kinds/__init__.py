"""Names the kind of fault behind one origin: each rule looks at the evidence on its own, the surest comes
first."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds import (
    bit_flip,
    constant_argument,
    dropped_update,
    dtype_or_rounding,
    frozen_or_missing_gradient,
    missing_all_reduce,
    missing_or_extra_term,
    missing_zero_grad,
    non_determinism,
    overflow_underflow,
    randomness,
    shifted_by_one,
    stale_value,
    transposed_or_permuted,
    wrong_data,
    wrong_mask,
    wrong_optimizer_setting,
    wrong_scale,
    wrong_sign,
)
from trueup.types.finding import Kind

__all__ = ["RULES", "name_kinds"]

Rule = Callable[[Evidence], Kind | None]

RULES: dict[str, Rule] = {
    module.__name__.rpartition(".")[2]: module.rule
    for module in (
        bit_flip,
        constant_argument,
        dropped_update,
        dtype_or_rounding,
        frozen_or_missing_gradient,
        missing_all_reduce,
        missing_or_extra_term,
        missing_zero_grad,
        non_determinism,
        overflow_underflow,
        randomness,
        shifted_by_one,
        stale_value,
        transposed_or_permuted,
        wrong_data,
        wrong_mask,
        wrong_optimizer_setting,
        wrong_scale,
        wrong_sign,
    )
}
"""Kind -> the function that looks for it."""

LEAST = 0.2
"""Confidence below which a kind is not worth a line."""

_log = logging.getLogger(__name__)


def name_kinds(evidence: Evidence) -> tuple[Kind, ...]:
    """Kinds that the evidence speaks for, best first; empty where none does, and for equal bits.

    Confidences are on one scale: about 0.95 where a kind explains every element to rounding, 0.7 to 0.9 where
    only sketches or the calls around the origin speak for it, below 0.5 where it is a guess. NaN, infinities,
    empty and 0-d tensors, integers and tensors known by summary only are taken as they come; a rule that
    cannot be worked out on them names nothing.

    Example:
        >>> [k.name for k in name_kinds(evidence)]            # doctest: +SKIP
        ['constant_argument', 'wrong_scale']
    """
    found: list[Kind] = []
    target, reference = evidence.target, evidence.reference
    if target is not None and reference is not None and target.same_bits(reference):
        return ()
    with np.errstate(all="ignore"):
        for name, rule in RULES.items():
            try:
                kind = rule(evidence)
            except (ArithmeticError, ValueError, IndexError, np.linalg.LinAlgError) as error:
                # One rule's trouble with odd numbers must not hide what the others see.
                _log.warning("%s could not be judged at %s: %s", name, evidence.origin.site, error)
                continue
            if kind is not None and kind.confidence >= LEAST:
                found.append(kind)
    if not found:
        found += missing_or_extra_term.by_elimination(evidence)
    return tuple(sorted(found, key=lambda kind: -kind.confidence))
