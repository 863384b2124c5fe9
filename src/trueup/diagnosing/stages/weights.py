"""Stage: did both runs start from the same weights, and if not, how do they differ?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile

from trueup.comparing.attributes import INITIAL
from trueup.comparing.ties import TieApart
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.forward import precision_findings
from trueup.diagnosing.stages.naming import described, kind_named, place_of, site_of
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.diagnosing.stages.weight_change import WeightChange
from trueup.diagnosing.stages.weight_ranks import Sorted, Whose, cut_along, over_ranks, sorted_out
from trueup.diagnosing.thresholds import SAMPLES_FEWEST
from trueup.store import StepView
from trueup.store.view import LOCAL, WEIGHT
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes import WeightsCode as Weights
from trueup.types.finding import Basis, EvidenceRank, Finding, Kind, Stage
from trueup.types.reason import Reason, reason


class WeightsStage:
    """Parameters at the start of the first captured step."""

    stage = Stage.WEIGHTS
    title = reason(Stages.TITLE, key="weights")

    # In one piece: one branch an answer, and what each is made of.
    def check(self, context: Context) -> StageOutcome:
        """Compare digests, and where they differ the values."""
        target, reference = context.pair()
        pairs = [
            (fqn, other)
            for fqn, other in context.matched.items()
            if target.parameter(fqn, *WEIGHT) is not None
        ]
        found = sorted_out(target, reference, pairs, context.rounded_weights)
        whose = _whose(found, context)
        equal, apart, rounded = found.equal, found.apart, list(found.rounded.values())
        outcome = partial(StageOutcome, stage=self.stage, title=self.title)
        lone = [f for f in target.parameters if f not in context.matched]
        extra = (reason(Weights.UNMATCHED, num=len(lone), names=lone),) if lone else ()
        ties = context.ties
        lead = [
            *_parametrized_in_one(context, target, reference),
            *precision_findings(context, Stage.WEIGHTS),
            *(one.finding(target) for one in context.crossed),
        ]
        trained = [] if apart else _trained_in_one(context, target, reference)
        if apart or ties or trained or lead:
            shapes = _shapes(context)
            findings = (
                *_findings(apart, target, shapes, whose),
                *(_tie_finding(tie, target) for tie in ties),
            )
            findings = tuple(
                _loaded_in_one(_by_setting(one, context, target), apart, target) for one in findings
            )
            drawn = _drawn_after(context, target, reference, apart, len(shapes))
            findings = (*lead, *drawn, *trained, *findings)
            return outcome(
                status=StageStatus.FAILED,
                conclusion=findings[0].headline,
                evidence=(reason(Weights.NUM_EQUAL, num=len(equal), total=len(pairs)), *extra),
                findings=findings,
                confirmed=True,
                details={"apart": [fqn for fqn, _, _ in apart]},
            )
        if not equal and not rounded:
            why = reason(Stages.NOTHING_RECORDED, what="weight")
            if any(reference.parameter(other, *WEIGHT) is not None for _, other in pairs):  # without digests
                why = reason(Weights.SOME_EQUAL, num=0, open=len(found.open))
            return outcome(status=StageStatus.UNDECIDED, conclusion=why, evidence=(*found.open[:3], *extra))
        if found.open or lone:
            some = reason(Weights.SOME_EQUAL, num=len(equal), open=len(found.open) + len(lone))
            evidence = (*found.open[:3], *extra)
            return outcome(status=StageStatus.PASSED, conclusion=some, evidence=evidence)
        every = reason(Weights.ALL_EQUAL, num=len(equal))
        by_dtypes = Counter(rounded).most_common()
        roundings = [
            reason(Weights.WITHIN_ROUNDING, num=num, equal=len(equal), target=own, reference=other)
            for (own, other), num in by_dtypes
        ]
        evidence = (*roundings[1:], *extra)
        return outcome(
            status=StageStatus.PASSED, conclusion=(*roundings, every)[0], evidence=evidence, confirmed=True
        )


def _whose(found: Sorted, context: Context) -> dict[str, Whose]:
    """The ranks, or the axis, of what differs; adds what other ranks show."""
    if context.mesh.wide_axes:
        return over_ranks(found, context)
    return cut_along(found.apart, context.layout) if context.layout.wide_axes else {}


def _rank_of(change: WeightChange) -> EvidenceRank:
    """A change that a formula describes, against one that nothing describes."""
    return EvidenceRank.SOME if change.name == "unknown" else EvidenceRank.FITTED


def _shapes(context: Context) -> dict[str, Sequence[int]]:
    """Of the parameters of all ranks: those of a pipeline's stages are others."""
    books = [context.pair(0, rank)[0] for rank in context.ranks]
    return {fqn: book.shape(book.parameter(fqn, *WEIGHT)) or () for book in books for fqn in book.parameters}


