"""Who made the differences a replay shows: one origin an owner, forward, backward and weights together.

Everything that went into a call was the reference's, so what comes out and differs was made by its own code
outside its children; what goes in and differs, by the code around it. Gradients mirror that. A weight's
gradient belongs to the module that owns the weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trueup.diagnosing.replay.absent import Absent, absent_gradients
from trueup.diagnosing.replay.asked_before import without_asked_before
from trueup.diagnosing.replay.judge import Difference, differences
from trueup.diagnosing.replay.lone import lone_ones
from trueup.diagnosing.replay.mean_losses import held_to_their_mean
from trueup.diagnosing.replay.noise import ReplayNoise
from trueup.diagnosing.replay.plan import PLAN, read_plan
from trueup.diagnosing.replay.step import OUTSIDE, ReplayedStep
from trueup.diagnosing.replay.words import evidence_of, place_of, site_of, sources_of
from trueup.diagnosing.thresholds import BIAS_Z, SENT_BACK_APART
from trueup.errors import TraceError
from trueup.store import StepView, Trace
from trueup.types.codes import LeftFree, ReplayCode
from trueup.types.finding import Basis, Origin, Stage
from trueup.types.reason import Reason, reason

REFINED = "refined"
"""folder inside a replay: the same again at API level, inside the owners it found"""

_NOT_CHARGED = (LeftFree.SHARED_GRADIENT, LeftFree.EXPANDED)
_REDUCED = ("accumulated", "clipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One record charged to an owner."""

    owner: str
    stage: Stage
    step: ReplayedStep
    found: Difference | Absent

    @property
    def score(self) -> float:
        """How far beyond what is allowed."""
        return self.found.score if isinstance(self.found, Difference) else math.inf

    @property
    def order(self) -> int:
        """Execution order in the target."""
        record = self.found.record
        return len(self.step.target.phase) if record is None else record


@dataclass(slots=True)
class _Owner:
    name: str
    charges: list[Charge] = field(default_factory=list)


def origins(replay: Path, reference: Path, *, noise: ReplayNoise | None = None) -> list[Origin]:
    """The places whose own code made an error, surest first.

    Args:
        replay: the folder ``run_replay`` wrote.
        reference: the trace it was replayed against.
        noise: what a benign variant's replay shows; without it the dtype bound of one module call counts.

    ``target_record`` of an origin is a row of the *replay's* records, whose values are there wherever they
    differed. What was found again at API level inside an owner names the call.

    Raises:
        TraceError: one of them cannot be read, or ``replay`` is no replay.
    """
    found = _origins_of(replay, reference, noise)
    if not (replay / REFINED / "plan" / PLAN).exists():
        return found
    finer = {o.module: o for o in _origins_of(replay / REFINED, reference, noise, calls=True)}
    return [_joined(one, finer.get(one.module)) for one in found]


def _origins_of(
    replay: Path, reference: Path, noise: ReplayNoise | None, *, calls: bool = False
) -> list[Origin]:
    steps = replayed_steps(replay, reference)
    charges = [charge for step in steps for charge in _charges(step, noise)]
    charges = without_asked_before(charges, steps, lambda one: one.step.target.microbatch[one.found.call])
    charges = _tied_to_owners(_without_consequences(_before_updates(charges, steps)))
    if calls:
        charges = [c for c in charges if c.step.target.kind[c.found.call] != "module"]
    owners: dict[str, _Owner] = {}
    for charge in charges:
        owners.setdefault(charge.owner, _Owner(charge.owner)).charges.append(charge)
    agreement = _bit_identical(steps)
    found = [_origin(owner, agreement) for owner in owners.values()]
    return sorted(found, key=lambda o: (-min(o.score, 1e300), o.step, o.order))


def replayed_steps(replay: Path, reference: Path) -> list[ReplayedStep]:
    """All steps of all ranks of a replay.

    Raises:
        TraceError: it holds no replay, or not the steps its plan was made for.
    """
    trace, plan = Trace(replay), read_plan(replay / "plan")
    have = trace.steps()
    there = [p for p in plan.steps if p.rank in have.get(p.step, [])]
    if not there:
        raise TraceError(
            f"{replay} holds a plan for step {plan.steps[0].step}, but the replayed run never finished it"
        )
    return [ReplayedStep(trace, Trace(reference), p, plan.folder) for p in there]


