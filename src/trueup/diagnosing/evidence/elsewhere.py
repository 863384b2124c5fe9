"""The same site at other steps, microbatches and ranks, and one parameter through its step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trueup.diagnosing.evidence.facts import Elsewhere, Known, ParameterStep, SlotPair
from trueup.diagnosing.evidence.places import PairedOrigin
from trueup.diagnosing.evidence.tensors import known_tensor
from trueup.store import StepView, view_if_there
from trueup.types.trace import ParameterFacts as Listed

MAX_EARLIER = 3
MAX_RANKS = 64

Dated = tuple[tuple[int, Known], ...]


def elsewhere_of(place: PairedOrigin) -> Elsewhere:
    """The same site at other times and ranks, on both sides."""
    t, r = place.target, place.reference
    target, reference = (t, place.target_record), (r, place.reference_record)
    return Elsewhere(
        target_earlier=_at_steps(*target, earlier=True),
        reference_earlier=_at_steps(*reference, earlier=True),
        reference_later=_at_steps(*reference, earlier=False),
        target_microbatches=_at_microbatches(*target),
        reference_microbatches=_at_microbatches(*reference),
        target_ranks=_at_ranks(*target),
        reference_ranks=_at_ranks(*reference),
        recomputed=() if r is not None and _differs(r, place) else _recomputed(t, place.origin.module),
    )


def _there(view: StepView, home: StepView, record: int) -> Known | None:
    """The tensor at the site of a record of another view."""
    found = view.same_place(home, home.record_call[record])
    if not found:
        return None
    there = view.record(found[0], home.phase[record], home.slot[record], home.record_microbatch[record])
    return None if there is None else known_tensor(view, there)


def _at_steps(view: StepView | None, record: int | None, *, earlier: bool) -> Dated:
    if view is None or record is None:
        return ()
    steps = sorted(view.source.steps())
    near = [s for s in reversed(steps) if s < view.step] if earlier else [s for s in steps if s > view.step]
    found = []
    for step in near[: MAX_EARLIER if earlier else 1]:
        other = view_if_there(view.source, step, view.rank)
        known = None if other is None else _there(other, view, record)
        if known is not None:
            found.append((step, known))
    return tuple(found)


def _at_microbatches(view: StepView | None, record: int | None) -> Dated:
    if view is None or record is None:
        return ()
    own = view.record_microbatch[record]
    found = []
    for call in view.same_place(view, view.record_call[record], microbatch=False):
        for other in view.records(call, view.phase[record]):
            if view.slot[other] == view.slot[record] and view.record_microbatch[other] != own:
                known = known_tensor(view, other)
                if known is not None:
                    found.append((view.record_microbatch[other], known))
    return tuple(found)


def _at_ranks(view: StepView | None, record: int | None) -> Dated:
    if view is None or record is None:
        return ()
    found = []
    for rank in view.source.steps().get(view.step, [])[:MAX_RANKS]:
        other = view if rank == view.rank else view_if_there(view.source, view.step, rank)
        known = None if other is None else _there(other, view, record)
        if known is not None:
            found.append((rank, known))
    return tuple(found)


def _differs(reference: StepView, place: PairedOrigin) -> bool:
    """Whether the reference's recomputation does not repeat its forward either."""
    return any(pair.agree is False for pair in _recomputed(reference, place.origin.module))


def _recomputed(view: StepView, module: str) -> tuple[SlotPair, ...]:
    """Outputs of calls that were run again in backward, below a module; of one whose recomputation was not
    run to its end, which stops where backward needs no more, those of the modules beside it."""
    found = _run_again(view, module)
    return found or _run_again(view, module.rpartition(".")[0])


def _run_again(view: StepView, module: str) -> tuple[SlotPair, ...]:
    again = [c for c, m in enumerate(view.mode) if m == "recompute" and _below(view.name[c], module)]
    found = []
    for call in again[:200]:
        first = [c for c in _originals(view, call) if c != call]
        if not first:
            continue
        for record in view.records(call, "forward"):
            slot = view.slot[record]
            before = view.record(first[0], "forward", slot)
            if slot.startswith("output") and before is not None:
                found.append(
                    SlotPair(
                        slot=slot, target=known_tensor(view, record), reference=known_tensor(view, before)
                    )
                )
    return tuple(found)


def _below(name: str, module: str) -> bool:
    return not module or name == module or name.startswith(module + ".")


def _originals(view: StepView, call: int) -> Iterator[int]:
    return (
        c
        for c in view.named(view.kind[call], view.name[call])
        if view.mode[c] == "train"
        and view.ordinal[c] == view.ordinal[call]
        and view.microbatch[c] == view.microbatch[call]
    )


