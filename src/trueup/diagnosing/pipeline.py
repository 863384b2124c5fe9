"""From two traces to one verdict: compare, replay, put the reference's gradients in, walk the stages."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from trueup.comparing.options import CompareOptions
from trueup.comparing.origins import origins as passive_origins
from trueup.comparing.other_arguments import ROW_COLUMNS, headline_of, other_arguments
from trueup.comparing.program_code import CodeBook, Near, code_book
from trueup.comparing.result import Comparison
from trueup.comparing.run import compare_sources
from trueup.comparing.scalars import number
from trueup.diagnosing.calls_inside import with_calls
from trueup.diagnosing.diagnosis import Diagnosis, StepLoss
from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.replay import ReplayNoise
from trueup.diagnosing.replay import origins as replay_origins
from trueup.diagnosing.replay.agreed import AgreedRecord, agreed_records
from trueup.diagnosing.replay.plan import has_module_values
from trueup.diagnosing.rl.outcomes import diagnosis_of_records, generated, same_sequences, stage_outcomes
from trueup.diagnosing.rl.walk import RLComparison, compare_rollouts
from trueup.diagnosing.runs import AuxiliaryRuns, Clock, is_equal
from trueup.diagnosing.stages import STAGES, Context, StageCheck, StageOutcome, StageStatus
from trueup.diagnosing.stages.averaged import AVERAGED, MASTERS
from trueup.diagnosing.stages.config import beside_findings, configurations, settled
from trueup.diagnosing.stages.context import is_beyond, is_compared
from trueup.diagnosing.stages.evaluated import EVALUATED, other_model_evaluated
from trueup.diagnosing.stages.from_origin import finding_from_origin
from trueup.diagnosing.stages.long_run import curves_of
from trueup.diagnosing.stages.naming import kind_named
from trueup.diagnosing.stages.optimizer import of_a_step_without_gradients
from trueup.diagnosing.stages.texts import require_folder
from trueup.diagnosing.stages.together import together
from trueup.diagnosing.thresholds import AGAINST_AGREEMENT, FAR_LATER
from trueup.importers import open_trace
from trueup.matching.mapping import read_mapping
from trueup.merging.sides import as_wholes
from trueup.merging.trace import MergedTrace
from trueup.store.rollouts import is_trace
from trueup.types.codes import (
    EvidenceCode,
    KindReason,
    NextCode,
    NoteCode,
    RecordCode,
    ReplayCode,
    RLCode,
    ToleranceCode,
    VerdictCode,
)
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes.kinds import CauseCode
from trueup.types.confidence import Confidence
from trueup.types.finding import Basis, EvidenceRank, Finding, KindCode, Origin, Stage
from trueup.types.reason import Reason, read_reasons, reason
from trueup.types.result import DepthDocument, PathDocument
from trueup.types.status import Outcome, Status
from trueup.types.verdict import Verdict

MAX_POINTS = 600
"""module outputs a report draws; of a larger model the outer ones, and what is around the origin"""


def diagnose(
    target: Path,
    reference: Path,
    *,
    output: Path,
    command: Sequence[str] | None = None,
    budget: float = 0.0,
    replay: Path | None = None,
    gradients: Path | None = None,
    noise: Path | bool = True,
    replay_noise: Sequence[Path] = (),
    tokenizer: Path | None = None,
    mapping: Path | None = None,
    configs: tuple[str, str] | None = None,
    curves: Sequence[str] = (),
    stages: Sequence[StageCheck] = STAGES,
    say: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Walk the stages of a training step and end in one verdict; writes diagnosis.json below ``output``.

    Args:
        target: trace of the run under question.
        reference: trace of the run that is trusted.
        output: folder for the result, and for the runs made on the way.
        command: the target's program; with it the reference's values, then its gradients, are put in.
        budget: seconds for further runs: those that try what is supposed to be the cause, and one that puts
            the reference's outputs in at the found modules alone. Each is made where what is left of the
            budget is as long as the replay has taken.
        replay: a replay made before, in place of making one.
        gradients: a gradient replay made before, likewise.
        noise: the reference's noise profile, as ``CompareOptions.noise``.
        replay_noise: replays of benign variants of the reference, to judge the replay against.
        tokenizer: folder of a tokenizer, to show rows of the batch as text.
        mapping: pairs that are given, as ``trueup match -o`` writes them; None: all are found.
        configs: configuration files of target and reference; None: what the traces stored.
        curves: the target's log, the reference's, and those of its repeats; none: the long run is not judged.
        stages: what to look at, in this order.
        say: gets a sentence before each part that takes time.

    Raises:
        TraceError: a trace cannot be read.
        NothingCompared: the traces have nothing in common.
        ConfigError: the command cannot be run, or a configuration cannot be read.
    """
    require_folder(tokenizer)
    clock = Clock()
    with clock.part("rollouts"):
        rollouts = compare_rollouts(target, reference)
    if rollouts is not None and not all(map(is_trace, (target, reference))):
        diagnosis = diagnosis_of_records(target, reference, rollouts, seconds=clock.seconds)
        diagnosis.write(output)
        return diagnosis
    sides = as_wholes(open_trace(target), open_trace(reference))
    sources = sides.target, sides.reference
    with clock.part("configurations and curves"):
        settings = configurations(target, reference, configs)
        long_run = curves_of(curves)
    say("comparing the two runs")
    with clock.part("compare"):
        options = CompareOptions(noise=noise, mapping=mapping)
        comparison = compare_sources(*sources, output=output / "compare", options=options)
    work = AuxiliaryRuns(
        target=target, reference=reference, sources=sources, output=output, clock=clock, say=say
    )
    if sides.merged and (command or replay or gradients):
        work.notes.append(reason(Stages.LAYOUTS_DIFFER))
        command, replay, gradients = (), None, None
    if (command or replay) and any(
        note.code is NoteCode.ROWS_LAID_OTHERWISE for note in comparison.content.notes
    ):
        work.notes.append(reason(Stages.ROWS_DIFFER_IN_PLACE))
        command, replay = (), None
    replay = work.made_or_given(replay, command or (), comparison)
    scaled = any(note.code is NoteCode.LOSS_SCALE_UNDONE for note in comparison.content.notes)
    if command and gradients is None and not scaled and not is_equal(comparison):
        gradients = work.given(command)  # gradients of another loss's scale would be taken out of it again
    with clock.part("stages"):
        passive = tuple(passive_origins(output / "compare"))
        context = _context(work, comparison, passive, replay, gradients, replay_noise, tokenizer, mapping)
        context.configurations, context.curves = settings, long_run
    if command and replay is not None:
        context.trials = work.tried(context, replay, command, budget)
    with clock.part("stages"):
        outcomes = settled(_walk(context, stages, rollouts), context)
    diagnosis = _concluded(context, outcomes, work, command, budget)
    diagnosis.write(output)
    return diagnosis


