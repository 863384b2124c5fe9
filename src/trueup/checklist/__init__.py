"""Configurations of two training runs held against each other, whatever framework they are written for."""

from trueup.checklist.check import Checklist, check

__all__ = ["Checklist", "check"]
