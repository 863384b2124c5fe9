"""Stage: did both runs get the same batch, and are its labels what labels should be?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trueup.comparing.label_parts import PARTS
from trueup.comparing.thresholds import FINER, UNFELT
from trueup.diagnosing.batches import (
    are_the_same_samples,
    edges_follow,
    is_in_parts,
    label_facts,
    moved,
    put_in_front,
    relation,
    rows_in_place,
    value_relation,
)
from trueup.diagnosing.evidence.run import run_facts
from trueup.diagnosing.gradients import scalar_line
from trueup.diagnosing.kinds.loss_divisor import named_divisor
from trueup.diagnosing.kinds.thresholds import NEAR_ONE
from trueup.diagnosing.stages.batch import TOKENS, StepBatch, data_finding, given, may_be_tokens, without_made
from trueup.diagnosing.stages.context import Context, is_beyond, is_compared
from trueup.diagnosing.stages.counted import counted_in_one_run
from trueup.diagnosing.stages.forward import as_recorded
from trueup.diagnosing.stages.from_origin import finding_from_origin
from trueup.diagnosing.stages.given_outside import given_outside
from trueup.diagnosing.stages.labels import compared_labels
from trueup.diagnosing.stages.loss_factors import hides_otherwise, values_of
from trueup.diagnosing.stages.loss_targets import loss_targets
from trueup.diagnosing.stages.naming import kind_named
from trueup.diagnosing.stages.parts_at_fault import ranks_apart
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.diagnosing.stages.samplers import elsewhere, named_by_place, of_samplers
from trueup.diagnosing.stages.texts import texts_shown
from trueup.diagnosing.whose import of_ranks
from trueup.merging.trace import MergedTrace
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.whole_numbers import lost_whole_numbers
from trueup.store import StepView, TraceSource
from trueup.store.given import root_inputs, whole_numbers
from trueup.store.same_rows import MASK, POSITION, RowSpan, num_rows, row_keys, spans_of, width_of
from trueup.store.view import UPDATED
from trueup.types.arrays import Array, Floats, Ints
from trueup.types.codes import BatchCode as Batches
from trueup.types.codes import EvidenceCode, NoteCode, RecordCode, VerdictCode
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import Basis, EvidenceRank, Finding, Origin, Stage
from trueup.types.layout import Layout
from trueup.types.placement import Shard
from trueup.types.reason import Reason, reason
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict


class DataStage:
    """Inputs and labels of every captured step and rank."""

    stage = Stage.DATA
    title = reason(Stages.TITLE, key="data")

    def check(self, context: Context) -> StageOutcome:
        """Compare ids row by row where they were stored, else digests. Where one run makes calls with
        gradients that the other makes without, batches have no counterparts."""
        verdict = context.comparison.verdict
        if verdict.headline.code is VerdictCode.CALLS_WITH_GRADIENTS:
            return _graded(verdict)
        return _of_batches(context)


# In one piece: what is known of the batches, in the order in which it is found.
def _of_batches(context: Context) -> StageOutcome:
    """What both runs were given."""
    findings: list[Finding] = []
    evidence: list[Reason] = []
    compared = False
    stream = _same_stream(context) or _same_rows(context)
    if stream is not None:
        return _outcome([], [stream], True, {})
    for at in range(min(len(context.steps), 2)):
        for rank in context.ranks:
            target, reference = without_made(*(StepBatch.of(book) for book in context.pair(at, rank)))
            compared |= bool(target.ids and reference.ids) or _digests_tell(target, reference)
            found, words = _compared(target, reference, context)
            found = [*_one_sided(target, reference, context), *found]
            findings += found
            evidence += words
        if findings:
            if context.mesh.wide_axes:
                findings = _whose(findings, context, at)
            elif context.layout.wide_axes:
                findings = _of_batch_axis(findings, context, at)
            break
    findings = findings or _evaluated_on(context) or _beyond_ids(context)
    findings = findings or list(loss_targets(context, Stage.DATA)) or _masks_apart(context)
    findings = findings or given_outside(context)
    findings = of_samplers(findings, context)
    findings = [_resumed(_of_same_samples(_carried(one, context), context), context) for one in findings]
    evidence[:0] = _without_effect(context)
    if findings and _comes_out_nowhere(context):
        evidence, findings = [reason(Stages.BATCH_IN_OTHER_FORM), *evidence], []
    own, other = (StepBatch.of(book) for book in context.pair())
    evidence += [reason(EvidenceCode.INPUT_OF_ONE_SIDE, **one) for one in _lacking(own, other)]
    texts = texts_shown(own, other, context.tokenizer)
    details = {"texts": texts} if texts else {}
    if not compared and any(map(_is_in_parts, context.pair())):
        evidence.insert(0, reason(Stages.BATCH_IN_PARTS))
    outcome = _outcome(_one_each(findings), list(dict.fromkeys(evidence)), compared, details)
    return _made_in_the_step(outcome, context)


def _made_in_the_step(outcome: StageOutcome, context: Context) -> StageOutcome:
    """The outcome; where the model makes something else of the same bits before all that differs in what it
    is given, that may be what it generated: no fault of the data is confirmed, nor its usual causes."""
    step = next((one.step for one in outcome.findings), None)
    at = next((n for n, steps in enumerate(context.steps) if steps[0] == step), None)
    first = min((o for o in context.passive if o.step == step), key=lambda o: o.order, default=None)
    if at is None or first is None or first.target_record is None or not first.from_equals:
        return outcome
    book, reference = context.pair(at, first.rank)
    known = {reference.digest(row) for _, _, row in root_inputs(reference)}
    apart = [row for _, _, row in root_inputs(book) if book.digest(row) not in known]
    is_before = bool(apart) and first.phase == "forward" and all(first.target_record < row for row in apart)
    if not is_before:
        return outcome
    findings = tuple(
        replace(one, causes=(), kinds=tuple(replace(kind, causes=()) for kind in one.kinds))
        for one in outcome.findings
    )
    return replace(outcome, findings=findings, confirmed=False)


def _graded(verdict: Verdict) -> StageOutcome:
    """Calls that have gradients in one run alone: a difference, or open where nothing shows what they do."""
    outcome = partial(StageOutcome, stage=Stage.DATA, title=DataStage.title, conclusion=verdict.headline)
    if verdict.outcome is not Outcome.DIFFER:
        return outcome(status=StageStatus.UNDECIDED, evidence=verdict.evidence)
    kind = kind_named("frozen_or_missing_gradient", EvidenceRank.STATED, verdict.evidence[0])
    finding = as_recorded(verdict, Stage.DATA, replace(kind, causes=(Reason(CauseCode.GRAPH_CUT),)))
    return outcome(status=StageStatus.FAILED, findings=(finding,), confirmed=True)


def _without_effect(context: Context) -> list[Reason]:
    """What the programs give otherwise, and nothing comes of."""
    names = context.inputs_without_effect
    return [reason(Stages.INPUT_WITHOUT_EFFECT, names=names)] if names else []


def _comes_out_nowhere(context: Context) -> bool:
    """Whether loss and gradients agree, so closely that the share of the batches that differs would have been
    felt in them (docs/decisions/0038-what-comes-out-nowhere.md): they hold the same in another form."""
    if context.felt is None:
        return False
    shares = list[float]()
    for at in range(min(len(context.steps), 2)):
        for rank in context.ranks:
            own, other = (StepBatch.of(book).ids for book in context.pair(at, rank))
            for name in own.keys() & other.keys():
                same_shape = own[name].shape == other[name].shape
                shares.append(float((own[name] != other[name]).mean()) if same_shape else 1.0)
    apart = [share for share in shares if share]
    return bool(apart) and min(apart) >= UNFELT * context.felt


def _evaluated_on(context: Context) -> list[Finding]:
    """Whole numbers that a model is given in calls without gradients, where these differ, nothing that it
    trains on does, and losses or gradients do: a loss may be made with what it returns (a reference's
    probabilities, a teacher's)."""
    if context.rows.filter(pl.col("phase").is_in(("loss", "param_grad")) & is_beyond()).is_empty():
        return []
    found = [_evaluated_otherwise(origin, context) for origin in context.origins_of(Stage.DATA)]
    return [one for one in found[:1] if one is not None and None not in found]


def _evaluated_otherwise(origin: Origin, context: Context) -> Finding | None:
    """Of one input; None where it is of a call that trains, or is not known."""
    at = next((n for n, (step, _) in enumerate(context.steps) if step == origin.step), None)
    record, other = origin.target_record, origin.reference_record
    if at is None or record is None or other is None or not origin.slot.startswith("input"):
        return None
    book, reference = context.pair(at, origin.rank)
    call = book.record_call[record]
    is_whole = whole_numbers(book, record) is not None and whole_numbers(reference, other) is not None
    if book.mode[call] != "eval" or book.parent[call] >= 0 or not is_whole:
        return None
    evidence = reason(Stages.EVALUATED_ON, name=origin.slot.partition(".")[2], step=origin.step)
    return data_finding(
        headline=evidence,
        site=f"call without gradients in step {origin.step}, {origin.slot}",
        book=book,
        phase="forward",
        kinds=(kind_named("wrong_data", EvidenceRank.STATED, evidence),),
        evidence=(evidence, *origin.evidence),
        next_note=reason(Stages.SAME_BATCH_FIRST),
    )


def _carried(finding: Finding, context: Context) -> Finding:
    """The finding, where an input that differs is in one run alone what its model returned a step before: a
    state that is carried on (of a recurrent layer, a memory), and not in the other run."""
    at = next((n for n, (step, _) in enumerate(context.steps) if step == finding.step), 0)
    if finding.headline.code not in _OF_INPUTS or not at:
        return finding
    name = str(finding.headline.place("name"))
    before, books = context.pair(at - 1, finding.rank), context.pair(at, finding.rank)
    carried = [_returns_input(*pair, f"input.{name}") for pair in zip(before, books, strict=True)]
    if carried.count(True) != 1:
        return finding
    side = "target" if carried[0] else "reference"
    evidence = reason(Stages.STATE_RETURNED, name=name, side=side)
    kind = kind_named("stale_value", EvidenceRank.EVERY_ELEMENT, evidence, causes=())
    headline = reason(Stages.STATE_CARRIED, name=name, side=side)
    return replace(
        finding,
        headline=headline,
        kinds=(kind,),
        causes=(),
        evidence=(evidence, *finding.evidence),
        next_note=None,
    )


_OF_SAMPLES = tuple(
    map(Reason, (CauseCode.SAMPLE_ORDER, CauseCode.SHARD_OR_SEED, CauseCode.REPLAYED_AFTER_RESUME))
)


def _of_same_samples(finding: Finding, context: Context) -> Finding:
    """The finding without causes that would be other samples, where another input of the same calls, which is
    another in each step and holds as many numbers or more, has the same bits: with other samples it would
    differ too. A smaller one (a noise level a row) may be drawn apart from the samples; masks and positions
    may be those of any samples."""
    at = next((n for n, steps in enumerate(context.steps) if steps[0] == finding.step), None)
    may_be_others = any(one in _OF_SAMPLES for one in finding.causes)
    if at is None or finding.headline.code not in _OF_INPUTS or not may_be_others:
        return finding
    alike = _vouching(f"input.{finding.headline.place('name')}", at, finding.rank or 0, context)
    if not alike:
        return finding
    evidence = reason(Stages.INPUTS_ALIKE, names=alike)
    left = tuple(one for one in finding.causes if one not in _OF_SAMPLES)
    kinds = tuple(replace(k, causes=left) if k.causes == finding.causes else k for k in finding.kinds)
    return replace(finding, causes=left, kinds=kinds, evidence=(*finding.evidence, evidence))


def _vouching(differs: str, at: int, rank: int, context: Context) -> list[str]:
    """The inputs that other samples would change, and that both runs have with the same bits."""
    steps = [_given_bits(context.pair(n, rank)[0]) for n in range(len(context.steps))]
    own, reference = steps[at], _given_bits(context.pair(at, rank)[1])
    others = [held for n, held in enumerate(steps) if n != at]
    if differs not in own or not others:
        return []
    found = []
    for slot, (num, bits) in own.items():
        is_large = num >= own[differs][0] and MASK not in slot and POSITION not in slot
        is_same = None not in bits and slot in reference and bits == reference[slot][1]
        if is_large and is_same and all(bits != held.get(slot, (0, bits))[1] for held in others):
            found.append(slot.partition(".")[2])
    return found


def _given_bits(book: StepView) -> dict[str, tuple[int, tuple[int | None, ...]]]:
    """Slot of the model's inputs -> numbers of the first call's, digests of all calls'."""
    found: dict[str, tuple[int, tuple[int | None, ...]]] = {}
    for _, slot, record in root_inputs(book):
        num, bits = found.get(slot, (math.prod(book.shape(record) or ()), ()))
        found[slot] = num, (*bits, book.digest(record))
    return found


def _resumed(finding: Finding, context: Context) -> Finding:
    """The finding, where both optimizers have stepped before the first step of the traces and the samples may
    be other ones: of their usual causes the one that comes with a checkpoint is the first."""
    after_resume = Reason(CauseCode.REPLAYED_AFTER_RESUME)
    if after_resume not in finding.causes:
        return finding
    rank, sides = context.ranks[0], (context.target, context.reference)
    counts = [
        _counted_before(book, context, side, rank) for book, side in zip(context.pair(), sides, strict=True)
    ]
    if None in counts or 0 in counts:
        return finding
    evidence = reason(Stages.COUNTED_BEFORE, **dict(zip(_SIDES, counts, strict=True)))
    causes = (after_resume, *(one for one in finding.causes if one != after_resume))
    kinds = tuple(
        replace(kind, causes=causes) if kind.causes == finding.causes else kind for kind in finding.kinds
    )
    return replace(finding, causes=causes, kinds=kinds, evidence=(*finding.evidence, evidence))


def _counted_before(book: StepView, context: Context, side: TraceSource, rank: int) -> int | None:
    """Updates that an optimizer counts before the first step of a trace; None where it keeps no count."""
    updates = context.updates(side, book.step, rank).values()
    counts = [update.count for update in updates if update.count is not None]
    return max(0, int(min(counts)) - 1) if counts else None


def _returns_input(before: StepView, book: StepView, slot: str) -> bool:
    """Whether a model is given what it returned in the step before, bit for bit; not where that is one
    value everywhere."""
    given_now = {book.digest(row) for _, name, row in root_inputs(book) if name == slot} - {None}
    roots = {before.record_call[row] for _, _, row in root_inputs(before)}
    outputs = (r for call in roots for r in before.records(call, "forward"))
    returned = {before.digest(r) for r in outputs if before.slot[r].startswith("output") and before.norm(r)}
    return bool(given_now & returned)


_WITHOUT_EFFECT = (Stages.BATCH_IN_OTHER_FORM, Stages.INPUT_WITHOUT_EFFECT)
_NOT_COMPARED = (Stages.PACKED_OTHERWISE, Stages.BATCH_IN_PARTS)


def _is_in_parts(book: StepView) -> bool:
    """Whether inputs of the model lack a summary, since their parts do not fit together."""
    codes = {why.code for _, _, row in root_inputs(book) if (why := book.tables.reason_of(row)) is not None}
    return RecordCode.PARTS_NOT_MERGED in codes


def _same_stream(context: Context) -> Reason | None:
    """Where the runs have other numbers of microbatches a step: whether they read the same ones in the same
    order all the same."""
    counts = context.microbatches
    if counts[0] == counts[1] or None in counts:
        return None
    if _begins_alike(context):
        return reason(Stages.SAME_STREAM, target=counts[0], reference=counts[1])
    for rank in context.ranks:
        sides: tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]]] = ([], [])
        for at in range(min(len(context.steps), 2)):
            for side, book in zip(sides, context.pair(at, rank), strict=True):
                batch = StepBatch.of(book)
                side += [
                    (ids.tobytes(), labels.tobytes())
                    for number, labels in batch.labels.items()
                    if (ids := batch.tokens_of(number)) is not None
                ]
        shared = min(map(len, sides))
        if shared < 2 or sides[0][:shared] != sides[1][:shared]:
            return None
    return reason(Stages.SAME_STREAM, target=counts[0], reference=counts[1])


