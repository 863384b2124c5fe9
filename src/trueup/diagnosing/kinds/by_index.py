"""Factors that differ from row to row, token to token or feature to feature, and leave nothing else.

Where each row of a batch is its own multiple of the reference's, the loss weighs rows otherwise (or a row's
tokens were counted); where each token's vector is, it was normalised otherwise; where each feature is, and
its factors are (c + w) / (d + w) of a weight w beside it, that weight was applied with another constant, once
more, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.fitting import roundoff_of
from trueup.diagnosing.kinds.routing import MAX_CHOSEN, MAX_EXPERTS, scores_of
from trueup.diagnosing.kinds.rule import Found, origin_reason
from trueup.diagnosing.kinds.solved import Solved
from trueup.diagnosing.kinds.thresholds import (
    CLOSE_ROUNDINGS,
    FAR_ROUNDINGS,
    LAW_POWER,
    LAW_ROUNDINGS,
    LAW_ROWS,
    MANY_NUMBERS,
)
from trueup.diagnosing.kinds.token_weights import weighted_otherwise
from trueup.numerics.dtypes import DTYPES
from trueup.types.arrays import Floats
from trueup.types.codes.kinds import CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindCode, Stage
from trueup.types.reason import Number, Place

OFFSETS = (0.0, 1.0, 2.0)
"""what programs add to a weight before they multiply by it"""


def index_fault(evidence: Evidence) -> Solved | None:
    """What the factors of rows, tokens or features tell; None where they are one factor, or leave more than
    rounding."""
    of_loss = evidence.origin.stage is Stage.LOSS and evidence.origin.phase == "loss"
    near = CLOSE_ROUNDINGS * (_coarsest(evidence) if of_loss else roundoff_of(evidence))
    weighted = weighted_otherwise(evidence, _coarsest(evidence))
    if weighted is not None:
        return weighted
    for t, r in _tensors(evidence):
        features = _factors(np.moveaxis(t, -1, 0), np.moveaxis(r, -1, 0), near)
        if features is not None:
            found = _of_weight(evidence, features, near)
            if found is not None:
                return found
        rows = _factors(t, r, near) if t.ndim > 2 else None
        if rows is not None:
            code = KindReason.SENT_BACK_PER_ROW if of_loss else KindReason.SCALED_PER_ROW
            law = _power_of_input(evidence, rows, near) if of_loss else {}
            solved = _solved(evidence, KindCode.WRONG_SCALE, code, **_range(rows), **law)
            weighs = replace(solved.found, causes=(CauseCode.WEIGHTS_OF_ROWS,))
            return replace(solved, found=weighs) if of_loss else solved
        vectors = _factors(t.reshape(-1, t.shape[-1]), r.reshape(-1, r.shape[-1]), near)
        if vectors is not None and evidence.origin.stage is not Stage.LOSS and not _is_norm(evidence):
            return _of_vectors(evidence, vectors, t, r, near)
    return None


def _is_norm(evidence: Evidence) -> bool:
    """Whether a norm made it: its own rule reads eps, variance and form from how vectors are scaled."""
    return "norm" in (evidence.surroundings.type or "").lower()


def _tensors(evidence: Evidence) -> Iterator[tuple[Floats, Floats]]:
    """The origin's tensor; of a loss the gradients that it sends back."""
    t, r = evidence.target_values, evidence.reference_values
    if t is not None and r is not None and t.ndim > 1:
        yield from _usable(t, r)
    elif evidence.origin.stage is Stage.LOSS:
        for microbatch, sent in evidence.target_run.sent_back.items():
            other = evidence.reference_run.sent_back.get(microbatch)
            if other is not None:
                yield from _usable(sent, other)


def _coarsest(evidence: Evidence) -> float:
    """Unit roundoff of the coarsest dtype in the step: what a loss sends back may have gone through it."""
    held = evidence.target_run.dtypes | evidence.reference_run.dtypes
    return max((DTYPES[name].eps for name in held if _is_float(name)), default=roundoff_of(evidence))


def _is_float(name: str) -> bool:
    return name in DTYPES and DTYPES[name].kind == "float"


