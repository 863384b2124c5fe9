"""Everything trueup raises.

    TrueupError
    |- ConfigError      a person's mistake: a flag, a file, a key
    |- TraceError       a trace that cannot be read, or not as a whole
    |- WeightsError     a file of weights that cannot be read, or written as asked
    |- NothingCompared  two traces with no pair in common: never a green result

A *difference* is a result row, a *failure to decide* a row with a reason; only inability to proceed raises.
A message says where, what was found against what was expected, and what to do next.
"""

from __future__ import annotations


class TrueupError(Exception):
    """Base of every error trueup raises on purpose."""


class ConfigError(TrueupError):
    """A person's input is wrong: says which, where, and what would be right."""


class TraceError(TrueupError):
    """A trace on disk is missing, half written, of another kind, or damaged."""


class WeightsError(TrueupError):
    """A file of weights is missing, damaged, of an unknown kind, refused, or cannot hold what is asked."""


class NothingCompared(TrueupError):
    """Not one pair of records could be compared."""