def _context(
    work: AuxiliaryRuns,
    comparison: Comparison,
    passive: tuple[Origin, ...],
    replay: Path | None,
    gradients: Path | None,
    replay_noise: Sequence[Path],
    tokenizer: Path | None,
    mapping: Path | None,
) -> Context:
    """Everything the stages look at."""
    target, reference = work.sources
    replayed = None if replay is None else open_trace(replay)
    found = passive
    measured = ReplayNoise.measured(replay_noise, reference) if replay_noise else None  # type: ignore[arg-type]
    if replay is not None:
        by_replay = tuple(replay_origins(replay, work.reference, noise=measured))
        kept = against_agreement(by_replay) if _agree_as_measured(comparison) else by_replay
        found = (*_merged(kept, passive), *_means(passive, kept), *_unreached(passive, kept, comparison))
    shown = replayed if replayed is not None else target
    book = code_book(target, reference)

    def dtypes_in_code(origin: Origin) -> frozenset[str]:
        module = None if origin.stage in _OUTSIDE else origin.module
        return frozenset() if book is None else book.near(module, origin.phase).dtypes

    def evidence_of(origin: Origin) -> Evidence:
        # of a later step, which no replay went through, the traces show an origin that stages made anew
        source = target if origin in passive or origin.step not in shown.steps() else shown
        return Evidence.from_origin(
            origin, source, reference, free=target, dtypes_in_code=lambda: dtypes_in_code(origin)
        )

    def agreed() -> frozenset[AgreedRecord]:
        return frozenset() if replay is None else agreed_records(replay, work.reference, noise=measured)

    return Context(
        agreed=agreed,
        target=target,
        reference=reference,
        comparison=comparison,
        replayed=replayed,
        given=None if gradients is None else open_trace(gradients),
        origins=found,
        passive=passive,
        evidence_of=evidence_of,
        tokenizer=tokenizer,
        mapping=None if mapping is None else read_mapping(mapping),
    )


