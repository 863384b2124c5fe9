"""What functions outside the model take that no recorded call made: advantages, weights of rows, a teacher's
results, made before the step's first recorded call. Batches may agree while it differs."""

from __future__ import annotations

from dataclasses import replace

from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.from_origin import finding_from_origin
from trueup.store import StepView
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes import VerdictCode
from trueup.types.finding import Basis, Finding, Origin, Stage
from trueup.types.reason import reason


def given_outside(context: Context) -> list[Finding]:
    """A finding where the first step's first difference is such an input."""
    first = context.steps[0][0]
    for rank in context.ranks:
        shown = (one for one in context.passive if (one.step, one.rank) == (first, rank))
        origin = min(shown, key=lambda one: one.order, default=None)
        if origin is None or origin.module or origin.phase != "forward" or "input" not in origin.slot:
            continue
        call = _function(origin, context)
        if call is None:
            continue
        names = {"call": call, "name": origin.slot.partition(".")[2]}
        finding = finding_from_origin(origin, context)
        evidence = (*finding.evidence, reason(Stages.RETURNED_BY_NONE))
        given = replace(finding, stage=Stage.DATA, basis=Basis.RECORDED, module=None, origin=None)
        return [replace(given, headline=reason(VerdictCode.GIVEN_OUTSIDE, **names), evidence=evidence)]
    return []


def _function(origin: Origin, context: Context) -> str | None:
    """The function that takes it, unless a call returned what either run has there."""
    records = origin.target_record, origin.reference_record
    found = None
    for book, record in zip(context.pair(0, origin.rank), records, strict=True):
        if record is None or book.kind[book.record_call[record]] != "api" or _is_returned(book, record):
            return None
        found = found or book.name[book.record_call[record]]
    return found


def _is_returned(book: StepView, record: int) -> bool:
    content, own = book.content[record], book.record_call[record]
    outputs = (at for at, held in enumerate(book.content) if held == content and book.record_call[at] < own)
    return any(book.phase[at] == "forward" and book.slot[at].startswith("output") for at in outputs)
