"""What a check says: one verdict, a sentence with numbers, and the places it speaks of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from trueup.diagnosing.checks.run import CheckedRun


class Verdict(str, Enum):
    """Judgement of one check."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"
    """it applies, but this trace cannot tell"""
    NOTHING = "nothing to check"
    """the run has no such thing: one rank only, no dropout, no master weights"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One site a check speaks of."""

    site: str
    step: int | None = None
    rank: int | None = None
    source: str | None = None
    """innermost frame of the program: ``file:line function | source line``"""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """One line of the checklist."""

    name: str
    title: str
    """what is true when the check passes"""
    verdict: Verdict
    sentence: str
    numbers: dict[str, Any] = field(default_factory=dict)
    places: tuple[Place, ...] = ()
    """most telling first"""
    notes: tuple[str, ...] = ()
    """what does not decide, but is worth knowing"""
    next: str | None = None
    """what to do about it"""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        plain = asdict(self)
        plain["verdict"] = self.verdict.value
        plain["places"], plain["notes"] = [asdict(place) for place in self.places], list(self.notes)
        return plain


class Check(Protocol):
    """Looks at a run and judges one thing; never raises for what the run lacks."""

    @property
    def name(self) -> str:
        """Short word for it, as in ``--only``."""

    @property
    def title(self) -> str:
        """What is true when it passes."""

    def check(self, run: CheckedRun) -> CheckOutcome:
        """Judge."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Makes the outcomes of one check."""

    name: str
    title: str

    def passed(self, sentence: str, **rest: Any) -> CheckOutcome:
        """It holds."""
        return self._outcome(Verdict.PASSED, sentence, rest)

    def failed(self, sentence: str, **rest: Any) -> CheckOutcome:
        """It does not."""
        return self._outcome(Verdict.FAILED, sentence, rest)

    def undecided(self, sentence: str, **rest: Any) -> CheckOutcome:
        """This trace cannot tell."""
        return self._outcome(Verdict.UNDECIDED, sentence, rest)

    def nothing(self, sentence: str, **rest: Any) -> CheckOutcome:
        """The run has no such thing."""
        return self._outcome(Verdict.NOTHING, sentence, rest)

    def _outcome(self, verdict: Verdict, sentence: str, rest: dict[str, Any]) -> CheckOutcome:
        return CheckOutcome(name=self.name, title=self.title, verdict=verdict, sentence=sentence, **rest)


@dataclass(frozen=True, slots=True)
class FunctionCheck:
    """A check that is one function."""

    name: str
    title: str
    judge: Callable[[CheckedRun, Judge], CheckOutcome]

    def check(self, run: CheckedRun) -> CheckOutcome:
        """Judge."""
        return self.judge(run, Judge(self.name, self.title))
