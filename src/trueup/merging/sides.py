"""Whether two traces are to be compared rank by rank, or both as wholes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import fmean

import numpy as np
import polars as pl

from trueup.errors import ConfigError
from trueup.merging.dealt import Dealt, dealt_otherwise, order_beside
from trueup.merging.grid import CONTEXT, grid_beside, infer_grid
from trueup.merging.infer import AXIS, NEAR, infer, replicas
from trueup.merging.trace import MergedTrace, microbatches_of
from trueup.merging.tree import Functions
from trueup.merging.whole_weights import with_whole_weights
from trueup.store import StepTables, Trace, TraceSource, step_view
from trueup.store.pipelined import by_backward
from trueup.types.codes import MergingCode
from trueup.types.layout import BATCH, Layout, LayoutRow, layout_from_plain
from trueup.types.placement import Invariant, Partial, Placement, Replicate, Unknown
from trueup.types.reason import Reason, reason

_SMALL = 1e-300
"""against division by zero"""
_GRADIENT_OF = {"forward": "backward"}


@dataclass(frozen=True, slots=True)
class Sides:
    """Target and reference, as they are compared."""

    target: TraceSource
    reference: TraceSource
    notes: tuple[Reason, ...] = ()

    @property
    def merged(self) -> bool:
        """Whether they are wholes put together from ranks."""
        return isinstance(self.target, MergedTrace)


def declared(trace: TraceSource) -> Layout | None:
    """The layout that the program declared, if it did."""
    plain = trace.manifest.get("layout")
    return None if not plain else layout_from_plain(plain)


def mesh_of(trace: TraceSource) -> Layout:
    """The processes of a run along the axes that its program declared, else along one, ``world``; what is put
    together from ranks is of one process."""
    known = None if isinstance(trace, MergedTrace) else declared(trace)
    size = world_size(trace)
    return known if known is not None and known.size == size else Layout(mesh={AXIS: size})


def world_size(trace: TraceSource) -> int:
    """Ranks of a trace."""
    return max((len(ranks) for ranks in trace.steps().values()), default=1)


# In one piece: the order of the questions is the rule: each rests on the answers before it.
def as_wholes(
    target: TraceSource,
    reference: TraceSource,
    *,
    merge: bool | None = None,
    layouts: tuple[Layout | None, Layout | None] = (None, None),
) -> Sides:
    """The two as they are to be compared.

    Two runs of one layout are compared rank by rank, and so are runs with missing ranks. Else each
    is merged into whole tensors, and of microbatches so many are taken together that both sides have as many,
    and of the same rows; so are runs of one layout that deal out the same rows otherwise.

    Args:
        target: the run under question.
        reference: the run that is trusted.
        merge: False: rank by rank for any layouts; True: merged even where they are the same.
        layouts: given by a person; None: what the program declared.

    Raises:
        ConfigError: a layout is not of as many processes as the trace has ranks.
    """
    sides = target, reference
    held = [side.steps() for side in sides]
    if merge is False or not all(held) or isinstance(target, MergedTrace):
        return Sides(*sides)
    lacking = [
        note
        for name, side in zip(("target", "reference"), sides, strict=True)
        for note in _lacking(name, side)
    ]
    if lacking and not any(layouts):
        if merge:
            raise ConfigError(
                "--merge needs all ranks of both runs: "
                + ", ".join("the {side} holds {found} of {expected}".format(**note.facts) for note in lacking)
            )
        return Sides(*sides, tuple(lacking))
    known = [
        given or declared(side) or _single_process(side) for side, given in zip(sides, layouts, strict=True)
    ]
    one, other = known
    inferred: list[Reason] = []
    foreign = not all(isinstance(side, Trace) for side in sides)  # dumps say too little of their parts
    if foreign and not merge and not any(layouts):
        whole = [
            with_whole_weights(side, other) if isinstance(side, Trace) else side
            for side, other in (sides, sides[::-1])
        ]
        return Sides(whole[0], whole[1])
    dealt = dealt_otherwise(sides)
    if {one and one.size, other and other.size} == {None, 1}:
        cut = _cut_and_dealt(target, reference, is_target=one is None) if dealt is None else None
        if cut is not None:
            found, dealt, inferred = cut
            one, other = (found, other) if one is None else (one, found)
        elif dealt is not None:
            one, other, inferred = _beside_one_process(target, reference, one, other)
    if one is None and other is not None and other.size == 1:
        one, inferred = _inferred(target, reference, "target")
    elif other is None and one is not None and one.size == 1:
        other, inferred = _inferred(reference, target, "reference")
    are_cut = one is None and other is None and not foreign and _weights_cut(target, reference)
    if one is None and other is None and (dealt is not None or merge or are_cut) and world_size(target) > 1:
        one, other, inferred = _data_parallel(target, reference)
    if one is None or other is None:
        return _as_they_are(target, reference, merge=merge)
    same = one.to_plain() == other.to_plain()
    both = ((target, one), (reference, other))
    by_rank = same or one.size == other.size == 1
    if not merge and by_rank and dealt is None and not are_cut and not _cut_otherwise(both):
        return Sides(*sides)
    for side, layout in both:
        if layout.size != world_size(side):
            raise ConfigError(
                f"{side.path} holds {world_size(side)} ranks, its layout is of {layout.size} processes "
                f"({shown(layout)}); capture all ranks, or compare rank by rank with --no-merge"
            )
    first = min(set(held[0]) & set(held[1]), default=None)
    if one.size == other.size == 1 and first is not None and order_beside(target, reference, first):
        numbers = partial(order_beside, target, reference)
        note = of_side("target", reason(MergingCode.MICROBATCH_ORDER))
        reordered = MergedTrace(target, one, numbers=numbers), MergedTrace(reference, other)
        return Sides(*reordered, (note,))
    counts = [microbatches_of(side, layout, min(side.steps())) for side, layout in both]
    common = math.gcd(*counts)
    folds = [count // common for count in counts]
    if dealt is not None and dealt[0].folded(one, folds[0]) != dealt[1].folded(other, folds[1]):
        folds = counts
    placed = _with_numbers_placed(both) if max(folds) > 1 else [layout for _, layout in both]
    functions = _functions(one, other)
    merged = [
        MergedTrace(side, layout, fold, functions)
        for (side, _), layout, fold in zip(both, placed, folds, strict=True)
    ]
    notes = [
        of_side(name, _whole(layout, fold))
        for name, layout, fold in zip(("target", "reference"), (one, other), folds, strict=True)
        if layout.size > 1 or fold > 1
    ]
    return Sides(merged[0], merged[1], (*notes, *inferred))


def _functions(*layouts: Layout) -> Functions:
    """Those of which both sides can make wholes."""
    if all(layout.size == 1 for layout in layouts):
        return Functions.ALL
    by_samples = all(set(layout.wide_axes) <= set(layout.batch) - _cutting(layout) for layout in layouts)
    return Functions.INSIDE if by_samples else Functions.NONE


def _cutting(layout: Layout) -> set[str]:
    """Axes along which ranks hold parts of weights, as of experts."""
    whole = (Replicate, Invariant)
    return {
        axis for row in layout.parameters for axis, p in row.placements.items() if not isinstance(p, whole)
    }


def _weights_cut(target: TraceSource, reference: TraceSource) -> bool:
    """Whether the processes of one run hold other parts of weights than those of the other, as where one run
    shards what the other keeps whole (FSDP2 beside DDP)."""
    common = min(set(target.steps()) & set(reference.steps()), default=None)
    if common is None or world_size(target) != world_size(reference) or world_size(target) < 2:
        return False
    shapes = [_shapes_of_weights(side, common) for side in (target, reference)]
    return any(shapes[0][name] != shapes[1][name] for name in shapes[0].keys() & shapes[1].keys())


def _shapes_of_weights(source: TraceSource, step: int) -> dict[str, tuple[int, ...]]:
    """Of what the first rank holds as a step begins."""
    view = step_view(source, step, min(source.steps()[step]))
    return {
        view.name[call]: tuple(view.shape(row) or ())
        for row, call in enumerate(view.record_call)
        if view.phase[row] == "param" and view.slot[row] == "value"
    }


def _cut_otherwise(both: Sequence[tuple[TraceSource, Layout]]) -> bool:
    """Whether the first common step has the same number of samples in other numbers of microbatches."""
    common = sorted(set(both[0][0].steps()) & set(both[1][0].steps()))
    if not common or any(not isinstance(side, Trace) for side, _ in both):
        return False
    counts = [microbatches_of(side, layout, common[0]) for side, layout in both]
    if counts[0] == counts[1] or by_backward(*(side.read(common[0], 0) for side, _ in both)) is not None:
        return False
    sizes = [_samples(side, common[0]) for side, _ in both]
    return sizes[0] == sizes[1] != 0


def _samples(trace: TraceSource, step: int) -> int:
    """Elements of the first input of the model in all microbatches of a step of rank 0; 0: it has none."""
    tables = trace.read(step, 0)
    is_root = pl.col("parent").is_null() & (pl.col("kind").cast(pl.String) == "module")
    roots = np.flatnonzero(tables.calls.select(is_root)["parent"].to_numpy())
    forward = pl.col("phase").cast(pl.String) == "forward"
    of_root = pl.col("call").is_in(roots.tolist())
    held = tables.records.filter(forward & of_root & pl.col("slot").cast(pl.String).str.starts_with("input"))
    sizes = tables.summaries.select("summary", "numel")
    held = held.join(sizes, on="summary", how="inner", maintain_order="left")
    first = held.filter(pl.col("numel") > 1).group_by("call", maintain_order=True).first()
    return int(first["numel"].sum())


def _with_numbers_placed(both: Sequence[tuple[TraceSource, Layout]]) -> list[Layout]:
    """The layouts, with numbers of microbatches (losses) added up or averaged: programs do either, and divide
    gradients accordingly. What brings a number of both sides nearer to each other is what it means; where one
    side is of more processes, whose losses are averaged, each side may do either, and what is nowhere near is
    not put together."""
    common = min(set(both[0][0].steps()) & set(both[1][0].steps()), default=None)
    if common is None:
        return [layout for _, layout in both]
    if any(set(layout.wide_axes) - {*layout.batch, CONTEXT} for _, layout in both):
        return [_with_numbers_unknown(side, layout, common) for side, layout in both]
    is_alike = both[0][1].size == both[1][1].size
    numbers = [_numbers(side, common) for side, _ in both]
    rows: list[list[LayoutRow]] = [[], []]
    for key in numbers[0].keys() & numbers[1].keys():
        values = [held[key] for held in numbers]
        ways = [way for way in product((True, False), repeat=2) if not is_alike or way[0] == way[1]]
        apart, averaged = min(((_apart(values, way), way) for way in ways), key=lambda found: found[0])
        name, phase, slot = key
        for found, mean, (_, layout) in zip(rows, averaged, both, strict=True):
            if not is_alike and apart > NEAR:
                found += _unplaced(key)
                continue
            as_they_are: dict[str, Placement] = {} if is_alike else dict.fromkeys(layout.batch, Replicate())
            if CONTEXT in layout.wide_axes:
                as_they_are[CONTEXT] = Partial(mean=mean)
            found.append(LayoutRow(name, {BATCH: Partial(mean=mean), **as_they_are}, slot, phase))
            if phase == "forward":  # of a mean each has its share of the gradient, of a sum the whole
                found.append(LayoutRow(name, {BATCH: Partial(mean=not mean)}, slot, "backward"))
    return [
        replace(layout, tensors=(*found, *layout.tensors))
        for (_, layout), found in zip(both, rows, strict=True)
    ]


def _apart(values: Sequence[Sequence[float]], averaged: Sequence[bool]) -> float:
    """Relative distance of the two numbers; infinite where it is not one."""
    one, other = (fmean(v) if mean else sum(v) for v, mean in zip(values, averaged, strict=True))
    found = abs(one - other) / max(abs(other), _SMALL)
    return math.inf if math.isnan(found) else found


def _unplaced(key: tuple[str, str, str]) -> list[LayoutRow]:
    name, phase, slot = key
    return [
        LayoutRow(name, {BATCH: Unknown()}, slot, where) for where in {phase, _GRADIENT_OF.get(phase, phase)}
    ]


def _with_numbers_unknown(trace: TraceSource, layout: Layout, step: int) -> Layout:
    """The layout; of one process that says nothing, numbers of microbatches are no copies of one another."""
    if layout.size > 1 or layout.tensors:
        return layout
    rows = [row for key in _numbers(trace, step) for row in _unplaced(key)]
    return replace(layout, tensors=tuple(rows))


def _numbers(trace: TraceSource, step: int) -> dict[tuple[str, str, str], list[float]]:
    """Call, phase and slot of each floating number of a step -> what it is in every microbatch of every
    rank."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for rank in trace.steps()[step]:
        for place, mean in _numbers_of(trace.read(step, rank)):
            found.setdefault(place, []).append(mean)
    return found


