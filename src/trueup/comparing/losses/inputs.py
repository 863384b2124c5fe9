"""What the losses of a step were made with: the labels, and the weights of the tokens, of each microbatch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from trueup.batches.labels import IGNORE_INDEX, join, rows_of_parts
from trueup.comparing.losses.calls import loss_arguments, loss_records
from trueup.store import StepView
from trueup.store.given import root_inputs, whole_numbers
from trueup.types.arrays import Array, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """By microbatch; a loss made in chunks has the whole."""

    labels: dict[int, Ints]
    masks: dict[int, Floats]
    ignore_index: int
    further: dict[tuple[int, int], Ints]
    """(microbatch, number) -> labels of a loss beside the first, that are no part of the same whole"""

    @classmethod
    def of(cls, view: StepView) -> LossInputs:
        """Read from one step's records, where values were kept."""
        ignore_index = loss_arguments(view).get("ignore_index", IGNORE_INDEX)
        labels: dict[int, list[Ints]] = defaultdict(list)
        masks: dict[int, list[Floats]] = defaultdict(list)
        for microbatch, record in loss_records(view, "labels"):
            whole = whole_numbers(view, record)
            if whole is not None:
                labels[microbatch].append(whole)
        for microbatch, record in loss_records(view, "mask"):
            weights = view.value(record)
            if weights is not None:
                masks[microbatch].append(weights)
        rows = {m: _rows(view, m, parts, ignore_index) for m, parts in labels.items()}
        return cls(
            labels={m: _one(parts, rows[m]) for m, parts in labels.items()},
            masks={
                m: _one(parts, rows.get(m) if len(parts) == len(labels[m]) else None)
                for m, parts in masks.items()
            },
            ignore_index=ignore_index,
            further={
                (m, number): part
                for m, parts in labels.items()
                if len(parts) > 1 and (rows[m] is None or join(parts, rows[m] or 1) is None)
                for number, part in enumerate(parts)
                if number
            },
        )


def _rows(view: StepView, microbatch: int, parts: Sequence[Ints], ignore_index: int) -> int | None:
    if len(parts) == 1:
        return 1
    ids = (whole_numbers(view, record) for at, _, record in root_inputs(view) if at == microbatch)
    tokens = next((v for v in ids if v is not None and v.ndim == 2 and v.size), None)
    return None if tokens is None else rows_of_parts(parts, tokens, ignore_index=ignore_index)


def _one(parts: Sequence[Array], rows: int | None) -> Array:
    """The whole, or the first of parts that are none of one."""
    whole = None if rows is None else join(parts, rows)
    return parts[0] if whole is None else whole
