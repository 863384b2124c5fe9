"""One conclusion over two runs: whether they agree, else where they first diverge, with which confidence, and
what to do next."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from trueup.comparing.attributes import Attributes, explain_by_attributes
from trueup.comparing.averages import AverageGap, AverageGaps
from trueup.comparing.buffers import (
    BufferGaps,
    explain_by_buffers,
    settings_of_writers,
    without_unfelt,
)
from trueup.comparing.captured import not_paired, unpaired_by_side, unseen
from trueup.comparing.coarse_activations import ActivationGap
from trueup.comparing.counted_rows import CountedRows
from trueup.comparing.first import First, Preceding
from trueup.comparing.grounds import absent_parameters, grounds, preceding, precision_grounds, scalar_reason
from trueup.comparing.ledger import Ledger
from trueup.comparing.lone_reductions import LoneReduction
from trueup.comparing.masters import MasterGap
from trueup.comparing.microbatches import led_by_microbatches
from trueup.comparing.optimizer_settings import SharedGap
from trueup.comparing.other_arguments import headline_of
from trueup.comparing.precision_gap import GapOf, PrecisionGap
from trueup.comparing.record_row import JudgedRow
from trueup.comparing.scalars import (
    DECISIVE,
    NORM,
    RATE,
    ScalarPair,
    batches_again,
    later_batches,
    later_loss,
    number,
)
from trueup.comparing.thresholds import (
    DOUBT_AFTER_EQUAL,
    NO_DOUBT,
    NOISE_GROWS,
    REST_OF_DIFFERENCE,
    SOME_DOUBT,
)
from trueup.comparing.ties import TieApart
from trueup.comparing.updated_copies import UpdatedCopies
from trueup.matching.thresholds import SURE
from trueup.numerics.dtypes import unit_roundoffs
from trueup.store.same_rows import MASK
from trueup.types.codes import EvidenceCode, NextCode, VerdictCode, WeightsCode
from trueup.types.confidence import Confidence, Question, Word, confidence_of
from trueup.types.reason import Number, Place, Reason, reason
from trueup.types.status import Outcome, Status
from trueup.types.verdict import Verdict

COARSE = ("statistics", "none")
"""evidence that may show no difference where there is one"""

_SHOWN = 4
"""buffers that a verdict lists"""
FACTORS = "factors"
"""what a verdict calls numbers with a sign that multiply the loss at each position"""
NORM_SITE = "gradient norm"
"""the place of a verdict over the norm of all gradients"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPair:
    """What a verdict needs to know of the two runs beside their records."""

    target: str
    reference: str
    level: str | None
    """at which the target was captured"""
    command: str
    """that started the target"""
    measured: bool = False
    """tolerances come from a noise profile"""
    alike: bool = False
    """the same parts of a step were captured on both sides"""
    captured: tuple[Reason, ...] = ()
    """how the captures differ"""
    attributes: tuple[Attributes, Attributes] = field(default_factory=lambda: ({}, {}))
    """plain attributes of modules, as far as both captures kept them"""
    buffers: BufferGaps = field(default_factory=lambda: BufferGaps(initial={}, written=()))
    averages: AverageGaps = field(default_factory=AverageGaps)
    masters: MasterGap | None = None
    """of master weights that the programs update themselves"""
    ties: tuple[TieApart, ...] = ()
    stepped: Reason | None = None
    """whose optimizer took no gradients in the step whose updates differ first"""
    update_rule_gaps: tuple[SharedGap, ...] = ()
    """settings of the optimizers that both programs declare, with different values"""
    other_gaps: tuple[SharedGap, ...] = ()
    """the same with settings of which nobody knows whether they enter the update"""

    def to_do(self, code: NextCode, step: int | None = None) -> Reason:
        """What to do next, with all that its command names."""
        steps = {} if step is None else {"step": step}
        return reason(code, target=self.target, reference=self.reference, command=self.command, **steps)


# In one piece: one branch a conclusion, in the order in which they are told.
def verdict_from(ledger: Ledger, scalars: Sequence[ScalarPair], runs: RunPair) -> Verdict:
    """The conclusion over all that was compared."""
    first = min(ledger.firsts.values(), key=lambda f: (f.step, f.order), default=None)
    lacking, origin, constant = ledger.lacking, ledger.origin, ledger.other_constant
    if origin is not None:
        explain_by_attributes(origin, *runs.attributes)
        explain_by_buffers(origin, runs.buffers)
    if runs.masters is not None and (first is None or first.step > runs.masters.step):
        verdict = _masters_differ(runs.masters, ledger, runs)
    elif first is not None and runs.averages.gap is not None and first.step > runs.averages.gap.step:
        averaged = _averages_differ(
            runs.averages.gap, ledger, runs
        )  # a model of them may run in a later step
        verdict = replace(averaged, before=None)
    elif lacking is not None and origin is not None and _is_drawn_after(origin, lacking):
        verdict = _lacking(lacking, origin, ledger, scalars, runs)
    elif lacking is not None and origin is not None and _is_made_with(origin, lacking, ledger):
        verdict = _of_more_parameters(lacking, origin, ledger, scalars, runs)
    elif first is not None and (shape := _other_shape_before(first, ledger)) is not None:
        verdict = _of_other_shape(first, shape, ledger, scalars, runs)
    elif origin is not None:
        verdict = _differ(origin, ledger, scalars, runs)
    elif constant is not None:
        explain_by_attributes(constant, *runs.attributes)
        verdict = replace(_differ(constant, ledger, scalars, runs), confidence=in_words(Word.CERTAIN))
    elif first is not None:
        verdict = _grown(first, ledger, scalars, runs)
    else:
        verdict = _without_difference(ledger, scalars, runs)
    if ledger.counted is not None and _is_at(ledger.counted, ledger.origin or first):
        counted = _other_rows_count(ledger.counted, runs)
        verdict = replace(counted, evidence=(*counted.evidence, *verdict.evidence))
    verdict = _led_by_precision(verdict, ledger, scalars, runs)
    led = led_by_microbatches(verdict, ledger, scalars)
    if led is None:
        return verdict
    code = NextCode.ALIGN_MICROBATCHES if ledger.is_merged else NextCode.MERGE_MICROBATCHES
    return replace(led, next=runs.to_do(code))


