"""Gradients that are clipped between microbatches: told from what each microbatch of each rank counts.

A program that clips after every microbatch scales what it has added up so far, each rank by its own norm
where ranks are not summed yet. What reaches the optimizer is then

    c * sum over ranks of (f_r g_r0 + g_r1),    f_r = min(1, limit / ||g_r0||)

with the same f_r for every weight (of more microbatches the k-th counts f_k f_k+1 ... times as much as the
last): one fit of all weights, of a few numbers to 64 for each weight. That
f_r ||g_r0|| is one number on all ranks, or what gradients are clipped to afterwards, tells clipping from any
other factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trueup.diagnosing.stages.clipping import clipping_of
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.naming import kind_named
from trueup.diagnosing.thresholds import CLIP_NEAR, SUM_HOLDS
from trueup.store import StepView, TraceSource
from trueup.store.view import ACCUMULATED, LOCAL
from trueup.types.arrays import Floats
from trueup.types.codes import ClippingCode as Clip
from trueup.types.finding import Basis, EvidenceRank, Finding, Stage
from trueup.types.reason import reason


def clipped_between_findings(context: Context) -> list[Finding]:
    """One finding where the target clips what the first microbatch left before it adds the next, and the
    reference counts all microbatches alike."""
    sides = [_counts(_books(context, source)) for source in (context.target, context.reference)]
    target, reference = sides
    if target is None or reference is None or np.ptp(reference) > CLIP_NEAR * np.abs(reference).max():
        return []
    factors = target[:, 0] / target[:, 1]
    books = _books(context, context.target)
    norms = np.array([_norm_of_first(book) for book in books])
    limits, clips = factors * norms, factors < 1 - CLIP_NEAR
    if not clips.any() or np.ptp(target[:, -1]) > CLIP_NEAR * np.abs(target[:, -1]).max():
        return []
    limit = float(limits[clips][0])
    held = clips | ((np.abs(factors - 1) <= CLIP_NEAR) & (norms <= limit * (1 + CLIP_NEAR)))
    at_end = _clipped_to(context)
    known = limits[clips].tolist() if clips.sum() > 1 else [at_end]
    if not held.all() or any(one is None or abs(one / limit - 1) > CLIP_NEAR for one in known):
        return []
    every = at_end is not None and abs(at_end / limit - 1) <= CLIP_NEAR and _clips_each(target)
    clipped = reason(Clip.CLIPPED_EACH if every else Clip.CLIPPED_BETWEEN, limit=limit)
    facts = {"factors": [f"{one:.3g}" for one in factors], "norms": [f"{one:.3g}" for one in norms]}
    counted = reason(Clip.FIRST_COUNTS, **facts)
    kind = kind_named("wrong_scale", EvidenceRank.EVERY_ELEMENT, counted, causes=())
    return [
        Finding(
            stage=Stage.REDUCTION,
            headline=clipped,
            module=None,
            site="gradient clipping",
            phase="param_grad",
            step=context.steps[0][0],
            rank=context.ranks[0],
            kinds=(kind,),
            basis=Basis.RECORDED,
            evidence=(clipped, counted),
            causes=(reason(Clip.CLIP_ONCE),),
            next_note=reason(Clip.CLIP_AFTER_LAST),
        )
    ]


def _clips_each(counts: Floats) -> bool:
    """Whether all that is summed is cut after every microbatch but the last, which counts by itself: each
    counts less than the next one then, on every rank.

    Args:
        counts: (rank, microbatch), what each counts in the gradients.
    """
    return bool((counts[:, :-1] < (1 - CLIP_NEAR) * counts[:, 1:]).all())


def _books(context: Context, source: TraceSource) -> list[StepView]:
    step = context.steps[0][source is context.reference]
    return [context.book(source, step, rank) for rank in source.steps().get(step, [])]


def _clipped_to(context: Context) -> float | None:
    """The norm that the target clips to after the last microbatch."""
    clip = clipping_of(context, context.target, context.steps[0][0], context.ranks[0])
    return clip.clipped_norm if clip is not None and clip.way == "norm" else None


def _norm_of_first(book: StepView) -> float:
    """Of all gradients of the rank's first microbatch."""
    first = (book.parameter_records(fqn, *LOCAL)[0] for fqn in book.parameters_with(*LOCAL))
    return math.hypot(*(book.norm(record) or 0.0 for record in first))


# In one piece: what makes the fit of all weights impossible, one after another, then the fit.
def _counts(books: Sequence[StepView]) -> Floats | None:
    """(rank, microbatch): what each counts in the gradients of all weights; None where there is but one
    microbatch, where ranks have other numbers of them, or where no such numbers make all gradients."""
    columns, totals = [], []
    for fqn in books[0].parameters_with(*ACCUMULATED) if books else ():
        total = books[0].sketch(books[0].parameter(fqn, *ACCUMULATED))
        parts = [[book.sketch(record) for record in book.parameter_records(fqn, *LOCAL)] for book in books]
        known = [part for of_rank in parts for part in of_rank if part is not None]
        num = {len(of_rank) for of_rank in parts}
        if total is None or len(num) > 1 or num <= {0, 1} or len(known) != len(books) * num.pop():
            return None
        scale = float(np.linalg.norm(total))
        if scale:
            columns.append(np.stack(known, axis=1) / scale)
            totals.append(total / scale)
    if not totals or len({one.shape for one in columns}) > 1:
        return None
    made, wanted = np.concatenate(columns), np.concatenate(totals)
    if 2 * made.shape[1] > len(wanted):
        return None
    counts, _, rank, _ = np.linalg.lstsq(made, wanted, rcond=None)
    rest = np.linalg.norm(wanted - made @ counts) / np.linalg.norm(wanted)
    if rank < made.shape[1] or rest > SUM_HOLDS or (counts <= 0).any():
        return None
    return np.asarray(counts.reshape(len(books), -1))
