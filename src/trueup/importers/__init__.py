"""Traces that others wrote, read as ours, and ours written for them."""

from trueup.importers.msprobe.export import export_msprobe
from trueup.importers.opening import open_trace

__all__ = ["export_msprobe", "open_trace"]
