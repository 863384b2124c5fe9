"""Two sets of weights brought to the same names, so that they can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product

import numpy as np

from trueup.errors import ConfigError
from trueup.numerics.dtypes import float64_from_array
from trueup.weights.applying import apply_plan
from trueup.weights.conventions import FRAMEWORKS, plan_to_framework
from trueup.weights.layouts import Heads
from trueup.weights.mapping import families_of, family_of, plan_from_maps
from trueup.weights.name_map import name_map
from trueup.weights.plan import ConversionPlan, PlannedWeight, SourcePiece
from trueup.weights.weight_set import WeightSet

_LOOKED_AT = 8
"""weights that tell layouts of the same names apart: q, k, v or gate and up of the first layers"""


def renamed_by_map(target: WeightSet, reference: WeightSet, heads: Heads) -> tuple[WeightSet, str]:
    """``reference`` as the target's family or framework names it, and a sentence on what was done.

    Raises:
        ConfigError: no map leads from one to the other.
    """
    target_families, reference_families = families_of(target.table), families_of(reference.table)
    spelled, sentence = _other_spellings(target, reference)
    if sentence:
        return spelled, sentence
    if target_families and reference_families and target_families[0] != reference_families[0]:
        return _by_families(target, reference, heads, tuple(product(reference_families, target_families)))
    best, most = "", 0
    for framework in FRAMEWORKS:
        made = plan_to_framework(reference.table, framework)
        common = sum(entry.target in target.table for entry in made.entries)
        if common > most:
            best, most = framework, common
    if not best:
        raise ConfigError(
            f"no naming map leads from {reference.path} to {target.path}; use --by values, or give --plan"
        )
    plan = plan_to_framework(reference.table, best)
    return apply_plan(plan, reference), f"paired by {best}'s names"


def _by_families(
    target: WeightSet, reference: WeightSet, heads: Heads, pairs: tuple[tuple[str, str], ...]
) -> tuple[WeightSet, str]:
    """``reference`` by the maps of the first pair; where names leave several, of the pair that more values of
    the first layers speak for."""
    plans = {
        (one, other): plan_from_maps(reference.table, to=other, source_family=one, heads=heads, whole=False)
        for one, other in pairs
    }
    first = pairs[0]
    if len(pairs) > 1:
        open_ones = _distinguishing(list(plans.values()), target)
        first = max(pairs, key=lambda pair: _nearness(plans[pair], reference, target, open_ones))
    by_maps = f"paired by the maps {first[0]} and {first[1]}"
    sentence = f"{by_maps}, of those of the same names the nearest in values" if len(pairs) > 1 else by_maps
    return apply_plan(plans[first], reference), sentence


def _distinguishing(plans: Sequence[ConversionPlan], target: WeightSet) -> list[str]:
    """A few weights of the target that the plans make differently."""
    made = [{entry.target: entry for entry in plan.entries} for plan in plans]
    names = (name for name in target.table if any(one.get(name) != made[0].get(name) for one in made[1:]))
    return list(islice(names, _LOOKED_AT))


def _nearness(plan: ConversionPlan, reference: WeightSet, target: WeightSet, names: Sequence[str]) -> float:
    """Mean distance of the values of ``names``, with a minus: 0 where all are equal."""
    whole = apply_plan(plan, reference)
    distance = 0.0
    for name in names:
        if name in whole.table and whole.table[name].shape == target.table[name].shape:
            pair = [float64_from_array(one.read(name), one.table[name].dtype) for one in (target, whole)]
            distance += float(np.nan_to_num(np.abs(pair[0] - pair[1])).mean())
    return -distance


def most_common(target: WeightSet, reference: WeightSet, heads: Heads) -> tuple[WeightSet, str]:
    """``reference`` as it is, or where names are on one side alone and maps pair more, as they name it."""
    common = _num_common(target, reference)
    spelled, sentence = _other_spellings(target, reference)
    if sentence or common == min(len(target.table), len(reference.table)):
        return spelled, sentence
    try:
        renamed, sentence = renamed_by_map(target, reference, heads)
    except ConfigError:
        if not common:
            raise
        return reference, ""
    return (renamed, sentence) if _num_common(target, renamed) > common else (reference, "")


def _other_spellings(target: WeightSet, reference: WeightSet) -> tuple[WeightSet, str]:
    """``reference`` with the names that one family has two of as the target spells them: Megatron's
    ``input_layernorm``, which Transformer Engine keeps in ``linear_qkv``, experts one by one or grouped."""
    family = family_of(target.table)
    if family is None or family != family_of(reference.table):
        return reference, ""
    rules = name_map(family)
    missing = {rules.plain_of(name): name for name in target.table if name not in reference.table}
    missing.pop((), None)
    renamed = {
        name: missing[plain]
        for name in reference.table
        if name not in target.table and (plain := rules.plain_of(name)) in missing
    }
    if not renamed:
        return reference, ""
    entries = (
        PlannedWeight(target=renamed.get(name, name), pieces=(SourcePiece(source=name),), how="map")
        for name in reference.table
    )
    plan = ConversionPlan(entries=tuple(entries))
    return apply_plan(plan, reference), f"{len(renamed)} names paired by the map {family}"


def _num_common(target: WeightSet, reference: WeightSet) -> int:
    return sum(name in reference.table for name in target.table)
