"""Labels and loss masks of both runs: shifted exactly once, the same positions counted."""

from __future__ import annotations

import numpy as np

from trueup.diagnosing.batches import LabelFacts, label_facts
from trueup.diagnosing.stages.batch import Batch, data_finding
from trueup.diagnosing.stages.naming import kind_named
from trueup.types.finding import Finding


def compared_labels(mine: Batch, theirs: Batch, where: str) -> tuple[list[Finding], list[str]]:
    """Findings about the labels of one step, and what was seen of those that agree."""
    findings: list[Finding] = []
    said: list[str] = []
    for microbatch in sorted(set(mine.labels) & set(theirs.labels)):
        facts = [_facts(batch, microbatch) for batch in (mine, theirs)]
        if facts[0] is None or facts[1] is None:
            if mine.labels[microbatch].shape == theirs.labels[microbatch].shape:
                same = np.array_equal(mine.labels[microbatch], theirs.labels[microbatch])
                if not same:
                    findings.append(_other_labels(mine, theirs, microbatch))
            continue
        found = _label_finding(facts[0], facts[1], mine, theirs, microbatch)
        if found is not None and mine.handed_alike(theirs):
            return [], [*said, f"{where}: the models were given the same batch; {found.evidence[0]}"]
        if found is not None:
            return [found], said
        said.append(_labels_said(facts[0], where, microbatch))
    return findings, said


def _facts(batch: Batch, microbatch: int) -> LabelFacts | None:
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


def _labels_said(facts: LabelFacts, where: str, microbatch: int) -> str:
    shift = (
        "no fixed relation to the inputs" if facts.shift is None else f"the inputs shifted by {facts.shift}"
    )
    return (
        f"{where}, microbatch {microbatch}: labels are {shift}; {facts.counted:.0%} of them count in the loss"
    )


def _label_finding(
    mine: LabelFacts, theirs: LabelFacts, target: Batch, reference: Batch, microbatch: int
) -> Finding | None:
    if mine.outside and not theirs.outside:
        return _label(
            target,
            microbatch,
            "Labels lie outside the vocabulary.",
            "wrong_data",
            f"{mine.outside} labels are neither ignored nor an id",
        )
    if mine.shift != theirs.shift:
        ways = _shift_said(mine.shift), _shift_said(theirs.shift)
        said = f"labels are {ways[0]} in the target, {ways[1]} in the reference"
        return _label(target, microbatch, _shift_headline(mine.shift, theirs.shift), "shifted_by_one", said)
    if mine.num_counted != theirs.num_counted:
        counts = [f"{facts.num_counted} ({facts.counted:.1%})" for facts in (mine, theirs)]
        said = f"{counts[0]} labels count in the target, {counts[1]} in the reference"
        return _label(
            target,
            microbatch,
            "The loss mask differs: other positions count in the loss.",
            "wrong_mask",
            said,
        )
    a, b = target.labels[microbatch].ravel(), reference.labels[microbatch].ravel()
    if a.shape == b.shape and not np.array_equal(a, b):
        return _other_labels(target, reference, microbatch)
    return _mask_finding(target, reference, microbatch)


def _mask_finding(target: Batch, reference: Batch, microbatch: int) -> Finding | None:
    mine, theirs = (batch.masks.get(microbatch) for batch in (target, reference))
    if mine is None or theirs is None or mine.shape != theirs.shape or np.array_equal(mine, theirs):
        return None
    a, b = mine.ravel(), theirs.ravel()
    where = np.flatnonzero(a != b)
    said = f"the weights of {len(where)} positions differ, the first at {where[0]}"
    if np.array_equal(a[1:], b[:-1]) or np.array_equal(a[:-1], b[1:]):
        said += "; the mask is the reference's shifted by one"
    return _label(target, microbatch, "The loss mask differs.", "wrong_mask", said)


def _shift_said(shift: int | None) -> str:
    if shift is None:
        return "in no fixed relation to the inputs"
    return f"the inputs shifted by {shift}" + {0: " (not at all)", 1: " (once)", 2: " (twice)"}.get(shift, "")


def _shift_headline(mine: int | None, theirs: int | None) -> str:
    if mine == 2 and theirs == 1:
        return "The labels are shifted twice."
    if mine == 0 and theirs == 1:
        return "The labels are not shifted: each token is asked to predict itself."
    return "The labels are shifted against the inputs in another way."


def _other_labels(target: Batch, reference: Batch, microbatch: int) -> Finding:
    a, b = target.labels[microbatch].ravel(), reference.labels[microbatch].ravel()
    where = np.flatnonzero(a != b)
    first = where[0]
    said = f"{len(where)} of {a.size} labels differ, the first at {first}: {a[first]} against {b[first]}"
    masked = np.isin(a[where], target.ignore_index) | np.isin(b[where], reference.ignore_index)
    if masked.all():
        return _label(
            target,
            microbatch,
            "The loss mask differs: other positions count in the loss.",
            "wrong_mask",
            said,
        )
    return _label(target, microbatch, "The labels differ.", "wrong_data", said)


def _label(batch: Batch, microbatch: int, headline: str, kind: str, said: str) -> Finding:
    return data_finding(
        headline=headline,
        site=f"labels of step {batch.book.step}, microbatch {microbatch}",
        book=batch.book,
        phase="loss",
        kinds=(kind_named(kind, 0.97, said),),
        evidence=(said,),
        next_note="look between the data loader and the loss: labels must be shifted exactly once",
    )
