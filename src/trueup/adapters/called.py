"""Which functions each module's own code calls in its first pass, and what they are given besides tensors.

Names and plain arguments only: that a softmax runs over another dimension, or a loss ignores another label,
is seen where no value of the call is kept. Kept of the first captured step, beside the program's code.
"""

from __future__ import annotations

from typing import Protocol

_MOST = 400
"""calls that are kept of one module's code: of more, none are, since the rest would seem to be missing"""
Described = tuple[str, list[int]]
"""dtype and shape of a tensor"""
Noted = tuple[str, str | None, int, dict[str, Described]]
"""name, arguments as JSON, how many calls of modules and the like the same code had made before, tensors by
slot"""


class ModulePass(Protocol):
    """One pass of a module."""

    call: int
    name: str
    counts: dict[str, int]


class Called:
    """What was called in the first step, until it is written."""

    def __init__(self) -> None:
        self._passes: dict[str | None, int] = {}
        """module -> number of its first pass"""
        self._of: dict[str | None, list[Noted]] = {}
        self.is_over = False

    def note(
        self,
        frame: ModulePass | None,
        counts: dict[str, int],
        name: str,
        arguments: str | None,
        tensors: dict[str, Described],
    ) -> None:
        """One function called by a module's own code; ``frame`` None: outside all modules."""
        module, number = (None, -1) if frame is None else (frame.name, frame.call)
        if self._passes.setdefault(module, number) != number:
            return
        found = self._of.setdefault(module, [])
        if len(found) <= _MOST:
            found.append((name, arguments, sum(counts.values()), tensors))

    def to_plain(self) -> dict[str, object]:
        """For JSON; nothing is added from then on."""
        self.is_over = True
        of = {module: found for module, found in self._of.items() if len(found) <= _MOST}
        outside = of.pop(None, [])
        return {"modules": of, "outside": outside}
