"""Stage: did both runs start from the same weights, and if not, how do they differ?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.naming import described, kind_named, place_of
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.diagnosing.stepbook import WEIGHT, Floats, StepBook
from trueup.numerics.dtypes import DTYPES, dtype_from_name
from trueup.types.finding import Finding, Stage

_EXACT = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How one weight came to differ."""

    name: str
    """``transposed permuted scaled negated rounded part other_draw zero`` and so on"""
    kind: str
    said: str


class WeightsStage:
    """Parameters at the start of the first captured step."""

    stage = Stage.WEIGHTS
    title = "Initial weights: the same on both sides"

    def check(self, context: Context) -> StageOutcome:
        """Compare digests, and where they differ the values."""
        mine, theirs = context.pair()
        pairs = [
            (fqn, other) for fqn, other in context.matched.items() if mine.parameter(fqn, *WEIGHT) is not None
        ]
        equal, apart, open_ = _sorted_out(mine, theirs, pairs)
        common: dict[str, Any] = {"stage": self.stage, "title": self.title}
        lone = [f for f in mine.parameters if f not in context.matched]
        extra = (
            (f"{len(lone)} parameters of the target have no counterpart: {', '.join(lone[:4])}",)
            if lone
            else ()
        )
        ties = ties_that_differ(context)
        if apart or ties:
            findings = (*_findings(apart, mine, theirs), *(_tie_finding(*tie, mine) for tie in ties))
            evidence = (f"{len(equal)} of {len(pairs)} weights are equal bit for bit", *extra)
            return StageOutcome(
                **common,
                status=StageStatus.FAILED,
                said=findings[0].headline,
                evidence=evidence,
                findings=findings,
                confirmed=True,
                details={"apart": [fqn for fqn, _, _ in apart]},
            )
        if not equal:
            return StageOutcome(
                **common,
                status=StageStatus.UNDECIDED,
                said="no weight was recorded on both sides",
                evidence=extra,
            )
        if open_ or lone:
            said = f"{len(equal)} weights are equal, of {len(open_) + len(lone)} nothing can be said."
            return StageOutcome(**common, status=StageStatus.PASSED, said=said, evidence=(*open_[:3], *extra))
        said = f"All {len(equal)} weights are equal bit for bit at the start."
        return StageOutcome(**common, status=StageStatus.PASSED, said=said, confirmed=True)


def _sorted_out(
    mine: StepBook, theirs: StepBook, pairs: list[tuple[str, str]]
) -> tuple[list[str], list[tuple[str, str, Change]], list[str]]:
    """Equal ones; differing ones with how; those of which nothing can be said."""
    equal, apart, open_ = [], [], []
    for fqn, other in pairs:
        a, b = mine.parameter(fqn, *WEIGHT), theirs.parameter(other, *WEIGHT)
        digests = mine.digest(a), theirs.digest(b)
        if None in digests:
            open_.append(f"{fqn}: no digest on one side")
        elif digests[0] == digests[1] and mine.dtype(a) == theirs.dtype(b):
            equal.append(fqn)
        else:
            change = change_of(mine.value(a), theirs.value(b), mine.dtype(a), theirs.dtype(b))
            if change is None:
                equal.append(fqn)
            else:
                apart.append((fqn, other, change))
    return equal, apart, open_


def change_of(
    target: Floats | None, reference: Floats | None, target_dtype: str | None, reference_dtype: str | None
) -> Change | None:
    """How the target's weight came from the reference's; None where only the dtype's rounding differs or
    nothing does."""
    if target is None or reference is None:
        return Change(name="unknown", kind="wrong_data", said="the digests differ; the values were not kept")
    if target.shape != reference.shape:
        return _other_shape(target, reference)
    if np.array_equal(target, reference):
        return None
    norm = float(np.linalg.norm(reference))
    gap = float(np.linalg.norm(target - reference)) / norm if norm else np.inf
    if gap <= 2 * _coarser(target_dtype, reference_dtype) and target_dtype != reference_dtype:
        return None
    for look in (_zeroed, _scaled, _turned, _permuted, _part, _rounded):
        found = look(target, reference)
        if found is not None:
            return found
    return _draw(target, reference, gap)


def _coarser(*names: str | None) -> float:
    return max(dtype_from_name(name).eps for name in names if name in DTYPES)