def _begins_alike(context: Context) -> bool:
    """Whether the first step of one run ended without an update, and all it was given is what the other
    run's began with."""
    books = context.pair()
    updated = [bool(book.parameters_with(*UPDATED)) for book in books]
    if all(updated) or not any(updated):
        return False
    batches = [StepBatch.of(book) for book in books]
    short, whole = batches if updated[1] else batches[::-1]
    if not short.ids:  # pixels, features: by their bits
        known = bool(short.given) and None not in short.given.values()
        return known and short.given.items() <= whole.given.items()
    return all(
        name in whole.ids and np.array_equal(whole.ids[name][: len(ids)], ids)
        for name, ids in short.ids.items()
    )


def _same_rows(context: Context) -> Reason | None:
    """Where the runs cut their steps into other microbatches, put rows in another order or pad them
    otherwise: whether every step has the same rows all the same, each with all that it is given."""
    num, is_laid_otherwise = 0, False
    for at in range(min(len(context.steps), 2)):
        for rank in context.ranks:
            batches = [StepBatch.of(book) for book in context.pair(at, rank)]
            labelled = not any("call" in name for batch in batches for name in batch.ids)
            sides = [_rows_of(batch, labelled=labelled) for batch in batches]
            if sides[0] is None or sides[1] is None or Counter(sides[0][1]) != Counter(sides[1][1]):
                return None
            num += len(sides[0][1])
            is_laid_otherwise |= sides[0] != sides[1] or not _same_inputs(*batches)
    seen = any(one.code is NoteCode.ROWS_LAID_OTHERWISE for one in context.comparison.content.notes)
    if seen and not num:  # rows of other than whole numbers, which the comparison has found again
        num = sum(
            scalar_line(book.source, book.rank, book.step).get("batch_size") or 0
            for book in context.pair()[:1]
        )
    is_laid_otherwise |= seen
    return reason(Stages.SAME_ROWS_REGROUPED, num=num) if is_laid_otherwise and num else None


