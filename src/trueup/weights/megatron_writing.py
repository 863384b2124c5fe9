"""A whole model written as Megatron keeps it: a file a rank, weights split as Megatron-core splits them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trueup.errors import ConfigError, WeightsError
from trueup.types.option import expected
from trueup.weights.megatron import (
    ALONG_COLUMNS,
    ALONG_ROWS,
    EXPERT,
    FILES,
    LATEST,
    LAYER,
    sections_of,
)
from trueup.weights.plan import Values
from trueup.weights.torch_file import checkpoints
from trueup.weights.weight_set import WeightSet

_EMBEDDING, _OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
_KNOWN = re.compile(r"(embedding|decoder\.layers|decoder\.final_layernorm|output_layer)\.")
_RELEASE = "release"
"""the folder of weights that belong to no iteration"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronLayout:
    """Sizes of the axes."""

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1


def layout_from_text(text: str, place: str) -> MegatronLayout:
    """``2``, ``2,4`` or ``2,4,8``: tensor, pipeline and expert parallel.

    Raises:
        ConfigError: not of that form.

    Example:
        >>> layout_from_text("2,4", "--split")
        MegatronLayout(tensor=2, pipeline=4, expert=1)
    """
    words = text.split(",")
    if len(words) > 3 or not all(word.strip().isdecimal() and int(word) for word in words):
        raise expected(place, "tensor, pipeline and expert parallel sizes, such as 2,4,1", text)
    tensor, pipeline, expert = [*map(int, words), 1, 1][:3]
    return MegatronLayout(tensor=tensor, pipeline=pipeline, expert=expert)


def write_megatron(
    weights: WeightSet, folder: Path, layout: MegatronLayout, *, num_groups: int | None = None
) -> None:
    """Write ``folder/release/mp_rank_.../model_optim_rng.pt`` of every rank.

    Args:
        weights: under Megatron-core's names.
        num_groups: query groups, which tensor parallelism must not cut; None: not checked.

    Raises:
        ConfigError: a size that does not divide what it splits.
        WeightsError: names that are not Megatron-core's.
    """
    if foreign := [name for name in weights.table if not _KNOWN.match(name)]:
        raise WeightsError(f"{foreign[0]} is no name of Megatron-core's: add --to megatron")
    model = _Model(weights, layout, num_groups)
    for tensor in range(layout.tensor):
        for stage in range(layout.pipeline):
            for expert in range(layout.expert):
                file = folder / _RELEASE / _name(layout, tensor, stage, expert) / FILES[0]
                file.parent.mkdir(parents=True)
                part = model.part(tensor, stage, expert)
                checkpoints().write_megatron_part(file, part, model.arguments)
    (folder / LATEST).write_text(_RELEASE, encoding="utf-8")


def _name(layout: MegatronLayout, tensor: int, stage: int, expert: int) -> str:
    name = f"mp_rank_{tensor:02d}"
    name += f"_{stage:03d}" if layout.pipeline > 1 else ""
    return name + (f"_{expert:03d}" if layout.expert > 1 else "")


class _Model:
    """The whole model, and what each rank holds of it."""

    def __init__(self, weights: WeightSet, layout: MegatronLayout, num_groups: int | None) -> None:
        self._weights, self._layout = weights, layout
        layers = [int(found["number"]) for name in weights.table if (found := LAYER.search(name))]
        experts = [int(found["number"]) for name in weights.table if (found := EXPERT.search(name))]
        self._layers = _share("layers", max(layers, default=-1) + 1, layout.pipeline)
        self._experts = _share("experts", max(experts, default=-1) + 1, layout.expert)
        if num_groups is not None:
            _share("query groups", num_groups, layout.tensor)
        embedding = weights.table.get(_EMBEDDING)
        self._tied = _OUTPUT not in weights.table
        self.arguments: dict[str, object] = {
            "num_layers": self._layers * layout.pipeline,
            "num_experts": self._experts * layout.expert or None,
            "padded_vocab_size": None if embedding is None else embedding.shape[0],
            "tensor_model_parallel_size": layout.tensor,
            "pipeline_model_parallel_size": layout.pipeline,
            "expert_model_parallel_size": layout.expert,
            "untie_embeddings_and_output_weights": not self._tied,
        }

    def part(self, tensor: int, stage: int, expert: int) -> Iterator[tuple[str, str, Values]]:
        """Name, dtype and values of every weight of one rank."""
        last = self._layout.pipeline - 1
        for name, info in self._weights.table.items():
            local = self._local(name, stage, expert)
            if local:
                yield local, info.dtype, self._split(name, tensor)
        if self._tied and last and stage == last:  # the last stage keeps its own copy of the embedding
            yield _OUTPUT, self._weights.table[_EMBEDDING].dtype, self._split(_EMBEDDING, tensor)

    def _local(self, name: str, stage: int, expert: int) -> str:
        """The name on a rank; empty where the rank does not hold the weight."""
        layer = LAYER.search(name)
        at = stage if layer is None else int(layer["number"]) // self._layers
        if layer is None:
            at = 0 if name.startswith("embedding") else self._layout.pipeline - 1
        number = EXPERT.search(name)
        if at != stage or (number is not None and int(number["number"]) // self._experts != expert):
            return ""
        local = LAYER.sub(lambda found: f"{found['before']}{int(found['number']) % self._layers}", name)
        if number is None:
            return local
        return EXPERT.sub(lambda found: f"{found['before']}{int(found['number']) % self._experts}", local)

    def _split(self, name: str, tensor: int) -> Values:
        values, size = self._weights.read(name), self._layout.tensor
        if size == 1:
            return values
        if ALONG_ROWS.search(name):
            sections = sections_of(name, self._weights.table)
            parts = np.split(values, np.cumsum(sections)[:-1]) if sections else [values]
            return np.concatenate([_cut(name, part, 0, tensor, size) for part in parts])
        if ALONG_COLUMNS.search(name):
            return np.ascontiguousarray(_cut(name, values, 1, tensor, size))
        return values


def _cut(name: str, values: Values, dim: int, tensor: int, size: int) -> Values:
    each = _share(f"{'rows' if dim == 0 else 'columns'} of {name}", values.shape[dim], size)
    return np.take(values, range(tensor * each, (tensor + 1) * each), axis=dim)


def _share(what: str, number: int, size: int) -> int:
    if number % size:
        raise ConfigError(f"--split: {number} {what} do not divide into {size} parts")
    return number // size