def _agree_as_measured(comparison: Comparison) -> bool:
    """Whether reruns of the reference explain all that the free runs show."""
    measured = comparison.content.tolerance.origin.code is ToleranceCode.MEASURED_NOISE
    return measured and comparison.verdict.numbers_agree


def against_agreement(origins: Sequence[Origin]) -> tuple[Origin, ...]:
    """What replay says where the free runs agree as measured: what is allowed of one call was worked out, and
    only what is far beyond it counts. A gradient that does not come through a module's input comes another
    way, as that of a fused projection does: those of the weights agree."""
    far = (one for one in origins if one.score > AGAINST_AGREEMENT)
    return tuple(one for one in far if not (one.phase == "backward" and _has_no_gradient(one)))


def _has_no_gradient(origin: Origin) -> bool:
    return any(one.code is ReplayCode.MISSING_GRADIENT for one in origin.evidence)


def _merged(replayed: tuple[Origin, ...], passive: tuple[Origin, ...]) -> tuple[Origin, ...]:
    """Replay decides. What the traces alone say of the same module is added as corroboration; where only
    they say something it is left to the stages that replay does not reach."""
    modules = {origin.module for origin in passive}
    return tuple(
        replace(o, evidence=(*o.evidence, reason(Stages.ALSO_PASSIVE))) if o.module in modules else o
        for o in replayed
    )


def _means(passive: Sequence[Origin], replayed: Sequence[Origin]) -> tuple[Origin, ...]:
    """Means that differ by more than roundings of what they are made of. All before them is bit-identical, so
    that a replay sees the same numbers; it knows the dtype alone, not how many are averaged."""
    known = {origin.module for origin in replayed if origin.stage is not Stage.DATA}
    return tuple(
        one
        for one in passive
        if one.from_equals
        and one.module not in known
        and any(why.code is RecordCode.MEAN_OF_TOKENS for why in one.evidence)
    )


def _unreached(
    passive: Sequence[Origin], replayed: Sequence[Origin], comparison: Comparison
) -> tuple[Origin, ...]:
    """Gradients of weights whose modules no replay can give the reference's values, since none of their calls
    has a counterpart: a norm that is given another layout, after another step. There the traces decide."""
    name, slot = pl.col("name").cast(pl.String), pl.col("slot").cast(pl.String)
    own = comparison.frame().filter(
        (pl.col("phase").cast(pl.String) == "forward") & (pl.col("kind").cast(pl.String) == "module")
    )
    given = [pl.col(f"{side}_shape").cast(pl.String).filter(slot.str.starts_with("input")) for side in _SIDES]
    paired = (pl.col("status").cast(pl.String) != "unmatched").any()
    first = (one.drop_nulls().first().alias(side) for one, side in zip(given, _SIDES, strict=True))
    calls = own.group_by(name).agg(paired.alias("paired"), *first)
    unpaired = {row.pop("name"): row for row in calls.filter(~pl.col("paired")).drop("paired").to_dicts()}
    known = {origin.module for origin in replayed}
    return tuple(
        replace(one, evidence=(reason(Stages.GIVEN_SHAPES, module=one.module, **shapes), *one.evidence))
        for one in passive
        if one.phase == "param_grad" and one.stage is Stage.BACKWARD and one.module not in known
        if (shapes := unpaired.get(one.module)) is not None and None not in shapes.values()
    )


_SIDES = ("target", "reference")


