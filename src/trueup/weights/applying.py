"""A plan put to work: the weights it makes, read one at a time, and its check against a target's table."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from trueup.errors import ConfigError
from trueup.weights.plan import ConversionPlan, PlannedWeight, Values, made
from trueup.weights.shapes import Shape, made_shape
from trueup.weights.weight_set import Table, WeightInfo, WeightSet, known, rows_of_vocabulary


class PlannedWeights:
    """A ``WeightSet`` of the entries of a plan; dtypes stay those of the source.

    Raises:
        ConfigError: two entries of one name, an entry names a weight the source lacks, pieces of different
            dtypes, or steps that do not fit. All of it is found here, before a value is read.
    """

    def __init__(self, plan: ConversionPlan, source: WeightSet) -> None:
        self.path: Path = source.path
        self.remarks: tuple[str, ...] = source.remarks
        self.vocabulary = rows_of_vocabulary(source)
        self._source = source
        self._entries: dict[str, PlannedWeight] = {entry.target: entry for entry in plan.entries}
        if len(self._entries) < len(plan.entries):
            names = [entry.target for entry in plan.entries]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"the plan makes {twice!r} twice")
        self.table: Table = {name: self._info(entry) for name, entry in self._entries.items()}

    def read(self, name: str) -> Values:
        """One weight, made anew on every call."""
        return made(self._entries[known(self, name)], self._source.read)

    def _info(self, entry: PlannedWeight) -> WeightInfo:
        for piece in entry.pieces:
            if piece.source not in self._source.table:
                raise ConfigError(_missing(entry, piece.source, self._source))
        shape = made_shape(entry, lambda name: self._source.table[name].shape)
        dtypes = list(dict.fromkeys(self._source.table[piece.source].dtype for piece in entry.pieces))
        if len(dtypes) > 1:
            raise ConfigError(f"{entry.target}: its pieces are of different dtypes ({', '.join(dtypes)})")
        return WeightInfo(name=entry.target, dtype=dtypes[0], shape=shape)


def _missing(entry: PlannedWeight, name: str, source: WeightSet) -> str:
    near = get_close_matches(name, list(source.table), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{entry.target} is to be made of {name}, which {source.path} does not have{hint}"


def apply_plan(plan: ConversionPlan, source: WeightSet) -> PlannedWeights:
    """The weights ``plan`` makes of ``source``; see ``PlannedWeights`` for what it raises."""
    return PlannedWeights(plan, source)


def unused_sources(plan: ConversionPlan, source: Table) -> list[str]:
    """Source weights that no entry takes, but for those the plan itself leaves over."""
    used = {piece.source for entry in plan.entries for piece in entry.pieces} | set(plan.only_source)
    return [name for name in source if name not in used]


def misfits(made_table: Table, target: Mapping[str, Shape]) -> list[str]:
    """Sentences, one each weight in which what was made and what the target wants do not fit.

    Args:
        made_table: of the converted weights.
        target: shape by name.
    """
    found = [
        f"{name}: made {list(made_table[name].shape)}, wanted {list(shape)}"
        for name, shape in target.items()
        if name in made_table and made_table[name].shape != tuple(shape)
    ]
    found += [f"{name}: wanted, and nothing makes it" for name in target if name not in made_table]
    return found + [f"{name}: made, and not wanted" for name in made_table if name not in target]
