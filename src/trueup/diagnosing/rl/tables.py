"""Sequences of two runs brought together by the token ids that they hold, in whatever order they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from trueup.diagnosing.rl.formulas import NARROW, Rounding, exact
from trueup.diagnosing.rl.thresholds import DOUBT, DRIFT, DRIFTED, ENOUGH, MODEL
from trueup.numerics.dtypes import DTYPES
from trueup.store.rollouts import IDS, PADDING, RLRecord, stacked
from trueup.store.same_rows import places
from trueup.types.arrays import Array, Bools, Floats, Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class SequenceTable:
    """Arrays of one side, a row a sequence. What is padding is zero."""

    arrays: dict[str, Array]
    dtypes: dict[str, str]
    numbers: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Sequence[RLRecord]) -> SequenceTable:
        """The rows of several records under one another; arrays that all of them have."""
        arrays = stacked(records)
        dtypes = {name: records[0].dtypes.get(name, str(array.dtype)) for name, array in arrays.items()}
        return cls(arrays=arrays, dtypes=dtypes)

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def __len__(self) -> int:
        return len(self.arrays["responses"])

    @cached_property
    def valid(self) -> Bools:
        """Which are tokens of a response."""
        valid: Bools = self.arrays["responses"] != PADDING
        return valid

    @cached_property
    def keys(self) -> list[bytes]:
        """What tells sequences apart: prompt and response."""
        rows = zip(*(self.arrays[name] for name in IDS), strict=True)
        return [b"|".join(_ids(one) for one in row) for row in rows]

    @cached_property
    def prompts(self) -> list[bytes]:
        """The prompt of each sequence."""
        return list(map(_ids, self.arrays["prompts"]))

    def get(self, name: str) -> Floats | None:
        """An array as float64, zero where padding is; None where it was not recorded."""
        if name not in self.arrays:
            return None
        held = self.arrays[name]
        if held.ndim == 1:
            return held.astype(np.float64)
        wide, valid = np.zeros(self.valid.shape), self.valid
        kept = slice(min(held.shape[1], valid.shape[1]))
        wide[:, kept] = held[:, kept]
        return np.where(valid, wide, 0.0)

    @property
    def mask(self) -> Floats:
        """Which tokens count."""
        found = self.get("response_mask")
        return self.valid.astype(np.float64) if found is None else found

    def unit(self, *names: str) -> float:
        """The unit roundoff of what is made of these arrays: of the finest dtype among them."""
        held = [DTYPES[dtype].eps for name in names if (dtype := self.dtypes.get(name)) in DTYPES]
        return max(DTYPES["float32"].eps, min(held, default=0.0))

    def rounding(self, *names: str) -> Rounding:
        """What operations on these arrays round to: the dtype of all of them where it is narrow."""
        dtypes = {self.dtypes.get(name, "float32") for name in names if name in self}
        return NARROW.get(dtypes.pop(), exact) if len(dtypes) == 1 else exact

    def taken(self, rows: Ints) -> SequenceTable:
        """Some rows, in another order."""
        return SequenceTable(
            arrays={name: array[rows] for name, array in self.arrays.items()}, dtypes=self.dtypes
        )


def _ids(row: Array) -> bytes:
    return np.ascontiguousarray(row[row != PADDING].astype(np.int64)).tobytes()


@dataclass(frozen=True, kw_only=True, eq=False)
class SequencePair:
    """The sequences that both sides hold, in the reference's order, and both sides whole."""

    target: SequenceTable
    reference: SequenceTable
    whole: tuple[SequenceTable, SequenceTable]

    @classmethod
    def of(cls, target: SequenceTable, reference: SequenceTable) -> SequencePair:
        """Find the reference's sequences again."""
        found = places(target.keys, reference.keys)
        here = np.array([place for place in found if place is not None], np.int64)
        there = np.array([at for at, place in enumerate(found) if place is not None], np.int64)
        return cls(target=target.taken(here), reference=reference.taken(there), whole=(target, reference))

    @property
    def num_shared(self) -> int:
        """Sequences on both sides."""
        return len(self.target)

    @property
    def is_whole(self) -> bool:
        """Whether both sides hold the same sequences."""
        return all(len(one) == self.num_shared for one in self.whole)

    def both(self, name: str) -> tuple[Floats, Floats] | None:
        """An array of both sides, of one shape; None where a side has none, or nothing is shared."""
        target, reference = self.target.get(name), self.reference.get(name)
        if target is None or reference is None or not self.num_shared:
            return None
        if target.ndim > 1:
            width = int(max(self.target.valid.sum(axis=1).max(), 1))
            target, reference = target[:, :width], reference[:, :width]
        return target, reference

    def valid(self, like: Floats) -> Bools:
        """Which elements of such an array are tokens."""
        return self.target.valid[:, : like.shape[1]]

    def apart(self, name: str, unit: float | None = None, changed: float = 0.0) -> Apart | None:
        """How far an array of both sides is apart; None where it cannot be told."""
        found = self.both(name)
        if found is None:
            return None
        unit = max(self.target.unit(name), self.reference.unit(name), unit or 0.0)
        inside = self.valid(found[0])
        return Apart.of(found[0][inside], found[1][inside], unit, changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """The difference of a quantity that a model gave."""

    rms: float
    allowed: float
    num_tokens: int
    num_different: int
    is_finite: bool
    changed: float = 0.0
    """how much training has changed the quantity since both models were the same"""

    @classmethod
    def of(
        cls, target: Floats, reference: Floats, unit: float, changed: float = 0.0, least: float = 0.0
    ) -> Apart:
        """Of tokens of both sides. ``least``: what rounding is relative to at least, for numbers that are
        differences of larger ones."""
        finite = bool((np.isfinite(target) == np.isfinite(reference)).all())
        kept = np.isfinite(target) & np.isfinite(reference)
        return cls(
            rms=rms(target[kept] - reference[kept]),
            allowed=MODEL * unit * max(rms(reference[kept]), least),
            num_tokens=target.size,
            num_different=int((target != reference).sum()),
            is_finite=finite,
            changed=changed,
        )

    @property
    def agrees(self) -> bool:
        """Rounding explains it."""
        return self.is_finite and self.rms <= max(self.allowed, DRIFT * self.changed)

    @property
    def is_beyond(self) -> bool:
        """Rounding does not explain it, along no depth, and grown by no update."""
        most = max(DOUBT * self.allowed, DRIFTED * DRIFT * self.changed)
        return not self.is_finite or (self.rms > most and self.num_tokens >= ENOUGH)


def rms(values: Floats) -> float:
    """Root mean square; 0 of nothing."""
    return float(np.sqrt((values * values).mean())) if values.size else 0.0
