"""The one model every report is drawn from: a comparison's three results, read lazily.

A report never looks at a trace: ``result.parquet``, ``precision.parquet`` and ``result.json``
(docs/result-format.md) are enough. Tables stay lazy frames, so that a result larger than memory can be
filtered, ranked and written in batches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from trueup.errors import TraceError
from trueup.types.confidence import Confidence, confidence_from_json

PAGE = "report.html"
"""the report a person reads in a browser"""

STATUS_ORDER = (
    "origin",
    "different",
    "amplified",
    "propagated",
    "undecided",
    "unmatched",
    "within_noise",
    "equal",
)
"""Most worrying first: the order of every list, legend and sheet."""

BEYOND = ("origin", "different", "amplified", "propagated")
"""Statuses that mean: further apart than the tolerance allows."""

PHASE_ORDER = ("param", "forward", "loss", "backward", "collective", "param_grad", "optimizer")


class ComparisonLike(Protocol):
    """What a report needs of :class:`trueup.comparing.result.Comparison`."""

    @property
    def summary(self) -> dict[str, Any]:
        """The document of result.json."""

    @property
    def output(self) -> Path | None:
        """The folder that holds the three files, None where nothing was written."""

    def frame(self) -> pl.DataFrame:
        """The table of result.parquet."""

    @property
    def precision(self) -> pl.LazyFrame:
        """The table of precision.parquet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The conclusion over two runs; every field of result.json's ``verdict``, defaults where it is silent."""

    outcome: str = "undecided"
    exit_code: int = 2
    headline: str = "No verdict was reached."
    where: str | None = None
    owner: str | None = None
    step: int | None = None
    rank: int | None = None
    phase: str | None = None
    confidence: Confidence | None = None
    evidence: tuple[str, ...] = ()
    before: str = ""
    next: str | None = None
    next_note: str = ""

    @property
    def advice(self) -> str:
        """What to do next, command and note in one line."""
        return ", ".join(part for part in (self.next, self.next_note) if part)

    def with_page(self, page: Path | str | None) -> Verdict:
        """The same where ``page`` was written already: it is to be read, not made by comparing again."""
        if page is None or not (self.next or "").startswith("trueup compare ") or PAGE not in self.next_note:
            return self
        return replace(self, next=None, next_note=self.next_note.replace(f"then read {PAGE}", f"read {page}"))

    @classmethod
    def from_summary(cls, summary: Mapping[str, Any]) -> Verdict:
        """Read the ``verdict`` object, ignoring keys of later versions."""
        given = {key: value for key, value in summary.get("verdict", {}).items() if key in cls.__slots__}
        given["confidence"] = confidence_from_json(summary.get("verdict", {}))
        given["evidence"] = tuple(dict.fromkeys(given.get("evidence") or ()))
        kept_null = {"where", "owner", "step", "rank", "phase", "confidence", "next"}
        return cls(**{key: value for key, value in given.items() if value is not None or key in kept_null})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A comparison as reports see it: its summary document and two lazy tables."""

    summary: Mapping[str, Any]
    records: pl.LazyFrame
    precision: pl.LazyFrame
    folder: Path | None = None
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def counts(self) -> Mapping[str, Any]:
        """Numbers of records by status, by phase, and the groups of unmatched sites."""
        counts: Mapping[str, Any] = self.summary.get("counts", {})
        return counts

    def status_counts(self) -> dict[str, int]:
        """Records per status, most worrying first, without the statuses that did not occur."""
        by_phase = self.by_phase()
        found = {}
        attributed = any(status in self.counts for status in ("origin", "amplified", "propagated"))
        for status in STATUS_ORDER:
            if status == "different" and attributed:  # the sum of the three
                continue
            stated = self.counts.get(status)
            if not isinstance(stated, int):
                stated = sum(int(counts.get(status) or 0) for counts in by_phase.values())
            if stated:
                found[status] = stated
        return found

    def by_phase(self) -> dict[str, Mapping[str, int]]:
        """Counts per status of each phase, phases in execution order."""
        given: Mapping[str, Mapping[str, int]] = (
            self.summary.get("by_phase") or self.counts.get("by_phase") or {}
        )
        known = [phase for phase in PHASE_ORDER if phase in given]
        return {phase: given[phase] for phase in [*known, *(phase for phase in given if phase not in known)]}

    def unmatched(self) -> list[Mapping[str, Any]]:
        """Groups of sites seen in one run only: ``side module name count reason`` (at most 200 are kept)."""
        groups = self.summary.get("unmatched")
        if groups is None:
            groups = self.counts.get("unmatched")
        return list(groups) if isinstance(groups, list) else []

    def num_unmatched_groups(self) -> int:
        """How many such groups there are, kept or not."""
        stated = self.summary.get("num_groups", self.counts.get("num_groups"))
        return int(stated) if stated is not None else len(self.unmatched())

    def num_records(self) -> int:
        """Rows of the result table."""
        return int(self.records.select(pl.len()).collect().item())

    def in_order(self) -> pl.LazyFrame:
        """The records by step, rank and order; a file written so is read as it lies, in bounded memory."""
        keys = self.records.select(pl.struct("step", "rank", "order").alias("key")).collect()["key"]
        return (
            self.records if keys.is_sorted() else self.records.sort("step", "rank", "order").collect().lazy()
        )

    def first(self) -> dict[str, Any] | None:
        """The first row beyond tolerance, of the phase the verdict names if it names one, else None."""
        firsts = self.summary.get("firsts") or {}
        phase = self.verdict.phase
        if phase and firsts.get(phase):
            return dict(firsts[phase])
        found = next((row for row in firsts.values() if row), None)
        return dict(found) if found else None

    def beyond(self, limit: int) -> pl.DataFrame:
        """The first ``limit`` rows beyond tolerance in execution order, of the verdict's step and rank."""
        rows = self.records.filter(pl.col("status").cast(pl.String).is_in(BEYOND))
        if self.verdict.step is not None and self.verdict.rank is not None:
            rows = rows.filter((pl.col("step") == self.verdict.step) & (pl.col("rank") == self.verdict.rank))
        return rows.sort("step", "order").head(limit).collect(engine="streaming")

    def frames(self, row: Mapping[str, Any] | None, side: str) -> list[str]:
        """The call stack of one row on one side, innermost first; empty where none was kept."""
        number = None if row is None else row.get(f"{side}_stack")
        stacks = (self.summary.get("stacks") or {}).get(side) or []
        return list(stacks[number]) if number is not None and 0 <= number < len(stacks) else []

    def path(self, side: str) -> str:
        """Where the trace of one side lies."""
        return str((self.summary.get(side) or {}).get("path") or side)

    def manifest(self, side: str) -> Mapping[str, Any]:
        """Facts of the run of one side."""
        manifest: Mapping[str, Any] = (self.summary.get(side) or {}).get("manifest") or {}
        return manifest


