"""Distributed checkpoints of PyTorch and Megatron (``.metadata``, ``__0_0.distcp``), without a process group.

The metadata says which file holds which part of which tensor. Megatron stacks layers, and experts, along
leading dimensions (``decoder.layers.mlp...`` of shape (layers, ...)): they are given one by one, as the model
names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trueup.errors import WeightsError
from trueup.weights.applying import PlannedWeights
from trueup.weights.mapping import family_of
from trueup.weights.megatron import rows_without_padding, vocabulary_remark
from trueup.weights.plan import ConversionPlan, Permute, PlannedWeight, Reshape, Slice, SourcePiece, Values
from trueup.weights.torch_file import checkpoints
from trueup.weights.weight_set import Table, WeightInfo, WeightSet, checked_dtype, known

METADATA, COMMON = ".metadata", "common.pt"
_ROUTER = ".router.weight"
_SECTION = re.compile(
    r"(?P<whole>.*\.(?:linear_fc1\.(?:weight|bias)\d*|(?:in_proj|conv1d)[._](?:weight|bias)))(?P<section>[._][a-zA-Z]+)"
)
_SECTIONS = (
    ("_w", "_v"),
    (".z", ".x", ".B", ".C", ".dt"),
    (".x", ".B", ".C"),
    (".query", ".key", ".value", ".z", ".beta", ".alpha"),
    (".query", ".key", ".value", ".z", ".f", ".b", ".w"),
    (".query", ".key", ".value"),
)
"""what Megatron-core calls the sections that it saves apart, in the order of the weight: of a gated layer, a
Mamba mixer and its convolution, linear attention and its convolution"""
_STATE = re.compile(
    r"((app|state|checkpoint)\.)?"
    r"((optim|optimizers?|optimizer_states?|optim(izer)?_state_dict|(lr_)?schedulers?|opt_param_scheduler"
    r"|train_state|dataloader|loops)(\.|$)|rng_state|cuda_rng_state|rerun_state_machine|chained_)"
)
"""what programs save beside the model: Megatron, FSDP's tutorials, torchtitan, Accelerate, Lightning"""
_HOLDERS = ("app", "state", "checkpoint", "state_dict", "model_state_dict", "model", "module")
"""before every name where the model, or a wrapper of it, was saved under a key"""
_STACKED = re.compile(r"(?P<before>(?:.*\.)?(?:decoder|encoder)\.layers\.)(?P<after>[^\d].*)")
_EXPERTS = re.compile(r"(?P<before>.*\.mlp\.experts\.)experts\.(?P<after>[^\d].*)")
_ONE_EXPERT = re.compile(r"(?P<before>.*\.mlp\.experts\.)experts\.(?P<after>\d+\..*)")
"""where each is saved under a key of its own"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weight:
    """One weight: a stored tensor, at one place of its leading dimensions."""

    info: WeightInfo
    stored: str
    at: tuple[int, ...]


class _Stored:
    """A ``WeightSet`` over the weights as they are stored, stacked ones one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = checkpoints().DistributedCheckpoint(path)
        tensors: dict[str, tuple[str, tuple[int, ...]]] = self._file.table()
        wanted = {name: kind for name, kind in tensors.items() if not _STATE.match(name)}
        wrapper = _holder(list(wanted))
        self._weights = {
            one.info.name: one
            for name, kind in wanted.items()
            for one in _each(path, name, name.removeprefix(wrapper), *kind)
        }
        if not self._weights:
            raise WeightsError(
                f"{path} holds no weight: {len(tensors)} tensors, all of an optimizer or a state"
            )
        self.table: Table = {name: one.info for name, one in self._weights.items()}
        left = len(tensors) - len(wanted)
        arguments, remarks = arguments_beside(path / COMMON)
        self.vocabulary = rows_without_padding(arguments)
        self.remarks: tuple[str, ...] = (
            *((f"{left} tensors of optimizer and other states are left out",) if left else ()),
            *vocabulary_remark(arguments),
            *remarks,
        )

    def read(self, name: str) -> Values:
        """One weight, put together of the parts that hold some of it."""
        one = self._weights[known(self, name)]
        values: Values = self._file.values(one.stored, one.at)
        return np.ascontiguousarray(values).reshape(one.info.shape)


def read_distributed(path: Path) -> WeightSet:
    """The weights of a distributed checkpoint, as the model names them; optimizer and other states are left
    out.

    Megatron-core keeps the sections of some weights apart (gate and up projection, parts of a Mamba mixer and
    of linear attention): they are put together. Experts of ``GroupedMLP`` that are stored as it holds them,
    transposed or all in one, are given as single ones.

    Raises:
        WeightsError: damaged, parts missing, no weight, or the metadata names something that is refused.
        ConfigError: PyTorch is not installed.
    """
    stored = _Stored(path)
    entries = [*_of_sections(stored.table), *_of_experts(stored.table)]
    if not entries:
        return stored
    used = {piece.source for entry in entries for piece in entry.pieces}
    kept = [
        PlannedWeight(target=name, pieces=(SourcePiece(source=name),))
        for name in stored.table
        if name not in used
    ]
    return PlannedWeights(ConversionPlan(entries=(*kept, *entries)), stored)