def _led_by_precision(
    verdict: Verdict, ledger: Ledger, scalars: Sequence[ScalarPair], runs: RunPair
) -> Verdict:
    """The verdict, led by what the runs compute in other dtypes, where nothing before that differs."""
    gap, origin = ledger.precision, ledger.origin
    if gap is None or ledger.lacking is not None:
        return verdict
    if origin is not None and (origin.step, origin.order) < (gap.at.step, gap.at.order):
        return verdict
    return Verdict(
        outcome=Outcome.DIFFER,
        headline=_precision_headline(gap),
        where=gap.at.row.site,
        owner=gap.at.owner,
        step=gap.at.step,
        rank=gap.at.rank,
        phase=gap.at.row.phase,
        confidence=in_words(Word.CERTAIN),
        evidence=precision_grounds(gap, ledger, scalars),
        before=preceding(gap.at.before),
        next=runs.to_do(NextCode.ALIGN_PRECISION),
    )


def of_casts(
    verdict: Verdict, first: First, casts: Sequence[Reason], named: Collection[str], runs: RunPair
) -> Verdict:
    """The verdict where all that differs in the code of the first record with other bits is what it casts:
    rounding in the coarser of two dtypes, which no tolerance for the coarser dtype tells. ``named``: dtypes
    that the code of one side alone names."""
    dtypes = [*named, *(str(first.row.columns[name]) for name in ("target_dtype", "reference_dtype"))]
    coarser = max(dtypes, key=lambda name: unit_roundoffs([name])[0])
    return Verdict(
        outcome=Outcome.DIFFER,
        headline=reason(VerdictCode.CASTS_DIFFER, function=casts[0].place("function"), dtype=coarser),
        where=first.row.site,
        owner=first.owner,
        step=first.step,
        rank=first.rank,
        phase=first.row.phase,
        confidence=in_words(Word.CERTAIN),
        evidence=(*casts, *verdict.evidence),
        before=preceding(first.before),
        next=runs.to_do(NextCode.ALIGN_PRECISION),
    )


def of_loss_code(
    verdict: Verdict, first: First, dtype: str, code: Sequence[Reason], runs: RunPair
) -> Verdict:
    """The verdict where the first other bits are a loss in float32, of results with the same bits, that
    differs by far more than float32 rounds, and the code that makes it is another. Rounding of ``dtype``, in
    which the model computes, would explain it, if the loss were computed in that: open."""
    return Verdict(
        outcome=Outcome.UNDECIDED,
        headline=reason(VerdictCode.LOSS_CODE_DIFFERS, function=code[0].place("function"), dtype=dtype),
        where=first.row.site,
        step=first.step,
        rank=first.rank,
        phase=first.row.phase,
        evidence=(*code, *verdict.evidence),
        before=preceding(first.before),
        next=_next(first, runs),
    )


def of_lone_reduction(lone: LoneReduction, code: Sequence[Reason], runs: RunPair) -> Verdict:
    """The verdict where the only statement that one program lacks is a reduction over ranks, and the first
    other bits are what follows it."""
    first = lone.at
    sums: dict[str, Number | Place] = {"side": lone.side, "call": lone.function}
    made: dict[str, Number | Place] = {
        "given": lone.given,
        "made": lone.made,
        "site": lone.site_after,
    }
    return Verdict(
        outcome=Outcome.DIFFER,
        headline=reason(VerdictCode.REDUCED_BY_ONE, function=code[0].place("function"), **sums),
        where=first.row.site,
        step=first.step,
        rank=first.rank,
        phase=first.row.phase,
        confidence=in_words(Word.CERTAIN),
        evidence=(*code, reason(EvidenceCode.REDUCED_BY_ONE, **sums, **made)),
        before=preceding(first.before),
        next=runs.to_do(NextCode.READ_REPORT, first.step),
    )


def of_arguments(verdict: Verdict, arguments: Sequence[Reason], runs: RunPair) -> Verdict:
    """The verdict where all agrees and functions are given other arguments, which may have made what rounding
    would explain: open."""
    headline = headline_of(arguments)
    module = headline.place("module")
    return replace(
        verdict,
        outcome=Outcome.UNDECIDED,
        headline=headline,
        owner=None if module is None else str(module),
        confidence=None,
        evidence=(*arguments, *verdict.evidence),
        next=Reason(NextCode.ALIGN_ARGUMENT),
    )


def of_update_code(
    verdict: Verdict, first: First, dtype: str, code: Sequence[Reason], runs: RunPair
) -> Verdict:
    """The verdict where the first other bits are what a program sends after backward, in float32, of numbers
    with the same bits; they differ by far more than float32 rounds, and the code that may update weights is
    another. Rounding of ``dtype``, in which the model computes, would explain it, if the update were in it.
    """
    return Verdict(
        outcome=Outcome.UNDECIDED,
        headline=reason(VerdictCode.UPDATE_CODE_DIFFERS, function=code[0].place("function"), dtype=dtype),
        where=first.row.site,
        step=first.step,
        rank=first.rank,
        phase=first.row.phase,
        evidence=(*code, *verdict.evidence),
        before=preceding(first.before),
        next=_next(first, runs),
    )


