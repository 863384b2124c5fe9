"""Everything result.json needs, gathered one step of one rank at a time, so that memory never grows with the
run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trueup.comparing.arbiter import Arbitrated, Arbitration, arbitrated, tally
from trueup.comparing.coarse_activations import ActivationGap
from trueup.comparing.content import Counts, DepthPoint, LocalNorm, UnmatchedGroup
from trueup.comparing.counted_rows import CountedRows
from trueup.comparing.first import First, JudgedStep, first_of_rows
from trueup.comparing.gradient_work import shown_phase
from trueup.comparing.judgement import (
    DIFFERENT,
    EQUAL,
    ORIGIN,
    PROPAGATED,
    UNDECIDED,
    UNMATCHED,
    WITHIN,
    Judgement,
)
from trueup.comparing.lone_reductions import LoneReduction, lone_reduction
from trueup.comparing.metrics import EVIDENCE, NONE, STATISTICS, Metrics
from trueup.comparing.module_tree import ModuleTree
from trueup.comparing.origins import likelihood, score_of_origin, why_origin
from trueup.comparing.other_ranks import received_inputs
from trueup.comparing.pairing import StepPair
from trueup.comparing.precision_gap import PrecisionGap
from trueup.comparing.rows import StepRows
from trueup.comparing.rules.one_sided import awaiting, bracketed
from trueup.comparing.rules.without_effect import given_to_the_program
from trueup.comparing.updated_copies import UpdatedCopies
from trueup.matching.codes import Codes
from trueup.types.codes import EvidenceCode, MergingCode, NoteCode, RecordCode
from trueup.types.reason import Reason, reason
from trueup.types.status import Status

MAX_GROUPS = 200
_MOST_EXAMPLES = 3
_STATUSES = tuple(Status)
_SCORED = ("rel_l2", "tolerance", "score", "gain", "error_in")


@dataclass(slots=True)
class Ledger:
    """Sums over all steps and ranks compared so far."""

    counts: Counter[tuple[str, Status]] = field(default_factory=Counter)
    """(phase, status) -> rows"""
    compared: int = 0
    exceeding: int = 0
    """rows that exceed their tolerance"""
    followed: int = 0
    """rows that only a tolerance holds which was widened for an update beyond its own"""
    origin: First | None = None
    """the likeliest origin"""
    received: First | None = None
    """what a rank received from another: where it starts only if no rank shows an origin of its own"""
    precision: PrecisionGap | None = None
    """what one run computes in another dtype in the first compared step; of the first rank that shows it"""
    other_constant: First | None = None
    """of the first compared step: what a module with another constant makes of the same, within rounding"""
    activation: ActivationGap | None = None
    """of the first compared step: two activation functions that no tolerance tells apart"""
    counted: CountedRows | None = None
    """of the first compared step: rows of a gradient that are exactly zero in one run alone"""
    copies: UpdatedCopies | None = None
    """that one side's optimizer updates in place of weights, in the first compared step"""
    lacking: First | None = None
    """the first weight that one run alone has"""
    other_shape: First | None = None
    """the first tensor that a module is given, or returns, in another shape"""
    num_origins: int = 0
    not_traced: set[int] = field(default_factory=set)
    """ranks whose first step that differs shows no origin, and records that could not be compared"""
    arbitration: Counter[str] = field(default_factory=Counter)
    arbitration_first: dict[str, str] = field(default_factory=dict)
    evidence: Counter[str] = field(default_factory=Counter)
    groups: Counter[tuple[str, str | None, str, Reason]] = field(default_factory=Counter)
    """(side, module, name, reason) -> unmatched records"""
    parameters: dict[str, set[str]] = field(default_factory=lambda: {"target": set(), "reference": set()})
    """side -> parameters that any step has records of"""
    one_sided: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(side, phase) -> unmatched records"""
    other_bits: First | None = None
    """the first record that is not equal, all before it being so, where it is of a forward, a loss, or a
    collective that no module calls"""
    lone: LoneReduction | None = None
    """a reduction of one run alone directly before the first other bits"""
    apart: Reason | None = None
    """the first record that is not bit-identical, where all before it are"""
    num_equal: int | None = 0
    """records compared so far, while all of them are equal; None once one is not"""
    inside: int = 0
    """rows that differ inside the model and come out nowhere"""
    inside_at: str | None = None
    inputs: list[str] = field(default_factory=list)
    """of those what the program gives: positions by their name, ``mask of the loss``"""
    unfelt: set[tuple[float, float]] = field(default_factory=set)
    """of those the norms on both sides"""
    not_bracketed: int = 0
    not_bracketed_examples: list[Reason] = field(default_factory=list)
    digests_differ: int = 0
    """of the records not bracketed those whose digests alone are known, and differ"""
    awaiting: dict[int, _Open] = field(default_factory=dict)
    """rank -> the records after all that was compared of its last step"""
    followed_well: set[int] = field(default_factory=set)
    """ranks of which such records of an earlier step led to a step that agrees"""
    firsts: dict[str, First] = field(default_factory=dict)
    tree: ModuleTree = field(default_factory=ModuleTree)
    depth: list[DepthPoint] = field(default_factory=list)
    local_norms: list[LocalNorm] = field(default_factory=list)
    limits: dict[int, dict[str, float]] = field(default_factory=dict)
    notes: list[Reason] = field(default_factory=list)
    trained_by_one: dict[str, bool] = field(default_factory=dict)
    """target's name of a weight that requires a gradient on one side alone -> whether in the target; of the
    first step that has any"""
    pairs: int = 0

    def add(self, judged: JudgedStep) -> None:
        """Take in one step of one rank."""
        rows, metrics, judgement, table = judged.rows, judged.metrics, judged.judgement, judged.table
        status = judgement.status
        phases = rows.match.words.phase
        of_both = shown_phase(rows) * len(_STATUSES) + judgement.attribution.status
        counted = np.bincount(of_both, minlength=len(phases) * len(_STATUSES))
        for code in np.flatnonzero(counted).tolist():
            key = phases[code // len(_STATUSES)], _STATUSES[code % len(_STATUSES)]
            self.counts[key] += int(counted[code])
        self.exceeding += int((status == DIFFERENT).sum())
        self.followed += int(((status == WITHIN) & (judgement.attribution.status == PROPAGATED)).sum())
        self.compared += int(np.isin(status, (EQUAL, WITHIN, DIFFERENT)).sum())
        for code, count in enumerate(np.bincount(metrics.evidence[rows.paired], minlength=NONE + 1).tolist()):
            if count:
                self.evidence[EVIDENCE[code]] += count
        self._add_inside(rows, judgement, table)
        self._add_open(judged)
        self._add_parameters(rows)
        self._add_firsts(judged)
        self._add_other_shape(judged)
        self._add_origin(judged)
        self.tree.add(rows, judgement, first=self.pairs == 0)
        self._add_limits(judged.pair, rows, judgement)
        if self.num_equal is not None:
            self._add_apart(judged, self.num_equal)
        if self.pairs == 0:
            self._add_depth(judged.pair, rows, judgement, table)
            self._add_local_norms(rows, metrics)
        self._add_requires_grad(judged.pair, table)
        self.pairs += 1

    def _add_open(self, judged: JudgedStep) -> None:
        pair, rows, judgement, table = judged.pair, judged.rows, judged.judgement, judged.table
        self._settle(pair.rank, agrees=not (judgement.status == DIFFERENT).any())
        open_ = np.isin(judgement.status, (UNMATCHED, UNDECIDED))
        neither = (rows.target.summary < 0) & (rows.reference.summary < 0)
        open_ &= ~(rows.paired & neither & rows.phase_is("collective"))  # memory that awaits what is received
        if not open_.any():
            return
        open_ &= ~bracketed(rows, judgement)
        last = awaiting(rows, judgement)
        outside, later = np.flatnonzero(open_ & ~last), np.flatnonzero(open_ & last)
        self._not_bracketed(_open(outside, judgement, table))
        self.awaiting[pair.rank] = _open(later, judgement, table)
        one_sided = np.flatnonzero(judgement.status == UNMATCHED)
        if len(one_sided):
            part = table.select(["module", "name"]).take(pa.array(one_sided)).to_pydict()
            sides = np.where(rows.target.record[one_sided] >= 0, "target", "reference").tolist()
            phases = [rows.match.words.phase[code] for code in rows.phase[one_sided].tolist()]
            reasons = [judgement.reasons[row] for row in one_sided.tolist()]
            self.one_sided.update(zip(sides, phases, strict=True))
            self.groups.update(zip(sides, part["module"], part["name"], reasons, strict=True))
            weights = [
                row
                for row in one_sided[rows.phase_is("param")[one_sided]].tolist()
                if judgement.reasons[row].code is RecordCode.NO_PARAMETER
            ]
            if weights and (self.lacking is None or pair.step < self.lacking.step):
                self.lacking = first_of_rows(judged, weights[0])

    def _add_parameters(self, rows: StepRows) -> None:
        words, of_parameter = rows.match.words.name, rows.kind_is("parameter")
        for side, half in (("target", rows.target), ("reference", rows.reference)):
            codes = half.side.name[half.call[of_parameter & (half.call >= 0)]]
            self.parameters[side].update(words[code] for code in np.unique(codes).tolist())

    def _add_apart(self, judged: JudgedStep, before: int) -> None:
        judgement, table = judged.judgement, judged.table
        compared = np.flatnonzero(np.isin(judgement.status, (EQUAL, WITHIN, DIFFERENT)))
        apart = judgement.status[compared] != EQUAL
        self.num_equal = None if apart.any() else before + len(compared)
        if not apart.any() or not (before or np.argmax(apart)):
            return
        equal = int(np.argmax(apart))
        row = int(compared[equal])
        if equal:
            self.lone = lone_reduction(judged, row, int(compared[equal - 1]))
        if judged.rows.phase_is("forward", "loss", "collective")[row]:
            first = first_of_rows(judged, row)
            if first.row.phase != "collective" or first.owner is None:
                self.other_bits = first
        site, rel_l2, tolerance = (table[name][row].as_py() for name in ("site", "rel_l2", "tolerance"))
        if rel_l2 is not None and tolerance is not None:
            facts = {"rel_l2": rel_l2, "tolerance": tolerance}
            if table["evidence"][row].as_py() == EVIDENCE[STATISTICS]:  # a lower bound
                facts["at_least"] = 1
            self.apart = reason(EvidenceCode.FIRST_APART, site=site, equal=before + equal, **facts)

    def _add_inside(self, rows: StepRows, judgement: Judgement, table: pa.Table) -> None:
        inside = [at for at, why in judgement.reasons.items() if why.code is RecordCode.WITHOUT_EFFECT]
        if inside and self.inside_at is None:
            self.inside_at = str(table["site"][min(inside)].as_py())
        self.inside += len(inside)
        lengths = [side.statistics["l2_norm"][inside].tolist() for side in (rows.target, rows.reference)]
        self.unfelt.update(zip(*lengths, strict=True))
        given = given_to_the_program(rows)
        named = [rows.match.words.slot[rows.slot[row]].partition(".") for row in inside if given[row]]
        names = (rest or f"{head} of the loss" for head, _, rest in named)
        self.inputs = list(dict.fromkeys((*self.inputs, *names)))

    def _not_bracketed(self, records: _Open) -> None:
        self.not_bracketed += records.num
        self.digests_differ += records.digests_differ
        self.not_bracketed_examples += records.examples[: _MOST_EXAMPLES - len(self.not_bracketed_examples)]

    def _settle(self, rank: int, *, agrees: bool) -> None:
        """The step after records that awaited it."""
        records = self.awaiting.pop(rank, _Open())
        if agrees and records.num:
            self.followed_well.add(rank)
        elif not agrees:
            self._not_bracketed(records)

    def finish(self) -> None:
        """No step follows: what an earlier step's records led to, those of the last one do."""
        for rank, records in self.awaiting.items():
            self._not_bracketed(_Open() if rank in self.followed_well else records)
        self.awaiting = {}
        self.origin = self.received if self.origin is None else self.origin

    def _add_firsts(self, judged: JudgedStep) -> None:
        table = judged.table
        exceeding = np.flatnonzero(judged.judgement.status == DIFFERENT)
        if not len(exceeding):
            return
        phases, at = np.unique(table["phase"].take(pa.array(exceeding)).to_numpy(), return_index=True)
        for name, row in zip(phases.tolist(), exceeding[at].tolist(), strict=True):
            known = self.firsts.get(name)
            if known is not None and (known.step, known.order) <= (judged.pair.step, row):
                continue
            self.firsts[name] = first_of_rows(judged, row)

    def _add_other_shape(self, judged: JudgedStep) -> None:
        rows, judgement = judged.rows, judged.judgement
        of_module = rows.paired & rows.kind_is("module") & rows.phase_is("forward")
        of_module &= rows.slot_starts("output") | (rows.target.numel != rows.reference.numel)
        at = [
            row
            for row, why in judgement.reasons.items()
            if why.code is RecordCode.SHAPE_DIFFERS and of_module[row] and judgement.status[row] == UNDECIDED
        ]
        if at and (self.other_shape is None or judged.pair.step < self.other_shape.step):
            self.other_shape = first_of_rows(judged, min(at))
            self.other_shape.why = [judgement.reasons[min(at)]]

    def _add_origin(self, judged: JudgedStep) -> None:
        """Keep the likeliest origin so far. What exceeds in a step without any may follow from what could
        not be compared there; then no later step is where it starts. Where all was compared, noise grew, and
        a later step may show an error of its own."""
        pair, rows, judgement, table = judged.pair, judged.rows, judged.judgement, judged.table
        at = np.flatnonzero(judgement.attribution.status == ORIGIN)
        self.num_origins += len(at)
        untraced = not len(at) and (judgement.status == DIFFERENT).any() and self.origin is None
        if untraced and np.isin(judgement.status, (UNMATCHED, UNDECIDED)).any():
            self.not_traced.add(pair.rank)
        if pair.rank in self.not_traced:
            return
        best: tuple[tuple[bool, int, int], int] | None = None
        came = at[received_inputs(rows)[at]] if len(at) else at
        if len(came) and self.received is None:
            self.received = first_of_rows(judged, int(came[0]))
            self.received.why = why_origin(self.received.row)
        for row in np.setdiff1d(at, came).tolist():
            score = score_of_origin(**{name: table[name][row].as_py() for name in _SCORED})
            found = likelihood(score, pair.step, row), row
            best = found if best is None else min(best, found)
            if not best[0][0]:
                break
        if best is not None and (self.origin is None or best[0] < self.origin.likelihood):
            self.origin = first_of_rows(judged, best[1])
            self.origin.why, self.origin.likelihood = why_origin(self.origin.row), best[0]
            self.origin.name_weight(judged.rows, at)

    def add_arbitration(self, arbitration: Arbitration, table: pa.Table) -> None:
        """Take in what the arbiter says of one step of one rank."""
        counts, first = tally(arbitration, table["site"])
        self.arbitration.update(counts)
        self.arbitration_first = {**first, **self.arbitration_first}

    def arbitrated(self, path: str) -> Arbitrated:
        """What the arbiter decides over all steps and ranks."""
        return arbitrated(path, self.arbitration, self.arbitration_first)

    def _add_limits(self, pair: StepPair, rows: StepRows, judgement: Judgement) -> None:
        limits = self.limits.setdefault(pair.step, {"loss": 0.0, "gradient": 0.0})
        for name, phases in (("loss", ("loss",)), ("gradient", ("param_grad",))):
            at = rows.phase_is(*phases) & np.isfinite(judgement.tolerance)
            if not at.any() and name == "loss":
                at = rows.phase_is("forward") & rows.slot_starts("output") & np.isfinite(judgement.tolerance)
            if at.any():
                limits[name] = max(
                    limits[name], float(np.median(judgement.tolerance[at])) * (2 if name == "loss" else 1)
                )

    def _add_depth(self, pair: StepPair, rows: StepRows, judgement: Judgement, table: pa.Table) -> None:
        shown = rows.kind_is("module") & rows.phase_is("forward", "backward") & rows.slot_starts("output")
        at = np.flatnonzero(shown & rows.paired & ~np.isnan(judgement.score))
        part = table.select(["order", "module", "type", "phase", "rel_l2", "tolerance"]).take(pa.array(at))
        self.depth += [DepthPoint(step=pair.step, rank=pair.rank, **row) for row in part.to_pylist()]

    def _add_local_norms(self, rows: StepRows, metrics: Metrics) -> None:
        words = rows.match.words
        chosen: dict[str, int] = {}
        rank_of_slot = {"clipped": 0, "local": 1, "accumulated": 2}
        gradients = np.flatnonzero(rows.phase_is("param_grad") & rows.paired)
        for row in gradients.tolist():
            fqn = words.name[rows.match.target.name[rows.target.call[row]]]
            now = rank_of_slot.get(words.slot[rows.slot[row]], -1)
            old = chosen.get(fqn)
            if old is None or now >= rank_of_slot.get(words.slot[rows.slot[old]], -1):
                chosen[fqn] = row
        relative = metrics.rel_l2
        for fqn, row in chosen.items():
            target = float(rows.target.statistics["l2_norm"][row])
            reference = float(rows.reference.statistics["l2_norm"][row])
            self.local_norms.append(
                LocalNorm(
                    fqn=fqn,
                    target=target,
                    reference=reference,
                    rel_diff=_rel_diff(target, reference),
                    rel_l2=float(relative[row]),
                )
            )

    def _add_requires_grad(self, pair: StepPair, table: pa.Table) -> None:
        apart = (
            pc.sum(pc.not_equal(table["target_requires_grad"], table["reference_requires_grad"])).as_py() or 0
        )
        if apart:
            place = {"step": pair.step, "rank": pair.rank}
            self.notes.append(reason(NoteCode.REQUIRES_GRAD_DIFFERS, **place, records=int(apart)))
        if apart and not self.trained_by_one:
            differ = pc.not_equal(table["target_requires_grad"], table["reference_requires_grad"])
            of_weights = pc.equal(pc.cast(table["phase"], pa.string()), "param")
            rows = table.filter(pc.and_(pc.fill_null(differ, False), of_weights))
            trained = rows["target_requires_grad"].to_pylist()
            self.trained_by_one = dict(zip(rows["name"].to_pylist(), trained, strict=True))

    @property
    def is_merged(self) -> bool:
        """Whether ranks, or microbatches, of a side were put together."""
        return any(note.has(MergingCode.WHOLE_TENSORS) for note in self.notes)

    def totals(self) -> Counts:
        """All counts, by status and phase; groups of unmatched records, largest first."""
        by_phase: dict[str, dict[Status, int]] = {}
        totals = dict.fromkeys(Status.final(), 0)
        for (phase, status), count in self.counts.items():
            by_phase.setdefault(phase, dict.fromkeys(Status.final(), 0))[status] = count
            totals[status] += count
        groups = [
            UnmatchedGroup(side=side, module=module, name=name, reason=why, count=count)
            for (side, module, name, why), count in self.groups.most_common(MAX_GROUPS)
        ]
        return Counts(
            compared=self.compared,
            different=self.exceeding,
            by_status=totals,
            by_phase=by_phase,
            unmatched=groups,
            num_groups=len(self.groups),
        )


def _rel_diff(target: float, reference: float) -> float:
    if reference:
        return abs(target - reference) / reference
    return 0.0 if target == reference else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """Records without a verdict that are not known to agree: how many, and the first of them."""

    num: int = 0
    digests_differ: int = 0
    examples: tuple[Reason, ...] = ()


def _open(at: Codes, judgement: Judgement, table: pa.Table) -> _Open:
    reasons = [judgement.reasons.get(row) for row in at.tolist()]
    differ = sum(why is not None and why.has(RecordCode.DIGESTS_DIFFER) for why in reasons)
    sites = table["site"].take(pa.array(at[:_MOST_EXAMPLES])).to_pylist()
    examples = tuple(
        reason(EvidenceCode.NOT_BRACKETED, *(() if why is None else (why,)), site=site)
        for why, site in zip(reasons, sites, strict=False)
    )
    return _Open(num=len(reasons), digests_differ=differ, examples=examples)
