"""trueup finds out why two training runs of the same large model do not agree.

Importing it touches no framework, patches nothing and reads no environment: names load when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trueup.batches.replay import ReplayDataset
    from trueup.capture.debugger import PrecisionDebugger
    from trueup.capture.declared import declare_layout
    from trueup.capture.seeds import seed_all
    from trueup.capture.tracer import Tracer
    from trueup.curves.comparison import compare_curves
    from trueup.curves.reading import read_curve
    from trueup.diagnosing.noise import noise_reruns
    from trueup.monitoring.monitor import Monitor
    from trueup.store.events import EventWriter
    from trueup.types.placement import (
        Invariant,
        Partial,
        Placement,
        Replicate,
        Shard,
        gradient_of,
        part_of,
    )

__version__ = "0.1.0"

_HOME = {
    "EventWriter": "trueup.store.events",
    "Invariant": "trueup.types.placement",
    "Monitor": "trueup.monitoring.monitor",
    "Partial": "trueup.types.placement",
    "Placement": "trueup.types.placement",
    "PrecisionDebugger": "trueup.capture.debugger",
    "ReplayDataset": "trueup.batches.replay",
    "Replicate": "trueup.types.placement",
    "Shard": "trueup.types.placement",
    "Tracer": "trueup.capture.tracer",
    "compare_curves": "trueup.curves.comparison",
    "declare_layout": "trueup.capture.declared",
    "gradient_of": "trueup.types.placement",
    "noise_reruns": "trueup.diagnosing.noise",
    "part_of": "trueup.types.placement",
    "read_curve": "trueup.curves.reading",
    "seed_all": "trueup.capture.seeds",
}

__all__ = [
    "EventWriter",
    "Invariant",
    "Monitor",
    "Partial",
    "Placement",
    "PrecisionDebugger",
    "ReplayDataset",
    "Replicate",
    "Shard",
    "Tracer",
    "__version__",
    "compare_curves",
    "declare_layout",
    "gradient_of",
    "noise_reruns",
    "part_of",
    "read_curve",
    "seed_all",
]


if not TYPE_CHECKING:  # a type checker knows the names above, and is to find the ones that are wrong

    def __getattr__(name: str) -> object:
        try:
            home = _HOME[name]
        except KeyError:
            raise AttributeError(f"module 'trueup' has no attribute {name!r}") from None
        value = getattr(importlib.import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """The public names, also those that nobody has used yet."""
    return sorted({*globals(), *__all__})
