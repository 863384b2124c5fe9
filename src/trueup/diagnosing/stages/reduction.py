"""Stage: gradients on their way from backward to the optimizer: summed over microbatches and ranks, cleared
between steps, clipped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl

from trueup.comparing.thresholds import COARSER
from trueup.diagnosing.ledger import Summing, factor_rounding, handovers, summings
from trueup.diagnosing.optimizer_fit import roundoff_of
from trueup.diagnosing.stages.clipped_between import clipped_between_findings
from trueup.diagnosing.stages.clipping import (
    clipping_findings,
    clipping_of,
    loss_scale_findings,
    norms_of_own_parts,
)
from trueup.diagnosing.stages.clipping_ranks import clipping_over_ranks
from trueup.diagnosing.stages.context import Context, counted, is_beyond, is_compared
from trueup.diagnosing.stages.copies import copies_findings
from trueup.diagnosing.stages.forward import precision_findings
from trueup.diagnosing.stages.from_origin import finding_from_origin
from trueup.diagnosing.stages.left_out import left_out_of_clipping
from trueup.diagnosing.stages.master_gradients import master_gradient_findings
from trueup.diagnosing.stages.naming import described, kind_named, place_of, site_of
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.diagnosing.stages.reported_norm import norm_before_reduction, reported_norm_findings
from trueup.diagnosing.stages.schedule import stepping_findings
from trueup.diagnosing.thresholds import (
    AT_TOP,
    FACTOR_KNOWN,
    ROUNDED_LEAST,
    ROUNDED_TIMES,
    SAME_FACTOR,
    SUM_CHANGED,
    SUM_EXPLAINED,
    SUM_WORSE,
)
from trueup.diagnosing.whose import axis_of_factor, of_ranks
from trueup.merging.sides import mesh_of
from trueup.store import StepView, TraceSource
from trueup.store.view import ACCUMULATED, CLIPPED
from trueup.types.codes import ClippingCode as Clip
from trueup.types.codes import RecordCode, VerdictCode
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Basis, EvidenceRank, Finding, Origin, Stage
from trueup.types.layout import Layout
from trueup.types.reason import Number, Reason, reason


class ReductionStage:
    """Accumulation, reduction, clearing and clipping, in every captured step."""

    stage = Stage.REDUCTION
    title = reason(Stages.TITLE, key="reduction")

    # In one piece: one branch a question, in the order in which their answers exclude each other.
    def check(self, context: Context) -> StageOutcome:
        """Compare what each run does to its own gradients."""
        if any(one.headline.code is Stages.CLEARED_BEFORE_UPDATE for one in stepping_findings(context)):
            # No update takes the gradients that the target clears: they may be those before the reduction.
            return StageOutcome(
                stage=self.stage,
                title=self.title,
                status=StageStatus.SKIPPED,
                conclusion=reason(Stages.CLEARED_NOT_REDUCED),
            )
        findings = clipped_between_findings(context)
        if findings:  # what each gradient is a sum of follows, and what is clipped to at last
            return self._outcome(context, tuple(findings), ())
        findings, notes = _all_summed(context)
        precision = list(precision_findings(context, Stage.REDUCTION))
        if any(one.headline.code is VerdictCode.SUMS_IN for one in precision):
            findings = precision
        elif precision and precision[0].phase == "collective":
            findings = _rounded_by(precision[0].headline, findings)
        apart = copies_findings(context) if context.failed_before() is None else []
        findings += apart
        scale_findings, scales = loss_scale_findings(context)
        findings += scale_findings
        notes += scales
        if not apart and context.undone == 1.0:  # else the norm is that of gradients which are not one
            clip_findings, clip_notes = clipping_findings(context)
            # else what clipping does to a gradient is not told from its reduction
            summed_alike = all(_follows_dtype(one, context) for one in findings)
            is_left_out = any(f.headline.code is Clip.LEFT_OUT for f in findings)
            of_method = (Clip.METHOD_DIFFERS, Clip.MULTIPLIED_DIFFERS, *(_OF_SUMS if is_left_out else ()))
            findings += [f for f in clip_findings if summed_alike or f.headline.code not in of_method]
            notes += clip_notes
            findings = _with_norm_taken(findings, context)
        if not findings and len(context.ranks) > 1:
            own_norms = norms_of_own_parts(context, ("norm", "later"))
            findings += [own_norms] if own_norms is not None else clipping_over_ranks(context)
        if not findings:
            findings += precision
        if not findings and (context.all_passed or (not notes and context.failed_before() is None)):
            origins = [o for o in context.origins_of(Stage.REDUCTION) if not _is_of_others(o, context)]
            origins.sort(key=lambda origin: origin.phase == "collective")  # a parameter says more than a call
            findings = [finding_from_origin(origin, context) for origin in origins]
        if not findings and context.failed_before() is None:
            coarser = [o for o in context.origins_of(Stage.REDUCTION) if _is_exchanged_coarser(o, context)]
            findings = [finding_from_origin(origin, context) for origin in coarser[:1]]
        if not findings:
            findings = reported_norm_findings(context) or reduced_by_one(context)
        findings = [one for one in findings if not _follows_dtype(one, context)]
        return self._outcome(context, tuple(findings), tuple(dict.fromkeys(notes)))

    def _outcome(
        self, context: Context, findings: tuple[Finding, ...], notes: tuple[Reason, ...]
    ) -> StageOutcome:
        outcome = partial(StageOutcome, stage=self.stage, title=self.title)
        late = (pl.col("phase") == "collective") | pl.col("slot").is_in(["accumulated", "clipped"])
        rows = context.of_phases("param_grad", "collective").filter(late)
        evidence = (*notes, counted(rows)) if rows.height else notes
        if findings:
            head = findings[0].headline
            return outcome(
                status=StageStatus.FAILED,
                conclusion=head,
                evidence=evidence,
                findings=findings,
                confirmed=True,
            )
        if not notes and rows.filter(is_compared()).is_empty():
            why = reason(Stages.NOTHING_RECORDED, what="gradient")
            return outcome(status=StageStatus.UNDECIDED, conclusion=why)
        if rows.filter(is_beyond()).is_empty():
            head = context.agreement_at(rows)
            if context.undone != 1.0:
                head = reason(Stages.SCALE_UNDONE, factor=context.undone)
            return outcome(status=StageStatus.PASSED, conclusion=head, evidence=evidence, confirmed=True)
        before = context.failed_before()
        if not any(one.code in _ALIKE for one in notes):
            if before is not None:
                follows = reason(Stages.FOLLOWS, stage=before.stage.value)
                return outcome(status=StageStatus.CONSEQUENCE, conclusion=follows, evidence=evidence)
            beyond = rows.filter(is_beyond())
            nowhere = reason(Stages.NO_PLACE, num=beyond.height, site=str(beyond["site"][0]))
            return outcome(status=StageStatus.UNDECIDED, conclusion=nowhere, evidence=evidence)
        head = reason(Stages.BOTH_ALIKE)
        return outcome(status=StageStatus.CONSEQUENCE, conclusion=head, evidence=evidence)


def _rounded_by(collective: Reason, findings: list[Finding]) -> list[Finding]:
    """One finding where all are sums that went through a coarser dtype: the collective that has it."""
    if not findings or any(one.headline.code is not Stages.ROUNDED for one in findings):
        return findings
    first = findings[0]
    return [replace(first, headline=collective, evidence=(first.headline, *first.evidence))]


def reduced_by_one(context: Context) -> list[Finding]:
    """A reduction that one run alone makes, which made the first other bits of runs that agree."""
    verdict = context.comparison.verdict
    if verdict.headline.code is not VerdictCode.REDUCED_BY_ONE:
        return []
    lacks = verdict.headline.place("side") == "reference"
    return [
        Finding(
            stage=Stage.REDUCTION,
            headline=verdict.headline,
            module=None,
            site=verdict.where,
            phase=verdict.phase,
            step=verdict.step,
            rank=verdict.rank,
            kinds=(kind_named("missing_all_reduce", EvidenceRank.EVERY_ELEMENT, verdict.evidence[0]),)
            if lacks
            else (),
            basis=Basis.RECORDED,
            evidence=verdict.evidence,
        )
    ]


# In one piece: one branch a headline that roundings of a dtype can make.
def _follows_dtype(finding: Finding, context: Context) -> bool:
    """Whether weights in another dtype make it: their gradients have that dtype, and what a norm or a sum is
    off by then is its rounding."""
    dtypes, headline = context.dtypes_of_weights, finding.headline
    if dtypes is None:
        return False
    if headline.code is Stages.ROUNDED:
        return True
    sides = ("target", "reference")
    sums = [one for one in finding.evidence if one.code is Stages.SUMMED]
    left = [one.number(f"{side}_residual") for one in sums for side in sides]
    reasons = (part for one in finding.evidence for part in (one, *one.parts))
    uneven = (one for one in reasons if one.code is Clip.BY_PARAMETER)
    left += [(one.number("factor") or 0.0) / (one.number("usual") or 1.0) - 1 for one in uneven]
    if headline.code is Stages.SCALED:
        left.append((headline.number("factor") or 0.0) - 1)
    elif headline.code is Clip.REPORTED_NORM:
        left = [(headline.number(side) or 0.0) - 1 for side in sides]
    elif headline.code is not Stages.CHANGED:
        return False
    most = COARSER * max(map(roundoff_of, dtypes))
    return bool(left) and all(one is not None and abs(one) <= most for one in left)


def _with_norm_taken(findings: list[Finding], context: Context) -> list[Finding]:
    """Other norms that are clipped to, where one run takes them before it reduces: that is the cause. Each
    rank's gradients have a factor of their own then, and no factor of their sum explains it."""
    apart = [one for one in findings if one.headline.code is Clip.NORM_DIFFERS]
    taken = norm_before_reduction(context) if apart else None
    if taken is None:
        return findings
    cause = (reason(Clip.NORM_CAUSE),)
    led = replace(apart[0], headline=taken, evidence=(taken, *apart[0].evidence[:1]), causes=cause)
    return [led, *(one for one in findings if one not in apart and one.headline.code not in _OF_SUMS)]


