"""Plain attributes of modules, such as ``eps``: where those of an origin's module differ, they cause it."""

from __future__ import annotations

from collections.abc import Mapping

from trueup.comparing.first import First
from trueup.store import TraceSource
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.reason import reason
from trueup.types.site import shown_name

Attributes = Mapping[str, Mapping[str, object]]
"""module -> name -> value"""
_USED_IN = ("forward", "loss", "backward", "param_grad")
INITIAL = ("padding_idx",)
"""attributes that initial weights depend on: an embedding's row of padding is 0"""


def attributes_of(trace: TraceSource) -> Attributes:
    """What capture kept of the first rank's modules."""
    ranks = min(trace.steps().values(), default=[0])
    return trace.rank_facts(ranks[0]).get("settings") or {}


def explain_by_attributes(origin: First, target: Attributes, reference: Attributes) -> None:
    """Note in ``origin`` the attributes of its module that differ; the first becomes its headline unless a
    call has an argument that differs."""
    phase = origin.row.phase
    if origin.owner is None or phase not in (*_USED_IN, "param"):
        return
    ours, others = target.get(origin.owner, {}), reference.get(origin.owner, {})
    apart = [
        {"name": name, "target": str(value), "reference": str(others[name])}
        for name, value in ours.items()
        if name in others and value != others[name] and (phase != "param" or name in INITIAL)
    ]
    if not apart:
        return
    where = shown_name(origin.owner)
    parts = [reason(EvidenceCode.ARGUMENT_DIFFERS, **one) for one in apart]
    origin.arguments.append(reason(EvidenceCode.ARGUMENTS_DIFFER, *parts, site=where))
    of_module = origin.row.kind == "module" and origin.row.name == origin.owner
    what = (origin.row.type if of_module else None) or "attribute"
    origin.argument = origin.argument or reason(
        VerdictCode.ARGUMENT_DIFFERS,
        what=what,
        name=apart[0]["name"],
        module=origin.owner,
        target=apart[0]["target"],
        reference=apart[0]["reference"],
    )
