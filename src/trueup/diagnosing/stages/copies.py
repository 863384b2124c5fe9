"""Gradients that several ranks hold and that should be the same: told where ranks were put together."""

from __future__ import annotations

from collections import Counter

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
    alone = odd_ranks(list(apart), context) if apart else ()
    if alone and groups:
        names = [fqn for some in groups.values() for fqn in some]
        return [_finding(next(iter(groups)), names, apart, mine, context)]
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


def parts_of(source: MergedTrace, step: int) -> dict[int, StepBook]:
    """What each of the ranks recorded in a step."""
    return {rank: StepBook(source.parts, step, rank) for rank in range(source.layout.size)}


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


def _finding(axis: str, names: list[str], apart: Differing, book: StepBook, context: Context) -> Finding:
    held = {fqn: book.summary(book.parameter(fqn, *CLIPPED)) for fqn in book.parameters}
    shapes = {fqn: (summary or {"shape": []})["shape"] for fqn, summary in held.items()}
    who, odd = described(names, shapes), odd_ranks(names, context)
    ranks = odd or apart[names[0]][1]
    on = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    said = f"{names[0]}: the gradient that the optimizer gets on {on} is not that of the others along {axis}"
    kind = kind_named("wrong_scale" if odd else "missing_all_reduce", 0.9, said)
    headline = (
        f"The gradients of {who} are other ones on {on}."
        if odd
        else f"The gradients of {who} are not reduced over the ranks along {axis}."
    )
    return Finding(
        stage=Stage.REDUCTION,
        headline=headline,
        module=place_of(names, shapes),
        site=f"{names[0]} · gradient clipped" + (f" and {len(names) - 1} more" if len(names) > 1 else ""),
        phase="param_grad",
        step=book.step,
        axis=None if odd else axis,
        ranks=odd,
        kinds=(kind,),
        confidence=0.95,
        evidence=(said, f"{len(names)} of {len(shapes)} gradients"),
        counter_evidence=("told from the target's own ranks: they hold the same weights",),
        causes=kind.causes,
        next_note=kind.next,
    )
