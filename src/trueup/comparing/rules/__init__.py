"""Judges the records of one step: rules in a declared order; each returns a new judgement.

A new rule is a module with a ``RULE`` and a line in ``RULES``; its codes are in ``types/codes/record.py`` and
their phrases in ``wording/``. ``docs/architecture.md`` has an example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trueup.comparing.judgement import Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rules import (
    absent_gradient,
    autograd_order,
    clipped,
    common_factor,
    common_factor_origin,
    copies,
    divided_gradients,
    equal_bits,
    exact,
    finer_dtype,
    followed,
    gathered_elsewhere,
    inherited_bound,
    inputs_bound,
    lists_in_another_order,
    local_bound,
    logged_loss,
    lone_rounding,
    mean_of_tokens,
    no_evidence,
    norm_in_parts,
    not_finite,
    one_sided,
    origin,
    other_dtype,
    other_groups,
    passed_on,
    reduced_later,
    regrouped,
    rounded_indices,
    summed_rows,
    summed_steps,
    uncounted_labels,
    unread_views,
    widened,
    within_bound,
    without_effect,
)
from trueup.comparing.rules.rule import Needs, Rule, StepContext

__all__ = ["RULES", "Needs", "Rule", "StepContext", "judge_step"]

RULES: tuple[Rule, ...] = (
    # what may differ
    local_bound.RULE,
    inherited_bound.RULE,
    inputs_bound.RULE,
    # whether a record differs
    one_sided.RULE,
    no_evidence.RULE,
    within_bound.RULE,
    exact.RULE,
    rounded_indices.RULE,
    equal_bits.RULE,
    not_finite.RULE,
    other_dtype.RULE,
    copies.RULE,
    mean_of_tokens.RULE,
    autograd_order.RULE,
    common_factor.RULE,
    divided_gradients.RULE,
    lists_in_another_order.RULE,
    regrouped.RULE,
    summed_steps.RULE,
    gathered_elsewhere.RULE,
    reduced_later.RULE,
    norm_in_parts.RULE,
    other_groups.RULE,
    uncounted_labels.RULE,
    unread_views.RULE,
    summed_rows.RULE,
    # what it follows from
    widened.RULE,
    passed_on.RULE,
    # where it starts
    origin.RULE,
    logged_loss.RULE,
    finer_dtype.RULE,
    clipped.RULE,
    lone_rounding.RULE,
    absent_gradient.RULE,
    common_factor_origin.RULE,
    followed.RULE,
    # whether anything comes of it
    without_effect.RULE,
)
"""In this order; each says why it stands where it stands (``Rule.place``)."""


def judge_step(context: StepContext, metrics: Metrics, rules: Sequence[Rule] | None = None) -> Judgement:
    """What the rules conclude of one step of one rank; ``metrics`` is read-only afterwards."""
    judgement = Judgement.undecided(metrics.sealed().difference)
    for rule in RULES if rules is None else rules:
        if rule.needs in context.offers:
            judgement = rule.apply(context, replace(metrics, difference=judgement.difference), judgement)
    return judgement