def _numbers_of(tables: StepTables) -> Iterator[tuple[tuple[str, str, str], float]]:
    text = [pl.col(name).cast(pl.String) for name in ("name", "kind")]
    calls = tables.calls.select(*text).with_row_index("call").filter(pl.col("kind").is_in(["module", "loss"]))
    numbers = tables.summaries.filter(
        (pl.col("shape").list.len() == 0) & pl.col("dtype").cast(pl.String).str.contains("float")
    ).select("summary", "mean")
    held = (
        tables.records.select(
            "call", pl.col("phase").cast(pl.String), pl.col("slot").cast(pl.String), "summary"
        )
        .filter(pl.col("phase").is_in(["forward", "loss"]))
        .join(calls.cast({"call": tables.records.schema["call"]}), on="call", maintain_order="left")
        .join(numbers, on="summary", maintain_order="left")
        .drop_nulls("mean")
    )
    for name, phase, slot, mean in held.select("name", "phase", "slot", "mean").iter_rows():
        yield (name or "", phase, slot), mean


def of_side(side: str, note: Reason) -> Reason:
    """A note of one of the two runs."""
    return reason(MergingCode.SIDE, note, side=side)


def _whole(layout: Layout, fold: int) -> Reason:
    return reason(
        MergingCode.WHOLE_TENSORS,
        ranks=layout.size,
        mesh=shown(layout),
        source=layout.source,
        folded=fold,
    )


