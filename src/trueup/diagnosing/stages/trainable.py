"""Weights that are trained on one side alone: the other freezes them, or no gradient reaches them."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.naming import described, kind_named, names_listed, place_of
from trueup.store import StepView, TraceSource
from trueup.store.view import ACCUMULATED, CLIPPED, LOCAL
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import Basis, EvidenceRank, Finding, Stage
from trueup.types.reason import Reason, reason


def frozen_on_one_side(context: Context) -> dict[str, bool]:
    """Target's name of every matched weight that one side alone trains -> whether the target does."""
    target, reference = _trained(context.target, context), _trained(context.reference, context)
    return {
        fqn: target[fqn]
        for fqn, other in context.matched.items()
        if fqn in target and other in reference and target[fqn] != reference[other]
    }


def _trained(source: TraceSource, context: Context) -> dict[str, bool]:
    table = context.facts(source).get("parameters") or ()
    return {row["fqn"]: row["requires_grad"] for row in table if row.get("requires_grad") is not None}


def frozen_findings(context: Context) -> list[Finding]:
    """One finding for those the target freezes, one for those it trains where the reference does not."""
    apart = frozen_on_one_side(context)
    return [
        _finding([fqn for fqn, trained in apart.items() if trained is side], context, trained=side)
        for side in (False, True)
        if side in apart.values()
    ]


def unreached_of(module: str, context: Context) -> list[Reason]:
    """Of the weights that a module holds itself, those that get a gradient other than zero in the first step
    of one run alone, where others of the module do in both: what the module computes does not use them."""
    if context.mesh.wide_axes or context.bridge is not None:
        return []
    pairs = context.pair()
    frozen, trained = frozen_on_one_side(context), _trained(context.target, context)
    own = [
        (fqn, [_is_reached(book, name) for book, name in zip(pairs, (fqn, other), strict=True)])
        for fqn, other in context.matched.items()
        if trained.get(fqn) and fqn not in frozen and fqn.startswith(f"{module}." if module else "")
    ]
    if not any(all(got) for _, got in own):
        return []
    shapes: dict[str, Sequence[int]] = dict.fromkeys(context.matched, (0, 0))
    held = [(fqn, got) for fqn, got in own if fqn.rpartition(".")[0] == module]
    found = []
    for side, wanted in (("target", [False, True]), ("reference", [True, False])):
        names = [fqn for fqn, got in held if got == wanted]
        if names:
            found.append(reason(Stages.UNREACHED, parameters=described(names, shapes), side=side))
    return found


# In one piece: one finding; what it says is asked in the order in which it becomes known.
def unreached_findings(context: Context, *, only_uncalled: bool = False) -> list[Finding]:
    """One finding for the weights that get a gradient other than zero in the reference's first step and none
    in the target's, where others of the target do: nothing that the loss is made of uses them.

    Args:
        only_uncalled: only those of modules that the target does not call, which no place in its backward
            explains.
    """
    if context.mesh.wide_axes or context.bridge is not None:
        return []
    target, reference = context.pair()
    frozen = frozen_on_one_side(context)
    trained = _trained(context.target, context)
    reached = {fqn: _is_reached(target, fqn) for fqn in context.matched if trained.get(fqn)}
    names = [
        fqn
        for fqn, got in reached.items()
        if not got and fqn not in frozen and _is_reached(reference, context.matched[fqn])
    ]
    uncalled = [
        module
        for module in dict.fromkeys(fqn.rpartition(".")[0] for fqn in names)
        if module and not target.named("module", module) and reference.named("module", module)
    ]
    if only_uncalled:
        names = [fqn for fqn in names if fqn.rpartition(".")[0] in uncalled]
    if not names or not any(reached.values()):
        return []
    shapes: dict[str, Sequence[int]] = dict.fromkeys(context.matched, (0, 0))
    lacking = reason(Stages.UNREACHED, parameters=described(names, shapes))
    why = (reason(Stages.NEVER_CALLED, modules=uncalled),) if uncalled else ()
    without: tuple[CauseCode, ...] = (CauseCode.NOT_TRAINABLE,)  # they are trained
    if all(fqn.rpartition(".")[0] in uncalled for fqn in names):
        without += (CauseCode.GRAPH_CUT,)
    kind = kind_named("frozen_or_missing_gradient", EvidenceRank.STATED, lacking, without=without)
    place = place_of(names, context.matched) or ""
    return [
        Finding(
            stage=Stage.BACKWARD,
            headline=lacking,
            module=place.rpartition(".")[0] if place in context.matched else place,
            site=place,
            phase="param_grad",
            step=target.step,
            rank=target.rank,
            kinds=(kind,),
            basis=Basis.RECORDED,
            evidence=(lacking, *why, *names_listed(names)),
            causes=kind.causes,
            next_note=kind.next,
        )
    ]


def _is_reached(book: StepView, fqn: str) -> bool:
    """Whether a gradient that is not all zero was recorded for a weight."""
    held = (book.parameter(fqn, *slot) for slot in (LOCAL, ACCUMULATED, CLIPPED))
    return any(record is not None and not book.is_all_zero(record) for record in held)


def _finding(names: list[str], context: Context, *, trained: bool) -> Finding:
    shapes: dict[str, Sequence[int]] = dict.fromkeys(context.matched, (0, 0))
    who = described(names, shapes)
    differs = reason(Stages.REQUIRES_GRAD, parameters=who, target=str(trained), reference=str(not trained))
    kind = kind_named("frozen_or_missing_gradient", EvidenceRank.STATED, differs, causes=())
    place = place_of(names, context.matched) or ""
    return Finding(
        stage=Stage.BACKWARD,
        headline=differs,
        module=place.rpartition(".")[0] if place in context.matched else place,
        site=place,
        phase="param_grad",
        step=context.steps[0][0],
        rank=context.ranks[0],
        kinds=(kind,),
        basis=Basis.RECORDED,
        evidence=(differs, *names_listed(names)),
        causes=(),  # requires_grad itself is what differs
        next_note=reason(Stages.SET_REQUIRES_GRAD),
    )