def of_no_update(verdict: Verdict, function: str, steps: int, runs: RunPair) -> Verdict:
    """All agrees before any update: what a function that differs does at one is not known."""
    return replace(
        verdict,
        outcome=Outcome.UNDECIDED,
        headline=reason(VerdictCode.BEFORE_UPDATE, function=function, steps=steps),
        next=reason(NextCode.CAPTURE_UPDATE, last=4 * steps - 1, command=runs.command),
    )


def of_later_update(
    verdict: Verdict, function: str, loss: ScalarPair, code: Sequence[Reason], runs: RunPair
) -> Verdict:
    """All that was captured has the same bits, and a later loss has not: what one step of a function that
    differs leaves for the next ones (a moment, what rounding took) was not captured."""
    return replace(
        verdict,
        outcome=Outcome.UNDECIDED,
        headline=reason(VerdictCode.EQUAL_UP_TO_LOSS, function=function, step=loss.step),
        evidence=(*code, scalar_reason(EvidenceCode.SCALAR_DIFFERS, [loss]), *verdict.evidence),
        next=reason(NextCode.CAPTURE_STEPS, before=loss.step - 1, step=loss.step, command=runs.command),
    )


def _precision_headline(gap: PrecisionGap) -> Reason:
    dtypes = {"target": gap.target, "reference": gap.reference}
    if gap.of is GapOf.WEIGHTS:
        return reason(VerdictCode.WEIGHTS_IN, parameters=gap.parameters, **dtypes)
    if gap.of is GapOf.LOSS:
        return reason(VerdictCode.LOSS_IN, of_logits=gap.at.row.phase != "loss", **dtypes)
    if gap.of is GapOf.SUMS:
        return reason(VerdictCode.SUMS_IN, parameters=gap.parameters, **dtypes)
    if gap.of is GapOf.RESULT:
        given = gap.at.row.slot.startswith("input")
        is_function = gap.at.row.kind == "api"
        function = gap.at.row.name.rpartition(".")[2] if is_function else ""
        if is_function and gap.at.owner is None:  # called by the program, outside the model
            module, function = function, ""
        else:
            module = str(gap.at.owner) if is_function else gap.at.row.name
        return reason(VerdictCode.RESULT_IN, module=module, function=function, given=given, **dtypes)
    if gap.cast_by is not None:
        return reason(VerdictCode.CASTS_TO, side=gap.cast_by, module=gap.at.owner, **dtypes)
    return reason(
        VerdictCode.COMPUTES_IN,
        functions=gap.named,
        weights=gap.weights,
        whole=gap.whole,
        autocast=gap.autocast or "",
        **dtypes,
    )


# In one piece: one branch a question, in the order in which their answers exclude each other.
def _without_difference(ledger: Ledger, scalars: Sequence[ScalarPair], runs: RunPair) -> Verdict:
    """No record exceeds its tolerance."""
    if ledger.counted is not None:
        return _other_rows_count(ledger.counted, runs)
    apart = [s for s in scalars if s.beyond and s.base in DECISIVE and _is_known(s, ledger)]
    if apart:
        return _scalars_differ(apart, ledger)
    if runs.update_rule_gaps:
        return _optimizers_differ(runs.update_rule_gaps, ledger)
    if ledger.activation is not None:
        return _activations_differ(ledger.activation, ledger, runs)
    if ledger.copies is not None:
        return _other_weights_updated(ledger.copies, ledger)
    if not runs.buffers.written and _num_equal(ledger) == ledger.compared:
        runs = replace(runs, buffers=replace(runs.buffers, written=runs.buffers.nearly))
    runs = replace(runs, buffers=without_unfelt(runs.buffers, ledger.unfelt))
    if runs.buffers.written:
        return _buffers_differ(ledger, runs)
    if runs.buffers.in_other_dtypes:
        return _buffer_dtypes_differ(ledger, runs)
    if runs.averages.gap is not None:
        return _averages_differ(runs.averages.gap, ledger, runs)
    unpaired = not_paired(ledger.counts, ledger.one_sided)
    if unpaired and (
        runs.captured or "forward" in unpaired
    ):  # other code may show other gradients, as it does
        return _not_compared(ledger, unpaired, runs.captured)
    if ledger.not_bracketed:
        return _undecided(ledger, runs)
    if (later := later_loss(scalars, ledger.limits, equal=_num_equal(ledger) == ledger.compared)) is not None:
        return _loss_differs_later(later, ledger, scalars, runs)
    both, one_sided = unpaired_by_side(unseen(ledger.counts), ledger.counts, ledger.one_sided)
    if both:
        return _not_compared(ledger, both, runs.captured)
    return _agree_in_part(ledger, one_sided, runs) if one_sided else _agree(ledger, runs)


def _is_known(pair: ScalarPair, ledger: Ledger) -> bool:
    """Whether what differs is of a captured step; a learning rate is set, not measured, and known of all."""
    return pair.step in ledger.limits or pair.base == RATE


def confidence(evidence: str, score: float, before: Preceding, match: float) -> Confidence:
    """Confidence that the runs first diverge at this site.

    A score s leaves a doubt of 1 / (1 + s^2) (1/2 at the bound, 1 % at ten times it); it shrinks to a third
    where all preceding records are bit-identical, since rounding cannot then have come in. Evidence that
    cannot show every difference, or a pair that is not sure to be one, takes a word off.
    """
    doubt = 0.0 if math.isinf(score) else 1.0 / (1.0 + score * score)
    if before.within == before.exceeding == 0 and before.equal > 0:
        doubt /= DOUBT_AFTER_EQUAL
    word = Word.CERTAIN if doubt <= NO_DOUBT else Word.LIKELY if doubt <= SOME_DOUBT else Word.POSSIBLE
    return in_words(word.weaker if evidence in COARSE or match < SURE else word)


