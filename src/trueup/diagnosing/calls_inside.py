"""The call inside a module whose own code errs, where no cause is recognised: the first that the traces alone
show to err, or how to capture the calls."""

from __future__ import annotations

import shlex
from dataclasses import replace

import polars as pl

from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.forward import given_another
from trueup.types.codes import EvidenceCode, NextCode, VerdictCode
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes.kinds import KindReason
from trueup.types.finding import EvidenceRank, Finding, KindCode, Stage
from trueup.types.reason import Reason, reason
from trueup.types.status import Status


def with_calls(finding: Finding, context: Context) -> Finding:
    """A finding of a forward or backward pass without a recognised cause, with the call inside its module
    that errs first.

    A replay puts values in at modules; where both traces hold the calls of functions too, those tell more.
    Where they hold none, and the code of the programs says nothing, the next step is to capture them.
    """
    if finding.phase == "backward":
        return _of_backward(finding, context)
    of_loss = finding.phase == "loss"
    if finding.stage is not Stage.FORWARD or not (of_loss or finding.phase == "forward"):
        return finding
    calls = context.rows.filter((pl.col("kind") == "api") & (pl.col("phase") == "forward"))
    own = [pl.col(name).eq_missing(getattr(finding, name)) for name in ("step", "rank")]
    module = pl.col("module").is_null() if of_loss else pl.col("module").eq_missing(finding.module)
    inside = calls.filter(*own, module).sort("order")
    other = _of_one(inside, context)
    finding = _led_by_calls(finding, other, context)
    if any(kind.rank.is_named for kind in finding.kinds[:1]):
        return finding
    if finding.site in {site.replace(" · ", ", ") for site in inside["site"]}:
        return finding
    if (first := _first(inside, context)) is not None:
        return replace(finding, headline=other or finding.headline, evidence=(first, *finding.evidence))
    code_differs = any(one.code.value.startswith(_OF_CODE) for one in finding.evidence)
    if len(calls) or code_differs or finding.next is not None or finding.step is None:
        return finding
    command = shlex.join(map(str, context.target.manifest.get("command") or ["python", "train.py"]))
    return replace(finding, next=reason(NextCode.CAPTURE_CALLS_TOO, step=finding.step, command=command))


def _of_backward(finding: Finding, context: Context) -> Finding:
    """Two functions that give the same and send back something else: the forward pass shows no more. What the
    loss sends back is made by functions outside the model."""
    verdict = context.comparison.verdict
    is_first = (verdict.step, verdict.rank) == (finding.step, finding.rank)
    is_first &= verdict.owner is None if finding.stage is Stage.FORWARD else verdict.phase == "backward"
    if any(kind.rank.is_named for kind in finding.kinds[:1]) or not (is_first and _tells_of_calls(context)):
        return finding
    return replace(finding, headline=verdict.headline)


def _led_by_calls(finding: Finding, other: Reason | None, context: Context) -> Finding:
    """The finding, led by what the comparison says of the first call, where its kind says less than that;
    ``other``: what it says, where the call is one of those inside."""
    first = finding.kinds[0] if finding.kinds else None
    verdict = context.comparison.verdict
    if other is not None and other.code is VerdictCode.FUNCTION_IN_PLACE:
        return _of_function(finding, other)
    if other is not None:
        is_of_each = first is not None and first.sentence.code in _OF_EACH
        return replace(finding, headline=other) if is_of_each else finding
    is_here = _tells_of_calls(context) and verdict.where == finding.site
    if is_here and (first is None or first.rank is not EvidenceRank.STATED):
        return replace(finding, headline=verdict.headline)
    given = given_another(verdict)
    place = (verdict.where or "").replace(" · ", ", ")
    is_here = finding.site == verdict.where or (bool(place) and (finding.site or "").endswith(f" {place}"))
    if given is not None and verdict.step == finding.step and is_here and first is None:
        return replace(finding, headline=given)
    return finding


_OF_CODE = EvidenceCode.CODE_DIFFERS.value.rpartition("_")[0]


def _of_function(finding: Finding, headline: Reason) -> Finding:
    """The finding of a module that calls another function of equal inputs: what its results look like beside
    the reference's, but for a factor, is what that function makes of them. Cosines beside sines, say, are all
    among the reference's results."""
    first = finding.kinds[0].name if finding.kinds else None
    if first in _STATED:
        return finding
    kinds = finding.kinds
    if first is not KindCode.WRONG_SCALE:
        kinds = tuple(kind for kind in kinds if kind.name is KindCode.OTHER_FUNCTIONS)
    return replace(finding, headline=headline, kinds=kinds, causes=kinds[0].causes if kinds else ())


_OF_CALLS = (VerdictCode.MADE_BY_ONE, VerdictCode.FUNCTION_IN_PLACE, VerdictCode.GIVEN_ANOTHER)
_OF_EACH = (KindReason.SCALED_PER_ROW, KindReason.SCALED_PER_TOKEN, KindReason.OFFSET_BY_TABLE)
"""factors of each row or vector, an offset of each column: a call that makes them tells more"""
_STATED = (KindCode.CONSTANT_ARGUMENT, KindCode.OTHER_FUNCTIONS)
"""kinds that already say what the calls are"""


def _of_one(inside: pl.DataFrame, context: Context) -> Reason | None:
    """What the comparison says of the first call, where one run alone makes it or has another function."""
    verdict = context.comparison.verdict
    erring = inside.filter(pl.col("status") == Status.ORIGIN.value).head(1)
    is_here = _tells_of_calls(context) and verdict.where in erring["site"].to_list()
    return verdict.headline if is_here else None


def _tells_of_calls(context: Context) -> bool:
    """Whether the comparison is led by a call of one run alone, or by functions in each other's place."""
    return context.comparison.verdict.headline.code in _OF_CALLS


def _first(inside: pl.DataFrame, context: Context) -> Reason | None:
    """The first call whose difference its inputs do not explain, with the lines of both sides."""
    erring = inside.filter(pl.col("status") == Status.ORIGIN.value).head(1)
    for row in erring.iter_rows(named=True):
        origin = next((one for one in context.passive if one.site == row["site"]), None)
        return reason(
            Stages.FIRST_CALL,
            rel_l2=row["rel_l2"],
            call=row["site"],
            other=row["reference_site"],
            target=(origin and origin.source) or "",
            reference=(origin and origin.reference_source) or "",
        )
    return None
