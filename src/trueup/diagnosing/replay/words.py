"""A charged record in words: where it is, what it says, which line made it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from trueup.comparing.grounds import times_said
from trueup.diagnosing.replay.absent import Absent
from trueup.diagnosing.replay.judge import Difference
from trueup.diagnosing.replay.step import OUTSIDE, ReplayedStep

MAX_SENTENCES = 8


def site_of(owner: str, where: str) -> str:
    """``layers.0.attn, torch.matmul[1], output.0``."""
    return f"{owner or '(root)'}, {where}"


def place_of(step: ReplayedStep, found: Difference | Absent) -> str:
    """Where in its owner a record is: ``output.0``, ``into drop, input.0``, ``gradient of weight``."""
    call = step.calls[found.call]
    if call.kind == "loss":
        return f"loss {found.slot}"
    if call.kind == "parameter":
        word = call.name.rpartition(".")[2]
        phase = found.phase if isinstance(found, Difference) else "param_grad"
        return word if phase == "param" else f"gradient of {word} ({found.slot})"
    backward = isinstance(found, Absent) or found.phase == "backward"
    slot = f"gradient of {found.slot}" if backward else found.slot
    if call.kind != "module":
        return f"{call.shown}, {slot}"
    if found.slot.startswith("input") == (not backward):
        return f"{'behind' if backward else 'into'} {_short(call.shown)}, {slot}"
    return slot


def _short(name: str) -> str:
    return name.rpartition(".")[2] if not name.rpartition(".")[2].isdigit() else name


def sources_of(step: ReplayedStep, found: Difference | Absent) -> tuple[str | None, str | None]:
    """``file:line`` in target and reference: of an API call its own, of what a module makes itself the line
    of the last call in it, of what goes into a module or comes back to it the line that calls it."""
    call = step.calls[found.call]
    backward = isinstance(found, Absent) or found.phase == "backward"
    own = call.kind == "module" and found.slot.startswith("input") == backward
    at = step.last_inside.get(call.number, call.number) if own else call.number
    if call.kind == "parameter":
        owner = call.name.rpartition(".")[0]
        at = next((c.number for c in step.calls if c.kind == "module" and c.name == owner), call.number)
    return step.sources(at)


def evidence_of(charges: Iterable[tuple[ReplayedStep, Difference | Absent]]) -> list[str]:
    """One sentence a distinct place, the most telling first; how many more there are."""
    said: dict[str, int] = {}
    for step, found in charges:
        sentence = _sentence(step, found)
        said[sentence] = said.get(sentence, 0) + 1
    sentences = list(said)
    more = len(sentences) - MAX_SENTENCES
    return sentences[:MAX_SENTENCES] + ([f"and {more} more tensors of it"] if more > 0 else [])


def _sentence(step: ReplayedStep, found: Difference | Absent) -> str:
    call = step.calls[found.call]
    owner = call.shown if call.kind in ("module", "parameter") else f"{step.module_around(found.call)}"
    owner = "" if owner == OUTSIDE else owner
    if isinstance(found, Absent):
        other = "reference" if found.lacking == "target" else "target"
        return (
            f"backward {found.slot} of {call.shown}: a gradient in the {other} alone, in the "
            f"{found.lacking} none: {found.why}"
        )
    name = call.shown if call.kind != "api" else f"{call.shown} in {owner or 'the program'}"
    return f"{found.phase} {found.slot} of {name}: {_numbers(found)}"


def _numbers(found: Difference) -> str:
    if found.rel_l2 is None or math.isinf(found.rel_l2):
        return "values that cannot be (NaN or infinite on one side, or where the reference is zero)"
    text = f"off by {found.rel_l2:.2g} of its norm"
    if found.tolerance is None:
        text = "not the same values, where nothing is rounded"
    elif found.rel_l2 > found.tolerance:
        basis = "a benign variant shows" if found.measured else "rounding in one call explains"
        basis = "the reference's own distance from the exact loss allows" if found.exact else basis
        text += f", {times_said(found.rel_l2 / found.tolerance)} what {basis}"
    if found.peers:
        text += f", no more than rounding, but {found.peers} others of its kind are equal bit for bit"
    if found.biased and found.scale is not None and found.bias_z is not None:
        times = times_said(abs(found.bias_z))
        text += f"; leans to one side: {found.scale:.6g} times the reference, {times} its standard error"
    return text
