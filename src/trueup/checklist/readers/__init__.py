"""Configuration files of many dialects, each recognised by what it holds."""

from trueup.checklist.readers.opening import read_side

__all__ = ["read_side"]
