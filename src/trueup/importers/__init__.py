"""Traces that others wrote, read as ours, and ours written for them."""

from trueup.importers.mindspore.reader import MindsporeDump, operator_names
from trueup.importers.msprobe.export import export_msprobe
from trueup.importers.opening import open_trace

__all__ = ["MindsporeDump", "export_msprobe", "open_trace", "operator_names"]
