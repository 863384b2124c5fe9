"""Gradients that several ranks hold and that should be the same: told where ranks were put together."""

from __future__ import annotations

from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.naming import described, kind_named, place_of
from trueup.diagnosing.stepbook import CLIPPED, StepBook
from trueup.merging.trace import MergedTrace
from trueup.store import TraceSource
from trueup.types.finding import Finding, Stage

Differing = dict[str, tuple[str, tuple[int, ...]]]
"""parameter -> axis along which its copies differ, and the ranks that differ from the first"""


def copies_findings(context: Context) -> list[Finding]:
    """One finding an axis along which the optimizers of the target alone get other gradients of a weight."""
    mine, theirs = context.pair(0)
    apart = differing(context.target, mine)
    known = differing(context.reference, theirs)
    groups: dict[str, list[str]] = {}
    for fqn, (axis, _) in apart.items():
        if context.matched.get(fqn, fqn) not in known:
            groups.setdefault(axis, []).append(fqn)
    return [_finding(axis, names, apart, mine, context) for axis, names in groups.items()]


def differing(source: TraceSource, book: StepBook) -> Differing:
    """Gradients as the optimizers get them whose copies differ; none of a run that is not put together."""
    if not isinstance(source, MergedTrace):
        return {}
    records = {fqn: book.parameter(fqn, *CLIPPED) for fqn in book.parameters}
    found = {
        fqn: source.copies_apart(book.step, record) for fqn, record in records.items() if record is not None
    }
    return {fqn: copies for fqn, copies in found.items() if copies is not None}


def _finding(axis: str, names: list[str], apart: Differing, book: StepBook, context: Context) -> Finding:
    shapes = {
        f: (book.summary(book.parameter(f, *CLIPPED)) or {"shape": []})["shape"] for f in book.parameters
    }
    ranks = {rank for fqn in names for rank in apart[fqn][1]}
    assert isinstance(context.target, MergedTrace)
    few = len(ranks) < context.target.layout.size / 2
    who = described(names, shapes)
    on = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"
    said = f"{names[0]}: the gradient that the optimizer gets on {on} is not that of the others along {axis}"
    kind = kind_named("wrong_scale" if few else "missing_all_reduce", 0.9, said)
    headline = (
        f"The gradients of {who} are other ones on {on}."
        if few
        else f"The gradients of {who} are not reduced over the ranks along {axis}."
    )
    return Finding(
        stage=Stage.REDUCTION,
        headline=headline,
        module=place_of(names, shapes),
        site=f"{names[0]} · gradient clipped" + (f" and {len(names) - 1} more" if len(names) > 1 else ""),
        phase="param_grad",
        step=book.step,
        axis=None if few else axis,
        ranks=tuple(sorted(ranks)) if few else (),
        kinds=(kind,),
        confidence=0.95,
        evidence=(said, f"{len(names)} of {len(shapes)} gradients"),
        counter_evidence=("told from the target's own ranks: they hold the same weights",),
        causes=kind.causes,
        next_note=kind.next,
    )
