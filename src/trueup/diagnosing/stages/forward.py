"""Stages: the first step's forward and loss, and its backward; where attribution says an error was made."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import polars as pl

from trueup.comparing.precision_gap import TF32
from trueup.comparing.program_code import code_book
from trueup.comparing.scalars import number
from trueup.diagnosing.kinds.other_use import other_use
from trueup.diagnosing.stages.between_steps import frozen_that_move
from trueup.diagnosing.stages.context import (
    Context,
    clarity,
    counted,
    is_beyond,
    is_compared,
    needs_no_replay,
)
from trueup.diagnosing.stages.evaluated import with_evaluated
from trueup.diagnosing.stages.from_origin import finding_from_origin, norms_of, settings_that_differ
from trueup.diagnosing.stages.loss_factors import factor_findings
from trueup.diagnosing.stages.loss_targets import loss_targets
from trueup.diagnosing.stages.loss_weights import loss_weights
from trueup.diagnosing.stages.naming import kind_named
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.diagnosing.stages.trainable import frozen_findings, unreached_findings
from trueup.diagnosing.thresholds import UPDATE_APART, UPDATE_SHARE
from trueup.store import StepView
from trueup.store.given import root_inputs
from trueup.store.same_rows import MASK
from trueup.store.view import LOCAL
from trueup.types.codes import EvidenceCode, RecordCode, ReplayCode, VerdictCode
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes import WeightsCode as Weights
from trueup.types.codes.base import Code
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import Basis, EvidenceRank, Finding, Kind, KindCode, Origin, Stage
from trueup.types.reason import Reason, reason
from trueup.types.verdict import Verdict


class ForwardStage:
    """Module outputs and the loss of the first step."""

    stage = Stage.FORWARD
    title = reason(Stages.TITLE, key="forward")

    def check(self, context: Context) -> StageOutcome:
        """Origins in the forward and the loss, those that other weights or other data explain left out."""
        rows = context.of_phases("forward", "loss")
        known = precision_findings(context, Stage.FORWARD)
        verdict = context.comparison.verdict
        if _is_below_tolerance(verdict) or verdict.headline.code is VerdictCode.POSITIONS_COUNT:
            known = (*known, _of_verdict(verdict))
        if not known and _is_of_other_shape(verdict, context):
            both = [Stage.FORWARD, Stage.LOSS]
            return _judged(self, context, rows, both, loss_values(context, 0), (_of_shape(verdict),))
        known = known or factor_findings(context)
        of_the_loss = () if known else loss_targets(context, Stage.FORWARD) or loss_weights(context)
        known = known or of_the_loss
        is_constant = verdict.headline.code is VerdictCode.ARGUMENT_DIFFERS and verdict.phase == "forward"
        if not known and is_constant and not context.origins_of(Stage.FORWARD, Stage.LOSS):
            # within every tolerance, but made of bit-equal inputs: no replay shows it
            is_setting = bool(settings_that_differ(verdict.owner or "", context))
            known = (_of_verdict(verdict),) if is_setting else ()
        stages = [Stage.FORWARD, *(() if of_the_loss else (Stage.LOSS,))]  # its value follows from them
        if not context.origins_of(*stages) and _is_given_another_number(context):
            stages.append(Stage.DATA)
        return _judged(self, context, rows, stages, loss_values(context, 0), known=known, beside=True)


def _is_given_another_number(context: Context) -> bool:
    """Whether all that the first step traces back to is one number that the model is given, by which it
    divides its loss say: no batch, so that the batches agree."""
    data, origins = context.outcome_of(Stage.DATA), context.origins_of(Stage.DATA)
    if data is None or data.status is not StageStatus.PASSED or not origins:
        return False
    book = context.pair(0, origins[0].rank)[0]
    sizes = {slot: math.prod(book.shape(row) or ()) for _, slot, row in root_inputs(book)}
    return all(one.module == "" and sizes.get(one.slot) == 1 for one in origins)


class BackwardStage:
    """Gradients of the first step: local norm of each weight, then layer by layer."""

    stage = Stage.BACKWARD
    title = reason(Stages.TITLE, key="backward")

    def check(self, context: Context) -> StageOutcome:
        """Origins in the backward; the local norms that differ most as evidence."""
        local = (pl.col("phase") == "param_grad") & (pl.col("slot") == "local")
        rows = context.of_phases("backward", "param_grad").filter((pl.col("phase") == "backward") | local)
        frozen = tuple(frozen_findings(context))
        own = context.origins_of(Stage.BACKWARD)
        sent = () if frozen or own else _sent_gradients(context)
        is_known = bool(frozen) or context.failed_before() is not None
        by_replay = bool(own) and context.by_replay
        lost = () if is_known else unreached_findings(context, only_uncalled=by_replay)
        verdict = context.comparison.verdict
        rows_apart = (_of_verdict(verdict),) if verdict.headline.code is VerdictCode.ROWS_TRAIN else ()
        known = (
            *frozen,
            *lost,
            *rows_apart,
            *(finding_from_origin(origin, context) for origin in sent[:1]),
        )
        return _judged(self, context, rows, [Stage.BACKWARD], norm_values(context), known=known)


def _sent_gradients(context: Context) -> list[Origin]:
    """What the first step hands to another process, where the reference hands on the very gradient of a
    module and the target something else: changed on the way, between the module and the call."""
    found = []
    for origin in context.origins:
        is_given = origin.phase == "collective" and origin.slot.startswith("input")
        if not is_given or origin.step != context.steps[0][0] or origin.reference_record is None:
            continue
        target, reference = context.pair(0, origin.rank)
        is_gradient = _is_a_gradient(reference, origin.reference_record)
        if is_gradient and not _is_a_gradient(target, origin.target_record):
            found.append(replace(origin, stage=Stage.BACKWARD))
    return found


def _is_a_gradient(book: StepView, record: int | None) -> bool:
    """Whether a tensor has the bits of one that backward sent to a module's input."""
    digest = book.digest(record)
    sent = book.frame_of("backward").filter(
        (pl.col("kind") == "module") & pl.col("slot").str.starts_with("input")
    )
    return digest is not None and digest in set(sent["digest"])