def _same_inputs(target: StepBatch, reference: StepBatch) -> bool:
    shared = target.ids.keys() & reference.ids.keys()
    return all(np.array_equal(target.ids[name], reference.ids[name]) for name in shared)


def _rows_of(batch: StepBatch, *, labelled: bool) -> tuple[list[int], list[bytes]] | None:
    """Rows of each call, and what each row is given without its padding, maybe with its labels; None where
    inputs have other numbers of rows."""
    given: dict[str, dict[str, Ints]] = {}
    for name, ids in batch.ids.items():
        microbatch, slot = name.split(", ")
        given.setdefault(microbatch, {})[slot] = ids
    counts, rows = list[int](), list[bytes]()
    for place, held in given.items():
        num = num_rows(held)
        if num is None:
            return None
        spans = spans_of(held, without_padding=True)
        width = width_of(held)
        given_labels = [
            ids for slot, ids in held.items() if _is_of_labels(slot) and ids.shape == (num, width)
        ]
        of_call = row_keys(held, spans)
        for ids in given_labels:  # a padding that counts is no padding
            of_call = _labelled(of_call, _labels_of(ids, spans, width, batch.ignore_index))
        number = int(place.removeprefix("microbatch ")) if labelled else -1
        labels = batch.labels.get(number)
        if labels is not None and labels.size == _num_with_next(spans):
            ends = np.cumsum([span.stop - span.start - 1 for span in spans])[:-1]
            of_call = _labelled(of_call, [one.tobytes() for one in np.split(labels.ravel(), ends)])
        elif labels is not None and labels.size % num == 0:
            labels, tokens = labels.reshape(num, -1), batch.tokens_of(number)
            if tokens is None or not _are_next(labels, tokens, spans, batch.ignore_index):
                counted = _labels_of(labels, spans, width, batch.ignore_index)
                of_call = _labelled(of_call, counted)
        counts.append(len(spans))
        rows += of_call
    return counts, rows


def _num_with_next(spans: Sequence[RowSpan]) -> int:
    """Tokens that have a next one in their row or sequence: what programs that drop the last logits label."""
    return sum(span.stop - span.start - 1 for span in spans)


def _labelled(rows: Sequence[bytes], labels: Sequence[bytes]) -> list[bytes]:
    return [b"|".join(both) for both in zip(rows, labels, strict=True)]


def _are_next(labels: Ints, tokens: Ints, spans: Sequence[RowSpan], ignored: int) -> bool:
    """Whether the label of every token is the next token of its row or sequence: they are made of the ids.
    The last has none, and padding neither."""
    if labels.shape != tokens.shape:
        return False
    outside = np.ones(labels.shape, np.bool_)
    for span in spans:
        outside[span.row, span.start : span.stop] = False
    if (labels[outside] != ignored).any():
        return False
    ends = [(labels[s.row, s.start : s.stop - 1], tokens[s.row, s.start + 1 : s.stop]) for s in spans]
    return all(np.array_equal(label, token) for label, token in ends)


def _labels_of(labels: Ints, spans: Sequence[RowSpan], width: int, ignored: int) -> list[bytes]:
    """Labels of each row or packed sequence, without those of its padding where none of them counts."""
    if np.array_equal(labels.ravel(), np.arange(labels.size)):  # a contrastive loss counts the rows
        return [b""] * len(spans)
    short = width - labels.shape[1]  # a program that shifts labels by itself has one fewer
    outside = np.ones(labels.shape, np.bool_)
    for span in spans:
        outside[span.row, span.start : span.stop - short] = False
    unused = outside & (labels != ignored)
    found = []
    for span in spans:
        row, cut = labels[span.row], short in (0, 1) and not unused[span.row].any()
        found.append((row[span.start : span.stop - short] if cut else row).tobytes())
    return found


def _whose(findings: list[Finding], context: Context, at: int) -> list[Finding]:
    """The findings with the ranks that alone show one, or the axis along which ranks got the same only in the
    target; where that is so of whole batches, a finding that says it."""
    target, reference = (
        {rank: StepBatch.of(context.pair(at, rank)[side]).ids for rank in context.ranks} for side in (0, 1)
    )
    names = list(dict.fromkeys(name for ids in target.values() for name in ids))
    shared = {name: _axis_shared(name, target, reference, context.mesh) for name in names}
    axes = set(shared.values())
    shown: dict[Reason, set[int]] = {}
    for finding in findings:
        shown.setdefault(finding.headline, set()).add(finding.rank or 0)
    found = []
    for finding in findings:
        axis = next((shared[name] for name in names if (finding.site or "").endswith(name)), None)
        if finding.headline == _COUNTING:
            axis = (
                None  # positions of other ranks' tokens may well be alike: at fault is who counts otherwise
            )
        found.append(replace(finding, axis=axis) if axis else _of_some(finding, shown, context))
    shared_axis = axes.pop() if len(axes) == 1 else None
    return [*found, *([_same_shard(shared_axis, context, at)] if shared_axis else [])]


def _of_batch_axis(findings: list[Finding], context: Context, at: int) -> list[Finding]:
    """Of ranks put together: where microbatches are the same only in the target, the axis along which ranks
    read different ones."""
    axes = [axis for axis in context.layout.batch if axis in context.layout.wide_axes]
    repeated = [_repeats(StepBatch.of(book)) for book in context.pair(at)]
    if len(axes) == 1 and repeated == [True, False]:
        return [_same_shard(axes[0], context, at), *findings]
    return [_of_part(finding, context, at) for finding in findings]


def _of_part(finding: Finding, context: Context, at: int) -> Finding:
    """The finding with the ranks whose part of an input alone is another."""
    slot = (finding.site or "").rpartition(", ")[2]
    of_model = (pl.col("module") == "") & (pl.col("kind") == "module") & (pl.col("slot") == slot)
    inputs = context.of_phases("forward", at=at).filter(of_model & ~pl.col("bits_equal").fill_null(False))
    for pair in inputs.select("target_record", "reference_record").iter_rows():
        some = ranks_apart(context, at, pair, 0.0)
        if some:
            return of_ranks(finding, some, range(context.layout.size), context.layout)
    return finding


def _repeats(batch: StepBatch) -> bool:
    """Whether two microbatches are of the same rows."""
    held = [ids.tobytes() for ids in map(batch.tokens_of, sorted(batch.labels)) if ids is not None]
    return len(set(held)) < len(held)


def _of_some(finding: Finding, shown: dict[Reason, set[int]], context: Context) -> Finding:
    return of_ranks(finding, shown[finding.headline], context.ranks, context.mesh)


def _axis_shared(
    name: str, target: dict[int, dict[str, Ints]], reference: dict[int, dict[str, Ints]], mesh: Layout
) -> str | None:
    """The axis along which all ranks of the target, and not those of the reference, got one input alike."""
    both = ({rank: ids[name] for rank, ids in side.items() if name in ids} for side in (target, reference))
    own, other = both
    for axis in mesh.wide_axes:
        if _same_along(own, axis, mesh) and not _same_along(other, axis, mesh):
            return axis
    return None


