"""One replayed step of one rank, laid beside the reference's: calls, records, bounds and source lines by
number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trueup.comparing.metrics import Metrics, measure
from trueup.comparing.pairing import StepPair
from trueup.comparing.rows import Rows, rows_from_match
from trueup.comparing.tolerance import ACROSS, rounding_bound
from trueup.diagnosing.replay.exact_loss import loss_bounds
from trueup.diagnosing.replay.pairs import replayed_step
from trueup.diagnosing.replay.plan import plan_rows
from trueup.diagnosing.replay.plan_step import StepPlan
from trueup.diagnosing.stepbook import StepBook
from trueup.matching import StepMatch
from trueup.matching.places import places
from trueup.numerics.dtypes import DTYPES, unit_roundoffs
from trueup.store import StepTables, Trace

OUTSIDE = "<outside the model>"
"""owner of what the program does outside its root module"""

_PLACE = re.compile(r"^(.*?:\d+) ")


@dataclass(frozen=True, slots=True)
class Call:
    """A row of the replay's ``calls``."""

    number: int
    parent: int | None
    kind: str
    name: str
    ordinal: int
    microbatch: int
    mode: str
    stack: int | None

    @property
    def shown(self) -> str:
        """Its name as a person reads it."""
        return (self.name or "(root)") + (f"[{self.ordinal}]" if self.ordinal else "")