_ALIKE = (Stages.SUMMED_ALIKE, Clip.BOTH)
"""what says that both runs reduce, or clip, alike"""
_OF_SUMS = (Stages.ROUNDED, Stages.SCALED, Stages.CHANGED)


def _is_exchanged_coarser(origin: Origin, context: Context) -> bool:
    """Whether what a rank gives to a collective is of another dtype than in the reference (activations that a
    stage of a pipeline sends)."""
    names = {"phase": "collective", "site": origin.site}
    rows = context.rows.filter(*(pl.col(name).cast(pl.String) == value for name, value in names.items()))
    dtypes = (pl.col(f"{side}_dtype").cast(pl.String) for side in ("target", "reference"))
    return origin.phase == "collective" and not rows.filter(pl.Expr.ne(*dtypes)).is_empty()


def _is_of_others(origin: Origin, context: Context) -> bool:
    """Whether another stage is to say it: of a parameter in no optimizer, of weights on their way back from
    one, of what such weights make of a later step. A replay that is given gradients of another loss scale
    clips what no run clips."""
    hands_back = origin.phase == "collective" and "gather" in origin.site
    other_scale = context.by_replay and context.loss_scales_differ and origin.slot == CLIPPED[1]
    if hands_back or other_scale or _agrees_by_itself(origin, context):
        return True
    return context.follows_weights(origin) or _held_by_none(origin, context)