def _same_along(ids: dict[int, Ints], axis: str, mesh: Layout) -> bool:
    """Whether the ranks along an axis have the very same rows."""
    groups = {mesh.group(rank, [axis]) for rank in ids}
    return all(
        rank in ids and np.array_equal(ids[some[0]], ids[rank])
        for some in groups
        if some[0] in ids
        for rank in some[1:]
    )


def _same_shard(axis: str, context: Context, at: int) -> Finding:
    """Ranks that read the very same rows in the target, and others in the reference."""
    first = context.ranks[0]
    book = context.pair(at, first)[0]
    rows = reason(Stages.SAME_ROWS)
    kind = kind_named("wrong_data", EvidenceRank.STATED, rows, causes=(reason(Stages.SAMPLER_CAUSE),))
    return data_finding(
        headline=reason(Stages.SAME_SHARD),
        site=f"batch of step {book.step}, ranks {first} and others",
        axis=axis,
        book=book,
        kinds=(kind,),
        evidence=(rows,),
        next_note=reason(Stages.GIVE_RANK),
    )


def _one_each(findings: list[Finding]) -> list[Finding]:
    """The same finding in several inputs, microbatches or ranks is one, with the numbers of the first; what
    is said of all ranks goes first."""
    found: dict[Reason, Finding] = {}
    for finding in findings:
        known = found.setdefault(finding.headline, finding)
        codes = {one.code for one in known.evidence}
        more = () if known is finding else (one for one in finding.evidence if one.code not in codes)
        found[finding.headline] = replace(known, evidence=(*known.evidence, *more)[:8])
    shared = [f for f in found.values() if f.headline.code is Stages.SAME_SHARD]
    if shared:
        others = [one for f in found.values() if f is not shared[0] for one in f.evidence]
        return [replace(shared[0], evidence=(*shared[0].evidence, *others[:4]))]
    return list(found.values())


def _outcome(
    findings: list[Finding], notes: list[Reason], compared: bool, details: Mapping[str, object]
) -> StageOutcome:
    outcome = partial(StageOutcome, stage=Stage.DATA, title=DataStage.title, details=details)
    if findings:
        return outcome(
            status=StageStatus.FAILED,
            conclusion=findings[0].headline,
            evidence=tuple(notes),
            findings=tuple(findings),
            confirmed=True,
        )
    if not compared:
        why = next((one for one in notes if one.code in _NOT_COMPARED), reason(Stages.NO_BATCH))
        return outcome(status=StageStatus.UNDECIDED, conclusion=why)
    apart = any(one.code is EvidenceCode.INPUT_OF_ONE_SIDE for one in notes)
    head = reason(Stages.SAME_SHARED if apart else Stages.SAME_BATCHES)
    head = next((one for one in notes if one.code in _WITHOUT_EFFECT), head)
    return outcome(status=StageStatus.PASSED, conclusion=head, evidence=tuple(notes), confirmed=True)


def _digests_tell(target: StepBatch, reference: StepBatch) -> bool:
    """A digest knows of no rows: of packed and of padded ones it is another."""
    return None not in (target.digest, reference.digest) and target.packed == reference.packed


def _compared(
    target: StepBatch, reference: StepBatch, context: Context
) -> tuple[list[Finding], list[Reason]]:
    step, rank = target.book.step, target.book.rank
    notes: list[Reason] = []
    shared = sorted((name for name in target.ids if name in reference.ids), key=_is_of_labels)
    findings = _of_ids(target, reference, shared, context) or _of_bounds(target, reference)
    if shared and not findings:
        same = [name for name in shared if np.array_equal(target.ids[name], reference.ids[name])]
        tokens = sum(target.ids[name].size for name in same)
        if same:
            notes.append(reason(Stages.SAME_IDS, step=step, rank=rank, ids=tokens, inputs=len(same)))
    elif not shared and target.packed != reference.packed:
        notes.append(
            reason(Stages.PACKED_OTHERWISE, step=step, side="target" if target.packed else "reference")
        )
    elif not shared:
        more, words = _of_digests(target, reference, context)
        findings += more
        notes += words
    if not findings:
        more, words = compared_labels(target, reference, rank if len(context.ranks) > 1 else None)
        findings += _without_agreeing(more, context, step)
        notes += words
    return findings, notes


def _of_bounds(target: StepBatch, reference: StepBatch) -> list[Finding]:
    """Boundaries of packed sequences that differ where all ids that both models are given are the same."""
    for name in target.bounds.keys() & reference.bounds.keys():
        own, other = target.bounds[name], reference.bounds[name]
        if np.array_equal(own, other):
            continue
        lone = set(own.tolist()) - set(other.tolist())
        shared = min(len(own), len(other))
        first = int(np.argmax(own[:shared] != other[:shared]))
        evidence = reason(
            Batches.BOUNDARIES,
            num=len(lone),
            total=len(own),
            target=int(own[first]),
            reference=int(other[first]),
            at=first,
        )
        return [
            data_finding(
                headline=reason(Batches.BOUNDARIES_DIFFER),
                site=f"batch of step {target.book.step}, {name}",
                book=target.book,
                phase="forward",
                kinds=(kind_named("wrong_mask", EvidenceRank.STATED, evidence, phase="forward"),),
                evidence=(evidence,),
                next_note=reason(Batches.CHECK_BOUNDARIES),
            )
        ]
    return []


def _of_ids(target: StepBatch, reference: StepBatch, names: Sequence[str], context: Context) -> list[Finding]:
    """What stored ids of both runs say, input by input."""
    findings: list[Finding] = []
    by_input: dict[str, Finding] = {}
    for name in names:
        ids, other = target.ids[name], reference.ids[name]
        if MASK in name or POSITION in name:
            ids, other = _for_all_rows(ids, other)
        if _is_one_for_all_rows(ids, other) or _is_padded_otherwise(name, ids, other):
            continue
        if name.partition(".")[2] in context.inputs_without_effect:
            continue
        if _is_hidden_there(name, target, reference) or _ends_later(name, ids, other, target, reference):
            continue
        outside = _outside(target, name)
        if outside.any():
            findings.append(_out_of_range(target, name, outside))
            ids = np.where(outside, other, ids) if ids.shape == other.shape else ids
        counted = _not_counted_alike(ids, other, name, target)
        if counted is not None:
            findings.append(counted)
            continue
        found = relation(ids, other, _beside(name, target, reference))
        if (
            found.name == "padding"
            and _is_of_labels(name)
            and all(_is_of_labels(f.site or "") for f in findings)
        ):
            found = moved(ids, other) or found  # nothing else of the batch is padded otherwise
        if found.name != "same":
            found_there = elsewhere(name, target, reference, context)
            same = _is_of_same_samples(found.name, name, target, reference)
            finding = _batch_finding(
                found.name, found.evidence, found_there, name, target.book, same_samples=same
            )
            finding = _shared_out(finding, name, target, reference, context)
            by_input[name] = _with_rows(finding, findings)
            findings.append(by_input[name])
    return _once_shifted(findings, by_input, target, reference)


def _once_shifted(
    findings: list[Finding], by_input: Mapping[str, Finding], target: StepBatch, reference: StepBatch
) -> list[Finding]:
    """The findings, those left out that follow from rows of tokens that are all shifted, or that are another
    part of the same text: masks and labels of the same call that lie beside the tokens as they do in the
    reference (docs/decisions/0096)."""
    for name, finding in by_input.items():
        beside = _of_the_same_call(name, by_input)
        if finding.headline in _OF_A_PART:
            alike = [by_input[one] for one in beside if _are_tokens_alike(one, name, target, reference)]
            return _without(findings, alike)
        ids, other = target.ids[name], reference.ids[name]
        found = moved(ids, other) if finding.headline == _SHIFTED else None
        if found is None:
            continue
        shift = int(found.evidence.number("shift") or 0)
        follow = [one for one in beside if _lies_beside(one, name, shift, target, reference)]
        front = put_in_front(ids, other, shift)
        slots = [one.partition(".")[2] for one in follow]
        more = [reason(Stages.INPUTS_FOLLOW, names=slots, ids=name.partition(".")[2])] if slots else []
        shown = replace(
            finding,
            headline=finding.headline if front is None else front,
            evidence=(*([] if front is None else [front]), *finding.evidence, *more),
        )
        left = _without(findings, [by_input[one] for one in follow])
        return [shown if one is finding else one for one in left]
    return findings


def _of_the_same_call(name: str, by_input: Mapping[str, Finding]) -> list[str]:
    """The other inputs of the same call."""
    place = name.partition(", ")[0]
    return [one for one in by_input if one != name and one.partition(", ")[0] == place]


