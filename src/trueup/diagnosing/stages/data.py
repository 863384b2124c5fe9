"""Stage: did both runs get the same batch, and are its labels what labels should be?"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trueup.diagnosing.batches import Ints, LabelFacts, label_facts, relation, rows_found
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.naming import kind_named
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.diagnosing.stages.texts import texts_shown
from trueup.diagnosing.stepbook import StepBook
from trueup.types.finding import Finding, Kind, Stage

_IGNORE = -100


class DataStage:
    """Inputs and labels of every captured step and rank."""

    stage = Stage.DATA
    title = "Data: the same batch, ids in range, labels shifted once"

    def check(self, context: Context) -> StageOutcome:
        """Compare ids row by row where they were stored, else digests."""
        findings: list[Finding] = []
        said: list[str] = []
        compared = False
        for at in range(min(len(context.steps), 2)):
            for rank in context.ranks:
                mine, theirs = (_Batch.of(book) for book in context.pair(at, rank))
                compared |= bool(mine.ids and theirs.ids) or mine.digest is not None
                found, words = _compared(mine, theirs, context)
                findings += found
                said += words
            findings += _same_on_ranks(context, at) if findings and len(context.ranks) > 1 else []
            if findings:
                break
        own, other = (_Batch.of(book).ids for book in context.pair())
        texts = texts_shown(own, other, context.tokenizer)
        details = {"texts": texts} if texts else {}
        return _outcome(_one_each(findings), list(dict.fromkeys(said)), compared, details)


def _same_on_ranks(context: Context, at: int) -> list[Finding]:
    """Ranks that read the very same rows in the target, and others in the reference."""
    first, *rest = context.ranks
    sides = []
    for side in (0, 1):
        batches = [_Batch.of(context.pair(at, rank)[side]) for rank in (first, *rest)]
        own = batches[0].ids
        sides.append(bool(own) and any(_same_rows(own, other.ids) for other in batches[1:]))
    if not sides[0] or sides[1]:
        return []
    book = context.pair(at, first)[0]
    said = "in the target several ranks read the same rows; in the reference each reads its own"
    kind = kind_named(
        "wrong_data",
        0.97,
        said,
        causes=("every rank reads the same shard: the sampler does not know its rank",),
    )
    return [
        _finding(
            headline="Every rank reads the same shard of the data.",
            site=f"batch of step {book.step}, ranks {first} and others",
            book=book,
            kinds=(kind,),
            evidence=(said,),
            next_note="give the sampler its rank and the number of ranks",
        )
    ]


def _same_rows(one: dict[str, Ints], other: dict[str, Ints]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def _one_each(findings: list[Finding]) -> list[Finding]:
    """The same finding in several inputs, microbatches or ranks is one; what is said of all ranks goes
    first."""
    found: dict[str, Finding] = {}
    for finding in findings:
        known = found.get(finding.headline)
        evidence = finding.evidence if known is None else (*known.evidence, *finding.evidence)
        found[finding.headline] = replace(known or finding, evidence=tuple(dict.fromkeys(evidence))[:8])
    shared = [f for f in found.values() if f.headline.startswith("Every rank")]
    if shared:
        others = [sentence for f in found.values() if f is not shared[0] for sentence in f.evidence]
        return [replace(shared[0], evidence=(*shared[0].evidence, *others[:4]))]
    return list(found.values())


def _outcome(
    findings: list[Finding], said: list[str], compared: bool, details: dict[str, Any]
) -> StageOutcome:
    common: dict[str, Any] = {"stage": Stage.DATA, "title": DataStage.title, "details": details}
    if findings:
        return StageOutcome(
            **common,
            status=StageStatus.FAILED,
            said=findings[0].headline,
            evidence=tuple(said),
            findings=tuple(findings),
            confirmed=True,
        )
    if not compared:
        why = "neither run recorded a batch of whole numbers, nor a digest of one"
        return StageOutcome(**common, status=StageStatus.UNDECIDED, said=why)
    head = "Both runs got the same batches."
    return StageOutcome(**common, status=StageStatus.PASSED, said=head, evidence=tuple(said), confirmed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """What one step of one rank was fed with."""

    book: StepBook
    ids: dict[str, Ints]
    """"microbatch 0, input.0" -> whole numbers of shape (rows, width)"""
    labels: dict[int, Ints]
    masks: dict[int, Any]
    ignore_index: int
    vocab_size: int | None
    digest: str | None

    @classmethod
    def of(cls, book: StepBook) -> _Batch:
        """Read from one step's records."""
        ids = {
            f"microbatch {m}, {s}": v for m, s, r in book.root_inputs() if (v := _whole(book, r)) is not None
        }
        labels = {m: v for m, r in book.loss_records("labels") if (v := _whole(book, r)) is not None}
        masks = {m: w for m, r in book.loss_records("mask") if (w := book.value(r)) is not None}
        told = book.loss_arguments()
        line = next((s for s in book.source.scalars(book.rank) if s.get("step") == book.step), {})
        return cls(
            book=book,
            ids={name: v.reshape(len(v), -1) for name, v in ids.items() if v.ndim >= 1 and v.size},
            labels=labels,
            masks=masks,
            ignore_index=int(json.loads(told).get("ignore_index", _IGNORE)) if told else _IGNORE,
            vocab_size=_vocabulary(book),
            digest=line.get("batch_digest"),
        )

    def tokens_of(self, microbatch: int) -> Ints | None:
        """The token ids of one microbatch: its first input of whole numbers."""
        return next((v for n, v in self.ids.items() if n.startswith(f"microbatch {microbatch},")), None)


