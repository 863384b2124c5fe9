"""Options that take the place of a Tracer's own, where a program that calls Tracer itself is run again.

Its steps are counted from where its Tracer starts, not from its first training step: a rerun or a replay must
therefore be captured by that very Tracer. Tracers are told apart by the order in which they begin.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from trueup.capture.options import CaptureOptions

_options: CaptureOptions | None = None
_numbers = itertools.count()


def hand_over(options: CaptureOptions) -> None:
    """Tracer number ``options.tracer`` of this process captures with ``options``; the others do nothing."""
    global _options
    _options = options


def options_of_next(own: CaptureOptions) -> CaptureOptions | None:
    """What the Tracer that begins now captures with; None where another one is meant."""
    number = next(_numbers)
    if _options is None:
        return replace(own, tracer=number)
    return _options if _options.tracer == number else None
