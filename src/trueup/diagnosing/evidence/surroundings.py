"""The call that made a tensor, and the module whose own code it belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial

import numpy as np

from trueup.diagnosing.evidence.facts import TENSOR, Known, Maker, NeighbourCall, SlotPair, Surroundings
from trueup.diagnosing.evidence.places import PairedOrigin
from trueup.diagnosing.evidence.tensors import known_tensor
from trueup.matching.names import family, relative
from trueup.store import StepView
from trueup.store.code import CalledFunction, code_of
from trueup.types.reason import Json

MAX_NEARBY = 400
"""records of a module's own calls that are looked at"""
MAX_NEIGHBOURS = 400
Token = tuple[str, str]
"""what calls of two sides are aligned by: kind, and name within the module or family of functions"""


def surroundings_of(place: PairedOrigin) -> Surroundings:
    """What stands around an origin in both traces."""
    t, r = place.target, place.reference
    side, call = (t, place.target_call) if place.target_call >= 0 else (r, place.reference_call)
    if side is None or call < 0:
        return Surroundings(module=place.origin.module)
    body_t = _body(t, place.target_call, place)
    body_r = -2 if r is None else _body(r, place.reference_call, place)
    body = body_t if side is t else body_r
    module = side.name[body] if body >= 0 else (place.origin.module or "")
    phase = "backward" if place.origin.phase == "backward" else "forward"
    return Surroundings(
        kind=side.kind[call],
        name=side.name[call],
        type=side.type[body] if body >= 0 else None,
        called_type=side.type[call],
        module=module,
        microbatch=side.microbatch[call] or 0,
        inputs=_slots(place, "forward", "input"),
        outputs=_slots(place, "forward", "output"),
        nearby=_nearby(place, body_t, body_r, phase),
        parameters=_parameters(place, module, body_r),
        buffers=_buffers(place, module, body_r),
        neighbours=_neighbours(place, body_t, body_r),
        makers=tuple(_makers(place)) if place.origin.phase == "forward" else (),
    )


# In one piece: one search a run, of which each condition leaves something out.
def _makers(place: PairedOrigin) -> Iterator[Maker]:
    """Of each run's tensor, unless the origin is the call itself that makes it."""
    sides = (
        ("target", place.target, place.target_record, place.target_call),
        ("reference", place.reference, place.reference_record, place.reference_call),
    )
    for side, view, record, own in sides:
        content = None if view is None or record is None else view.content[record]
        if view is None or record is None or content is None:
            continue
        calls = [
            view.record_call[one]
            for one, held in enumerate(view.content)
            if held == content and view.phase[one] == "forward" and view.slot[one].startswith("output")
        ]
        made = next(
            (c for c in calls if view.kind[c] == "module" and c != own and _makes(view, c, content)), None
        )
        if made is None or view.microbatch[made] != view.microbatch[own]:
            continue
        given = (known_tensor(view, one) for one in view.records(made, "forward") if _is_given(view, one))
        shape = tuple(view.shape(record) or ())
        fitting = tuple(one for one in given if one is not None and one.is_floating and one.shape == shape)
        yield Maker(side=side, module=view.name[made], type=view.type[made], given=fitting)


def _makes(view: StepView, call: int, content: int) -> bool:
    """Whether a call is the innermost that returned a content, and was not given it."""
    is_passed_on = any(
        view.content[one] == content for one in view.records(call, "forward") if _is_given(view, one)
    )
    inside = (
        view.content[one] == content
        for child in view.children(call)
        for one in view.records(child, "forward")
        if view.kind[child] == "module"
    )
    return not is_passed_on and not any(inside)


def _is_given(view: StepView, record: int) -> bool:
    return view.slot[record].startswith("input")


def _body(view: StepView, call: int, place: PairedOrigin) -> int:
    """The module call whose own code made the tensor; -1 is the top level, -2 nowhere."""
    if call < 0:
        return -2
    if view.kind[call] == "parameter":
        owners = view.named("module", view.name[call].rpartition(".")[0])
        return next((c for c in owners if view.mode[c] == "train"), -2)
    made_inside = view.kind[call] == "module" and (
        place.origin.phase,
        place.origin.slot.partition(".")[0],
    ) in (("forward", "output"), ("backward", "input"))
    return call if made_inside else view.parent[call]


def _slots(place: PairedOrigin, phase: str, head: str) -> tuple[SlotPair, ...]:
    target = _by_slot(place.target, place.target_call, phase, head)
    reference = (
        {} if place.reference is None else _by_slot(place.reference, place.reference_call, phase, head)
    )
    return tuple(
        _pair(place, slot, target.get(slot), reference.get(slot))
        for slot in dict.fromkeys([*target, *reference])
    )


def _by_slot(view: StepView, call: int, phase: str, head: str) -> dict[str, int]:
    if call < 0:
        return {}
    found = view.records(call, phase)
    return {view.slot[r]: r for r in found if view.slot[r].partition(".")[0] == head}