def _whole(book: StepBook, record: int) -> Ints | None:
    found = book.raw(record)
    if found is None or not found[0].startswith(("int", "uint")):
        return None
    return found[1].astype(np.int64)


def _vocabulary(book: StepBook) -> int | None:
    """Rows of the first embedding, where the capture kept how modules are set."""
    settings = book.source.rank_facts(book.rank).get("settings") or {}
    return next((int(s["num_embeddings"]) for s in settings.values() if "num_embeddings" in s), None)


def _compared(mine: _Batch, theirs: _Batch, context: Context) -> tuple[list[Finding], list[str]]:
    step, rank = mine.book.step, mine.book.rank
    where = f"step {step}" + (f", rank {rank}" if len(context.ranks) > 1 else "")
    findings: list[Finding] = []
    said: list[str] = []
    shared = [name for name in mine.ids if name in theirs.ids]
    for name in shared:
        found = relation(mine.ids[name], theirs.ids[name])
        if found.name != "same":
            elsewhere = _elsewhere(mine.ids[name], name, theirs, context)
            findings.append(_batch_finding(found.name, found.said, elsewhere, name, mine.book))
    if shared and not findings:
        tokens = sum(mine.ids[name].size for name in shared)
        said.append(f"{where}: {tokens:,} ids in {len(shared)} inputs are the same, row by row")
    elif not shared and None not in (mine.digest, theirs.digest):
        if mine.digest != theirs.digest:
            findings.append(_digest_finding(mine, theirs))
        else:
            said.append(f"{where}: the digests of the batches are equal")
    if not findings:
        findings += _out_of_range(mine)
        more, words = _labels(mine, theirs, where)
        findings += more
        said += words
    return findings, said


def _elsewhere(ids: Ints, name: str, theirs: _Batch, context: Context) -> list[str]:
    """Where else in the reference the target's rows are: another step, rank or microbatch."""
    others: dict[str, Ints] = {}
    for at, (_, step) in enumerate(context.steps[:4]):
        for rank in context.ranks:
            batch = _Batch.of(context.pair(at, rank)[1])
            for other, found in batch.ids.items():
                if other.split(", ")[1] == name.split(", ")[1]:
                    others[f"step {step}, rank {rank}, {other.split(', ')[0]}"] = found
    return [
        f"{number} of its {len(ids)} rows are those of the reference's {there}"
        for there, number in rows_found(ids, others).items()
    ]


_HEADLINES = {
    "order": "The batch holds the same rows in another order.",
    "shift": "The token ids are shifted against the reference's.",
    "padding": "The batch is padded in another way.",
    "packing": "The tokens are packed into rows in another way.",
    "shape": "The batch has another shape.",
    "mapped_ids": "Single token ids differ wherever they occur: another tokenizer or other special tokens.",
    "some_rows": "Some rows of the batch differ.",
    "other": "The runs were fed different batches.",
}