def in_words(word: Word) -> Confidence:
    """Of a place of first divergence."""
    return confidence_of(Question.DIVERGENCE, word)


def _differ(first: First, ledger: Ledger, scalars: Sequence[ScalarPair], runs: RunPair) -> Verdict:
    row = first.row
    score = math.inf if row.score is None else row.score
    sure = confidence(row.evidence, score, first.before, row.confidence or 0.0)
    return Verdict(
        outcome=Outcome.DIFFER,
        headline=_trained_by_one(first, ledger)
        or _tied_in_one(first, runs)
        or _of_fewer_rows(first, scalars)
        or _of_update(first, ledger, scalars, runs)
        or _headline(first),
        where=row.site,
        owner=first.owner,
        step=first.step,
        rank=first.rank,
        phase=row.phase,
        confidence=in_words(Word.CERTAIN) if row.is_of_one_side else sure,
        evidence=(*_gap_reasons(_gaps_of(first, ledger, runs)), *grounds(first, ledger, scalars)),
        before=preceding(first.before),
        next=_next(first, runs),
    )


def _is_of_update(first: First, ledger: Ledger) -> bool:
    """Whether the runs diverge in what the optimizer made: its update, or a weight of a later step."""
    later = first.row.phase == "param" and first.step > min(ledger.limits)
    return (later or first.row.phase == "optimizer") and not first.row.is_of_one_side


def _gaps_of(first: First, ledger: Ledger, runs: RunPair) -> list[SharedGap]:
    """Declared settings that differ for the parameter whose update diverges: those of update rules that are
    known, else any, since something makes another update of the same gradient."""
    if not _is_of_update(first, ledger):
        return []
    known = [gap for gap in runs.update_rule_gaps if first.row.name in gap.parameters]
    return known or [gap for gap in runs.other_gaps if first.row.name in gap.parameters]


def _of_update(first: First, ledger: Ledger, scalars: Sequence[ScalarPair], runs: RunPair) -> Reason | None:
    """The setting that made another update, where one differs: the learning rate of the step, else one of the
    update rule."""
    if not _is_of_update(first, ledger):
        return None
    last = first.step if first.row.phase == "optimizer" else first.step - 1
    rates = [one for one in scalars if one.base == RATE and one.beyond and one.rank == first.rank]
    for one in sorted((one for one in rates if one.step <= last), key=lambda one: one.step):
        values = {"target": one.target, "reference": one.reference}
        sides = {side: value if isinstance(value, str) else number(value) for side, value in values.items()}
        return reason(VerdictCode.LEARNING_RATE_DIFFERS, step=one.step, parameter=first.row.name, **sides)
    if runs.stepped is not None and first.row.phase == "optimizer":
        return runs.stepped
    for gap in _gaps_of(first, ledger, runs)[:1]:
        return reason(VerdictCode.UPDATE_SETTING_DIFFERS, parameter=first.row.name, **gap.values)
    return None


def _trained_by_one(first: First, ledger: Ledger) -> Reason | None:
    """Where the runs diverge in a gradient that one has alone, of a weight that only it trains."""
    row = first.row
    if row.phase != "param_grad" or not row.is_of_one_side or row.name not in ledger.trained_by_one:
        return None
    trained = ledger.trained_by_one[row.name]
    if trained is (row.target_record is None):
        return None
    alike = [name for name, by_target in ledger.trained_by_one.items() if by_target is trained]
    sides = {"target": str(trained), "reference": str(not trained)}
    return reason(VerdictCode.TRAINED_BY_ONE, num=len(alike), weight=row.name, **sides)


def _of_fewer_rows(first: First, scalars: Sequence[ScalarPair]) -> Reason | None:
    """Where the runs diverge behind the backward pass, in a step of other microbatches and not as many
    rows in all; as many rows in other microbatches have the same sum of gradients."""
    if first.row.phase not in ("param_grad", "optimizer", "param") or first.row.is_of_one_side:
        return None
    last = first.step - 1 if first.row.phase == "param" else first.step
    apart = {(one.base, one.step): one for one in scalars if one.beyond and one.rank == first.rank}
    for step in sorted(step for base, step in apart if base == "microbatches" and step <= last):
        if ("batch_size", step) in apart:
            pair = apart["microbatches", step]
            both = {"target": pair.target, "reference": pair.reference}
            counts = {side: num for side, num in both.items() if isinstance(num, int)}
            return reason(VerdictCode.STEP_IS_OF, step=step, **counts) if len(counts) == 2 else None
    return None


def _tied_in_one(first: First, runs: RunPair) -> Reason | None:
    """Where the runs diverge in the gradient of a weight that is two weights in one of them."""
    if first.row.phase != "param_grad":
        return None
    ties = [one for one in runs.ties if first.row.name in one.names]
    return reason(WeightsCode.TIE, parameter=ties[0].parameter, **ties[0].sides) if ties else None


def _is_drawn_after(origin: First, lacking: First) -> bool:
    """Whether the runs diverge in weights, after one that only one run has: every later draw is another."""
    return origin.row.phase == "param" and (lacking.step, lacking.order) < (origin.step, origin.order)


def _lacking(
    lacking: First, origin: First, ledger: Ledger, scalars: Sequence[ScalarPair], runs: RunPair
) -> Verdict:
    side = "target" if lacking.row.target_record is None else "reference"
    differ = _differ(origin, ledger, scalars, runs)
    absent = reason(EvidenceCode.PARAMETERS_ABSENT, side=side, parameters=[lacking.row.name])
    evidence = tuple(
        reason(EvidenceCode.SIZE_OF, one, name=origin.row.name)
        if one.code in (EvidenceCode.SIZE, EvidenceCode.NORMS)
        else one
        for one in differ.evidence
        if one != absent and one not in origin.why
    )
    names = {"parameter": lacking.row.name, "weight": origin.row.name}
    return replace(
        differ,
        headline=reason(VerdictCode.PARAMETER_ABSENT, side=side, **names),
        evidence=evidence,
        where=lacking.row.site,
        owner=lacking.owner,
        step=lacking.step,
        confidence=in_words(Word.CERTAIN),
        before=preceding(lacking.before),
    )


