"""Call stacks, each distinct one kept once.

A stack's key is its parent module call's stack plus the frames between: three or four frames instead of
forty. Frames are identified by their code object and instruction; text is made when a stack is first seen.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable
from types import CodeType, FrameType

from trueup.adapters.code import shown_file

_HIDDEN = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    "<frozen runpy>",
    "<frozen importlib",
)


class Stacks:
    """Numbers distinct stacks within a process, and remembers which the step under way has used."""

    def __init__(
        self,
        hidden: tuple[str, ...] = (),
        tell: Callable[[CodeType, dict[str, object]], None] = lambda code, its_globals: None,
    ) -> None:
        """``hidden``: folders whose frames are left out, besides trueup's own and the import system's.

        ``tell`` is called with code and globals of each frame that is kept, when it is first seen.
        """
        self._tell = tell
        self._hidden = (*_HIDDEN, *hidden)
        self._numbers: dict[tuple[object, ...], int] = {}
        self._texts: list[list[str]] = []
        self._codes: list[CodeType] = []
        self._used: set[int] = set()

    def number(
        self, frame: FrameType | None, end: CodeType | None, parent: int | None, stacks: dict[int, list[str]]
    ) -> int:
        """Number of the stack from ``frame`` outwards to the next frame of ``end``, on top of ``parent``;
        without an end, of the whole stack.

        Puts its text into ``stacks`` when this step has not used it yet.
        """
        key: tuple[object, ...] = (parent,)
        first = frame
        while frame is not None and (code := frame.f_code) is not end:
            key += (id(code), frame.f_lasti)
            frame = frame.f_back
        found = self._numbers.get(key)
        if found is None:
            found = self._add(key, first, end, parent)
        if found not in self._used:
            self._used.add(found)
            stacks[found] = self._texts[found]
        return found

    def end_step(self) -> None:
        """The next step lists its stacks anew, so that each step can be read alone."""
        self._used = set()

    def _add(
        self, key: tuple[object, ...], frame: FrameType | None, end: CodeType | None, parent: int | None
    ) -> int:
        lines = []
        while frame is not None and frame.f_code is not end:
            self._codes.append(frame.f_code)
            if not frame.f_code.co_filename.startswith(self._hidden):
                lines.append(_line(frame))
                self._tell(frame.f_code, frame.f_globals)
            frame = frame.f_back
        if parent is not None:
            lines += self._texts[parent]
        self._texts.append(lines)
        self._numbers[key] = len(self._texts) - 1
        return len(self._texts) - 1


def _line(frame: FrameType) -> str:
    code = frame.f_code
    source = linecache.getline(code.co_filename, frame.f_lineno).strip()
    return f"{shown_file(code.co_filename)}:{frame.f_lineno} {code.co_name} | {source}"
