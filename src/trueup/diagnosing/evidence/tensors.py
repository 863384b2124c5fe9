"""The tensor of a record, as rules look at it."""

from __future__ import annotations

from typing import cast

import numpy as np

from trueup.diagnosing.evidence.facts import NUMBERS, Known
from trueup.numerics.summary import SKETCH_SIZE
from trueup.store import StepView
from trueup.types.arrays import Array
from trueup.types.site import shown_name


def known_tensor(view: StepView, record: int, name: str | None = None) -> Known | None:
    """None where the record has no summary; ``name`` is its call and slot where none is given."""
    row = view.summary(record)
    if row is None:
        return None
    call, slot = view.record_call[record], view.slot[record]
    sketch: bytes = row.get("sketch") or b""

    def raw() -> Array | None:
        found = view.raw(record)
        return None if found is None else found[1]

    return Known(
        name or (f"{shown_name(view.name[call])}, {slot}" if call >= 0 else slot),
        dtype=str(row["dtype"]),
        shape=tuple(row["shape"] or ()),
        statistics={number: cast("float | None", row.get(number)) for number in NUMBERS},
        digest=row.get("digest"),
        sketch=np.frombuffer(sketch, "<f4").astype(np.float64) if len(sketch) == 4 * SKETCH_SIZE else None,
        raw=raw,
    )
