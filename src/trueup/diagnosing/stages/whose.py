"""Which processes a place where an error was made is about."""

from __future__ import annotations

from dataclasses import replace

from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.whose import (
    axis_of_copies,
    axis_of_cut,
    axis_of_exchange,
    axis_of_factor,
    axis_of_group,
    axis_of_talk,
    of_ranks,
)
from trueup.merging.trace import MergedTrace
from trueup.types.finding import Finding, Kind, Origin


def whose(finding: Finding, origin: Origin, kinds: tuple[Kind, ...], context: Context) -> Finding:
    """The finding with the ranks that alone show it, or the axis along which they do not agree."""
    if isinstance(context.target, MergedTrace):
        return _whose_part(finding, origin, kinds, context.target)
    mesh = context.mesh
    if not mesh.wide_axes:
        return finding
    found = of_ranks(finding, origin.ranks, context.ranks, mesh)
    if found.axis or found.ranks:
        return found
    at = next((n for n, steps in enumerate(context.steps) if steps[0] == origin.step), 0)
    mine, theirs = context.pair(at, origin.rank)
    best = kinds[0] if kinds else None
    axis = axis_of_exchange(origin.module, mine, theirs, mesh)
    if axis is None and best is not None and best.over:
        axis = axis_of_group(best.over, mesh)
    if axis is None:
        axis = axis_of_copies(*context.at_ranks(origin), mesh)
    if axis is None and best is not None and best.factor is not None:
        axis = axis_of_factor(best.factor, mesh)
    return replace(found, axis=axis or axis_of_talk(origin.module, kinds, mine, mesh))


def _whose_part(finding: Finding, origin: Origin, kinds: tuple[Kind, ...], target: MergedTrace) -> Finding:
    """Of wholes put together from ranks: copies that differ tell, else a factor, else how it is cut."""
    if not target.layout.wide_axes:
        return finding
    if origin.target_record is not None:
        copies = target.copies_apart(origin.step, origin.target_record)
        if copies is not None:
            return replace(finding, axis=copies[0])
    factor = kinds[0].factor if kinds else None
    axis = None if factor is None else axis_of_factor(factor, target.layout)
    return replace(finding, axis=axis or axis_of_cut(origin, kinds, target))