def _around(module: str | None) -> Iterator[str | None]:
    """A module, and those that it is part of."""
    yield module
    while module:
        module = module.rpartition(".")[0]
        yield module


# In one piece: one branch an answer of the stage, in the order in which they exclude each other.
def _judged(
    stage: ForwardStage | BackwardStage,
    context: Context,
    rows: pl.DataFrame,
    stages: list[Stage],
    extra: tuple[Reason, ...],
    known: tuple[Finding, ...] = (),
    *,
    beside: bool = False,
) -> StageOutcome:
    """``known``: findings that lead; ``beside`` them stand the origins they do not explain."""
    outcome = partial(StageOutcome, stage=stage.stage, title=stage.title)
    beyond = rows.filter(is_beyond())
    origins: list[Origin] = []
    explained: list[Reason] = []
    for origin in context.origins_of(*stages):
        why = explained_by(origin, context)
        if why is None:
            origins.append(origin)
        else:
            explained.append(why)
    if known or (origins and (context.by_replay or context.failed_before() is None)):
        located = () if known and not (context.by_replay or beside) else tuple(origins)
        found = _ordered(tuple(finding_from_origin(origin, context) for origin in located))
        found = with_evaluated(found, context)
        modules = () if beside else tuple(place for one in known for place in _around(one.module))
        findings = (*known, *(one for one in found if one.module not in modules))
        return outcome(
            status=StageStatus.FAILED,
            conclusion=findings[0].headline,
            evidence=(counted(rows), *extra),
            findings=findings,
            confirmed=context.by_replay or bool(known) or (bool(located) and needs_no_replay(located[0])),
        )
    if rows.filter(is_compared()).is_empty():
        return outcome(
            status=StageStatus.UNDECIDED, conclusion=reason(Stages.NOTHING_RECORDED, what="record")
        )
    evidence = (counted(rows), *extra)
    if beyond.is_empty():
        conclusion = context.agreement_at(rows)
        if context.undone != 1.0:
            conclusion = reason(Stages.SCALE_UNDONE, factor=context.undone)
        if {phase for _, phase in context.without_effect} & set(rows["phase"].cast(pl.String)):
            conclusion = reason(Stages.INSIDE_ONLY)
        return outcome(status=StageStatus.PASSED, conclusion=conclusion, evidence=evidence, confirmed=True)
    before = context.failed_before()
    if stage.stage is Stage.BACKWARD and context.loss_scales_differ:
        explained.append(reason(Stages.LOSS_SCALE_DIFFERS))
    if before is not None or explained:
        conclusion = follows_from(before) if before else reason(Stages.EXPLAINED, explained[0])
        return outcome(status=StageStatus.CONSEQUENCE, conclusion=conclusion, evidence=evidence)
    if context.only_carried(rows):
        conclusion = reason(Stages.ONLY_CARRIED, num=beyond.height)
        return outcome(status=StageStatus.PASSED, conclusion=conclusion, evidence=evidence)
    row = beyond.row(0, named=True)
    conclusion = reason(Stages.NO_PLACE, num=beyond.height, site=str(row["site"]))
    return outcome(status=StageStatus.UNDECIDED, conclusion=conclusion, evidence=evidence)