def _is_made_with(origin: First, lacking: First, ledger: Ledger) -> bool:
    """Whether what diverges is made with a weight that one run alone has: by its module, or, as a norm of all
    gradients is, behind the backward pass (clipping takes them in a list, which is longer by one). Where both
    runs have such, they may be counterparts; an argument of the module, or another class, says more."""
    is_before = (lacking.step, lacking.order) <= (origin.step, origin.order)
    says_more = origin.argument is not None or origin.classes is not None
    if not is_before or says_more or len(absent_parameters(ledger)) != 1:
        return False
    behind = origin.row.phase == "param_grad" and (origin.row.slot == "clipped" or origin.row.kind == "api")
    return behind or origin.row.phase == "optimizer" or origin.owner == lacking.owner is not None


def _of_more_parameters(
    lacking: First, origin: First, ledger: Ledger, scalars: Sequence[ScalarPair], runs: RunPair
) -> Verdict:
    ((side, names),) = absent_parameters(ledger).items()
    has = "reference" if side == "target" else "target"
    headline = reason(VerdictCode.PARAMETERS_OF_ONE, side=has, num=len(names), parameter=lacking.row.name)
    return replace(
        _differ(origin, ledger, scalars, runs),
        headline=headline,
        where=lacking.row.site,
        owner=lacking.owner,
        step=lacking.step,
        phase=lacking.row.phase,
        confidence=in_words(Word.CERTAIN),
        before=preceding(lacking.before),
    )


def _is_other_data(first: First) -> bool:
    """Whether the runs diverge in what the program gives the model."""
    return first.row.is_from_outside and first.row.kind == "module"


def _headline(first: First) -> Reason:
    if _is_other_data(first):
        name, *others = first.given_apart or [first.row.slot.partition(".")[2]]
        beside = {"others": others} if others else {}
        return reason(VerdictCode.DATA_DIFFERS, step=first.step, name=name, **beside)
    if first.row.phase == "loss" and first.row.slot != "value":
        return reason(VerdictCode.LOSS_INPUT_DIFFERS, name=_named(first.row), step=first.step)
    if first.unpaired_inputs:
        return reason(VerdictCode.INPUT_OF_ONE_SIDE, **dict(first.unpaired_inputs[0].places))
    if first.argument is not None:
        return first.argument
    if first.classes is not None:
        return first.classes
    if first.weight is not None and first.row.kind == "api":
        return reason(VerdictCode.HELD_GRADIENT_CHANGED, weight=first.weight, step=first.step)
    if first.made is not None:
        return first.made
    factor = _common_factor(first)
    if factor is not None:
        return reason(VerdictCode.CLIPPED_OTHERWISE, factor=factor)
    counted = first.row.not_finite_apart
    if counted is not None and 0 in (counted.target, counted.reference):
        return _at_place(VerdictCode.NOT_FINITE, first, what=counted.what, side=counted.side)
    return _at_place(VerdictCode.FIRST_DIVERGENCE, first)


def _named(row: JudgedRow) -> str:
    """What a record of the loss is: what multiplies it is no mask where one side has a sign, which hides
    nothing."""
    name = row.slot.partition(".")[0]
    lowest = [row.columns.get(f"{side}_minimum") for side in ("target", "reference")]
    signed = any(isinstance(one, (int, float)) and one < 0 for one in lowest)
    return FACTORS if name == MASK and signed else name


def _common_factor(first: First) -> float | None:
    """The factor between two gradients as the optimizer receives them, where they were the same after
    backward; None where the difference is no factor."""
    row = first.row
    if (row.phase, row.slot) != ("param_grad", "clipped") or row.scale is None or not row.rel_l2:
        return None
    is_factor = row.residual is not None and row.residual < REST_OF_DIFFERENCE * row.rel_l2
    return row.scale if is_factor and not first.before.exceeding else None


def _at_place(code: VerdictCode, first: First, **facts: str) -> Reason:
    """A headline with the place of a record; ``module`` and ``weight`` only where they are known."""
    known = {"module": first.owner if first.weight is None else None, "weight": first.weight}
    names = {name: value for name, value in known.items() if value is not None}
    return reason(code, phase=first.row.phase, slot=first.row.slot, step=first.step, **names, **facts)


def may_be_noise(score: float | None) -> bool:
    """Whether a difference of so many times its tolerance may be noise that grew; without a number not."""
    return score is not None and score <= NOISE_GROWS


def _other_shape_before(first: First, ledger: Ledger) -> First | None:
    """What a module gave, or was given, in another shape, where what exceeds its tolerance was made after
    that, of something that cannot be compared."""
    shape, error_in = ledger.other_shape, first.row.error_in
    if shape is None or error_in is None or math.isfinite(error_in):
        return None
    if any(one is not None and _is_before(one, shape) for one in (ledger.origin, ledger.other_constant)):
        return None
    return shape if _is_before(shape, first) else None


def _is_before(one: First, other: First) -> bool:
    return (one.step, one.order) < (other.step, other.order)