def _usable(t: Floats, r: Floats) -> Iterator[tuple[Floats, Floats]]:
    if t.shape == r.shape and min(t.shape) > 0 and np.isfinite(t).all() and np.isfinite(r).all():
        yield t, r


@dataclass(frozen=True, slots=True, kw_only=True)
class _Factors:
    """Of each index along the first dimension; NaN where the reference has zeros alone."""

    values: Floats

    @property
    def known(self) -> Floats:
        """Without those."""
        return self.values[~np.isnan(self.values)]


def _factors(t: Floats, r: Floats, near: float) -> _Factors | None:
    """The factor of each index; None where one leaves more than rounding, or all are one factor."""
    a, b = (x.reshape(len(x), -1).astype(np.float64) for x in (t, r))
    square = np.square(b).sum(axis=1)
    some = square > 0
    free = int(some.sum()) * (a.shape[1] - 1)
    if some.sum() < 2 or free < MANY_NUMBERS or np.any(a[~some]):
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.where(some, (a * b).sum(axis=1) / square, np.nan)
    rest = np.sqrt(np.square(a[some] - values[some, None] * b[some]).sum(axis=1))
    if (rest > near * np.sqrt(np.square(a[some]).sum(axis=1))).any():
        return None
    spread = np.abs(values[some] - np.median(values[some])).max()
    least = FAR_ROUNDINGS / CLOSE_ROUNDINGS * near
    return _Factors(values=values) if spread > least * np.abs(values[some]).max() else None


def _range(factors: _Factors) -> dict[str, float]:
    known = factors.known
    return {"low": float(known.min()), "high": float(known.max()), "num": len(known)}


def _power_of_input(evidence: Evidence, factors: _Factors, near: float) -> dict[str, Number | Place]:
    """A number that the model is given for each row (a noise level), of which the rows' factors are one
    multiple of one power; nothing where none is, or several are."""
    f, found = factors.values, list[dict[str, Number | Place]]()
    given = evidence.reference_run.row_inputs.get(evidence.origin.microbatch or 0, {})
    for slot, x in given.items():
        if len(x) != len(f) or len(f) < LAW_ROWS or not (f > 0).all() or not (x > 0).all():
            continue
        logs, held = np.log(f), np.log(x)
        if np.ptp(held) <= near:
            continue
        power = round(2 * float(np.polyfit(held, logs, 1)[0])) / 2
        times = logs - power * held
        if power and abs(power) <= LAW_POWER and np.ptp(times) <= LAW_ROUNDINGS / CLOSE_ROUNDINGS * near:
            found.append({"name": slot, "power": power, "times": float(np.exp(times.mean()))})
    return found[0] if len(found) == 1 else {}


# -- features ------------------------------------------


def _of_weight(evidence: Evidence, factors: _Factors, near: float) -> Solved | None:
    """The weight whose entries, with a constant on either side, give the factors of the features."""
    known = ~np.isnan(factors.values)
    for name, weight in _weights(evidence, len(factors.values)):
        for target, reference in permutations((*OFFSETS, None), 2):
            with np.errstate(divide="ignore", invalid="ignore"):
                wanted = _applied(weight, target) / _applied(weight, reference)
            apart = np.abs(factors.values - wanted) > 2 * near * np.maximum(np.abs(wanted), 1.0)
            if not apart[known].any():
                return _constants_differ(evidence, name, target, reference)
    return None


def _applied(weight: Floats, offset: float | None) -> Floats:
    return np.ones_like(weight) if offset is None else offset + weight


def _constants_differ(
    evidence: Evidence, name: str, target: float | None, reference: float | None
) -> Solved | None:
    if target is not None and reference is not None:
        if target + reference == 1.0 and _is_norm(evidence):
            return None  # a form of norms, which the rule of their constants names
        facts: dict[str, Number | Place] = {"target": target, "reference": reference, "weight": name}
        return _solved(evidence, KindCode.CONSTANT_ARGUMENT, KindReason.WEIGHT_OFFSET, **facts)
    side, offset = ("reference", reference) if target is None else ("target", target)
    facts = {"side": side, "offset": offset or 0.0, "weight": name}
    return _solved(evidence, KindCode.MISSING_OR_EXTRA_TERM, KindReason.WEIGHT_OF_ONE_SIDE, **facts)