def _without(findings: Sequence[Finding], left_out: Sequence[Finding]) -> list[Finding]:
    return [one for one in findings if one not in left_out]


_COUNTING = reason(Stages.BATCH, relation="counting", labels=False)
_SHIFTED = reason(Stages.BATCH, relation="shift", labels=False)
_OF_A_PART = tuple(
    reason(Stages.BATCH, relation=f"cut_{side}", labels=False) for side in ("later", "earlier")
)


def _lies_beside(name: str, tokens: str, shift: int, target: StepBatch, reference: StepBatch) -> bool:
    """Whether an input differs only as one does whose rows are shifted with the tokens: zeros and ones that
    end, or labels that are masked, where they did or as many positions further; labels that count being
    tokens, as many positions away as in the reference."""
    if not _are_alike(name, target, reference):
        return False
    sides = [(batch.ids[name], batch.ids[tokens], batch) for batch in (target, reference)]
    if not _is_of_labels(name):
        is_flags = {*np.unique(sides[0][0]), *np.unique(sides[1][0])} <= {0, 1}
        shown = [values != 0 for values, _, _ in sides]
        return is_flags and edges_follow(shown[0], shown[1], shift)
    counts = [values != batch.ignore_index for values, _, batch in sides]
    return _are_tokens_alike(name, tokens, target, reference) and edges_follow(counts[0], counts[1], shift)


def _are_tokens_alike(name: str, tokens: str, target: StepBatch, reference: StepBatch) -> bool:
    """Whether labels that count are tokens of their own run, as many positions away on both sides."""
    if not (_are_alike(name, target, reference) and _is_of_labels(name)):
        return False
    target_shift, reference_shift = (
        label_facts(
            batch.ids[name], batch.ids[tokens], ignore_index=batch.ignore_index, vocab_size=batch.vocab_size
        ).shift
        for batch in (target, reference)
    )
    return target_shift is not None and target_shift == reference_shift


def _is_of_same_samples(relation: str, name: str, target: StepBatch, reference: StepBatch) -> bool:
    """Whether what differs was made of the same samples in the same order; not of rows that stand elsewhere,
    or of a stream that begins elsewhere: of these the order may be another."""
    if relation in ("order", "packing", "more_rows"):
        return False
    if relation in ("mapped_ids", *_CUT) or are_the_same_samples(target.ids[name], reference.ids[name]):
        return True
    return _is_of_labels(name) and target.is_given_the_same(reference, but_labels=True)


def _beside(name: str, target: StepBatch, reference: StepBatch) -> list[tuple[Array, Array]]:
    """What the same call is given with an input, of as many rows, and differs: target and reference."""
    place, _, own = name.partition(", ")
    found = []
    for where, slot in target.given.keys() & reference.given.keys():
        same = target.given[where, slot] == reference.given[where, slot]
        if where != place or slot == own or same or MASK in slot:
            continue
        values = [_value_of(batch.book, where, slot) for batch in (target, reference)]
        num = len(target.ids[name])
        pair = [one for one in values if one is not None and one.ndim and len(one) == num]
        if len(pair) == len(values) and num == len(reference.ids[name]):
            found.append((pair[0], pair[1]))
    return found


def _value_of(book: StepView, place: str, slot: str) -> Array | None:
    row = next((row for at, name, row in given(book) if (at, name) == (place, slot)), None)
    return None if row is None else book.value(row)


def _is_padded_otherwise(name: str, ids: Ints, other: Ints) -> bool:
    """Whether a mask or positions have another shape: that follows from how rows are cut and padded, of which
    the tokens beside them say whether it matters."""
    return ids.shape != other.shape and (MASK in name or POSITION in name)


def _is_hidden_there(name: str, target: StepBatch, reference: StepBatch) -> bool:
    """Whether an input differs nowhere but where a mask of the same tokens does: what stands there follows
    from what the mask hides. Labels are no part of what it hides."""
    apart = target.ids[name] != reference.ids[name] if _are_alike(name, target, reference) else None
    if apart is None or _is_of_labels(name) or MASK in name:
        return False
    at = name.rpartition(".")[0]
    masks = [one for one in target.ids if MASK in one and one.rpartition(".")[0] == at]
    others = (target.ids[one] != reference.ids[one] for one in masks if _are_alike(one, target, reference))
    return any(mask.shape == apart.shape and mask.any() and not (apart & ~mask).any() for mask in others)


def _ends_later(name: str, ids: Ints, other: Ints, target: StepBatch, reference: StepBatch) -> bool:
    """Whether labels differ by how many ignored ones follow each row alone: no loss counts those."""
    if not _is_of_labels(name) or ids.ndim != 2 or len(ids) != len(other) or ids.shape == other.shape:
        return False
    short, long = sorted((ids, other), key=lambda one: one.shape[1])
    if target.ignore_index != reference.ignore_index:
        return False
    width = short.shape[1]
    rest = long[:, width:]
    return bool((rest == target.ignore_index).all()) and np.array_equal(long[:, :width], short)


def _are_alike(name: str, target: StepBatch, reference: StepBatch) -> bool:
    """Whether both runs have the input, in one shape."""
    return name in reference.ids and target.ids[name].shape == reference.ids[name].shape


def _is_one_for_all_rows(ids: Ints, other: Ints) -> bool:
    """Whether one side gives a single row where the other repeats it for all: positions, a mask."""
    if ids.ndim < 2 or ids.shape[1:] != other.shape[1:] or 1 not in (len(ids), len(other)):
        return False
    return len(ids) != len(other) and bool((ids == other).all())


