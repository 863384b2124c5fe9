"""Configurations of two training runs compared, of any framework."""

from trueup.checklist.check import Checklist, check

__all__ = ["Checklist", "check"]