def _findings(
    apart: Sequence[tuple[str, str, WeightChange]],
    target: StepView,
    shapes: Mapping[str, Sequence[int]],
    whose: dict[str, Whose],
) -> tuple[Finding, ...]:
    """One finding a way of differing, most parameters first; what no other order of draws makes comes before
    weights that are other draws of one distribution."""
    groups: dict[str | Reason, list[tuple[str, str, WeightChange]]] = {}
    for entry in apart:
        change = entry[2]
        groups.setdefault(change.evidence if change.name in ("scaled", "number") else change.name, []).append(
            entry
        )
    members = sorted(groups.values(), key=len, reverse=True)
    members.sort(key=lambda some: some[0][2].name in ("other_draw", "unknown"))
    altered = _altered_before_draws(members, target)
    if altered is None:
        return tuple(_finding(some, target, shapes, whose) for some in members)
    first, drawn = altered
    order = {name: place for place, name in enumerate(target.parameters)}
    places = {fqn: order.get(fqn, 0) for fqn, _, _ in apart}
    last = max(
        (fqn for fqn in places if places[fqn] < places[drawn]), key=places.__getitem__, default=first[0][0]
    )
    following = min(
        (fqn for fqn in places if places[fqn] > places[last]), key=places.__getitem__, default=None
    )
    after = () if following is None else (reason(Weights.DRAWN_AFTER, parameter=last, first=following),)
    found = [
        _finding(some, target, shapes, whose) for some in sorted(members, key=lambda one: one is not first)
    ]
    return replace(found[0], evidence=(*found[0].evidence, *after)), *found[1:]


def _altered_before_draws(
    members: list[list[tuple[str, str, WeightChange]]], target: StepView
) -> tuple[list[tuple[str, str, WeightChange]], str] | None:
    """The group of the first weight that differs, and the first that is another draw, where all that are
    other draws come after it: whatever drew numbers there has moved all later draws."""
    order = {name: place for place, name in enumerate(target.parameters)}
    drawn = [fqn for some in members for fqn, _, change in some if change.name == "other_draw"]
    others = [some for some in members if some[0][2].name != "other_draw"]
    if not drawn or not others:
        return None
    sized = [some for some in others if some[0][2].name == "shape"]
    if sized:  # it takes other numbers, and a library may draw all weights anew after it is built
        return sized[0], min(drawn, key=lambda fqn: order.get(fqn, 0))
    first = min(others, key=lambda some: min(order.get(fqn, 0) for fqn, _, _ in some))
    place = min(order.get(fqn, 0) for fqn, _, _ in first)
    if any(order.get(fqn, 0) < place for fqn in drawn):
        return None
    return first, min(drawn, key=lambda fqn: order.get(fqn, 0))