def _walk(
    context: Context, stages: Sequence[StageCheck], rollouts: RLComparison | None
) -> tuple[StageOutcome, ...]:
    """Stages in order. Those of reinforcement learning stand after the data; where they have a confirmed
    fault, what modules show follows from it, else modules say more of what a model gave."""
    of_rl = stage_outcomes(rollouts) if rollouts is not None else ()
    known = any(one.confirmed and one.status is StageStatus.FAILED for one in of_rl)
    apart = None if rollouts is None else rollouts.generated_apart
    at = 0
    for stage in stages:
        context.earlier.append(stage.check(context))
        if stage.stage is Stage.DATA:
            if apart is not None:
                context.earlier[-1] = generated(context.earlier[-1], apart)
            at = len(context.earlier)
            context.earlier += of_rl if known else ()
    if not known:
        context.earlier[at:at] = of_rl
    if rollouts is not None and rollouts.same_sequences:
        return tuple(map(same_sequences, context.earlier))
    return tuple(context.earlier)


# -- the verdict ------------------------------------------


def _concluded(
    context: Context,
    outcomes: tuple[StageOutcome, ...],
    work: AuxiliaryRuns,
    command: Sequence[str] | None,
    budget: float,
) -> Diagnosis:
    found = _ordered(outcomes)
    later = () if found else _later_but_order(context, outcomes)
    outcomes = _pointed(outcomes, later, context.steps[0][0])
    findings = (*(found or later), *_of_words(outcomes))
    if findings:
        findings = (_with_next(_with_before(findings[0], outcomes), context, work), *findings[1:])
    explained, code = _with_code(findings, context)
    explained = tuple(of_a_step_without_gradients(with_calls(one, context), context) for one in explained)
    findings = work.confirmed(together(explained, code), findings, command or (), budget)
    outcomes = beside_findings(outcomes, findings, context)
    outcome, headline, confidence = _verdict(findings, context)
    if outcome is Outcome.UNDECIDED and not findings:
        work.notes += (*_not_compared(context.comparison.verdict), *_programs(context, headline))
    summary = context.comparison.summary
    compared = read_reasons(summary, "notes")
    if outcome is not Outcome.AGREE:
        compared = tuple(note for note in compared if note.code not in _OF_CODE)
    typed = list(command) if command else (context.target.manifest.get("command") or [])
    return Diagnosis(
        target=str(work.target),
        reference=str(work.reference),
        outcome=outcome,
        headline=headline,
        confidence=confidence,
        stages=outcomes,
        findings=findings,
        path=_path(summary.get("depth") or [], findings),
        losses=_losses(context),
        notes=(*_basis_note(context), *work.notes, *compared),
        runs={
            name: str(work.output / name)
            for name in ("compare", "replay", "gradients")
            if (work.output / name).is_dir()
        },
        tolerance=str((summary.get("tolerance") or {}).get("origin") or ""),
        command=shlex.join(str(part) for part in typed) or None,
        seconds=work.clock.seconds,
    )


def _ordered(outcomes: Sequence[StageOutcome]) -> tuple[Finding, ...]:
    """The first failed stage with confirmation first; then the others as they stand in the step. Settings
    that differ in words come after all that was measured."""
    failed = [o for o in outcomes if o.status is StageStatus.FAILED and o.stage is not Stage.CONFIG]
    first = next((o for o in failed if o.confirmed), failed[0] if failed else None)
    if first is None:
        return ()
    rest = [o for o in failed if o is not first]
    found = [f for o in (first, *rest) for f in o.findings]
    averaged = any(one.headline.code in AVERAGED for one in found)
    updated = next((one.step for one in found if one.headline.code in MASTERS), None)

    def place(one: Finding) -> tuple[bool, bool, bool]:
        evaluated = one.headline.code in EVALUATED  # follows from how weights are averaged
        made = updated is not None and one.step is not None and one.step > updated  # of updated weights
        return _is_of_layout(one), averaged and evaluated, made

    return tuple(sorted(found, key=place))


def _is_of_layout(finding: Finding) -> bool:
    """Whether it is equal random numbers that lie otherwise in memory, which may come of any other cause."""
    return any(kind.sentence.code is KindReason.DROPPED_IN_OTHER_LAYOUT for kind in finding.kinds[:1])


_OF_CODE = (NoteCode.CODE_DIFFERS, NoteCode.PROGRAMS_DIFFER)
"""what ``compare`` says of the programs; a diagnosis says it anew where it is open"""


