"""A supposed cause, tried: what is changed in the target's program while it is replayed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

TRIAL = "trial.json"
"""beside the plan of the replay"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Changes of modules, by their names in the target."""

    settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """module -> attribute, or ``attribute.key`` -> the reference's value, as capture wrote it"""
    in_float32: tuple[str, ...] = ()
    """modules whose own code is run once more in float32 and rounded once, at its end"""

    def write(self, folder: Path) -> None:
        """Leave it beside the plan."""
        (folder / TRIAL).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Trial | None:
        """What ``write`` left; None where the replay tries nothing."""
        path = folder / TRIAL
        if not path.exists():
            return None
        held = json.loads(path.read_text(encoding="utf-8"))
        return cls(settings=held["settings"], in_float32=tuple(held["in_float32"]))
