"""Which processes a place where an error was made is about."""

from __future__ import annotations

from dataclasses import replace

from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.parts_at_fault import ranks_that_err
from trueup.diagnosing.thresholds import SAME_FACTOR
from trueup.diagnosing.whose import (
    axis_of_copies,
    axis_of_cut,
    axis_of_exchange,
    axis_of_factor,
    axis_of_group,
    axis_of_talk,
    of_ranks,
    only_cut,
    only_exchange,
)
from trueup.merging.trace import MergedTrace
from trueup.types.finding import Finding, Kind, Origin


def whose(finding: Finding, origin: Origin, kinds: tuple[Kind, ...], context: Context) -> Finding:
    """The finding with the ranks that alone show it, or the axis along which they do not agree."""
    if isinstance(context.target, MergedTrace):
        return _whose_part(finding, origin, kinds, context)
    mesh = context.mesh
    if not mesh.wide_axes:
        return finding
    found = of_ranks(finding, origin.ranks, context.ranks, mesh)
    if found.axis or found.ranks:
        return found
    at = next((n for n, steps in enumerate(context.steps) if steps[0] == origin.step), 0)
    target, reference = context.pair(at, origin.rank)
    over = kinds[0].over if kinds else ()
    axis = axis_of_exchange(origin.module, target, reference, mesh)
    if axis is None and over:
        axis = axis_of_group(over, mesh)
    if axis is None:
        axis = axis_of_copies(*context.at_ranks(origin), mesh)
    axis = axis or _axis_of_scale(kinds, context, origin.module)
    return replace(found, axis=axis or axis_of_talk(origin.module, kinds, target, mesh))


def _axis_of_scale(kinds: tuple[Kind, ...], context: Context, module: str) -> str | None:
    """The axis whose size a wrong scale is; where it is the number of microbatches too, only if the module's
    own code exchanges tensors, or has them cut, along it alone."""
    factor = next((kind.factor for kind in kinds[:2] if kind.factor), None)
    counts = [count for count in context.microbatches if count and count > 1]
    axis = None if factor is None else axis_of_factor(factor, context.layout)
    if factor is None or not any(abs(max(factor, 1 / factor) / count - 1) < SAME_FACTOR for count in counts):
        return axis
    if isinstance(context.target, MergedTrace):
        return axis if axis == only_cut(module, context.target) else None
    return axis if axis == only_exchange(module, context.pair(0)[0], context.mesh) else None


def _whose_part(finding: Finding, origin: Origin, kinds: tuple[Kind, ...], context: Context) -> Finding:
    """Of wholes put together from ranks: copies that differ tell, else whose part it is, else a factor,
    else how it is cut."""
    target = context.target
    if not isinstance(target, MergedTrace) or not target.layout.wide_axes:
        return finding
    if origin.target_record is not None:
        copies = target.copies_apart(origin.step, origin.target_record)
        if copies is not None:
            return replace(finding, axis=copies[0])
        some = ranks_that_err(origin, context)
        if some:
            return of_ranks(finding, some, range(target.layout.size), target.layout)
    return replace(
        finding, axis=_axis_of_scale(kinds, context, origin.module) or axis_of_cut(origin, kinds, target)
    )