def _of_other_shape(
    first: First, shape: First, ledger: Ledger, scalars: Sequence[ScalarPair], runs: RunPair
) -> Verdict:
    """The place is the first tensor of another shape; the first numbers that exceed tell that it acts."""
    verdict = _differ(first, ledger, scalars, runs)
    explain_by_attributes(shape, *runs.attributes)
    sides = {side: str(shape.why[0].place(side)) for side in ("target", "reference")}
    given = int(shape.row.slot.startswith("input"))
    headline = reason(VerdictCode.OTHER_SHAPE, module=shape.row.name, given=given, **sides)
    headline = _headline(shape) if _is_other_data(shape) else headline
    numbers = reason(EvidenceCode.FIRST_OF_COMPARED, site=first.row.site, phase=first.row.phase)
    return replace(
        verdict,
        headline=shape.argument or headline,
        where=shape.row.site,
        owner=shape.owner,
        phase=shape.row.phase,
        confidence=in_words(Word.CERTAIN),
        evidence=(*shape.arguments, *shape.why, numbers, *verdict.evidence),
        before=preceding(shape.before),
        next=_next(shape, runs),
    )


def _grown(first: First, ledger: Ledger, scalars: Sequence[ScalarPair], runs: RunPair) -> Verdict:
    """Records that exceed their tolerance, each explained by its inputs: no place introduces the error."""
    verdict = _differ(first, ledger, scalars, runs)
    error_in = first.row.error_in
    entered = {} if error_in is None or math.isinf(error_in) else {"error_in": error_in}
    came = reason(EvidenceCode.INPUTS_DIFFER_ALREADY, **entered)
    verdict = replace(verdict, evidence=(came, *verdict.evidence))
    if not runs.measured or not may_be_noise(first.row.score):
        return verdict
    lone = ledger.lacking
    if lone is not None and (lone.step, lone.order) < (first.step, first.order):
        # An update of what the other run does not have is no noise, and may be as small in the first steps.
        side = "reference" if lone.row.target_record is None else "target"
        headline = reason(VerdictCode.PARAMETER_OF_ONE_SIDE, side=side, parameter=lone.row.name)
        return replace(verdict, outcome=Outcome.UNDECIDED, headline=headline, confidence=None)
    return replace(
        verdict,
        outcome=Outcome.UNDECIDED,
        headline=_at_place(VerdictCode.NOISE_GREW, first),
        confidence=None,
        next=runs.to_do(NextCode.MEASURE_NOISE),
    )


def _next(first: First, runs: RunPair) -> Reason:
    row = first.row
    if _is_other_data(first):
        return runs.to_do(NextCode.DIAGNOSE_DATA)
    if runs.level == "L0" and row.phase in ("forward", "loss", "backward"):
        code = NextCode.CAPTURE_CALLS
    elif row.evidence not in ("values", "digest") and row.phase != "param":
        code = NextCode.CAPTURE_VALUES
    else:
        code = NextCode.READ_REPORT
    return runs.to_do(code, first.step)


def _buffer_dtypes_differ(ledger: Ledger, runs: RunPair) -> Verdict:
    """Records agree within the rounding of a coarse dtype, which hides what a coarser buffer does."""
    apart = runs.buffers.in_other_dtypes
    fqn, (target, reference) = next(iter(apart.items()))
    module, _, name = fqn.rpartition(".")
    facts = {"name": name, "module": module, "target": target["dtype"], "reference": reference["dtype"]}
    return Verdict(
        outcome=Outcome.DIFFER,
        headline=reason(VerdictCode.BUFFER_DIFFERS, **facts),
        where=fqn,
        owner=module,
        phase="forward",
        confidence=in_words(Word.CERTAIN),
        evidence=tuple(
            reason(
                EvidenceCode.BUFFER_DIFFERS,
                name=one.rpartition(".")[2],
                module=one.rpartition(".")[0],
                target=t["dtype"],
                reference=r["dtype"],
            )
            for one, (t, r) in list(apart.items())[:_SHOWN]
        ),
        before=reason(EvidenceCode.ALL_AGREE, compared=ledger.compared),
        next=runs.to_do(NextCode.ALIGN_PRECISION),
    )


def _activations_differ(gap: ActivationGap, ledger: Ledger, runs: RunPair) -> Verdict:
    """Two functions that are nearer to each other than the dtype's tolerance."""
    first = gap.at
    functions = {"target": gap.target, "reference": gap.reference}
    return Verdict(
        outcome=Outcome.DIFFER,
        headline=reason(VerdictCode.ACTIVATION_DIFFERS, module=first.owner or "", **functions),
        where=first.row.site,
        owner=first.owner,
        step=first.step,
        rank=first.rank,
        phase=first.row.phase,
        confidence=in_words(Word.CERTAIN),
        evidence=(reason(EvidenceCode.ACTIVATIONS, num=gap.numbers, **functions),),
        before=preceding(first.before),
        next=runs.to_do(NextCode.READ_REPORT, first.step),
    )


def _is_at(counted: CountedRows, origin: First | None) -> bool:
    """Whether the gradient with rows of one run alone is the first that exceeds its tolerance, and a loss
    sends it: rows of a weight's have more causes, another use of the weight among them."""
    if origin is None or counted.weight is not None:
        return False
    return (counted.at.step, counted.at.rank, counted.order) == (
        origin.step,
        origin.rank,
        origin.order,
    )


def _other_rows_count(found: CountedRows, runs: RunPair) -> Verdict:
    """Rows with a gradient in one run alone, which no rounding makes."""
    first = found.at
    numbers = {"target": found.target, "reference": found.reference, "total": found.total}
    code = VerdictCode.POSITIONS_COUNT if found.weight is None else VerdictCode.ROWS_TRAIN
    of = {"same_loss": found.same_loss} if found.weight is None else {"weight": found.weight}
    return Verdict(
        outcome=Outcome.DIFFER,
        headline=reason(code, **numbers, **of),
        where=first.row.site,
        owner=first.owner,
        step=first.step,
        rank=first.rank,
        phase=first.row.phase,
        confidence=in_words(Word.CERTAIN),
        evidence=(reason(EvidenceCode.ROWS_OF_ONE_SIDE, **numbers),),
        before=preceding(first.before),
        next=runs.to_do(NextCode.READ_REPORT, first.step),
    )


