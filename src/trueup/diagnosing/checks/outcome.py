"""What a check concludes: one verdict, a reason with numbers, and the places it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from trueup.types.reason import Reason

if TYPE_CHECKING:
    from trueup.diagnosing.checks.run import CheckedRun


class CheckVerdict(str, Enum):
    """Judgement of one check."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"
    """it applies, but this trace cannot tell"""
    NOTHING = "nothing to check"
    """the run has no such thing: one rank only, no dropout, no master weights"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSite:
    """One site a check names."""

    site: str
    step: int | None = None
    rank: int | None = None
    source: str | None = None
    """innermost frame of the program: ``file:line function | source line``"""
    detail: Reason | None = None

    def to_json(self) -> dict[str, object]:
        """Fields by name; no detail is ``""``."""
        names = ("site", "step", "rank", "source")
        return {**{name: getattr(self, name) for name in names}, "detail": self.detail or ""}


Measured = dict[str, int | float | list[int] | None]
"""numbers of a check by name, as scripts read them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """One line of the checklist."""

    name: str
    title: str
    """what is true when the check passes"""
    verdict: CheckVerdict
    sentence: Reason
    numbers: Measured = field(default_factory=dict)
    places: tuple[CheckedSite, ...] = ()
    """most telling first"""
    notes: tuple[Reason, ...] = ()
    """what does not decide"""
    next: Reason | None = None
    """what to do about it"""


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

    def passed(self, sentence: Reason, **more: Any) -> CheckOutcome:
        """It holds."""
        return self._outcome(CheckVerdict.PASSED, sentence, more)

    def failed(self, sentence: Reason, **more: Any) -> CheckOutcome:
        """It does not."""
        return self._outcome(CheckVerdict.FAILED, sentence, more)

    def undecided(self, sentence: Reason, **more: Any) -> CheckOutcome:
        """This trace cannot tell."""
        return self._outcome(CheckVerdict.UNDECIDED, sentence, more)

    def nothing(self, sentence: Reason, **more: Any) -> CheckOutcome:
        """The run has no such thing."""
        return self._outcome(CheckVerdict.NOTHING, sentence, more)

    def _outcome(self, verdict: CheckVerdict, sentence: Reason, more: dict[str, Any]) -> CheckOutcome:
        return CheckOutcome(name=self.name, title=self.title, verdict=verdict, sentence=sentence, **more)


@dataclass(frozen=True, slots=True)
class FunctionCheck:
    """A check that is one function."""

    name: str
    title: str
    judge: Callable[[CheckedRun, Judge], CheckOutcome]

    def check(self, run: CheckedRun) -> CheckOutcome:
        """Judge."""
        return self.judge(run, Judge(self.name, self.title))