def follows_from(outcome: StageOutcome) -> Reason:
    """What a consequence follows from."""
    return reason(Stages.FOLLOWS, stage=outcome.stage.value)


def precision_findings(context: Context, stage: Stage) -> tuple[Finding, ...]:
    """What one run computes in another dtype, as the comparison found it, where it is this stage's to say."""
    verdict = context.precision
    if verdict is None or _stage_of(verdict) is not stage:
        return ()
    finding = finding_of_precision(verdict, stage)
    if not any(one.code is EvidenceCode.ON_GRID for one in verdict.evidence):
        return (finding,)
    norms = norms_of(verdict.owner, verdict.step, verdict.phase, context)  # of the module that casts inside
    return (replace(finding, evidence=(*finding.evidence, *norms)),)


def finding_of_precision(verdict: Verdict, stage: Stage) -> Finding:
    """With what may have caused it."""
    headline = verdict.headline
    kind = kind_named("dtype_or_rounding", EvidenceRank.STATED, headline)
    cause = CauseCode.UPCAST_LEFT_OUT
    if TF32 in (headline.place("target"), headline.place("reference")):
        cause = CauseCode.TF32_ON_ONE_SIDE
    elif headline.code is VerdictCode.COMPUTES_IN and (
        headline.place("autocast") or headline.number("whole")
    ):
        cause = CauseCode.AUTOCAST_ON_ONE_SIDE if headline.place("autocast") else CauseCode.MODEL_DTYPE
    else:
        cause = _CAUSES.get(headline.code, cause)
    return as_recorded(verdict, stage, replace(kind, causes=(Reason(cause),)))


def _stage_of(verdict: Verdict) -> Stage:
    if verdict.headline.code is VerdictCode.WEIGHTS_IN:
        return Stage.WEIGHTS
    of_sums = verdict.headline.code is VerdictCode.SUMS_IN or verdict.phase == "collective"
    return Stage.REDUCTION if of_sums else Stage.FORWARD


_CAUSES: dict[Code, CauseCode] = {
    VerdictCode.WEIGHTS_IN: CauseCode.MODEL_DTYPE,
    VerdictCode.SUMS_IN: CauseCode.SUMS_IN_COARSE_DTYPE,
}


def as_recorded(verdict: Verdict, stage: Stage, *kinds: Kind) -> Finding:
    """What the comparison concluded, as a finding of this kind."""
    return Finding(
        stage=stage,
        headline=verdict.headline,
        module=verdict.owner,
        site=verdict.where,
        phase=verdict.phase,
        step=verdict.step,
        rank=verdict.rank,
        kinds=kinds,
        basis=Basis.RECORDED,
        evidence=verdict.evidence,
        causes=kinds[0].causes if kinds else (),
        next_note=verdict.next,
    )


