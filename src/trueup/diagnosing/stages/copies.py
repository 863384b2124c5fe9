"""Gradients that several ranks hold and that should be the same: seen where ranks were merged."""

from __future__ import annotations

from collections import Counter

import polars as pl

from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.naming import described, kind_named, place_of, site_of
from trueup.merging.trace import MergedTrace
from trueup.store import StepView, TraceSource, step_view
from trueup.store.view import CLIPPED
from trueup.types.codes import ClippingCode as Clipping
from trueup.types.codes import RecordCode
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Basis, EvidenceRank, Finding, Stage
from trueup.types.reason import reason

Differing = dict[str, tuple[str, tuple[int, ...]]]
"""parameter -> axis along which its copies differ, and the ranks that differ from the first"""


def copies_findings(context: Context) -> list[Finding]:
    """One finding an axis along which the optimizers of the target alone get other gradients of a weight."""
    target, reference = context.pair(0)
    rows = context.of_phases("param_grad")
    by_optimizer = rows.filter(pl.col("reason_code").cast(pl.String) == RecordCode.REDUCED_BY_OPTIMIZER.value)
    reduced = set(by_optimizer["name"].to_list())
    apart = {fqn: how for fqn, how in differing(context.target, target).items() if fqn not in reduced}
    known = differing(context.reference, reference)
    groups: dict[str, list[str]] = {}
    for fqn, (axis, _) in apart.items():
        if context.matched.get(fqn, fqn) not in known:
            groups.setdefault(axis, []).append(fqn)
    odd = odd_ranks(list(apart), context) if apart else ()
    if odd and groups:
        names = [fqn for some in groups.values() for fqn in some]
        return [_finding(next(iter(groups)), names, apart, target, context)]
    return [_finding(axis, names, apart, target, context) for axis, names in groups.items()]


def differing(source: TraceSource, book: StepView) -> Differing:
    """Gradients as the optimizers get them whose copies differ; none of a run that is not put together."""
    if not isinstance(source, MergedTrace):
        return {}
    records = {fqn: book.parameter(fqn, *CLIPPED) for fqn in book.parameters}
    found = {
        fqn: source.copies_apart(book.step, record) for fqn, record in records.items() if record is not None
    }
    return {fqn: copies for fqn, copies in found.items() if copies is not None}


def parts_of(source: MergedTrace, step: int) -> dict[int, StepView]:
    """What each of the ranks recorded in a step."""
    return {rank: step_view(source.parts, step, rank) for rank in range(source.layout.size)}


def odd_ranks(names: list[str], context: Context) -> tuple[int, ...]:
    """The ranks whose gradient is another than most ranks', of weights that at least three hold alike."""
    assert isinstance(context.target, MergedTrace)
    books = parts_of(context.target, context.steps[0][0]).values()
    odd: set[int] = set()
    for fqn in names:
        records = {book.rank: (book, book.parameter(fqn, *CLIPPED)) for book in books}
        held = {rank: book.digest(at) for rank, (book, at) in records.items() if at is not None}
        usual, count = Counter(held.values()).most_common(1)[0]
        if count > len(held) / 2:
            odd |= {rank for rank, digest in held.items() if digest != usual}
    return tuple(sorted(odd))


def _finding(axis: str, names: list[str], apart: Differing, book: StepView, context: Context) -> Finding:
    shapes = {fqn: book.shape(book.parameter(fqn, *CLIPPED)) or () for fqn in book.parameters_with(*CLIPPED)}
    who, odd = described(names, shapes), odd_ranks(names, context)
    ranks = odd_ranks(names[:1], context) or apart[names[0]][1]
    copy = reason(Clipping.COPY_DIFFERS, parameter=names[0], ranks=list(map(str, ranks)), axis=axis)
    name = "wrong_scale" if odd else "missing_all_reduce"
    kind = kind_named(name, EvidenceRank.FITTED, copy, phase="param_grad")
    headline = (
        reason(Clipping.ON_RANKS, parameters=who, ranks=list(map(str, odd)))
        if odd
        else reason(Stages.NOT_REDUCED, parameters=who, axes=(axis,))
    )
    return Finding(
        stage=Stage.REDUCTION,
        headline=headline,
        module=place_of(names, shapes),
        site=site_of(names, "gradient clipped"),
        phase="param_grad",
        step=book.step,
        axis=None if odd else axis,
        ranks=odd,
        kinds=(kind,),
        basis=Basis.RECORDED,
        evidence=(copy, reason(Stages.NUM_GRADIENTS, num=len(names), total=len(shapes))),
        counter_evidence=(reason(Clipping.AMONG_RANKS),),
        causes=kind.causes,
        next_note=kind.next,
    )
