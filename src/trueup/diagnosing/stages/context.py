"""What every stage may look at: the runs, what comparing and replaying them gave, the stages before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from trueup.comparing.optimizer_settings import declared
from trueup.comparing.result import Comparison
from trueup.comparing.thresholds import FLOAT32
from trueup.comparing.ties import TieApart, ties_apart
from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.gradients import matched_parameters, scalar_line
from trueup.diagnosing.kinds import name_kinds
from trueup.diagnosing.replay.agreed import AgreedRecord
from trueup.diagnosing.replay.trials import Trials
from trueup.diagnosing.stages.crossed import Crossed, crossed
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.diagnosing.thresholds import (
    FAR_BEYOND,
    MOST_BY_BOUND,
    MOST_BY_INPUTS,
    MOST_BY_NOISE,
    MOST_BY_REPLAY,
    TRACE_BIAS_Z,
)
from trueup.diagnosing.translated import reference_book, translated_facts
from trueup.diagnosing.update_rule import Update, updates
from trueup.diagnosing.whose import Ranked
from trueup.matching.bridge import Bridge, bridge_between
from trueup.matching.mapping import NamePairs
from trueup.merging.sides import mesh_of
from trueup.merging.trace import MergedTrace
from trueup.numerics.dtypes import DTYPES, unit_roundoffs
from trueup.store import StepView, TraceSource
from trueup.types.codes import EvidenceCode, NoteCode, RecordCode, VerdictCode
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Basis, Kind, Origin, Stage
from trueup.types.layout import Layout
from trueup.types.reason import Reason, reason
from trueup.types.status import Status
from trueup.types.trace import RankFacts
from trueup.types.verdict import Verdict

if TYPE_CHECKING:
    from trueup.curves.comparison import CurveComparison
    from trueup.diagnosing.stages.config import Configurations

OTHER_PRECISION = (
    VerdictCode.COMPUTES_IN,
    VerdictCode.CASTS_TO,
    VerdictCode.CASTS_DIFFER,
    VerdictCode.WEIGHTS_IN,
    VerdictCode.RESULT_IN,
    VerdictCode.LOSS_IN,
    VerdictCode.SUMS_IN,
)
BEYOND = ("different", "origin", "amplified", "propagated")
"""statuses that mean: further apart than allowed"""


@dataclass(kw_only=True)
class Context:
    """Two runs under diagnosis. ``target`` is the free run; ``replayed`` and ``given`` are runs of the same
    program with the reference's values, and the reference's gradients, put in."""

    target: TraceSource
    reference: TraceSource
    comparison: Comparison
    replayed: TraceSource | None = None
    given: TraceSource | None = None
    origins: tuple[Origin, ...] = ()
    """what attribution says; of replay where there was one, else passive"""
    passive: tuple[Origin, ...] = ()
    agreed: Callable[[], frozenset[AgreedRecord]] = frozenset
    """what the replay found to be the reference's, up to rounding of one call"""
    evidence_of: Callable[[Origin], Evidence] | None = None
    """None: what stands around an origin is not known"""
    tokenizer: Path | None = None
    mapping: NamePairs | None = None
    """pairs a person gave"""
    configurations: Configurations | None = None
    """the settings of both runs; None where nothing tells of them"""
    curves: CurveComparison | None = None
    """the long run's; None where no logs were given"""
    trials: Trials = field(default_factory=Trials)
    """supposed causes that were tried in further replays"""
    earlier: list[StageOutcome] = field(default_factory=list)
    seen_from: int | None = None
    """the rank that stands for all where one does; None: the first"""
    _books: dict[tuple[int, int, int], StepView] = field(default_factory=dict)
    _updates: dict[tuple[int, int, int], dict[str, Update]] = field(default_factory=dict)

    # -- which steps and ranks ------------------------------------------

    @cached_property
    def steps(self) -> list[tuple[int, int]]:
        """(target step, reference step) of the compared steps, in order; both sides counted from their
        first."""
        target, reference = sorted(self.target.steps()), sorted(self.reference.steps())
        common = [(step, step) for step in target if step in reference]
        return common or list(zip(target, reference, strict=False))

    @cached_property
    def ranks(self) -> list[int]:
        """Ranks both runs have in the first step; what stands for all of them is the first."""
        step, other = self.steps[0]
        shared = [r for r in self.target.steps()[step] if r in self.reference.steps()[other]] or [0]
        return sorted(shared, key=lambda rank: rank != self.seen_from)

    def type_of(self, module: str) -> str:
        """The class of a module in the target; empty where no record shows it."""
        found = self.rows.filter((pl.col("module").cast(pl.String) == module) & pl.col("type").is_not_null())
        return str(found["type"][0]) if found.height else ""

    @cached_property
    def mesh(self) -> Layout:
        """The target's processes along the axes it declares; where it declares none, along one, ``world``."""
        return mesh_of(self.target)

    def with_ties(self, parameters: list[str]) -> list[str]:
        """Parameters of the target, and all names of the same tensors."""
        table = self.facts(self.target).get("parameters") or []
        return [*parameters, *(one["fqn"] for one in table if one.get("tied_to") in parameters)]

    @cached_property
    def without_effect(self) -> frozenset[tuple[str, str]]:
        """Module and phase of what differs inside the model and comes out nowhere, as the comparison saw.

        Also the module around it, whose code gives a part what it takes.
        """
        at = self.rows.filter(pl.col("reason_code").cast(pl.String) == RecordCode.WITHOUT_EFFECT.value)
        pairs = at.select(pl.col("module", "phase").cast(pl.String)).drop_nulls().unique().rows()
        around = [(module.rpartition(".")[0], phase) for module, phase in pairs]
        return frozenset([*pairs, *around])

    @cached_property
    def inputs_without_effect(self) -> tuple[str, ...]:
        """What the program gives, in one of the captured steps otherwise, of which nothing comes: the whole
        comparison says so, or nothing is."""
        headline = self.comparison.verdict.headline
        names = headline.facts["names"] if headline.code is VerdictCode.AGREE_BUT_INPUT else ()
        return names if isinstance(names, tuple) else (str(names),)

    @cached_property
    def felt(self) -> float | None:
        """The relative difference in the gradient of a weight, the median of all, that would have shown; None
        where the runs do not agree, or losses and gradients were not compared. What lies in other shapes
        (one row without padding for padded rows) may be open: losses and gradients tell what came of it."""
        loss = (pl.col("phase") == "loss") & (pl.col("slot") == "value")
        made = self.rows.filter((pl.col("phase") == "param_grad") | loss)
        status = made["status"]
        agree = status.is_in([Status.EQUAL.value, Status.WITHIN_NOISE.value]).all()
        verdict = self.comparison.verdict
        is_open = verdict.headline.code is VerdictCode.NOT_BRACKETED
        if not (verdict.numbers_agree or is_open) or not agree or made["phase"].n_unique() < 2:
            return None
        equal = pl.col("status") == Status.EQUAL.value
        bounds = made.select(pl.when(equal).then(0.0).otherwise(pl.col("tolerance").fill_null(float("inf"))))
        return float(np.median(bounds.to_series().to_numpy()))

    @property
    def layout(self) -> Layout:
        """The same, also where the ranks were put together."""
        return self.target.layout if isinstance(self.target, MergedTrace) else self.mesh

    def pair(self, at: int = 0, rank: int | None = None) -> tuple[StepView, StepView]:
        """Target's and reference's records of the ``at``-th compared step."""
        rank = self.ranks[0] if rank is None else rank
        step, other = self.steps[at]
        return self.book(self.target, step, rank), self.book(self.reference, other, rank)

    def book(self, source: TraceSource, step: int, rank: int) -> StepView:
        """Records of one step and rank, read once."""
        key = id(source), step, rank
        if key not in self._books:
            bridge = self.bridge if source is self.reference else None
            self._books[key] = reference_book(source, step, rank, bridge)
        return self._books[key]

    @cached_property
    def bridge(self) -> Bridge | None:
        """What is known of two implementations; None for two runs of one program."""
        return bridge_between(self.target, self.reference, self.steps[0], (self.ranks[0],) * 2, self.mapping)

    @cached_property
    def crossed(self) -> list[Crossed]:
        """Weights of two implementations in another order than what stands beside them."""
        return [] if self.bridge is None else crossed(self.bridge, self.target, self.reference, self.ranks[0])

    def facts(self, source: TraceSource, rank: int | None = None) -> RankFacts:
        """What a rank said of itself; parameters by the target's names."""
        facts = source.rank_facts(self.ranks[0] if rank is None else rank)
        translated = source is self.reference and self.bridge is not None
        return translated_facts(facts, self.bridge) if translated and self.bridge is not None else facts

    def updates(self, source: TraceSource, step: int, rank: int) -> dict[str, Update]:
        """What the optimizer of one run did in a step, measured once."""
        key = id(source), step, rank
        if key not in self._updates:
            earlier = max((s for s in source.steps() if s < step), default=None)
            before = None if earlier is None else self.book(source, earlier, rank)
            settings = declared(self.facts(source, rank))
            self._updates[key] = updates(self.book(source, step, rank), before, settings)
        return self._updates[key]

    @cached_property
    def given_step(self) -> int | None:
        """First step of the gradient replay; None where the program kept all its own gradients, as one does
        that sums over microbatches by itself."""
        if self.given is None:
            return None
        facts = self.given.rank_facts(self.ranks[0]).get("given_gradients")
        return None if facts is not None and not facts["replaced"] else min(self.given.steps(), default=None)

    @cached_property
    def matched(self) -> dict[str, str]:
        """Target's name -> the name its counterpart has in the reference's book."""
        return matched_parameters(*self.pair())

    # -- what the comparison said ------------------------------------------

    @cached_property
    def rows(self) -> pl.DataFrame:
        """The compared records, statuses and phases as text."""
        frame = self.comparison.frame()
        words = [c for c in ("status", "phase", "slot", "kind", "module", "name") if c in frame.columns]
        return frame.with_columns(pl.col(words).cast(pl.String))

    def of_phases(self, *phases: str, at: int = 0) -> pl.DataFrame:
        """Rows of some phases in the ``at``-th compared step."""
        step = self.steps[at][0]
        return self.rows.filter((pl.col("step") == step) & pl.col("phase").is_in(phases))

    def kinds_of(self, origin: Origin) -> tuple[Kind, ...]:
        """Kinds of error it looks like, likeliest first. Where values are put in inside a module too, only a
        part of its error is left to see: then what the free run shows of the same place, of equal inputs."""
        if self.evidence_of is None:
            return ()
        kinds = name_kinds(self.evidence_of(origin))
        if origin.basis is not Basis.REPLAY or any(kind.rank.is_named for kind in kinds):
            return kinds
        place = (origin.module, origin.phase, origin.slot, origin.step, origin.rank)
        free = (o for o in self.passive if (o.module, o.phase, o.slot, o.step, o.rank) == place)
        seen = (name_kinds(self.evidence_of(one)) for one in free if one.from_equals)
        return next((found for found in seen if found and found[0].rank.is_named), kinds)

    def at_ranks(self, origin: Origin) -> tuple[Ranked, Ranked]:
        """The tensor of an origin on every rank, of the target and of the reference."""
        if self.evidence_of is None:
            return (), ()
        found = self.evidence_of(origin).elsewhere
        return found.target_ranks, found.reference_ranks

    def copies_apart(self, step: int, record: int | None) -> tuple[str, tuple[int, ...]] | None:
        """Where ranks were put together: the axis along which a record's copies differ, and the ranks whose
        copy is not the first's."""
        if record is None or not isinstance(self.target, MergedTrace):
            return None
        return self.target.copies_apart(step, record)

    def origins_of(self, *stages: Stage) -> list[Origin]:
        """Origins of some stages, surest first."""
        return [o for o in self.origins if o.stage in stages and not self._is_of_one_side(o)]

    def _is_of_one_side(self, origin: Origin) -> bool:
        """Whether the first step of one run alone has its microbatch: its records have no counterpart."""
        counts = self.microbatches
        held = [one for one in (origin.target_record, origin.reference_record) if one is not None]
        if None in counts or counts[0] == counts[1] or len(held) > 1 or origin.step != self.steps[0][0]:
            return False
        return origin.microbatch is not None and origin.microbatch >= min(filter(None, counts), default=0)

    def follows_weights(self, origin: Origin) -> bool:
        """Whether it is of a step whose weights differ already, those of the first being the same."""
        since = self.weights_differ_from
        return since is not None and since <= origin.step

    @property
    def weights_differ_from(self) -> int | None:
        """The first step whose weights differ, those of the first captured step being the same; None where
        those of no later step are an origin."""
        first = self.steps[0][0]
        steps = (o.step for o in self.passive if o.stage is Stage.WEIGHTS and o.step > first)
        return min(steps, default=None)

    @cached_property
    def loss_scales_differ(self) -> bool:
        """Whether the losses were multiplied by other factors before backward."""
        scaled = (NoteCode.LOSS_SCALES_DIFFER, NoteCode.LOSS_SCALE_UNDONE)
        return any(note.code in scaled for note in self.comparison.content.notes)

    @cached_property
    def undone(self) -> float:
        """The target's loss over the reference's where that is taken out of the gradients before the
        update."""
        notes = (n for n in self.comparison.content.notes if n.code is NoteCode.LOSS_SCALE_UNDONE)
        return next((n.number("factor") or 1.0 for n in notes), 1.0)

    @cached_property
    def precision(self) -> Verdict | None:
        """The comparison's verdict where it is led by what one run computes in another dtype."""
        verdict = self.comparison.verdict
        return verdict if verdict.headline.code in OTHER_PRECISION else None

    @property
    def dtypes_of_weights(self) -> tuple[str, str] | None:
        """Those of target and reference where weights are in another dtype, all of them or some."""
        headline = None if self.precision is None else self.precision.headline
        if headline is None:
            return None
        of_weights = headline.code is VerdictCode.COMPUTES_IN and headline.number("weights")
        held = (VerdictCode.WEIGHTS_IN, VerdictCode.RESULT_IN, VerdictCode.LOSS_IN)
        if not of_weights and headline.code not in held:
            return None
        return str(headline.place("target")), str(headline.place("reference"))

    @cached_property
    def below_rounding(self) -> set[str]:
        """Weights whose first update, in the run of the finer dtype, is below a rounding of the coarser."""
        if self.dtypes_of_weights is None:
            return set()
        (step, other), rank = self.steps[0], self.ranks[0]
        eps = [DTYPES[name].eps for name in self.dtypes_of_weights]
        finer = self.target if eps[0] < eps[1] else self.reference
        made = self.updates(finer, step if finer is self.target else other, rank)
        names = self.matched if finer is self.reference else {fqn: fqn for fqn in self.matched}
        norms = self.of_phases("param").select("name", "reference_l2_norm").iter_rows()
        return {
            fqn
            for fqn, norm in norms
            if fqn in names and names[fqn] in made and made[names[fqn]].length < 2 * max(eps) * (norm or 0.0)
        }

    def explained_by_dtype(self, origin: Origin) -> bool:
        """Whether the dtype that leads the verdict explains an origin: all of them, or those before the first
        that it does not explain."""
        if self.precision is None:
            return False
        beyond = [one for one in self.precision.evidence if one.code is EvidenceCode.FIRST_BEYOND]
        if not beyond:
            return True
        first = [one for one in self.origins if one.site == beyond[0].place("site")]
        return bool(first) and (origin.step, origin.order) < (first[0].step, first[0].order)

    @cached_property
    def ties(self) -> tuple[TieApart, ...]:
        """Weights that are one tensor in one run and two in the other."""
        target, reference = (
            self.facts(source).get("parameters") or [] for source in (self.target, self.reference)
        )
        return ties_apart(target, reference, self.matched)

    @cached_property
    def rounded_weights(self) -> dict[str, tuple[str, str]]:
        """Weights of the first step that agree within the rounding of another dtype -> both dtypes."""
        columns = [pl.col(name).cast(pl.String) for name in ("target_dtype", "reference_dtype")]
        rows = self.of_phases("param").filter(
            (pl.col("status") == "within_noise") & (columns[0] != columns[1])
        )
        return {name: (one, other) for name, one, other in rows.select("name", *columns).iter_rows()}

    @cached_property
    def microbatches(self) -> tuple[int | None, int | None]:
        """How many forwards the first step has on either side; of pipelines, which run several before their
        backwards, how many backwards. Where both sides count alike as they are, that is enough: not every
        framework tells backwards apart."""
        sides = zip((self.target, self.reference), self.steps[0], self.pair(), strict=True)
        counts = [
            (scalar_line(source, self.ranks[0], step).get("microbatches"), len(book.passes))
            for source, step, book in sides
        ]
        if counts[0][0] == counts[1][0]:
            return counts[0][0], counts[1][0]
        target, reference = (max(num, passes) if num and passes else num for num, passes in counts)
        return target, reference

    @property
    def additions(self) -> tuple[int, int]:
        """How many gradients of microbatches a rank adds up on either side, also where they are compared as
        one."""
        counts = zip((self.target, self.reference), self.microbatches, strict=True)
        of = [(num or 1) * (one.fold if isinstance(one, MergedTrace) else 1) for one, num in counts]
        return of[0], of[1]

    @property
    def by_replay(self) -> bool:
        """Whether the origins were found with the reference's own values put in."""
        return self.replayed is not None

    def only_carried(self, rows: pl.DataFrame) -> bool:
        """Whether what these rows differ by is rounding that was carried on and grew: the replay compared
        every one that is beyond its tolerance, and with the reference's inputs no call differs by more than
        rounding of its own.

        In float32 alone: what a coarser dtype does to one call may hide a fault.
        """
        dtypes = {*self.rows["target_dtype"].drop_nulls(), *self.rows["reference_dtype"].drop_nulls()}
        roundoffs = unit_roundoffs(sorted(map(str, dtypes)))
        if not self.by_replay or roundoffs[~np.isnan(roundoffs)].max(initial=0.0) > FLOAT32:
            return False
        at = rows.filter(is_beyond()).select("step", "rank", "reference_record").rows()
        return bool(at) and set(at) <= self._agreed

    @cached_property
    def _agreed(self) -> frozenset[AgreedRecord]:
        return self.agreed()

    # -- what stages before found ------------------------------------------

    def failed_before(self) -> StageOutcome | None:
        """The first stage before this one that failed by itself. Settings that differ in words compute
        nothing: no fault is looked for less after them."""
        return next((o for o in self._computed if o.status is StageStatus.FAILED), None)

    def agreement_at(self, rows: pl.DataFrame, at: int = 0) -> Reason:
        """``agreement_of`` rows of the step at ``at``; what a stage before this one found in a later step, or
        behind the loss of this one, they cannot show."""
        agreement, before = agreement_of(rows), self.failed_before()
        steps = [one.step for one in before.findings if one.step is not None] if before else []
        own = self.steps[at][0]
        is_later = bool(steps) and (min(steps) > own or (min(steps) == own and at > 0))
        return reason(Stages.AGREED_BEFORE, agreement, step=min(steps)) if is_later else agreement

    @property
    def all_passed(self) -> bool:
        """Whether every stage so far agrees: what differs next has no cause before it."""
        return all(o.status is StageStatus.PASSED for o in self._computed)

    @property
    def _computed(self) -> list[StageOutcome]:
        """Stages before this one that looked at what the runs computed."""
        return [o for o in self.earlier if o.stage is not Stage.CONFIG]

    def outcome_of(self, stage: Stage) -> StageOutcome | None:
        """What a stage before this one found."""
        return next((o for o in self.earlier if o.stage is stage), None)


