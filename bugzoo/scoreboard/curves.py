"""What two loss curves alone would have said."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from bugzoo.scoreboard.commands import Program, run

STEPS = 20
MOST = 1e-3
"""relative difference of losses that a person would call one"""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Two curves side by side."""

    first_equal: bool
    """the first loss is the same in all printed digits"""
    largest: float
    """relative difference over all steps"""

    @property
    def is_seen(self) -> bool:
        """Whether the curves part."""
        return self.largest > MOST

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def losses(program: Program) -> list[str]:
    """The losses a program prints, as printed."""
    return re.findall(r"^step \d+ loss (\S+)", run(program.command(steps=STEPS)).output, flags=re.MULTILINE)


def compare_losses(target: list[str], reference: list[str]) -> Curves:
    """Two printed curves of one length."""
    pairs = [(float(a), float(b)) for a, b in zip(target, reference, strict=True)]
    return Curves(
        first_equal=target[0] == reference[0], largest=max(abs(a - b) / max(abs(b), 1e-12) for a, b in pairs)
    )
