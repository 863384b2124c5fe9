"""What result.json holds, as values (docs/result-format.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from trueup.comparing.arbiter import Arbitrated
from trueup.comparing.record_row import Cell, JudgedRow, row_from_json
from trueup.comparing.scalars import ScalarPair
from trueup.types.codes import ToleranceCode
from trueup.types.reason import Reason, given, read_reason, read_reasons
from trueup.types.result import ResultDocument
from trueup.types.status import Status
from trueup.types.verdict import Verdict, verdict_from_json

SCHEMA_VERSION = 2
_Plain = Mapping[str, Any]
"""a part of the document as it was read; the dataclasses it becomes say what is in it"""
_NAME_OF = {Status.UNMATCHED: "num_unmatched"}
"""keys of counts that are not their status, because another key has that name"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentSide:
    """One of the two runs."""

    path: str
    manifest: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmatchedGroup:
    """Unmatched records of one call."""

    side: str
    """the run that has them"""
    module: str | None
    name: str
    reason: Reason
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of records."""

    compared: int
    different: int
    """all that exceed their tolerance"""
    by_status: Mapping[Status, int]
    by_phase: Mapping[str, Mapping[Status, int]]
    unmatched: Sequence[UnmatchedGroup]
    """largest first; capped"""
    num_groups: int
    """also those that were cut off"""

    def to_json(self) -> dict[str, object]:
        """As result.json has them: one number a status; ``unmatched`` are the groups."""
        return {
            "compared": self.compared,
            **{_NAME_OF.get(status, status.value): number for status, number in self.by_status.items()},
            "different": self.different,
            "by_phase": {
                phase: {status.value: number for status, number in counts.items()}
                for phase, counts in self.by_phase.items()
            },
            "unmatched": self.unmatched,
            "num_groups": self.num_groups,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Where tolerances come from."""

    formula: Reason
    origin: Reason
    constants: Mapping[str, float]

    @property
    def is_measured(self) -> bool:
        """Whether the reference's own noise was measured; also of a document of version 1."""
        return self.origin.code is ToleranceCode.MEASURED_NOISE or "K" in self.constants


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleScore:
    """One module with the worst score of its records."""

    fqn: str
    type: str | None
    order: int
    depth: int
    worst_forward: float | None
    worst_backward: float | None
    worst_grad: float | None
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthPoint:
    """One module output along the execution."""

    step: int
    rank: int
    order: int
    module: str
    type: str | None
    phase: str
    rel_l2: float | None
    tolerance: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNorm:
    """The norm of one weight's gradient on both sides."""

    fqn: str
    target: float
    reference: float
    rel_diff: float
    rel_l2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Everything a comparison concludes, beside its tables."""

    target: ContentSide
    reference: ContentSide
    options: Mapping[str, object]
    verdict: Verdict
    firsts: Mapping[str, JudgedRow]
    """phase -> the first record of it that exceeds its tolerance"""
    counts: Counts
    bracketed: bool
    """every record without a verdict lies between matched ones that agree"""
    tolerance: Tolerance
    arbiter: Arbitrated | None
    scalars: Sequence[ScalarPair]
    modules: Sequence[ModuleScore]
    depth: Sequence[DepthPoint]
    local_norms: Sequence[LocalNorm]
    stacks: Mapping[str, Sequence[Sequence[str]]]
    """of ``target`` and ``reference``: frames by number"""
    layouts: Sequence[Reason]
    """how the ranks of either side were put together"""
    notes: Sequence[Reason]

    def to_json(self) -> dict[str, object]:
        """The document; reasons stay what they are, for ``wording.document``."""
        return {
            "schema_version": SCHEMA_VERSION,
            **{one.name: getattr(self, one.name) for one in fields(self)},
        }


def content_from_json(plain: ResultDocument) -> Content:
    """The content of a document of version 2 or 1; sentences of version 1 are kept as given."""
    tolerance, arbiter = plain["tolerance"], plain.get("arbiter")
    return Content(
        target=ContentSide(**plain["target"]),
        reference=ContentSide(**plain["reference"]),
        options=plain["options"],
        verdict=verdict_from_json(plain["verdict"]),
        firsts={
            phase: row_from_json(cast("Mapping[str, Cell]", row))
            for phase, row in plain["firsts"].items()
            if row
        },
        counts=_counts(plain["counts"]),
        bracketed=bool(plain["bracketed"]),
        tolerance=Tolerance(
            formula=_reason(tolerance, "formula"),
            origin=_reason(tolerance, "origin"),
            constants=tolerance["constants"],
        ),
        arbiter=None if not arbiter else _arbitrated(arbiter),
        scalars=[ScalarPair(**_numbers({"rank": 0, **one})) for one in plain["scalars"]],
        modules=[
            ModuleScore(**_numbers(one) | {"status": Status(one["status"])}) for one in plain["modules"]
        ],
        depth=[DepthPoint(**_numbers(one)) for one in plain["depth"]],
        local_norms=[_local_norm(one) for one in plain["local_norms"]],
        stacks=plain.get("stacks") or {},
        layouts=read_reasons(plain, "layouts"),
        notes=read_reasons(plain, "notes"),
    )


def _local_norm(plain: _Plain) -> LocalNorm:
    numbers = {name: math.nan if value is None else value for name, value in _numbers(plain).items()}
    return LocalNorm(fqn=str(numbers.pop("fqn")), **numbers)


def _counts(plain: _Plain) -> Counts:
    groups = [
        UnmatchedGroup(
            reason=_reason(one, "reason"), **{name: one[name] for name in ("side", "module", "name", "count")}
        )
        for one in plain["unmatched"]
    ]
    return Counts(
        compared=plain["compared"],
        different=plain["different"],
        by_status={status: plain[_NAME_OF.get(status, status.value)] for status in Status.final()},
        by_phase={
            phase: {Status(name): number for name, number in counts.items()}
            for phase, counts in plain["by_phase"].items()
        },
        unmatched=groups,
        num_groups=plain["num_groups"],
    )


def _arbitrated(plain: _Plain) -> Arbitrated:
    counts = {name: plain[name] for name in ("path", "less_accurate", "first")}
    return Arbitrated(**counts, sentence=_reason(plain, "sentence"))


def _reason(plain: _Plain, name: str) -> Reason:
    return read_reason(plain, name) or given("")


def _numbers(plain: _Plain) -> dict[str, Any]:
    """With infinities as numbers again; unknown names are those of later versions."""
    return {name: float(one) if one in ("inf", "-inf") else one for name, one in plain.items()}


__all__ = ["SCHEMA_VERSION", "Content", "content_from_json"]
