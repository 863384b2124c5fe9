"""Where a value that is not finite was *made*, told from statistics in execution order.

The same rule while a program runs (task ``overflow_check``) and afterwards, from a trace. A NaN was made by
a call whose output holds one while no input does; an infinity where no input holds an infinity or a NaN. What
a mask needs is no alarm: negative infinities that an argument, a buffer or a cast of the smallest number
brings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

_MASK_BELOW = -65_400.0
"""numbers this low stand for minus infinity: the smallest of float16 (-65504) and of wider dtypes"""


class How(str, Enum):
    """How a value that is not finite came to where it is first seen."""

    MADE = "made"
    """by the call itself: what went in was finite"""
    ARRIVED = "arrived"
    """it was there before: in the batch, a parameter, or from code that capture does not see"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What one summary says of values that are not finite; ``lowest`` is the smallest finite one."""

    num_nan: int
    num_posinf: int
    num_neginf: int
    lowest: float = 0.0

    @property
    def finite(self) -> bool:
        """No NaN and no infinity."""
        return not (self.num_nan or self.num_posinf or self.num_neginf)

    @property
    def like_a_mask(self) -> bool:
        """Nothing but negative infinities is wrong with it."""
        return bool(self.num_neginf) and not (self.num_nan or self.num_posinf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What must be known of a call: the enclosing one, and its arguments as capture writes them (JSON)."""

    parent: int | None
    arguments: str | None
    recompute: bool = False


class Origins:
    """Sees the records of one step of one rank in execution order and tells the origins among them.

    Records of finite values above -65400 change nothing and may be left out.

    Example:
        >>> origins = Origins(lambda call: Caller(parent=None, arguments=None))
        >>> origins.see(0, "forward", "output.0", Count(num_nan=1, num_posinf=0, num_neginf=0))
        <How.MADE: 'made'>
    """

    def __init__(self, caller: Callable[[int], Caller]) -> None:
        self._caller = caller
        self._incoming: dict[tuple[int, str], tuple[bool, bool]] = {}
        self._masks: set[int] = set()
        """calls that were given numbers standing for minus infinity"""
        self._explained: set[tuple[int, str]] = set()
        """calls in which, or below which, a value that is not finite was made"""
        self._touched: set[int] = set()
        """calls whose forward saw more than a mask: their backward has no origin of its own"""
        self._nan = self._inf = False

    def see(self, call: int, phase: str, slot: str, count: Count) -> How | None:
        """The next record; returns how its value came here if it is an origin, else None."""
        if phase == "forward" and slot.startswith("input") and count.lowest <= _MASK_BELOW:
            self._masks.add(call)
        if count.finite or (phase == "collective" and slot.startswith("input")):
            return None  # among a collective's arguments are buffers that nobody has written yet
        if phase == "forward" and not count.like_a_mask:
            self._touched.add(call)
        incoming = "output" if phase == "backward" else "input"
        if phase in ("forward", "backward") and not slot.startswith(incoming):
            return self._leaves(call, phase, count)
        if phase in ("forward", "backward"):
            self._note_incoming(call, phase, count)
        if phase == "forward" and count.like_a_mask:
            return None
        known = self._nan or (self._inf and not count.num_nan)
        self._note(count)
        return None if known else How.ARRIVED

    def _note_incoming(self, call: int, phase: str, count: Count) -> None:
        nan, inf = self._incoming.get((call, phase), (False, False))
        infinite = bool(count.num_posinf or count.num_neginf)
        self._incoming[call, phase] = nan or bool(count.num_nan), inf or infinite

    def _leaves(self, call: int, phase: str, count: Count) -> How | None:
        """A value that this call hands on: outputs in forward, gradients of inputs in backward."""
        had_nan, had_inf = self._incoming.get((call, phase), (False, False))
        caller = self._caller(call)
        made_nan = bool(count.num_nan) and not had_nan
        made_inf = not count.num_nan and not (had_nan or had_inf)
        explained = (call, phase) in self._explained or (phase == "backward" and call in self._touched)
        if explained or not (made_nan or made_inf) or (caller.recompute and (self._nan or self._inf)):
            self._note(count, unless_mask=True)
            return None
        self._explain(call, phase)
        if phase == "forward" and count.like_a_mask and self._is_meant(call, caller):
            return None
        known_backward = phase == "backward" and (self._nan or self._inf) and not made_nan
        self._note(count)
        return None if known_backward else How.MADE

    def _is_meant(self, call: int, caller: Caller) -> bool:
        """Whether minus infinity is what the call was asked for, or what became of a mask's large number."""
        return call in self._masks or "Infinity" in (caller.arguments or "")

    def _explain(self, call: int, phase: str) -> None:
        above: int | None = call
        while above is not None:
            self._explained.add((above, phase))
            above = self._caller(above).parent

    def _note(self, count: Count, *, unless_mask: bool = False) -> None:
        if unless_mask and count.like_a_mask:
            return
        self._nan = self._nan or bool(count.num_nan)
        self._inf = self._inf or bool(count.num_posinf or count.num_neginf)
