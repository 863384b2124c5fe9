"""The result of a comparison as its reports read it: one document and two tables, read lazily.

A report never reads a trace: ``result.parquet``, ``precision.parquet`` and ``result.json``
(docs/result-format.md) are enough. Tables stay lazy frames, so that a result larger than memory can be
filtered, ranked and written in batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, cast

import polars as pl

from trueup.comparing.content import UnmatchedGroup
from trueup.comparing.written import AGAIN, read_document
from trueup.errors import TraceError
from trueup.reporting.document import Mark, Tone
from trueup.reporting.formatting import plain
from trueup.store import parquet
from trueup.types.codes import NextCode
from trueup.types.reason import Json, Reason, given, read_reason, read_reasons, reason
from trueup.types.result import (
    CountsDocument,
    DepthDocument,
    ResultDocument,
    ResultRow,
    ScalarDocument,
    SideDocument,
)
from trueup.types.site import shown_name
from trueup.types.verdict import Verdict, verdict_from_json
from trueup.wording import command, text

STATUSES = {
    "origin": Mark("◆", "origin", Tone.BAD),
    "different": Mark("≠", "different", Tone.BAD),
    "amplified": Mark("▲", "amplified", Tone.BAD),
    "propagated": Mark("→", "propagated", Tone.FOLLOWS),
    "undecided": Mark("?", "undecided", Tone.WARN),
    "unmatched": Mark("∅", "unmatched", Tone.WARN),
    "within_noise": Mark("≈", "within noise"),
    "equal": Mark("=", "equal", Tone.GOOD),
}
"""Most worrying first: the order of every list, legend and sheet."""

EXCEEDING = ("origin", "different", "amplified", "propagated")
"""Statuses of records that exceed their tolerance."""

PHASE_ORDER = ("param", "forward", "loss", "backward", "collective", "param_grad", "optimizer")
SIDES = ("target", "reference")
_FILES = ("result.json", "result.parquet", "precision.parquet")
_READ_PAGE = {
    NextCode.READ_REPORT: NextCode.READ_WRITTEN_REPORT,
    NextCode.READ_UNDECIDED: NextCode.READ_WRITTEN_UNDECIDED,
}


class ComparisonLike(Protocol):
    """What a report needs of :class:`trueup.comparing.result.Comparison`."""

    @property
    def summary(self) -> ResultDocument:
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
class RunFact:
    """One recorded fact of both runs."""

    name: str
    target: str
    reference: str
    differs: bool
    """in a way that can matter: paths and dates always differ"""


@dataclass(frozen=True, kw_only=True)
class ComparisonResult:
    """The document of a comparison and its two tables."""

    summary: ResultDocument = field(default_factory=ResultDocument)
    """result.json, of version 2 or 1; read here alone"""
    records: pl.LazyFrame
    precision: pl.LazyFrame
    folder: Path | None = None

    @cached_property
    def verdict(self) -> Verdict:
        """The conclusion over the two runs."""
        return verdict_from_json(self.summary.get("verdict") or {})

    def next_step(self, page: str = "") -> tuple[str, str]:
        """The command to type and what it is for; where ``page`` was written it is read, not made again."""
        plain_ = self.summary.get("verdict") or {}
        following = read_reason(plain_, "next")
        if following is not None and page and following.code in _READ_PAGE:
            following = reason(_READ_PAGE[following.code], page=page)  # type: ignore[index]
            return "", text(following)
        if following is None or following.code not in tuple(NextCode):  # version 1
            return str(plain_.get("next") or ""), str(plain_.get("next_note") or "")
        return command(following) or "", text(following)

    @property
    def counts(self) -> CountsDocument:
        """Numbers of records by status; in some documents also by phase, and the unmatched groups."""
        return self.summary.get("counts") or {}

    @property
    def num_compared(self) -> int:
        """Records that were compared."""
        return int(self.counts.get("compared") or 0)

    @cached_property
    def status_counts(self) -> dict[str, int]:
        """Records per status, most worrying first, without the statuses that did not occur."""
        found = {}
        attributed = any(status in self.counts for status in ("origin", "amplified", "propagated"))
        for status in STATUSES:
            if status == "different" and attributed:  # the sum of the three
                continue
            stated = self.counts.get(status)
            if not isinstance(stated, int):
                stated = sum(int(counts.get(status) or 0) for counts in self.by_phase.values())
            if stated:
                found[status] = stated
        return found

    @cached_property
    def by_phase(self) -> dict[str, Mapping[str, int]]:
        """Counts per status of each phase, phases in execution order."""
        known = self.summary.get("by_phase") or self.counts.get("by_phase") or {}
        ordered = [phase for phase in PHASE_ORDER if phase in known]
        return {phase: _counts(known[phase]) for phase in dict.fromkeys([*ordered, *known])}

    @cached_property
    def unmatched(self) -> tuple[UnmatchedGroup, ...]:
        """Groups of records that only one run has (at most 200 are kept)."""
        groups = self.summary.get("unmatched", self.counts.get("unmatched"))
        return tuple(
            UnmatchedGroup(
                side=str(one["side"]),
                module=shown_name(str(one["module"] or "")),
                name=shown_name(str(one["name"] or "")),
                count=one["count"],
                reason=read_reason(one, "reason") or given(""),
            )
            for one in (groups if isinstance(groups, list) else [])
        )

    @property
    def num_unmatched_groups(self) -> int:
        """How many such groups there are, kept or not."""
        stated = self.summary.get("num_groups", self.counts.get("num_groups"))
        return stated if stated is not None else len(self.unmatched)

    @property
    def bracketed(self) -> bool:
        """Every record without a verdict lies between matched ones that agree."""
        return bool(self.summary.get("bracketed"))

    @property
    def layouts(self) -> tuple[Reason, ...]:
        """How the ranks of either side were merged."""
        return read_reasons(self.summary, "layouts")

    @property
    def notes(self) -> tuple[Reason, ...]:
        """What else to know; layouts are apart."""
        layouts = set(self.layouts)
        return tuple(note for note in read_reasons(self.summary, "notes") if note not in layouts)

    @property
    def tolerance_origin(self) -> Reason | None:
        """Where tolerances come from."""
        return read_reason(self.summary.get("tolerance") or {}, "origin")

    @property
    def tolerance_formula(self) -> str:
        """The bound, and the constants in it."""
        tolerance = self.summary.get("tolerance") or {}
        constants = ", ".join(
            f"{name} = {value}" for name, value in (tolerance.get("constants") or {}).items()
        )
        return "; ".join(part for part in (str(tolerance.get("formula") or ""), constants) if part)

    def scalars(self) -> dict[tuple[str, int], list[ScalarDocument]]:
        """Name and rank -> its value at every step; null where a run did not capture it."""
        named: dict[tuple[str, int], list[ScalarDocument]] = {}
        for row in self.summary.get("scalars") or []:
            named.setdefault((row["name"], row.get("rank", 0)), []).append(row)
        return named

    def part(self, name: str) -> Json:
        """A part of the document as the scripts of a page read it: ``modules depth local_norms``."""
        return cast(Json, self.summary.get(name))

    @property
    def depth(self) -> list[DepthDocument]:
        """Module outputs along execution, for plotting."""
        return list(self.summary.get("depth") or [])

    def module_types(self) -> dict[str, str]:
        """Class name of each module."""
        modules = self.summary.get("modules") or []
        return {str(module["fqn"]): str(module["type"]) for module in modules if module.get("type")}

    @cached_property
    def num_records(self) -> int:
        """Rows of the result table."""
        return int(self.records.select(pl.len()).collect().item())

    @cached_property
    def in_order(self) -> pl.LazyFrame:
        """The records by step, rank and order; a file in that order is read as it is, in bounded memory."""
        keys = self.records.select(pl.struct("step", "rank", "order").alias("key")).collect()["key"]
        return (
            self.records if keys.is_sorted() else self.records.sort("step", "rank", "order").collect().lazy()
        )

    def first(self) -> ResultRow | None:
        """The row that the verdict names, else the first that exceeds its tolerance, of its phase if it has
        one; None where that is of another step."""
        firsts = self.summary.get("firsts") or {}
        found = firsts.get(self.verdict.phase or "") or next((row for row in firsts.values() if row), None)
        if found is None or found.get("site") == self.verdict.where:
            return found
        of_site = pl.col("site").cast(pl.String) == (self.verdict.where or "")
        rows = self.of_verdict().filter(of_site).head(1).collect().to_dicts()
        if rows:
            return cast(ResultRow, rows[0])
        return found if self.verdict.step in (None, found.get("step")) else None

    def of_verdict(self) -> pl.LazyFrame:
        """Records of the verdict's step and rank."""
        step, rank = self.verdict.step, self.verdict.rank
        if step is None or rank is None:
            return self.records
        return self.records.filter((pl.col("step") == step) & (pl.col("rank") == rank))

    def exceeding(self, limit: int) -> pl.DataFrame:
        """The first rows that exceed their tolerance in execution order, of the verdict's step and rank."""
        rows = self.of_verdict().filter(pl.col("status").cast(pl.String).is_in(EXCEEDING))
        return rows.sort("step", "order").head(limit).collect(engine="streaming")

    def frames(self, row: ResultRow | None, side: str) -> list[str]:
        """The call stack of one row on one side, innermost first; empty where none was kept."""
        if row is None:
            return []
        return self.stack(side, row.get("target_stack") if side == "target" else row.get("reference_stack"))

    def stack(self, side: str, number: int | None) -> list[str]:
        """One call stack of one side by its number; empty where there is none."""
        stacks = self.stacks(side)
        return list(stacks[number]) if number is not None and 0 <= number < len(stacks) else []

    def stacks(self, side: str) -> Sequence[Sequence[str]]:
        """All call stacks of one side."""
        return (self.summary.get("stacks") or {}).get(side) or []

    def _side(self, side: str) -> SideDocument:
        known = self.summary.get("target") if side == "target" else self.summary.get("reference")
        return known or SideDocument()

    def path(self, side: str) -> str:
        """Where the trace of one side is."""
        return str(self._side(side).get("path") or side)

    def framework(self, side: str) -> str:
        """What one side ran with."""
        return str(self._manifest(side).get("framework") or "pytorch")

    def _manifest(self, side: str) -> Mapping[str, object]:
        return self._side(side).get("manifest") or {}

    def run_facts(self) -> list[RunFact]:
        """What is recorded of each run."""
        sides = [{"path": self.path(side), **dict(_flat(self._manifest(side)))} for side in SIDES]
        facts = []
        for name in dict.fromkeys([*sides[0], *sides[1]]):
            target, reference = (side.get(name, "–") for side in sides)
            if name not in ("schema_version", "run_id", "launch"):
                differs = target != reference and name not in ("path", "created", "options.output")
                facts.append(RunFact(name=name, target=target, reference=reference, differs=differs))
        return facts


