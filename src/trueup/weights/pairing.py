"""Two sets of weights brought to the same names, so that they can be compared."""

from __future__ import annotations

from trueup.errors import ConfigError
from trueup.weights.applying import apply_plan
from trueup.weights.conventions import FRAMEWORKS, plan_to_framework
from trueup.weights.layouts import Heads
from trueup.weights.mapping import family_of, plan_from_maps
from trueup.weights.name_map import name_map
from trueup.weights.plan import ConversionPlan, Entry, Piece
from trueup.weights.weight_set import WeightSet


def renamed_by_map(target: WeightSet, reference: WeightSet, heads: Heads) -> tuple[WeightSet, str]:
    """``reference`` as the target's family or framework names it, and a sentence on what was done.

    Raises:
        ConfigError: no map leads from one to the other.
    """
    families = family_of(target.table), family_of(reference.table)
    spelled, told = _other_spellings(target, reference)
    if told:
        return spelled, told
    if families[0] and families[1] and families[0] != families[1]:
        plan = plan_from_maps(
            reference.table, to=families[0], source_family=families[1], heads=heads, whole=False
        )
        return apply_plan(plan, reference), f"paired by the maps {families[1]} and {families[0]}"
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


def most_common(target: WeightSet, reference: WeightSet, heads: Heads) -> tuple[WeightSet, str]:
    """``reference`` as it is, or where most names are on one side alone, as maps name it."""
    common = _num_common(target, reference)
    spelled, told = _other_spellings(target, reference)
    if told or 2 * common >= max(len(target.table), len(reference.table)):
        return spelled, told
    try:
        renamed, told = renamed_by_map(target, reference, heads)
    except ConfigError:
        if not common:
            raise
        return reference, ""
    return (renamed, told) if _num_common(target, renamed) > common else (reference, "")


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
        Entry(target=renamed.get(name, name), pieces=(Piece(source=name),), how="map")
        for name in reference.table
    )
    plan = ConversionPlan(entries=tuple(entries))
    return apply_plan(plan, reference), f"{len(renamed)} names paired by the map {family}"


def _num_common(target: WeightSet, reference: WeightSet) -> int:
    return sum(name in reference.table for name in target.table)
