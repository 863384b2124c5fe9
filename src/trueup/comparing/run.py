"""Compares two traces step by step, in bounded memory, and writes the result."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from trueup.comparing import arbiter as arbiters
from trueup.comparing.attributes import Attributes, attributes_of, module_of_other_constant
from trueup.comparing.averages import average_gaps
from trueup.comparing.before_update import hold_no_update
from trueup.comparing.buffers import buffer_gaps
from trueup.comparing.captured import captured_alike, captures_apart
from trueup.comparing.coarse_activations import gap_of_activations
from trueup.comparing.coarse_choices import gap_of_choices
from trueup.comparing.coarse_grids import gap_of_grids
from trueup.comparing.coarse_norms import gap_of_norms
from trueup.comparing.coarse_results import gap_of_results, gap_of_whole_numbers
from trueup.comparing.coarse_sums import gap_of_sums
from trueup.comparing.coefficients import with_rounded_coefficients
from trueup.comparing.common_form import in_common_form
from trueup.comparing.comparable import refuse_different_models, traces_noted
from trueup.comparing.content import Content, ContentSide, Tolerance
from trueup.comparing.counted_rows import rows_that_count
from trueup.comparing.device_products import device_products
from trueup.comparing.first import First, JudgedStep, first_of_rows
from trueup.comparing.graded_calls import GradedCalls
from trueup.comparing.history import History, observe, remember
from trueup.comparing.inflow import Inflow
from trueup.comparing.judgement import DIFFERENT, EQUAL, Judgement
from trueup.comparing.label_parts import with_joined_parts
from trueup.comparing.ledger import Ledger
from trueup.comparing.longer_rows import longer_rows
from trueup.comparing.loss_scale import (
    in_one_scale,
    loss_scales,
    made_of_scale,
    undone_scale,
    with_factor_of,
)
from trueup.comparing.losses.calls import around_loss
from trueup.comparing.losses.divergence import with_divergences
from trueup.comparing.losses.exact import is_beyond_float32, with_exact_losses
from trueup.comparing.made_before import made_by_no_call_of_its_step, made_in_step_before
from trueup.comparing.masters import master_gap
from trueup.comparing.metrics import Metrics, measure
from trueup.comparing.noise import FACTS, FOLDER, NoiseProfile, StepNoise
from trueup.comparing.optimizer_settings import Setting, added_to_sizes, declared, update_rule_gaps
from trueup.comparing.options import CompareOptions
from trueup.comparing.other_arguments import ROW_COLUMNS, other_arguments
from trueup.comparing.pairing import StepPair, step_pairs
from trueup.comparing.positions import same_distances
from trueup.comparing.precision import precision_noted, precision_rows
from trueup.comparing.precision_gap import PrecisionGap, gap_of_reductions, gap_of_step, tf32_side
from trueup.comparing.program_code import CodeBook, code_book
from trueup.comparing.result import Comparison, comparison_of, write_document
from trueup.comparing.row_order import in_row_order, measure_rows, without_chosen_rows, without_hidden
from trueup.comparing.rows import StepRows, rows_from_match, without_sketches
from trueup.comparing.rules import StepContext, judge_step
from trueup.comparing.scalars import ScalarPair, compare_scalars, other_loss
from trueup.comparing.stacks import StackBook
from trueup.comparing.steps_without_gradients import stepped_without
from trueup.comparing.summed_steps import SummedSteps
from trueup.comparing.table import ResultWriter, table_from_rows
from trueup.comparing.thresholds import ACROSS, FACTORS, NOISE_TIMES
from trueup.comparing.ties import TieApart, ties_apart
from trueup.comparing.tolerance import Bound, are_of_two_frameworks, factor_of, rounding_bound
from trueup.comparing.updated_copies import updated_copies
from trueup.comparing.values import read_values
from trueup.comparing.verdict import (
    RunPair,
    of_arguments,
    of_casts,
    of_later_update,
    of_lone_reduction,
    of_loss_code,
    of_no_update,
    of_update_code,
    verdict_from,
)
from trueup.comparing.whole import with_whole_statistics
from trueup.errors import ConfigError, NothingCompared
from trueup.matching import StepMatch, match_step
from trueup.matching.regrouped import are_regrouped
from trueup.merging.sides import as_wholes, notes_of, of_side
from trueup.merging.trace import MergedTrace
from trueup.store import StepTables, TraceSource, step_view
from trueup.store.view import forget_large, view_if_there
from trueup.types.arrays import Bools
from trueup.types.codes import EvidenceCode, NoteCode, ToleranceCode, VerdictCode
from trueup.types.reason import Reason, reason
from trueup.types.status import Outcome
from trueup.types.trace import ScalarLine
from trueup.types.verdict import Verdict

if TYPE_CHECKING:
    from trueup.comparing.implementations import Implementations
    from trueup.comparing.layouts import LayoutBook


def compare(
    target: Path, reference: Path, *, output: Path | None = None, options: CompareOptions | None = None
) -> Comparison:
    """Compare two traces of whichever kind, and write the three files of docs/result-format.md below
    ``output``.

    Example:
        >>> compare(Path("runs/target"), Path("runs/reference")).exit_code      # doctest: +SKIP
        0

    Raises:
        TraceError: a trace cannot be read.
        NothingCompared: they have no step, or no record, in common, or are of different models.
    """
    from trueup.importers import open_trace

    return compare_sources(open_trace(target), open_trace(reference), output=output, options=options)


def compare_sources(
    target: TraceSource,
    reference: TraceSource,
    *,
    output: Path | None = None,
    options: CompareOptions | None = None,
) -> Comparison:
    """The same of traces that are open already.

    Raises:
        NothingCompared: as ``compare``.
    """
    options = options or CompareOptions()
    sides = as_wholes(target, reference, merge=options.merging, layouts=options.layouts())
    target, reference = sides.target, sides.reference
    pairs, notes = step_pairs(target, reference, options)
    if output is not None:
        _refuse_unspellable(output)
        output.mkdir(parents=True, exist_ok=True)
    work = _Work(
        target=target,
        reference=reference,
        options=options,
        profile=_profile(reference, options.noise),
        arbiter=_arbiter(options.arbiter),
    )
    work.layouts += sides.notes
    work.ledger.notes += [*sides.notes, *notes, *traces_noted(target, reference)]
    writer = ResultWriter(None if output is None else output / "result.parquet")
    try:
        for pair in pairs:
            writer.append(work.step(pair, first=pair.step == pairs[0].step))
    finally:
        writer.close()
    if work.ledger.compared == 0:
        raise NothingCompared(
            f"not one record of target {target.path} could be compared with reference {reference.path}: "
            + "; ".join(work.seen[:4])
        )
    content, precision = work.content(pairs), work.precision_table()
    tables = tuple(writer.tables)
    comparison = comparison_of(content, output=output, tables=tables, precision_table=precision)
    if output is not None:
        pq.write_table(precision, output / "precision.parquet", compression="zstd")
        write_document(comparison.summary, output)
    return comparison


_PLACES = (
    VerdictCode.FIRST_DIVERGENCE,
    VerdictCode.MADE_BY_ONE,
    VerdictCode.FUNCTION_IN_PLACE,
    VerdictCode.GIVEN_ANOTHER,
    VerdictCode.GIVEN_OUTSIDE,
)
"""headlines that other code at their place says more than"""


@dataclass(slots=True)
class _Work:
    target: TraceSource
    reference: TraceSource
    options: CompareOptions
    profile: NoiseProfile | None = None
    arbiter: TraceSource | None = None
    across: Implementations | None = None
    """where the two are of two implementations"""
    book: LayoutBook | None = None
    """dims in another order, of runs put together from ranks"""
    tied: dict[str, str] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    graded: GradedCalls = field(default_factory=GradedCalls)
    histories: dict[int, History] = field(default_factory=dict)
    sent: dict[int, SummedSteps] = field(default_factory=dict)
    equal: dict[int, bool] = field(default_factory=dict)
    """rank -> whether all records of the steps so far are bit-identical"""
    stacks: tuple[StackBook, StackBook] = field(default_factory=lambda: (StackBook(), StackBook()))
    precision: list[pl.DataFrame] = field(default_factory=list)
    first_rows: pl.DataFrame = field(default_factory=pl.DataFrame)
    """of the first step of the first rank, as they are written"""
    seen: list[str] = field(default_factory=list)
    layouts: list[Reason] = field(default_factory=list)
    """how ranks were put together"""

    # In one piece: the parts of a step in their order, each made of those before it.
    def step(self, pair: StepPair, *, first: bool) -> pa.Table:
        """Compare one step of one rank."""
        rows = self._rows(pair)
        refuse_different_models(rows, self.target.path, self.reference.path)
        rows, metrics = self._measured(rows, pair)
        history = observe(rows, self.histories.get(pair.rank) or History(eps=self._eps()))
        sent = self.sent.setdefault(pair.rank, SummedSteps())
        apart = sent.rest(rows)
        rows = without_sketches(rows)
        if not self.seen:
            self.tied = _tied(self.target, pair.rank)
        rounding = self._rounding(rows, metrics, pair)
        scales = loss_scales(rows, self.target, self.reference, pair)
        if scales[0] != scales[1]:
            ratio = scales[0] / scales[1]
            metrics = in_one_scale(rows, metrics, ratio)
            for factor in (ratio, 1 / ratio):  # the second of what takes the scale out again
                metrics = in_one_scale(rows, metrics, factor, made_of_scale(rows, factor))
            self.ledger.notes.append(
                reason(NoteCode.LOSS_SCALES_DIFFER, target=scales[0], reference=scales[1])
            )
        undone = undone_scale(rows, metrics, rounding.relative, self.target, self.reference, pair)
        if undone != 1.0:
            metrics = in_one_scale(rows, metrics, undone, with_factor_of(rows, undone))
            self.ledger.notes.append(reason(NoteCode.LOSS_SCALE_UNDONE, factor=undone))
        context = replace(self._context(rows, rounding, history, pair), summed_apart=apart)
        judgement = judge_step(context, metrics)
        sent.take(rows, set(np.flatnonzero(judgement.status == DIFFERENT).tolist()))
        metrics = replace(metrics, difference=judgement.difference)
        is_equal = bool((judgement.status == EQUAL).all())
        self.equal[pair.rank] = is_equal and self.equal.get(pair.rank, first)
        self.histories[pair.rank] = remember(rows, metrics, judgement, history, pair.step)
        arbitration = self._arbitration(rows, judgement, pair)
        forget_large(self.target, self.reference)
        table = table_from_rows(pair, rows, metrics, judgement, arbitration, self.stacks)
        judged = JudgedStep(pair=pair, rows=rows, metrics=metrics, judgement=judgement, table=table)
        self.ledger.add(judged)
        self.graded.add(rows, pair.step)
        if arbitration is not None:
            self.ledger.add_arbitration(arbitration, table)
        if first:
            if self.first_rows.is_empty():
                self.first_rows = cast(pl.DataFrame, pl.from_arrow(table.select(ROW_COLUMNS)))
            self.precision.append(precision_rows(rows, pair.rank))
            gap = self.ledger.precision
            tf32 = tf32_side(self.target.manifest, self.reference.manifest)
            self.ledger.precision = gap or gap_of_step(judged, context, tf32)
            self.ledger.copies = self.ledger.copies or updated_copies(rows)
            attributes = attributes_of(self.target), attributes_of(self.reference)
            if self.ledger.precision is None:
                self.ledger.precision = self._coarse_gap(judged, attributes)
            if self.options.read_values and self.ledger.activation is None:
                sides = self.target, self.reference
                self.ledger.activation = gap_of_activations(judged, sides)
                if scales[0] == scales[1] and self.ledger.counted is None:
                    self.ledger.counted = rows_that_count(judged, sides)
            row = module_of_other_constant(rows, metrics, *attributes)
            if row is not None and self.ledger.other_constant is None:
                self.ledger.other_constant = first_of_rows(judged, row)
        self.seen.append(_described(rows, pair))
        return table

    def _eps(self) -> dict[str, float]:
        """What the optimizers add to the size of gradients: the smaller of the two runs', for each weight."""
        target, reference = (added_to_sizes(_declared(one)) for one in (self.target, self.reference))
        return {name: min(eps, reference.get(name, eps)) for name, eps in target.items()}

    def _context(self, rows: StepRows, rounding: Bound, history: History, pair: StepPair) -> StepContext:
        """Everything the rules look at."""
        return StepContext(
            rows=rows,
            rounding=rounding,
            noise=self._noise(rows, pair),
            inflow=Inflow(rows, tied=self.tied),
            history=history,
            step=pair.step,
            factor=self._factor(rows),
            same_distances=self._of_values(rows, pair, same_distances),
            longer_rows=self._of_values(rows, pair, longer_rows),
            is_merged=any(isinstance(side, MergedTrace) for side in (self.target, self.reference)),
            repeats=self.equal.get(pair.rank, False) and self._kernels_repeat(),
            num_ranks=int(self.target.manifest.get("world_size") or 1),
            is_single_process=all(
                side.manifest.get("world_size") == 1 for side in (self.target, self.reference)
            ),
        )

    def _coarser_than_loss(self, first: First) -> str | None:
        """The dtype of the model's results, where a loss in float32 differs by far more than float32 rounds
        and is the first record that does."""
        row, before = first.row, first.before
        is_loss = (row.phase, row.slot) == ("loss", "value") and before.equal > before.within == 0
        dtypes = {str(row.columns[name]) for name in ("target_dtype", "reference_dtype")}
        if not is_loss or dtypes != {"float32"} or not is_beyond_float32(row.rel_l2):
            return None
        view = step_view(self.reference, first.step, first.rank)
        around = around_loss(view, row.microbatch or 0)
        made = {str(view.dtype(record)) for _, slot, record in around if slot.startswith("output")}
        return next((name for name in ("bfloat16", "float16") if name in made), None)

    def _coarser_than_sent(self, first: First) -> str | None:
        """The dtype of the model's results, where what a program sends after backward, in float32, differs by
        far more than float32 rounds."""
        row = first.row
        dtypes = {str(row.columns[name]) for name in ("target_dtype", "reference_dtype")}
        if row.phase != "collective" or dtypes != {"float32"} or not is_beyond_float32(row.rel_l2):
            return None
        view = step_view(self.reference, first.step, first.rank)
        gradients = [record for record, phase in enumerate(view.phase) if phase == "param_grad"]
        made = {str(view.dtype(record)) for record in gradients}
        return next((name for name in ("bfloat16", "float16") if name in made), None)

    def _kernels_repeat(self) -> bool:
        """Whether one program makes the same bits of the same bits: on a host, by as many threads."""
        sides = self.target.manifest, self.reference.manifest
        known = [(one.get("devices"), one.get("num_threads"), one.get("framework_version")) for one in sides]
        return known[0] == known[1] and known[0][0] in ([], ["CPU"])

    def _of_values(
        self,
        rows: StepRows,
        pair: StepPair,
        holds: Callable[[StepRows, TraceSource, TraceSource, StepPair], Bools],
    ) -> Bools | None:
        """What stored values tell of inputs; None where they are not read, or several ranks' were joined."""
        sides = self.target, self.reference
        is_merged = any(isinstance(side, MergedTrace) for side in sides)
        return None if is_merged or not self.options.read_values else holds(rows, *sides, pair)

    def _coarse_gap(
        self, judged: JudgedStep, attributes: tuple[Attributes, Attributes]
    ) -> PrecisionGap | None:
        """The first thing in the step that one run alone makes in a coarse dtype, below every tolerance."""
        sides = self.target, self.reference
        manifests = self.target.manifest, self.reference.manifest
        read = None if any(isinstance(side, MergedTrace) for side in sides) else sides
        found = [gap_of_reductions(judged), gap_of_grids(judged, read if self.options.read_values else None)]
        if self.options.read_values:
            found.append(gap_of_choices(judged, sides))
            found.append(gap_of_norms(judged, sides, attributes))
            found.append(gap_of_sums(judged, sides))
            found.append(gap_of_whole_numbers(judged, sides))
        found.append(gap_of_results(judged, manifests))  # last: the others know of the same row what it does
        return min((gap for gap in found if gap is not None), key=lambda gap: gap.scored, default=None)

    def _rows(self, pair: StepPair) -> StepRows:
        target = step_view(self.target, pair.step, pair.rank).tables
        reference = step_view(self.reference, pair.reference_step, pair.reference_rank).tables
        rows = rows_from_match(target, reference, self._match(target, reference, pair))
        rows = in_common_form(with_whole_statistics(rows))
        return with_joined_parts(rows, self.target, self.reference, pair)

    def _measured(self, rows: StepRows, pair: StepPair) -> tuple[StepRows, Metrics]:
        """Rows laid the same way on both sides, as far as stored values tell how they lie."""
        metrics = measure(rows)
        ordered = in_row_order(rows, metrics, self.target, self.reference, pair)
        if ordered is not rows:
            self.ledger.notes.append(Reason(NoteCode.ROWS_LAID_OTHERWISE))
            return measure_rows(ordered)
        dealt = without_chosen_rows(rows, metrics)
        left = without_hidden(dealt, metrics, self.target, self.reference, pair)
        if left is not dealt:
            self.ledger.notes.append(Reason(NoteCode.HIDDEN_TOKENS_LEFT_OUT))
        return (rows, metrics) if left is rows else measure_rows(left)

    def _factor(self, rows: StepRows) -> float:
        """Of all tolerances of a step."""
        sides = self.target.manifest, self.reference.manifest
        return factor_of(rows, self.options.tolerance_factor, *sides)

    def _rounding(self, rows: StepRows, metrics: Metrics, pair: StepPair) -> Bound:
        """What rounding explains; ``metrics`` then holds what stored values tell."""
        factor, sides = self._factor(rows), (self.target, self.reference)
        products = device_products(rows, self.target.manifest, self.reference.manifest)
        bound = rounding_bound(rows, metrics, factor, products=products)
        if read_values(rows, metrics, bound.relative, *sides, pair, self.options):
            bound = rounding_bound(rows, metrics, factor, products=products)
        bound = with_divergences(bound, rows, *sides, pair)
        bound = with_exact_losses(bound, rows, metrics, self.reference, pair)
        return with_rounded_coefficients(bound, rows, metrics, sides, pair.rank)

    def _transposed(
        self, match: StepMatch, target: StepTables, reference: StepTables, pair: StepPair
    ) -> StepMatch:
        """Of what ranks make together, dims may lie in another order: a scatter that transposes."""
        if not isinstance(self.target, MergedTrace):
            return match
        from trueup.comparing.layouts import LayoutBook  # two runs of one layout do without

        if self.book is None:
            self.book = LayoutBook()
        return self.book.transposed(match, (target, reference), (self.target, self.reference), pair)

    def _match(self, target: StepTables, reference: StepTables, pair: StepPair) -> StepMatch:
        """The pairs of a step; of two implementations through what is known of their weights."""
        if self.across is None and self.options.mapping is None:
            match = match_step(target, reference)
            if match.bridge is None and not self._regrouped(match, target, reference, pair):
                return self._transposed(match, target, reference, pair)
        if self.across is None:
            from trueup.comparing.implementations import Implementations  # two runs of one program do without

            self.across = Implementations(self.target, self.reference, self.options.mapping)
            self.ledger.notes.append(reason(NoteCode.ACROSS_IMPLEMENTATIONS, factor=ACROSS))
        return self.across.match(target, reference, pair)

    def _regrouped(self, match: StepMatch, target: StepTables, reference: StepTables, pair: StepPair) -> bool:
        ranks = pair.rank, pair.reference_rank
        return are_regrouped(match, (self.target, self.reference), (target, reference), ranks)

    def _noise(self, rows: StepRows, pair: StepPair) -> StepNoise | None:
        """The profile's columns for this step; a note where it has none."""
        if self.profile is None:
            return None
        noise = self.profile.of_rows(rows, pair.reference_step, pair.reference_rank)
        if noise is None:
            place = {"step": pair.reference_step, "rank": pair.reference_rank}
            self.ledger.notes.append(reason(NoteCode.NOT_IN_NOISE_PROFILE, **place))
        return noise

    def _arbitration(
        self, rows: StepRows, judgement: Judgement, pair: StepPair
    ) -> arbiters.Arbitration | None:
        if self.arbiter is None:
            return None
        sides = self.target, self.reference
        return arbiters.arbitrate(rows, judgement.tolerance, sides, self.arbiter, pair, self.options)

    def content(self, pairs: list[StepPair]) -> Content:
        """What result.json holds."""
        ledger, scalars, runs = self.ledger, self._scalars(pairs), self._runs(pairs)
        ledger.finish()
        if (origin := ledger.origin) is not None and made_by_no_call_of_its_step(origin):
            before = made_in_step_before(self.target, self.reference, pairs, origin)
            origin.made = before or origin.made
        ledger.notes += runs.averages.notes
        for history in self.histories.values():
            ledger.notes += history.notes
        for name, side in (("target", self.target), ("reference", self.reference)):
            self.layouts += [of_side(name, note) for note in notes_of(side)]
        ledger.notes += self.layouts
        dtypes = precision_noted(pl.concat(self.precision))
        ledger.notes[:0] = dtypes
        arbitrated = None if self.arbiter is None else ledger.arbitrated(str(self.arbiter.path))
        if arbitrated is not None:
            ledger.notes.append(arbitrated.sentence)
        manifests = self.target.manifest, self.reference.manifest
        if self.across is None and are_of_two_frameworks(*manifests):
            ledger.notes.append(reason(NoteCode.ACROSS_FRAMEWORKS, factor=ACROSS))
        return Content(
            target=ContentSide(path=str(self.target.path), manifest=manifests[0]),
            reference=ContentSide(path=str(self.reference.path), manifest=manifests[1]),
            options=self.options.to_json(),
            verdict=self._with_code(
                self.graded.led(verdict_from(ledger, scalars, runs), scalars, ledger.counts),
                dtypes,
                runs,
                pairs,
            ),
            firsts={name: first.row for name, first in ledger.firsts.items()},
            counts=ledger.totals(),
            bracketed=ledger.not_bracketed == 0,
            tolerance=self._tolerance(),
            arbiter=arbitrated,
            scalars=scalars,
            modules=ledger.tree.scores(),
            depth=ledger.depth,
            local_norms=ledger.local_norms,
            stacks={"target": self.stacks[0].frames, "reference": self.stacks[1].frames},
            layouts=list(dict.fromkeys(self.layouts)),
            notes=list(dict.fromkeys(ledger.notes)),
        )

    def _with_code(
        self, verdict: Verdict, dtypes: Sequence[Reason], runs: RunPair, pairs: list[StepPair]
    ) -> Verdict:
        """The verdict with what differs in the programs' code at its place; where the runs agree, a note, but
        for casts that made other bits.

        Where it is open, what computes in other dtypes is said first.
        """
        if verdict.headline.code is VerdictCode.NOT_BRACKETED:
            self.ledger.notes[:] = [note for note in self.ledger.notes if note not in dtypes]
            return replace(verdict, evidence=(*dtypes, *verdict.evidence))
        rank = verdict.rank or 0
        paired = {} if self.across is None else self.across.counterparts(rank)
        book = code_book(self.target, self.reference, rank, counterparts=paired)
        if book is None:
            return verdict
        if verdict.outcome is Outcome.DIFFER:
            near = book.near(verdict.owner, verdict.phase)
            known = verdict.headline.code not in _PLACES
            headline = verdict.headline if known else near.headline(verdict.headline)
            return replace(verdict, headline=headline, evidence=near.beside(verdict.evidence, known=known))
        made = self._of_bits(verdict, book, runs) if verdict.outcome is Outcome.AGREE else None
        if made is not None:
            return made
        arguments = self._other_arguments(book, pairs[0])
        if verdict.outcome is Outcome.AGREE and arguments:
            verdict = of_arguments(verdict, arguments, runs)
        return self._noted(verdict, book, runs, pairs)

    def _of_bits(self, verdict: Verdict, book: CodeBook, runs: RunPair) -> Verdict | None:
        """Of runs that agree, the verdict where code made the first other bits; None where none did."""
        if not self._kernels_repeat():
            return None
        first, lone = self.ledger.other_bits, self.ledger.lone
        if first is not None:
            near = book.near(first.owner, first.row.phase)
            if near.only_casts:
                return of_casts(verdict, first, near.reasons, near.dtypes, runs)
            coarse = self._coarser_than_loss(first)
            if coarse is not None and near.own:
                return of_loss_code(verdict, first, coarse, near.own, runs)
            coarse, writing = self._coarser_than_sent(first), book.of_updates()
            if coarse is not None and writing:
                return of_update_code(verdict, first, coarse, writing, runs)
        if lone is None or not lone.is_all_of(anywhere := book.anywhere()):
            return None
        notes = self.ledger.notes  # weights that differ by it differ by no rounding
        notes[:] = [note for note in notes if note.code is not NoteCode.WEIGHTS_DIFFER]
        return of_lone_reduction(lone, anywhere, runs)

    def _other_arguments(self, book: CodeBook, pair: StepPair) -> tuple[Reason, ...]:
        """Plain arguments that may have made other bits in the first step; none of ranks put together."""
        at = (self.target, pair.step, pair.rank), (self.reference, pair.reference_step, pair.reference_rank)
        if any(isinstance(source, MergedTrace) for source, _, _ in at):
            return ()
        return other_arguments(book, (step_view(*at[0]), step_view(*at[1])), self.first_rows)

    def _noted(self, verdict: Verdict, book: CodeBook, runs: RunPair, pairs: list[StepPair]) -> Verdict:
        """The verdict, and a note of what differs anywhere in the code: open where that may act at an update
        and none was captured."""
        found = book.anywhere()
        if not found:
            return verdict
        steps, rank = [pair.step for pair in pairs], pairs[0].rank
        agrees = verdict.outcome is Outcome.AGREE
        writing = book.of_updates() if agrees and hold_no_update(self.target, steps, rank) else ()
        is_equal = verdict.headline.code is VerdictCode.BIT_IDENTICAL
        updating = book.of_updates() if is_equal else ()
        later = other_loss(self._scalars(pairs), self.ledger.limits) if updating else None
        unknown = writing or later is not None
        code = NoteCode.CODE_DIFFERS if agrees and not unknown else NoteCode.PROGRAMS_DIFFER
        self.ledger.notes.append(reason(code, *found))
        if writing:
            return of_no_update(verdict, _function_of(writing), len(set(steps)), runs)
        if later is not None:
            return of_later_update(verdict, _function_of(updating), later, updating, runs)
        if is_equal:
            values = all(one.code is EvidenceCode.CODE_VALUE_DIFFERS for one in found)
            name = found[0].place("name") if values else ""
            equal = reason(VerdictCode.CAPTURED_IS_EQUAL, function=_function_of(found), name=name)
            return replace(verdict, headline=equal)
        return verdict

    def _scalars(self, pairs: list[StepPair]) -> list[ScalarPair]:
        """Of the first rank all, of the others what differs."""
        ranks = sorted({p.rank: p.reference_rank for p in pairs}.items())
        steps = {p.step: p.reference_step for p in pairs}
        scalars: list[ScalarPair] = []
        for rank, reference_rank in ranks:
            lines = self.target.scalars(rank), self.reference.scalars(reference_rank)
            found = compare_scalars(*lines, self.ledger.limits, steps, rank=rank)
            if any(pair.name == "microbatches" and pair.beyond for pair in found):
                lines = (
                    _with_passes(self.target, rank, lines[0]),
                    _with_passes(self.reference, reference_rank, lines[1]),
                )
                found = compare_scalars(*lines, self.ledger.limits, steps, rank=rank)
            scalars += [pair for pair in found if pair.beyond or rank == ranks[0][0]]
        return scalars

    def _runs(self, pairs: list[StepPair]) -> RunPair:
        manifests = self.target.manifest, self.reference.manifest
        settings = _declared(self.target), _declared(self.reference)
        return RunPair(
            target=str(self.target.path),
            reference=str(self.reference.path),
            level=manifests[0].get("level"),
            command=_typed(manifests[0].get("command") or ["python", "train.py"]),
            measured=self.profile is not None,
            alike=captured_alike(*manifests),
            captured=captures_apart(*manifests),
            attributes=(attributes_of(self.target), attributes_of(self.reference)),
            buffers=buffer_gaps(self.target, self.reference, {p.step: p.reference_step for p in pairs}),
            averages=average_gaps(self.target, self.reference, {p.step: p.reference_step for p in pairs}),
            masters=master_gap(self.target, self.reference, {p.step: p.reference_step for p in pairs}),
            ties=self._ties(pairs),
            stepped=self._stepped(pairs),
            update_rule_gaps=update_rule_gaps(*settings),
            other_gaps=update_rule_gaps(*settings, others=True),
        )

    def _stepped(self, pairs: list[StepPair]) -> Reason | None:
        """Where the runs diverge in an update: whether one of them took no gradients."""
        firsts = (one for one in self.ledger.firsts.values() if one.row.phase == "optimizer")
        first = min(firsts, key=lambda one: (one.step, one.order), default=None)
        return None if first is None else stepped_without(self.target, self.reference, pairs, first.step)

    def _ties(self, pairs: list[StepPair]) -> tuple[TieApart, ...]:
        rank = pairs[0].rank if pairs else 0
        target, reference = (
            source.rank_facts(rank).get("parameters") or [] for source in (self.target, self.reference)
        )
        return ties_apart(target, reference, {})

    def _tolerance(self) -> Tolerance:
        """Where tolerances come from."""
        constants = {f"k_{k}": v for k, v in FACTORS.items()} | {"factor": self.options.tolerance_factor}
        if self.profile is None:
            return Tolerance(
                formula=Reason(ToleranceCode.DTYPE_FORMULA),
                origin=reason(ToleranceCode.DTYPE_BOUND, reference=str(self.reference.path)),
                constants=constants,
            )
        return Tolerance(
            formula=Reason(ToleranceCode.NOISE_FORMULA),
            origin=reason(ToleranceCode.MEASURED_NOISE, reruns=self.profile.num_runs),
            constants={"K": NOISE_TIMES, **constants},
        )

    def precision_table(self) -> pa.Table:
        """All rows of precision.parquet; repeated words as dictionaries."""
        frame = pl.concat(self.precision)
        words = [name for name, kind in frame.schema.items() if kind == pl.String]
        table = frame.to_arrow()
        for name in words:
            at = table.column_names.index(name)
            table = table.set_column(at, name, table[name].cast(pa.string()).dictionary_encode())
        return table