def _of_words(outcomes: Sequence[StageOutcome]) -> tuple[Finding, ...]:
    """What the configurations alone tell."""
    return tuple(f for o in outcomes if o.stage is Stage.CONFIG for f in o.findings)


def _with_code(
    findings: tuple[Finding, ...], context: Context
) -> tuple[tuple[Finding, ...], tuple[tuple[Reason, ...], ...]]:
    """Findings with what differs in the programs' code at their place, and what of it is statements of the
    place itself."""
    paired = {} if context.bridge is None else context.bridge.modules.reference_of()
    book = code_book(context.target, context.reference, counterparts=paired) if findings else None
    if book is None:
        return findings, ((),) * len(findings)
    near = [None if one.stage in _NOT_IN_CODE else _code_near(one, book) for one in findings]
    found = [one if at is None else _beside_code(one, at) for one, at in zip(findings, near, strict=True)]
    inside = [one.stage not in _OUTSIDE and bool(one.module) for one in findings]
    code = (at.own if at is not None and is_in else () for at, is_in in zip(near, inside, strict=True))
    return tuple(found), tuple(code)


def _not_compared(verdict: Verdict) -> list[Reason]:
    """The records that keep a comparison in which no difference was found from an answer, and what else it
    says: in which dtypes the runs compute."""
    if verdict.headline.code is not VerdictCode.NOT_BRACKETED:
        return []
    evidence = dict.fromkeys(verdict.evidence)
    notes = [one for one in evidence if isinstance(one.code, NoteCode)]
    records = [one for one in evidence if one not in notes]
    return [*([reason(NoteCode.NOT_COMPARED, *records)] if records else []), *notes]


def _programs(context: Context, headline: Reason) -> list[Reason]:
    """What differs in the programs' code, for a difference whose cause no stage could say; with what to do
    where that is an argument."""
    book = code_book(context.target, context.reference)
    found = [*_other_arguments(context), *(() if book is None else book.anywhere())]
    of_argument = headline.code is VerdictCode.OTHER_ARGUMENT
    next_step = [Reason(NextCode.ALIGN_ARGUMENT)] if of_argument else []
    return [*([reason(NoteCode.PROGRAMS_DIFFER, *found)] if found else []), *next_step]


def _other_arguments(context: Context) -> tuple[Reason, ...]:
    """Plain arguments that differ where the first step has other bits."""
    book = code_book(context.target, context.reference)
    if book is None or any(isinstance(one, MergedTrace) for one in (context.target, context.reference)):
        return ()
    first = (pl.col("step") == context.steps[0][0]) & (pl.col("rank") == context.ranks[0])
    rows = context.comparison.frame().filter(first).select(ROW_COLUMNS)
    return other_arguments(book, context.pair(), rows)


def _code_near(finding: Finding, book: CodeBook) -> Near:
    module = None if finding.stage in _OUTSIDE else finding.module
    return book.near(module, finding.phase or finding.stage.value)


def _beside_code(finding: Finding, near: Near) -> Finding:
    finding = _without_functions(finding, near)
    known = finding.stage in (Stage.DATA, Stage.WEIGHTS) or finding.headline.code is VerdictCode.OTHER_SHAPE
    known = known or any(kind.rank.is_named for kind in finding.kinds[:1])
    headline = finding.headline if known else near.headline(finding.headline)
    if _is_named_in_code(finding, near):
        headline = near.headline(_plain_headline(finding))
    if headline.code is VerdictCode.OTHER_CASTS:
        finding = _of_casts(finding, near)
    if finding.headline.code is Stages.LOSS_GRADIENT and near.cuts_nothing:
        finding = replace(
            finding, causes=tuple(c for c in finding.causes if c.code is not Stages.DETACHED_CAUSE)
        )
    return replace(finding, headline=headline, evidence=near.beside(finding.evidence, known=known))


def _without_functions(finding: Finding, near: Near) -> Finding:
    """A finding that is told by the functions its module calls, without them where the code of its place is
    known to differ: its lines say more, and what is called stays in the evidence."""
    first, plain = finding.kinds[0].name if finding.kinds else None, _plain_headline(finding)
    if first is not KindCode.OTHER_FUNCTIONS or near.headline(plain) is plain:
        return finding
    return replace(finding, headline=plain, kinds=finding.kinds[1:])


