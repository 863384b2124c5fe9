"""One row of result.parquet as a value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from trueup.comparing.written import reason_of_row
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason, read_reason

Cell = str | int | float | bool | None
REASON_COLUMNS = ("reason", "reason_code", "reason_facts")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFinite:
    """How many NaN, or infinities of one sign, the two sides hold; None: some, which nobody counted."""

    what: str
    target: int | None
    reference: int | None

    @property
    def side(self) -> str:
        """The one that holds more."""
        more = self.target is None or (self.reference is not None and self.target > self.reference)
        return "target" if more else "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRow:
    """The columns that conclusions are drawn from (docs/result-format.md), and all others in ``columns``."""

    step: int
    rank: int
    order: int
    status: str
    evidence: str
    phase: str
    slot: str
    kind: str | None
    name: str
    type: str | None
    owner: str | None
    site: str
    microbatch: int | None
    rel_l2: float | None
    tolerance: float | None
    score: float | None
    gain: float | None
    error_in: float | None
    inputs_equal: bool | None
    """None: nothing is known of what it was made from"""
    scale: float | None
    residual: float | None
    confidence: float | None
    reference_shape: str | None
    target_record: int | None
    reference_record: int | None
    target_stack: int | None
    reference_stack: int | None
    target_l2_norm: float | None
    reference_l2_norm: float | None
    reason: Reason | None
    columns: Mapping[str, Cell] = field(repr=False)
    """all but the reason, by name"""

    @classmethod
    def from_columns(cls, columns: Mapping[str, Cell], reason: Reason | None = None) -> JudgedRow:
        """A row as the table has it; ``reason`` where it is at hand already."""
        found = {name: columns.get(name) for name in _NAMES}
        if reason is None:
            reason = reason_of_row(columns)
        others = {name: value for name, value in columns.items() if name not in REASON_COLUMNS}
        return cls(**found, reason=reason, columns=others)  # type: ignore[arg-type]

    @property
    def numel(self) -> int:
        """Elements of the reference's tensor."""
        shape = (self.reference_shape or "[]").strip("[]")
        return math.prod(int(size) for size in shape.split(",") if size)

    @property
    def is_from_outside(self) -> bool:
        """Whether the record is what the program gave the model."""
        return self.owner is None and self.phase == "forward" and self.slot.startswith("input")

    @property
    def is_of_one_side(self) -> bool:
        """Whether one run lacks it."""
        return self.target_record is None or self.reference_record is None

    @property
    def not_finite_apart(self) -> NotFinite | None:
        """NaN, else infinities, that the two sides do not hold as many of; None where they do."""
        for column, what in (("num_nan", "NaN"), ("num_posinf", "+Inf"), ("num_neginf", "-Inf")):
            target, reference = (self.columns.get(f"{side}_{column}") for side in ("target", "reference"))
            if isinstance(target, int) and isinstance(reference, int) and target != reference:
                return NotFinite(what=what, target=target, reference=reference)
        shown = self.reason.place("what") if self.reason is not None else None
        if self.reason is None or self.reason.code is not RecordCode.NOT_FINITE or not shown:
            return None
        of_target = self.reason.place("side") == "target"
        return NotFinite(what=str(shown), target=None if of_target else 0, reference=0 if of_target else None)

    def to_json(self) -> dict[str, Cell | Reason]:
        """Every column; the reason stays what it is, for ``wording.document``."""
        return {**self.columns, "reason": self.reason}


_NAMES = tuple(one.name for one in fields(JudgedRow) if one.name not in ("reason", "columns"))


def row_from_json(plain: Mapping[str, Cell]) -> JudgedRow:
    """The row that result.json keeps, of version 2 or 1."""
    columns = {
        name: float(value) if value in ("inf", "-inf") else value
        for name, value in plain.items()
        if name not in (*REASON_COLUMNS, "reason_reason")
    }
    return JudgedRow.from_columns(columns, read_reason(plain, "reason"))
