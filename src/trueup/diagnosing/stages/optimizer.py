"""Stage: the optimizer's update, judged by what each run's optimizer did with the gradients it got."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from trueup.comparing.optimizer_settings import are_other_rules, declared, flat
from trueup.diagnosing.optimizer_fit import near_updates, roundoff_of
from trueup.diagnosing.stages.averaged import averaged_weights, master_weights
from trueup.diagnosing.stages.between_steps import frozen_that_move, moved_between
from trueup.diagnosing.stages.context import Context, counted, is_beyond, is_compared
from trueup.diagnosing.stages.decay_order import with_order_of_decay
from trueup.diagnosing.stages.from_origin import finding_from_origin
from trueup.diagnosing.stages.gaps import HALVES, ConstantGap, gaps_of, sides_of
from trueup.diagnosing.stages.handed_back import stale_findings
from trueup.diagnosing.stages.handover import handover_findings
from trueup.diagnosing.stages.naming import described, kind_named, names_listed, place_of
from trueup.diagnosing.stages.one_setting import one_a_setting
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.diagnosing.stages.schedule import (
    causes_of_apart,
    moment_findings,
    schedule_findings,
    schedulers_apart,
    stepping_findings,
)
from trueup.diagnosing.stages.trainable import frozen_on_one_side
from trueup.diagnosing.stages.update_multiples import multiples, multiples_reasons, shares_kept
from trueup.diagnosing.thresholds import DECAY_ZERO, UPDATE_APART, UPDATE_SHARE
from trueup.merging.trace import MergedTrace
from trueup.store import StepView
from trueup.store.view import CLIPPED, UPDATED, WEIGHT
from trueup.types.arrays import Floats
from trueup.types.codes import Code, VerdictCode
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import Basis, EvidenceRank, Finding, KindCode, Stage
from trueup.types.reason import Reason, reason

_ORDER = (
    "moved",
    "rounded_away",
    "count",
    "updated_dtype",
    "dtype",
    "state",
    "class",
    "lr",
    "weight_decay",
    "beta1",
    "beta2",
    "eps",
)


_OF_NO_RULE = ("moved", "rounded_away", "count", "updated_dtype", "dtype", "state", "updates")
"""what is seen whatever the update rule"""


Members = list[tuple[tuple[str, str], list[str]]]
"""values of target and reference -> the parameters that have them, most first"""


class OptimizerStage:
    """Updated weights and moments of the first step; with the reference's gradients put in where that was
    done."""

    stage = Stage.OPTIMIZER
    title = reason(Stages.TITLE, key="optimizer")

    def check(self, context: Context) -> StageOutcome:
        """What is found on the first rank; on the first whose update differs, where all before it agree: one
        rank may have another state, or other settings."""
        rank = _first_apart(context)
        return self._checked(context if rank is None else replace(context, seen_from=rank))

    # In one piece: one branch a source of findings; later ones ask whether earlier ones found any.
    def _checked(self, context: Context) -> StageOutcome:
        """Compare constants measured from each run's own update, and what each optimizer says of itself."""
        given = context.given is not None and context.given_step is not None
        gaps, names = gaps_of(context)
        gaps, alike = _beside_name(context, _beside_setting(_beside_dtype(context, gaps)))
        stepping = stepping_findings(context)
        codes = {one.headline.code for one in stepping}
        if codes & {Stages.SUMMED_BEFORE_UPDATE, Stages.CLEARED_BEFORE_UPDATE}:
            gaps = {}  # the first step of one run has no update
        findings = [
            *stepping,
            *with_order_of_decay(_findings(gaps, names, context, given=given), context),
            *moment_findings(context),
        ]
        if Stages.CLEARED_BEFORE_UPDATE not in codes:  # else the target's steps are parts of the reference's
            findings += schedule_findings(context, known={key for found in gaps.values() for key in found})
        if not any("moved" in found for found in gaps.values()):
            findings += handover_findings(context)
        notes = [*alike, *_measured_values(context)]
        agreement = _given_agreement(context) if given else None
        if agreement is not None:
            notes.insert(0, agreement)
        stale = stale_findings(context) if not findings and context.failed_before() is None else []
        if not findings and not stale:
            findings = master_weights(context)
        if not findings and not stale and context.failed_before() is None:
            findings = moved_between(context) or frozen_that_move(context)
        if not findings and context.failed_before() is None and not target_is_measured(context):
            located = [finding_from_origin(origin, context) for origin in context.origins_of(Stage.OPTIMIZER)]
            book = context.pair()[0]
            names = book.parameters_with(*UPDATED)
            shapes = {fqn: list(book.shape(book.parameter(fqn, *UPDATED)) or ()) for fqn in names}
            findings = one_a_setting(located, shapes)
        if not findings and context.failed_before() is None:
            findings = stale
        is_first = all(o.stage not in _BEFORE for o in context.earlier if o.findings)
        is_first = is_first and not frozen_on_one_side(context)
        if not findings and is_first and agreement is not None and agreement.code in _UNNAMED:
            findings = [_unnamed(context, agreement)]
        if not findings and is_first and not given and context.failed_before() is None:
            equal = _equal_before(context)
            findings = [] if equal is None else [_unnamed(context, equal)]
        averaged, beside = averaged_weights(context)
        if not context.of_phases("optimizer").is_empty():
            notes += beside
        return _outcome(context, findings + averaged, notes, agreement)