def _agrees_by_itself(origin: Origin, context: Context) -> bool:
    """Whether a replay alone shows it: where the runs themselves have one gradient before the reduction and
    one after it, both reduce alike. One of them may do so in every microbatch, of which a replay puts in what
    the other has before its only one; or after backward, to the same end."""
    if not context.by_replay or origin.phase != "param_grad":
        return False
    at = next((n for n, steps in enumerate(context.steps) if steps[0] == origin.step), 0)
    named = pl.any_horizontal(pl.col("name", "module").cast(pl.String) == origin.module)
    later = pl.col("reason_code").cast(pl.String) == RecordCode.REDUCED_LATER.value
    rows = context.of_phases("param_grad", at=at).filter(named, is_compared() | later)
    slots = set(rows["slot"].cast(pl.String))
    return {"local", "accumulated"} <= slots and rows.filter(is_beyond()).is_empty()


def _held_by_none(origin: Origin, context: Context) -> bool:
    """Whether it is about a parameter that is in no optimizer of the target: the next stage's to say."""
    book = context.pair(0)[0]
    known = book.parameter(origin.module, *ACCUMULATED) is not None
    return known and book.parameter(origin.module, *CLIPPED) is None


# -- summing ------------------------------------------


def _all_summed(context: Context) -> tuple[list[Finding], list[Reason]]:
    """Of the first step in which sums differ; none where the loss's factor is taken out of them again, since
    other factors of a sum then come to one end."""
    findings: list[Finding] = []
    notes: list[Reason] = []
    target, reference = context.microbatches
    num_steps = min(len(context.steps), 2 if target == reference else 1)
    for at in range(num_steps if context.undone == 1.0 else 0):
        for rank in context.ranks:
            of_masters, gathered = master_gradient_findings(context, at, rank)
            findings += of_masters
            for part in (ACCUMULATED, CLIPPED):
                more, words = _summed(context, at, rank, part, gathered)
                findings += more
                notes += words
        if findings:
            break
    return one_each(findings, context), notes