def _flat(value: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{key}.")
        elif isinstance(item, (list, tuple)):
            yield f"{prefix}{key}", plain(" ".join(str(part) for part in item) or "–")
        else:
            yield f"{prefix}{key}", "–" if item is None else plain(item)


def read_result(source: ComparisonResult | ComparisonLike | Path) -> ComparisonResult:
    """The result of a comparison in memory, of a result folder, or the result itself.

    Raises:
        TraceError: a folder lacks one of the three files, or they are not what docs/result-format.md says.
    """
    if isinstance(source, ComparisonResult):
        return source
    if isinstance(source, Path):
        return _of_folder(source, _document(source))
    if source.output is not None:
        return _of_folder(source.output, source.summary)
    return ComparisonResult(summary=source.summary, records=source.frame().lazy(), precision=source.precision)


@contextmanager
def damage_named(source: object) -> Iterator[None]:
    """Where the tables of a result folder turn out to be damaged while they are read, the error names it.

    Raises:
        TraceError: one cannot be read.
    """
    if not isinstance(source, Path):
        yield
        return
    tables = " or ".join(name for name in _FILES if name.endswith(".parquet"))
    with parquet.damage_named(f"{source}: {tables}", remedy=AGAIN):
        yield


def _counts(plain: object) -> dict[str, int]:
    """Numbers by status, without what is none."""
    known = plain if isinstance(plain, Mapping) else {}
    return {str(status): count for status, count in known.items() if type(count) is int and count >= 0}


def _document(folder: Path) -> ResultDocument:
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise TraceError(
            f"{folder} is not a comparison result: {', '.join(missing)} missing. "
            f"Make one with: trueup compare TARGET REFERENCE -o {folder}"
        )
    return read_document(folder)


def _of_folder(folder: Path, summary: ResultDocument) -> ComparisonResult:
    return ComparisonResult(
        summary=cast(ResultDocument, _readable(summary)),
        folder=folder,
        records=parquet.lazy_from_parquet(folder / "result.parquet", remedy=AGAIN),
        precision=parquet.lazy_from_parquet(folder / "precision.parquet", remedy=AGAIN),
    )


def _readable(value: object) -> object:
    """The same, names that are not text (a path in another encoding) made text: no report fails on a name."""
    if value is None or type(value) in (int, float, bool):
        return value
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_readable(key): _readable(item) for key, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, (list, tuple)) else value


def to_json(summary: ResultDocument) -> str:
    """One JSON document, verdict first, in it outcome and site; NaN and infinities become null."""
    verdict = dict(summary.get("verdict") or {})
    ahead = (
        "outcome",
        "where",
        "owner",
        "step",
        "rank",
        "phase",
        "headline",
        "confidence",
        "confidence_word",
        "exit_code",
    )
    ordered = {key: verdict[key] for key in ahead if key in verdict}
    left_out = ("verdict", "stacks", "depth", "modules")
    rest = {key: value for key, value in summary.items() if key not in left_out}
    document = {"verdict": ordered | verdict, **rest}
    text_ = json.dumps(_finite(document), ensure_ascii=False, allow_nan=False, indent=2, default=str)
    return text_.encode("utf-8", "replace").decode("utf-8")


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