def _first_apart(context: Context) -> int | None:
    """The first rank whose update of the first step differs; None where that is the first of all, or none."""
    rows = context.of_phases("optimizer").filter(is_beyond())
    if isinstance(context.target, MergedTrace) or context.failed_before() is not None or rows.is_empty():
        return None
    rank = int(rows["rank"].min())  # type: ignore[arg-type]
    return None if rank <= min(context.ranks) or rank not in context.ranks else rank


def _beside_dtype(
    context: Context, gaps: dict[str, dict[str, ConstantGap]]
) -> dict[str, dict[str, ConstantGap]]:
    """Without what follows from the dtype a whole run is in: dtypes of weights and state, and updates that
    are smaller than a rounding of the weight."""
    dtypes = context.dtypes_of_weights
    if dtypes is None:
        return gaps
    lost = context.below_rounding
    left = {
        fqn: {
            key: gap
            for key, gap in of.items()
            if not (key in ("dtype", "state") and (gap.target, gap.reference) == dtypes)
            and not (key == "moved" and not gap.declared and fqn in lost)
        }
        for fqn, of in gaps.items()
    }
    return {fqn: of for fqn, of in left.items() if of}


def _beside_setting(gaps: dict[str, dict[str, ConstantGap]]) -> dict[str, dict[str, ConstantGap]]:
    """Without updates that one run alone rounds away where a setting differs: other sizes round otherwise."""
    return {
        fqn: {key: gap for key, gap in of.items() if key != "rounded_away" or of.keys() <= {*_OF_NO_RULE}}
        for fqn, of in gaps.items()
    }


def _beside_name(
    context: Context, gaps: dict[str, dict[str, ConstantGap]]
) -> tuple[dict[str, dict[str, ConstantGap]], list[Reason]]:
    """Without optimizers that differ by their names alone: in the first step many rules are one (a moment is
    the gradient, bias is corrected in full), so that two steps must have made the same updates and moments,
    in float32, where rounding hides little."""
    classes = {(gap.target, gap.reference) for of in gaps.values() for gap in of.values()}
    if not gaps or any(key != "class" for of in gaps.values() for key in of) or len(classes) > 1:
        return gaps, []
    rows = context.rows.filter((pl.col("phase").cast(pl.String) == "optimizer") & is_compared())
    updates = rows.filter(pl.col("slot").cast(pl.String) == UPDATED[1])
    book = context.pair()[0]
    exact = all(book.dtype(book.parameter(fqn, *WEIGHT)) in ("float32", "float64") for fqn in gaps)
    steps = updates.group_by("step").len()["len"].to_list()
    if not exact or len(steps) < 2 or min(steps) < len(gaps) or not rows.filter(is_beyond()).is_empty():
        return gaps, []
    target, reference = classes.pop()
    return {}, [reason(Stages.ALIKE_OPTIMIZERS, target=target, reference=reference)]


