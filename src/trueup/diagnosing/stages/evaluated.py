"""Models that are evaluated beside the one that trains: the average of its weights, a frozen copy.

A replay puts in what their layers are given, and nothing else: no gradient reaches their weights, so that no
trace holds them. A layer of the framework that makes something else of the same inputs has other weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from trueup.comparing.averages import ranks_without_average
from trueup.comparing.program_code import code_book
from trueup.diagnosing.stages.context import Context
from trueup.store import StepView
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Basis, EvidenceRank, Finding, Origin, Stage
from trueup.types.reason import Reason, reason

_OF_WEIGHTS = ("Linear", "Embedding", "Conv1d", "Conv2d", "Conv3d", "Dense")
"""layers that compute with their weights alone"""
_OF_STATISTICS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
"""layers that compute in evaluation with their weights and running statistics alone"""
EVALUATED = (Stages.EVALUATED_WEIGHTS, Stages.EVALUATED_STATISTICS, Stages.AVERAGED_ON_RANKS)
"""what a model beside the one that trains is evaluated with"""


def with_evaluated(findings: Sequence[Finding], context: Context) -> tuple[Finding, ...]:
    """The findings; those of a model that has other weights in evaluation as one, where the first stood, as
    are those of a model that the other run does not evaluate."""
    findings = _beside_other_model(findings, context)
    of_root: dict[str, list[Finding]] = {}
    for finding in findings:
        if (root := _root_of(finding, context)) is not None:
            of_root.setdefault(root, []).append(finding)
    replaced: dict[int, Finding | None] = {}
    for root, some in of_root.items():
        layers = [one for one in some if _is_of(one, _OF_WEIGHTS, context)]
        norms = [one for one in some if _is_of(one, _OF_STATISTICS, context)]
        code = Stages.EVALUATED_WEIGHTS if layers else Stages.EVALUATED_STATISTICS
        if layers or (len(norms) == len(some) and _run_the_same_code(norms, context)):
            headline = reason(code, root=root, num=len(some))
            first = (layers or norms)[0]
            evidence = _without_kind(first)
            ranks = _ranks_at_fault(some, context)
            if ranks is not None:
                evidence, headline = (headline, *evidence), ranks
            replaced |= dict.fromkeys(map(id, some))
            replaced[id(some[0])] = replace(
                first, headline=headline, module=root, kinds=(), causes=(), evidence=evidence
            )
    found = (one for finding in findings if (one := replaced.get(id(finding), finding)) is not None)
    return _of_ranks_without_average(tuple(found), context)


def _of_ranks_without_average(findings: Sequence[Finding], context: Context) -> tuple[Finding, ...]:
    """The findings; those of a model that is evaluated, on ranks where one run writes no averaged weights, as
    one: without a replay each of its layers stands by itself."""
    some = [one for one in findings if _is_evaluated(one.origin, context)]
    headline = _ranks_at_fault(some, context) if some else None
    if headline is None or any(one.headline == headline for one in some):
        return tuple(findings)
    first = replace(some[0], headline=headline, kinds=(), causes=(), evidence=_without_kind(some[0]))
    kept = (first if one is some[0] else one for one in findings)
    return tuple(one for one in kept if one is first or one not in some)


def _without_kind(finding: Finding) -> tuple[Reason, ...]:
    """What was measured, without what a rule of kinds made of it: the numbers of a layer that has other
    weights look like another computation."""
    if finding.origin is not None:
        return finding.origin.evidence
    of_kinds = [kind.sentence for kind in finding.kinds]
    return tuple(one for one in finding.evidence if one not in of_kinds)


def _ranks_at_fault(findings: Sequence[Finding], context: Context) -> Reason | None:
    """Where the model differs on those ranks alone on which one run writes no averaged weights."""
    lacking = ranks_without_average(context.target, context.reference)
    if lacking is None:
        return None
    side, ranks = lacking
    seen = {one.rank for one in findings}
    return (
        reason(Stages.AVERAGED_ON_RANKS, side=side, ranks=list(map(str, ranks))) if seen <= {*ranks} else None
    )


def _beside_other_model(findings: Sequence[Finding], context: Context) -> tuple[Finding, ...]:
    of_evaluation = [one for one in findings if _is_evaluated(one.origin, context)]
    other = other_model_evaluated(context) if of_evaluation else None
    if other is None:
        return tuple(findings)
    kept = (other if one is of_evaluation[0] else one for one in findings)
    return tuple(one for one in kept if one is other or one not in of_evaluation[1:])


def _is_evaluated(origin: Origin | None, context: Context) -> bool:
    if origin is None or origin.target_record is None:
        return False
    source = context.target if origin.basis is not Basis.REPLAY else context.replayed
    if source is None:
        return False
    book = context.book(source, origin.step, origin.rank)
    return book.mode[book.record_call[origin.target_record]] == "eval"


def other_model_evaluated(context: Context) -> Finding | None:
    """Where one run evaluates the model that trains, and the other a model that the first does not."""
    names = [_evaluated(book) for book in context.pair(0)]
    only = names[0] - names[1], names[1] - names[0]
    if not all(only) or not any("" in one for one in only):
        return None
    step = context.steps[0][0]
    sides = {
        side: tuple(sorted(name or "the model that trains" for name in one))
        for side, one in zip(("target", "reference"), only, strict=True)
    }
    headline = reason(Stages.OTHER_MODEL_EVALUATED, **sides)
    return Finding(
        stage=Stage.FORWARD,
        headline=headline,
        module=None,
        site="evaluation",
        phase="forward",
        step=step,
        rank=context.ranks[0],
        basis=Basis.RECORDED,
        evidence=(headline,),
    )


def _evaluated(book: StepView) -> Counter[str]:
    """Outermost modules that are called without gradients, and how often."""
    calls = (call for call in book.calls_of_kind("module") if book.parent[call] < 0)
    return Counter(book.name[call] for call in calls if book.mode[call] == "eval")


def _root_of(finding: Finding, context: Context) -> str | None:
    """The outermost module of the call in evaluation that a finding is about, where the trace holds none of
    its weights, and neither run states what differs."""
    origin = finding.origin
    if origin is None or any(kind.rank is EvidenceRank.STATED for kind in finding.kinds):
        return None
    found = _call_of(origin, context)
    if found is None or origin.phase != "forward" or found[0].mode[found[1]] != "eval":
        return None
    book, call = found
    root = book.name[[call, *book.enclosing(call)][-1]]
    held = any(fqn.startswith(f"{root}.") for fqn in book.parameters)
    return root if root and not held else None


def _is_of(finding: Finding, types: Sequence[str], context: Context) -> bool:
    """Whether it is what a layer of one of these types made."""
    origin = finding.origin
    found = None if origin is None else _call_of(origin, context)
    if origin is None or found is None or not origin.slot.startswith("output"):
        return False
    book, call = found
    return book.type[call] in types


def _run_the_same_code(findings: Sequence[Finding], context: Context) -> bool:
    """Whether no program has a forward of its own for these layers: one written otherwise may compute
    otherwise."""
    book = code_book(context.target, context.reference)
    if book is None:
        return False
    known = all((one.module or "") in of.types for one in findings for of in (book.target, book.reference))
    return known and not any(book.near(one.module, "forward").is_own for one in findings)


def _call_of(origin: Origin, context: Context) -> tuple[StepView, int] | None:
    if origin.target_record is None or origin.basis is not Basis.REPLAY or context.replayed is None:
        return None
    book = context.book(context.replayed, origin.step, origin.rank)
    return book, book.record_call[origin.target_record]
