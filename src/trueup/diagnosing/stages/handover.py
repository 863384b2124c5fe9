"""From the update to the next forward: a step begins with the weights that the update before it left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from trueup.diagnosing.checks.master_weights import CHECK, starts_apart
from trueup.diagnosing.checks.outcome import CheckOutcome, CheckVerdict
from trueup.diagnosing.checks.run import CheckedRun
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.naming import described, kind_named, names_listed, place_of
from trueup.diagnosing.thresholds import START_APART, START_COPIED, START_ROUNDED
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepView, TraceSource
from trueup.store.view import UPDATED, WEIGHT
from trueup.types.codes import CheckCode as Checks
from trueup.types.codes import WeightsCode as Weights
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import Basis, EvidenceRank, Finding, Kind, Stage
from trueup.types.reason import Reason, reason

FIRST_UPDATE = "optimizer · what the first update begins with"
NEXT_START = "optimizer · what the next step begins with"


def handover_findings(context: Context) -> list[Finding]:
    """Weights that the target's second step does not begin with as the first one left them, where the
    reference's does: its own, or copies in half precision of master weights."""
    if len(context.steps) < 2 or any(b - a != 1 for a, b in zip(*context.steps[:2], strict=True)):
        return []
    return [*_overwritten(context), *(_stale_copies(context) or _other_start(context))]


def _overwritten(context: Context) -> list[Finding]:
    (target, reference), (later, other_later) = context.pair(0), context.pair(1)
    kept = {
        fqn: (_kept(target, later, fqn), _kept(reference, other_later, other))
        for fqn, other in context.matched.items()
    }
    lost = [fqn for fqn, each in kept.items() if each == (False, True)]
    if not lost:
        return _written_in_reference(context, [fqn for fqn, each in kept.items() if each == (True, False)])
    undone = all(_same(target, later, fqn, WEIGHT) for fqn in lost)
    code = Weights.UNDONE if undone else Weights.OVERWRITTEN
    lost_update = reason(code, parameters=described(lost, _shapes(target)))
    found = _finding(
        lost_update,
        lost,
        target,
        kind_named("dropped_update", EvidenceRank.EVERY_ELEMENT, lost_update, causes=()),
    )
    written = () if undone else _written(target, later, lost[0], "target")
    return [replace(found, evidence=(found.evidence[0], *written, *found.evidence[1:]))]


def _written_in_reference(context: Context, names: Sequence[str]) -> list[Finding]:
    """Weights that the reference alone changes after its update, which leaves what the target's does."""
    (target, reference), (_, second) = context.pair(0), context.pair(1)
    left = {
        fqn: [
            book.digest(book.parameter(name, *UPDATED)) for book, name in ((target, fqn), (reference, other))
        ]
        for fqn in names
        for other in (context.matched[fqn],)
    }
    if not names or any(own != other for own, other in left.values()):
        return []
    written = _written(reference, second, context.matched[names[0]], "reference")
    parameters = described(list(names), _shapes(target))
    return [
        Finding(
            stage=Stage.OPTIMIZER,
            headline=reason(Weights.WRITTEN_IN_REFERENCE, parameters=parameters),
            module=place_of(list(names), _shapes(target)),
            site=NEXT_START,
            phase="param",
            step=target.step,
            rank=target.rank,
            basis=Basis.RECORDED,
            evidence=(*written, *names_listed(list(names))),
            causes=(reason(Weights.WRITTEN_CAUSE),),
            next_note=reason(Weights.CHECK_AFTER_STEP),
        )
    ]


def _written(first: StepView, second: StepView, fqn: str, side: str) -> tuple[Reason, ...]:
    """How a weight that a program writes to after its update differs from what that left: numbers beyond a
    bound that are this bound now and all others as they were, else its range."""
    records = first.parameter(fqn, *UPDATED), second.parameter(fqn, *WEIGHT)
    left, begins = first.value(records[0]), second.value(records[1])
    if left is not None and begins is not None and left.shape == begins.shape:
        changed = left != begins
        for way, bound, beyond in (
            ("above", begins.max(), left > begins.max()),
            ("below", begins.min(), left < begins.min()),
        ):
            if np.array_equal(changed, beyond) and (begins[changed] == bound).all():
                num = int(changed.sum())
                where = {"parameter": fqn, "side": side, "way": way}
                return (reason(Weights.LIMITED_AFTER, **where, num=num, bound=float(bound)),)
    held = [book.summary(row) for book, row in zip((first, second), records, strict=True)]
    each = [one[name] for one in held if one is not None for name in ("minimum", "maximum")]
    ends = [end for end in each if end is not None]
    if len(ends) < 4 or ends[:2] == ends[2:]:
        return ()
    numbers = dict(zip(("left", "most_left", "begins", "most_begins"), ends, strict=True))
    return (reason(Weights.RANGE_AFTER, parameter=fqn, side=side, **numbers),)


def _kept(first: StepView, second: StepView, fqn: str) -> bool | None:
    """Whether a weight begins the second step as its own update left it; None where a trace does not tell, or
    the model computes with another form of it."""
    left, begins = (
        first.summary(first.parameter(fqn, *UPDATED)),
        second.summary(second.parameter(fqn, *WEIGHT)),
    )
    if left is None or begins is None or None in (left["digest"], begins["digest"]):
        return None
    alike = left["dtype"] == begins["dtype"] and left["shape"] == begins["shape"]
    return left["digest"] == begins["digest"] if alike else None


def _same(first: StepView, second: StepView, fqn: str, part: tuple[str, str]) -> bool:
    before = first.digest(first.parameter(fqn, *part))
    return before is not None and before == second.digest(second.parameter(fqn, *part))