def _outcome(
    context: Context, findings: list[Finding], notes: list[Reason], agreement: Reason | None
) -> StageOutcome:
    outcome = partial(StageOutcome, stage=Stage.OPTIMIZER, title=OptimizerStage.title)
    rows = context.of_phases("optimizer")
    evidence = tuple([*notes, counted(rows)] if rows.height else notes)
    if findings:
        return outcome(
            status=StageStatus.FAILED,
            conclusion=findings[0].headline,
            evidence=evidence,
            findings=tuple(findings),
            confirmed=True,
        )
    if rows.filter(is_compared()).is_empty() and (side := _updating_side(context)) is not None:
        only = reason(Stages.UPDATE_IN_ONE, side=side, step=context.steps[0][0])
        is_caused = context.failed_before() is not None
        status = StageStatus.CONSEQUENCE if is_caused else StageStatus.UNDECIDED
        return outcome(status=status, conclusion=only, evidence=evidence)
    if not notes and rows.filter(is_compared()).is_empty():
        return outcome(status=StageStatus.UNDECIDED, conclusion=_why_none(context))
    if rows.filter(is_beyond()).is_empty():
        head = context.agreement_at(rows)
    elif agreement is not None and agreement.code is Stages.GIVEN_SAME:
        head = reason(Stages.GIVEN_CLEARS)
        return outcome(status=StageStatus.CONSEQUENCE, conclusion=head, evidence=evidence, confirmed=True)
    elif (before := context.failed_before()) is not None and not _are_both_measured(context):
        follows = reason(Stages.FOLLOWS, stage=before.stage.value)
        return outcome(status=StageStatus.CONSEQUENCE, conclusion=follows, evidence=evidence)
    elif not _are_both_measured(context):
        return outcome(
            status=StageStatus.UNDECIDED, conclusion=reason(Stages.NOT_DISTINGUISHED), evidence=evidence
        )
    else:
        head = reason(Stages.BOTH_SAME)
        return outcome(status=StageStatus.CONSEQUENCE, conclusion=head, evidence=evidence)
    return outcome(status=StageStatus.PASSED, conclusion=head, evidence=evidence, confirmed=True)


def _updating_side(context: Context) -> str | None:
    """The side whose first step alone has an update: the other skipped it, gradients not being finite."""
    updates = [bool(book.parameters_with(*UPDATED)) for book in context.pair(0)]
    return None if len(set(updates)) == 1 else ("target", "reference")[updates.index(True)]


def _why_none(context: Context) -> Reason:
    """Why the first step has no update that both runs recorded."""
    some = len(context.steps) > 1 and all(book.parameters_with(*UPDATED) for book in context.pair(1))
    next_ones = some and all(b - a == 1 for a, b in zip(*context.steps[:2], strict=True))
    if next_ones and not any(book.parameters_with(*UPDATED) for book in context.pair(0)):
        return reason(Stages.UPDATE_LATER, step=context.steps[0][0], next=context.steps[1][0])
    return reason(Stages.NO_UPDATE)


# -- findings ------------------------------------------


