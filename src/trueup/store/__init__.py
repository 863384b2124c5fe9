"""A trace on disk: written step by step, read back as tables. The format is specified in
docs/trace-format.md.

Names load when first used: capture writes without ever importing the reader's table library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trueup.store.part import TracePart
    from trueup.store.reader import StepTables, StoredTensor, Trace, TraceSource
    from trueup.store.view import StepView, step_view, view_if_there
    from trueup.store.writer import RunWriter, StepColumns, SummaryKind

_HOME = {
    "RunWriter": "writer",
    "StepColumns": "writer",
    "StepTables": "reader",
    "StepView": "view",
    "SummaryKind": "writer",
    "StoredTensor": "reader",
    "Trace": "reader",
    "TracePart": "part",
    "TraceSource": "reader",
    "step_view": "view",
    "view_if_there": "view",
}

__all__ = [
    "RunWriter",
    "StepColumns",
    "StepTables",
    "StepView",
    "StoredTensor",
    "SummaryKind",
    "Trace",
    "TracePart",
    "TraceSource",
    "step_view",
    "view_if_there",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'trueup.store' has no attribute {name!r}")
    return getattr(importlib.import_module(f"trueup.store.{_HOME[name]}"), name)
