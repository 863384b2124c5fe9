"""Stage: did both runs start from the same weights, and if not, how do they differ?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.naming import described, kind_named, place_of
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.diagnosing.stages.weight_change import Change
from trueup.diagnosing.stages.weight_ranks import Whose, cut_along, over_ranks, sorted_out
from trueup.diagnosing.stepbook import WEIGHT, StepBook
from trueup.types.finding import Finding, Stage


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
        equal, apart, open_ = sorted_out(mine, theirs, pairs)
        whose: dict[str, Whose] = {}
        if context.mesh.wide_axes:
            equal, apart, whose = over_ranks(equal, apart, context)
        elif context.layout.wide_axes:
            whose = cut_along(apart, context.layout)
        common: dict[str, Any] = {"stage": self.stage, "title": self.title}
        lone = [f for f in mine.parameters if f not in context.matched]
        extra = (
            (f"{len(lone)} parameters of the target have no counterpart: {', '.join(lone[:4])}",)
            if lone
            else ()
        )
        ties = ties_that_differ(context)
        if apart or ties:
            findings = (*_findings(apart, mine, whose), *(_tie_finding(*tie, mine) for tie in ties))
            findings = (*_drawn_after(context, mine, theirs, apart), *findings)
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
    apart: Sequence[tuple[str, str, Change]], mine: StepBook, whose: dict[str, Whose]
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
                axis=whose[names[0]].axis if names[0] in whose else None,
                ranks=whose[names[0]].ranks if names[0] in whose else (),
            )
        )
    return tuple(found)


def _drawn_after(
    context: Context, mine: StepBook, theirs: StepBook, apart: Sequence[tuple[str, str, Change]]
) -> list[Finding]:
    """A parameter that one run lacks, before all that differ: for it later draws are others."""
    if not apart or context.bridge is not None:
        return []
    found: list[tuple[int, str, str]] = []
    sides = (
        ("target", mine, set(context.matched), {fqn for fqn, _, _ in apart}),
        ("reference", theirs, set(context.matched.values()), {other for _, other, _ in apart}),
    )
    for side, book, paired, differ in sides:
        order = {name: place for place, name in enumerate(book.parameters)}
        first = min(order[name] for name in differ)
        found += [(order[name], name, side) for name in order if name not in paired and order[name] < first]
    if not found:
        return []
    _, name, side = min(found)
    lacks = "reference" if side == "target" else "target"
    said = (
        f"the {side} alone has the parameter {name}; {apart[0][0]} is the first weight after it that differs"
    )
    kind = kind_named("missing_or_extra_term", 0.9, said, causes=(f"a model of the {lacks} without {name}",))
    return [
        Finding(
            stage=Stage.WEIGHTS,
            headline=f"The {lacks} has no parameter {name}; the weights drawn after it differ.",
            module=name.rpartition(".")[0],
            site=f"{name} · value",
            phase="param",
            step=mine.step,
            rank=mine.rank,
            kinds=(kind,),
            confidence=0.98,
            evidence=(said, f"{len(apart)} of {len(mine.parameters)} weights differ"),
            causes=kind.causes,
            next_note=f"build both models with {name}, or both without",
        )
    ]


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