def _findings(
    gaps: dict[str, dict[str, ConstantGap]], names: list[str], context: Context, *, given: bool
) -> list[Finding]:
    book = context.pair()[0]
    shapes = {f: list(book.shape(book.parameter(f, *WEIGHT)) or ()) for f in names}
    groups: dict[str, dict[tuple[str, str], list[str]]] = {}
    for fqn, found in gaps.items():
        for gap in found.values():
            groups.setdefault(gap.key, {}).setdefault((gap.target, gap.reference), []).append(fqn)
    order = {key: place for place, key in enumerate(_ORDER)}
    if any(are_other_rules(*sides) for sides in groups.get("class", {})):
        order["class"] = -1  # constants are measured as those of Adam, which they then need not be
        groups = {key: of for key, of in groups.items() if _is_declared(key, of, gaps) or key in _OF_NO_RULE}
    out = []
    for key, values in sorted(groups.items(), key=lambda item: (order.get(item[0], 99), item[0])):
        members = sorted(values.items(), key=lambda item: (_of_weights(item[1], book), -len(item[1])))
        declared_of = [gaps[fqn][key].declared for _, found in members for fqn in found]
        finding = _finding(key, members, shapes, book, context, given=given, stated=declared_of)
        shared = {gaps[fqn][key].alike for _, found in members for fqn in found}
        out.append(_of_another_rule(finding, key, members, shared.pop() if len(shared) == 1 else None))
    return out if order["class"] < 0 else _without_doubles(out)


def _of_weights(names: list[str], book: StepView) -> bool:
    """Whether these are weights of the model, and no copies or parts that an optimizer updates in their
    place, whose settings are those that act."""
    return any(book.parameter(fqn, *WEIGHT) is not None for fqn in names)


def _of_another_rule(finding: Finding, key: str, members: Members, shared: str | None) -> Finding:
    """The finding; where both programs give the learning rate or weight decay as ``shared``, and what was
    measured is more than one number on a side, it is no setting that differs: the update has another rule."""
    values = list(zip(*(pair for pair, _ in members), strict=True))
    is_setting = any(_zero(value, stated=False) for side in values for value in side) or all(
        len(set(side)) == 1 for side in values
    )
    if shared is None or key not in ("lr", "weight_decay") or is_setting:
        return finding
    return replace(
        finding,
        headline=reason(Stages.ACTS_OTHERWISE, **dict(finding.headline.places)),
        kinds=(),
        evidence=(*finding.evidence, reason(Stages.DECLARED_ALIKE, key=key, value=shared)),
        causes=(reason(Stages.OTHER_OPTIMIZER),),
        next_note=reason(Stages.COMPARE_OPTIMIZERS),
    )


def _without_doubles(findings: list[Finding]) -> list[Finding]:
    """Another class of optimizer is told by what it does, where that was seen."""
    by_behaviour = [f for f in findings if f.site != "optimizer"]
    return by_behaviour or findings


def _is_declared(
    key: str, values: Mapping[tuple[str, str], list[str]], gaps: dict[str, dict[str, ConstantGap]]
) -> bool:
    return any(gaps[fqn][key].declared for found in values.values() for fqn in found)


# In one piece: one finding; what stands in it depends on how its values are known.
def _finding(
    key: str,
    members: Members,
    shapes: dict[str, Any],
    book: StepView,
    context: Context,
    *,
    given: bool,
    stated: Sequence[bool],
) -> Finding:
    """``stated``: of each parameter, whether the programs say so themselves."""
    names = [fqn for _, found in members for fqn in found]
    who = described(names, shapes)
    (target, reference), first = members[0]
    values, *more = (
        reason(Stages.SIDES, key=key, parameters=described(found, shapes), target=a, reference=b)
        for (a, b), found in members[:3]
    )
    counted, moved = schedulers_apart(context) if key == "lr" else (None, None)
    causes = causes_of_apart(counted, moved)
    alike = _is_alike_elsewhere(key, names, context)
    of_some = alike or _are_two(members, stated)
    kind, stage = _kind_of(key), Stage.RESUME if key == "count" else Stage.OPTIMIZER
    named = kind_named(
        kind,
        EvidenceRank.STATED if any(stated) or given else EvidenceRank.FITTED,
        values,
        causes=_causes(key, members, of_some=of_some) if causes is None else causes,
        without=(
            *_is_no_cause(key, of_some=of_some, alike=alike),
            *((CauseCode.SCHEDULE_OFF,) if counted else ()),
        ),
    )
    sources: list[Reason] = []
    if all(stated) and key != "updated_dtype":  # that is of tensors, and in no group
        sources.append(reason(Stages.DECLARED))
    if moved is not None:
        sources.append(moved)
    if counted is not None:
        sources.append(counted.evidence)
    measured = _measured_of(key, first[0], context)
    if measured:
        sources.append(measured)
    is_measured = measured is not None or (not all(stated) and key not in _RECORDED)
    counter = [reason(Stages.MEASURED_COUNTER)] if is_measured else []
    return Finding(
        stage=stage,
        headline=(counted and counted.headline)
        or _headline(
            key, who if len(members) == 1 else described(first, shapes), target, reference, stated=all(stated)
        ),
        module=place_of(names, shapes),
        site="optimizer" if key == "class" else f"optimizer · {_SITES.get(key, key)} · {who}",
        phase="optimizer",
        step=book.step,
        rank=book.rank,
        kinds=(named,),
        basis=Basis.RECORDED if given or any(stated) else Basis.FITTED,
        evidence=(values, *more, *sources, *names_listed(names)),
        counter_evidence=(reason(Stages.GIVEN_COUNTER),) if given else tuple(counter),
        causes=named.causes,
        next_note=reason(Stages.COMPARE_SCHEDULERS) if counted is not None else named.next,
    )


