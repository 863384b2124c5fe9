"""What is said of a charged record: where it is, by how much it differs, which line made it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from trueup.diagnosing.replay.absent import Absent
from trueup.diagnosing.replay.judge import Difference
from trueup.diagnosing.replay.step import OUTSIDE, ReplayedStep
from trueup.types.codes import ReplayCode
from trueup.types.reason import Reason, reason
from trueup.types.site import shown_name

MAX_REASONS = 8


def site_of(owner: str, where: str) -> str:
    """``layers.0.attn, torch.matmul[1], output.0``."""
    return f"{shown_name(owner)}, {where}"


def place_of(step: ReplayedStep, found: Difference | Absent) -> str:
    """Where in its owner a record is: ``output.0``, ``into drop, input.0``, ``gradient of weight``."""
    kind, shown = step.target.kind[found.call], step.target.shown(found.call)
    if kind == "loss":
        return f"loss {found.slot}"
    if kind == "parameter":
        word = step.target.name[found.call].rpartition(".")[2]
        phase = found.phase if isinstance(found, Difference) else "param_grad"
        return word if phase == "param" else f"gradient of {word} ({found.slot})"
    backward = isinstance(found, Absent) or found.phase == "backward"
    slot = f"gradient of {found.slot}" if backward else found.slot
    if kind != "module":
        return f"{shown}, {slot}"
    if found.slot.startswith("input") == (not backward):
        return f"{'behind' if backward else 'into'} {_short(shown)}, {slot}"
    return slot


def _short(name: str) -> str:
    return name.rpartition(".")[2] if not name.rpartition(".")[2].isdigit() else name


def sources_of(step: ReplayedStep, found: Difference | Absent) -> tuple[str | None, str | None]:
    """``file:line`` in target and reference: of an API call its own, of what a module makes itself the line
    of the last call in it, of what goes into a module or comes back to it the line that calls it."""
    view, call = step.target, found.call
    if view.kind[call] == "parameter":
        owners = view.named("module", view.name[call].rpartition(".")[0])
        return step.sources(owners[0] if owners else call)
    backward = isinstance(found, Absent) or found.phase == "backward"
    own = view.kind[call] == "module" and found.slot.startswith("input") == backward
    return step.sources(step.last_inside.get(call, call) if own else call)


def evidence_of(charges: Iterable[tuple[ReplayedStep, Difference | Absent]]) -> tuple[Reason, ...]:
    """One reason a distinct place, the most telling first; how many more there are."""
    known: dict[tuple[object, ...], Reason] = {}
    for step, found in charges:
        one = _missing(step, found) if isinstance(found, Absent) else _difference(step, found)
        known.setdefault((one.code, one.places), one)
    return first_of(tuple(known.values()))


def first_of(reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """The most telling of them, and how many more there are."""
    more = len(reasons) - MAX_REASONS
    left_out = (reason(ReplayCode.MORE_TENSORS, num_tensors=more),) if more > 0 else ()
    return (*reasons[:MAX_REASONS], *left_out)


def _missing(step: ReplayedStep, found: Absent) -> Reason:
    return reason(
        ReplayCode.MISSING_GRADIENT,
        found.why,
        slot=found.slot,
        site=step.target.shown(found.call),
        side=found.lacking,
    )


def _difference(step: ReplayedStep, found: Difference) -> Reason:
    places = {"phase": found.phase, "slot": found.slot, "site": step.target.shown(found.call)}
    if step.target.kind[found.call] == "api":
        owner = step.module_around(found.call)
        places["module"] = "" if owner == OUTSIDE else owner
    if found.rel_l2 is None or math.isinf(found.rel_l2):
        return reason(ReplayCode.NOT_FINITE, **places)
    parts = []
    if found.peers:
        parts.append(reason(ReplayCode.PEERS_AGREE, num_peers=found.peers))
    if found.biased:
        parts.append(reason(ReplayCode.BIASED, scale=found.scale, bias_z=found.bias_z))
    if found.tolerance is None and step.is_floating(found.record):  # no bound is known
        return reason(ReplayCode.DIFFERS, *parts, **places, rel_l2=found.rel_l2)
    if found.tolerance is None:
        return reason(ReplayCode.EXACT_VALUES_DIFFER, *parts, **places, rel_l2=found.rel_l2)
    basis = "exact_loss" if found.exact else "benign_variant" if found.measured else "dtype_bound"
    numbers = {"rel_l2": found.rel_l2, "tolerance": found.tolerance}
    return reason(ReplayCode.DIFFERS, *parts, **places, basis=basis, **numbers)
