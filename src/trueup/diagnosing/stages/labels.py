"""Labels and loss masks of both runs: shifted exactly once, the same positions counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trueup.diagnosing.batches import LabelFacts, label_facts
from trueup.diagnosing.evidence.run import run_facts
from trueup.diagnosing.kinds.criterion import labels_shifted
from trueup.diagnosing.stages.batch import StepBatch, data_finding
from trueup.diagnosing.stages.counted import counted_in_one_run
from trueup.diagnosing.stages.loss_factors import hides_otherwise
from trueup.diagnosing.stages.naming import kind_named
from trueup.types.arrays import Ints
from trueup.types.codes import BatchCode as Batches
from trueup.types.codes.kinds import CauseCode, KindReason
from trueup.types.finding import EvidenceRank, Finding
from trueup.types.reason import Reason, reason


def compared_labels(
    target: StepBatch, reference: StepBatch, rank: int | None
) -> tuple[list[Finding], list[Reason]]:
    """Findings about the labels of one step, and what holds of those that agree; ``rank`` is None where there
    is one only."""
    findings: list[Finding] = []
    agree: list[Reason] = []
    step = target.book.step
    for microbatch in sorted(set(target.labels) & set(reference.labels)):
        facts = [_facts(batch, microbatch) for batch in (target, reference)]
        if facts[0] is None or facts[1] is None:
            findings += _of_no_tokens(target, reference, microbatch)
            continue
        if _of_other_parts(target, reference, microbatch):
            found = _counted_in_all(target, reference, microbatch)
        else:
            found = _label_finding(facts[0], facts[1], target, reference, microbatch)
        if found is not None and target.has_same_inputs(reference):
            return [], [*agree, reason(Batches.SAME_INPUTS, found.evidence[0], step=step, rank=rank)]
        if found is not None:
            return [found], agree
        if facts[0].shift != facts[1].shift or not _same_that_count(target, reference, microbatch):
            continue  # one of them is not known, or of another shape
        agree.append(
            reason(
                Batches.LABELS_AGREE,
                step=step,
                rank=rank,
                microbatch=microbatch,
                shift=facts[0].shift,
                counted=facts[0].counted,
            )
        )
    return findings or _of_further_losses(target, reference), agree


def _of_no_tokens(target: StepBatch, reference: StepBatch, microbatch: int) -> list[Finding]:
    """Where the model is given no ids that labels could be held against."""
    labels, others = target.labels[microbatch], reference.labels[microbatch]
    if np.array_equal(labels, others):
        return []
    shifted = _shifted_in_loss(target, reference, microbatch)
    if shifted is not None:
        return [shifted]
    return [_other_labels(target, reference, microbatch)] if labels.shape == others.shape else []


def _same_that_count(target: StepBatch, reference: StepBatch, microbatch: int) -> bool:
    """Whether the labels that count are the same ones in the same order, in whatever shapes."""
    a, b = (
        batch.labels[microbatch][batch.labels[microbatch] != batch.ignore_index]
        for batch in (target, reference)
    )
    return np.array_equal(a, b)


def _parts(batch: StepBatch, microbatch: int) -> list[Ints]:
    rest = [part for (at, _), part in sorted(batch.further.items()) if at == microbatch]
    return [batch.labels[microbatch], *rest]


def _of_other_parts(target: StepBatch, reference: StepBatch, microbatch: int) -> bool:
    """Whether one side's labels are in other parts than the other's, some of which are no part of one whole:
    a chunk is left out, or a loss."""
    return len(_parts(target, microbatch)) != len(_parts(reference, microbatch))


def _counted_in_all(target: StepBatch, reference: StepBatch, microbatch: int) -> Finding | None:
    """Where other numbers of labels count in all losses of a microbatch together."""
    sides = [
        (np.concatenate([part.ravel() for part in _parts(batch, microbatch)]) != batch.ignore_index)
        for batch in (target, reference)
    ]
    counts = [int(side.sum()) for side in sides]
    if counts[0] == counts[1]:
        return None
    numbers = reason(
        Batches.NUM_COUNTED,
        target=counts[0],
        target_share=float(sides[0].mean()),
        reference=counts[1],
        reference_share=float(sides[1].mean()),
    )
    return _finding(target, microbatch, Batches.MASK_DIFFERS, "wrong_mask", numbers)


def _of_further_losses(target: StepBatch, reference: StepBatch) -> list[Finding]:
    """The first finding about labels of losses beside the first: those of tokens further on, say. Where both
    models make the loss themselves of the same bits, no batch differs."""
    if target.further.keys() != reference.further.keys() or target.has_same_inputs(reference):
        return []
    for microbatch, number in sorted(target.further):
        sides = [
            replace(batch, labels={microbatch: batch.further[microbatch, number]}, masks={})
            for batch in (target, reference)
        ]
        facts = [_facts(side, microbatch) for side in sides]
        labels, others = (side.labels[microbatch] for side in sides)
        if labels.shape != others.shape:
            continue
        if facts[0] is None or facts[1] is None:  # of no tokens: classes of pictures
            same = np.array_equal(labels, others)
            found = None if same else _other_labels(sides[0], sides[1], microbatch)
        else:
            found = _label_finding(facts[0], facts[1], sides[0], sides[1], microbatch)
        if found is not None:
            return [replace(found, site=f"{found.site}, loss {number + 1}")]
    return []


def _facts(batch: StepBatch, microbatch: int) -> LabelFacts | None:
    ids = batch.tokens_of(microbatch)
    if ids is None:
        return None
    return label_facts(
        batch.labels[microbatch],
        ids,
        ignore_index=batch.ignore_index,
        vocab_size=batch.vocab_size,
        mask=batch.masks.get(microbatch),
    )


def _label_finding(
    actual: LabelFacts, expected: LabelFacts, target: StepBatch, reference: StepBatch, microbatch: int
) -> Finding | None:
    if actual.outside and not expected.outside:
        outside = reason(Batches.NUM_OUTSIDE, num=actual.outside)
        return _finding(target, microbatch, Batches.OUTSIDE, "wrong_data", outside)
    if None not in (actual.shift, expected.shift) and actual.shift != expected.shift:
        shifts = reason(Batches.SHIFTS, target=actual.shift, reference=expected.shift)
        headline = _SHIFTS.get((actual.shift, expected.shift), Batches.SHIFT_DIFFERS)
        return _finding(target, microbatch, headline, "shifted_by_one", shifts)
    if actual.num_counted != expected.num_counted:
        elsewhere = _shifted_in_loss(target, reference, microbatch)
        if elsewhere is not None:
            return elsewhere
        counts = reason(
            Batches.NUM_COUNTED,
            target=actual.num_counted,
            target_share=actual.counted,
            reference=expected.num_counted,
            reference_share=expected.counted,
        )
        found = _finding(target, microbatch, Batches.MASK_DIFFERS, "wrong_mask", counts)
        return _named_by_rows(found, target, reference, microbatch)
    a, b = target.labels[microbatch].ravel(), reference.labels[microbatch].ravel()
    if a.shape == b.shape and not np.array_equal(a, b):
        return _other_labels(target, reference, microbatch)
    return _mask_finding(target, reference, microbatch)


def _named_by_rows(found: Finding, target: StepBatch, reference: StepBatch, microbatch: int) -> Finding:
    """The finding, headed by which labels count in one run alone, where labels that both count agree; a loss
    that is given them flat has the rows of the ids, with or without the position that has no next token."""
    tokens, sides = target.tokens_of(microbatch), [one.labels[microbatch] for one in (target, reference)]
    if tokens is None or tokens.ndim != 2 or sides[0].size != sides[1].size:
        return found
    rows, length = tokens.shape
    if sides[0].size not in (rows * length, rows * (length - 1)):
        return found
    ids, other = (one.reshape(rows, -1) for one in sides)
    counts = [side != batch.ignore_index for side, batch in ((ids, target), (other, reference))]
    if (ids != other)[counts[0] & counts[1]].any():
        return found
    headline, causes = counted_in_one_run(ids, other, counts)
    if causes is None:
        return found
    kind = kind_named(
        "wrong_mask", EvidenceRank.EVERY_ELEMENT, found.evidence[0], causes=causes, phase="loss"
    )
    return replace(found, headline=headline, kinds=(kind,), causes=causes)


def _shifted_in_loss(target: StepBatch, reference: StepBatch, microbatch: int) -> Finding | None:
    """Where labels lie otherwise to the logits: the loss drops the first label of each row with the last
    position of the logits, say. That fewer labels count follows from it. Of ids that the model was given
    nothing need be known: a decoder makes its own from labels."""
    own, other = (
        run_facts(batch.book.source, batch.book.step, batch.book.rank, batch.book).sent_back.get(microbatch)
        for batch in (target, reference)
    )
    shift = None if own is None or other is None else labels_shifted(own, other)
    if own is None or other is None or shift is None:
        return None
    counts = [int(side.any(axis=-1).sum()) for side in (own, other)]
    total = own[..., 0].size
    sentence = reason(
        KindReason.LABELS_SHIFTED,
        shift=shift,
        total=total,
        target=counts[0],
        reference=counts[1],
        origin_phase="loss",
        origin_slot="value",
    )
    found = _finding(target, microbatch, Batches.SHIFTED_IN_LOSS, "shifted_by_one", sentence)
    return replace(found, headline=reason(Batches.SHIFTED_IN_LOSS, shift=shift))


_SHIFTS: dict[tuple[int | None, int | None], Batches] = {
    (2, 1): Batches.SHIFTED_TWICE,
    (0, 1): Batches.NOT_SHIFTED,
}
"""shift of the labels in target and reference -> headline"""


def _mask_finding(target: StepBatch, reference: StepBatch, microbatch: int) -> Finding | None:
    masks = [batch.masks.get(microbatch) for batch in (target, reference)]
    if masks[0] is None or masks[1] is None or masks[0].shape != masks[1].shape:
        return None
    a, b = masks[0].ravel(), masks[1].ravel()
    if np.array_equal(a, b) or not hides_otherwise(a, b):
        return None
    different = np.flatnonzero(a != b)
    is_shifted = np.array_equal(a[1:], b[:-1]) or np.array_equal(a[:-1], b[1:])
    weights = reason(Batches.NUM_WEIGHTS, num=len(different), first=int(different[0]), is_shifted=is_shifted)
    return _finding(target, microbatch, Batches.MASK_WEIGHTS, "wrong_mask", weights)


def _offset(target: Ints, reference: Ints) -> int:
    """What is added to each of several labels in the target; 0 where it is not the same for all, or they are
    one label."""
    apart = np.unique(target - reference)
    return int(apart[0]) if len(apart) == 1 and len(np.unique(target)) > 1 else 0


def _other_labels(target: StepBatch, reference: StepBatch, microbatch: int) -> Finding:
    a, b = target.labels[microbatch].ravel(), reference.labels[microbatch].ravel()
    different = np.flatnonzero(a != b)
    first = int(different[0])
    labels = reason(
        Batches.NUM_LABELS,
        num=len(different),
        total=a.size,
        first=first,
        target=int(a[first]),
        reference=int(b[first]),
        offset=_offset(a[different].astype(np.int64), b[different].astype(np.int64)),
    )
    masked = np.isin(a[different], target.ignore_index) | np.isin(b[different], reference.ignore_index)
    if masked.all():
        return _finding(target, microbatch, Batches.MASK_DIFFERS, "wrong_mask", labels)
    same_samples = target.is_given_the_same(reference)
    return _finding(
        target, microbatch, Batches.LABELS_DIFFER, "wrong_data", labels, same_samples=same_samples
    )


_OF_MASKS = (Batches.MASK_DIFFERS, Batches.MASK_WEIGHTS)
_OF_OTHER_SAMPLES = (CauseCode.SAMPLE_ORDER, CauseCode.SHARD_OR_SEED, CauseCode.REPLAYED_AFTER_RESUME)


def _finding(
    batch: StepBatch,
    microbatch: int,
    headline: Batches,
    kind: str,
    evidence: Reason,
    *,
    same_samples: bool = False,
) -> Finding:
    """Of labels that are masked: which tokens those are, padding, prompts or the first of a document, is not
    known of them. ``same_samples``: both models were given the same, so no other samples came."""
    without: tuple[CauseCode, ...] = ()
    without += (CauseCode.BORDERS_NOT_MASKED,) if headline in _OF_MASKS else ()
    without += _OF_OTHER_SAMPLES if same_samples else ()
    return data_finding(
        headline=reason(headline),
        site=f"labels of step {batch.book.step}, microbatch {microbatch}",
        book=batch.book,
        phase="loss",
        kinds=(kind_named(kind, EvidenceRank.STATED, evidence, phase="loss", without=without),),
        evidence=(evidence,),
        next_note=reason(Batches.CHECK_LABELS),
    )
