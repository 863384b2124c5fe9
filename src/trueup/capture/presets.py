"""What is captured for a purpose, by name: ``trueup capture --preset NAME``."""

from __future__ import annotations

from typing import Any

from trueup.capture.options import Level, StepSet

PRESETS: dict[str, dict[str, Any]] = {
    "diagnose": {
        "level": Level.L0,
        "steps": StepSet(((0, 1),)),
        "store_values_of": frozenset({"module", "parameter", "labels", "configuration"}),
    },
    "batches": {
        "level": Level.L0,
        "steps": StepSet(None),
        "store_values_of": frozenset({"integers", "labels"}),
        "backward": False,
        "gradients": False,
        "optimizer": False,
        "sketch": False,
    },
}
"""fields of ``CaptureOptions`` that each sets"""