def _for_all_rows(ids: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Both in one shape, where one side gives a single row and the other one for each sample, unlike it."""
    if ids.ndim < 2 or ids.shape[1:] != other.shape[1:] or 1 not in (len(ids), len(other)):
        return ids, other
    if _is_one_for_all_rows(ids, other):
        return ids, other
    whole = np.broadcast_arrays(ids, other)
    return whole[0], whole[1]


def _with_rows(finding: Finding, findings: Sequence[Finding]) -> Finding:
    """Labels of which the same is said as of the token ids came with them: one finding."""
    headline = finding.headline
    if headline.code is not Stages.BATCH:
        return finding
    rows = reason(Stages.BATCH, relation=headline.place("relation"), labels=False)
    return replace(finding, headline=rows) if any(one.headline == rows for one in findings) else finding


def _is_of_labels(name: str) -> bool:
    return "label" in name.rpartition(".")[2]


def _of_digests(
    target: StepBatch, reference: StepBatch, context: Context
) -> tuple[list[Finding], list[Reason]]:
    """What digests say where no ids were stored."""
    if None in (target.digest, reference.digest):
        return [], []
    if target.digest == reference.digest:
        return [], [reason(Stages.SAME_DIGESTS, step=target.book.step, rank=target.book.rank)]
    if _agree_within_rounding(target, reference, context):
        return [], []
    return _inputs_apart(target, reference, context), []


def _inputs_apart(target: StepBatch, reference: StepBatch, context: Context) -> list[Finding]:
    """The inputs of the model whose bits differ, with what became of them; nothing where the two models are
    given other inputs, of which digests say nothing. What other ranks have sent is no batch."""
    if target.given.keys() != reference.given.keys():
        return []
    books = target.book, reference.book
    sent = [_sent_to(book, context) for book in books]
    rows = [{(at, name): row for at, name, row in given(book)} for book in books]
    findings = []
    for (place, slot), digest in target.given.items():
        other = reference.given[place, slot]
        if digest == other or MASK in slot or _is_number(target.book, slot):
            continue
        here = zip(books, rows, (digest, other), sent, strict=True)
        if all(
            bits in of or _is_rounded_of_sent(book, row[place, slot], context) for book, row, bits, of in here
        ):
            continue
        relation = _value_relation(books, place, slot)
        made_with = _made_with(books, place, slot, relation)
        if made_with is not None:
            return [made_with]
        digests = reason(Stages.DIGESTS, target=str(target.digest), reference=str(reference.digest))
        kept = any(
            book.raw(row) is not None for book in books for _, name, row in given(book) if name == slot
        )
        known = relation is not None or _are_the_same_samples(books, (place, slot))
        coarser = _made_in_another_dtype(books, (place, slot), context)
        in_dtypes = _in_dtypes(books, rows, (place, slot))
        evidence = (relation, *coarser) if relation is not None else (digests, *(coarser or in_dtypes))
        found = _input_finding(target.book, slot, relation, evidence, is_kept=kept, same_samples=known)
        if coarser:
            causes = (Reason(CauseCode.COARSER_ON_ONE_SIDE),)
            found = replace(found, causes=causes, kinds=(replace(found.kinds[0], causes=causes),))
        findings.append(found)
    return findings


def _in_dtypes(
    books: tuple[StepView, StepView],
    rows: Sequence[Mapping[tuple[str, str], int]],
    place: tuple[str, str],
) -> tuple[Reason, ...]:
    """The dtypes that an input of the model has, where they are not the same."""
    target, reference = (str(book.dtype(of[place])) for book, of in zip(books, rows, strict=True))
    if target == reference:
        return ()
    return (reason(EvidenceCode.DTYPES_DIFFER, site=place[1], target=target, reference=reference),)


def _made_in_another_dtype(
    books: tuple[StepView, StepView], place: tuple[str, str], context: Context
) -> tuple[Reason, ...]:
    """What a model that is called without gradients (an encoder of images or text) gives in another dtype
    than in the reference, where the input differs by no more than the coarser of the two rounds."""
    rows = [next((row for at, name, row in given(book) if (at, name) == place), None) for book in books]
    own, other = (book.value(row) for book, row in zip(books, rows, strict=True))
    if own is None or other is None or own.shape != other.shape or not np.any(other):
        return ()
    text = {name: pl.col(name).cast(pl.String) for name in ("phase", "kind", "slot", "mode", *_DTYPES_OF)}
    apart = context.rows.filter(
        (text["phase"] == "forward") & (text["kind"] == "module") & (text["mode"] == "eval"),
        text["slot"].str.starts_with("output"),
        text["target_dtype"] != text["reference_dtype"],
    )
    for row in apart.iter_rows(named=True):
        sides = {side: str(row[f"{side}_dtype"]) for side in _SIDES}
        roundoffs = [DTYPES[name].eps for name in sides.values() if DTYPES[name].kind == "float"]
        size = float(np.linalg.norm(own - other) / np.linalg.norm(other))
        if len(roundoffs) == 2 and size <= FINER * max(roundoffs):
            return (reason(EvidenceCode.DTYPES_DIFFER, site=str(row["site"]), **sides),)
    return ()


_DTYPES_OF = ("target_dtype", "reference_dtype")


def _are_the_same_samples(books: tuple[StepView, StepView], but: tuple[str, str]) -> bool:
    """Whether another input of the model, of the same microbatch, has rows of the same bits at their place:
    order, shard and seed of the samples are the same then."""
    sides = [{(at, name): row for at, name, row in given(book) if at == but[0]} for book in books]
    for place in sides[0].keys() & sides[1].keys() - {but}:
        own, other = (book.value(side[place]) for book, side in zip(books, sides, strict=True))
        if own is not None and other is not None and rows_in_place(own, other):
            return True
    return False


def _sent_to(book: StepView, context: Context) -> set[int]:
    """Digests of what the other ranks of a run give to collectives in this step: a stage of a pipeline works
    on what the one before it has computed."""
    found = set[int]()
    for rank in book.source.steps().get(book.step, []):
        if rank != book.rank:
            frame = context.book(book.source, book.step, rank).frame_of("collective")
            found |= set(frame.filter(pl.col("slot").str.starts_with("input"))["digest"].drop_nulls())
    return found


def _is_rounded_of_sent(book: StepView, row: int, context: Context) -> bool:
    """Whether an input is, value by value as far as statistics tell, what another rank has sent in a coarser
    dtype (a pipeline that sends its activations in bfloat16)."""
    dtype = str(book.dtype(row))
    own = book.frame.filter(pl.col("record") == row)
    if dtype not in DTYPES or not own.height or own["l2_norm"][0] is None:
        return False
    same = [pl.col(name) == own[name][0] for name in ("numel", "num_zero", "minimum", "maximum")]
    near = (pl.col("l2_norm") - own["l2_norm"][0]).abs() <= DTYPES[dtype].eps * own["l2_norm"][0]
    for rank in book.source.steps().get(book.step, []):
        frame = context.book(book.source, book.step, rank).frame_of("collective")
        if rank != book.rank and frame.filter(pl.col("slot").str.starts_with("input"), near, *same).height:
            return True
    return False


def _is_sent(book: StepView, slot: str, context: Context) -> bool:
    sent, rows = _sent_to(book, context), [row for _, name, row in root_inputs(book) if name == slot]
    return any(book.digest(row) in sent or _is_rounded_of_sent(book, row, context) for row in rows)


def _is_number(book: StepView, slot: str) -> bool:
    """Whether an input is one number, which is no batch: what it means says more."""
    return any(name == slot and math.prod(book.shape(row) or ()) == 1 for _, name, row in given(book))


def _value_relation(books: tuple[StepView, StepView], place: str, slot: str) -> Reason | None:
    """What became of an input of the model that is no whole numbers, where both traces hold its values."""
    rows = [
        next((row for at, name, row in given(book) if (at, name) == (place, slot)), None) for book in books
    ]
    held = [book.raw(row) for book, row in zip(books, rows, strict=True)]
    values = [book.value(row) for book, row in zip(books, rows, strict=True)]
    if (lost := _lost_in(held, values)) is not None:
        return lost
    if any(one is None or DTYPES[one[0]].kind != "float" for one in held):
        return None
    rounding = max(DTYPES[one[0]].eps for one in held if one is not None)
    own, other = values
    return None if own is None or other is None else value_relation(own, other, rounding)


def _lost_in(held: Sequence[tuple[str, Array] | None], values: Sequence[Floats | None]) -> Reason | None:
    """What is lost of whole numbers where one run gives them in integers, the other in half precision."""
    for at in (0, 1):
        one, other, own, whole = held[at], held[1 - at], values[at], values[1 - at]
        if one is None or other is None or own is None or whole is None or one[0] not in _HALF:
            continue
        if DTYPES[other[0]].kind in ("int", "uint"):
            facts = lost_whole_numbers(own, whole, one[0])
            return None if facts is None else reason(EvidenceCode.WHOLE_ROUNDED, dtype=one[0], **facts)
    return None


_HALF = ("bfloat16", "float16")


# In one piece: one branch a relation, for the headline and then for the causes.
def _input_finding(
    book: StepView,
    slot: str,
    relation: Reason | None,
    evidence: tuple[Reason, ...],
    *,
    is_kept: bool = True,
    same_samples: bool = False,
) -> Finding:
    """``same_samples``: order, shard and seed of the samples do not differ."""
    name = slot.partition(".")[2]
    headline = reason(Stages.INPUT_DIFFERS, name=name)
    if relation is not None and relation.code is Batches.CONSTANT and _is_one_number(relation):
        headline = reason(Stages.INPUT_IS, name=name, **dict(relation.facts))
    if relation is not None and relation.code in _AFFINE:
        headline = reason(
            Stages.INPUT_SCALED, name=name, by_channel=relation.code is Batches.SCALED_BY_CHANNEL
        )
    if relation is not None and relation.code in (Batches.ROUNDED, EvidenceCode.WHOLE_ROUNDED):
        headline = reason(Stages.INPUT_ROUNDED, name=name)
    if relation is not None and relation.code is Batches.LIMITED:
        headline = reason(Stages.INPUT_LIMITED, name=name)
    if relation is not None and relation.code in _MOVED:
        headline = reason(Stages.INPUT_MOVED, name=name, dim=relation.number("dim"))
    rank = EvidenceRank.MOST if relation is None else EvidenceRank.EVERY_ELEMENT
    known: tuple[Reason, ...] | None = () if same_samples else None
    if relation is not None and relation.code in _PREPROCESSED:
        known = (Reason(CauseCode.PREPROCESSING),)
    if relation is not None and relation.code is Batches.ROUNDED:
        known = (Reason(CauseCode.COARSER_ON_ONE_SIDE), Reason(CauseCode.OTHER_ORDER_OR_KERNEL))
    if relation is not None and relation.code is EvidenceCode.WHOLE_ROUNDED:
        known = (Reason(CauseCode.COARSER_ON_ONE_SIDE),)
    if relation is not None and relation.code is Batches.LIMITED:
        known = (Reason(CauseCode.BOUND_OF_OTHER_NUMBERS),)
    if relation is not None and relation.code is Batches.ONE_FOR_EACH_SAMPLE:
        known = (Reason(CauseCode.LEVELS_DRAWN_OTHERWISE),)
    if relation is not None and relation.code is Batches.SAME_SAMPLES:  # neither their order nor their shard
        known = (reason(Stages.MADE_BEFORE_CAUSE),)
    kind = kind_named("wrong_data", rank, relation or headline, causes=known)
    return data_finding(
        headline=headline,
        site=f"batch of step {book.step}, {slot}",
        book=book,
        kinds=(kind,),
        evidence=evidence,
        next_note=reason(Stages.SAME_BATCH_FIRST if is_kept else Stages.CAPTURE_IDS),
    )


def _is_one_number(relation: Reason) -> bool:
    return all(relation.number(f"{side}_least") == relation.number(f"{side}_most") for side in _SIDES)


_SIDES = ("target", "reference")
_OF_INPUTS = (
    Stages.INPUT_DIFFERS,
    Stages.INPUT_SCALED,
    Stages.INPUT_MOVED,
    Stages.INPUT_ROUNDED,
    Stages.INPUT_LIMITED,
)
_AFFINE = (Batches.SCALED, Batches.SCALED_BY_CHANNEL)
_MOVED = (Batches.MOVED, Batches.MOVED_AND_SCALED)
_PREPROCESSED = (
    Batches.SHAPE,
    *_MOVED,
    Batches.LAID_OUT,
    Batches.SAME_NUMBERS,
    Batches.SCALED,
    Batches.SCALED_BY_CHANNEL,
)
"""what another normalization, order of channels, layout or offset makes of an input; what leaves other
numbers than these do has another cause"""


def _agree_within_rounding(target: StepBatch, reference: StepBatch, context: Context) -> bool:
    """Whether all that the models were given was compared and agrees: bits may differ where a pipeline stage
    is given what another one has computed."""
    place = {"step": target.book.step, "rank": target.book.rank, "phase": "forward", "name": ""}
    given = [pl.col(name).cast(pl.String) == str(value) for name, value in place.items()]
    rows = context.rows.filter(*given, pl.col("slot").cast(pl.String).str.starts_with("input"), is_compared())
    return rows.height >= len(target.given) > 0 and rows.filter(is_beyond()).is_empty()


def _without_agreeing(findings: list[Finding], context: Context, step: int) -> list[Finding]:
    """What is left of findings about labels where the comparison has them alike, or none of them counts: that
    of the weights beside them."""
    if not (_labels_count_nowhere(context, step) or _labels_are_one(context, step)):
        return findings
    if context.felt is not None:  # what comes out is the same: weights in another form
        return []
    return [one for one in findings if one.headline.code is Batches.MASK_WEIGHTS]


def _labels_count_nowhere(context: Context, step: int) -> bool:
    """Whether labels differ in this step where none counts, as the comparison has seen."""
    of_step = context.rows.filter((pl.col("step") == step) & (pl.col("phase") == "loss"))
    codes = set(of_step["reason_code"].cast(pl.String).to_list())
    return RecordCode.UNCOUNTED_LABELS.value in codes


def _labels_are_one(context: Context, step: int) -> bool:
    """Whether the comparison, which knows how ranks and chunks share labels, has them equal in this step."""
    of_loss = context.rows.filter((pl.col("step") == step) & (pl.col("phase") == "loss"))
    labels = of_loss.filter(pl.col("slot").cast(pl.String).str.starts_with("labels"))
    labels, lone = labels.filter(is_compared()), labels.filter(~is_compared())
    if lone.height and labels.filter(pl.col("layout").cast(pl.String) == PARTS.label).is_empty():
        return False  # a chunk that one run alone has, and that is no part of the others
    return labels.height > 0 and labels.filter(is_beyond()).is_empty()


def _one_sided(target: StepBatch, reference: StepBatch, context: Context) -> list[Finding]:
    """Inputs of the model that one run alone has, where the runs diverge in what was given them: a default
    that is spelt out changes nothing."""
    acts = {
        one.place("name")
        for one in context.comparison.verdict.evidence
        if one.code is EvidenceCode.INPUT_OF_ONE_SIDE
    }
    found = []
    for one in _lacking(target, reference):
        if one["name"] in acts and not ("label" in one["name"] and target.labels and reference.labels):
            evidence = reason(EvidenceCode.INPUT_OF_ONE_SIDE, **one)
            divided = _divisors(target, reference)
            name = "wrong_scale" if divided else "wrong_data"
            kind = kind_named(name, EvidenceRank.STATED, *divided or (evidence,))
            kind = replace(kind, causes=(Reason(CauseCode.NOT_PASSED_ON),))
            found.append(
                data_finding(
                    headline=reason(Stages.INPUT_OF_ONE_SIDE, **one),
                    site=f"batch of step {target.book.step}, input.{one['name']}",
                    axis=_axis_of_input(one["name"], context),
                    book=target.book,
                    kinds=(kind,),
                    evidence=(evidence, *divided),
                    next_note=reason(Stages.GIVE_BOTH, name=one["name"]),
                )
            )
    return found


def _axis_of_input(name: str, context: Context) -> str | None:
    """Of ranks put together: the only axis along which they hold parts of an input of the model."""
    if not isinstance(context.target, MergedTrace):
        return None
    layout = context.target.layout
    placed = layout.of_tensor("", "forward", f"input.{name}").placements
    cut = [axis for axis in layout.wide_axes if isinstance(placed.get(axis), Shard)]
    return cut[0] if len(cut) == 1 else None


def _divisors(target: StepBatch, reference: StepBatch) -> list[Reason]:
    """By what both runs divide the sum over tokens of their first loss, where the gradients of the logits say
    that it is not the same: a count that is given on one side is such a divisor."""
    sides = [
        run_facts(batch.book.source, batch.book.step, batch.book.rank, batch.book).losses
        for batch in (target, reference)
    ]
    for microbatch, one in sides[0].items():
        other = sides[1].get(microbatch)
        if other is None or one.form is None or other.form is None:
            continue
        if abs(one.form.divisor / other.form.divisor - 1) > NEAR_ONE:
            numbers = {"target": one.form.divisor, "reference": other.form.divisor}
            named = [named_divisor(losses, microbatch) for losses in sides]
            parts = [part for part in named if part is not None]
            both = parts if len(parts) == len(named) else []
            return [reason(Stages.LOSS_DIVIDED, *both, **numbers, tokens=one.counted)]
    return []


def _beyond_ids(context: Context) -> list[Finding]:
    """The input of the model that is no ids (features, latents, pixels) where the comparison saw the runs
    diverge first: equal ids beside it do not make the batches equal."""
    verdict = context.comparison.verdict
    headline = verdict.headline
    numbers = [step for step, _ in context.steps]
    if headline.code is not VerdictCode.DATA_DIFFERS or verdict.step not in numbers:
        return []
    at = numbers.index(verdict.step)
    book = context.pair(at, verdict.rank if verdict.rank in context.ranks else None)[0]
    name = headline.place("name")
    dims = {slot: len(book.shape(row) or ()) for _, slot, row in root_inputs(book)}
    if dims.get(f"input.{name}", 0) < 2 or MASK in str(name):  # a count, a mask: what it means says more
        return []
    books = context.pair(at, verdict.rank if verdict.rank in context.ranks else None)
    if all(_is_sent(one, f"input.{name}", context) for one in books):
        return []
    relation = _value_relation(books, "microbatch 0", f"input.{name}")
    slot = f"input.{name}"
    made_with = _made_with(books, "microbatch 0", slot, relation)
    if made_with is not None:
        return [made_with]
    evidence = (*([] if relation is None else [relation]), *verdict.evidence)
    return [_input_finding(book, slot, relation, evidence)]


def _made_with(
    books: tuple[StepView, StepView], place: str, samples: str, relation: Reason | None
) -> Finding | None:
    """Of the same samples, made otherwise: another input of the model that differs, with one number for each
    of ``samples``. Times or levels of noise are such, and samples are made with them."""
    if relation is None or relation.code is not Batches.SAME_SAMPLES:
        return None
    sides = [{name: row for at, name, row in given(book) if at == place} for book in books]
    for slot in sorted(sides[0].keys() & sides[1].keys() - {samples}):
        own, other = (book.value(side[slot]) for book, side in zip(books, sides, strict=True))
        if own is None or other is None or own.shape != other.shape or MASK in slot:
            continue
        if (
            len(own.shape) < 1
            or not own.size == len(own) == relation.number("num")
            or np.array_equal(own, other)
        ):
            continue
        ends = {
            f"{side}_{end}": float(make(values))
            for side, values in zip(_SIDES, (own, other), strict=True)
            for end, make in (("least", np.min), ("most", np.max), ("mean", np.mean))
        }
        numbers = reason(Batches.ONE_FOR_EACH_SAMPLE, num=len(own), **ends)
        return _input_finding(books[0], slot, numbers, (numbers, relation))
    return None


def _masks_apart(context: Context) -> list[Finding]:
    """Masks that the program makes beside equal batches, where the first step's differences begin at them:
    one that the model is given, or that weighs its loss."""
    first = context.steps[0][0]
    own, other = (StepBatch.of(book) for book in context.pair())
    is_made_inside = own.has_same_inputs(other)  # the loss's mask is then the model's matter
    found: dict[str, Finding] = {}
    for origin in context.passive:
        if origin.stage is not Stage.DATA or origin.step != first or MASK not in origin.slot:
            continue
        both = values_of(origin, context)
        if both is None:
            continue
        finding = replace(finding_from_origin(origin, context), basis=Basis.RECORDED, origin=None)
        of_loss = origin.phase == "loss"
        if of_loss and (is_made_inside or not hides_otherwise(*both)):
            continue
        name = origin.slot.partition(".")[2]
        found.setdefault(origin.slot, _weighed(finding, *both) if of_loss else _given_mask(finding, name))
    return list(found.values())


def _given_mask(finding: Finding, name: str) -> Finding:
    return replace(finding, headline=reason(Stages.INPUT_DIFFERS, name=name))


def _weighed(finding: Finding, target: Floats, reference: Floats) -> Finding:
    """Of a mask that weighs the loss: how many positions have another weight."""
    apart = np.flatnonzero((target != reference).ravel())
    weights = reason(Batches.NUM_WEIGHTS, num=len(apart), first=int(apart[0]), is_shifted=False)
    unknown = (CauseCode.BORDERS_NOT_MASKED,)  # what stands there, padding or a class, is not known
    kind = kind_named("wrong_mask", EvidenceRank.STATED, weights, phase="loss", without=unknown)
    headline = reason(Batches.MASK_WEIGHTS)
    return replace(finding, headline=headline, kinds=(kind,), evidence=(weights,), causes=kind.causes)


def _lacking(target: StepBatch, reference: StepBatch) -> list[dict[str, str]]:
    """Side and name of every input that the model is given in one run alone, by name; what is given by place
    is told by its number, which says nothing."""
    slots = [{slot.partition(".")[2] for _, slot in batch.given} for batch in (target, reference)]
    sides = (("target", slots[0], slots[1]), ("reference", slots[1], slots[0]))
    return [
        {"side": side, "name": name}
        for side, own, other in sides
        for name in sorted(own - other)
        if not name.isdigit() and not (own | other) <= {name}
    ]


def _not_counted_alike(ids: Ints, other: Ints, name: str, batch: StepBatch) -> Finding | None:
    """Labels that agree wherever both count, where more of them count on one side."""
    counts = [side != batch.ignore_index for side in (ids, other)]
    both = counts[0] & counts[1] if ids.shape == other.shape else np.zeros(0, bool)
    if not both.any() or np.array_equal(*counts) or (ids != other)[both].any():
        return None
    numbers = {"target": int(counts[0].sum()), "reference": int(counts[1].sum())}
    shares = {f"{side}_share": number / ids.size for side, number in numbers.items()}
    evidence = reason(Batches.NUM_COUNTED, **numbers, **shares)
    headline, causes = counted_in_one_run(ids, other, counts)
    kind = kind_named("wrong_mask", EvidenceRank.EVERY_ELEMENT, evidence, causes=causes, phase="loss")
    return data_finding(
        headline=headline,
        site=f"batch of step {batch.book.step}, {name}",
        book=batch.book,
        kinds=(kind,),
        evidence=(evidence,),
        next_note=reason(Batches.CHECK_LABELS),
    )


def _shared_out(
    finding: Finding, name: str, target: StepBatch, reference: StepBatch, context: Context
) -> Finding:
    """The finding, with its cause where the longer batch of one rank holds what all ranks of the other run
    hold together."""
    if finding.headline.place("relation") != "more_rows":
        return finding
    at = next(n for n, steps in enumerate(context.steps) if steps[0] == target.book.step)
    longer = len(target.ids[name]) > len(reference.ids[name])
    own, side = (target, 1) if longer else (reference, 0)
    batches = [StepBatch.of(context.pair(at, rank)[side]).ids.get(name) for rank in context.ranks]
    known = [batch for batch in batches if batch is not None]
    if len(known) < len(batches) or not is_in_parts(own.ids[name], known):
        return finding
    causes = (Reason(CauseCode.NOT_SHARED_OUT),)
    return replace(finding, causes=causes, kinds=tuple(replace(one, causes=causes) for one in finding.kinds))


def _batch_finding(
    name: str,
    relation: Reason,
    there: list[Reason],
    where: str,
    book: StepView,
    *,
    same_samples: bool,
) -> Finding:
    slot = where.rpartition(".")[2]
    kept = name in _OF_ANY_INPUT
    tells = (
        kept or name in ("first_token", *_CUT) or slot.endswith("input_ids")
    )  # a decoder's are tokens, too
    if _batch_headline(name, where).code is Stages.INPUT_DIFFERS and not tells:
        name, relation, there = "other", reason(Stages.INPUT_DIFFERS, name=slot), []
    moved = name in ("other", "some_rows", "shape", "other_lengths") and bool(there)
    name = named_by_place(name, there) if moved else name
    kind = "shifted_by_one" if name == "shift" else "wrong_mask" if "mask" in slot else "wrong_data"
    known: tuple[Reason, ...] | None = (
        (Reason(CauseCode.PREPROCESSING),) if kept and kind == "wrong_data" else None
    )
    if name == "first_token" and kind == "wrong_data":
        known = (Reason(CauseCode.FIRST_TOKEN),)
    elif name in _CUT and kind == "wrong_data":
        known = (Reason(CauseCode.CUT_ELSEWHERE),)
    elif same_samples and not kept and kind == "wrong_data":  # order, shard and seed bring other samples
        known = ()
    phase = "loss" if _is_of_labels(where) else "forward"
    named = kind_named(kind, EvidenceRank.EVERY_ELEMENT, relation, causes=known, phase=phase)
    return data_finding(
        headline=_batch_headline(name, where, relation),
        site=f"batch of step {book.step}, {where}",
        book=book,
        kinds=(named,),
        evidence=(relation, *(() if kept else there)),
        next_note=reason(Stages.SAME_BATCH_FIRST),
    )


_OF_ANY_INPUT = ("flags", "shift", "begin_anew", "counting", "offset", "offset_by_row")
"""relations that tell how an input was made, whatever it holds"""
_CUT = ("cut_later", "cut_earlier")
"""relations of rows that are another part of the same text"""


def _batch_headline(relation: str, where: str, found: Reason | None = None) -> Reason:
    """What became of the token ids, or of the labels; of other inputs (types of tokens, positions, masks)
    that they differ."""
    slot = where.rpartition(".")[2]
    labels = _is_of_labels(where)
    if not labels and not slot.isdigit() and slot not in TOKENS:
        return reason(Stages.INPUT_DIFFERS, name=slot)
    rows = found.numbers if found is not None and found.code is Batches.MORE_ROWS else ()
    return reason(Stages.BATCH, relation=relation, labels=labels, **dict(rows))


def _outside(batch: StepBatch, name: str) -> NDArray[np.bool_]:
    """Which token ids of an input are none of the vocabulary."""
    ids = batch.ids[name]
    if not may_be_tokens(name.rpartition(", ")[2]):
        return np.zeros(ids.shape, bool)
    return np.asarray((ids < 0) | (False if batch.vocab_size is None else ids >= batch.vocab_size))


def _out_of_range(batch: StepBatch, name: str, outside: NDArray[np.bool_]) -> Finding:
    row, column = (int(at[0]) for at in np.nonzero(outside))
    place = {"value": int(batch.ids[name][row, column]), "row": row, "column": column}
    evidence = reason(Stages.OUT_OF_RANGE, num=int(outside.sum()), size=batch.vocab_size, **place)
    kind = kind_named("wrong_data", EvidenceRank.EVERY_ELEMENT, evidence)
    causes = [CauseCode.IGNORED_AS_INPUT] if place["value"] < 0 else [CauseCode.VOCABULARY_TOO_SMALL]
    return data_finding(
        headline=reason(Stages.OUT_OF_VOCABULARY, value=place["value"], size=batch.vocab_size),
        site=f"batch of step {batch.book.step}, {name}",
        book=batch.book,
        kinds=(replace(kind, causes=tuple(map(Reason, causes))),),
        evidence=(evidence,),
        next_note=reason(Stages.COMPARE_VOCABULARY),
    )
