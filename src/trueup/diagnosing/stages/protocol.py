"""What a stage of a diagnosis is: it looks at one part of a training step and says passed, failed, or why it
cannot tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from trueup.types.finding import Finding, Stage, each_once
from trueup.types.reason import Reason

if TYPE_CHECKING:
    from trueup.diagnosing.stages.context import Context


class StageStatus(str, Enum):
    """What came of a stage."""

    PASSED = "passed"
    FAILED = "failed"
    CONSEQUENCE = "consequence"
    """it differs, and what an earlier stage found explains that"""
    UNDECIDED = "undecided"
    SKIPPED = "skipped"
    """nothing was given that it could look at"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutcome:
    """What one stage found."""

    stage: Stage
    title: Reason
    """its name in the checklist, and what it looks at"""
    status: StageStatus
    conclusion: Reason
    """one sentence: what was seen, or why nothing can be said"""
    evidence: tuple[Reason, ...] = ()
    findings: tuple[Finding, ...] = ()
    """surest first"""
    confirmed: bool = False
    """by the values themselves, by replay or by a run's own numbers; not by differences alone"""
    details: Mapping[str, object] = field(default_factory=dict)
    """numbers a report may draw (plain values)"""

    def __post_init__(self) -> None:
        each_once(self, "evidence")

    def to_json(self) -> dict[str, object]:
        """Every field; the conclusion is ``said`` there (docs/diagnosis-format.md)."""
        keys = {"conclusion": "said"}
        return {keys.get(one.name, one.name): getattr(self, one.name) for one in fields(self)}


class StageCheck(Protocol):
    """One stage. Stages know nothing of each other but what ``context.earlier`` tells of those before."""

    @property
    def stage(self) -> Stage:
        """Where it stands in the order of a training step."""

    @property
    def title(self) -> Reason:
        """Its line in the checklist."""

    def check(self, context: Context) -> StageOutcome:
        """Look, and say what was found. Never raises for what a trace does not hold: that is undecided."""