# In one piece: one pass over the weights; what excludes one is asked of it alone.
def _summed(
    context: Context, at: int, rank: int, part: tuple[str, str], elsewhere: set[str]
) -> tuple[list[Finding], list[Reason]]:
    """Of all weights but those whose sums are made ``elsewhere``."""
    sides = [_summings(context, source, at, rank, part) for source in (context.target, context.reference)]
    target, reference = sides
    if not target or not reference:
        return [], []
    step = context.steps[at][0]
    book = context.book(context.target, step, rank)
    apart: dict[tuple[str, str, float, float, tuple[float, ...]], list[str]] = {}
    later = elsewhere | _reduced_later(context, at) | _equal_throughout(context, at)
    for fqn, own in target.items():
        other = reference.get(context.matched.get(fqn, fqn))
        if other is None or fqn in later or (at > 0 and _is_left(fqn, context, at)):
            continue
        held = (_of_holding if part is ACCUMULATED else _of_factor)(fqn, book, context, at)
        rounds = _is_same_sum(own, other, held) and own.residual <= _allowed(fqn, book, context, at, part)
        if _differs(own, other, part, held=held) and not rounds:
            key = (own.key, other.key, _rounded(own.factor), _rounded(other.factor), own.weights)
            apart.setdefault(key, []).append(fqn)
    if not apart:
        every = Counter(s.way for s in target.values())
        ways = Counter({way: num for way, num in every.items() if way != "unknown"}) or every
        if part is CLIPPED and set(ways) <= {"own"}:
            return [], []
        common = ways.most_common()
        kinds, numbers = [way for way, _ in common], [str(number) for _, number in common]
        return [], [reason(Stages.SUMMED_ALIKE, step=step, part=part[1], ways=kinds, numbers=numbers)]
    groups = sorted(apart.items(), key=lambda item: -len(item[1]))
    return [_summing_finding(names, target, reference, context, book, part) for _, names in groups[:4]], []


def _is_left(fqn: str, context: Context, at: int) -> bool:
    """Whether a weight is in no optimizer, which would clear its gradient. A step whose update was skipped,
    since gradients are not finite, tells that of none."""
    own, other = context.pair(at)
    skipped = not own.parameters_with(*CLIPPED) and bool(other.parameters_with(*CLIPPED))
    if skipped and own.has_not_finite(own.parameter(fqn, *ACCUMULATED)):
        return False
    return own.parameter(fqn, *CLIPPED) is None


def _allowed(fqn: str, book: StepView, context: Context, at: int, part: tuple[str, str]) -> float:
    """What rounding alone may leave over of a gradient's sum, or of its factor."""
    return (_of_additions if part is ACCUMULATED else _of_scaling)(fqn, book, context, at)


def _of_additions(fqn: str, book: StepView, context: Context, at: int) -> float:
    """What adding up the target's microbatches rounds in the dtype that holds the gradient on both sides: no
    coarser dtype, where the reference adds up fewer."""
    target, reference = context.additions
    dtypes = set(_held_in(fqn, book, context, at))
    if target <= reference or len(dtypes) > 1:
        return 0.0
    return (target - 1) * roundoff_of(dtypes.pop())