def parameter_of(place: PairedOrigin) -> ParameterStep | None:
    """The parameter an origin is about, through its step; None for an origin at a call of another kind."""
    t, r = place.target, place.reference
    if place.target_call >= 0 and t.kind[place.target_call] == "parameter":
        fqn = t.name[place.target_call]
    elif r is not None and place.reference_call >= 0 and r.kind[place.reference_call] == "parameter":
        fqn = r.name[place.reference_call]
    else:
        return None
    call_t = t.parameter_call(fqn)
    call_r = None if r is None else r.parameter_call(fqn)
    if call_t is None and place.target_call >= 0:
        call_t = place.target_call
    if call_r is None and place.reference_call >= 0:
        call_r = place.reference_call
    before_t = view_if_there(t.source, t.step - 1, t.rank)
    before_r = None if r is None else view_if_there(r.source, r.step - 1, r.rank)
    target, reference = _Side(t, call_t), _Side(r, call_r)
    start = (target.one("param", "value"), reference.one("param", "value"))
    return ParameterStep(
        fqn=fqn,
        before=SlotPair(slot="value", target=start[0], reference=start[1]),
        gradients=_gradients(target, reference),
        updated=_states(target, reference, with_parameter=True),
        state_before=_states(_Side(before_t, _call(before_t, fqn)), _Side(before_r, _call(before_r, fqn))),
        target_settings=_settings(t, fqn),
        reference_settings={} if r is None else _settings(r, fqn),
        target_trainable=_entry(t, fqn).get("requires_grad"),
        reference_trainable=None if r is None else _entry(r, fqn).get("requires_grad"),
        target_grouped=_grouped(t, fqn),
    )


class _Side:
    """Records of one parameter's call on one side."""

    def __init__(self, view: StepView | None, call: int | None) -> None:
        self._view, self._call = view, call

    def records(self, phase: str) -> list[tuple[str, int, Known]]:
        """Slot, microbatch and tensor of a phase, in order."""
        if self._view is None or self._call is None:
            return []
        found = []
        for record in self._view.records(self._call, phase):
            known = known_tensor(self._view, record)
            if known is not None:
                found.append((self._view.slot[record], self._view.record_microbatch[record], known))
        return found

    def one(self, phase: str, slot: str) -> Known | None:
        """The tensor of a slot."""
        return next((k for s, _, k in self.records(phase) if s == slot), None)


def _gradients(target: _Side, reference: _Side) -> tuple[tuple[int, SlotPair], ...]:
    a = {(s, m): k for s, m, k in target.records("param_grad")}
    b = {(s, m): k for s, m, k in reference.records("param_grad")}
    return tuple(
        (m, SlotPair(slot=s, target=a.get((s, m)), reference=b.get((s, m))))
        for s, m in dict.fromkeys([*a, *b])
    )


def _states(target: _Side, reference: _Side, *, with_parameter: bool = False) -> tuple[SlotPair, ...]:
    a = {s: k for s, _, k in target.records("optimizer")}
    b = {s: k for s, _, k in reference.records("optimizer")}
    return tuple(
        SlotPair(slot=s, target=a.get(s), reference=b.get(s))
        for s in dict.fromkeys([*a, *b])
        if with_parameter or s != "param"
    )


def _call(view: StepView | None, fqn: str) -> int | None:
    return None if view is None else view.parameter_call(fqn)


_NOT_LISTED = Listed(fqn="", shape=(), dtype="", requires_grad=False)


def _entry(view: StepView, fqn: str) -> Listed:
    table = view.facts.get("parameters") or []
    return next((p for p in table if isinstance(p, dict) and p.get("fqn") == fqn), _NOT_LISTED)


def _grouped(view: StepView, fqn: str) -> bool | None:
    """Whether an optimizer holds the parameter; None where the trace lists no optimizer."""
    if not view.facts.get("optimizers"):
        return None
    entry = _entry(view, fqn)
    if entry.get("tied_to"):
        entry = _entry(view, str(entry["tied_to"]))
    return entry.get("optimizer_group") is not None


def _settings(view: StepView, fqn: str) -> dict[str, Any]:
    """Settings of the optimizer group that holds the parameter."""
    entry = _entry(view, fqn)
    if entry.get("tied_to"):
        entry = _entry(view, str(entry["tied_to"]))
    group = entry.get("optimizer_group")
    try:
        optimizer = view.facts["optimizers"][group[0]]  # type: ignore[index]
        return {"class": optimizer.get("class"), **optimizer["groups"][group[1]]}  # type: ignore[index]
    except (KeyError, IndexError, TypeError):
        return {}