def _batch_finding(name: str, said: str, elsewhere: list[str], where: str, book: StepBook) -> Finding:
    headline = _HEADLINES[name]
    if elsewhere and name in ("other", "some_rows", "shape"):
        headline = "The runs were fed different batches: the target's rows belong elsewhere in the reference."
    kind = "shifted_by_one" if name == "shift" else "wrong_data"
    return _finding(
        headline=headline,
        site=f"batch of step {book.step}, {where}",
        book=book,
        kinds=(kind_named(kind, 0.95, said),),
        evidence=(said, *elsewhere),
        next_note="feed both runs the same batch first: every later difference may come from this one",
    )


def _digest_finding(mine: _Batch, theirs: _Batch) -> Finding:
    said = f"digest {mine.digest} against {theirs.digest}; the ids themselves were not kept"
    return _finding(
        headline="The runs were fed different batches.",
        site=f"batch of step {mine.book.step}",
        book=mine.book,
        kinds=(kind_named("wrong_data", 0.8, said),),
        evidence=(said,),
        next_note="capture both runs with --preset diagnose to see which rows differ",
    )


def _out_of_range(mine: _Batch) -> list[Finding]:
    size = mine.vocab_size
    tokens = [
        (name, ids) for name, ids in mine.ids.items() if name.endswith("input.0") or "input_ids" in name
    ]
    for name, ids in tokens:
        bad = (ids < 0) | ((ids >= size) if size is not None else False)
        if bad.any():
            row, column = (int(i[0]) for i in np.nonzero(bad))
            said = f"{int(bad.sum())} ids outside 0 to {size}, the first {ids[row, column]} in row {row}, position {column}"
            return [
                _finding(
                    headline="Token ids lie outside the vocabulary.",
                    site=f"batch of step {mine.book.step}, {name}",
                    book=mine.book,
                    kinds=(kind_named("wrong_data", 0.95, said),),
                    evidence=(said,),
                    next_note="compare the tokenizer's vocabulary with the size of the embedding",
                )
            ]
    return []


# -- labels ------------------------------------------


def _labels(mine: _Batch, theirs: _Batch, where: str) -> tuple[list[Finding], list[str]]:
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
        if found is not None:
            return [found], said
        said.append(_labels_said(facts[0], where, microbatch))
    return findings, said


def _facts(batch: _Batch, microbatch: int) -> LabelFacts | None:
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
    mine: LabelFacts, theirs: LabelFacts, target: _Batch, reference: _Batch, microbatch: int
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
        said = f"labels are {_shift_said(mine.shift)} in the target, {_shift_said(theirs.shift)} in the reference"
        return _label(target, microbatch, _shift_headline(mine.shift, theirs.shift), "shifted_by_one", said)
    if mine.num_counted != theirs.num_counted:
        said = f"{mine.num_counted} labels count in the target ({mine.counted:.1%}), {theirs.num_counted} in the reference ({theirs.counted:.1%})"
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


def _mask_finding(target: _Batch, reference: _Batch, microbatch: int) -> Finding | None:
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


def _other_labels(target: _Batch, reference: _Batch, microbatch: int) -> Finding:
    a, b = target.labels[microbatch].ravel(), reference.labels[microbatch].ravel()
    where = np.flatnonzero(a != b)
    said = f"{len(where)} of {a.size} labels differ, the first at {where[0]}: {a[where[0]]} against {b[where[0]]}"
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


def _label(batch: _Batch, microbatch: int, headline: str, kind: str, said: str) -> Finding:
    return _finding(
        headline=headline,
        site=f"labels of step {batch.book.step}, microbatch {microbatch}",
        book=batch.book,
        phase="loss",
        kinds=(kind_named(kind, 0.97, said),),
        evidence=(said,),
        next_note="look at the code between the data loader and the loss: labels must be shifted exactly once",
    )


def _finding(
    *,
    headline: str,
    site: str,
    book: StepBook,
    kinds: tuple[Kind, ...],
    evidence: tuple[str, ...],
    next_note: str,
    phase: str = "forward",
) -> Finding:
    return Finding(
        stage=Stage.DATA,
        headline=headline,
        module="",
        site=site,
        phase=phase,
        step=book.step,
        rank=book.rank,
        kinds=kinds,
        confidence=0.98,
        evidence=evidence,
        causes=kinds[0].causes,
        next_note=next_note,
    )