def of_a_step_without_gradients(finding: Finding, context: Context) -> Finding:
    """The finding of an update, led by the optimizer having had no gradients where the runs show that."""
    led = context.comparison.verdict
    is_shown = led.headline.code is VerdictCode.STEPPED_WITHOUT and led.step == finding.step
    if not is_shown or finding.stage is not Stage.OPTIMIZER:
        return finding
    kinds = tuple(replace(one, causes=()) for one in finding.kinds if one.name is KindCode.DROPPED_UPDATE)
    return replace(finding, headline=led.headline, kinds=kinds, causes=())


def _kind_of(key: str) -> str:
    return {
        "moved": "dropped_update",
        "rounded_away": "dtype_or_rounding",
        "updated_dtype": "dtype_or_rounding",
        "dtype": "dtype_or_rounding",
        "state": "dtype_or_rounding",
        "count": "stale_value",
    }.get(key, "wrong_optimizer_setting")


def _headline(key: str, who: str, target: str, reference: str, *, stated: bool) -> Reason:
    """``stated``: the programs say so themselves; what they say is no decay only where it is 0."""
    facts = {"parameters": who, "target": target, "reference": reference}
    if key == "moved":
        return reason(Stages.MOVED if "not_held" in (target, reference) else Stages.UPDATE_LOST, **facts)
    if key == "rounded_away":
        return reason(Stages.ROUNDED_AWAY, **facts)
    if key == "weight_decay" and _zero(reference, stated=stated) != _zero(target, stated=stated):
        return reason(
            Stages.DECAY_TARGET if _zero(reference, stated=stated) else Stages.DECAY_REFERENCE, **facts
        )
    if key == "count":
        return reason(Stages.COUNT, target=target, reference=reference)
    return reason(Stages.SETTING, key=key, **facts)


def _zero(text: str, *, stated: bool) -> bool:
    try:
        return float(text) == 0 if stated else abs(float(text)) < DECAY_ZERO
    except ValueError:
        return False


_CAUSES = {
    "weight_decay": Stages.OTHER_GROUPS,
    "bias_correction": Stages.NO_BIAS_CORRECTION,
    "decoupled": Stages.COUPLED_DECAY,
    "eps": Stages.DEFAULT_EPS,
    "rounded_away": Stages.ROUNDED_TO_NEAREST,
    "updated_dtype": Stages.NO_MASTER_WEIGHTS,
    "dtype": Stages.NO_MASTER_WEIGHTS,
    "count": Stages.STATE_NOT_RESTORED,
}
_SITES = {
    "lr": "learning rate",
    "weight_decay": "weight decay",
    "bias_correction": "bias correction",
    "decoupled": "decoupled weight decay",
    "updated_dtype": "precision of what is updated",
    "dtype": "precision of the weights",
    "state": "precision of the optimizer's state",
    "moved": "update",
    "rounded_away": "update",
    "count": "step count",
}
"""what a site is called after; part of the site's name, which does not change"""


