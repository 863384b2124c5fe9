"""The scalars of all ranks as those of the whole run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from trueup.types.layout import BATCH, Layout
from trueup.types.placement import At, Partial, Shard
from trueup.types.trace import ScalarLine


def merged_scalars(
    lines: Sequence[Sequence[ScalarLine]],
    layout: Layout,
    fold: int,
    numbers: Callable[[int], Mapping[int, int] | None] = lambda step: None,
) -> list[ScalarLine]:
    """One line a step that all ranks have.

    The loss is put together as the layout places that of the program; tokens and samples add over ranks that
    read different ones. What no rank can know of the whole (batch digest, local norm) is left out.

    Args:
        lines: of each rank, in order.
        layout: of the run.
        fold: microbatches of a step that are compared as one.
        numbers: of a step's microbatches, by which they are compared where these are not their own.
    """
    by_step = [{line["step"]: line for line in of_rank if "step" in line} for of_rank in lines]
    out = []
    for step, first in by_step[0].items():
        if all(step in held for held in by_step):
            found = [_in_order(held[step], numbers(step)) for held in by_step]
            out.append(_merged(found, first, layout, fold))
    return out


def _in_order(line: ScalarLine, numbers: Mapping[int, int] | None) -> ScalarLine:
    losses = line.get("losses")
    if not numbers or not losses or sorted(numbers.values()) != list(range(len(losses))):
        return line
    of = {number: losses[at] for at, number in numbers.items()}
    return {**line, "losses": [of[number] for number in sorted(of)]}


def _merged(lines: Sequence[ScalarLine], first: ScalarLine, layout: Layout, fold: int) -> ScalarLine:
    losses = _losses(lines, layout, fold)
    microbatches = (first.get("microbatches") or 1) * layout.num_batches // fold
    merged: ScalarLine = {
        **first,
        "losses": losses,
        "batch_digest": None,
        "local_norm": None,
        "global_batch_size": None,
        "loss": sum(losses) / len(losses) if losses else None,
        "microbatches": microbatches if layout.num_stages == 1 else len(losses) or None,
        "batch_size": _total("batch_size", lines, layout, layout.batch),
        "tokens": _total("tokens", lines, layout, (*layout.batch, *_sequence(layout))),
    }
    merged.pop("draws", None)  # of calls of one rank, by its own microbatches
    return merged


def _total(
    name: Literal["batch_size", "tokens"], lines: Sequence[ScalarLine], layout: Layout, axes: Sequence[str]
) -> int | None:
    """Over ranks that read different samples along ``axes``."""
    if layout.num_stages > 1:
        return None
    return sum(
        line.get(name) or 0
        for rank, line in enumerate(lines)
        if not any(at for axis, at in layout.coordinate(rank).items() if axis not in axes)
    )


def _sequence(layout: Layout) -> list[str]:
    """Axes that cut the ids that the root is given."""
    placed = layout.of_tensor("", "forward", "input.0").placements
    return [axis for axis, one in placements_of(placed) if isinstance(one, Shard)]


def placements_of(placements: Mapping[str, object]) -> list[tuple[str, object]]:
    """Those of mesh axes."""
    return [(axis, one) for axis, one in placements.items() if axis != BATCH]


def _losses(lines: Sequence[ScalarLine], layout: Layout, fold: int) -> list[float]:
    """One a group of microbatches."""
    placements = layout.of_tensor("loss", "loss", "value").placements
    kept = [axis for axis, one in placements_of(placements) if isinstance(one, Partial)]
    means = [axis for axis in kept if isinstance(one := placements[axis], Partial) and one.mean]
    groups: dict[int, list[float]] = {}
    for rank, line in enumerate(lines):
        coordinate = layout.coordinate(rank)
        stage = placements.get(layout.pipeline, At(-1))
        wanted = stage.stage % layout.num_stages if isinstance(stage, At) else layout.num_stages - 1
        others = [
            at for axis, at in coordinate.items() if axis not in (*kept, *layout.batch, layout.pipeline)
        ]
        if wanted not in layout.stages_at(coordinate) or any(others):
            continue
        for number, loss in enumerate(line.get("losses") or []):
            if loss is not None:
                whole = number * layout.num_batches + layout.batch_index(coordinate)
                groups.setdefault(whole // fold, []).append(loss)
    divisor = 1
    for axis in means:
        divisor *= layout.mesh[axis]
    batch = placements[BATCH]
    if not isinstance(batch, Partial) or batch.mean:
        divisor *= fold
    return [sum(groups[group]) / divisor for group in sorted(groups)]
