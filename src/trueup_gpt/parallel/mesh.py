"""The processes as a mesh. Axes, slowest first: pp pipeline, edp and ep together data, cp context, tp tensor.

Experts are cut over ``ep``, a part of the data-parallel ranks: what is not an expert is replicated over it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trueup_gpt.config import Config, check_combinations, data_parallel_size

AXES = ("pp", "edp", "ep", "cp", "tp")
DATA = ("edp", "ep")
DATA_AXES = ("edp", "ep", "cp")
"""along which gradients are reduced and ZeRO cuts"""
GROUPS: tuple[tuple[str, ...], ...] = (
    *((axis,) for axis in AXES),
    DATA,
    ("edp", "ep", "cp"),
    ("edp", "ep", "cp", "tp"),
    ("edp", "cp"),
    ("edp", "cp", "tp"),
)
"""made at the start, by all processes in the same order"""


@dataclass(slots=True)
class Mesh:
    """Sizes of the axes, and one process's place on them."""

    sizes: dict[str, int]
    rank: int

    def axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Those of ``axes`` that have more than one process, in the mesh's order."""
        return tuple(axis for axis in AXES if axis in axes and self.sizes[axis] > 1)

    def size(self, *axes: str) -> int:
        """Processes along these axes together."""
        return math.prod(self.sizes[axis] for axis in axes)

    def coordinate(self, *axes: str) -> int:
        """This process's number along these axes together."""
        place, found = self.rank, {}
        for axis in reversed(AXES):
            place, found[axis] = divmod(place, self.sizes[axis])
        number = 0
        for axis in AXES:
            if axis in axes:
                number = number * self.sizes[axis] + found[axis]
        return number

    def peers(self, *axes: str) -> list[int]:
        """Global ranks along these axes together through this process, in order."""
        found = [self.rank]
        for axis in self.axes(axes):
            stride = math.prod(self.sizes[other] for other in AXES[AXES.index(axis) + 1 :])
            own = self.coordinate(axis)
            found = [rank + (number - own) * stride for rank in found for number in range(self.sizes[axis])]
        return found

    def __str__(self) -> str:
        """Such as ``dp 2 | pp 2 | tp 2``."""
        shown = [("dp", self.size(*DATA)), ("pp", self.sizes["pp"]), ("tp", self.sizes["tp"])]
        shown += [(axis, self.sizes[axis]) for axis in ("cp", "ep") if self.sizes[axis] > 1]
        return " | ".join(f"{name} {size}" for name, size in shown)


def mesh_sizes(config: Config, world_size: int) -> dict[str, int]:
    """Processes along each axis.

    Raises:
        ConfigError: the configuration does not fit this number of processes.
    """
    check_combinations(config, world_size)
    parallel, dp = config.parallel, data_parallel_size(config, world_size)
    ep = parallel.expert_model_parallel_size
    return {
        "pp": parallel.pipeline_model_parallel_size,
        "edp": dp // ep,
        "ep": ep,
        "cp": parallel.context_parallel_size,
        "tp": parallel.tensor_model_parallel_size,
    }
