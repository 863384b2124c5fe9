"""Which calls a person asked for: msprobe's ``scope`` and ``list`` filters."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from trueup.capture.options import CaptureOptions

_LONGER = re.compile(r"(?:Module|Cell)\.(.+)\.[^.]+\.(?:forward|backward)(?:\.\d+)?")


@dataclass(slots=True)
class Scope:
    """Says, call by call and in execution order, whether a call is captured.

    ``names`` keeps calls whose name contains one of them, and everything inside a module that matches.
    ``bounds`` keeps what runs from the first call matching its start up to and including the last one inside
    its end.
    """

    names: tuple[str, ...] = ()
    bounds: tuple[str, str] | None = None
    _open: bool = field(default=False, init=False)

    @classmethod
    def from_options(cls, options: CaptureOptions) -> Scope | None:
        """None when everything is captured, so that the common case costs nothing."""
        if not options.names and options.scope is None:
            return None
        return cls(options.names, options.scope)

    def wants(self, name: str, path: tuple[str, ...]) -> bool:
        """Whether the call ``name`` inside the modules ``path`` (outermost first) is captured."""
        return self._in_names(name, path) and self._in_bounds(name)

    def leave(self, name: str) -> None:
        """The call has returned."""
        if self.bounds is not None and self._open and _names(self.bounds[1], name):
            self._open = False

    def _in_names(self, name: str, path: tuple[str, ...]) -> bool:
        return not self.names or any(n in name or any(n in p for p in path) for n in self.names)

    def _in_bounds(self, name: str) -> bool:
        if self.bounds is None:
            return True
        if not self._open and _names(self.bounds[0], name):
            self._open = True
        return self._open


def _names(wanted: str, name: str) -> bool:
    """Whether ``wanted`` is the name, or msprobe's longer form of it (``Module.NAME.Class.forward.0``)."""
    if wanted == name:
        return True
    longer = _LONGER.fullmatch(wanted)
    return longer is not None and longer[1] == name