def _is_below_tolerance(verdict: Verdict) -> bool:
    """Whether the comparison is led by buffers or by an activation function, no record of forward or backward
    having an origin."""
    if verdict.headline.code is VerdictCode.ACTIVATION_DIFFERS:
        return True
    written = any(one.code is EvidenceCode.BUFFERS_WRITTEN for one in verdict.evidence)
    return written or (verdict.headline.code is VerdictCode.BUFFER_DIFFERS and verdict.step is None)


def _is_of_other_shape(verdict: Verdict, context: Context) -> bool:
    """Whether the first step makes a tensor of another shape of the same batch: no replay puts values of the
    one into the other, and what the code around makes of them differs with them."""
    shaped = verdict.headline.code in (VerdictCode.OTHER_SHAPE, VerdictCode.ARGUMENT_DIFFERS)
    shaped &= any(_has_other_size(one) for one in verdict.evidence if one.code is RecordCode.SHAPE_DIFFERS)
    data = context.outcome_of(Stage.DATA)
    is_same_batch = data is None or data.status is StageStatus.PASSED
    return shaped and is_same_batch and (verdict.phase, verdict.step) == ("forward", context.steps[0][0])


def _has_other_size(shapes: Reason) -> bool:
    """Whether two shapes hold different numbers of elements, not the same in another order."""
    sizes = {math.prod(json.loads(str(shapes.place(side)))) for side in ("target", "reference")}
    return len(sizes) > 1


def _of_shape(verdict: Verdict) -> Finding:
    """With the argument that makes the other shape, where one differs."""
    if verdict.headline.code is VerdictCode.OTHER_SHAPE:
        return replace(as_recorded(verdict, Stage.FORWARD), next_note=reason(Stages.COMPARE_CODE))
    found = _of_verdict(verdict)
    return replace(found, next_note=found.kinds[0].next)


def _of_verdict(verdict: Verdict) -> Finding:
    """Running statistics, dtypes of buffers, activation functions or rows that count, which differ where all
    records agree."""
    name, stage = _KNOWN.get(verdict.headline.code, ("constant_argument", Stage.FORWARD))
    # what a program writes to a buffer while it runs is no default, and no value that a constructor is given
    causes = () if verdict.headline.code is VerdictCode.BUFFERS_WRITTEN else None
    kind = kind_named(name, EvidenceRank.STATED, verdict.evidence[0], phase=verdict.phase, causes=causes)
    return as_recorded(verdict, stage, kind)


_KNOWN: dict[Code, tuple[str, Stage]] = {
    VerdictCode.BUFFER_DIFFERS: ("dtype_or_rounding", Stage.FORWARD),
    VerdictCode.POSITIONS_COUNT: ("wrong_mask", Stage.LOSS),
    VerdictCode.ROWS_TRAIN: ("frozen_or_missing_gradient", Stage.BACKWARD),
}
"""kind and stage of what a comparison finds below every tolerance"""


def _clarity(finding: Finding) -> float:
    """Of its origin; what both runs recorded is as clear as can be."""
    return 1.0 if finding.origin is None else clarity(finding.origin)


