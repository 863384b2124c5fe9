"""Traces that others wrote, read as ours, and ours written for them."""

from trueup.importers.opening import open_trace

__all__ = ["open_trace"]