def _is_named_in_code(finding: Finding, near: Near) -> bool:
    """Whether an argument without a name (``ids[:, 0] = start``) has the values of a setting that the code of
    the place takes them from."""
    arguments = finding.kinds[0].sentence.parts if finding.kinds else ()
    first = near.reasons[0] if near.reasons else None
    if first is None or first.code is not EvidenceCode.CODE_VALUE_DIFFERS or len(arguments) != 1:
        return False
    only = arguments[0]
    return str(only.place("argument")).startswith("argument ") and all(
        only.place(side) == first.place(side) for side in ("target", "reference")
    )


def _plain_headline(finding: Finding) -> Reason:
    place = {key: finding.headline.place(key) for key in ("module", "stage")}
    return reason(Stages.ORIGIN, **place)


def _of_casts(finding: Finding, near: Near) -> Finding:
    """A finding of no kind, where the code of its place differs in casts alone: what these round to."""
    unknown = [kind.sentence for kind in finding.kinds[:1]]
    cause = (Reason(CauseCode.UPCAST_LEFT_OUT),)
    kind = kind_named("dtype_or_rounding", EvidenceRank.STATED, near.reasons[0], causes=cause)
    evidence = tuple(one for one in finding.evidence if one not in unknown)
    return replace(finding, kinds=(kind,), causes=cause, evidence=evidence, next_note=kind.next)


_NOT_IN_CODE = (Stage.CONFIG, Stage.RESUME, Stage.LONG_RUN)
_OUTSIDE = (Stage.DATA, Stage.LOSS, Stage.REDUCTION, Stage.OPTIMIZER)
"""what is around the model is looked at first"""


def _with_before(finding: Finding, outcomes: Sequence[StageOutcome]) -> Finding:
    """What precedes it and agrees, as counter-evidence."""
    before = []
    for outcome in outcomes:
        if finding in outcome.findings:
            break
        if outcome.status is StageStatus.PASSED and outcome.stage is not Stage.CONFIG:
            key = str(outcome.title.place("key") or outcome.stage.value)
            before.append(reason(Stages.STAGE_AGREES, outcome.conclusion, stage=key))
    return replace(finding, counter_evidence=tuple(dict.fromkeys([*finding.counter_evidence, *before])))


_SETTLED = (Basis.RECORDED, Basis.FITTED)
"""a replay would add nothing"""


def _with_next(finding: Finding, context: Context, work: AuxiliaryRuns) -> Finding:
    if finding.stage in (Stage.CONFIG, Stage.LONG_RUN):
        return finding
    if (
        finding.next is not None
        or context.by_replay
        or context.given is not None
        or finding.basis in _SETTLED
        or finding.headline.code is Stages.COUNT_GIVEN  # of what is counted, which is not in these steps
    ):
        return finding
    if any(note.code in _NOT_REPLAYED for note in work.notes):
        return finding if has_module_values(context.reference) else _with_values(finding, context)
    command = shlex.join(str(p) for p in context.target.manifest.get("command") or ["python", "train.py"])
    typed = f"trueup diagnose {work.target} {work.reference} --replay {shlex.quote(command)} -o {work.output}"
    return replace(finding, next=reason(Stages.REPLAY_TO_BE_CERTAIN, command=typed), next_note=None)


_NOT_REPLAYED = (
    Stages.REPLAY_FAILED,
    Stages.LAYOUTS_DIFFER,
    Stages.ROWS_DIFFER_IN_PLACE,
    Stages.SHAPES_DIFFER,
    Stages.NO_STEP_LEFT,
)
"""a replay was asked for, and there is none: to ask again is no advice"""


def _with_values(finding: Finding, context: Context) -> Finding:
    """A replay writes values of the reference, of which its trace holds none."""
    command = shlex.join(str(p) for p in context.reference.manifest.get("command") or ["python", "train.py"])
    typed = f"trueup capture --preset diagnose -o REFERENCE -- {command}"
    return replace(finding, next=reason(Stages.VALUES_FOR_REPLAY, command=typed), next_note=None)