# -- charging ------------------------------------------


def _charges(step: ReplayedStep, noise: ReplayNoise | None) -> list[Charge]:
    absent = absent_gradients(step)
    found = [
        Charge(owner=one.owner, stage=_outside_stage(one.owner, Stage.LOSS), step=step, found=one)
        for one in absent
        if one.charged
    ]
    missing = [one for one in absent if one.lacking == "target"]
    known = held_to_their_mean(step, differences(step, noise))
    losses = {
        step.target.microbatch[one.call]: one
        for one in known
        if step.target.kind[one.call] == "loss" and one.slot == "value" and one.score > 1
    }
    unsound = _unsound(step, known)
    for one in lone_ones(step, known, lambda one: _owner_of(step, one)[0]):
        if one.score <= 1 or _is_left_to_others(step, one, known):
            continue
        if (one.phase, _owner_of(step, one)[0]) in unsound:
            continue
        if one.phase == "param_grad" and _ran_free(step, step.target.name[one.call]):
            continue
        if one.phase == "backward" and _follows_from_absence(step, one, missing):
            continue
        owner, stage = _owner_of(step, one)
        if stage is Stage.BACKWARD and _is_of_loss(step, one, losses.get(step.target.microbatch[one.call])):
            owner, stage = OUTSIDE, Stage.LOSS
        found.append(Charge(owner=owner, stage=stage, step=step, found=one))
    return found


def _unsound(step: ReplayedStep, known: list[Difference]) -> set[tuple[str, str]]:
    """Phase and owner of what a replay cannot put right: what a module makes of an input that could not be
    put in, and gradients around a module that hands on its input in the target alone."""
    unforced = {step.target.name[one.call] for one in known if _is_free_input(one)}
    unforced |= {step.target.name[one.call] for one in known if _is_of_other_rows(step, one)}
    unforced_back = {
        step.target.name[one.call]
        for one in known
        if one.phase == "backward"
        and one.slot.startswith("output")
        and one.left_free is LeftFree.SHAPE_DIFFERS
    }
    misled = unforced_back | {
        owner for one in known if _passes_on_in_one_run(step, one) for owner in _around_passed_on(step, one)
    }
    found = {(phase, owner) for phase in ("forward", "param_grad") for owner in unforced}
    found |= {("backward", owner) for owner in misled}
    kept = {owner for one in known for owner in _given_the_same_before(step, one)}
    return found | {(phase, owner) for phase in ("backward", "param_grad") for owner in kept}


def _given_the_same_before(step: ReplayedStep, one: Difference) -> Iterator[str]:
    """Modules that were given, before, the tensor that the reference's value was put into as another module's
    input, where the reference gives the two different ones: what they keep of it for their backward was
    written over."""
    view, reference, at = step.target, step.reference, one.reference_record
    is_input = one.phase == "forward" and one.slot.startswith("input") and one.score > 1
    content = view.content[one.record] if is_input and one.left_free is None and at is not None else None
    if content is None or at is None:
        return
    for record in (earlier for earlier in range(one.record) if view.content[earlier] == content):
        call, slot = int(view.record_call[record]), str(view.slot[record])
        partner = int(step.match.calls.reference_of[call])
        if view.kind[call] != "module" or not slot.startswith("input") or partner < 0:
            continue
        other = reference.record(partner, "forward", slot)
        if other is not None and reference.content[other] != reference.content[at]:
            yield view.name[call]


def _is_left_to_others(step: ReplayedStep, one: Difference, known: list[Difference]) -> bool:
    """Whether what kept the program's values is charged elsewhere, or nowhere."""
    return _is_received(step, one, known) or (one.left_free in _NOT_CHARGED and not _is_free_input(one))


def _is_received(step: ReplayedStep, one: Difference, known: list[Difference]) -> bool:
    """Whether a module is given what another made, which could not be put right: that is charged there."""
    digest = None if one.record is None else step.target.digest(one.record)
    if one.left_free is not LeftFree.LOOKED_FOR or not one.slot.startswith("input") or digest is None:
        return False
    made = (
        o
        for o in known
        if o.left_free is one.left_free and o.slot.startswith("output") and o.record is not None
    )
    return any(step.target.digest(other.record) == digest for other in made)


