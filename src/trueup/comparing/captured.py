"""What one run alone holds: phases of a step that the other's trace has nothing of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PASSES = ("backward", "param_grad", "optimizer")
"""phases every training step has after its loss"""
_WORDS = {
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
