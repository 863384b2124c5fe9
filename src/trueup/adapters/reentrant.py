"""Reentrant activation checkpointing: the original calls run without gradients, and a second run in backward
has them.

Gradients are recorded under the original call, so that a checkpointed run has the sites of one that is not.
The other kind of checkpointing keeps the graph of the original calls and needs nothing of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trueup.adapters.engine import ModuleFrame


class Reentrant:
    """Calls of the step under way that had no gradients and may be run again."""

    def __init__(self) -> None:
        self._outermost: dict[str, list[tuple[int, int]]] = {}
        self._inside: dict[tuple[int, str, int], int] = {}

    def sender(
        self, frame: ModuleFrame, parent: ModuleFrame | None, ordinal: int, *, grad_enabled: bool
    ) -> int:
        """The call that this one's gradients belong to: itself, or the original that it repeats."""
        if frame.mode == "recompute":
            if parent is None:
                return self._outermost_original(frame)
            return self._inside.get((parent.sender, frame.name, ordinal), frame.call)
        if frame.mode == "train" and not grad_enabled and parent is not None:
            frame.without_gradients = True
            if parent.without_gradients:
                self._inside[parent.call, frame.name, ordinal] = frame.call
            else:
                self._outermost.setdefault(frame.name, []).append((parent.call, frame.call))
        return frame.call

    def _outermost_original(self, frame: ModuleFrame) -> int:
        """Regions are run again last first; a name twice under one caller tells nothing, and stays by
        itself."""
        waiting = self._outermost.get(frame.name)
        if not waiting or (len(waiting) > 1 and waiting[-2][0] == waiting[-1][0]):
            return frame.call
        return waiting.pop()[1]
