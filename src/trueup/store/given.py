"""What the training calls of a step give the model."""

from __future__ import annotations

import numpy as np

from trueup.store.view import StepView
from trueup.types.arrays import Ints


def root_inputs(view: StepView) -> list[tuple[int, str, int]]:
    """(microbatch, slot, record) of the inputs of the main root's outermost training calls."""
    roots = {c for c in view.named("module", "") if view.parent[c] < 0 and view.mode[c] == "train"}
    return [
        (view.record_microbatch[record], view.slot[record], record)
        for record, call in enumerate(view.record_call)
        if call in roots and view.phase[record] == "forward" and view.slot[record].startswith("input")
    ]


def whole_numbers(view: StepView, record: int) -> Ints | None:
    """A record's values as int64; None where they were not kept, or are no integers."""
    found = view.raw(record)
    if found is None or not found[0].startswith(("int", "uint")):
        return None
    return found[1].astype(np.int64)
