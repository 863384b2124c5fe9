"""The call inside a module whose own code errs, where no cause is recognised: the first that the traces alone
show to err, or how to capture the calls."""

from __future__ import annotations

import shlex
from dataclasses import replace

import polars as pl

from trueup.diagnosing.stages.context import Context
from trueup.types.codes import EvidenceCode, NextCode
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Finding, Stage
from trueup.types.reason import Reason, reason
from trueup.types.status import Status


def with_calls(finding: Finding, context: Context) -> Finding:
    """A finding of a forward pass without a recognised cause, with the call inside its module that errs
    first.

    A replay puts values in at modules; where both traces hold the calls of functions too, those tell more.
    Where they hold none, and the code of the programs says nothing, the next step is to capture them.
    """
    named = any(kind.rank.is_named for kind in finding.kinds[:1])
    if finding.stage is not Stage.FORWARD or finding.phase != "forward" or named:
        return finding
    calls = context.rows.filter((pl.col("kind") == "api") & (pl.col("phase") == "forward"))
    own = (pl.col(name).eq_missing(getattr(finding, name)) for name in ("module", "step", "rank"))
    inside = calls.filter(*own).sort("order")
    if finding.site in {site.replace(" · ", ", ") for site in inside["site"]}:
        return finding
    if (first := _first(inside, context)) is not None:
        return replace(finding, evidence=(first, *finding.evidence))
    code_differs = any(one.code.value.startswith(_OF_CODE) for one in finding.evidence)
    if len(calls) or code_differs or finding.next is not None or finding.step is None:
        return finding
    command = shlex.join(map(str, context.target.manifest.get("command") or ["python", "train.py"]))
    return replace(finding, next=reason(NextCode.CAPTURE_CALLS_TOO, step=finding.step, command=command))


_OF_CODE = EvidenceCode.CODE_DIFFERS.value.rpartition("_")[0]


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
