"""One step, or one rank, of a trace."""

from __future__ import annotations

from pathlib import Path

from trueup.errors import TraceError
from trueup.store.reader import Trace


class TracePart(Trace):
    """A trace of which only ``step`` and ``rank`` are looked at; None: all.

    Raises:
        TraceError: as ``Trace``, or it has no such step or rank; says which it has.
    """

    def __init__(self, path: Path, *, step: int | None = None, rank: int | None = None) -> None:
        super().__init__(path)
        self._step, self._rank = step, rank
        self.chosen = {"step": step, "rank": rank}
        """numbers a person named; None: all"""
        if not self.steps():
            wanted = [f"{what} {n}" for what, n in (("step", step), ("rank", rank)) if n is not None]
            raise TraceError(f"{path} has no {' of '.join(wanted) or 'step'}; it has {dict(super().steps())}")

    def steps(self) -> dict[int, list[int]]:
        """Whole steps, ascending, with the ranks each one has; of the part alone."""
        kept = {
            step: [rank for rank in ranks if self._rank in (None, rank)]
            for step, ranks in super().steps().items()
            if self._step in (None, step)
        }
        return {step: ranks for step, ranks in kept.items() if ranks}
