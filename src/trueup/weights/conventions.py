"""PyTorch's and MindSpore's names of the same layers, one for the other (maps/conventions/*.yaml)."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

import yaml
from pydantic import BaseModel, ConfigDict

from trueup.weights.plan import ConversionPlan, PlannedWeight, SourcePiece
from trueup.weights.weight_set import Table

FRAMEWORKS = ("mindspore", "torch")


class LayerKind(BaseModel):
    """Layers of one kind and their names.

    Attributes:
        torch_has: names a layer must have to be of this kind.
        weight_dims: dimensions of its ``weight``, where that matters.
        called: patterns of the last component of the layer's own name, where that matters.
        names: PyTorch's name to MindSpore's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    torch_has: tuple[str, ...]
    weight_dims: int | None = None
    called: tuple[str, ...] = ()
    names: dict[str, str]


class Conventions(BaseModel):
    """All kinds of layers, the first that fits first, and what only PyTorch keeps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: tuple[LayerKind, ...]
    torch_only: tuple[str, ...]


@cache
def conventions() -> Conventions:
    """The table of maps/conventions/mindspore.yaml."""
    path = resources.files("trueup.weights") / "maps" / "conventions" / "mindspore.yaml"
    return Conventions.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def plan_to_framework(source: Table, framework: str) -> ConversionPlan:
    """The plan that renames ``source`` as layers of ``framework`` name their weights; values stay.

    What no kind fits keeps its name: linear and convolution layers use the same names. PyTorch's
    ``num_batches_tracked``, which MindSpore does not keep, is left in ``only_source``.

    Example:
        >>> one = {"norm.gamma": WeightInfo(name="norm.gamma", dtype="float32", shape=(4,))}
        >>> plan_to_framework(one, "torch").entries[0].target
        'norm.weight'
    """
    rename = _to_torch(source) if framework == "torch" else _to_mindspore(source)
    dropped = () if framework == "torch" else conventions().torch_only
    kept = [name for name in source if name.rpartition(".")[2] not in dropped]
    entries = (
        PlannedWeight(target=rename.get(name, name), pieces=(SourcePiece(source=name),), how="map")
        for name in kept
    )
    return ConversionPlan(
        entries=tuple(entries), only_source=tuple(name for name in source if name not in kept)
    )


def _to_torch(source: Table) -> dict[str, str]:
    names = {
        own_name: reference for kind in conventions().layers for reference, own_name in kind.names.items()
    }
    split = ((name, *name.rpartition(".")) for name in source)
    return {name: f"{path}{dot}{names[last]}" for name, path, dot, last in split if last in names}


def _to_mindspore(source: Table) -> dict[str, str]:
    layers: dict[str, list[str]] = {}
    for name in source:
        path, _, last = name.rpartition(".")
        layers.setdefault(path, []).append(last)
    renamed: dict[str, str] = {}
    for path, lasts in layers.items():
        kind = next((kind for kind in conventions().layers if _fits(kind, path, lasts, source)), None)
        if kind is not None:
            prefix = f"{path}." if path else ""
            renamed |= {prefix + last: prefix + kind.names.get(last, last) for last in lasts}
    return renamed


def _fits(kind: LayerKind, path: str, lasts: list[str], source: Table) -> bool:
    if not set(kind.torch_has) <= set(lasts):
        return False
    if kind.weight_dims is not None:
        weight = source[f"{path}.weight" if path else "weight"]
        if len(weight.shape) != kind.weight_dims:
            return False
    own = path.rpartition(".")[2]
    return not kind.called or any(re.fullmatch(pattern, own) for pattern in kind.called)