def _later(context: Context) -> tuple[Finding, ...]:
    """Where no stage failed: what the traces alone say of later steps, if far beyond what is allowed."""
    first = context.steps[0][0]
    far = far_later(context.passive, first)
    if far:
        # a function outside the model is given no values by a replay: what it shows in the first step stands
        outside = (one for one in context.passive if one.step == first and _is_outside(one))
        begins = next(outside, far[0])
        return (other_model_evaluated(context) or finding_from_origin(begins, context),)
    verdict = context.comparison.verdict
    is_later = verdict.headline.has(VerdictCode.LOSS_DIFFERS_LATER, VerdictCode.LATER_BATCH_DIFFERS)
    return (_of_later_loss(verdict),) if is_later else ()


def _is_outside(origin: Origin) -> bool:
    """Whether a function outside the model shows it, far beyond what is allowed."""
    is_clear = origin.score >= FAR_LATER and origin.phase == "forward"
    return is_clear and not origin.module and origin.site.startswith("torch.")


def _of_later_loss(verdict: Verdict) -> Finding:
    """The first loss that differs, of a step that was not captured, or the batch that it is made of."""
    of_batch = verdict.headline.has(VerdictCode.LATER_BATCH_DIFFERS)
    return Finding(
        stage=Stage.DATA if of_batch else Stage.LOSS,
        headline=verdict.headline,
        module=None,
        site=f"{'batch' if of_batch else 'loss'} of step {verdict.step}",
        phase="forward" if of_batch else "loss",
        step=verdict.step,
        rank=verdict.rank,
        basis=Basis.RECORDED,
        evidence=verdict.evidence,
        next=verdict.next,
    )


def _later_but_order(context: Context, outcomes: Sequence[StageOutcome]) -> tuple[Finding, ...]:
    """Where both runs train on the same sequences, another order of them is no finding."""
    same = any(one.conclusion.code is RLCode.SAME_SEQUENCES for one in outcomes)
    return tuple(one for one in _later(context) if not (same and one.stage is Stage.DATA))


def _pointed(
    outcomes: tuple[StageOutcome, ...], later: tuple[Finding, ...], first: int
) -> tuple[StageOutcome, ...]:
    """The outcomes; where the next loss differs without a fault, with where traces show that it begins. Where
    no stage is open, the stage that the first step passes says in which step it differs."""
    if not later:
        return outcomes
    if not any(one.conclusion.code is Stages.NEXT_LOSS_ONLY for one in outcomes):
        conclusion = reason(Stages.DIFFERS_LATER, first=first, step=later[0].step)
        return tuple(
            replace(one, conclusion=conclusion, status=StageStatus.FAILED)
            if one.stage is later[0].stage and one.status is StageStatus.PASSED
            else one
            for one in outcomes
        )
    conclusion = reason(Stages.NEXT_LOSS_FOUND, site=later[0].site or later[0].module or "")
    return tuple(
        replace(one, conclusion=conclusion, status=StageStatus.CONSEQUENCE)
        if one.conclusion.code is Stages.NEXT_LOSS_ONLY
        else one
        for one in outcomes
    )


def far_later(origins: Sequence[Origin], first: int) -> list[Origin]:
    """Those of steps after the first that are far beyond what is allowed."""
    return [one for one in origins if one.score >= FAR_LATER and one.step > first]


