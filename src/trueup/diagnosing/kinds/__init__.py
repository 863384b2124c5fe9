"""Names the kind of fault behind one origin: each rule looks at the evidence on its own, then they are put in
order.

Order of kinds: first what the evidence amounts to (``EvidenceRank``); among kinds that explain a part only,
the one that explains more; then the rule's place in ``RULES``.

A new kind is a module with a ``RULE``, a line in ``RULES``, its codes in ``types/codes/kinds.py`` and their
phrases in ``wording/kinds.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

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
    other_functions,
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
from trueup.diagnosing.kinds.rule import EvidenceNeeds, Found, KindRule
from trueup.types.finding import EvidenceRank, Kind, KindCode

__all__ = ["RULES", "EvidenceNeeds", "KindRule", "name_kinds", "rule_of"]

RULES: tuple[KindRule, ...] = (
    missing_zero_grad.RULE,
    missing_all_reduce.RULE,
    bit_flip.RULE,
    dropped_update.RULE,
    frozen_or_missing_gradient.RULE,
    wrong_data.RULE,
    wrong_mask.RULE,
    constant_argument.RULE,
    shifted_by_one.RULE,
    wrong_sign.RULE,
    transposed_or_permuted.RULE,
    randomness.RULE,
    wrong_optimizer_setting.RULE,
    overflow_underflow.RULE,
    wrong_scale.RULE,
    dtype_or_rounding.RULE,
    missing_or_extra_term.RULE,
    stale_value.RULE,
    non_determinism.RULE,
    other_functions.RULE,
)
"""Of kinds whose evidence is equally strong the first comes first; each rule says why it stands where it
stands."""

_BY_SHARE = (EvidenceRank.MOST, EvidenceRank.SOME)
_HELD: dict[EvidenceNeeds, Callable[[Evidence], bool]] = {
    EvidenceNeeds.BOTH_TENSORS: lambda evidence: (
        evidence.target is not None and evidence.reference is not None
    ),
    EvidenceNeeds.PARAMETER: lambda evidence: evidence.parameter is not None,
    EvidenceNeeds.OTHER_RANKS: lambda evidence: len(evidence.elsewhere.target_ranks) > 1,
    EvidenceNeeds.EARLIER_STEP: lambda evidence: bool(evidence.elsewhere.target_earlier),
    EvidenceNeeds.REPEAT: lambda evidence: evidence.repeat is not None,
}

_log = logging.getLogger(__name__)


def rule_of(kind: KindCode) -> KindRule:
    """The rule of a kind."""
    return next(rule for rule in RULES if rule.code is kind)


def name_kinds(evidence: Evidence, rules: tuple[KindRule, ...] = RULES) -> tuple[Kind, ...]:
    """Kinds that the evidence speaks for, best first; empty where none does, and for equal bits.

    NaN, infinities, empty and 0-d tensors, integers and tensors known by summary only are taken as they come;
    a rule that cannot be worked out on them names nothing.

    Example:
        >>> [k.name.value for k in name_kinds(evidence)]            # doctest: +SKIP
        ['constant_argument', 'wrong_scale']
    """
    target, reference = evidence.target, evidence.reference
    if target is not None and reference is not None and target.same_bits(reference):
        return ()
    found: list[tuple[tuple[int, float, int], Kind]] = []
    with np.errstate(all="ignore"):
        for place, rule in enumerate(rules):
            one = _asked(rule, evidence)
            if one is not None:
                share = -one.measure if one.rank in _BY_SHARE else 0.0
                kind = rule.kind(one, evidence)
                found.append(((one.rank.place, share, place), kind))
        if not found:
            last = missing_or_extra_term.by_elimination(evidence)
            if last is None:
                return ()
            kind = missing_or_extra_term.RULE.kind(last, evidence)
            return (replace(kind, causes=()),)  # nothing is known of a cause
    return tuple(kind for _, kind in sorted(found, key=lambda entry: entry[0]))


def _asked(rule: KindRule, evidence: Evidence) -> Found | None:
    """What a rule finds; None where something that it needs is not there."""
    try:
        has_all = all(held(evidence) for need, held in _HELD.items() if need in rule.needs)
        return rule.find(evidence) if has_all else None
    except (ArithmeticError, ValueError, IndexError, np.linalg.LinAlgError) as error:
        # One rule's trouble with odd numbers must not hide what the others see.
        _log.warning("%s could not be judged at %s: %s", rule.code.value, evidence.origin.site, error)
        return None