def arguments_beside(common: Path) -> tuple[Mapping[str, object], tuple[str, ...]]:
    """Megatron's arguments in ``common.pt``, none where there are none; and why they cannot be read."""
    if not common.is_file():
        return {}, ()
    try:
        return checkpoints().arguments_in(common), ()
    except WeightsError as error:
        return {}, (f"its arguments are not known: {error}",)


def _of_sections(table: Table) -> Iterator[PlannedWeight]:
    """Weights whose sections are stored apart, and all of whose sections are there."""
    apart: dict[str, set[str]] = {}
    for name in table:
        if found := _SECTION.fullmatch(name):
            apart.setdefault(found["whole"], set()).add(found["section"])
    for whole, sections in apart.items():
        order = next((one for one in _SECTIONS if {*one} == sections), None)
        if order is not None and whole not in table:
            pieces = tuple(SourcePiece(source=whole + section) for section in order)
            yield PlannedWeight(target=whole, pieces=pieces, join="concat", how="map")


def _of_experts(table: Table) -> Iterator[PlannedWeight]:
    """Experts that are stored as ``GroupedMLP`` holds them: (in, out), one by one or all in one."""
    for name, router in table.items():
        if not name.endswith(_ROUTER) or len(router.shape) != 2:
            continue
        experts = f"{name.removesuffix(_ROUTER)}.experts."
        num, hidden = router.shape
        yield from _transposed(table, experts, num, hidden)
        yield from _all_in_one(table, experts, num, hidden)


def _transposed(table: Table, experts: str, num: int, hidden: int) -> Iterator[PlannedWeight]:
    """Told by where the width of the model is, in both weights of an expert."""
    names = [f"{experts}local_experts.{at}.linear_fc{one}.weight" for at in range(num) for one in (1, 2)]
    if not all(name in table and len(table[name].shape) == 2 for name in names):
        return
    (rows, columns), (other_rows, other_columns) = (table[name].shape for name in names[:2])
    if (columns, other_rows) == (hidden, hidden) or (rows, other_columns) != (hidden, hidden):
        return
    for name in names:
        pieces = (SourcePiece(source=name, steps=(Permute(dims=(1, 0)),)),)
        yield PlannedWeight(target=name, pieces=pieces, how="map")


def _all_in_one(table: Table, experts: str, num: int, hidden: int) -> Iterator[PlannedWeight]:
    first, second = (table.get(f"{experts}weight{number}") for number in (1, 2))
    if first is None or second is None or first.shape[0] != hidden or second.shape[1:] != (hidden,):
        return
    if first.shape[1] % num or second.shape[0] % num:
        return
    for number, info in ((1, first), (2, second)):
        one = (hidden, info.shape[1] // num) if number == 1 else (info.shape[0] // num, hidden)
        for at in range(num):
            steps = (
                Reshape(shape=(num, *one)),
                Slice(dim=0, start=at, stop=at + 1),
                Reshape(shape=one),
                Permute(dims=(1, 0)),
            )
            yield PlannedWeight(
                target=f"{experts}local_experts.{at}.linear_fc{number}.weight",
                pieces=(SourcePiece(source=info.name, steps=steps),),
                how="map",
            )


def _holder(names: Sequence[str]) -> str:
    """The keys before all ``names``, with dots. ``model.`` is one unless a family's names begin so."""
    head = names[0].partition(".")[0] if names else ""
    bare = [name.removeprefix(f"{head}.") for name in names]
    if head not in _HOLDERS or not all(name.startswith(f"{head}.") for name in names):
        return ""
    if head == "model" and family_of(names) is not None:
        return ""
    return f"{head}.{_holder(bare)}"


def _each(path: Path, stored: str, name: str, dtype: str, shape: tuple[int, ...]) -> Iterator[_Weight]:
    """The weights in one stored tensor, by the model's names."""
    names: list[tuple[str, tuple[int, ...]]] = [(name, ())]
    layers = _STACKED.fullmatch(name)
    if layers is not None and shape:
        names = [(f"{layers['before']}{at}.{layers['after']}", (at,)) for at in range(shape[0])]
    split = []
    for named, at in names:
        single = _ONE_EXPERT.fullmatch(named)
        whole = f"{single['before']}local_experts.{single['after']}" if single else named
        experts = _EXPERTS.fullmatch(whole)
        if experts is None or len(shape) <= len(at) + 1:
            split.append((whole, at))
            continue
        split += [
            (f"{experts['before']}local_experts.{expert}.{experts['after']}", (*at, expert))
            for expert in range(shape[len(at)])
        ]
    for whole, at in split:
        info = WeightInfo(name=whole, dtype=checked_dtype(dtype, stored, path), shape=shape[len(at) :])
        yield _Weight(info=info, stored=stored, at=at)