def _other_shape(target: Floats, reference: Floats) -> Change:
    if target.shape == reference.shape[::-1] and np.allclose(target, reference.T, rtol=_EXACT, atol=0):
        return Change(
            name="transposed", kind="transposed_or_permuted", said="it is the reference's, transposed"
        )
    said = f"shape {list(target.shape)} against {list(reference.shape)}"
    return Change(name="shape", kind="transposed_or_permuted", said=said)


def _zeroed(target: Floats, reference: Floats) -> Change | None:
    if target.any() or not reference.any():
        return None
    return Change(
        name="zero",
        kind="missing_or_extra_term",
        said="it is zero everywhere: never loaded or never initialised",
    )


def _scaled(target: Floats, reference: Floats) -> Change | None:
    square = float(np.vdot(reference, reference))
    if not square:
        return None
    factor = float(np.vdot(target, reference)) / square
    rest = float(np.linalg.norm(target - factor * reference))
    if factor == 0 or rest > 1e-5 * float(np.linalg.norm(target)) or abs(factor - 1) < 1e-6:
        return None
    if abs(factor + 1) < 1e-6:
        return Change(name="negated", kind="wrong_sign", said="it is the reference's with the other sign")
    return Change(name="scaled", kind="wrong_scale", said=f"it is {factor:.6g} times the reference's")


def _turned(target: Floats, reference: Floats) -> Change | None:
    square = target.ndim == 2 and target.shape[0] == target.shape[1]
    if square and np.array_equal(target, reference.T):
        return Change(
            name="transposed", kind="transposed_or_permuted", said="it is the reference's, transposed"
        )
    return None


def _permuted(target: Floats, reference: Floats) -> Change | None:
    if not np.array_equal(np.sort(target, axis=None), np.sort(reference, axis=None)):
        return None
    for axis, word in enumerate(("rows", "columns")[: target.ndim]):
        a, b = (np.moveaxis(v, axis, 0).reshape(v.shape[axis], -1) for v in (target, reference))
        order = [a[np.lexsort(a.T[::-1])], b[np.lexsort(b.T[::-1])]] if a.shape[1] <= 4096 else [a, b]
        if np.array_equal(*order):
            moved = int((a != b).any(axis=1).sum())
            said = f"the reference's {word} in another order ({moved} of {len(a)} moved)"
            return Change(name="permuted", kind="transposed_or_permuted", said=said)
    return Change(name="permuted", kind="transposed_or_permuted", said="the same numbers in another order")


def _part(target: Floats, reference: Floats) -> Change | None:
    """Only some rows differ: a part was not loaded."""
    if target.ndim < 2:
        return None
    rows = np.flatnonzero((target != reference).reshape(len(target), -1).any(axis=1))
    if len(rows) > len(target) // 2:
        return None
    said = f"{len(rows)} of {len(target)} rows differ, {rows[0]} to {rows[-1]}"
    return Change(name="part", kind="wrong_data", said=said)


def _rounded(target: Floats, reference: Floats) -> Change | None:
    gap = np.abs(target - reference)
    for name in ("bfloat16", "float16"):
        if np.all(
            gap
            <= 1.01 * dtype_from_name(name).eps * np.abs(reference) + dtype_from_name(name).smallest_normal
        ):
            said = f"the reference's, rounded through {name}"
            return Change(name="rounded", kind="dtype_or_rounding", said=said)
    return None


def _draw(target: Floats, reference: Floats, gap: float) -> Change:
    spreads = float(target.std()), float(reference.std())
    both = spreads[0] * spreads[1] * target.size
    close = float(np.vdot(target - target.mean(), reference - reference.mean())) / both if both else 0.0
    ratio = spreads[0] / spreads[1] if spreads[1] else np.inf
    if close > 0.9:
        return Change(
            name="near",
            kind="stale_value",
            said=f"relative difference {gap:.3g}: the same draw, trained or changed on one side only",
        )
    if abs(ratio - 1) < max(0.1, 4 / np.sqrt(2 * target.size)):
        said = (
            f"unrelated numbers of the same spread ({spreads[0]:.4g}): another seed or another order of draws"
        )
        return Change(name="other_draw", kind="randomness", said=said)
    said = f"unrelated numbers, spread {spreads[0]:.4g} against {spreads[1]:.4g}: another initialisation"
    return Change(name="other_init", kind="wrong_data", said=said)