def _finding(
    members: list[tuple[str, str, WeightChange]],
    book: StepView,
    shapes: Mapping[str, Sequence[int]],
    whose: dict[str, Whose],
) -> Finding:
    names = [fqn for fqn, _, _ in members]
    change = members[0][2]
    one_by_one = [reason(Weights.OF_PARAMETER, c.evidence, parameter=fqn) for fqn, _, c in members[:4]]
    headline = reason(
        Weights.DIFFER,
        *((change.evidence,) if change.name == "number" and len(names) == 1 else ()),
        parameters=described(names, shapes),
        way=change.name,
        factor=change.evidence.number("factor"),
    )
    ranks = whose.get(names[0], Whose())
    codes = _CAUSES.get(change.name, (Weights.CHANGED_CAUSE,))
    if change.name == "related" and (change.evidence.number("correlation") or 0.0) < 0:
        codes = (Weights.INIT_CAUSE,)  # a mean, a sum or a part of numbers has them with their sign
    causes = tuple(map(reason, codes))
    same_size = all(one.same_size for _, _, one in members)
    kind = kind_named(
        change.kind, _rank_of(change), one_by_one[0], causes=causes if same_size else None, phase="param"
    )
    return Finding(
        stage=Stage.WEIGHTS,
        headline=headline,
        module=_module_of(names, shapes),
        site=site_of(names, "value"),
        phase="param",
        step=book.step,
        rank=book.rank,
        kinds=(kind,),
        basis=Basis.RECORDED,
        evidence=(reason(Weights.NUM_DIFFERENT, num=len(names), total=len(shapes)), *one_by_one),
        causes=kind.causes,
        next_note=reason(Weights.SAME_WEIGHTS),
        axis=ranks.axis,
        ranks=ranks.ranks,
    )


def _loaded_in_one(
    finding: Finding, apart: Sequence[tuple[str, str, WeightChange]], book: StepView
) -> Finding:
    """The finding of unrelated values; where they are all that is no constant below a part of the model, and
    something drawn outside of it is bit-identical, the draws went on alike: one run loaded that part."""
    others = {fqn for fqn, _, _ in apart}
    unrelated = [fqn for fqn, _, change in apart if change.name in ("other_init", "other_draw")]
    if finding.headline.place("way") != "other_init" or len(unrelated) < len(others):
        return finding
    levels = zip(*(fqn.split(".") for fqn in unrelated), strict=False)
    part = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)]
    drawn = {fqn for fqn in book.parameters if not _is_constant(book, fqn)}
    below = {fqn for fqn in drawn if fqn.split(".")[: len(part)] == part}
    if len(others) < SAMPLES_FEWEST or not part or below != others or below == drawn:
        return finding
    shown = reason(Weights.PART_UNRELATED, part=".".join(part), num=len(below), outside=len(drawn - below))
    causes = (reason(Weights.PART_LOADED_CAUSE), *finding.causes)
    kinds = tuple(replace(one, causes=causes) for one in finding.kinds)
    return replace(finding, evidence=(shown, *finding.evidence), causes=causes, kinds=kinds)


def _is_constant(book: StepView, fqn: str) -> bool:
    row = book.summary(book.parameter(fqn, *WEIGHT))
    return row is None or row["minimum"] == row["maximum"]


def _by_setting(finding: Finding, context: Context, book: StepView) -> Finding:
    """The finding, led by a setting of its module that initial weights depend on."""
    module = finding.module or ""
    facts = [context.facts(source) for source in (context.target, context.reference)]
    settings = [(of.get("settings") or {}).get(module, {}) for of in facts]
    for name in INITIAL:
        own, other = (one.get(name) for one in settings)
        if own != other and all(name in one for one in settings):
            sides = {"target": str(own), "reference": str(other)}
            sides |= {"module": module, "type": context.type_of(module)}
            setting = reason(Stages.SETTING_DIFFERS, name=name, **sides)
            kind = kind_named("constant_argument", EvidenceRank.STATED, setting)
            return replace(
                finding,
                headline=setting,
                kinds=(kind, *finding.kinds),
                causes=kind.causes,
                evidence=(finding.headline, *finding.evidence),
            )
    return finding


