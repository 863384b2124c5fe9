"""Another run's gradients put in place of the program's own, at the end of a backward: what clipping and the
optimizer make of them is then judged alone. Which, when and what is said of it; each framework writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from trueup.types.arrays import Array
from trueup.types.codes import LeftFree
from trueup.types.reason import Reason, reason

PLAN = "plan.json"
GRADIENT_NOT_IN_REFERENCE = Reason(LeftFree.GRADIENT_NOT_IN_REFERENCE)
Parameter = TypeVar("Parameter")


class BaseGivenGradients(Generic[Parameter]):
    """Gradients of one rank, by the program's own names of its parameters; given in one step alone.

    ``folder`` holds ``plan.json`` (``microbatches``, ``loss_scale`` a rank) and one safetensors file a rank,
    as ``trueup.diagnosing.gradients`` writes them.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        from safetensors.numpy import load_file

        plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        held = plan["ranks"][min(rank, len(plan["ranks"]) - 1)]
        self._arrays: dict[str, Array] = load_file(folder / held["file"])
        self._absent: frozenset[str] = frozenset(held["absent"])
        self._microbatches: int = held["microbatches"]
        self._scale: float = held["loss_scale"] or 1.0
        self._recorder: object = None
        self.replaced: dict[str, None] = {}
        self.free: dict[str, Reason] = {}
        """fqn -> why its own gradient stayed"""

    def due(self, recorder: object, microbatch: int) -> bool:
        """Whether the backward that has just ended is the one: the last of the first captured step."""
        if self._recorder is None:
            self._recorder = recorder
        return self._recorder is recorder and microbatch + 1 >= self._microbatches

    def put(self, parameters: Iterable[tuple[Parameter, str]], *, scale: float) -> None:
        """Write the gradients, in units of the program's own loss scale."""
        for parameter, fqn in parameters:
            if fqn in self._absent:
                why = self._take_away(parameter)
            elif fqn in self._arrays:
                factor = scale / self._scale
                given = self._arrays[fqn]
                why = self._put(parameter, given if factor == 1.0 else given.astype(np.float64) * factor)
            else:
                why = GRADIENT_NOT_IN_REFERENCE
            if why is None:
                self.replaced[fqn] = None
                self.free.pop(fqn, None)
            else:
                self.free[fqn] = why

    def _put(self, parameter: Parameter, given: Array) -> Reason | None:
        """Write one; None, or why the parameter's own gradient stays."""
        raise NotImplementedError

    def _take_away(self, parameter: Parameter) -> Reason | None:
        """Leave the parameter without a gradient; None, or why that cannot be."""
        raise NotImplementedError

    def facts(self) -> dict[str, object]:
        """What the trace says of it."""
        return {
            "replaced": list(self.replaced),
            "free": [{"fqn": fqn, "reason": why.to_json()} for fqn, why in self.free.items()],
        }


def shape_differs(shape: Iterable[int], given: Array) -> Reason:
    """Why a gradient of another shape than the reference's is left."""
    return reason(LeftFree.GRADIENT_SHAPE_DIFFERS, target=str(list(shape)), reference=str(list(given.shape)))