class ReplayedStep:
    """What ``charge`` and ``absent`` ask of one step."""

    def __init__(self, replay: Trace, reference: Trace, plan: StepPlan, folder: Any) -> None:
        self.plan, self.step, self.rank = plan, plan.step, plan.rank
        self.mine: StepTables = replay.read(plan.step, plan.rank)
        self.theirs: StepTables = reference.read(plan.reference_step, plan.reference_rank)
        self.forced: pl.DataFrame = replay.forced(plan.step, plan.rank)
        self.facts = replay.rank_facts(plan.rank)
        pair = StepPair(
            step=plan.step,
            rank=plan.rank,
            reference_step=plan.reference_step,
            reference_rank=plan.reference_rank,
        )
        self.match: StepMatch = replayed_step(
            (replay, reference), (self.mine, self.theirs), pair, self.forced
        )
        self.calls = [
            Call(number, *row)
            for number, row in enumerate(
                self.mine.calls.select(
                    "parent", "kind", "name", "ordinal", "microbatch", "mode", "stack"
                ).iter_rows()
            )
        ]
        self._folder = folder
        self._reference = reference
        self._rows: Rows = rows_from_match(self.mine, self.theirs, self.match)
        self.metrics: Metrics = measure(self._rows)
        self._stacks = [
            dict(t.stacks.select("stack", "frames").iter_rows()) for t in (self.mine, self.theirs)
        ]

    # -- records ------------------------------------------

    @cached_property
    def records(self) -> list[tuple[int, str, str, int | None, bool | None]]:
        """(call, phase, slot, summary, requires_grad) of the replay's records."""
        wanted = ("call", "phase", "slot", "summary", "requires_grad")
        return list(self.mine.records.select(*wanted).iter_rows())

    @cached_property
    def row_of_record(self) -> dict[int, int]:
        """Replay's record -> row of the paired columns below."""
        return {int(r): row for row, r in enumerate(self._rows.target.record.tolist()) if r >= 0}

    @cached_property
    def bounds(self) -> NDArray[np.float64]:
        """For each paired row the largest ``||t - r||`` that rounding of one call explains: the bound of a
        comparison with nothing before it that differs."""
        alone = Metrics(
            known_bits=self.metrics.known_bits,
            bits_equal=np.ones(len(self._rows), bool),
            evidence=self.metrics.evidence,
            difference=self.metrics.difference,
            norm=self.metrics.norm,
            mismatched=self.metrics.mismatched,
            update_lengths=self.metrics.update_lengths,
            details=self.metrics.details,
        )
        factor = 1.0 if self.match.bridge is None else ACROSS
        return rounding_bound(self._rows, alone, factor).absolute

    @cached_property
    def _loss_bounds(self) -> dict[int, float]:
        """Summary of a loss in the reference -> relative difference that its own exactness allows."""
        wanted = self.forced.filter(pl.col("state").cast(pl.String) != "free")["reference_record"]
        book = StepBook(self._reference, self.plan.reference_step, self.plan.reference_rank)
        return loss_bounds(book, set(wanted.drop_nulls().to_list()))

    def loss_bound(self, reference_record: int) -> float | None:
        """The relative difference allowed where a record of the reference is its loss, and its exactness is
        known."""
        summary = self.theirs.records["summary"][reference_record]
        return None if summary is None else self._loss_bounds.get(summary)

    @cached_property
    def _roundoffs(self) -> NDArray[np.float64]:
        table = unit_roundoffs(self.match.words.dtype)
        return np.fmax(table[self._rows.target.dtype], table[self._rows.reference.dtype])

    def roundoff(self, record: int) -> float | None:
        """Unit roundoff of a record's coarser dtype, None where it is not floating."""
        row = self.row_of_record.get(record)
        found = float("nan") if row is None else float(self._roundoffs[row])
        return None if np.isnan(found) else found

    def dtypes(self, record: int) -> tuple[str, str]:
        """(target's, reference's) dtype of a record."""
        row, words = self.row_of_record.get(record), self.match.words.dtype
        if row is None:
            return "", ""
        codes = int(self._rows.target.dtype[row]), int(self._rows.reference.dtype[row])
        return words[codes[0]] if codes[0] >= 0 else "", words[codes[1]] if codes[1] >= 0 else ""

    def is_floating(self, record: int) -> bool:
        """Whether the reference holds a floating tensor there."""
        name = self.dtypes(record)[1]
        return name in DTYPES and DTYPES[name].kind in ("float", "complex")

    def estimate(self, record: int) -> tuple[float, float]:
        """(difference, norm) from the summaries alone; NaN where they do not tell."""
        row = self.row_of_record.get(record)
        if row is None:
            return float("nan"), float("nan")
        return float(self.metrics.difference[row]), float(self.metrics.norm[row])

    @cached_property
    def gradients_apart(self) -> float:
        """``||g - g'|| / ||g'||`` over all weights' own gradients: the most their norm can differ by."""
        own = (pl.col("phase") == "param_grad") & (pl.col("slot") == "local")
        rows = self.forced.filter(own & (pl.col("state") != "equal") & (pl.col("norm") > 0))
        summaries = self.theirs.summaries["l2_norm"]
        records = self.theirs.records
        mine = records.filter(
            (pl.col("phase").cast(pl.String) == "param_grad") & (pl.col("slot").cast(pl.String) == "local")
        )
        total = summaries.gather(mine["summary"].drop_nulls()).drop_nulls().to_numpy()
        apart = float(np.sqrt(np.square(rows["difference"].drop_nulls().to_numpy()).sum()))
        size = float(np.sqrt(np.square(total).sum()))
        return apart / size if size > 0 else 0.0

    def same_tensors(self, record: int) -> int | None:
        """A number that records of the same content have in common."""
        return self.records[record][3]

    # -- calls ------------------------------------------

    @cached_property
    def places(self) -> list[str]:
        """Places of the reference's calls, which all its replays have in common."""
        return places(self.theirs.calls)

    def around(self, call: int) -> list[int]:
        """Module calls around a call, innermost first."""
        found, parent = [], self.calls[call].parent
        while parent is not None:
            found.append(parent)
            parent = self.calls[parent].parent
        return found

    def module_around(self, call: int) -> str:
        """Name of the module whose own code makes a call; OUTSIDE at top level."""
        parent = self.calls[call].parent
        return OUTSIDE if parent is None else self.calls[parent].name

    @cached_property
    def last_inside(self) -> dict[int, int]:
        """The last call made by the own code of each module call."""
        return {c.parent: c.number for c in self.calls if c.parent is not None and c.stack is not None}

    @cached_property
    def planned_calls(self) -> set[int]:
        """Replay's calls that the plan spoke of."""
        rows = plan_rows(self._folder, self.step, self.rank)
        known = set(rows.filter(pl.col("use") == "force")["place"].cast(pl.String).to_list())
        return {number for number, place in enumerate(places(self.mine.calls)) if place in known}

    @cached_property
    def free_modules(self) -> set[str]:
        """Names of modules some training call of which the plan left out; none where it forces API calls
        alone."""
        planned = self.planned_calls
        modules = [c for c in self.calls if c.kind == "module" and c.mode == "train"]
        if not any(c.number in planned for c in modules):
            return set()
        return {c.name for c in modules if c.number not in planned}

    def modules_sharing(self, fqn: str) -> list[str]:
        """Modules that own a parameter under one name or another."""
        table = self.facts.get("parameters") or ()
        names = [fqn, *(p["fqn"] for p in table if p.get("tied_to") == fqn)]
        return [name.rpartition(".")[0] for name in names]

    def sources(self, call: int) -> tuple[str | None, str | None]:
        """``file:line`` where a call was made, in the target and in the reference."""
        partner = int(self.match.calls.reference_of[call])
        theirs = None if partner < 0 else self.theirs.calls["stack"][partner]
        return (
            _place(self._stacks[0].get(self.calls[call].stack)),
            None if theirs is None else _place(self._stacks[1].get(theirs)),
        )


def _place(frames: list[str] | None) -> str | None:
    found = _PLACE.match(frames[0]) if frames else None
    return None if found is None else found.group(1)
