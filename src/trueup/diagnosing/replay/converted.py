"""Reference values laid out as the target has them, where the two are of two implementations.

A target tensor may be another order of a reference tensor, or be made of several (the gradient of a fused
weight of those of its parts). Where the parts fill it whole, it is written for the replay to use.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from trueup.errors import ConfigError
from trueup.matching.layouts import CommonForm
from trueup.numerics.dtypes import DTYPES
from trueup.store import Trace
from trueup.types.arrays import Array
from trueup.types.trace import SummaryRow

NAME = "values"
"""of the one tensor in each file"""

Part = tuple[SummaryRow, CommonForm | None]
"""a row of the reference's summaries, and how its values lie beside the target's"""


class ConvertedValues:
    """Writes one file for every tensor that had to be laid out anew; they count downwards from -1."""

    def __init__(self, reference: Trace, step: int, rank: int, folder: Path) -> None:
        self._reference, self._step, self._rank = reference, step, rank
        self._folder = folder
        self._count = 0

    def write(self, shape: tuple[int, ...], parts: Sequence[Part]) -> SummaryRow | None:
        """The columns of a plan's row for a target tensor of this shape; None where the parts do not fill
        it, or some were not kept."""
        names = {summary["dtype"] for summary, _ in parts}
        values = self._laid_out(shape, parts) if len(names) == 1 else None
        if values is None:
            return None
        self._count += 1
        self._folder.mkdir(parents=True, exist_ok=True)
        save_file({NAME: values.reshape(-1).view(np.uint8)}, self._folder / f"{self._count}.safetensors")
        norms = [norm for summary, _ in parts if (norm := summary["l2_norm"]) is not None]
        norm = float(np.sqrt(sum(norm**2 for norm in norms)))
        return {
            "digest": None,
            "l2_norm": norm,
            "dtype": names.pop(),
            "shape": list(shape),
            "chunk": -self._count,
            "tensor": NAME,
        }

    def _laid_out(self, shape: tuple[int, ...], parts: Sequence[Part]) -> Array | None:
        places = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
        filled = np.zeros(places.size, bool)
        whole: Array | None = None
        for summary, layout in parts:
            held = self._reference.tensor(self._step, self._rank, summary)
            if held is None or (layout is not None and not layout.known):
                return None
            values: Array = np.frombuffer(held.data, DTYPES[summary["dtype"]].storage).reshape(
                summary["shape"]
            )
            try:
                at = (places if layout is None else layout.of_target(places)).reshape(-1)
                values = (values if layout is None else layout.of_reference(values)).reshape(-1)
            except ConfigError:
                return None
            if at.size != values.size:
                return None
            whole = np.zeros(places.size, values.dtype) if whole is None else whole
            whole[at], filled[at] = values, True
        return whole if filled.all() else None