def _ordered(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """One a module: of the first step first, since what differs later may follow; of each step the clearest
    first, among equally clear ones as they ran. Where a setting was tried and explains all of a module's
    error, what nothing explains stands after it: it may follow, as other random numbers do. So do all other
    random numbers where a module is in training mode in one run alone: its dropout draws from the same
    generator."""
    order = {id(f): f.origin.order if f.origin is not None else 0 for f in findings}
    is_known = {id(f): _is_tried(f) or any(kind.rank.is_named for kind in f.kinds[:1]) for f in findings}
    later = {key: any(map(_is_tried, findings)) and not known for key, known in is_known.items()}
    if any(map(_is_of_mode, findings)):
        later |= {id(f): True for f in findings if any(k.name is KindCode.RANDOMNESS for k in f.kinds[:1])}
    first: dict[str | None, Finding] = {}
    for finding in sorted(findings, key=lambda f: (f.step or 0, later[id(f)], -_clarity(f), order[id(f)])):
        known = first.get(finding.module)
        if known is None:
            first[finding.module] = finding
        else:
            also = reason(Stages.ALSO_AT, site=finding.site or "", phase=finding.phase or "")
            first[finding.module] = replace(known, evidence=(*known.evidence, also))
    return tuple(first.values())


def _is_of_mode(finding: Finding) -> bool:
    """Whether a module is in training mode in one run alone."""
    headline = finding.headline
    return headline.code is Stages.SETTING_DIFFERS and headline.place("name") == "training"


def _is_tried(finding: Finding) -> bool:
    """Whether a replay with the reference's setting gave the reference's outputs."""
    return any(one.code is ReplayCode.TRIED_AND_EQUAL for one in finding.evidence)


# In one piece: one branch a stage before it, in the order of the stages.
def explained_by(origin: Origin, context: Context) -> Reason | None:
    """What an earlier stage found that made this origin, if anything did: a module whose own weights differ
    whose forward output differs, and a root that is fed other data too."""
    if context.follows_weights(origin):
        return reason(Stages.WEIGHTS_DIFFER_FROM, step=context.weights_differ_from)
    if _is_after_frozen_moved(origin, context):
        return reason(Stages.WEIGHTS_DIFFER_FROM, step=context.steps[1][0])
    weights = context.outcome_of(Stage.WEIGHTS)
    if weights is not None and weights.status is StageStatus.FAILED:
        apart = weights.details.get("apart")
        for fqn in context.with_ties(apart) if isinstance(apart, list) else ():
            used = fqn.rpartition(".")[0] == origin.module or _uses_elsewhere(fqn, origin)
            if used or _reads_from_child(fqn, origin, context):
                return reason(Stages.WEIGHT_DIFFERS, parameter=fqn)
        if _is_of_a_tie(origin, context):
            return reason(Weights.TIED_GRADIENT)
        for one in context.crossed:
            if (weight := one.explains(origin.module)) is not None:
                return reason(Stages.WEIGHT_DIFFERS, parameter=weight)
    scale_seen = origin.stage is Stage.LOSS or (origin.module == "" and origin.phase == "backward")
    if scale_seen and context.loss_scales_differ:
        return reason(Stages.LOSS_SCALE_DIFFERS)
    if _is_of_given_scale(origin, context):
        return reason(Stages.LOSS_SCALE_DIFFERS)
    if (origin.module, origin.phase) in context.without_effect or _reaches_no_weight(origin, context):
        return reason(Stages.INSIDE_ONLY)
    if context.explained_by_dtype(origin):
        return reason(Stages.OTHER_DTYPE)
    elsewhere = (_is_of_the_forward, _is_returned_by_another, _is_given_to_others)
    if any(is_explained(origin, context) for is_explained in elsewhere):
        return reason(Stages.FOLLOWS, stage=Stage.FORWARD.value)
    before = _backward_before(origin, context)
    if before is not None:
        return reason(Stages.AFTER_BACKWARD, microbatch=_first_forward(origin, context), before=before)
    data = context.outcome_of(Stage.DATA)
    stream = next((one for one in data.evidence if one.code is Stages.SAME_STREAM), None) if data else None
    if stream is not None and origin.phase == "param_grad":
        return stream  # gradients of other numbers of microbatches
    if data is not None and data.status is StageStatus.FAILED:
        if any(one.headline.code is VerdictCode.CALLS_WITH_GRADIENTS for one in data.findings):
            return reason(Stages.FOLLOWS, stage=Stage.DATA.value)
        fed = origin.module == "" and (origin.slot.startswith("input") or origin.phase == "loss")
        of_rows = origin.phase in ("backward", "param_grad") and any(map(_has_other_rows, data.findings))
        if fed or of_rows or origin.stage in (Stage.LOSS, Stage.DATA):
            return reason(Stages.BATCH_DIFFERS)
        if any(_is_in_place_of(one.headline, origin, context) for one in data.findings):
            return reason(Stages.BATCH_DIFFERS)
        if any(map(_is_lone_mask, data.findings)) and _is_given_a_lone_mask(origin, context):
            return reason(Stages.BATCH_DIFFERS)
    return None


def _is_of_a_tie(origin: Origin, context: Context) -> bool:
    """Whether a gradient is that of a weight which is two in one run, whose gradients add up to the one's."""
    if origin.phase != "param_grad":
        return False
    books = context.pair()
    for tie in context.ties:
        if origin.module not in {name.rpartition(".")[0] for name in tie.names}:
            continue
        both, one = books if tie.target is None else books[::-1]
        kept = tie.target or tie.reference or tie.parameter
        parts = [both.value(both.parameter(name, *LOCAL)) for name in (tie.parameter, kept)]
        whole = one.value(one.parameter(kept, *LOCAL))
        if parts[0] is None or parts[1] is None or whole is None:
            return True
        if parts[0].shape != whole.shape:
            return False
        sizes = abs(parts[0]) + abs(parts[1])
        return bool((abs(parts[0] + parts[1] - whole) <= UPDATE_APART * sizes).mean() > UPDATE_SHARE)
    return False


def _reaches_no_weight(origin: Origin, context: Context) -> bool:
    """Whether one run alone has a gradient inside the model, of a mask that was made to require one, while
    the loss, the gradients of all weights and their updates agree: no weight is behind it."""
    missing = any(one.code is ReplayCode.MISSING_GRADIENT for one in origin.evidence)
    return missing and origin.phase == "backward" and context.felt is not None


def _is_of_the_forward(origin: Origin, context: Context) -> bool:
    """Whether a gradient differs by what a replay cannot put right after a forward pass that differs: the
    module is called with another shape (numbers of tokens sent to an expert), or makes one, or a loss that is
    made otherwise, or of other labels, reads the weight itself, as one in chunks reads the head's."""
    outcomes = [context.outcome_of(stage) for stage in (Stage.DATA, Stage.FORWARD)]
    failed = [one for one in outcomes if one is not None and one.status is StageStatus.FAILED]
    findings = [one for outcome in failed for one in outcome.findings if one.step == origin.step]
    if not findings or origin.phase not in _OF_BACKWARD:
        return False
    called = context.rows.filter(
        (pl.col("step") == origin.step)
        & (pl.col("phase").cast(pl.String) == "forward")
        & (pl.col("name").cast(pl.String) == origin.module)
        & pl.col("slot").cast(pl.String).str.contains("^(?:input|output)")
    )
    shapes = zip(called["target_shape"].to_list(), called["reference_shape"].to_list(), strict=True)
    if any(one is not None and other is not None and list(one) != list(other) for one, other in shapes):
        return True
    if origin.phase != "param_grad" or all(one.phase != "loss" or one.module for one in findings):
        return False
    evidence = None if context.evidence_of is None else context.evidence_of(origin)
    return evidence is not None and other_use(evidence) is not None


def _is_given_to_others(origin: Origin, context: Context) -> bool:
    """Whether the module makes what a call is given in one run and not in the other, by the comparison: it is
    used by other calls then, so that what is sent back to it is a sum of other gradients. A replay puts in
    what modules are given, and no such use."""
    given, verdict = given_another(context.comparison.verdict), context.comparison.verdict
    forward = context.outcome_of(Stage.FORWARD)
    if given is None or forward is None or origin.phase not in _OF_BACKWARD or not origin.module:
        return False
    if verdict.step != origin.step or all(one.step != origin.step for one in forward.findings):
        return False
    makers = [str(given.place(side)).partition("[")[0] for side in ("target", "reference")]
    return any(origin.module == one or origin.module.startswith(_inside(one)) for one in makers)


def given_another(verdict: Verdict) -> Reason | None:
    """That a call is given another result, where the verdict is led by it."""
    headlines = (verdict.headline, *verdict.headline.parts)
    return next((one for one in headlines if one.code is VerdictCode.GIVEN_ANOTHER), None)


def _is_returned_by_another(origin: Origin, context: Context) -> bool:
    """Whether a module around, whose forward differs, returns this module's output as it is in the target,
    and not in the reference: it is one tensor there, into which a replay puts one gradient, that of the
    module around. What this module then sends back is made of a gradient that is another's."""
    forward = context.outcome_of(Stage.FORWARD)
    if origin.phase not in ("backward", "param_grad") or forward is None or not origin.module:
        return False
    at = next((n for n, steps in enumerate(context.steps) if steps[0] == origin.step), None)
    around = {
        one.module
        for one in forward.findings
        if one.step == origin.step
        and one.module is not None
        and origin.module.startswith(_inside(one.module))
    }
    if at is None or not around:
        return False
    books = context.pair(at, origin.rank)
    returned = [
        any(_outputs(book, origin.module) & _outputs(book, name) for name in around) for book in books
    ]
    return returned == [True, False]


def _inside(module: str) -> str:
    return f"{module}." if module else ""


def _outputs(book: StepView, module: str) -> set[int]:
    """Digests of what a module returns."""
    records = (r for call in book.named("module", module) for r in book.records(call, "forward"))
    found = (book.digest(r) for r in records if book.slot[r].startswith("output"))
    return {one for one in found if one is not None}


def _is_after_frozen_moved(origin: Origin, context: Context) -> bool:
    """Whether a call without gradients, which may come after the step's update, is of a step after which the
    program changes weights that nothing updates in one run alone."""
    if origin.step != context.steps[0][0] or origin.target_record is None or origin.phase != "forward":
        return False
    is_of_replay = origin.basis is Basis.REPLAY and context.replayed is not None
    source = context.replayed if is_of_replay else context.target
    book = context.book(source or context.target, origin.step, origin.rank)
    if book.mode[book.record_call[origin.target_record]] != "eval":
        return False
    found = context.pair()[0].once(frozen_that_move, lambda: frozen_that_move(context))
    return bool(found)


def _is_lone_mask(finding: Finding) -> bool:
    """Whether one run alone gives its model a mask, which a replay of the other cannot put in."""
    return finding.headline.code is Stages.INPUT_OF_ONE_SIDE and MASK in str(finding.headline.place("name"))


def _is_given_a_lone_mask(origin: Origin, context: Context) -> bool:
    """Whether a module inside the model is given a mask in one run alone, or, of its gradients, holds one
    that is: what the model has made of its own. The model itself does more than to mask."""
    if not origin.module:
        return False
    name, slot = (pl.col(column).cast(pl.String) for column in ("name", "slot"))
    here = name == origin.module
    if origin.phase == "backward":
        here |= name.str.starts_with(f"{origin.module}.")
    masks = context.rows.filter(
        here,
        pl.col("step") == origin.step,
        pl.col("phase").cast(pl.String) == "forward",
        slot.str.starts_with("input") & slot.str.contains(MASK, literal=True),
        pl.col("target_shape").is_null() != pl.col("reference_shape").is_null(),
    )
    return not masks.is_empty()


def _is_in_place_of(headline: Reason, origin: Origin, context: Context) -> bool:
    """Whether one run makes here by itself what the other is given as an input that the first lacks."""
    if headline.code is not Stages.INPUT_OF_ONE_SIDE or not origin.slot.startswith("input"):
        return False
    given = f"input.{headline.place('name')}"
    of_target = headline.place("side") == "target"
    evidence = None if context.evidence_of is None else context.evidence_of(origin)
    if evidence is None:
        return False
    book = context.pair(0, origin.rank)[0 if of_target else 1]
    known = evidence.target if of_target else evidence.reference
    outermost = (r for r, call in enumerate(book.record_call) if book.parent[call] < 0)
    digests = {book.digest(r) for r in outermost if (book.phase[r], book.slot[r]) == ("forward", given)}
    return known is not None and known.digest is not None and known.digest in digests


def _is_of_given_scale(origin: Origin, context: Context) -> bool:
    """Whether a replay put gradients of the reference's scale into a run whose loss has another one, which it
    takes out again: what is not linear on the way (a gradient that is clamped) makes something else of them.
    The runs' own gradients agree."""
    if context.undone == 1.0 or origin.phase not in _OF_BACKWARD:
        return False
    return context.of_phases(*_OF_BACKWARD).filter(is_beyond()).is_empty()


_OF_BACKWARD = ("loss", "backward", "param_grad")


def _has_other_rows(finding: Finding) -> bool:
    """Whether a batch has other rows or lengths, so that no replay can put the reference's values in."""
    return finding.headline.code is Stages.BATCH and finding.headline.place("relation") in _OTHER_SHAPES


_OTHER_SHAPES = ("more_rows", "shape", "other_lengths", "packing")


def _backward_before(origin: Origin, context: Context) -> int | None:
    """The microbatch whose backward differs before the forward of any does: a random state that a backward
    has left elsewhere draws other numbers in the next forward. Code that is another shows in the first."""
    if origin.stage is not Stage.FORWARD or not origin.microbatch:
        return None
    of_step = [one for one in context.origins if one.step == origin.step and one.rank == origin.rank]
    if any(one.stage in (Stage.FORWARD, Stage.LOSS) and not one.microbatch for one in of_step):
        return None
    backward = {one.microbatch for one in of_step if one.stage is Stage.BACKWARD}
    return min((m for m in backward if m is not None and m < origin.microbatch), default=None)


def _first_forward(origin: Origin, context: Context) -> int | None:
    """The first microbatch of the origin's step whose forward differs."""
    of_step = (one for one in context.origins if one.step == origin.step and one.rank == origin.rank)
    found = (one.microbatch for one in of_step if one.stage in (Stage.FORWARD, Stage.LOSS))
    return min((one for one in found if one is not None), default=origin.microbatch)


def _uses_elsewhere(fqn: str, origin: Origin) -> bool:
    """A parameter held directly by a parent of the origin's module."""
    holder = fqn.rpartition(".")[0]
    return (
        holder != "" and origin.module.startswith(holder + ".") and fqn.count(".") < origin.module.count(".")
    )


def _reads_from_child(fqn: str, origin: Origin, context: Context) -> bool:
    """Whether the code of the origin's module names a weight of a module inside: a head tied by hand."""
    inside = f"{origin.module}." if origin.module else ""
    book = code_book(context.target, context.reference, origin.rank)
    if book is None or not fqn.startswith(inside):
        return False
    own = book.target.function(book.target.forward_of(origin.module))
    name = fqn.removeprefix(inside)
    return (
        own is not None and "." in name and re.search(rf"\bself\.{re.escape(name)}\b", own.source) is not None
    )


def loss_values(context: Context, at: int) -> tuple[Reason, ...]:
    """The loss of a step on both sides."""
    step = context.steps[at][0]
    for pair in context.comparison.content.scalars:
        if pair.step == step and pair.name == "loss":
            sides = {"target": number(pair.target), "reference": number(pair.reference)}
            return (reason(Stages.LOSS_VALUES, rel_diff=pair.rel_diff, **sides),)
    return ()


def norm_values(context: Context) -> tuple[Reason, ...]:
    """Local norms: how many weights' agree, and which differs most."""
    norms = context.comparison.content.local_norms
    if not norms:
        return ()
    worst = max(norms, key=lambda one: one.rel_diff if math.isfinite(one.rel_diff) else math.inf)
    same = sum(one.rel_diff == 0 for one in norms)
    if same == len(norms):
        return (reason(Stages.NORMS_EQUAL, num=same),)
    return (
        reason(
            Stages.NORMS_DIFFER,
            equal=same,
            num=len(norms),
            parameter=worst.fqn,
            target=worst.target,
            reference=worst.reference,
            rel_diff=worst.rel_diff,
        ),
    )