def _setting_of(module: str, settings: Sequence[Reason]) -> Reason | None:
    """The attribute that made a module write other buffers, where one differs."""
    if not settings:
        return None
    return reason(VerdictCode.ARGUMENT_DIFFERS, what="attribute", module=module, **settings[0].facts)


def _buffers_differ(ledger: Ledger, runs: RunPair) -> Verdict:
    """All that training reads agrees; what evaluation will read does not."""
    first = runs.buffers.written[0]
    here = [gap for gap in runs.buffers.written if (gap.step, gap.rank) == (first.step, first.rank)]
    num = len({gap.fqn for gap in here})
    written: dict[str, Number | Place] = {"num": num, "step": first.step, "name": first.fqn}
    if first.rank is not None:
        written["ranks"] = (str(first.rank),)
    norms: dict[str, Number | Place] = {"target": first.target, "reference": first.reference}
    settings = settings_of_writers(runs.buffers, *runs.attributes)
    site = (reason(EvidenceCode.ARGUMENTS_DIFFER, *settings, site=first.module),) if settings else ()
    return Verdict(
        outcome=Outcome.DIFFER,
        headline=_setting_of(first.module, settings) or reason(VerdictCode.BUFFERS_WRITTEN, **written),
        where=first.fqn,
        owner=first.module,
        step=first.step,
        phase="forward",
        confidence=in_words(Word.CERTAIN),
        evidence=(
            *site,
            reason(EvidenceCode.BUFFERS_WRITTEN, by_norm=first.by_norm, **written, **norms),
            *runs.buffers.follow,
        ),
        before=reason(EvidenceCode.ALL_AGREE, compared=ledger.compared),
        next=runs.to_do(NextCode.READ_REPORT, first.step),
    )


def _masters_differ(gap: MasterGap, ledger: Ledger, runs: RunPair) -> Verdict:
    """Up to a step's update nothing differs but what the programs' own updates make of equal gradients."""
    return Verdict(
        outcome=Outcome.DIFFER,
        headline=gap.headline,
        where=f"master weights · {gap.names[0]}",
        owner=gap.names[0].rpartition(".")[0],
        step=gap.step,
        phase="optimizer",
        confidence=in_words(Word.CERTAIN),
        evidence=gap.evidence,
        before=None,
        next=runs.to_do(NextCode.READ_REPORT, gap.step),
    )


def _averages_differ(gap: AverageGap, ledger: Ledger, runs: RunPair) -> Verdict:
    """All that training reads agrees; the weights that the program averages beside it do not."""
    return Verdict(
        outcome=Outcome.DIFFER,
        headline=gap.headline,
        where=f"averaged weights · {gap.names[0]}",
        owner=gap.names[0].rpartition(".")[0],
        step=gap.step,
        rank=gap.rank or None,
        phase="optimizer",
        confidence=in_words(Word.CERTAIN),
        evidence=gap.evidence,
        before=reason(EvidenceCode.ALL_AGREE, compared=ledger.compared),
        next=runs.to_do(NextCode.READ_REPORT, gap.step),
    )


def _scalars_differ(apart: list[ScalarPair], ledger: Ledger) -> Verdict:
    names = sorted({pair.name for pair in apart})
    of_norm, step = names == [NORM], apart[0].step
    return Verdict(
        outcome=Outcome.DIFFER,
        headline=reason(VerdictCode.GRADIENT_NORM_DIFFERS, step=step)
        if of_norm
        else reason(VerdictCode.SETTINGS_DIFFER, names=names),
        where=NORM_SITE if of_norm else None,
        step=step,
        phase="param_grad" if of_norm else None,
        confidence=in_words(Word.CERTAIN),
        evidence=tuple(scalar_reason(EvidenceCode.SCALAR_DIFFERS, [pair]) for pair in apart[:6]),
        before=reason(EvidenceCode.ALL_AGREE, compared=ledger.compared),
        next=Reason(NextCode.CHECK_GRADIENT_NORM if of_norm else NextCode.ALIGN_SETTINGS),
    )


def _loss_differs_later(
    pair: ScalarPair, ledger: Ledger, scalars: Sequence[ScalarPair], runs: RunPair
) -> Verdict:
    """The captured steps agree, and do not contain what makes the losses differ: another batch, another
    optimizer's turn, or what a few updates add up to."""
    apart = later_batches(scalars, pair.step)
    again = batches_again(scalars, apart)
    code = VerdictCode.LATER_BATCH_DIFFERS if apart else VerdictCode.LOSS_DIFFERS_LATER
    evidence = [scalar_reason(EvidenceCode.SCALAR_DIFFERS, [pair])]
    if apart:
        evidence.append(scalar_reason(EvidenceCode.SETTING_DIFFERS, apart))
    if again is not None:
        evidence.insert(0, reason(EvidenceCode.BATCH_AGAIN, step=pair.step, side=again[0], of=again[1]))
    return Verdict(
        outcome=Outcome.DIFFER,
        headline=reason(code, step=pair.step),
        step=pair.step,
        phase="loss",
        confidence=in_words(Word.CERTAIN),
        evidence=tuple(evidence),
        before=reason(EvidenceCode.ALL_AGREE, compared=ledger.compared),
        next=reason(NextCode.CAPTURE_STEPS, before=pair.step - 1, step=pair.step, command=runs.command),
    )