def _is_free_input(one: Difference) -> bool:
    """Whether a module was given something else that could not be put right, since its elements share memory
    (positions or a mask, made by the code around it) or are looked for in backward. What the module's own
    code makes follows from that."""
    is_input = one.phase == "forward" and one.slot.startswith("input")
    return is_input and one.left_free in (LeftFree.EXPANDED, LeftFree.LOOKED_FOR) and one.score > 1


def _is_of_other_rows(step: ReplayedStep, one: Difference) -> bool:
    """Whether a module was given more or fewer rows (those of an expert): these could not be put in."""
    is_input = one.phase == "forward" and one.slot.startswith("input")
    return is_input and one.left_free is LeftFree.SHAPE_DIFFERS and step.is_floating(one.record)


def _is_of_loss(step: ReplayedStep, one: Difference, loss: Difference | None) -> bool:
    """Whether a gradient has the factor of its loss: rounding scatters and makes no common factor. They
    are one within as many standard errors of the gradient's as set it apart from 1; of a single number, which
    has none, within its own tolerance."""
    if loss is None or loss.scale is None:
        return False
    if one.record is not None and step.target.shape(one.record) in ((), (1,)):
        scale = _scale_of_one_number(step, one)
        return scale is not None and abs(scale - loss.scale) <= (one.tolerance or 0.0) * abs(loss.scale)
    if one.scale is None:
        return False
    if not (one.biased and one.bias_z):
        return False
    rounded = sum(step.roundoff(record) or 0.0 for record in (one.record, loss.record))
    error = abs(one.scale - 1) / abs(one.bias_z)
    return abs(one.scale - loss.scale) <= BIAS_Z * error + rounded


def _scale_of_one_number(step: ReplayedStep, one: Difference) -> float | None:
    """The factor between two single numbers, from their summaries where values were not put in."""
    if one.scale is not None or one.reference_record is None:
        return one.scale
    sides = step.target.summary(one.record), step.reference.summary(one.reference_record)
    target, reference = (None if side is None else side["mean"] for side in sides)
    return None if target is None or not reference else float(target) / float(reference)


def _outside_stage(owner: str, stage: Stage) -> Stage:
    return stage if owner == OUTSIDE else Stage.BACKWARD


def _owner_of(step: ReplayedStep, one: Difference) -> tuple[str, Stage]:
    kind = step.target.kind[one.call]
    if kind == "loss":
        return OUTSIDE, Stage.DATA if one.slot != "value" else Stage.LOSS
    if kind == "parameter":
        stage = Stage.WEIGHTS if one.phase == "param" else Stage.BACKWARD
        return _parameter_owner(
            step.target.name[one.call]
        ), Stage.REDUCTION if one.slot in _REDUCED else stage
    inward = one.slot.startswith("input")
    forward = one.phase == "forward"
    passed_on = forward and not inward and _is_passed_on(step, one)
    if kind == "module" and inward != forward and not passed_on:
        return step.target.name[one.call], Stage.FORWARD if forward else Stage.BACKWARD
    sender = one.call if forward or inward else _last_to_return(step, one)
    owner = step.module_around(sender)
    if owner == OUTSIDE:
        if not forward and step.is_without_loss:  # it came from the process that has one
            return owner, Stage.BACKWARD
        return owner, Stage.DATA if forward and kind == "module" else Stage.LOSS
    return owner, Stage.FORWARD if forward else Stage.BACKWARD


def _last_to_return(step: ReplayedStep, one: Difference) -> int:
    """The outermost call that returned the tensor whose gradient this is, and no other that got a gradient:
    all of it came from around that call.

    The hooks of one tensor are called innermost first, and the first puts the reference's gradient there for
    those that follow. Of two tensors of one content, as around a function that changes gradients alone, the
    outer one's gradient comes first.
    """
    view, call = step.target, one.call
    here = view.record(call, "forward", one.slot)
    content = None if here is None else view.content[here]
    for around in view.enclosing(call):
        sent = [r for r in view.records(around, "backward") if view.slot[r].startswith("output")]
        returned = view.record(around, "forward", view.slot[sent[0]]) if len(sent) == 1 else None
        if returned is None or content is None or view.content[returned] != content or sent[0] < one.record:
            break
        call = around
    return call


