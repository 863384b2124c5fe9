"""One replayed step of one rank, laid beside the reference's: calls, records, bounds and source lines by
number."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trueup.comparing.common_form import in_common_form
from trueup.comparing.device_products import device_products
from trueup.comparing.losses.exact import loss_bounds
from trueup.comparing.metrics import Metrics, measure
from trueup.comparing.pairing import StepPair
from trueup.comparing.row_order import Laid, of_shown, shown
from trueup.comparing.rows import StepRows, rows_from_match
from trueup.comparing.tolerance import factor_of, rounding_bound
from trueup.diagnosing.replay.pairs import replayed_step
from trueup.diagnosing.replay.plan import plan_rows
from trueup.diagnosing.replay.plan_step import StepPlan
from trueup.matching import StepMatch
from trueup.numerics.dtypes import DTYPES, unit_roundoffs
from trueup.store import StepView, Trace
from trueup.store.given import root_inputs
from trueup.store.view import LOCAL, UPDATED
from trueup.types.arrays import Array

OUTSIDE = "<outside the model>"
"""owner of what the program does outside its root module"""

_PLACE = re.compile(r"^(.*?:\d+) ")


class ReplayedStep:
    """What ``charge`` and ``absent`` ask of one step."""

    def __init__(self, replay: Trace, reference: Trace, plan: StepPlan, folder: Path) -> None:
        self.plan, self.step, self.rank = plan, plan.step, plan.rank
        self.target = StepView(replay, replay.read(plan.step, plan.rank))
        self.reference = StepView(reference, reference.read(plan.reference_step, plan.reference_rank))
        self.forced: pl.DataFrame = replay.forced(plan.step, plan.rank)
        pair = StepPair(
            step=plan.step,
            rank=plan.rank,
            reference_step=plan.reference_step,
            reference_rank=plan.reference_rank,
        )
        self.match: StepMatch = replayed_step(
            (replay, reference), (self.target.tables, self.reference.tables), pair, self.forced
        )
        self._folder = folder
        self._num_ranks = len(reference.steps().get(plan.reference_step, []))
        rows = rows_from_match(self.target.tables, self.reference.tables, self.match)
        self._rows: StepRows = in_common_form(rows)
        self.metrics: Metrics = measure(self._rows)

    @cached_property
    def is_without_loss(self) -> bool:
        """Whether neither run computes a loss in this process of several, as on a pipeline's first stages."""
        if self._num_ranks < 2:
            return False
        return not any("loss" in set(view.kind) for view in (self.target, self.reference))

    # -- records ------------------------------------------

    @cached_property
    def row_of_record(self) -> dict[int, int]:
        """Replay's record -> row of the paired columns below."""
        return {int(r): row for row, r in enumerate(self._rows.target.record.tolist()) if r >= 0}

    @cached_property
    def bounds(self) -> NDArray[np.float64]:
        """For each paired row the largest ``||t - r||`` that rounding of one call explains: the bound of a
        comparison with nothing before it that differs."""
        single = Metrics(
            known_bits=self.metrics.known_bits,
            bits_equal=np.ones(len(self._rows), bool),
            evidence=self.metrics.evidence,
            difference=self.metrics.difference,
            norm=self.metrics.norm,
            mismatched=self.metrics.mismatched,
            update_lengths=self.metrics.update_lengths,
            details=self.metrics.details,
        )
        sides = (self.target.source.manifest, self.reference.source.manifest)
        products = device_products(self._rows, *sides)
        factor = factor_of(self._rows, 1.0, *sides)
        return rounding_bound(self._rows, single, factor, products=products, single_calls=True).absolute

    @cached_property
    def _loss_bounds(self) -> dict[int, float]:
        """Summary of a loss in the reference -> relative difference that its own exactness allows."""
        wanted = self.forced.filter(pl.col("state").cast(pl.String) != "free")["reference_record"]
        return loss_bounds(self.reference, set(wanted.drop_nulls().to_list()))

    def loss_bound(self, reference_record: int) -> float | None:
        """The relative difference allowed where a record of the reference is its loss, and its exactness is
        known."""
        content = self.reference.content[reference_record]
        return None if content is None else self._loss_bounds.get(content)

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

    def shown(self, record: int, reference_record: int) -> tuple[float, float] | None:
        """(difference, norm) at the tokens that the model's mask shows; None where it hides none, or values
        were not kept."""
        values = self.target.value(record), self.reference.value(reference_record)
        laid = self._shown_rows.get(self.target.record_microbatch[record])
        if laid is None or values[0] is None or values[1] is None or values[0].shape != values[1].shape:
            return None
        layout = of_shown(values[0].shape, laid)
        if layout is None:
            return None
        actual, expected = layout.of_target(values[0]), layout.of_reference(values[1])
        return float(np.linalg.norm((actual - expected).ravel())), float(np.linalg.norm(expected.ravel()))

    def hides_all_by_infinity(self, record: int, reference_record: int) -> bool:
        """Whether the two are masks of which one hides all of a row by minus infinity and the other by a finite
        number: softmax makes NaN of the one, and equal weights of the other."""
        own, other = self.target.value(record), self.reference.value(reference_record)
        if own is None or other is None or own.shape != other.shape or own.ndim < 2:
            return False
        return bool((np.isneginf(own).all(axis=-1) != np.isneginf(other).all(axis=-1)).any())

    @cached_property
    def _shown_rows(self) -> dict[int, Laid]:
        """Microbatch -> the tokens that the reference's mask shows, where it hides some."""
        given: dict[int, dict[str, Array]] = {}
        for microbatch, slot, record in root_inputs(self.reference):
            held = self.reference.raw(record)
            if held is not None and held[1].shape:
                given.setdefault(microbatch, {})[slot] = held[1]
        found = {microbatch: shown(slots) for microbatch, slots in given.items()}
        return {microbatch: laid for microbatch, laid in found.items() if laid is not None}

    @cached_property
    def gradients_apart(self) -> float:
        """``||g - g'|| / ||g'||`` over all weights' own gradients: the most their norm can differ by."""
        own = (pl.col("phase") == "param_grad") & (pl.col("slot") == "local")
        rows = self.forced.filter(own & (pl.col("state") != "equal") & (pl.col("norm") > 0))
        total = self.reference.frame_of(*LOCAL)["l2_norm"].drop_nulls().to_numpy()
        apart = float(np.sqrt(np.square(rows["difference"].drop_nulls().to_numpy()).sum()))
        size = float(np.sqrt(np.square(total).sum()))
        return apart / size if size > 0 else 0.0

    @cached_property
    def first_other_update(self) -> int | None:
        """The first record of a weight after an update that differs from the reference's by more than
        rounding; None where all agree, or none was recorded."""
        phase, slot = self.target.phase, self.target.slot
        updated = (record for record in self.row_of_record if (phase[record], slot[record]) == UPDATED)
        apart = self.metrics.difference > self.bounds
        return min((record for record in updated if apart[self.row_of_record[record]]), default=None)

    # -- calls ------------------------------------------

    def module_around(self, call: int) -> str:
        """Name of the module whose own code makes a call; OUTSIDE at top level."""
        caller = self.target.caller(call)
        return OUTSIDE if caller is None else caller

    @cached_property
    def last_inside(self) -> dict[int, int]:
        """The last call made by the own code of each module call."""
        parents, stacks = self.target.parent, self.target.stack
        return {
            parent: call for call, parent in enumerate(parents) if parent >= 0 and stacks[call] is not None
        }

    @cached_property
    def planned_calls(self) -> set[int]:
        """Replay's calls that the plan spoke of."""
        rows = plan_rows(self._folder, self.step, self.rank)
        known = set(rows.filter(pl.col("use") == "force")["place"].cast(pl.String).to_list())
        return {call for call, place in enumerate(self.target.places) if place in known}

    @cached_property
    def free_modules(self) -> set[str]:
        """Names of modules with a training call that the plan left out; none where it forces API calls
        alone."""
        planned, view = self.planned_calls, self.target
        modules = {call for call in view.calls_of_kind("module") if view.mode[call] == "train"}
        if not modules & planned:
            return set()
        return {view.name[call] for call in modules - planned}

    def called_around(self, name: str) -> str | None:
        """The nearest module around one that is never called in the step; None where it is called itself, or
        none around it is."""
        called = self._called
        while name and name not in called:
            name = name.rpartition(".")[0]
            if name in called:
                return name
        return None

    @cached_property
    def _called(self) -> set[str]:
        view = self.target
        return {view.name[call] for call in view.calls_of_kind("module")}

    def modules_sharing(self, fqn: str) -> list[str]:
        """Modules that own a parameter under one name or another."""
        table = self.target.facts.get("parameters") or ()
        names = [fqn, *(p["fqn"] for p in table if p.get("tied_to") == fqn)]
        return [name.rpartition(".")[0] for name in names]

    def sources(self, call: int) -> tuple[str | None, str | None]:
        """``file:line`` where a call was made, in the target and in the reference."""
        partner = int(self.match.calls.reference_of[call])
        other = None if partner < 0 else self.reference.stack[partner]
        return (
            _place(self.target.frames.get(self.target.stack[call])),
            _place(self.reference.frames.get(other)),
        )


def _place(frames: list[str] | None) -> str | None:
    found = _PLACE.match(frames[0]) if frames else None
    return None if found is None else found.group(1)
