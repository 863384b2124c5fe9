"""What a diagnosis ends in: one verdict, what else was found, and what every stage saw."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from trueup.comparing.result import plain
from trueup.diagnosing.stages.protocol import StageOutcome
from trueup.store.checked import document_from_file
from trueup.store.writer import write_text
from trueup.types.confidence import Confidence
from trueup.types.finding import Finding
from trueup.types.reason import Reason
from trueup.types.result import PathDocument
from trueup.types.status import Outcome
from trueup.wording import document

SCHEMA_VERSION = 2
READABLE = (1, 2)
"""version 1 has the texts alone, without the reasons beside them"""
FILE = "diagnosis.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoss:
    """The loss of one step on both sides; NaN and infinities are losses too."""

    step: int
    target: float
    reference: float

    @property
    def is_same(self) -> bool:
        """Whether the two are one number, or NaN both."""
        return self.target == self.reference or (math.isnan(self.target) and math.isnan(self.reference))

    @property
    def text(self) -> str:
        """Both numbers."""
        return f"{self.target:.7g} (target) vs {self.reference:.7g} (reference)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Two runs diagnosed; ``to_json`` is diagnosis.json (docs/diagnosis-format.md).

    Example:
        >>> diagnosis.verdict.headline                             # doctest: +SKIP
        'Wrong scale in the forward output of layers.1.attn'
    """

    target: str
    reference: str
    outcome: Outcome
    headline: Reason
    confidence: Confidence | None
    stages: tuple[StageOutcome, ...]
    findings: tuple[Finding, ...] = ()
    """the verdict first, then further faults, surest first in the order of the stages"""
    path: tuple[PathDocument, ...] = ()
    """module outputs as they ran, forward and backward: ``phase module type rel_l2 tolerance``"""
    losses: tuple[StepLoss, ...] = ()
    """of the compared steps"""
    notes: tuple[Reason, ...] = ()
    """how it was come by, and what limits it"""
    runs: dict[str, str] = field(default_factory=dict)
    """folders that were made on the way: ``compare replay gradients``"""
    tolerance: str = ""
    """where the bounds of the comparison come from"""
    command: str | None = None
    """the target's, as it was replayed or captured"""
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> Finding | None:
        """The finding the diagnosis ends in, None where the runs agree or nothing was found."""
        return self.findings[0] if self.findings else None

    @property
    def exit_code(self) -> int:
        """0 agree, 1 differ, 2 undecided."""
        return self.outcome.exit_code

    def to_json(self) -> dict[str, object]:
        """Plain values, infinities as the strings ``"inf"`` and ``"-inf"``."""
        written: dict[str, object] = plain(
            document(
                {
                    "schema_version": SCHEMA_VERSION,
                    "target": self.target,
                    "reference": self.reference,
                    "outcome": self.outcome,
                    "exit_code": self.exit_code,
                    "headline": self.headline,
                    "confidence": self.confidence,
                    "findings": self.findings,
                    "stages": self.stages,
                    "path": self.path,
                    "losses": self.losses,
                    "notes": self.notes,
                    "runs": self.runs,
                    "tolerance": self.tolerance,
                    "command": self.command,
                    "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
                }
            )
        )
        return written

    def write(self, folder: Path) -> Path:
        """Write diagnosis.json by one rename and return its path."""
        text = json.dumps(self.to_json(), allow_nan=False, indent=1, ensure_ascii=False)
        return write_text(folder / FILE, text)


def read_diagnosis(folder: Path) -> dict[str, object]:
    """The document of a diagnosis made before.

    Raises:
        TraceError: there is none, or it is not of this version.
    """
    return document_from_file(
        folder / FILE, dict[str, object], versions=READABLE, remedy="Make the diagnosis again"
    )
