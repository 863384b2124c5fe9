"""What a capture's options want of each tensor: parts of its summary, and its values."""

from __future__ import annotations

from trueup.adapters.base import Sink
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.summary import HAS_CRC32, HAS_DIGEST, HAS_SKETCH, HAS_STATISTICS


class Choosing:
    """A summariser of either framework, as far as the options say what it does."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        options = sink.options
        self._want = (
            HAS_STATISTICS
            | (HAS_DIGEST if options.digest else 0)
            | (HAS_SKETCH if options.sketch else 0)
            | (HAS_CRC32 if options.crc32 else 0)
        )
        self._dedupe = options.digest
        self._store_all = options.task.value == "tensor"
        self._kinds_stored = options.store_values_of
        self._stores = self.asks_for_kind = self._store_all or bool(self._kinds_stored)

    def _wanted(self, phase: str, slot: str, dtype: str, kind: str) -> bool:
        """Whether the values of a record are kept; ``kind`` of its call."""
        kinds = self._kinds_stored
        whole_numbers = "integers" in kinds and DTYPES[dtype].kind in ("int", "uint", "bool")
        if self._store_all or (phase in ("forward", "loss") and whole_numbers):
            return True
        if phase in ("param", "optimizer", "average"):
            return "parameter" in kinds
        if phase == "param_grad":
            return "parameter" in kinds and slot != "local"
        of_module = phase in ("forward", "backward", "loss") and kind in ("module", "loss")
        return of_module and "module" in kinds