def _optimizers_differ(gaps: Sequence[SharedGap], ledger: Ledger) -> Verdict:
    """The update rules differ, though what was captured does not show it: few steps, or weights too coarse
    (docs/decisions/0025-declared-optimizer-settings.md)."""
    return Verdict(
        outcome=Outcome.DIFFER,
        headline=reason(VerdictCode.OPTIMIZER_SETTING_DIFFERS, **gaps[0].values),
        where=f"optimizer · {gaps[0].gap.key}",
        phase="optimizer",
        confidence=in_words(Word.CERTAIN),
        evidence=tuple(_gap_reasons(gaps)),
        before=reason(EvidenceCode.ALL_AGREE, compared=ledger.compared),
        next=Reason(NextCode.ALIGN_SETTINGS),
    )


def _other_weights_updated(copies: UpdatedCopies, ledger: Ledger) -> Verdict:
    """Nothing that one optimizer updates has a counterpart: one of them updates copies in a finer dtype."""
    dtypes = {"target": copies.target, "reference": copies.reference}
    of = copies.weights
    return Verdict(
        outcome=Outcome.DIFFER,
        headline=reason(VerdictCode.UPDATES_COPIES, side=copies.side, **dtypes),
        where=f"optimizer · {of[0]}",
        phase="optimizer",
        confidence=in_words(Word.CERTAIN),
        evidence=(
            reason(EvidenceCode.UPDATES_COPIES, side=copies.side, parameters=of, num=len(of), **dtypes),
        ),
        before=reason(EvidenceCode.ALL_AGREE, compared=ledger.compared),
        next=Reason(NextCode.ALIGN_PRECISION),
    )


def _gap_reasons(gaps: Sequence[SharedGap]) -> list[Reason]:
    code = EvidenceCode.OPTIMIZER_SETTING_DIFFERS
    return [reason(code, **gap.values, parameters=gap.parameters, num=len(gap.parameters)) for gap in gaps]


def _undecided(ledger: Ledger, runs: RunPair) -> Verdict:
    return Verdict(
        outcome=Outcome.UNDECIDED,
        headline=reason(
            VerdictCode.NOT_BRACKETED, records=ledger.not_bracketed, digests=ledger.digests_differ
        ),
        evidence=tuple(ledger.not_bracketed_examples),
        before=reason(EvidenceCode.ALL_AGREE, compared=ledger.compared),
        next=Reason(NextCode.CAPTURE_STATISTICS)
        if ledger.digests_differ
        else runs.to_do(NextCode.READ_UNDECIDED),
    )


def _agree_in_part(ledger: Ledger, phases: list[str], runs: RunPair) -> Verdict:
    """All that was compared agrees, but of some phases only one run holds anything."""
    return Verdict(
        outcome=Outcome.UNDECIDED if runs.alike else Outcome.AGREE,
        headline=reason(VerdictCode.AGREE_IN_PART, phases=phases, same_options=runs.alike),
        evidence=(
            reason(EvidenceCode.COMPARED_AND_AGREE, compared=ledger.compared),
            reason(EvidenceCode.PHASES_NOT_COMPARED, phases=phases),
        ),
        next=Reason(NextCode.CHECK_TRAINING if runs.alike else NextCode.CAPTURE_SAME_PHASES),
    )


def _not_compared(ledger: Ledger, phases: list[str], captured: tuple[Reason, ...]) -> Verdict:
    """What was compared agrees, but of a phase that both runs hold not one record has a counterpart."""
    return Verdict(
        outcome=Outcome.UNDECIDED,
        headline=reason(VerdictCode.NOTHING_COMPARED_OF, *captured, phases=phases),
        evidence=(
            reason(EvidenceCode.PHASES_NOT_COMPARED, phases=phases),
            reason(EvidenceCode.COMPARED_AND_AGREE, compared=ledger.compared, others=True),
        ),
        next=Reason(NextCode.CAPTURE_SAME_OPTIONS),
    )


def _agree(ledger: Ledger, runs: RunPair) -> Verdict:
    total, captured = sum(ledger.counts.values()), runs.captured
    equal = _num_equal(ledger)
    rest = NextCode.CAPTURE_SAME_OPTIONS if captured and ledger.compared < total else NextCode.NOTHING
    evidence = _agreeing(equal, ledger.compared, total - ledger.inside, captured)
    alike = VerdictCode.AGREE if runs.averages.within else _agreement(equal, ledger.compared, total)
    headline = Reason(alike)
    if ledger.inside:
        headline = reason(VerdictCode.AGREE_BUT_INSIDE, num=ledger.inside)
        if ledger.inputs:
            headline = reason(VerdictCode.AGREE_BUT_INPUT, names=ledger.inputs)
        exceeding = {"num": ledger.inside, "site": ledger.inside_at}
        evidence.insert(0, reason(EvidenceCode.WITHOUT_EFFECT, **exceeding))
    elif ledger.apart is not None:
        evidence.append(ledger.apart)
    return Verdict(
        outcome=Outcome.AGREE,
        headline=headline,
        evidence=tuple(evidence),
        next=Reason(rest),
    )


def _num_equal(ledger: Ledger) -> int:
    return sum(count for (_, status), count in ledger.counts.items() if status is Status.EQUAL)


def _agreement(equal: int, compared: int, total: int) -> VerdictCode:
    if equal == total:
        return VerdictCode.BIT_IDENTICAL
    return VerdictCode.COMPARED_IS_BIT_IDENTICAL if equal == compared else VerdictCode.AGREE


def _agreeing(equal: int, compared: int, total: int, captured: tuple[Reason, ...]) -> list[Reason]:
    """How what was compared agrees, and why the rest was not compared."""
    found = [reason(EvidenceCode.COMPARED, equal=equal, within=compared - equal)]
    if total > compared and captured:
        found.append(reason(EvidenceCode.NOT_COMPARED, *captured, records=total - compared))
    elif total > compared:
        found.append(reason(EvidenceCode.SAME_MATHEMATICS, records=total - compared))
    return found
