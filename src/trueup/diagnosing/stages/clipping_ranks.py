"""Clipping by a program that reduces its gradients itself: told from what the optimizers of all ranks got.

Between backward and the optimizer such a program sums over ranks, then clips. What a rank's clipped gradients
are of the sums is one factor; the norm over all ranks, copies counted once, is what was clipped to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trueup.diagnosing.gradients import matched_parameters
from trueup.diagnosing.ledger import common_factor
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.naming import kind_named
from trueup.diagnosing.thresholds import SAME_NORM
from trueup.diagnosing.whose import axis_of_factor, axis_of_factors, of_ranks
from trueup.merging.sides import mesh_of
from trueup.store import StepView, TraceSource
from trueup.store.view import CLIPPED
from trueup.types.codes import ClippingCode as Clipping
from trueup.types.finding import Basis, EvidenceRank, Finding, Stage
from trueup.types.layout import Layout
from trueup.types.reason import Reason, reason

Books = Mapping[int, StepView]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """What one run did."""

    factors: Mapping[int, float]
    """rank -> clipped over summed"""
    norm: float
    """of all gradients as the optimizers got them, copies once"""
    books: Books

    def usual(self) -> float:
        """The factor of most ranks."""
        return float(np.median(list(self.factors.values())))


def clipping_over_ranks(context: Context) -> list[Finding]:
    """One finding where ranks, or all of them, scaled their summed gradients by another factor than the
    reference's did, and not because their gradients were larger."""
    target, reference = (_clip(context, source) for source in (context.target, context.reference))
    if target is None or reference is None or target.factors.keys() != reference.factors.keys():
        return []
    ratios = {rank: factor / reference.factors[rank] for rank, factor in target.factors.items()}
    usual = float(np.median(list(ratios.values())))
    odd = [rank for rank, ratio in ratios.items() if abs(ratio / usual - 1) > SAME_NORM]
    if odd and len(odd) < len(ratios) / 2:
        own = ratios[odd[0]]
        factor = reason(Clipping.RANK_FACTOR, rank=odd[0], factor=own, usual=usual)
        finding = _finding(reason(Clipping.SOME_RANKS), factor, context)
        return [of_ranks(finding, odd, context.ranks, context.mesh)]
    if odd or abs(usual - 1) <= SAME_NORM or _one_limit(context, target, reference):
        axis = axis_of_factors(target.factors, reference.factors, context.mesh) if odd else None
        differ = reason(Clipping.RANKS_DIFFER)
        return [_finding(differ, differ, context, axis)] if axis else []
    axis = axis_of_factor(usual, context.mesh) or axis_of_norm(usual, reference.books, context.mesh)
    scaled = reason(Clipping.SUMS_SCALED, factor=usual)
    return [_finding(scaled, scaled, context, axis)]


def norms_of_all_ranks(context: Context) -> tuple[float, float]:
    """Of target and reference: of all gradients as the optimizers got them, what are copies in the reference
    once. Where each rank holds a part of the model, the norm of one rank is no limit."""
    step, other_step = context.steps[0]
    squares = [0.0, 0.0]
    seen = set()
    for rank in context.ranks:
        target, reference = (
            context.book(context.target, step, rank),
            context.book(context.reference, other_step, rank),
        )
        for fqn, other in matched_parameters(target, reference).items():  # stages of a pipeline hold others
            records = target.parameter(fqn, *CLIPPED), reference.parameter(other, *CLIPPED)
            norms = target.norm(records[0]), reference.norm(records[1])
            copy = other, reference.digest(records[1])
            if None not in norms and copy not in seen:
                seen.add(copy)
                squares = [total + (norm or 0.0) ** 2 for total, norm in zip(squares, norms, strict=True)]
    return math.sqrt(squares[0]), math.sqrt(squares[1])


def _one_limit(context: Context, target: Clip, reference: Clip) -> bool:
    """Whether both may have clipped to one norm: to the same, or one was below what the other cut to.

    What is not cut has the factor of a sum or of a mean over ranks: one, or one over their number.
    """
    norms = norms_of_all_ranks(context)
    if abs(norms[0] / norms[1] - 1) <= SAME_NORM:
        return True
    lower, higher = (target, reference) if norms[0] < norms[1] else (reference, target)
    uncut = [
        1.0,
        1.0 / len(context.ranks),
        *(1.0 / context.mesh.mesh[axis] for axis in context.mesh.wide_axes),
    ]
    is_uncut = any(abs(lower.usual() / factor - 1) <= SAME_NORM for factor in uncut)
    return is_uncut and higher.usual() < lower.usual()


def _finding(headline: Reason, evidence: Reason, context: Context, axis: str | None = None) -> Finding:
    causes = (reason(Clipping.NORM_CAUSE), reason(Clipping.LIMIT_CAUSE))
    kind = kind_named("wrong_scale", EvidenceRank.FITTED, evidence, causes=causes)
    return Finding(
        stage=Stage.REDUCTION,
        headline=headline,
        module=None,
        site="gradient clipping",
        phase="param_grad",
        step=context.steps[0][0],
        rank=context.ranks[0],
        axis=axis,
        kinds=(kind,),
        basis=Basis.FITTED,
        evidence=(evidence,),
        causes=kind.causes,
        next_note=reason(Clipping.COMPARE_NORMS),
    )


def _clip(context: Context, source: TraceSource) -> Clip | None:
    step = context.steps[0][source is context.reference]
    books = {rank: context.book(source, step, rank) for rank in source.steps().get(step, [])}
    mesh, found = mesh_of(source), {}
    for at, rank in enumerate(books):
        factor = common_factor(list(books.values()), at, mesh)
        if factor is not None and factor > 0:
            found[rank] = factor
    norm = math.sqrt(sum(_squares(books).values()))
    return Clip(factors=found, norm=norm, books=books) if found and norm else None


def _squares(books: Books, along: str | None = None, mesh: Layout | None = None) -> dict[str, float]:
    """Squared norm of each parameter's clipped gradient, equal copies once; with an axis, once for each index
    on it."""
    seen: dict[str, dict[tuple[int | None, int], float]] = {}
    for rank, book in books.items():
        index = 0 if along is None or mesh is None else mesh.coordinate(rank)[along]
        for fqn in book.parameters:
            record = book.parameter(fqn, *CLIPPED)
            norm = book.norm(record)
            if norm is not None:
                seen.setdefault(fqn, {})[book.digest(record), index] = norm**2
    return {fqn: sum(copies.values()) for fqn, copies in seen.items()}


def axis_of_norm(ratio: float, books: Books, mesh: Layout) -> str | None:
    """The axis along which copies, each counted, make the norm larger by as much as the factor is less."""
    once = math.sqrt(sum(_squares(books).values()))
    for axis in mesh.wide_axes:
        counted = math.sqrt(sum(_squares(books, axis, mesh).values()))
        if counted > once * (1 + SAME_NORM) and abs(once / counted / ratio - 1) < SAME_NORM:
            return axis
    return None