def _is_passed_on(step: ReplayedStep, one: Difference) -> bool:
    """Whether a module only hands on what it was given (a dropout that is off): the same content came in, in
    both runs. What one run alone hands on, the other computes with."""
    reference, at = step.reference, one.reference_record
    partner = int(step.match.calls.reference_of[one.call])
    if at is not None and reference.record_call[at] == partner and not _hands_on(reference, at):
        return False
    return _hands_on(step.target, one.record)


def _passes_on_in_one_run(step: ReplayedStep, one: Difference) -> bool:
    """Whether a module hands on what it was given in one run alone (a dropout that is off)."""
    if one.phase != "forward" or not one.slot.startswith("output") or one.score <= 1:
        return False
    other = one.reference_record
    return _hands_on(step.target, one.record) is not (other is not None and _hands_on(step.reference, other))


def _around_passed_on(step: ReplayedStep, one: Difference) -> Iterator[str]:
    """The module whose code made the tensor that a module hands on. It is one tensor there, with the gradient
    of all its uses; the other run's has that of the module alone: neither is a gradient of the other.

    Where the reference hands on, what is put in for the module's output is the gradient of all uses, which
    adds to those of the same uses on its way out: of every module on the way as well."""
    view, record, other = step.target, one.record, one.reference_record
    of_reference = not _hands_on(view, record) and other is not None
    if of_reference and other is not None:
        view, record = step.reference, other
    call, content = view.record_call[record], view.content[record]
    for around in view.enclosing(call):
        given = (r for r in view.records(around, "forward") if view.slot[r].startswith("input"))
        is_module = view.kind[around] == "module"
        if not any(view.content[r] == content for r in given):
            caller = view.caller(call)
            yield view.name[around] if is_module else OUTSIDE if caller is None else caller
            return
        if of_reference and is_module:
            yield view.name[around]
    yield OUTSIDE


def _hands_on(view: StepView, record: int) -> bool:
    content = view.content[record]
    given = (r for r in view.records(view.record_call[record], "forward") if view.slot[r].startswith("input"))
    return content is not None and any(view.content[r] == content for r in given)


def _parameter_owner(fqn: str) -> str:
    return fqn.rpartition(".")[0]


def _ran_free(step: ReplayedStep, fqn: str) -> bool:
    """Whether a call of the module that owns a parameter was not forced: nothing tells who made its
    gradient."""
    return _parameter_owner(fqn) in step.free_modules


def _follows_from_absence(step: ReplayedStep, one: Difference, missing: list[Absent]) -> bool:
    """Whether a gradient that never came is one of the terms of this one."""
    if step.target.kind[one.call] == "parameter":
        return False
    record = step.target.record(one.call, "forward", one.slot)
    content = None if record is None else step.target.content[record]
    for gone in missing:
        if not gone.slot.startswith("input") and not _keeps_input(step, gone):
            continue
        if one.slot.startswith("input") and one.call in step.target.enclosing(gone.call):
            return True
        same = gone.record is not None and step.target.content[gone.record] == content
        if one.slot.startswith("output") and content is not None and same:
            return True
    return False


def _keeps_input(step: ReplayedStep, gone: Absent) -> bool:
    """Whether a module whose output gets no gradient hands on its input there: detached for the module, say,
    and in the reference one tensor with the input, whose gradient is the sum of all uses."""
    return gone.record is not None and gone.slot.startswith("output") and _hands_on(step.target, gone.record)


def _without_consequences(charges: list[Charge]) -> list[Charge]:
    """Leave out what another charge explains, here or on another rank: accumulated gradients by local ones,
    clipped ones by accumulated ones, everything after a module's weights differ by those weights. Gradients
    of weights inside a module that shows nothing of its inside (a compiled one) follow from what it returned:
    they are made from values that no replay could put right."""
    kept = []
    closed = {c.owner for c in charges if c.stage is Stage.FORWARD and _is_closed(c)}
    local = {c.step.target.name[c.found.call] for c in charges if _is(c, "param_grad", "local")}
    summed = {c.step.target.name[c.found.call] for c in charges if _is(c, "param_grad", "accumulated")}
    first = min((c.step.step for c in charges), default=0)
    for charge in charges:
        name = charge.step.target.name[charge.found.call]
        if _is(charge, "param_grad", "accumulated") and name in local:
            continue
        if _is(charge, "param_grad", "clipped") and (local or summed):
            continue
        if charge.stage is Stage.WEIGHTS and charge.step.step > first:
            continue
        if not _is_inside(charge, closed):
            kept.append(charge)
    return kept


