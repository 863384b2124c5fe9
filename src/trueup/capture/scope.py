"""Which calls a person asked for: msprobe's ``scope`` and ``list`` filters, on the same names."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from trueup.capture.call_names import CallName, WantedCall, call_name, is_function
from trueup.capture.options import CaptureOptions, Level
from trueup.types.table_rows import CallRow

SAVED = "save."
"""begins the name of what the program itself saves, which is always kept"""
_MOST_SEEN = 5_000
"""names kept for the case that nothing was captured"""
_NUM_NEAREST = 3
_ALIKE = 0.5


@dataclass(slots=True)
class _Call:
    """What is known of one call of the step."""

    name: CallName
    parent: int | None
    listed: dict[str, bool]
    """phase -> whether ``list`` takes it"""
    inside: dict[str, bool]
    """phase -> whether ``list`` takes what runs inside it"""
    kept: bool = False
    """its forward ran, in part, within the bounds"""
    is_sending: bool = False
    """its backward has begun"""


class CaptureScope:
    """Says, record by record and in execution order, what is captured.

    ``names`` keeps calls whose name contains one of them, and what runs inside a module that matches; a full
    name (``Functional.linear.3.forward``) keeps that pass of that call alone. ``bounds`` keeps what runs from
    the begin of the first to the end of the last, both included. Bounds with a phase are moments of the
    step; bounds without are calls of forward, and what they keep is kept in backward too. With both, a record
    must satisfy both, except that gradients of parameters follow the module that owns them.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        bounds: tuple[str, str] | None = None,
        *,
        framework: str = "torch",
        level: Level = Level.MIX,
    ) -> None:
        self._framework = framework
        self._names = [WantedCall.of(name, framework) for name in names]
        self._bounds = None if bounds is None else [WantedCall.of(name, framework) for name in bounds]
        self._in_time = self._bounds is not None and any(one.phase for one in self._bounds)
        self._opens_modules = level is not Level.L0
        self.num_kept = 0
        """records that were kept, over all steps"""
        self._seen: dict[str, None] = {}
        self._met: set[str] = set()
        """names given that some call or parameter has"""
        self._unended = False
        self._begin_step()

    def _begin_step(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._open = False
        self._ended_by: int | None = None
        """the last call whose forward ended the span: its outputs still belong to it"""
        self._ending: int | None = None
        """the call whose backward ends the span, while that runs"""
        self._owners: set[str] = set()
        """modules whose backward was kept, and parameters whose gradient came within the bounds"""

    @classmethod
    def from_options(cls, options: CaptureOptions, framework: str = "torch") -> CaptureScope | None:
        """None when everything is captured, so that the common case costs nothing."""
        if not options.names and options.scope is None:
            return None
        return cls(options.names, options.scope, framework=framework, level=options.level)

    # -- what the adapters say ------------------------------------------

    def begins(self, call: int, row: CallRow) -> bool:
        """A call begins its forward. False: nothing of it can be wanted, in either pass."""
        known = self._known(call, row)
        self._pass_start(known.name, "forward")
        known.kept = known.kept or self._open
        if not any(known.listed.values()):
            return False
        return self._bounds is None or self._in_time or self._open

    def returned(self, call: int) -> None:
        """The call has returned to the program, or was left by an exception."""
        known = self._calls.get(call)
        last = None if self._bounds is None else self._bounds[1]
        if self._open and known is not None and last is not None and last.names(known.name, "forward"):
            self._open, self._ended_by = False, call

    def takes(self, call: int, phase: str, row: CallRow) -> bool:
        """Whether a record of ``call``, whose row of calls is ``row``, is kept."""
        if phase in ("param", "loss") or row.name.startswith(SAVED):
            self._met |= {one.given for one in self._names if one.given in row.name}
            return True
        if row.kind == "parameter":
            return self._takes_parameter(row.name)
        if call not in self._calls:  # a collective
            self.begins(call, row)
        taken = self._takes_call(call, "backward" if phase == "backward" else "forward")
        self.num_kept += taken
        return taken

    def end_step(self) -> None:
        """The step is over: the next one begins outside the bounds."""
        self._unended = self._unended or (self._open and self._ending is None)
        self._begin_step()

    # -- what came of it ------------------------------------------

    def sentences(self) -> list[str]:
        """What a person must know of it once the run is over; empty where all went as they asked."""
        if not self.num_kept:
            return [_nothing_kept(self.nearest(), self._behind_level())]
        if self._unended and self._bounds is not None:
            return [self._unended_sentence(*self._bounds)]
        return []

    def _unended_sentence(self, first: WantedCall, last: WantedCall) -> str:
        """Why the end of the bounds did not come: it ran before the begin, or no call has its name."""
        if last.given in self._met:
            why = f"{last.given} did not run after {first.given}"
        else:
            nearest = ", ".join(self.nearest()[last.given]) or "none"
            why = f"no call is named {last.given!r} (nearest: {nearest})"
        return f"scope: {why}: the step is captured to its end"

    def _behind_level(self) -> bool:
        """Whether a name that no call has is that of a function, where modules alone are captured."""
        return not self._opens_modules and any(is_function(name) for name in self.nearest())

    def unmatched(self) -> dict[str, str]:
        """Of the names of ``list`` that nothing has, a sentence each; none where nothing at all was kept,
        which ``sentences`` explains."""
        if not self.num_kept:
            return {}
        nearest = self.nearest()
        return {
            one.given: f"list: no call is named {one.given!r} (nearest: {', '.join(near) or 'none'})"
            for one in self._names
            if (near := nearest.get(one.given)) is not None
        }

    def nearest(self) -> dict[str, list[str]]:
        """Of each name given that no call has, the nearest that some call has, the best first."""
        return {
            one.given: get_close_matches(one.given, list(self._seen), n=_NUM_NEAREST, cutoff=_ALIKE)
            for one in [*self._names, *(self._bounds or ())]
            if one.given not in self._met
        }

    # -- parts ------------------------------------------

    def _known(self, call: int, row: CallRow) -> _Call:
        names = call_name(row.kind, row.name, row.type, row.global_ordinal, self._framework)
        above = None if row.parent is None else self._calls.get(row.parent)
        listed, inside = {}, {}
        for phase in ("forward", "backward"):
            matching = [one for one in self._names if one.is_in(names, phase)]
            within = above is not None and above.inside[phase]
            expands = any(one.phase is None or self._opens_modules for one in matching)
            listed[phase] = not self._names or bool(matching) or within
            inside[phase] = within or (row.kind == "module" and expands)
        self._note_seen(names, "forward")
        known = self._calls[call] = _Call(name=names, parent=row.parent, listed=listed, inside=inside)
        return known

    def _note_seen(self, name: CallName, phase: str) -> None:
        """For the case that nothing is kept, that a name has no call, or that the end of the bounds does not
        come; no more of it after that."""
        no_end = self._bounds is not None and self._bounds[1].given not in self._met
        no_name = any(one.given not in self._met for one in self._names)
        if (no_end or no_name or not self.num_kept) and len(self._seen) < _MOST_SEEN:
            self._seen |= dict.fromkeys((name.full(phase), name.name))
            self._met |= {one.given for one in self._names if one.is_in(name, phase)}
            self._met |= {one.given for one in self._bounds or () if one.names(name, phase)}

    def _pass_start(self, name: CallName, phase: str) -> None:
        first = None if self._bounds is None else self._bounds[0]
        if first is not None and not self._open and first.names(name, phase):
            self._open, self._ended_by, self._ending = True, None, None

    def _takes_call(self, call: int, phase: str) -> bool:
        known = self._calls[call]
        if phase == "backward":
            self._note_seen(known.name, phase)
        if phase == "backward" and self._in_time:
            self._moves_on(known, call)
        if not known.listed[phase]:
            return False
        if self._bounds is None:
            taken = True
        elif phase == "backward" and not self._in_time:
            taken = known.kept
        else:
            taken = self._open or (phase == "forward" and call == self._ended_by)
        if taken and phase == "backward" and known.name.is_module:
            self._owners.add(known.name.name)
        return taken

    def _moves_on(self, known: _Call, call: int) -> None:
        """A gradient of ``call``: its backward may begin the span, or lie behind the one that ends it."""
        if self._ending is not None and not self._is_inside(call, self._ending):
            self._open, self._ending = False, None
        if not known.is_sending:
            self._pass_start(known.name, "backward")
        known.is_sending = True
        assert self._bounds is not None
        if (
            self._open
            and self._bounds[1].phase == "backward"
            and self._bounds[1].names(known.name, "backward")
        ):
            self._ending = call

    def _is_inside(self, call: int, module: int) -> bool:
        here: int | None = call
        while here is not None and here != module:
            found = self._calls.get(here)
            here = None if found is None else found.parent
        return here is not None

    def _takes_parameter(self, name: str) -> bool:
        owner = name.rpartition(".")[0]
        if owner in self._owners or name in self._owners:
            return True
        by_name = {one.given for one in self._names if one.phase is None and one.given in name}
        self._met |= by_name
        listed = not self._names or bool(by_name)
        if listed and (self._bounds is None or (self._open and self._in_time)):
            self._owners.add(name)
            return True
        return False


def _nothing_kept(nearest: Mapping[str, Sequence[str]], behind_level: bool) -> str:
    if not nearest:
        return "nothing captured: calls of each name given ran, but none satisfies scope and list together"
    missing = [
        f"no call is named {name!r} (nearest: {', '.join(names) or 'none'})"
        for name, names in nearest.items()
    ]
    advice = "Correct scope or list"
    if behind_level:
        advice = "Level L0 captures modules alone: set level to mix or L1"
    return f"nothing captured: {'; '.join(missing)}. {advice}"


def without_idle_arguments(
    calls: Mapping[str, Sequence[object]], recorded: Container[object]
) -> dict[str, Sequence[object]]:
    """Columns of calls without what those without a record of forward were given; that they ran remains, for
    the numbers of the others."""
    rows = zip(calls["kind"], calls["arguments"], strict=True)
    arguments = [
        given if kind not in ("module", "api") or call in recorded else None
        for call, (kind, given) in enumerate(rows)
    ]
    return {**calls, "arguments": arguments}