def _shapes(book: StepView) -> dict[str, Sequence[int]]:
    """Of the weights the model computes with."""
    shapes = {fqn: book.shape(book.parameter(fqn, *WEIGHT)) for fqn in book.parameters}
    return {fqn: shape for fqn, shape in shapes.items() if shape is not None}


def _stale_copies(context: Context) -> list[Finding]:
    checked = [_masters_checked(source) for source in (context.target, context.reference)]
    if [outcome.verdict for outcome in checked] != [CheckVerdict.FAILED, CheckVerdict.PASSED]:
        return []
    first, second = context.pair(0)[0], context.pair(1)[0]
    dtypes = {fqn: second.dtype(second.parameter(fqn, *WEIGHT)) for fqn in context.matched}
    halves = [fqn for fqn, dtype in dtypes.items() if dtype not in (None, "float32")]
    stale = [fqn for fqn in halves if _same(first, second, fqn, WEIGHT)]
    differing = checked[0].sentence
    if differing.code is Checks.MASTERS_RESTARTED:
        if not checked[1].numbers.get("kept"):
            return []
        kind = kind_named("dtype_or_rounding", EvidenceRank.EVERY_ELEMENT, differing, causes=())
        return [_finding(reason(Weights.RESTARTED), halves, second, kind)]
    if not stale:
        headline = reason(Weights.NOT_THE_MASTERS)
        return [
            _finding(
                headline,
                halves,
                second,
                kind_named("dropped_update", EvidenceRank.CONSISTENT, differing, causes=()),
                differing,
            )
        ]
    copies = reason(Weights.STALE_COPIES, num=len(stale), step=second.step, before=first.step)
    not_updated = reason(CauseCode.COPY_NOT_UPDATED)
    kind = kind_named("stale_value", EvidenceRank.EVERY_ELEMENT, copies, causes=(not_updated,))
    return [_finding(reason(Weights.STALE), stale, second, kind, differing)]


def _other_start(context: Context) -> list[Finding]:
    """Master weights of the target that are not the model's weights when the first update begins, where the
    reference's are: weights were loaded or changed after the masters were made."""
    target, reference = (starts_apart(CheckedRun(source)) for source in (context.target, context.reference))
    other = [fqn for fqn, name in context.matched.items() if is_other_start(target, reference, fqn, name)]
    if not other:
        return _rounded_start(context, target, reference)
    book = context.pair(0)[0]
    furthest = max(other, key=target.__getitem__)
    dtype = book.dtype(book.parameter(furthest, *WEIGHT))
    sizes = {"num": len(other), "total": len(target), "apart": target[furthest] * DTYPES[str(dtype)].eps}
    differing = reason(Weights.OTHER_START, **sizes, parameter=furthest)
    loaded = reason(CauseCode.MASTERS_NOT_RELOADED)
    kind = kind_named("stale_value", EvidenceRank.EVERY_ELEMENT, differing, causes=(loaded,))
    headline = reason(Weights.NOT_FROM_THE_MODEL)
    found = _finding(headline, other, book, kind)
    kept = (reason(Weights.REFERENCE_FROM_THE_MODEL),)
    return [
        replace(found, site=FIRST_UPDATE, counter_evidence=kept, next_note=reason(Weights.RELOAD_MASTERS))
    ]


def is_other_start(target: Mapping[str, float], reference: Mapping[str, float], fqn: str, name: str) -> bool:
    """Of distances in roundoffs of the working copy."""
    return target.get(fqn, 0.0) > START_APART > reference.get(name, START_APART)


def _rounded_start(
    context: Context, target: Mapping[str, float], reference: Mapping[str, float]
) -> list[Finding]:
    """Master weights of one run that begin as the working copies are, where those of the other hold what
    rounding takes from these. Distances in roundoffs of the working copy."""
    known = {
        f: (target[f], reference[n]) for f, n in context.matched.items() if f in target and n in reference
    }
    for side, at in (("target", 0), ("reference", 1)):
        coarse = [fqn for fqn, pair in known.items() if is_rounded_start(pair[at], pair[1 - at])]
        if coarse and not any(is_rounded_start(pair[1 - at], pair[at]) for pair in known.values()):
            book = context.pair(0)[0]
            dtype = str(book.dtype(book.parameter(coarse[0], *WEIGHT)))
            headline = reason(Weights.ROUNDED_START, side=side, dtype=dtype)
            start = reason(Weights.HOLDS_NO_MORE, side=side, dtype=dtype, num=len(coarse), total=len(known))
            cause = reason(CauseCode.MASTERS_OF_ROUNDED)
            kind = kind_named("dtype_or_rounding", EvidenceRank.EVERY_ELEMENT, start, causes=(cause,))
            found = _finding(headline, coarse, book, kind)
            return [replace(found, site=FIRST_UPDATE, counter_evidence=(), next_note=kind.next)]
    return []


def is_rounded_start(own: float, other: float) -> bool:
    """Whether one run's master is its copy, and the other's is not but rounds to it."""
    return own < START_COPIED and START_ROUNDED < other <= START_APART


def _masters_checked(source: TraceSource) -> CheckOutcome:
    return CHECK.check(CheckedRun(source))


def _finding(headline: Reason, names: list[str], book: StepView, kind: Kind, *evidence: Reason) -> Finding:
    return Finding(
        stage=Stage.OPTIMIZER,
        headline=headline,
        module=place_of(names, _shapes(book)),
        site=NEXT_START,
        phase="param",
        step=book.step,
        rank=book.rank,
        kinds=(kind,),
        basis=Basis.RECORDED,
        evidence=(kind.sentence, *evidence, *names_listed(names)),
        counter_evidence=(reason(Weights.REFERENCE_KEEPS),),
        causes=kind.causes,
        next_note=reason(Weights.CHECK_AFTER_STEP),
    )