def _of_scaling(fqn: str, book: StepView, context: Context, at: int) -> float:
    """What multiplying by a factor, of clipping say, rounds in the dtype that holds the gradient on both
    sides: a run that clips rounds once where one that need not rounds nothing."""
    dtypes = set(_held_in(fqn, book, context, at))
    return roundoff_of(dtypes.pop()) if len(dtypes) == 1 else 0.0


def _of_holding(fqn: str, book: StepView, context: Context, at: int) -> float:
    """How far rounding may set apart the factors of both sums: adding up n gradients rounds n - 1 times, each
    time by a roundoff of the dtype that holds them, where few large elements are most of a gradient all of it
    in the factor; roundings of several additions add up as their root."""
    pairs = zip(context.additions, _held_in(fqn, book, context, at), strict=True)
    return sum(math.sqrt(max(num - 1, 0)) * roundoff_of(dtype) for num, dtype in pairs)


def _of_factor(fqn: str, book: StepView, context: Context, at: int) -> float:
    """How far rounding may set apart the factors that both sides clip a gradient by."""
    other = context.book(context.reference, context.steps[at][1], book.rank)
    name = context.matched.get(fqn, fqn)
    return factor_rounding(book).get(fqn, 0.0) + factor_rounding(other).get(name, 0.0)


def _held_in(fqn: str, book: StepView, context: Context, at: int) -> tuple[str | None, str | None]:
    """Dtypes of the sum on both sides."""
    other = context.book(context.reference, context.steps[at][1], book.rank)
    name = context.matched.get(fqn, fqn)
    return book.dtype(book.parameter(fqn, *ACCUMULATED)), other.dtype(other.parameter(name, *ACCUMULATED))


def _reduced_later(context: Context, at: int) -> set[str]:
    """Parameters whose gradient one run reduces within backward and the other after it, to the same end. A
    gradient that cancels to rounding (of a bias before a batch norm) does not differ either way. And those
    whose masters are given gradients that agree."""
    rows = context.of_phases("param_grad", at=at)
    code = pl.col("reason_code").cast(pl.String)
    elsewhere = set(rows.filter(code == RecordCode.GATHERED_ELSEWHERE.value)["name"].to_list())
    left = rows.filter(code == RecordCode.REDUCED_LATER.value)
    if left.is_empty():
        return elsewhere
    beyond = set(rows.filter(is_beyond())["name"].to_list())
    compared = set(rows.filter(is_compared())["name"].to_list())
    return set(left["name"].to_list()) | (compared - beyond) | elsewhere


def _equal_throughout(context: Context, at: int) -> set[str]:
    """Parameters whose gradients are bit-identical in the runs all the way, on every rank: of the same
    numbers both make the same, and the norm that a program reports on the way tells nothing of it."""
    rows = context.of_phases("param_grad", at=at).group_by("name").agg((pl.col("status") == "equal").all())
    return set(rows.filter(pl.col("status"))["name"].to_list())


def _rounded(factor: float) -> float:
    return float(f"{factor:.3g}") if math.isfinite(factor) else factor


def _summings(
    context: Context, source: TraceSource, at: int, rank: int, part: tuple[str, str]
) -> dict[str, Summing]:
    step = context.steps[at][source is context.reference]
    ranks = source.steps().get(step, [])
    books = [context.book(source, step, r) for r in ranks]
    if rank in ranks and part is CLIPPED:
        clip = clipping_of(context, source, step, rank)
        if clip is not None and clip.way in ("value", "own"):
            return {}  # of its elements or its norm, not of its sum
        known = clip is not None and clip.way == "later" and clip.reported is not None
        return handovers(
            books, ranks.index(rank), clip.factor if clip is not None and known else None, mesh_of(source)
        )
    earlier = context.steps[at - 1][source is context.reference] if at else None
    before = None if earlier is None else [context.book(source, earlier, r) for r in ranks]
    return summings(books, ranks.index(rank), before, mesh_of(source)) if rank in ranks else {}


