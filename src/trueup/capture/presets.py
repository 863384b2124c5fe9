"""What is captured for a purpose, by name: ``trueup capture --preset NAME``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trueup.capture.options import CaptureOptions, Level, StepSet


def _for_diagnosis(options: CaptureOptions) -> CaptureOptions:
    kinds = frozenset({"module", "parameter", "labels", "configuration"})
    return replace(options, level=Level.L0, steps=StepSet(((0, 1),)), store_values_of=kinds, functions=True)


def _for_batches(options: CaptureOptions) -> CaptureOptions:
    return replace(
        options,
        level=Level.L0,
        steps=StepSet(None),
        store_values_of=frozenset({"integers", "labels"}),
        backward=False,
        gradients=False,
        optimizer=False,
        sketch=False,
    )


PRESETS: dict[str, Callable[[CaptureOptions], CaptureOptions]] = {
    "diagnose": _for_diagnosis,
    "batches": _for_batches,
}
"""name -> the options with what the preset sets"""