def _is_inside(charge: Charge, closed: set[str]) -> bool:
    """Whether it is a gradient of a weight inside one of these modules."""
    view, call = charge.step.target, charge.found.call
    if view.kind[call] != "parameter" or charge.stage is Stage.WEIGHTS:
        return False
    return any(not owner or view.name[call].startswith(f"{owner}.") for owner in closed)


def _is_closed(charge: Charge) -> bool:
    """Whether the module that is charged shows nothing of its inside in the call that is."""
    view, call = charge.step.target, charge.found.call
    return view.kind[call] == "module" and view.name[call] == charge.owner and bool(view.opaque[call])


def _before_updates(charges: list[Charge], steps: Sequence[ReplayedStep]) -> list[Charge]:
    """Leave out what evaluation computes after an update that is not the reference's: of a model that
    follows the weights (their average) as of the model itself. A replay puts weights in before the update,
    and none into a model that is not trained."""
    updated = {s.rank: (s.step, at) for s in reversed(steps) if (at := s.first_other_update) is not None}

    def follows(charge: Charge) -> bool:
        step = charge.step
        evaluated = step.target.mode[charge.found.call] == "eval"
        return evaluated and step.rank in updated and (step.step, charge.order) > updated[step.rank]

    return [charge for charge in charges if not follows(charge)]


def _tied_to_owners(charges: list[Charge]) -> list[Charge]:
    """Gradients that two owners may have made go to the one that errs otherwise too.

    Of a weight that several modules share: to the one among them; where none errs, to the first. Of a weight
    in a container that is never called (a ParameterDict): to the module around whose code reads it. Of a
    module's output beside others: to that module, where its own code errs in the same call. Another output
    may be computed from that one (attention's weights, beside what they weigh), whose gradient then comes
    through the module too. Of what a module inside the model returns, and the model with it (a router's
    scores, which the balance loss reads): to the loss, where that is made otherwise and the code around the
    module shows nothing else.
    """
    owners = {c.owner for c in charges if c.step.target.kind[c.found.call] != "parameter"}
    made = {(id(c.step), call): c for c in charges if (call := _own_call(c)) is not None}
    lost = any(_is(c, "loss", "value") for c in charges)
    otherwise = {c.owner for c in charges if c.owner and not (_is_of_output(c) and _is_returned(c))}
    return [
        _tied(c, owners, made.get((id(c.step), c.found.call)), lost and c.owner not in otherwise)
        for c in charges
    ]


def _tied(charge: Charge, owners: set[str], made: Charge | None, lost: bool) -> Charge:
    step, view, call = charge.step, charge.step.target, charge.found.call
    name = view.name[call]
    if view.kind[call] == "parameter":
        if charge.owner in owners:
            return charge
        sharing = owners & set(step.modules_sharing(name))
        if len(sharing) == 1:
            return replace(charge, owner=sharing.pop())
        reader = step.called_around(charge.owner)
        return replace(charge, owner=reader) if reader in owners else charge
    if not _is_of_output(charge):
        return charge
    if made is not None and _has_other_outputs(charge):
        return replace(charge, owner=made.owner)
    if lost and _is_returned(charge):
        return replace(charge, owner=OUTSIDE)
    return charge


def _own_call(charge: Charge) -> int | None:
    """The call of the module whose own code makes something else in the forward pass; None of other
    charges."""
    view, call = charge.step.target, charge.found.call
    if charge.stage is not Stage.FORWARD:
        return None
    around = (call, *view.enclosing(call))
    return next((c for c in around if view.kind[c] == "module" and view.name[c] == charge.owner), None)


def _has_other_outputs(charge: Charge) -> bool:
    """Whether the module call returned something else beside the tensor whose gradient it is."""
    view, call = charge.step.target, charge.found.call
    returned = (view.slot[record] for record in view.records(call, "forward"))
    return any(slot.startswith("output") and slot != charge.found.slot for slot in returned)


def _is_returned(charge: Charge) -> bool:
    """Whether a module's output is an output of the model, too: one tensor, which the loss may read."""
    view, call = charge.step.target, charge.found.call
    record = view.record(call, "forward", charge.found.slot)
    content = None if record is None else view.content[record]
    roots = [c for c in view.enclosing(call) if view.parent[c] < 0]
    outputs = (r for c in roots for r in view.records(c, "forward") if view.slot[r].startswith("output"))
    return content is not None and any(view.content[r] == content for r in outputs)


