"""Several files of weights as one: the shards of a folder, or what each rank saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trueup.errors import WeightsError
from trueup.weights.plan import Values
from trueup.weights.weight_set import Table, WeightSet, known, same_bits


class SeveralFiles:
    """A ``WeightSet`` over the weights of all ``parts``.

    A name that several parts have is taken once if the bits are the same (replicas). If they are not, each
    part holds a shard of it, and how they are joined only the training program's layout says.

    Raises:
        WeightsError: parts hold different values under one name.
    """

    def __init__(self, path: Path, parts: Sequence[WeightSet]) -> None:
        self.path = path
        self.remarks: tuple[str, ...] = tuple(dict.fromkeys(s for part in parts for s in part.remarks))
        self._home: dict[str, WeightSet] = {}
        for part in parts:
            for name in part.table:
                other = self._home.setdefault(name, part)
                if other is not part:
                    _check_same(name, other, part)
        self.table: Table = {name: part.table[name] for name, part in self._home.items()}

    def read(self, name: str) -> Values:
        """Values of one weight, from the part that has it."""
        return self._home[known(self, name)].read(name)


def _check_same(name: str, one: WeightSet, other: WeightSet) -> None:
    if one.table[name] == other.table[name] and same_bits(one.read(name), other.read(name)):
        return
    raise WeightsError(
        f"{one.path} and {other.path} hold different values of {name}. Of different steps? Give one of them. "
        "Are they shards? Merge them first (MindSpore: transform_checkpoints; Megatron: its converter)."
    )
