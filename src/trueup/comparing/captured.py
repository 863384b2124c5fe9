"""What one run alone holds: phases of a step that the other's trace has nothing of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PASSES = ("backward", "param_grad", "optimizer")
"""phases every training step has after its loss"""
_MADE_OF_CALLS = ("forward", "backward")
"""phases of which nothing later in the step tells how they agree, call by call"""
_WORDS = {
    "forward": "the forward pass",
    "backward": "the backward pass",
    "param_grad": "the weights' gradients",
    "optimizer": "the optimizer's update",
}
_COMPARED = ("equal", "within_noise", "different", "propagated", "amplified", "origin")
_CHOICES = ("level", "task", "data_mode", "scope", "list")


def unseen(counts: Mapping[tuple[str, str], int]) -> list[str]:
    """Phases with records of which not one could be compared; ``counts`` are by phase and status."""
    return [
        phase
        for phase in PASSES
        if counts.get((phase, "unmatched"), 0) and not any(counts.get((phase, s), 0) for s in _COMPARED)
    ]


def not_paired(counts: Mapping[tuple[str, str], int], alone: Mapping[tuple[str, str], int]) -> list[str]:
    """Phases that both traces hold records of, not one of which has a counterpart; ``alone`` are unmatched
    records by side and phase."""
    matched = {phase for (phase, status), count in counts.items() if count and status != "unmatched"}
    return [
        phase
        for phase in _MADE_OF_CALLS
        if phase not in matched and all(alone.get((side, phase), 0) for side in ("target", "reference"))
    ]


def phases_said(phases: list[str]) -> str:
    """Phases as a person says them."""
    words = [_WORDS[phase] for phase in phases]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def captured_alike(target: Mapping[str, Any], reference: Mapping[str, Any]) -> bool:
    """Whether both manifests tell that the same parts of a step were asked for, so that what one trace lacks
    did not happen there; False where one does not tell."""
    mine, theirs = target.get("options"), reference.get("options")
    if not isinstance(mine, Mapping) or not isinstance(theirs, Mapping):
        return False
    return all(mine.get(name) == theirs.get(name) for name in _CHOICES)


def captures_apart(target: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """In words, what was asked for of the one run and not of the other: ``level L0 in the target, L1 in the
    reference``; empty where both were asked for the same, or one does not tell."""
    mine, theirs = _asked(target), _asked(reference)
    return ", ".join(
        f"{name} {mine[name]} in the target, {theirs[name]} in the reference"
        for name in _CHOICES
        if name in mine and name in theirs and mine[name] != theirs[name]
    )


def _asked(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Choices as a person reads them; of a trace that keeps no options its level and task."""
    options = manifest.get("options")
    told = options if isinstance(options, Mapping) else {}
    found = {name: told.get(name, manifest.get(name)) for name in _CHOICES}
    return {
        name: " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        for name, value in found.items()
        if value is not None
    }