def _differs(own: Summing, other: Summing, part: tuple[str, str], *, held: float = 0.0) -> bool:
    if "unknown" in (own.way, other.way):
        return False
    if _share_a_way(own, other):
        return _is_rounded(own, other)
    linear = max(own.residual, other.residual) < SUM_EXPLAINED
    if part is CLIPPED and not linear:
        return False  # clipping of single values or parameters, which is told by itself
    if own.key != other.key:
        return linear or bool({"carried", "none", "partly", "weighted"} & {own.way, other.way})
    if not _have_same_factor(own, other, held):
        return True
    return own.residual > max(SUM_WORSE * other.residual, SUM_CHANGED) or _is_rounded(own, other)


def _share_a_way(own: Summing, other: Summing) -> bool:
    """Whether one way, with one factor, explains both."""
    shared = dict(other.holding)
    return any(
        way in shared and abs(factor - shared[way]) <= SAME_FACTOR * abs(shared[way])
        for way, factor in own.holding
    )


def _have_same_factor(own: Summing, other: Summing, held: float) -> bool:
    """Equal as far as they are known. A factor is that of the few largest elements where they are most of a
    gradient, and known no better than they are: to what it leaves over, and to what rounding of the sums may
    do to them (``held``)."""
    known = FACTOR_KNOWN * (own.residual * abs(own.factor) + other.residual * abs(other.factor))
    known = max(known, held * max(abs(own.factor), abs(other.factor)))
    return abs(own.factor - other.factor) <= max(SAME_FACTOR * max(abs(other.factor), 1e-9), known)


def _is_same_sum(own: Summing, other: Summing, held: float) -> bool:
    """Whether both are sums of the same gradients, so that only rounding can set them apart."""
    return _share_a_way(own, other) or (own.key == other.key and _have_same_factor(own, other, held))


def _is_rounded(own: Summing, other: Summing) -> bool:
    """Whether the target's sum is by far the coarser of the two: it went through a coarser dtype."""
    return max(ROUNDED_TIMES * other.residual, ROUNDED_LEAST) < own.residual < SUM_EXPLAINED


def _summing_finding(
    names: list[str],
    target: dict[str, Summing],
    reference: dict[str, Summing],
    context: Context,
    book: StepView,
    part: tuple[str, str],
) -> Finding:
    own, other = target[names[0]], reference[context.matched.get(names[0], names[0])]
    shapes = {f: list(book.shape(book.parameter(f, *ACCUMULATED)) or ()) for f in target}
    who = described(names, shapes)
    kind, headline = _named(own, other, who, in_places=_is_changed_in_places(names[0], own, book, part))
    sums = _sums(names[0], own, other)
    left_out = _left_out(names, who, context, book) if part is CLIPPED else None
    if left_out is not None:
        kind, (headline, sums) = "wrong_optimizer_setting", left_out
    causes: tuple[Reason, ...] = (reason(Stages.BETWEEN_MICROBATCHES),) if own.way == "weighted" else ()
    if left_out is not None:
        groups = (Clip.GROUPS_CAUSE,) if headline.place("counts") in ("below", "own") else ()
        of_own = (*groups, *(() if headline.place("counts") == "own" else (Clip.NORM_CAUSE,)))
        causes = tuple(reason(code) for code in of_own)
    named = kind_named(kind, EvidenceRank.EVERY_ELEMENT, sums, causes=causes or None, phase="param_grad")
    return Finding(
        stage=Stage.REDUCTION,
        headline=headline,
        module=place_of(names, shapes),
        site=site_of(names, f"gradient {part[1]}"),
        phase="param_grad",
        step=book.step,
        rank=None if own.in_pieces or other.in_pieces else book.rank,
        axis=_axis_of(own, other, context.layout),
        kinds=(named,),
        basis=Basis.RECORDED,
        evidence=(sums, reason(Stages.NUM_GRADIENTS, num=len(names), total=len(target))),
        counter_evidence=(reason(Stages.FROM_OWN_GRADIENTS),),
        causes=named.causes,
        next_note=reason(Clip.COMPARE_NORMS) if left_out is not None else named.next,
    )


def _left_out(names: list[str], who: str, context: Context, book: StepView) -> tuple[Reason, Reason] | None:
    """Headline and evidence where these alone are not clipped, in the first step."""
    steps = context.steps[0]
    if book.step != steps[0]:
        return None
    own = clipping_of(context, context.target, steps[0], book.rank)
    other = clipping_of(context, context.reference, steps[1], book.rank)
    return left_out_of_clipping(names, who, (own, other), context, book.rank)


