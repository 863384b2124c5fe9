"""Where in a program a tensor was seen."""

from __future__ import annotations

from enum import Enum


class Phase(str, Enum):
    """Which part of a training step a record belongs to, in execution order."""

    PARAM = "param"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    PARAM_GRAD = "param_grad"
    COLLECTIVE = "collective"
    OPTIMIZER = "optimizer"


def shown_name(name: str) -> str:
    """The name of a module or call as a person sees it: the root is called so, a blank one is quoted."""
    if not name:
        return "(root)"
    return name if name.strip() else f"'{name}'"
