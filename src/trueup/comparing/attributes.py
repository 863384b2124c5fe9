"""Plain attributes of modules, such as ``eps``: where those of an origin's module differ, they cause it.

A coarse dtype hides what a constant changes. Where a module is given the same bits in both runs, makes others
of them within rounding, and holds another constant, that is a difference of the runs as a declared setting of
the optimizer is (docs/decisions/0039-what-a-coarse-dtype-hides.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from trueup.comparing.first import First
from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import StepRows
from trueup.comparing.thresholds import ROUNDED_SETTING
from trueup.store import TraceSource
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.reason import reason
from trueup.types.site import shown_name

Attributes = Mapping[str, Mapping[str, object]]
"""module -> name -> value"""
_USED_IN = ("forward", "loss", "backward", "param_grad")
INITIAL = ("padding_idx",)
"""attributes that initial weights depend on: an embedding's row of padding is 0"""
TRAINING = "training"
"""whether a module was in training mode when it was first called with gradients; of a model that never is,
when it was first called"""


def attributes_of(trace: TraceSource) -> Attributes:
    """What capture kept of the first rank's modules."""
    ranks = min(trace.steps().values(), default=[0])
    return trace.rank_facts(ranks[0]).get("settings") or {}


def apart(module: str, target: Attributes, reference: Attributes) -> dict[str, tuple[object, object]]:
    """Attributes of a module that both runs recorded and that differ. Whether it is in training counts where
    that changes what it computes."""
    own, others = target.get(module, {}), reference.get(module, {})
    found = {
        name: (value, others[name]) for name, value in own.items() if name in others and value != others[name]
    }
    if TRAINING in found and not any(_acts_in_training(module, of) for of in (target, reference)):
        del found[TRAINING]
    return found


def _acts_in_training(module: str, attributes: Attributes) -> bool:
    """Whether a module, or one inside it, drops elements or keeps running statistics: by nothing else do
    modules of torch compute otherwise in evaluation. What a module of the program does that asks for its mode
    and says of neither is not known."""
    own = attributes.get(module, {})
    if TRAINING in own and not any(_is_of_mode(name) for name in own):
        return True
    inside = (of for name, of in attributes.items() if name == module or name.startswith(f"{module}."))
    return any(
        (name == "track_running_stats" and value is True)
        or (_is_of_rate(name) and isinstance(value, float) and 0 < value <= 1)
        for of in inside
        for name, value in of.items()
    )


def _is_of_rate(name: str) -> bool:
    return name == "p" or "drop" in name


def _is_of_mode(name: str) -> bool:
    return name == "track_running_stats" or _is_of_rate(name)


def explain_by_attributes(origin: First, target: Attributes, reference: Attributes) -> None:
    """Note in ``origin`` the attributes of its module that differ; the first becomes its headline unless a
    call has an argument that differs."""
    phase = origin.row.phase
    if origin.owner is None or phase not in (*_USED_IN, "param"):
        return
    found = [
        {"name": name, "target": str(value), "reference": str(other)}
        for name, (value, other) in apart(origin.owner, target, reference).items()
        if phase != "param" or name in INITIAL
    ]
    if not found:
        return
    where = shown_name(origin.owner)
    parts = [reason(EvidenceCode.ARGUMENT_DIFFERS, **one) for one in found]
    origin.arguments.append(reason(EvidenceCode.ARGUMENTS_DIFFER, *parts, site=where))
    of_module = origin.row.kind == "module" and origin.row.name == origin.owner
    what = (origin.row.type if of_module else None) or "attribute"
    origin.argument = origin.argument or reason(
        VerdictCode.ARGUMENT_DIFFERS,
        what=what,
        name=found[0]["name"],
        module=origin.owner,
        target=found[0]["target"],
        reference=found[0]["reference"],
    )


def module_of_other_constant(
    rows: StepRows, metrics: Metrics, target: Attributes, reference: Attributes
) -> int | None:
    """The first output of a module that holds another constant, and in training makes other bits of bit-equal
    inputs and weights, while all that is called inside it makes the same; None where there is none."""
    modules = {
        module
        for module in target.keys() & reference.keys()
        if any(
            _are_other_constants(value, reference[module][name])
            for name, value in target[module].items()
            if name in reference[module]
        )
    }
    if not modules:
        return None
    words, call, parents = rows.match.words.name, rows.target.call, rows.match.target.parent
    unlike = ~rows.paired | ~metrics.bits_equal
    forward, num = rows.phase_is("forward") & (call >= 0), rows.match.target.num_calls
    given = np.zeros(num, bool)
    given[call[forward & rows.slot_starts("input") & ~unlike]] = True
    given[call[forward & rows.slot_starts("input") & unlike]] = False
    makes_others = np.zeros(num, bool)
    makes_others[call[forward & rows.slot_starts("output") & rows.paired & unlike]] = True
    inside = parents[makes_others]
    makes_others[inside[inside >= 0]] = False
    changed = np.maximum.accumulate(rows.phase_is("param") & unlike)
    at = forward & rows.slot_starts("output") & rows.kind_is("module") & rows.mode_is("train") & ~changed
    at &= rows.paired & unlike & (given & makes_others)[np.maximum(call, 0)]
    names = rows.of_call("name")
    return next((row for row in np.flatnonzero(at).tolist() if words[names[row]] in modules), None)


def _are_other_constants(target: object, reference: object) -> bool:
    """Two numbers, or a number and none, which stands for one that the framework takes (eps of a dtype)."""
    if target is None or reference is None:
        return isinstance(reference if target is None else target, float)
    if not isinstance(target, float) or not isinstance(reference, float):
        return False
    return not math.isclose(target, reference, rel_tol=ROUNDED_SETTING)
