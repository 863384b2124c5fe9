"""The origins a comparison found, read from its result, most likely first."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from trueup.comparing.other_ranks import without_other_ranks
from trueup.comparing.result import open_comparison
from trueup.types import Basis, Origin, Stage

SURE = 2.0
"""an origin this many times over what explains it stands before all that are less"""
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
    found = comparison.records.filter(pl.col("status").cast(pl.String) == "origin").collect()
    found = without_other_ranks(found, comparison.records)
    measured = str(comparison.summary.get("tolerance", {}).get("origin", "")).startswith("measured")
    stacks = comparison.summary.get("stacks") or {}
    basis = Basis.NOISE if measured else Basis.BOUND
    slots = comparison.records.select(pl.col("slot").cast(pl.String).unique()).collect()["slot"]
    has_local = "local" in slots.to_list()
    made = [_origin(row, basis, stacks, has_local=has_local) for row in found.iter_rows(named=True)]
    shown: dict[tuple[Stage, str, int], set[int]] = {}
    for origin in made:
        shown.setdefault((origin.stage, origin.module, origin.step), set()).add(origin.rank)
    made = [replace(o, ranks=tuple(sorted(shown[o.stage, o.module, o.step]))) for o in made]
    return sorted(made, key=lambda origin: likelihood(origin.score, origin.step, origin.order))


def likelihood(score: float, step: int, order: int) -> tuple[bool, int, int]:
    """Sorts origins: what is clearly beyond every explanation first, then by time."""
    return score < SURE, step, order


def score_of_row(row: dict[str, Any]) -> float:
    """Error over the larger of the tolerance and what came in explains."""
    error, tolerance = row["rel_l2"], row["tolerance"]
    if error is None:
        return math.inf
    if row["score"] is not None and tolerance is not None and error <= tolerance:
        return float(row["score"])  # a common factor below the noise in size (coherence.py)
    explained = (row["gain"] or 0.0) * (row["error_in"] or 0.0)
    allowed = max(tolerance or 0.0, explained)
    if math.isinf(allowed):
        return float(row["score"] or 0.0)
    return math.inf if allowed == 0 else float(error) / allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFinite:
    """How many NaN, or infinities of one sign, the two sides hold."""

    what: str
    target: int
    reference: int

    @property
    def side(self) -> str:
        """The one that holds more."""
        return "target" if self.target > self.reference else "reference"


def not_finite_apart(row: dict[str, Any]) -> NotFinite | None:
    """NaN, else infinities, of which a record's two sides do not hold as many; None where they do."""
    for column, what in (("num_nan", "NaN"), ("num_posinf", "+Inf"), ("num_neginf", "-Inf")):
        target, reference = row.get(f"target_{column}"), row.get(f"reference_{column}")
        if target is not None and reference is not None and target != reference:
            return NotFinite(what=what, target=int(target), reference=int(reference))
    return None


def is_from_outside(row: dict[str, Any]) -> bool:
    """Whether the record is what the program gave the model."""
    return row["owner"] is None and str(row["phase"]) == "forward" and str(row["slot"]).startswith("input")


def stage_of_row(row: dict[str, Any], *, has_local: bool = True) -> Stage:
    """The stage of a diagnosis a record belongs to; ``has_local``: gradients were seen before reduction."""
    phase, slot = str(row["phase"]), str(row["slot"])
    if phase == "forward":
        return Stage.DATA if is_from_outside(row) else Stage.FORWARD
    if phase == "param_grad":
        before = slot == "local" or (slot == "accumulated" and not has_local)
        return Stage.BACKWARD if before else Stage.REDUCTION
    if phase == "loss" and slot.startswith(("labels", "mask")):
        return Stage.DATA
    stages = {"param": Stage.WEIGHTS, "loss": Stage.LOSS, "backward": Stage.BACKWARD}
    stages |= {"collective": Stage.REDUCTION, "optimizer": Stage.OPTIMIZER}
    return stages.get(phase, Stage.FORWARD)


def _origin(row: dict[str, Any], basis: Basis, stacks: dict[str, Any], *, has_local: bool) -> Origin:
    stage = stage_of_row(row, has_local=has_local)
    named = str(row["name"]) if stage in (Stage.REDUCTION, Stage.OPTIMIZER) else row["owner"]
    return Origin(
        stage=stage,
        module=named or "",
        site=str(row["site"]),
        phase=str(row["phase"]),
        slot=str(row["slot"]),
        step=int(row["step"]),
        rank=int(row["rank"]),
        microbatch=row["microbatch"],
        order=int(row["order"]),
        score=score_of_row(row),
        rel_l2=row["rel_l2"],
        tolerance=row["tolerance"],
        bias_z=_bias(row),
        from_equals=row["rel_l2"] is not None and row["error_in"] == 0,
        basis=basis,
        target_record=row["target_record"],
        reference_record=row["reference_record"],
        source=_source(row, stacks, "target"),
        reference_source=_source(row, stacks, "reference"),
        evidence=tuple(said_of_row(row)),
    )


def said_of_row(row: dict[str, Any]) -> list[str]:
    """Why this record is called an origin."""
    said = []
    error, entered, gain = row["rel_l2"], row["error_in"], row["gain"]
    known = error is not None and not is_from_outside(row)
    counted = not_finite_apart(row)
    if counted is not None and not entered:
        said.append("what it was made from is equal bit for bit")
    elif known and not entered:
        said.append(f"what it was made from is equal bit for bit, yet it differs by {error:.3g}")
    elif known and gain is not None:
        said.append(
            f"what it was made from differs by {entered:.3g} at most; passed on {gain:.3g}-fold, that "
            f"explains {gain * entered:.3g} of {error:.3g}"
        )
    if row["reason"] and counted is None:
        said.append(str(row["reason"]))
    return said


def _bias(row: dict[str, Any]) -> float | None:
    """How many standard errors the common factor is from 1; None without stored values."""
    if str(row["evidence"]) != "values" or row["scale"] is None or row["residual"] is None:
        return None
    numel = math.prod(json.loads(str(row["reference_shape"]) or "[]"))
    spread = float(row["residual"]) * abs(float(row["scale"])) / math.sqrt(max(numel, 1))
    apart = abs(float(row["scale"]) - 1.0)
    return apart / spread if spread > 0 else (math.inf if apart > 0 else 0.0)


def _source(row: dict[str, Any], stacks: dict[str, Any], side: str) -> str | None:
    number = row[f"{side}_stack"]
    frames = (stacks.get(side) or []) if number is not None else []
    if number is None or not 0 <= number < len(frames) or not frames[number]:
        return None
    found = _FRAME.match(frames[number][0])
    return found["place"] if found else None