_HEADLINES = {
    "transposed": "is transposed",
    "permuted": "is laid out in another order",
    "scaled": "is scaled",
    "negated": "has the other sign",
    "rounded": "went through a coarser dtype",
    "zero": "is zero",
    "part": "differs in a part",
    "other_draw": "comes from another random draw",
    "other_init": "is initialised in another way",
    "near": "differs a little",
    "shape": "has another shape",
    "unknown": "differs",
}


def _findings(
    apart: Sequence[tuple[str, str, Change]], mine: StepBook, theirs: StepBook
) -> tuple[Finding, ...]:
    """One finding a way of differing, most parameters first."""
    shapes = {
        fqn: (mine.summary(mine.parameter(fqn, *WEIGHT)) or {"shape": []})["shape"] for fqn in mine.parameters
    }
    groups: dict[str, list[tuple[str, str, Change]]] = {}
    for entry in apart:
        key = entry[2].name if entry[2].name not in ("scaled",) else entry[2].said
        groups.setdefault(key, []).append(entry)
    found = []
    for members in sorted(groups.values(), key=len, reverse=True):
        names = [fqn for fqn, _, _ in members]
        change = members[0][2]
        who = described(names, shapes)
        verb = _HEADLINES[change.name]
        if len(names) > 1:
            verb = (
                verb.replace("is ", "are ", 1)
                .replace("has ", "have ", 1)
                .replace("comes ", "come ", 1)
                .replace("differs", "differ", 1)
                .replace("went", "went", 1)
            )
        said = [f"{fqn}: {c.said}" for fqn, _, c in members[:4]]
        found.append(
            Finding(
                stage=Stage.WEIGHTS,
                headline=f"At the start, {who} {verb}.",
                module=_module_of(names, shapes),
                site=f"{names[0]} · value" + (f" and {len(names) - 1} more" if len(names) > 1 else ""),
                phase="param",
                step=mine.step,
                rank=mine.rank,
                kinds=(kind_named(change.kind, 0.9 if change.name != "unknown" else 0.4, said[0]),),
                confidence=0.98,
                evidence=(f"{len(names)} of {len(shapes)} weights differ", *said),
                causes=_causes(change.name),
                next_note="load the same initial weights into both runs and capture again",
            )
        )
    return tuple(found)


def _module_of(names: Sequence[str], shapes: dict[str, Any]) -> str:
    place = place_of(names, shapes) or ""
    return place.rpartition(".")[0] if place in names else place


# -- shared weights ------------------------------------------


def ties_that_differ(context: Context) -> list[tuple[str, str | None, str | None]]:
    """(parameter, what it is tied to in the target, in the reference) where the two are not the same."""
    sides = []
    for source in (context.target, context.reference):
        table = context.facts(source).get("parameters") or []
        sides.append({entry["fqn"]: entry.get("tied_to") for entry in table})
    mine, theirs = sides
    found = []
    for fqn, tied in mine.items():
        other = context.matched.get(fqn, fqn)
        there = theirs.get(other)
        wanted = None if tied is None else context.matched.get(tied, tied)
        if other in theirs and wanted != there:
            found.append((fqn, tied, there))
    return found


def _tie_finding(fqn: str, mine: str | None, theirs: str | None, book: StepBook) -> Finding:
    words = [f"one with {tied}" if tied else "a weight of its own" for tied in (mine, theirs)]
    said = f"{fqn} is {words[0]} in the target, {words[1]} in the reference"
    kind = kind_named("missing_or_extra_term", 0.9, said, causes=("weights tied on one side only",))
    return Finding(
        stage=Stage.WEIGHTS,
        headline=f"In the target {fqn} is {words[0]}, in the reference {words[1]}.",
        module=fqn.rpartition(".")[0],
        site=f"{fqn} · value",
        phase="param",
        step=book.step,
        rank=book.rank,
        kinds=(kind,),
        confidence=0.97,
        evidence=(said, "a shared weight gets the gradients of all its uses"),
        causes=kind.causes,
        next_note="tie the same weights on both sides",
    )


def _causes(name: str) -> tuple[str, ...]:
    if name in ("other_draw", "other_init"):
        return (
            "another seed",
            "modules built or initialised in another order",
            "another initialisation (spread, distribution)",
        )
    if name in ("transposed", "permuted", "shape"):
        return ("weights converted for another layout", "rows or heads in another order")
    if name in ("zero", "part"):
        return ("a checkpoint that lacks this weight, loaded without strictness",)
    return ("weights changed between loading and the first step",)