def _function_of(found: Sequence[Reason]) -> str:
    """The first function that differs, or the value that it uses."""
    return str(found[0].place("function") or found[0].place("name"))


def _refuse_unspellable(output: Path) -> None:
    """The tables are written by a library that takes paths in UTF-8 alone."""
    try:
        str(output).encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError(f"-o {output}: the path is no UTF-8; give another folder") from None


def _profile(reference: TraceSource, wanted: Path | bool) -> NoiseProfile | None:
    """The noise profile to judge by: the one given, or the reference's own where it has one."""
    if isinstance(wanted, Path):
        return NoiseProfile.read(wanted)
    beside = reference.path / FOLDER
    if not wanted or not (beside / FACTS).exists():
        return None
    return NoiseProfile.read(beside, of_run=reference.manifest)


def _arbiter(path: Path | None) -> TraceSource | None:
    from trueup.importers import open_trace

    return None if path is None else open_trace(path)


def _tied(trace: TraceSource, rank: int) -> dict[str, str]:
    """Parameters that share a tensor: name -> the name it is recorded under."""
    table = trace.rank_facts(rank).get("parameters") or []
    return {entry["fqn"]: tied for entry in table if (tied := entry.get("tied_to"))}


def _described(rows: StepRows, pair: StepPair) -> str:
    t, r = int((rows.target.record >= 0).sum()), int((rows.reference.record >= 0).sum())
    return (
        f"step {pair.step} rank {pair.rank} holds {t} records against {r}, and "
        f"{int(np.sum(rows.paired))} were "
        "paired and none has a common digest, sketch, statistic or value"
    )


def _with_passes(source: TraceSource, rank: int, lines: Sequence[ScalarLine]) -> list[ScalarLine]:
    """A rank's scalars; a step that runs several forwards before their backwards has as many microbatches."""
    counted = []
    for line in lines:
        one, number = line.copy(), line.get("microbatches")
        view = None if number is None else view_if_there(source, line["step"], rank)
        if view is not None and number is not None:
            one["microbatches"] = max(number, len(view.passes))
        counted.append(one)
    return counted


def _typed(command: Sequence[str]) -> str:
    """A command as a person would type it: the interpreter by name, not by where it lies."""
    program = Path(command[0]).name if Path(command[0]).name.startswith("python") else command[0]
    return " ".join(shlex.quote(str(part)) for part in (program, *command[1:]))


def _declared(trace: TraceSource) -> dict[str, dict[str, Setting]]:
    """What the optimizers of the first rank declare."""
    return declared(trace.rank_facts(min(trace.steps().values(), default=[0])[0]))
