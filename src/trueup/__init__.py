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

__version__ = "0.1.0"

_HOME = {
    "EventWriter": "trueup.store.events",
    "Monitor": "trueup.monitoring.monitor",
    "Tracer": "trueup.capture.tracer",
    "PrecisionDebugger": "trueup.capture.debugger",
    "ReplayDataset": "trueup.batches.replay",
    "compare_curves": "trueup.curves.comparison",
    "declare_layout": "trueup.capture.declared",
    "noise_reruns": "trueup.diagnosing.noise",
    "read_curve": "trueup.curves.reading",
    "seed_all": "trueup.capture.seeds",
}

__all__ = [
    "EventWriter",
    "Monitor",
    "PrecisionDebugger",
    "ReplayDataset",
    "Tracer",
    "__version__",
    "compare_curves",
    "declare_layout",
    "noise_reruns",
    "read_curve",
    "seed_all",
]


def __getattr__(name: str) -> object:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'trueup' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