def _pair(place: PairedOrigin, slot: str, target: int | None, reference: int | None) -> SlotPair:
    return SlotPair(
        slot=slot,
        target=None if target is None else known_tensor(place.target, target),
        reference=None
        if reference is None or place.reference is None
        else known_tensor(place.reference, reference),
        forced=target is not None and target in place.target.holding_reference,
    )


def _paired_calls(place: PairedOrigin, body_t: int, body_r: int) -> list[tuple[int, int]]:
    """Calls with values directly inside the module, aligned; -1 where one side has none."""
    target = _own_calls(place.target, body_t, place.target_call)
    reference = [] if place.reference is None else _own_calls(place.reference, body_r, place.reference_call)
    if place.reference is None:
        return [(c, -1) for c in target]
    tokens = (
        [_token(place.target, c, body_t) for c in target],
        [_token(place.reference, c, body_r) for c in reference],
    )
    return [(_at(target, i), _at(reference, k)) for i, k in _aligned(*tokens)]


def _at(calls: list[int], index: int) -> int:
    return -1 if index < 0 else calls[index]


def _own_calls(view: StepView, body: int, call: int) -> list[int]:
    """Children of the module call; at top level those of the same microbatch and mode, around the call."""
    if body == -2:
        return []
    found = [c for c in view.children(body) if view.kind[c] != "parameter"]
    if body == -1 and call >= 0:
        found = [
            c
            for c in found
            if view.microbatch[c] == view.microbatch[call] and view.mode[c] == view.mode[call]
        ]
    if len(found) > MAX_NEIGHBOURS:
        at = found.index(call) if call in found else 0
        found = found[max(at - MAX_NEIGHBOURS // 2, 0) :][:MAX_NEIGHBOURS]
    return found


def _token(view: StepView, call: int, body: int) -> Token:
    name = view.name[call]
    if view.kind[call] == "module":
        return "module", relative(name, view.name[body]) if body >= 0 else name
    return view.kind[call], family(name)


def _nearby(place: PairedOrigin, body_t: int, body_r: int, phase: str) -> tuple[SlotPair, ...]:
    """What a module's own calls were given and gave, and it itself; not what it makes of them in the end,
    which is no part of what it is made from."""
    found: list[SlotPair] = []
    calls = [(body_t, body_r), *_paired_calls(place, body_t, body_r)]
    is_inside = place.origin.phase in ("forward", "backward")
    made = "output" if phase == "forward" else "input"
    for number, (call_t, call_r) in enumerate(calls):
        target = _all_slots(place.target, call_t, phase)
        reference = {} if place.reference is None else _all_slots(place.reference, call_r, phase)
        for slot in dict.fromkeys([*target, *reference]):
            t, r = target.get(slot), reference.get(slot)
            if t == place.target_record and t is not None:
                continue
            if not number and slot.startswith(made) and call_t != place.target_call and is_inside:
                continue
            found.append(_pair(place, slot, t, r))
        if len(found) > MAX_NEARBY:
            break
    return tuple(found)


def _all_slots(view: StepView, call: int, phase: str) -> dict[str, int]:
    return {} if call < 0 else {view.slot[r]: r for r in view.records(call, phase)}


def _parameters(place: PairedOrigin, module: str, body_r: int) -> tuple[SlotPair, ...]:
    own = _own_parameters(place.target, module)
    if place.reference is None:
        return tuple(_pair(place, name, record, None) for name, record in own.items())
    others = _own_parameters(place.reference, place.reference.name[body_r] if body_r >= 0 else module)
    found = []
    for name, record in own.items():
        partner = name if name in others else _same_content(place, record, others, own)
        found.append(_pair(place, name, record, None if partner is None else others.pop(partner)))
    return (*found, *(_pair(place, name, None, record) for name, record in others.items()))


def _buffers(place: PairedOrigin, module: str, body_r: int) -> tuple[SlotPair, ...]:
    own = _own_buffers(place.target, module)
    r = place.reference
    others = {} if r is None else _own_buffers(r, r.name[body_r] if body_r >= 0 else module)
    names = dict.fromkeys((*own, *others))
    return tuple(SlotPair(slot=name, target=own.get(name), reference=others.get(name)) for name in names)


def _own_buffers(view: StepView, module: str) -> dict[str, Known]:
    """Name in its module -> what is known, of the buffers whose numbers the trace keeps."""
    found = {}
    for one in view.source.rank_facts(view.rank).get("buffers") or ():
        owner, _, name = one["fqn"].rpartition(".")
        values = one.get("values")
        if owner == module and values is not None:
            found[name] = Known(
                one["fqn"],
                dtype="float64",
                shape=tuple(one["shape"]),
                statistics={},
                raw=partial(np.array, values, np.float64),
            )
    return found


def _own_parameters(view: StepView, module: str) -> dict[str, int | None]:
    """Name in its module -> value, of the weights that a module holds itself."""
    head = module + "." if module else ""
    names = dict.fromkeys(view.name[c] for c in view.calls_of_kind("parameter"))
    inside = (name[len(head) :] for name in names if name.startswith(head))
    return {name: _value(view, head + name) for name in inside if "." not in name}


def _same_content(
    place: PairedOrigin, record: int | None, others: dict[str, int | None], own: dict[str, int | None]
) -> str | None:
    """The reference's weight of another name that holds the same bits: a port has its own names."""
    if record is None or place.reference is None:
        return None
    content = place.target.digest(record), place.target.shape(record)
    if content[0] is None:
        return None
    for name, other in others.items():
        if name in own or other is None:
            continue
        if (place.reference.digest(other), place.reference.shape(other)) == content:
            return name
    return None


def _value(view: StepView | None, fqn: str) -> int | None:
    call = None if view is None else view.parameter_call(fqn)
    return None if view is None or call is None else view.record(call, "param", "value")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A call that a module's own code makes: one with values, or a function whose name alone was kept."""

    kind: str
    name: str
    token: Token
    ordinal: int = 0
    arguments: Mapping[str, Json]
    dtypes: tuple[str, ...] = ()
    """of its forward records"""
    call: int = -1

    @property
    def is_by_name(self) -> bool:
        """Whether none of its tensors is known."""
        return self.call < 0


def _neighbours(place: PairedOrigin, body_t: int, body_r: int) -> tuple[NeighbourCall, ...]:
    target = _made(place.target, body_t, place.target_call)
    reference = [] if place.reference is None else _made(place.reference, body_r, place.reference_call)
    sides = [one for one in (place.target, place.reference) if one is not None]
    with_arguments = [one.kinds_with_arguments for one in sides]
    named = all(any(one.is_by_name for one in made) for made in (target, reference))
    found = []
    before = True
    for i, k in _aligned([one.token for one in target], [one.token for one in reference]):
        one, other = (None if i < 0 else target[i]), (None if k < 0 else reference[k])
        shown = target[i] if i >= 0 else reference[k]
        is_known = named if shown.is_by_name else all(shown.kind in kinds for kinds in with_arguments)
        is_own = _is(one, place.target_call) or _is(other, place.reference_call)
        found.append(_neighbour(one, other, before=before, own=is_own, arguments_recorded=is_known))
        before = before and not is_own
    return tuple(found)


def _is(one: _Made | None, call: int) -> bool:
    return one is not None and one.call == call >= 0


def _neighbour(one: _Made | None, other: _Made | None, **known: bool) -> NeighbourCall:
    shown = one or other
    assert shown is not None, "a neighbour is a call of one side at least"
    return NeighbourCall(
        name=shown.name,
        kind=shown.kind,
        ordinal=shown.ordinal,
        target=None if one is None else one.arguments,
        reference=None if other is None else other.arguments,
        target_dtypes=() if one is None else one.dtypes,
        reference_dtypes=() if other is None else other.dtypes,
        reference_name=None if other is None else other.name,
        is_by_name=shown.is_by_name,
        **known,
    )


def _made(view: StepView, body: int, call: int) -> list[_Made]:
    """The calls directly inside a module, in order, and the functions between them."""
    own = _own_calls(view, body, call)
    made = [
        _Made(
            kind=view.kind[one],
            name=view.name[one],
            token=_token(view, one, body),
            ordinal=view.ordinal[one],
            arguments={**_tensors(view, one), **view.arguments(one)},
            dtypes=_dtypes(view, one),
            call=one,
        )
        for one in own
    ]
    functions = () if body == -2 or "api" in view.kind else _functions(view, body)
    if not functions:
        return made
    place = {one: at for at, one in enumerate(view.children(body))}
    ordered = [(float(place[one.call]), one) for one in made]
    if body == -1:  # before a loss stand the batch, the model, and what is made of its results
        functions = tuple(one for one in functions if one.after == place.get(call))
    for function in functions:
        named = _Made(
            kind="api",
            name=function.name,
            token=("api", family(function.name)),
            arguments={**dict.fromkeys(function.tensors, TENSOR), **function.arguments},
        )
        ordered.append((function.after - 0.5, named))
    return [one for _, one in sorted(ordered, key=lambda pair: pair[0])]


def _tensors(view: StepView, call: int) -> dict[str, Json]:
    if view.kind[call] != "api":
        return {}
    return {view.slot[r]: TENSOR for r in view.records(call, "forward") if view.slot[r].startswith("input")}


def _functions(view: StepView, body: int) -> tuple[CalledFunction, ...]:
    """Those that a module's own code called in its first pass; its later passes run the same code."""
    code = view.once(_functions, lambda: code_of(view.source, view.rank))
    return () if code is None else code.called.get(view.name[body] if body >= 0 else None, ())


def _aligned(target: list[Token], reference: list[Token]) -> list[tuple[int, int]]:
    """Indices into both, in order; -1 where one side has none."""
    if not reference:
        return [(i, -1) for i in range(len(target))]
    pairs: list[tuple[int, int]] = []
    for tag, i, j, k, m in SequenceMatcher(None, target, reference, autojunk=False).get_opcodes():
        if tag == "equal":
            pairs += zip(range(i, j), range(k, m), strict=True)
        else:
            pairs += [(at, -1) for at in range(i, j)] + [(-1, at) for at in range(k, m)]
    return pairs


def _dtypes(view: StepView, call: int) -> tuple[str, ...]:
    if call < 0:
        return ()
    return tuple(view.dtype(r) or "" for r in view.records(call, "forward"))
