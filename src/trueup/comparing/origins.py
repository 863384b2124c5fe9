"""The origins a comparison found, read from its result, most likely first."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from trueup.comparing.other_ranks import without_other_ranks
from trueup.comparing.record_row import JudgedRow
from trueup.comparing.result import open_comparison
from trueup.comparing.thresholds import CLEAR_ORIGIN
from trueup.comparing.written import AGAIN
from trueup.store.checked import as_written
from trueup.store.parquet import damage_named
from trueup.types.codes import EvidenceCode
from trueup.types.finding import Basis, Origin, Stage
from trueup.types.reason import Reason, reason

_FRAME = re.compile(r"^(?P<place>.+?:\d+)\b")


def origins(result: Path) -> list[Origin]:
    """Origins in the result that ``trueup compare -o RESULT`` left: clear ones first, each in order of time.

    Raises:
        TraceError: no readable result there.

    Example:
        >>> [origin.module for origin in origins(Path("out"))]      # doctest: +SKIP
        ['layers.2.ln1']
    """
    comparison = open_comparison(result)
    table = result / "result.parquet"
    with damage_named(table, remedy=AGAIN):
        found = comparison.records.filter(pl.col("status").cast(pl.String) == "origin").collect()
        found = without_other_ranks(found, comparison.records)
        slots = comparison.records.select(pl.col("slot").cast(pl.String).unique()).collect()["slot"]
    basis = Basis.NOISE if comparison.content.tolerance.is_measured else Basis.BOUND
    stacks = comparison.content.stacks
    has_local = "local" in slots.to_list()
    with as_written(table, remedy=AGAIN):
        rows = [JudgedRow.from_columns(row) for row in found.iter_rows(named=True)]
    made = [_origin(row, basis, stacks, has_local=has_local) for row in rows]
    shown: dict[tuple[Stage, str, int], set[int]] = {}
    for origin in made:
        shown.setdefault((origin.stage, origin.module, origin.step), set()).add(origin.rank)
    made = [replace(o, ranks=tuple(sorted(shown[o.stage, o.module, o.step]))) for o in made]
    return sorted(made, key=lambda origin: likelihood(origin.score, origin.step, origin.order))


def likelihood(score: float, step: int, order: int) -> tuple[bool, int, int]:
    """Sorts origins: what is clearly beyond every explanation first, then by time."""
    return score < CLEAR_ORIGIN, step, order


def score_of_origin(
    *,
    rel_l2: float | None,
    tolerance: float | None,
    score: float | None,
    gain: float | None,
    error_in: float | None,
) -> float:
    """Error over the larger of the tolerance and what came in explains."""
    if rel_l2 is None:
        return math.inf
    if score is not None and tolerance is not None and rel_l2 <= tolerance:
        return float(score)  # a common factor below the noise in size (rules/common_factor.py)
    explained = (gain or 0.0) * (error_in or 0.0)
    allowed = max(tolerance or 0.0, explained)
    if math.isinf(allowed):
        return float(score or 0.0)
    return math.inf if allowed == 0 else float(rel_l2) / allowed


def stage_of_row(row: JudgedRow, *, has_local: bool = True) -> Stage:
    """The stage of a diagnosis a record belongs to; ``has_local``: gradients were seen before reduction."""
    if row.phase == "forward":
        if not row.is_from_outside:
            return Stage.FORWARD
        return Stage.DATA if row.kind == "module" else Stage.LOSS  # a function around the models: no batch
    if row.phase == "param_grad":
        before = row.slot == "local" or (row.slot == "accumulated" and not has_local)
        return Stage.BACKWARD if before else Stage.REDUCTION
    if row.phase == "loss" and row.slot.startswith(("labels", "mask", "targets")):
        return Stage.DATA
    stages = {"param": Stage.WEIGHTS, "loss": Stage.LOSS, "backward": Stage.BACKWARD}
    stages |= {"collective": Stage.REDUCTION, "optimizer": Stage.OPTIMIZER}
    return stages.get(row.phase, Stage.FORWARD)


def _origin(
    row: JudgedRow, basis: Basis, stacks: Mapping[str, Sequence[Sequence[str]]], *, has_local: bool
) -> Origin:
    stage = stage_of_row(row, has_local=has_local)
    named = row.name if stage in (Stage.REDUCTION, Stage.OPTIMIZER) else row.owner
    score = score_of_origin(
        rel_l2=row.rel_l2, tolerance=row.tolerance, score=row.score, gain=row.gain, error_in=row.error_in
    )
    return Origin(
        stage=stage,
        module=named or "",
        site=row.site,
        phase=row.phase,
        slot=row.slot,
        step=row.step,
        rank=row.rank,
        microbatch=row.microbatch,
        order=row.order,
        score=score,
        rel_l2=row.rel_l2,
        tolerance=row.tolerance,
        bias_z=_bias(row),
        from_equals=row.rel_l2 is not None and row.error_in == 0 and row.inputs_equal is not None,
        basis=basis,
        target_record=row.target_record,
        reference_record=row.reference_record,
        source=_source(row.target_stack, stacks.get("target", ())),
        reference_source=_source(row.reference_stack, stacks.get("reference", ())),
        evidence=tuple(why_origin(row)),
    )


def why_origin(row: JudgedRow) -> list[Reason]:
    """Why this record is called an origin."""
    found = []
    counted = row.not_finite_apart
    known = row.rel_l2 is not None and not row.is_from_outside
    if row.inputs_equal is not None and not row.error_in and (known or counted is not None):
        code = EvidenceCode.INPUTS_BIT_IDENTICAL if row.inputs_equal else EvidenceCode.INPUTS_AGREE
        found.append(Reason(code) if counted is not None else reason(code, rel_l2=row.rel_l2))
    elif known and row.gain is not None:
        explained = row.gain * (row.error_in or 0.0)
        facts = {"error_in": row.error_in, "gain": row.gain, "explained": explained, "rel_l2": row.rel_l2}
        found.append(reason(EvidenceCode.INPUTS_EXPLAIN, **facts))
    if row.reason is not None and counted is None:
        found.append(row.reason)
    return found


def _bias(row: JudgedRow) -> float | None:
    """How many standard errors the common factor is from 1; None without stored values."""
    if row.evidence != "values" or row.scale is None or row.residual is None:
        return None
    spread = row.residual * abs(row.scale) / math.sqrt(max(row.numel, 1))
    apart = abs(row.scale - 1.0)
    return apart / spread if spread > 0 else (math.inf if apart > 0 else 0.0)


def _source(number: int | None, stacks: Sequence[Sequence[str]]) -> str | None:
    if number is None or not 0 <= number < len(stacks) or not stacks[number]:
        return None
    found = _FRAME.match(stacks[number][0])
    return found["place"] if found else None
