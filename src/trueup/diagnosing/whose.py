"""Which processes a finding is about: some alone, or all that should agree along an axis of the mesh."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from trueup.diagnosing.evidence.facts import Known
from trueup.diagnosing.step_calls import exchanges
from trueup.diagnosing.thresholds import SAME_FACTOR
from trueup.merging.trace import MergedTrace
from trueup.store import StepView
from trueup.types.finding import Finding, Kind, Origin
from trueup.types.layout import Layout
from trueup.types.placement import Partial, Shard


def axis_of_factor(
    factor: float, mesh: Layout, *, first: Sequence[str] = (), near: float = SAME_FACTOR
) -> str | None:
    """The axis whose number of processes a factor is, or its inverse; of several the one among ``first``.

    Example:
        >>> axis_of_factor(0.25, Layout(mesh={"dp": 2, "tp": 4}))
        'tp'
    """
    if not factor > 0:
        return None
    number = max(factor, 1 / factor)
    fitting = [axis for axis in mesh.wide_axes if abs(number / mesh.mesh[axis] - 1) < near]
    chosen = [axis for axis in fitting if axis in first] or fitting
    return chosen[0] if len(chosen) == 1 else None


def axis_of_factors(target: Mapping[int, float], reference: Mapping[int, float], mesh: Layout) -> str | None:
    """The axis along which ranks of the target alone have factors of their own."""
    for axis in mesh.wide_axes:
        groups = {mesh.group(rank, [axis]) for rank in target}
        if _apart(target, groups) and not _apart(reference, groups):
            return axis
    return None


def _apart(factors: Mapping[int, float], groups: Iterable[tuple[int, ...]]) -> bool:
    return any(abs(factors[rank] / factors[some[0]] - 1) > SAME_FACTOR for some in groups for rank in some)


def axis_of_group(ranks: Collection[int], mesh: Layout) -> str | None:
    """The axis along which alone these ranks differ.

    Example:
        >>> axis_of_group([1, 5], Layout(mesh={"dp": 2, "tp": 4}))
        'dp'
    """
    places = [mesh.coordinate(rank) for rank in ranks]
    apart = [axis for axis in mesh.mesh if len({place[axis] for place in places}) > 1]
    return apart[0] if len(apart) == 1 else None


def axis_that_parts(ranks: Collection[int], everyone: Collection[int], mesh: Layout) -> str | None:
    """The axis along which some ranks are told from all others: they are those of some indices on it.

    Example:
        >>> axis_that_parts([1, 3], range(4), Layout(mesh={"dp": 2, "tp": 2}))
        'tp'
    """
    for axis in mesh.wide_axes:
        indices = {mesh.coordinate(rank)[axis] for rank in ranks}
        if {rank for rank in everyone if mesh.coordinate(rank)[axis] in indices} == set(ranks):
            return axis if set(ranks) != set(everyone) else None
    return None


def of_ranks(finding: Finding, shown: Collection[int], everyone: Collection[int], mesh: Layout) -> Finding:
    """The finding with the ranks that show it, where others do not."""
    if not shown or set(shown) >= set(everyone):
        return finding
    some = tuple(sorted(shown))
    return replace(finding, ranks=some, axis=finding.axis or axis_that_parts(some, everyone, mesh))


def axis_of_exchange(
    module: str, target_view: StepView, reference_view: StepView, mesh: Layout
) -> str | None:
    """The axis along which a module's own code exchanges tensors on one side alone."""
    target, reference = exchanges(target_view, module), exchanges(reference_view, module)
    changed = [group for _, group in (*(reference - target), *(target - reference))]
    return _only(axis_of_group(group or range(mesh.size), mesh) for group in changed)


def axis_of_copies(target: Ranked, reference: Ranked, mesh: Layout) -> str | None:
    """The axis along which the ranks of the reference hold one tensor and those of the target do not."""
    for axis in mesh.wide_axes:
        if _alike(reference, axis, mesh) and not _alike(target, axis, mesh):
            return axis
    return None


Ranked = Sequence[tuple[int, Known]]


def _alike(ranked: Ranked, axis: str, mesh: Layout) -> bool:
    digests = {rank: known.digest for rank, known in ranked}
    groups: Mapping[tuple[int, ...], list[int | None]] = {
        mesh.group(rank, [axis]): [digests.get(one) for one in mesh.group(rank, [axis])] for rank in digests
    }
    return bool(groups) and all(None not in some and len(set(some)) == 1 for some in groups.values())


TALKING = ("missing_or_extra_term", "missing_all_reduce", "shifted_by_one", "wrong_mask", "wrong_data")
"""kinds that a mistake in what processes exchange looks like"""


def axis_of_talk(module: str, kinds: Sequence[Kind], book: StepView, mesh: Layout) -> str | None:
    """The only axis along which a module exchanges anything, where its error is of a kind that comes of
    that."""
    if kinds and kinds[0].name not in TALKING:
        return None
    return only_exchange(module, book, mesh)


def only_exchange(module: str, book: StepView, mesh: Layout) -> str | None:
    """The only axis along which a module's own code exchanges anything."""
    return _only(axis_of_group(group or range(mesh.size), mesh) for _, group in exchanges(book, module))


def axis_of_cut(origin: Origin, kinds: Sequence[Kind], target: MergedTrace) -> str | None:
    """The only axis along which a module's own weights are cut, else its tensors, where its error is of a
    kind that comes of that."""
    if kinds and kinds[0].name not in (*TALKING, "transposed_or_permuted"):
        return None
    return only_cut(origin.module, target)


def only_cut(name: str, target: MergedTrace) -> str | None:
    """The only axis along which a module's own weights are cut or summed, else its tensors."""
    layout = target.layout
    weights = [entry["fqn"] for entry in target.rank_facts(0).get("parameters") or []]
    own = [fqn for fqn in weights if fqn == name or fqn.rpartition(".")[0] == name]
    placed = [layout.of_parameter(fqn, "param", "value") for fqn in own]
    placed = placed or [layout.of_tensor(name, "forward", slot) for slot in ("input.0", "output.0")]
    return _only(
        axis
        for one in placed
        for axis in layout.wide_axes
        if isinstance(one.placements.get(axis), (Shard, Partial))
    )


def _only(axes: Iterable[str | None]) -> str | None:
    found = {axis for axis in axes if axis is not None}
    return found.pop() if len(found) == 1 else None