def _drawn_after(
    context: Context,
    target: StepView,
    reference: StepView,
    apart: Sequence[tuple[str, str, WeightChange]],
    total: int,
) -> list[Finding]:
    """A parameter that one run lacks, before all that differ: for it later draws are others."""
    if not apart or context.bridge is not None:
        return []
    found: list[tuple[int, str, str, str]] = []
    sides = (
        ("target", target, set(context.matched), {fqn for fqn, _, _ in apart}),
        ("reference", reference, set(context.matched.values()), {other for _, other, _ in apart}),
    )
    for side, book, paired, differ in sides:
        order = {name: place for place, name in enumerate(book.parameters)}
        first = min((order[name] for name in differ if name in order), default=0)  # other ranks have others
        known = list(order)
        found += [
            (order[name], name, side, known[first])
            for name in order
            if name not in paired and order[name] < first
        ]
    if not found:
        return _built_otherwise(context, target, reference, apart, total)
    _, name, side, following = min(found)
    lacks = "reference" if side == "target" else "target"
    later = reason(Weights.DRAWN_AFTER, parameter=name, first=following)
    cause = reason(Weights.BUILT_WITHOUT, side=lacks, parameter=name)
    kind = kind_named("missing_or_extra_term", EvidenceRank.FITTED, later, causes=(cause,))
    headline = reason(Weights.ONE_SIDED, parameter=name, side=side)
    evidence = later, reason(Weights.NUM_DIFFERENT, num=len(apart), total=total)
    return [_of_parameter(headline, name, kind, target, evidence, reason(Weights.BUILD_BOTH, parameter=name))]


def _of_parameter(
    headline: Reason, name: str, kind: Kind, book: StepView, evidence: tuple[Reason, ...], advice: Reason
) -> Finding:
    """Of one parameter, or of several of which it is the first."""
    return Finding(
        stage=Stage.WEIGHTS,
        headline=headline,
        module=name.rpartition(".")[0],
        site=f"{name} · value",
        phase="param",
        step=book.step,
        rank=book.rank,
        kinds=(kind,),
        basis=Basis.RECORDED,
        evidence=evidence,
        causes=kind.causes,
        next_note=advice,
    )


def _built_otherwise(
    context: Context,
    target: StepView,
    reference: StepView,
    apart: Sequence[tuple[str, str, WeightChange]],
    total: int,
) -> list[Finding]:
    """Parameters that one run alone has, where most others are other draws: a model that is built otherwise
    draws other numbers, also for weights that are made before."""
    sides = (
        ("target", target, set(context.matched)),
        ("reference", reference, set(context.matched.values())),
    )
    lone = [(side, [n for n in book.parameters if n not in paired]) for side, book, paired in sides]
    lone = [(side, names) for side, names in lone if names]
    drawn = sum(change.name == "other_draw" for *_, change in apart)
    if len(lone) != 1 or drawn * 2 < len(apart):
        return []
    ((side, names),) = lone
    return [_only_in(side, names, target, (reason(Weights.NUM_DIFFERENT, num=len(apart), total=total),))]


# In one piece: what each side has left, then which of it is trained and called in one run alone.
def _trained_in_one(context: Context, target: StepView, reference: StepView) -> list[Finding]:
    """Parameters that one run alone has and trains: of modules that the other never calls, a layer more or
    less; or of modules that both call, where the other run has none left that may be their counterparts, and
    nothing shows in what these make: a bias that begins at 0. Not where the runs agree."""
    if context.bridge is not None or context.felt is not None:
        return []
    sides = (
        ("target", target, reference, set(context.matched)),
        ("reference", reference, target, set(context.matched.values())),
    )
    left = {side: [name for name in book.parameters if name not in paired] for side, book, _, paired in sides}
    is_one_sided = not all(left.values()) and not context.ties
    first = context.steps[0][0]
    seen = {origin.module for origin in context.origins_of(Stage.FORWARD) if origin.step == first}
    lone = []
    for side, book, other, _ in sides:
        gradients = {name: book.parameter(name, *LOCAL) for name in left[side]}
        names = [name for name, at in gradients.items() if at is not None]
        modules = [name.rpartition(".")[0] for name in names]
        called = [book.named("module", module) and not other.named("module", module) for module in modules]
        trained = is_one_sided and seen.isdisjoint(modules)
        trained = trained and any(book.norm(at) for at in gradients.values() if at is not None)
        lone += [(side, names)] if any(called) or trained else []
    return [_only_in(*lone[0], target, ())] if len(lone) == 1 else []


_PARAMETRIZED = ".parametrizations."