def _verdict(findings: tuple[Finding, ...], context: Context) -> tuple[Outcome, Reason, Confidence | None]:
    """A difference needs a finding that is not of memory layouts: where no stage has one, the traces alone
    leave it undecided."""
    if findings:
        headline = findings[0].headline
        if len(findings) > 1:
            headline = reason(Stages.AND_MORE, headline, more=len(findings) - 1)
        if all(map(_is_of_layout, findings)):  # the same numbers, dealt out otherwise: no fault
            return Outcome.UNDECIDED, headline, None
        return Outcome.DIFFER, headline, findings[0].confidence
    verdict = context.comparison.verdict
    long_run = context.outcome_of(Stage.LONG_RUN)
    if verdict.outcome is Outcome.AGREE and long_run is not None and long_run.status is StageStatus.UNDECIDED:
        return Outcome.UNDECIDED, reason(Stages.LONG_RUN_OPEN, long_run.conclusion), None
    beyond = context.rows.filter(is_beyond())
    may_be_noise = (VerdictCode.NOISE_GREW, VerdictCode.PARAMETER_OF_ONE_SIDE)
    is_open = verdict.outcome is Outcome.DIFFER or verdict.headline.code in may_be_noise
    if is_open and _calls_agree(context, beyond):
        if arguments := _other_arguments(context):
            return Outcome.UNDECIDED, headline_of(arguments), None
        return Outcome.AGREE, reason(Stages.CALLS_AGREE), None
    if verdict.outcome is not Outcome.DIFFER:
        return verdict.outcome, verdict.headline, verdict.confidence
    worst = beyond["score"].max()
    is_late = beyond.filter(pl.col("step") <= context.steps[0][0]).is_empty()
    if context.all_passed and is_late and isinstance(worst, float) and worst < FAR_LATER:
        return Outcome.UNDECIDED, reason(Stages.LATE_DIFFERENCES, score=worst), None
    return Outcome.UNDECIDED, reason(Stages.NO_STAGE, verdict.headline), None


def _calls_agree(context: Context, beyond: pl.DataFrame) -> bool:
    """Whether a stage saw carried rounding and nothing else differs: what replay does not compare follows."""
    carried = any(one.conclusion.code is Stages.ONLY_CARRIED for one in context.earlier)
    open_ = [one for one in context.earlier if one.status is StageStatus.UNDECIDED]
    codes = {one.conclusion.code for one in open_}
    settled = codes <= {Stages.ONE_STEP, *([Stages.NO_UPDATE] if _begins_alike(context) else [])}
    follows = pl.col("status").is_in([Status.PROPAGATED.value, Status.AMPLIFIED.value])
    follows &= pl.col("score") < FAR_LATER
    calls = pl.col("phase").is_in(["forward", "loss", "backward", "param_grad"])
    calls &= pl.col("step") == context.steps[0][0]
    rest_follows = beyond.filter(~calls & ~follows).is_empty()
    return carried and settled and rest_follows and context.only_carried(beyond.filter(calls))


def _begins_alike(context: Context) -> bool:
    """Whether the weights of the second step are no further apart than the gradients of the first were: an
    update that nobody recorded was then the same. It is at most the whole of a weight, so that the weight's
    own difference is no larger than the gradient's, and as much again for the update's own rounding."""
    if len(context.steps) < 2:
        return False
    weights, gradients = context.of_phases("param", at=1), context.of_phases("param_grad")
    known = weights.filter(is_compared())["rel_l2"]
    apart = gradients.filter(is_compared())["rel_l2"].max()
    if not weights.height or len(known) < weights.height or not isinstance(apart, float):
        return False
    return bool((known.fill_null(np.inf) <= 2 * apart).all())


def _basis_note(context: Context) -> tuple[Reason, ...]:
    return (reason(Stages.BY_REPLAY if context.by_replay else Stages.BY_TRACES),)


def _losses(context: Context) -> tuple[StepLoss, ...]:
    found = []
    for one in context.comparison.content.scalars:
        target, reference = number(one.target), number(one.reference)
        if one.name == "loss" and isinstance(target, float) and isinstance(reference, float):
            found.append(StepLoss(step=one.step, target=target, reference=reference))
    return tuple(found)


def _path(depth: Sequence[DepthDocument], findings: tuple[Finding, ...]) -> tuple[PathDocument, ...]:
    """Module outputs in execution order; of many the outer ones and those around the origins."""
    kept = depth
    level = 6
    near = {f.module for f in findings if f.module}
    while len(kept) > MAX_POINTS and level > 0:
        level -= 1
        kept = [
            p for p in depth if p["module"].count(".") <= level or any(_around(p["module"], m) for m in near)
        ]
    return tuple(
        PathDocument(
            phase=point["phase"],
            module=point["module"],
            type=point["type"],
            rel_l2=point["rel_l2"],
            tolerance=point["tolerance"],
            order=point["order"],
        )
        for point in kept[: 4 * MAX_POINTS]
    )


def _around(module: str, origin: str) -> bool:
    """Inside the origin's parent."""
    parent = origin.rpartition(".")[0]
    return bool(parent) and module.startswith(parent + ".")
