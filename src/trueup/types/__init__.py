"""Frozen values every other package speaks in: no behaviour, no framework, no I/O."""

from trueup.types.site import CallKind, Mode, Phase
from trueup.types.status import Evidence, Outcome, Status

__all__ = ["CallKind", "Evidence", "Mode", "Outcome", "Phase", "Status"]