def _axis_of(own: Summing, other: Summing, mesh: Layout) -> str | None:
    """The axis that is summed over on one side alone, or whose size is the factor."""
    summed = {"own", "ranks"}
    if {own.way, other.way} <= summed and own.over != other.over:
        apart = [axis for axis in mesh.wide_axes if (axis in own.over) != (axis in other.over)]
        return apart[0] if apart else None
    factor = own.factor / other.factor if other.factor else 0.0
    return axis_of_factor(factor, mesh, first=own.over)


def _is_changed_in_places(fqn: str, own: Summing, book: StepView, part: tuple[str, str]) -> bool:
    """Whether most elements are what they were before the optimizer got them, times one factor: a coarser
    dtype rounds nearly all of them."""
    if part is not CLIPPED or own.way != "own":
        return False
    before, after = (book.value(book.parameter(fqn, *slot)) for slot in (ACCUMULATED, CLIPPED))
    if before is None or after is None or before.shape != after.shape or not np.any(before):
        return False
    there = before != 0
    factors = after[there] / before[there]
    return bool(np.mean(np.abs(factors - np.median(factors)) <= AT_TOP * np.abs(np.median(factors))) > 0.5)


def _named(own: Summing, other: Summing, who: str, *, in_places: bool) -> tuple[str, Reason]:
    if own.way == "carried":
        return "missing_zero_grad", reason(Stages.CARRIED, parameters=who)
    if own.way == "partly":
        only = [str(number) for number in own.microbatches]
        return "missing_all_reduce", reason(Stages.PARTLY_REDUCED, parameters=who, microbatches=only)
    if own.way == "none":
        return "frozen_or_missing_gradient", reason(Stages.NEVER_REACH, parameters=who)
    axes = axes_lacking(own, other)
    if axes:
        return "missing_all_reduce", reason(Stages.NOT_REDUCED, parameters=who, axes=axes)
    if own.way == "weighted" and 0.0 in own.weights:
        lacking = [str(number) for number, weight in enumerate(own.weights) if not weight]
        return "missing_or_extra_term", reason(
            Stages.LACKS_MICROBATCHES, parameters=who, microbatches=lacking
        )
    if own.way == "weighted":
        counts = [f"{weight:.2g}" for weight in own.weights]
        return "wrong_scale", reason(Stages.WEIGHTED, parameters=who, counts=counts)
    if own.way == "last":
        return "missing_or_extra_term", reason(Stages.LAST_ONLY, parameters=who)
    alike = own.key == other.key or _share_a_way(own, other)
    if alike and _is_rounded(own, other) and not in_places:
        return "dtype_or_rounding", reason(Stages.ROUNDED, parameters=who)
    if own.key == other.key and own.residual < SUM_CHANGED:
        factor = own.factor / other.factor if other.factor else math.inf
        return (
            "wrong_scale",
            reason(Stages.SCALED, parameters=who, factor=factor),
        )
    return "missing_or_extra_term", reason(Stages.CHANGED, parameters=who)


def axes_lacking(own: Summing, other: Summing) -> tuple[str, ...]:
    """Axes over which the reference alone sums."""
    if own.way not in ("own", "ranks") or other.way != "ranks":
        return ()
    return tuple(axis for axis in other.over if axis not in own.over)


def _sums(parameter: str, target: Summing, reference: Summing) -> Reason:
    """What each side's gradient is a sum of."""
    facts: dict[str, Number | str | tuple[str, ...]] = {"parameter": parameter}
    for side, summing in (("target", target), ("reference", reference)):
        facts |= {
            f"{side}_way": summing.way,
            f"{side}_over": tuple(summing.over),
            f"{side}_factor": summing.factor,
            f"{side}_residual": summing.residual,
            f"{side}_weights": tuple(f"{weight:.2g}" for weight in summing.weights),
        }
    return reason(Stages.SUMMED, **facts)


def one_each(findings: Sequence[Finding], context: Context) -> list[Finding]:
    """The same finding on several ranks is one; it says on which, where others do not show it."""
    groups: dict[Reason, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.headline, []).append(finding)
    return [
        of_ranks(some[0], {one.rank for one in some if one.rank is not None}, context.ranks, context.mesh)
        for some in groups.values()
    ]