_RECORDED = ("count", "updates", "updated_dtype", "dtype", "state")
"""what both runs recorded as it is, and nothing was measured of"""


def _are_two(members: Members, stated: Sequence[bool]) -> bool:
    """Whether the programs themselves say that not all parameters differ alike."""
    return len(members) > 1 and all(stated)


def _is_alike_elsewhere(key: str, names: list[str], context: Context) -> bool:
    """Whether the setting is known on both sides of a parameter that is none of those that differ."""
    target, reference = sides_of(context, 0)
    says = [declared(context.facts(source)) for source in (context.target, context.reference)]
    for fqn, other in context.matched.items():
        if fqn in names or fqn not in target or other not in reference:
            continue
        is_declared = key in flat(says[0].get(fqn, {})) and key in flat(says[1].get(other, {}))
        if is_declared or (key in target[fqn].constants and key in reference[other].constants):
            return True
    return False


def _causes(key: str, members: Members, *, of_some: bool) -> tuple[Reason, ...] | None:
    """Of what differs, where it has causes of its own; ``of_some``: not all parameters differ, or not all
    alike."""
    if key == "weight_decay" and not of_some:
        return None  # the groups are the same
    if key == "updates":
        return ()  # of how often it steps, no setting is the cause
    if key == "moved" and any("not_held" in sides for sides, _ in members):
        return (reason(CauseCode.IN_NO_GROUP if of_some else CauseCode.NO_STEP),)
    if _CAUSES.get(key) is Stages.NO_MASTER_WEIGHTS and not any(
        dtype in HALVES for sides, _ in members for dtype in sides
    ):
        return None
    return (reason(_CAUSES[key]),) if key in _CAUSES else None


def _is_no_cause(key: str, *, of_some: bool, alike: bool) -> tuple[CauseCode, ...]:
    """Usual causes that do not act here: a schedule on anything but the learning rate, groups on what differs
    alike everywhere, a schedule that is off and another default where other parameters have the reference's
    value (``alike``): both act on all."""
    groups = () if of_some else (CauseCode.PARAMETER_GROUPS,)
    of_all = (CauseCode.OTHER_OPTIMIZER_DEFAULT,) if alike and key == "lr" else ()
    return (*groups, *of_all) if key == "lr" and not alike else (*groups, *of_all, CauseCode.SCHEDULE_OFF)


def _measured_of(key: str, fqn: str, context: Context) -> Reason | None:
    target, reference = sides_of(context, 0)
    other = context.matched.get(fqn, fqn)
    if fqn not in target or other not in reference:
        return None
    a, b = target[fqn].known.get(key), reference[other].known.get(key)
    if a is None or b is None:
        return None
    return reason(Stages.MEASURED_PAIR, parameter=fqn, target=a.value, reference=b.value)


def _measured_values(context: Context) -> Iterator[Reason]:
    """What was measured of the best known parameter."""
    target, _ = sides_of(context, 0)
    best = max(target.values(), key=lambda update: len(update.known), default=None)
    if best is not None and best.known:
        values = [f"{measured.value:.4g}" for measured in best.known.values()]
        yield reason(Stages.MEASURED, parameter=best.fqn, keys=tuple(best.known), values=values)


def _are_both_measured(context: Context) -> bool:
    """Whether the learning rate was measured in both runs of one parameter, by a rule that explains both
    updates: then the rules were compared."""
    target, reference = sides_of(context, 0)
    return any(
        "lr" in target[fqn].known and "lr" in reference[other].known
        for fqn, other in context.matched.items()
        if fqn in target and other in reference
    )


def target_is_measured(context: Context) -> bool:
    """Whether the target's update could be taken apart: then attribution has nothing to add."""
    return any(update.constants for update in sides_of(context, 0)[0].values())


