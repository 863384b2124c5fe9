"""Gradients of master weights: how often each microbatch of the model's weight counts in them.

A program that keeps copies of its weights for the optimizer gathers their gradients itself. What backward
left in the model's weights at the end is then no sum that anybody uses: what counts is in the masters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trueup.comparing.thresholds import SUM_LINKED
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.naming import described, kind_named, place_of, site_of
from trueup.diagnosing.thresholds import SUM_EXPLAINED
from trueup.store import StepView
from trueup.store.view import CLIPPED, LOCAL
from trueup.types.arrays import Floats
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Basis, EvidenceRank, Finding, Stage
from trueup.types.reason import reason


@dataclass(frozen=True, slots=True)
class Gathered:
    """What the gradient of one master weight is made of."""

    master: str
    counts: tuple[float, ...]
    """how often each microbatch counts, as multiples of the least of them that counts"""
    residual: float
    """what that leaves unexplained, over the norm"""


def gathered(book: StepView) -> dict[str, Gathered]:
    """Of each weight of the model that no optimizer has, where the gradient of a master of its shape is a sum
    of its microbatches; empty where there is one microbatch, which nothing can count otherwise."""
    apart = [fqn for fqn in book.parameters_with(*LOCAL) if book.parameter(fqn, *CLIPPED) is None]
    masters = [fqn for fqn in book.parameters_with(*CLIPPED) if book.parameter(fqn, *LOCAL) is None]
    found: dict[str, Gathered] = {}
    for master in masters:
        record = book.parameter(master, *CLIPPED)
        total, shape = book.sketch(record), book.shape(record)
        if total is None or not np.any(total):
            continue
        fits = []
        for fqn in apart:
            records = book.parameter_records(fqn, *LOCAL)
            if fqn in found or len(records) < 2 or book.shape(records[0]) != shape:
                continue
            fit = _counted(master, total, [book.sketch(one) for one in records])
            fits += [] if fit is None else [(fit.residual, fqn, fit)]
        if fits:
            _, fqn, fit = min(fits, key=lambda one: one[:2])
            found[fqn] = fit
    return found


def _counted(master: str, total: Floats, parts: list[Floats | None]) -> Gathered | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or 2 * len(known) > len(total):
        return None
    columns = np.stack(known, axis=1)
    counts, _, rank, _ = np.linalg.lstsq(columns, total, rcond=None)
    residual = float(np.linalg.norm(total - columns @ counts) / np.linalg.norm(total))
    if rank < len(known) or residual > SUM_LINKED:
        return None
    counts = np.where(np.abs(counts) <= SUM_EXPLAINED * np.abs(counts).max(), 0.0, counts)
    least = np.abs(counts[counts != 0]).min()
    return Gathered(master, tuple(float(one) for one in counts / least), residual)


def master_gradient_findings(context: Context, at: int, rank: int) -> tuple[list[Finding], set[str]]:
    """Weights whose microbatches count otherwise in the masters' gradients; and all weights (by the target's
    names) whose masters tell on both sides how often each counts."""
    book, other = context.pair(at, rank)
    target, reference = gathered(book), gathered(other)
    both = {f: reference[o] for f in target if (o := context.matched.get(f, f)) in reference}
    apart: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for fqn, gathered_there in both.items():
        if not _alike(target[fqn], gathered_there):
            apart.setdefault((_words(target[fqn]), _words(gathered_there)), []).append(fqn)
    groups = sorted(apart.items(), key=lambda one: -len(one[1]))
    return [_finding(names, target[names[0]], *counts, book) for counts, names in groups], set(both)


def _alike(target: Gathered, reference: Gathered) -> bool:
    pairs = zip(target.counts, reference.counts, strict=False)
    same = len(target.counts) == len(reference.counts)
    return not same or all(abs(a - b) <= SUM_EXPLAINED * max(abs(a), abs(b)) for a, b in pairs)


def _words(of: Gathered) -> tuple[str, ...]:
    return tuple(f"{one:.2g}" for one in of.counts)


def _finding(
    names: list[str], first: Gathered, target: tuple[str, ...], reference: tuple[str, ...], book: StepView
) -> Finding:
    shapes = {f: list(book.shape(book.parameter(f, *LOCAL)) or ()) for f in book.parameters_with(*LOCAL)}
    who = described(names, shapes)
    lacking = [str(number) for number, count in enumerate(target) if float(count) == 0]
    kind, headline = "wrong_scale", reason(Stages.WEIGHTED, parameters=who, counts=target)
    if lacking:
        kind = "missing_or_extra_term"
        headline = reason(Stages.LACKS_MICROBATCHES, parameters=who, microbatches=lacking)
    counts = reason(
        Stages.MASTER_COUNTS,
        parameter=names[0],
        master=first.master,
        target=target,
        reference=reference,
    )
    causes = (reason(Stages.BETWEEN_MICROBATCHES),)
    named = kind_named(kind, EvidenceRank.EVERY_ELEMENT, counts, causes=causes)
    return Finding(
        stage=Stage.REDUCTION,
        headline=headline,
        module=place_of(names, shapes),
        site=site_of(names, "gradient of the master weight"),
        phase="param_grad",
        step=book.step,
        rank=book.rank,
        kinds=(named,),
        basis=Basis.RECORDED,
        evidence=(counts, reason(Stages.NUM_GRADIENTS, num=len(names), total=len(shapes))),
        counter_evidence=(reason(Stages.FROM_OWN_GRADIENTS),),
        causes=named.causes,
        next_note=named.next,
    )