def _parametrized_in_one(context: Context, target: StepView, reference: StepView) -> list[Finding]:
    """Weights that one run alone makes of other parameters (a weight norm, say), which it trains in their
    place. Not where the runs agree."""
    if context.bridge is not None or context.felt is not None:
        return []
    sides = {"target": set(target.parameters), "reference": set(reference.parameters)}
    found = []
    for side, other in (("target", "reference"), ("reference", "target")):
        made = {
            f"{module}.{rest.partition('.')[0]}"
            for name in sides[side] - sides[other]
            if _PARAMETRIZED in name
            for module, _, rest in (name.partition(_PARAMETRIZED),)
        }
        plain = sorted((made & sides[other]) - sides[side])
        if plain:
            headline = reason(Weights.PARAMETRIZED, side=side, num=len(plain), parameter=plain[0])
            kind = kind_named(
                "missing_or_extra_term",
                EvidenceRank.STATED,
                headline,
                causes=(reason(Weights.PARAMETRIZED_CAUSE),),
            )
            evidence = headline, reason(Weights.NAMES, side=other, names=plain)
            advice = reason(Weights.BUILD_BOTH, parameter=plain[0])
            finding = _of_parameter(headline, plain[0], kind, target, evidence, advice)
            found.append(replace(finding, site=site_of(plain, "value")))
    return found


def _only_in(side: str, names: list[str], book: StepView, evidence: tuple[Reason, ...]) -> Finding:
    lacks = "reference" if side == "target" else "target"
    cause = reason(Weights.BUILT_WITHOUT, side=lacks, parameter=names[0])
    headline = reason(
        Weights.ONLY_IN, side=side, num=len(names), parameter=names[0], drawn_otherwise=bool(evidence)
    )
    kind = kind_named("missing_or_extra_term", EvidenceRank.STATED, headline, causes=(cause,))
    evidence_with_names = reason(Weights.NAMES, side=side, names=names), *evidence
    return _of_parameter(
        headline, names[0], kind, book, evidence_with_names, reason(Weights.BUILD_BOTH, parameter=names[0])
    )


def _module_of(names: Sequence[str], shapes: Mapping[str, object]) -> str:
    place = place_of(names, shapes) or ""
    return place.rpartition(".")[0] if place in names else place


# -- shared weights ------------------------------------------


def _tie_finding(tie: TieApart, book: StepView) -> Finding:
    differs = reason(Weights.TIE, parameter=tie.parameter, **tie.sides)
    kind = kind_named(
        "missing_or_extra_term", EvidenceRank.FITTED, differs, causes=(reason(Weights.TIE_CAUSE),)
    )
    evidence = differs, reason(Weights.TIED_GRADIENT)
    return _of_parameter(differs, tie.parameter, kind, book, evidence, reason(Weights.TIE_BOTH))


_ORDER_CAUSES = (Weights.CONVERTED_CAUSE, Weights.ROW_ORDER_CAUSE)
_DRAW_CAUSES = (Weights.SEED_CAUSE, Weights.BUILD_ORDER_CAUSE, Weights.INIT_CAUSE)
_CAUSES = {
    "other_draw": _DRAW_CAUSES,
    "other_init": (Weights.INIT_CAUSE, Weights.CHANGED_CAUSE),
    "related": (Weights.RELATED_CAUSE,),
    "part_of_another_rank": (Weights.PARTS_CAUSE,),
    "own_of_ranks": (Weights.NOT_BROADCAST_CAUSE,),
    "transposed": _ORDER_CAUSES,
    "permuted": _ORDER_CAUSES,
    "halves_exchanged": _ORDER_CAUSES,
    "shape": (Weights.CONVERTED_CAUSE,),
    "whole_in_target": (Weights.CUT_CAUSE,),
    "whole_in_reference": (Weights.CUT_CAUSE,),
    "zero": (Weights.NOT_STRICT_CAUSE,),
    "exchanged": (Weights.CONVERTED_CAUSE, Weights.BUILD_ORDER_CAUSE),
    "of_another": (Weights.CONVERTED_CAUSE, Weights.BUILD_ORDER_CAUSE),
    "constant": (Weights.INIT_CAUSE, Weights.CHANGED_CAUSE),
    "part": (Weights.ROWS_SET_CAUSE, Weights.CHANGED_CAUSE),
    "scaled": (Weights.INIT_CAUSE, Weights.CHANGED_CAUSE),
    "rounded": (Weights.SAVED_ROUNDED_CAUSE, Weights.CHANGED_CAUSE),
}
"""causes of a way to differ, most likely first"""