# -- gradient replay ------------------------------------------


def _given_agreement(context: Context) -> Reason | None:
    """Whether the updates with the reference's gradients are the reference's: ``GIVEN_SAME``, else
    ``GIVEN_DIFFER``, or ``GIVEN_STATE_DIFFER`` where only what the optimizer keeps for the next step is
    different. None where no optimizer got such a gradient, or no update can be told."""
    if context.given is None or context.given_step is None:
        return None
    rank = context.ranks[0]
    book = context.book(context.given, context.given_step, rank)
    reference = context.book(context.reference, context.steps[0][1], rank)
    equal, near, apart = 0, 0, []
    kept: dict[str, list[str]] = {}
    for fqn, other in context.matched.items():
        a, b = book.parameter(fqn, *UPDATED), reference.parameter(other, *UPDATED)
        if a is None or b is None or not _got_the_reference_s(book, reference, fqn, other):
            continue
        if book.digest(a) is not None and book.digest(a) == reference.digest(b):
            equal += 1
        elif (is_near := _near(book, reference, fqn, other)) is not None:
            near += is_near
            apart += [] if is_near else [fqn]
        else:
            continue
        for slot in _state_apart(book, reference, fqn, other):
            kept.setdefault(fqn, []).append(slot)
    if not equal + near + len(apart):
        return None
    total = equal + near + len(apart)
    if apart:
        return reason(Stages.GIVEN_DIFFER, num=len(apart), total=total, names=apart)
    if kept:
        names = list(dict.fromkeys(slot for slots in kept.values() for slot in slots))
        return reason(Stages.GIVEN_STATE_DIFFER, num=len(kept), total=total, names=names)
    return reason(Stages.GIVEN_SAME, total=total, equal=equal, within=near)


def _state_apart(book: StepView, reference: StepView, fqn: str, other: str) -> Iterator[str]:
    """Names of the state after the update that differs by more than rounding, where the optimizer got the
    reference's gradient bit for bit: what the first update leaves out of account, the next one takes."""
    got, expected = book.parameter(fqn, *CLIPPED), reference.parameter(other, *CLIPPED)
    if got is None or expected is None or book.digest(got) is None:
        return
    if book.digest(got) != reference.digest(expected):
        return
    for slot in book.parameter_slots(fqn, UPDATED[0]):
        a, b = book.parameter(fqn, UPDATED[0], slot), reference.parameter(other, UPDATED[0], slot)
        dtype = book.dtype(a)
        if not slot.startswith(STATE) or b is None or dtype != reference.dtype(b) or dtype not in _EXACT:
            continue
        state, reference_state = book.value(a), reference.value(b)
        if state is None or reference_state is None or state.shape != reference_state.shape:
            continue
        if not near_updates(state, reference_state, np.zeros_like(reference_state), roundoff_of(dtype)):
            yield slot.removeprefix(STATE)


def _got_the_reference_s(book: StepView, reference: StepView, fqn: str, other: str) -> bool:
    """Whether the optimizer got the reference's gradient: a program may add to what it was given (sums over
    microbatches, or over ranks after backward), clip it otherwise, or keep its own."""
    a, b = book.parameter(fqn, *CLIPPED), reference.parameter(other, *CLIPPED)
    if a is None or b is None:
        return True  # nothing was recorded on the way
    if book.digest(a) is not None and book.digest(a) == reference.digest(b):
        return True
    got, expected = book.value(a), reference.value(b)
    if got is None or expected is None or got.shape != expected.shape:
        return False
    return same_gradients(got, expected)


def same_gradients(got: Floats, expected: Floats) -> bool:
    """Whether element by element they differ by no more than updates may: clipping's factor is rounded."""
    return bool((abs(got - expected) <= UPDATE_APART * abs(expected)).mean() > UPDATE_SHARE)


