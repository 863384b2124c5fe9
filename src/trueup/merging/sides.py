"""Whether two traces are to be compared rank by rank, or both as wholes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trueup.errors import ConfigError
from trueup.merging.infer import AXIS, infer
from trueup.merging.trace import MergedTrace, microbatches_of
from trueup.store import Trace, TraceSource
from trueup.types.codes import MergingCode
from trueup.types.layout import Layout, layout_from_plain
from trueup.types.reason import Reason, reason


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


def as_wholes(
    target: TraceSource,
    reference: TraceSource,
    *,
    merge: bool | None = None,
    layouts: tuple[Layout | None, Layout | None] = (None, None),
) -> Sides:
    """The two as they are to be compared.

    Two runs of one layout are compared rank by rank, and so are runs with missing ranks. Else each
    is merged into whole tensors, and of microbatches so many are taken together that both sides have as many.

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
    known = [given or declared(side) or _alone(side) for side, given in zip(sides, layouts, strict=True)]
    one, other = known
    inferred: list[Reason] = []
    foreign = not all(isinstance(side, Trace) for side in sides)  # dumps say too little of their parts
    if foreign and not merge and not any(layouts):
        return Sides(*sides)
    if one is None and other is not None and other.size == 1:
        one, inferred = _inferred(target, reference, "target")
    elif other is None and one is not None and one.size == 1:
        other, inferred = _inferred(reference, target, "reference")
    if one is None or other is None:
        return _as_they_are(target, reference, merge=merge)
    same = one.to_plain() == other.to_plain()
    if not merge and (same or one.size == other.size == 1):
        return Sides(*sides)
    both = ((target, one), (reference, other))
    for side, layout in both:
        if layout.size != world_size(side):
            raise ConfigError(
                f"{side.path} holds {world_size(side)} ranks, its layout is of {layout.size} processes "
                f"({shown(layout)}); capture all ranks, or compare rank by rank with --no-merge"
            )
    counts = [microbatches_of(side, layout, min(side.steps())) for side, layout in both]
    common = math.gcd(*counts)
    folds = [count // common for count in counts]
    merged = [MergedTrace(side, layout, fold) for (side, layout), fold in zip(both, folds, strict=True)]
    notes = [
        of_side(name, _whole(layout, fold))
        for name, layout, fold in zip(("target", "reference"), (one, other), folds, strict=True)
        if layout.size > 1 or fold > 1
    ]
    return Sides(merged[0], merged[1], (*notes, *inferred))


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


def _alone(trace: TraceSource) -> Layout | None:
    """Of one process everything is whole."""
    return Layout(mesh={"rank": 1}) if world_size(trace) == 1 else None


def shown(layout: Layout) -> str:
    """Its mesh in words.

    Example:
        >>> shown(Layout(mesh={"dp": 2, "tp": 4, "pp": 1}))
        'dp 2, tp 4'
    """
    return ", ".join(f"{axis} {size}" for axis, size in layout.mesh.items() if size > 1) or "one process"