def _weights(evidence: Evidence, width: int) -> Iterator[tuple[str, Floats]]:
    around = evidence.surroundings
    for pair in (*around.inputs, *around.parameters, *around.nearby):
        known = pair.given
        if known is None or known.shape != (width,) or not known.is_floating:
            continue
        values = known.values()
        if values is not None and np.ptp(values) > 0:
            yield pair.slot.rpartition(".")[2], values


# -- vectors ------------------------------------------


def _of_vectors(evidence: Evidence, factors: _Factors, t: Floats, r: Floats, near: float) -> Solved:
    """Every token its own factor: where one side's vectors sum to 1 (or have a length of 1), the other side
    left that out."""
    for norm in (KindReason.SUMS_TO_ONE, KindReason.LENGTH_OF_ONE):
        target, reference = (_sizes(values, norm, near) for values in (t, r))
        unit = target.are_one, reference.are_one
        if unit[0] == unit[1]:
            continue
        own, other = (target, reference) if unit[0] else (reference, target)
        if np.median(np.abs(other.values - 1.0)) > own.uncertain.max():
            facts: dict[str, Number | Place] = {
                "side": "target" if unit[0] else "reference",
                "low": float(other.values.min()),
                "high": float(other.values.max()),
            }
            left_out = _solved(evidence, KindCode.MISSING_OR_EXTRA_TERM, norm, **facts)
            causes = (CauseCode.STEP_OF_COMPUTATION,)
            return replace(left_out, found=replace(left_out.found, causes=causes))
    side = _not_normalised(evidence, factors, near)
    if side is not None:
        over = {"target": "chosen", "reference": "chosen", side: "none"}
        return _solved(evidence, KindCode.MISSING_OR_EXTRA_TERM, KindReason.ROUTER_NORMALISED, **over)
    return _solved(evidence, KindCode.WRONG_SCALE, KindReason.SCALED_PER_TOKEN, **_range(factors))


def _not_normalised(evidence: Evidence, factors: _Factors, near: float) -> str | None:
    """The side that does not divide the weights of the chosen experts by their sum: each token's factor is
    that sum, of the largest scores of logits at hand, or 1 over it."""
    known = ~np.isnan(factors.values)
    for pair in evidence.surroundings.nearby:
        logits = pair.given
        if not pair.agree or logits is None or not logits.is_floating or len(logits.shape) < 2:
            continue
        if not 1 < logits.shape[-1] <= MAX_EXPERTS or logits.numel != len(known) * logits.shape[-1]:
            continue
        values = logits.values()
        if values is None or not np.isfinite(values).all():
            continue
        rows = values.reshape(-1, logits.shape[-1])
        for name in ("softmax", "sigmoid"):
            sums = np.cumsum(-np.sort(-scores_of(name, rows), axis=1), axis=1)[known, :MAX_CHOSEN]
            for side, wanted in (("target", sums), ("reference", 1.0 / sums)):
                off = np.abs(factors.values[known, None] / wanted - 1.0)
                if (off.max(axis=0) <= 2 * near).any():
                    return side
    return None


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Of each vector."""

    values: Floats
    uncertain: Floats
    """by which rounding of its entries may have changed each"""

    @property
    def are_one(self) -> bool:
        """All of them, up to rounding."""
        return bool((np.abs(self.values - 1.0) <= self.uncertain).all())


def _sizes(values: Floats, norm: KindReason, near: float) -> _Sizes:
    """Sums or lengths; each entry is rounded by ``near`` times itself at most."""
    flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
    if norm is KindReason.SUMS_TO_ONE:
        return _Sizes(flat.sum(axis=1), near * np.abs(flat).sum(axis=1))
    lengths = np.sqrt(np.square(flat).sum(axis=1))
    return _Sizes(lengths, near * lengths)


def _solved(evidence: Evidence, kind: KindCode, code: KindReason, **facts: Number | Place) -> Solved:
    found = Found(
        rank=EvidenceRank.EVERY_ELEMENT, measure=1.0, sentence=origin_reason(evidence, code, **facts)
    )
    return Solved(kind=kind, found=found)