def _near(book: StepView, reference: StepView, fqn: str, other: str) -> bool | None:
    """Whether updates differ by rounding alone: of the weight they are added to, and of the few sums in them.
    None where a value is not known, as of a piece before its update."""
    a, b = book.value(book.parameter(fqn, *UPDATED)), reference.value(reference.parameter(other, *UPDATED))
    p = reference.value(reference.parameter(other, *WEIGHT))
    if a is None or b is None or p is None or a.shape != b.shape:
        return None
    return near_updates(a, b, p, roundoff_of(book.dtype(book.parameter(fqn, *UPDATED))))


def _equal_before(context: Context) -> Reason | None:
    """Where updates in float32 or finer differ though weight, gradient and the state after the update are
    the same bits: only the optimizer can differ then. None where no update does."""
    book, other = context.pair()
    at_update = pl.col("slot") == UPDATED[1]
    rows = context.of_phases("optimizer").filter(is_beyond() & at_update)
    named = [fqn for fqn in dict.fromkeys(rows["name"].to_list()) if fqn in context.matched]
    equal = [fqn for fqn in named if _is_equal_before(book, other, fqn, context.matched[fqn])]
    return reason(Stages.EQUAL_BEFORE, num=len(equal), names=equal) if equal else None


def _is_equal_before(book: StepView, other: StepView, fqn: str, name: str) -> bool:
    slots = [slot for slot in book.parameter_slots(fqn, UPDATED[0]) if slot.startswith(STATE)]
    parts = (WEIGHT, CLIPPED, *((UPDATED[0], slot) for slot in slots))
    pairs = [
        (book.digest(book.parameter(fqn, *of)), other.digest(other.parameter(name, *of))) for of in parts
    ]
    fine = book.dtype(book.parameter(fqn, *UPDATED)) in _EXACT
    return fine and all(one is not None and one == two for one, two in pairs)


_BEFORE = (Stage.WEIGHTS, Stage.REDUCTION, Stage.DATA)
"""stages whose findings may be all that an update differs by: a step may be told the number of tokens"""
_UNNAMED: dict[Code, Callable[[Reason], Reason]] = {
    Stages.GIVEN_DIFFER: lambda agreement: reason(Stages.UNNAMED),
    Stages.EQUAL_BEFORE: lambda agreement: reason(Stages.UNNAMED),
    Stages.GIVEN_STATE_DIFFER: lambda agreement: reason(Stages.UNNAMED_STATE, names=agreement.place("names")),
}
"""what is said of an optimizer by what it made of the reference's gradients"""
STATE = "state."
"""what the slot of an optimizer's state begins with"""
_EXACT = ("float32", "float64")
"""dtypes of state that hold more than a rounding: integers of a quantised state move by one where it ties"""


def _unnamed(context: Context, agreement: Reason) -> Finding:
    book, reference = context.pair()
    rows = context.of_phases("optimizer").filter(is_beyond())
    of_weights = rows.filter(pl.col("slot") == UPDATED[1])
    rows = of_weights if of_weights.height else rows
    site = rows.row(0, named=True)["site"] if rows.height else "optimizer"
    if (
        agreement.code is not Stages.EQUAL_BEFORE
        and context.given is not None
        and context.given_step is not None
    ):
        book = context.book(context.given, context.given_step, context.ranks[0])
    names = list(agreement.place("names") or ())
    if agreement.code is Stages.GIVEN_STATE_DIFFER:
        share = shares_kept(book, reference, names, context.matched)
        known: tuple[Reason, ...] = () if share is None else (share,)
    else:
        known = multiples_reasons(multiples(book, reference, names, context.matched))
    return Finding(
        stage=Stage.OPTIMIZER,
        headline=known[0] if known else _UNNAMED[agreement.code](agreement),
        module=None,
        site=site,
        phase="optimizer",
        step=book.step,
        rank=book.rank,
        basis=Basis.FITTED,
        evidence=(*known[1:], agreement),
        causes=(reason(Stages.OTHER_OPTIMIZER),),
        next_note=reason(Stages.COMPARE_OPTIMIZERS),
    )