def _is_of_output(charge: Charge) -> bool:
    """Whether it is a gradient of an output of a module call."""
    is_of_module = charge.step.target.kind[charge.found.call] == "module"
    return charge.stage is Stage.BACKWARD and is_of_module and charge.found.slot.startswith("output")


def _is(charge: Charge, phase: str, slot: str) -> bool:
    found = charge.found
    return isinstance(found, Difference) and found.phase == phase and found.slot == slot


# -- one origin an owner ------------------------------------------


_STAGE_ORDER = (
    Stage.DATA,
    Stage.WEIGHTS,
    Stage.FORWARD,
    Stage.LOSS,
    Stage.BACKWARD,
    Stage.REDUCTION,
)


def _origin(owner: _Owner, agreement: Reason) -> Origin:
    lost = {(c.step.step, c.step.rank) for c in owner.charges if _is(c, "loss", "value")}

    def in_order(c: Charge) -> tuple[int, int, bool, int, int]:
        """Of a loss first the ranks whose own value differs: others are sent gradients by them."""
        passed_on = c.stage is Stage.LOSS and (c.step.step, c.step.rank) not in lost
        return _STAGE_ORDER.index(c.stage), c.step.step, passed_on, c.step.rank, c.order

    charges = sorted(owner.charges, key=in_order)
    first = charges[0]
    same = [c for c in charges if c.stage is first.stage]
    found, step = first.found, first.step
    source, reference_source = sources_of(step, found)
    difference = found if isinstance(found, Difference) else None
    where = place_of(step, found)
    return Origin(
        stage=first.stage,
        module="" if owner.name == OUTSIDE else owner.name,
        site=site_of(owner.name, where),
        phase=difference.phase if difference else "backward",
        slot=found.slot,
        step=step.step,
        rank=step.rank,
        microbatch=step.target.microbatch[found.call],
        order=first.order,
        score=max(c.score for c in same),
        rel_l2=None if difference is None else difference.rel_l2,
        tolerance=None if difference is None else difference.tolerance,
        bias_z=None if difference is None else difference.bias_z,
        basis=Basis.REPLAY,
        target_record=found.record,
        reference_record=found.reference_record,
        source=source,
        reference_source=reference_source,
        evidence=evidence_of((c.step, c.found) for c in charges),
        counter_evidence=(agreement,),
        ranks=tuple(sorted({c.step.rank for c in same})),
        sent_back=_sent_back(same),
    )


def _sent_back(charges: Sequence[Charge]) -> float | None:
    """The factor of a loss that all gradients which it sends back have too, in each microbatch of the step;
    None where one has another, or is no multiple."""
    found = [c.found for c in charges if isinstance(c.found, Difference) and c.stage is Stage.LOSS]
    values = [one for one in found if one.phase == "loss"]
    sent = [one for one in found if one.phase == "backward"]
    if not values or len(found) < len(charges) or len(sent) < len(values):
        return None
    factor = values[0].scale
    if factor is None or not all(is_multiple(one.scale, one.rel_l2, factor) for one in found):
        return None
    return factor


def is_multiple(scale: float | None, rel_l2: float | None, factor: float) -> bool:
    """Whether a tensor is another times this factor, and nothing is left over."""
    if scale is None or rel_l2 is None:
        return False
    change = SENT_BACK_APART * abs(factor - 1)
    return abs(scale - factor) <= change and rel_l2**2 - (scale - 1) ** 2 <= change**2


def _bit_identical(steps: Iterable[ReplayedStep]) -> Reason:
    equal = total = 0
    for step in steps:
        states = step.forced["state"].cast(str)
        equal, total = equal + int((states == "equal").sum()), total + len(states)
    return reason(ReplayCode.BIT_IDENTICAL, num_equal=equal, num_tensors=total)


def _joined(coarse: Origin, fine: Origin | None) -> Origin:
    """The owner as found among modules, the call as found inside it."""
    if fine is None:
        return coarse
    return replace(
        coarse,
        stage=min(coarse.stage, fine.stage, key=_STAGE_ORDER.index),
        site=fine.site,
        source=fine.source or coarse.source,
        reference_source=fine.reference_source or coarse.reference_source,
        evidence=(*fine.evidence[:1], *coarse.evidence),
    )
