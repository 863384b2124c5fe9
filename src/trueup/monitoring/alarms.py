"""An alarm, and what keeps a condition that lasts from giving one at every step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from trueup.types.reason import Reason

SUBJECTS = 20
"""subjects of one alarm that are listed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a rule found wrong."""

    name: str
    """``loss``, ``grad_norm``, or ``gradient of layers.0.attn.qkv.weight``"""
    value: float | None
    threshold: float | None
    unit: str = ""
    """what ``value`` counts"""

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One rule, raised at one step by one rank."""

    rule: str
    step: int
    rank: int
    sentence: Reason
    subjects: tuple[Subject, ...]
    num_subjects: int
    advice: Reason


class Latch:
    """Hysteresis: a subject is raised after ``raise_after`` times in a row, and lowered after
    ``clear_after`` times without."""

    def __init__(self, *, raise_after: int, clear_after: int) -> None:
        self._raise_after = max(raise_after, 1)
        self._clear_after = max(clear_after, 1)
        self._seen: dict[str, int] = {}
        self._raised: dict[str, int] = {}
        """subject -> times in a row without"""

    def update(self, present: Iterable[str]) -> list[str]:
        """The subjects that are raised by what is present now.

        Example:
            >>> latch = Latch(raise_after=2, clear_after=1)
            >>> [latch.update(["a"]) for _ in range(3)]
            [[], ['a'], []]
        """
        now = dict.fromkeys(present)
        if not now and not self._seen and not self._raised:
            return []
        for name in list(self._raised):
            self._raised[name] = 0 if name in now else self._raised[name] + 1
            if self._raised[name] >= self._clear_after:
                del self._raised[name]
        self._seen = {name: self._seen.get(name, 0) + 1 for name in now if name not in self._raised}
        new = [name for name, times in self._seen.items() if times >= self._raise_after]
        for name in new:
            del self._seen[name]
            self._raised[name] = 0
        return new

    def is_raised(self, name: str) -> bool:
        """Whether a subject has been raised and not lowered since."""
        return name in self._raised