def _lacking(name: str, trace: TraceSource) -> list[Reason]:
    """A note where a trace holds fewer ranks than its run had processes: they make no whole."""
    processes, held = trace.manifest.get("world_size"), world_size(trace)
    if not isinstance(processes, int) or processes <= held:
        return []
    return [reason(MergingCode.RANKS_MISSING, side=name, found=held, expected=processes)]


def _inferred(parts: TraceSource, whole: TraceSource, name: str) -> tuple[Layout | None, list[Reason]]:
    """The layout of ``parts`` from what it and one process's run hold in their first common step."""
    common = sorted(set(parts.steps()) & set(whole.steps()))
    if not common:
        return None, []
    found = infer(parts, whole, common[0], common[0])
    return found.layout, [of_side(name, note) for note in found.notes()]


def _data_parallel(
    target: TraceSource, reference: TraceSource
) -> tuple[Layout | None, Layout | None, list[Reason]]:
    """The layouts of two runs whose ranks hold the same weights, where both are plainly that."""
    common = min(set(target.steps()) & set(reference.steps()), default=None)
    found = [None if common is None else replicas(side, common) for side in (target, reference)]
    if found[0] is None or found[1] is None:
        return None, None, []
    notes = [
        of_side(name, note)
        for name, one in zip(("target", "reference"), (found[0], found[1]), strict=True)
        for note in one.notes()
    ]
    return found[0].layout, found[1].layout, notes


