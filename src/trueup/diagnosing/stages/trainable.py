"""Weights that are trained on one side and frozen on the other."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.naming import described, kind_named, names_listed, place_of
from trueup.store import TraceSource
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Basis, EvidenceRank, Finding, Stage
from trueup.types.reason import reason


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


def _finding(names: list[str], context: Context, *, trained: bool) -> Finding:
    shapes: dict[str, Sequence[int]] = dict.fromkeys(context.matched, (0, 0))
    who = described(names, shapes)
    differs = reason(Stages.REQUIRES_GRAD, parameters=who, target=str(trained), reference=str(not trained))
    kind = kind_named("frozen_or_missing_gradient", EvidenceRank.STATED, differs)
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
        causes=kind.causes,
        next_note=reason(Stages.SET_REQUIRES_GRAD),
    )
