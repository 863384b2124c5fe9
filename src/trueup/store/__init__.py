"""A trace on disk: written step by step, read back as tables. The format is specified in docs/trace-format.md."""

from trueup.store.reader import StepTables, StoredTensor, Trace, TraceSource
from trueup.store.writer import RunWriter, StepColumns

__all__ = ["RunWriter", "StepColumns", "StepTables", "StoredTensor", "Trace", "TraceSource"]