def report_from_folder(folder: Path) -> Report:
    """Open the result that ``trueup compare -o FOLDER`` left behind.

    Raises:
        TraceError: one of the three files is missing or is not what docs/result-format.md says.
    """
    paths = {name: folder / name for name in ("result.json", "result.parquet", "precision.parquet")}
    missing = [name for name, path in paths.items() if not path.is_file()]
    if missing:
        raise TraceError(
            f"{folder} is not a comparison result: {', '.join(missing)} missing. "
            "Make one with: trueup compare TARGET REFERENCE -o " + str(folder)
        )
    try:
        summary = json.loads(paths["result.json"].read_text(encoding="utf-8"))
    except ValueError as error:
        raise TraceError(
            f"{paths['result.json']} is not JSON ({error}). Run the comparison again."
        ) from error
    return _from_files(folder, summary)


def report_from(source: Report | ComparisonLike | Path) -> Report:
    """A report of a comparison in memory, of a result folder, or the report itself."""
    if isinstance(source, Report):
        return source
    if isinstance(source, Path):
        return report_from_folder(source)
    if source.output is not None:
        return _from_files(source.output, source.summary)
    summary = _readable(source.summary)
    return Report(
        summary=summary,
        verdict=Verdict.from_summary(summary),
        records=source.frame().lazy(),
        precision=source.precision,
    )


def _readable(value: Any) -> Any:
    """The same, names that are no text (a path in another encoding) made text: no report fails on a name."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_readable(key): _readable(item) for key, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, (list, tuple)) else value


def _from_files(folder: Path, given: Mapping[str, Any]) -> Report:
    summary = _readable(given)
    return Report(
        summary=summary,
        verdict=Verdict.from_summary(summary),
        folder=folder,
        records=pl.scan_parquet(folder / "result.parquet", glob=False),
        precision=pl.scan_parquet(folder / "precision.parquet", glob=False),
    )


_NEVER_TELLING = ("schema_version", "run_id", "launch")
_ALWAYS_OTHER = ("path", "created", "options.output")


def run_facts(report: Report) -> list[dict[str, Any]]:
    """What is recorded of each run, one fact a row: ``name target reference differs``."""
    sides = [_flat(report.manifest(side)) for side in ("target", "reference")]
    names = list(dict.fromkeys([*sides[0], *sides[1]]))
    sides = [
        {"path": report.path(side), **flat} for side, flat in zip(("target", "reference"), sides, strict=True)
    ]
    facts = []
    for name in dict.fromkeys(["path", *names]):
        if name not in _NEVER_TELLING:
            target, reference = (side.get(name, "–") for side in sides)
            differs = target != reference and name not in _ALWAYS_OTHER
            facts.append({"name": name, "target": target, "reference": reference, "differs": differs})
    return facts


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            flat |= _flat(item, f"{prefix}{key}.")
        elif isinstance(item, (list, tuple)):
            flat[f"{prefix}{key}"] = " ".join(str(part) for part in item) or "–"
        else:
            flat[f"{prefix}{key}"] = "–" if item is None else str(item)
    return flat
