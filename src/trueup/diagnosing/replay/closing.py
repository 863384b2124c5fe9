"""Does what was found explain the loss? One more run, with the reference's outputs put in at the found
modules alone: where nothing else differs, the loss becomes the reference's."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from trueup.diagnosing.gradients import scalar_line
from trueup.diagnosing.replay.run import run_replay
from trueup.importers import open_trace
from trueup.types.codes import ReplayCode
from trueup.types.reason import Reason, reason


def loss_with(
    command: Sequence[str], modules: Collection[str], *, target: Path, reference: Path, output: Path
) -> Reason | None:
    """What becomes of the first step's loss; None where the runs' own losses are equal, or one is not known.

    Raises:
        ConfigError, TraceError: as ``run_replay``.
    """
    own, there = _loss(target), _loss(reference)
    if own is None or there is None or own == there:
        return None
    run_replay(
        command,
        target=target,
        reference=reference,
        output=output,
        outputs_of=modules,
        refine=False,
        overwrite=True,
    )
    given = _loss(output)
    if given is None:
        return None
    names = tuple(modules)
    if given == there:
        return reason(ReplayCode.LOSS_EXPLAINED, modules=names, target=own, reference=there)
    closed = 1 - abs(given - there) / abs(own - there)
    losses = {"target": own, "reference": there, "given": given}
    return reason(ReplayCode.LOSS_WITH, modules=names, closed=closed, **losses)


def _loss(path: Path) -> float | None:
    """Of the first captured step, on the first rank."""
    trace = open_trace(path)
    step, ranks = next(iter(trace.steps().items()), (0, []))
    return scalar_line(trace, ranks[0], step).get("loss") if ranks else None
