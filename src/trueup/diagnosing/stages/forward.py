"""Stages: the first step's forward and loss, and its backward; where attribution says an error was made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from trueup.diagnosing.stages.context import Context, counted, is_beyond, is_compared, stands_alone
from trueup.diagnosing.stages.from_origin import finding_from_origin
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.diagnosing.stages.trainable import frozen_findings
from trueup.types.finding import Finding, Origin, Stage


class ForwardStage:
    """Module outputs and the loss of the first step."""

    stage = Stage.FORWARD
    title = "Forward and loss: the first step, module by module"

    def check(self, context: Context) -> StageOutcome:
        """Origins in the forward and the loss, those that other weights or other data explain left out."""
        rows = context.of_phases("forward", "loss")
        return _judged(self, context, rows, [Stage.FORWARD, Stage.LOSS], loss_said(context, 0))


class BackwardStage:
    """Gradients of the first step: local norm of each weight, then layer by layer."""

    stage = Stage.BACKWARD
    title = "Backward: the first step's local norms, then layer by layer"

    def check(self, context: Context) -> StageOutcome:
        """Origins in the backward; the local norms that differ most as evidence."""
        local = (pl.col("phase") == "param_grad") & (pl.col("slot") == "local")
        rows = context.of_phases("backward", "param_grad").filter((pl.col("phase") == "backward") | local)
        frozen = tuple(frozen_findings(context))
        return _judged(self, context, rows, [Stage.BACKWARD], norms_said(context), known=frozen)


def _judged(
    stage: ForwardStage | BackwardStage,
    context: Context,
    rows: pl.DataFrame,
    stages: list[Stage],
    extra: tuple[str, ...],
    known: tuple[Finding, ...] = (),
) -> StageOutcome:
    common: dict[str, Any] = {"stage": stage.stage, "title": stage.title}
    beyond = rows.filter(is_beyond())
    origins: list[Origin] = []
    explained: list[str] = []
    for origin in context.origins_of(*stages):
        why = explained_by(origin, context)
        if why is None:
            origins.append(origin)
        else:
            explained.append(why)
    if known or (origins and (context.by_replay or context.failed_before() is None)):
        located = () if known and not context.by_replay else tuple(origins)
        found = _ordered(tuple(finding_from_origin(origin, context) for origin in located))
        findings = (*known, *(one for one in found if all(one.module != k.module for k in known)))
        return StageOutcome(
            **common,
            status=StageStatus.FAILED,
            said=findings[0].headline,
            evidence=(f"records: {counted(rows)}", *extra),
            findings=findings,
            confirmed=context.by_replay or bool(known) or (bool(located) and stands_alone(located[0])),
        )
    if rows.filter(is_compared()).is_empty():
        return StageOutcome(
            **common, status=StageStatus.UNDECIDED, said="no record of it was made on both sides"
        )
    evidence = (f"records: {counted(rows)}", *extra)
    if beyond.is_empty():
        exact = rows.filter(pl.col("status") == "equal").height == rows.height
        said = "Equal bit for bit." if exact else "Agrees within rounding."
        return StageOutcome(**common, status=StageStatus.PASSED, said=said, evidence=evidence, confirmed=True)
    before = context.failed_before()
    if stage.stage is Stage.BACKWARD and context.loss_scales_differ:
        explained.append("the loss scale differs")
    if before is not None or explained:
        said = f"Differs, which follows from {source_of(before)}." if before else f"Differs: {explained[0]}."
        return StageOutcome(**common, status=StageStatus.CONSEQUENCE, said=said, evidence=evidence)
    row = beyond.row(0, named=True)
    where = f"{beyond.height} records differ, the first at {row['site']}"
    said = f"{where}, but no place was found that made the difference."
    return StageOutcome(**common, status=StageStatus.UNDECIDED, said=said, evidence=evidence)


_SOURCES = {
    Stage.DATA: "the data",
    Stage.WEIGHTS: "the initial weights",
    Stage.FORWARD: "the forward",
    Stage.BACKWARD: "the backward",
    Stage.REDUCTION: "the way gradients are accumulated, reduced or clipped",
    Stage.OPTIMIZER: "the optimizer",
}


def source_of(outcome: StageOutcome) -> str:
    """The stage a consequence follows from, in words."""
    return _SOURCES.get(outcome.stage, f"the stage {outcome.stage.value}")


def _ordered(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """One a module, surest first; among equally sure ones as they ran."""
    order = {id(f): f.origin.order if f.origin is not None else 0 for f in findings}
    first: dict[str | None, Finding] = {}
    for finding in sorted(findings, key=lambda f: (-round(f.confidence, 2), order[id(f)])):
        known = first.get(finding.module)
        if known is None:
            first[finding.module] = finding
        else:
            also = f"also at {finding.site}, in the {finding.phase} phase"
            first[finding.module] = replace(known, evidence=(*known.evidence, also))
    return tuple(first.values())


def explained_by(origin: Origin, context: Context) -> str | None:
    """What an earlier stage found that made this origin, if anything did: a module whose own weights differ
    computes something else, and a root that is fed other data too."""
    if context.follows_weights(origin):
        return f"the weights differ from step {origin.step} on"
    weights = context.outcome_of(Stage.WEIGHTS)
    if weights is not None and weights.status is StageStatus.FAILED:
        for fqn in weights.details.get("apart", []):
            if fqn.rpartition(".")[0] == origin.module or _uses_elsewhere(fqn, origin):
                return f"{fqn} differs at the start"
    scale_seen = origin.stage is Stage.LOSS or (origin.module == "" and origin.phase == "backward")
    if scale_seen and context.loss_scales_differ:
        return "the loss scale differs"
    data = context.outcome_of(Stage.DATA)
    if data is not None and data.status is StageStatus.FAILED:
        fed = origin.module == "" and (origin.slot.startswith("input") or origin.phase == "loss")
        if fed or origin.stage in (Stage.LOSS, Stage.DATA):
            return "the batch differs"
    return None


def _uses_elsewhere(fqn: str, origin: Origin) -> bool:
    """A parameter held directly by a parent of the origin's module."""
    holder = fqn.rpartition(".")[0]
    return (
        holder != "" and origin.module.startswith(holder + ".") and fqn.count(".") < origin.module.count(".")
    )


def loss_said(context: Context, at: int) -> tuple[str, ...]:
    """The loss of a step on both sides."""
    step = context.steps[at][0]
    for entry in context.comparison.summary.get("scalars", []):
        if entry["step"] == step and entry["name"] == "loss":
            same = entry["target"] == entry["reference"]
            gap = (
                "" if same or entry["rel_diff"] is None else f", relative difference {entry['rel_diff']:.2g}"
            )
            return (f"loss {entry['target']:.8g} against {entry['reference']:.8g}{gap}",)
    return ()


def norms_said(context: Context) -> tuple[str, ...]:
    """Local norms: how many weights' agree, and which is furthest away."""
    norms = [
        n for n in context.comparison.summary.get("local_norms", []) if isinstance(n.get("rel_diff"), float)
    ]
    if not norms:
        return ()
    worst = max(norms, key=lambda n: n["rel_diff"])
    same = sum(n["rel_diff"] == 0 for n in norms)
    if same == len(norms):
        return (f"the local norms of all {same} weights are equal",)
    return (
        f"local norms: {same} of {len(norms)} equal; furthest apart is {worst['fqn']}, {worst['target']:.6g} "
        f"against {worst['reference']:.6g} ({worst['rel_diff']:.2g})",
    )