def counted(rows: pl.DataFrame) -> Reason:
    """How compared rows agree: numbers of each status."""
    counts = dict(rows["status"].value_counts().iter_rows())
    return reason(
        Stages.COUNTS,
        equal=counts.get("equal", 0),
        within=counts.get("within_noise", 0),
        beyond=sum(counts.get(status, 0) for status in BEYOND),
        unmatched=counts.get("unmatched", 0),
        undecided=counts.get("undecided", 0),
    )


def is_beyond() -> pl.Expr:
    """Rows further apart than allowed."""
    return pl.col("status").is_in(BEYOND)


def is_compared() -> pl.Expr:
    """Rows with a verdict; without one there is nothing that could agree."""
    return pl.col("status").is_in(("equal", "within_noise", *BEYOND))


def agreement_of(rows: pl.DataFrame) -> Reason:
    """How rows agree of which none differs by more than it may."""
    equal = rows["status"] == "equal"
    if equal.all():
        return reason(Stages.EQUAL)
    compared = rows.filter(is_compared())["status"]
    return reason(Stages.COMPARED_EQUAL if (compared == "equal").all() else Stages.WITHIN_ROUNDING)


def basis_of(origin: Origin) -> Basis:
    """What its place rests on, as a finding says it."""
    without_replay = needs_no_replay(origin) and origin.basis is not Basis.REPLAY
    return Basis.EQUAL_INPUTS if without_replay else origin.basis


_MOST = {
    Basis.REPLAY: MOST_BY_REPLAY,
    Basis.EQUAL_INPUTS: MOST_BY_INPUTS,
    Basis.NOISE: MOST_BY_NOISE,
    Basis.BOUND: MOST_BY_BOUND,
}


def clarity(origin: Origin) -> float:
    """Orders the origins of a stage, and is shown nowhere: 1 - 1/(1 + s^2) of the stronger of score and bias,
    without the square where traces alone tell, and at most what its basis allows."""
    score = max(origin.score, abs(origin.bias_z or 0.0) / TRACE_BIAS_Z)
    doubt = 1.0 / (1.0 + (score * score if origin.basis is Basis.REPLAY else score))
    return round(min(1.0 - doubt, _MOST[basis_of(origin)]), 2)


def needs_no_replay(origin: Origin) -> bool:
    """Whether its place needs no replay: its inputs are bit-identical, and it is far beyond rounding."""
    if origin.basis is Basis.REPLAY:
        return True
    made = origin.phase in ("forward", "loss") and origin.slot.startswith(("output", "value"))
    return made and origin.from_equals and origin.score >= FAR_BEYOND