def _beside_one_process(
    target: TraceSource, reference: TraceSource, one: Layout | None, other: Layout | None
) -> tuple[Layout | None, Layout | None, list[Reason]]:
    """The layouts where one run is of one process and the ranks of the other deal out its rows among them:
    what is known, where they are not plainly that."""
    common = min(set(target.steps()) & set(reference.steps()))
    parts, whole, name = (target, reference, "target") if one is None else (reference, target, "reference")
    found = replicas(parts, common, whole)
    if found is None:
        return one, other, []
    notes = [of_side(name, note) for note in found.notes()]
    return (found.layout, other, notes) if one is None else (one, found.layout, notes)


def _cut_and_dealt(
    target: TraceSource, reference: TraceSource, *, is_target: bool
) -> tuple[Layout, tuple[Dealt, Dealt], list[Reason]] | None:
    """The layout of the run of several ranks (``is_target``: the target), and how both deal out the rows,
    where its ranks share out what the other's one process is given, sequences cut."""
    common = min(set(target.steps()) & set(reference.steps()), default=None)
    parts, whole, name = (target, reference, "target") if is_target else (reference, target, "reference")
    if common is None or not all(isinstance(side, Trace) for side in (parts, whole)):
        return None
    grid = grid_beside(parts, whole, common)
    found = None if grid is None else infer_grid(parts, whole, common, grid)
    if grid is None or found is None:
        return None
    own, other = grid.dealt, Dealt.of(whole, common)
    dealt = (own, other) if is_target else (other, own)
    return found.layout, dealt, [of_side(name, note) for note in found.notes()]


def _as_they_are(target: TraceSource, reference: TraceSource, *, merge: bool | None) -> Sides:
    sizes = world_size(target), world_size(reference)
    if merge:
        raise ConfigError(
            f"--merge needs the layout of both runs ({sizes[0]} and {sizes[1]} ranks), and their programs do "
            "not say it: give it with --target-layout and --reference-layout, or compare with a run of one "
            "process"
        )
    return Sides(target, reference)


def notes_of(trace: TraceSource) -> list[Reason]:
    """What merging has to note."""
    return list(trace.notes) if isinstance(trace, MergedTrace) else []


def _single_process(trace: TraceSource) -> Layout | None:
    """Of one process everything is whole."""
    return Layout(mesh={"rank": 1}) if world_size(trace) == 1 else None


def shown(layout: Layout) -> str:
    """Its mesh in words.

    Example:
        >>> shown(Layout(mesh={"dp": 2, "tp": 4, "pp": 1}))
        'dp 2, tp 4'
    """
    return ", ".join(f"{axis} {size}" for axis, size in layout.mesh.items() if size > 1) or "one process"
