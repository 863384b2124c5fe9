"""What result.json holds, as values (docs/result-format.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from trueup.comparing.arbiter import Arbitrated
from trueup.comparing.record_row import RecordRow, row_from_json
from trueup.comparing.scalars import ScalarPair
from trueup.types.codes import ToleranceCode
from trueup.types.reason import Json, Reason, reason_from_json, reasons_from_json
from trueup.types.status import Status
from trueup.types.verdict import Verdict, verdict_from_json

SCHEMA_VERSION = 2
Write = Callable[[Reason], Json]
"""How a reason is written"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs."""

    path: str
    manifest: Mapping[str, Any]


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

    target: Side
    reference: Side
    options: Mapping[str, Any]
    verdict: Verdict
    firsts: Mapping[str, RecordRow]
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

    def to_json(self, write: Write = Reason.to_json) -> dict[str, Json]:
        """The document, reasons as ``write`` writes them; infinities are still numbers."""
        found: dict[str, Json] = {"schema_version": SCHEMA_VERSION}
        for one in fields(self):
            found[one.name] = _plain(getattr(self, one.name), write)
        return found


def content_from_json(plain: Mapping[str, Any]) -> Content:
    """The content of a document of version 2 or 1; sentences of version 1 are kept as given."""
    tolerance, arbiter = plain["tolerance"], plain.get("arbiter")
    return Content(
        target=Side(**plain["target"]),
        reference=Side(**plain["reference"]),
        options=plain["options"],
        verdict=verdict_from_json(plain["verdict"]),
        firsts={phase: row_from_json(row) for phase, row in plain["firsts"].items() if row},
        counts=_counts(plain["counts"]),
        bracketed=bool(plain["bracketed"]),
        tolerance=Tolerance(
            formula=reason_from_json(tolerance["formula"]),
            origin=reason_from_json(tolerance["origin"]),
            constants=tolerance["constants"],
        ),
        arbiter=Arbitrated(**arbiter | {"sentence": reason_from_json(arbiter["sentence"])})
        if arbiter
        else None,
        scalars=[ScalarPair(**_numbers({"rank": 0, **one})) for one in plain["scalars"]],
        modules=[
            ModuleScore(**_numbers(one) | {"status": Status(one["status"])}) for one in plain["modules"]
        ],
        depth=[DepthPoint(**_numbers(one)) for one in plain["depth"]],
        local_norms=[LocalNorm(**_numbers(one)) for one in plain["local_norms"]],
        stacks=plain.get("stacks") or {},
        layouts=reasons_from_json(plain.get("layouts")),
        notes=reasons_from_json(plain.get("notes")),
    )


def _counts(plain: Mapping[str, Any]) -> Counts:
    groups = [one | {"reason": reason_from_json(one["reason"])} for one in plain["unmatched"]]
    return Counts(
        compared=plain["compared"],
        different=plain["different"],
        by_status={
            status: plain["num_unmatched" if status is Status.UNMATCHED else status.value]
            for status in Status.final()
        },
        by_phase={
            phase: {Status(name): number for name, number in counts.items()}
            for phase, counts in plain["by_phase"].items()
        },
        unmatched=[UnmatchedGroup(**group) for group in groups],
        num_groups=plain["num_groups"],
    )


def _counts_to_json(counts: Counts, write: Write) -> dict[str, Json]:
    """As result.json has them: one number a status; ``unmatched`` are the groups."""
    named = {
        "num_unmatched" if status is Status.UNMATCHED else status.value: number
        for status, number in counts.by_status.items()
    }
    return {
        "compared": counts.compared,
        **named,
        "different": counts.different,
        "by_phase": _plain(counts.by_phase, write),
        "unmatched": _plain(counts.unmatched, write),
        "num_groups": counts.num_groups,
    }


def _plain(value: Any, write: Write) -> Json:
    if isinstance(value, Reason):
        return write(value)
    if isinstance(value, Counts):
        return _counts_to_json(value, write)
    if isinstance(value, RecordRow):
        return {name: _plain(cell, write) for name, cell in value.to_json().items()}
    if isinstance(value, Verdict):
        return value.to_json(write)
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name), write) for one in fields(value)}
    if isinstance(value, Mapping):
        return {
            str(name.value if isinstance(name, Status) else name): _plain(one, write)
            for name, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(one, write) for one in value]
    found: Json = value.value if isinstance(value, Status) else value
    return found


def _numbers(plain: Mapping[str, Any]) -> dict[str, Any]:
    """With infinities as numbers again; unknown names are those of later versions."""
    return {name: float(one) if one in ("inf", "-inf") else one for name, one in plain.items()}


__all__ = ["SCHEMA_VERSION", "Content", "content_from_json"]
