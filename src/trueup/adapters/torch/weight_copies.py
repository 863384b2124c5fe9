"""Copies of a model's weights among the objects of a process: modules of its class, dicts and lists of
tensors with its parameters' names or in their order.
"""

from __future__ import annotations

import collections
import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from trueup.adapters.torch.device.recording import is_recorded_as_graph
from trueup.adapters.torch.memory import in_transform, is_freed

if TYPE_CHECKING:
    from trueup.adapters.torch.engine import Engine

_Reference = Callable[[], Tensor | None]
_NEAR = 0.5
"""of the norm of the weights: an average is less far from them; moments and gradients, which have nothing of
the weights' own values in them, are about as far as they are long, or as the weights are"""
_SAMPLE = 64
"""numbers of a tensor by which a write is seen that counts no version (``tensor.data``)"""
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_PREFIXES = ("module.", "_orig_mod.", "model.")


class HeldName:
    """What a module holds under a name now; keeps neither alive."""

    __slots__ = ("_key", "_owner", "_table")

    def __init__(self, owner: nn.Module, table: str, key: str) -> None:
        self._owner, self._table, self._key = weakref.ref(owner), table, key

    def __call__(self) -> Tensor | None:
        owner = self._owner()
        held = {} if owner is None else getattr(owner, self._table)
        return next((one for key, one in held.items() if key == self._key), None)  # torch.jit's has no get


@dataclass(slots=True)
class Held:
    """One tensor of a copy, and the model's own."""

    fqn: str
    own: _Reference
    copy: _Reference
    is_buffer: bool
    version: int = -1
    sample: Tensor | None = None
    is_written: bool = False

    def note(self) -> None:
        """Remember what the copy holds now."""
        tensor = self.copy()
        if tensor is not None:
            self.version, self.sample = version_of(tensor), _sampled(tensor)


@dataclass(slots=True)
class Copy:
    kind: str
    root: str
    """of the model that it is a copy of"""
    tensors: list[Held]
    container: int | None
    """identity of the dict or list that holds the tensors, which may be replaced by others"""
    held: int | None = None
    """the step at whose beginning the model's weights were what the copy held when it was found"""
    slot: str | None = None
    """under which it is recorded, once it is"""
    recorded: int = -1
    """the step it was last recorded in"""
    is_master: bool = False
    """finer than the weights, which it rounds to: what an optimizer of the program's own updates"""

    @property
    def is_alive(self) -> bool:
        return all(one.copy() is not None for one in self.tensors)

    def take_over(self, before: Copy) -> None:
        """What is known of tensors that these stand in place of."""
        if [one.fqn for one in before.tensors] != [one.fqn for one in self.tensors]:
            return
        self.held, self.slot, self.recorded = before.held, before.slot, before.recorded
        self.is_master = before.is_master
        for one, old in zip(self.tensors, before.tensors, strict=True):
            one.version, one.sample, one.is_written = -1, old.sample, old.is_written

    @property
    def is_average(self) -> bool:
        return self.kind == "AveragedModel"


@dataclass(slots=True, frozen=True)
class _Model:
    """What a copy is one of: a model that trains, or a part of it."""

    kind: type[nn.Module]
    names: Mapping[str, str]
    """name below it -> full name"""
    own: Mapping[str, HeldName]
    buffers: frozenset[str]
    trainable: tuple[str, ...]

    def pairs(self, held: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """What a copy holds of it by our names; None where it is no copy."""
        held = {_plain(name): tensor for name, tensor in held.items()}
        found = {}
        for name, place in self.own.items():
            own, tensor = place(), held.get(name)
            alike = own is not None and tensor is not None and own.shape == tensor.shape
            if alike and tensor is not None and tensor.is_floating_point():
                found[name] = tensor
        return found if all(name in found for name in self.trainable) else None


def _plain(name: str) -> str:
    while prefix := next((one for one in _PREFIXES[:2] if name.startswith(one)), None):
        name = name[len(prefix) :]
    return name


def models_of(engine: Engine, root: nn.Module, name: str) -> Iterator[_Model]:
    """The model, and the parts it is directly made of (a program may average one of them alone)."""
    bare = engine.bare(root)
    bare = cast(nn.Module, getattr(bare, "_orig_mod", bare))
    yield _model(engine, bare, name)
    kinds = collections.Counter(map(type, bare.modules()))
    for key, child in bare._modules.items():
        if child is not None and kinds[type(child)] == 1 and child._modules:
            yield _model(engine, child, ".".join(part for part in (name, key) if part))


def _model(engine: Engine, module: nn.Module, name: str) -> _Model:
    own: dict[str, HeldName] = {}
    buffers, trainable = [], []
    seen: set[int] = set()
    for inner, child in engine.modules_below(module):
        for table in ("_parameters", "_buffers"):
            for key, tensor in getattr(child, table).items():
                fqn = ".".join(part for part in (inner, key) if part)
                if tensor is None or id(tensor) in seen or not _has_numbers(tensor):
                    continue
                seen.add(id(tensor))
                own[fqn] = HeldName(child, table, key)
                if table == "_buffers":
                    buffers.append(fqn)
                elif tensor.requires_grad:
                    trainable.append(fqn)
    return _Model(
        kind=type(module),
        names={fqn: ".".join(part for part in (name, fqn) if part) for fqn in own},
        own=own,
        buffers=frozenset(buffers),
        trainable=tuple(trainable),
    )


@dataclass(slots=True)
class _Objects:
    """What of all objects of the process may be, or tell of, a copy of some models."""

    modules: list[nn.Module]
    dicts: list[dict[object, object]]
    lists: list[Sequence[object]]
    wrapped: frozenset[int]
    """modules that an ``AveragedModel`` holds"""
    trained: frozenset[int | None]
    """addresses of what optimizers update"""


# In one piece: one branch a class of object, each asked of every object of the process.
def objects_of(models: Sequence[_Model], roots: Sequence[nn.Module]) -> _Objects:
    """One look through what the collector knows; what a class means is asked once."""
    inside = {id(inner) for one in roots for inner in one.modules()}
    kinds = {model.kind for model in models}
    least = min((len(model.trainable) for model in models), default=0)
    sizes = {n for model in models for n in (len(model.trainable), len(model.own) - len(model.buffers))}
    found = _Objects([], [], [], frozenset(), frozenset())
    wrapped, trained = set(), set()
    meaning: dict[type, str] = {**dict.fromkeys(_DICTS, "dict"), list: "list", tuple: "list"}
    for one in gc.get_objects() if models else ():
        kind = type(one)
        means = meaning.get(kind)
        if means is None:
            means = meaning[kind] = _meaning(kind, kinds)
        if not means:
            continue
        if means == "dict":
            if len(one) >= least and _first_is_tensor(one):
                found.dicts.append(one)
        elif means == "list":
            if len(one) in sizes and _first_is_tensor(one):
                found.lists.append(one)
        elif means == "module":
            if id(one) not in inside:
                found.modules.append(one)
        elif means == "averaged":
            wrapped.add(id(vars(one).get("_modules", {}).get("module")))
        else:
            groups = vars(one).get("param_groups", ())
            trained |= {address(held) for group in groups for held in group["params"]}
    found.wrapped, found.trained = frozenset(wrapped), frozenset(trained)
    return found


def _meaning(kind: type, models: set[type[nn.Module]]) -> str:
    if kind in models:
        return "module"
    if issubclass(kind, torch.optim.swa_utils.AveragedModel):
        return "averaged"
    return "optimizer" if issubclass(kind, torch.optim.Optimizer) else ""


def copies_of(model: _Model, root: str, objects: _Objects, known: set[int | None]) -> list[Copy]:
    """All there are of a model; ``known`` are addresses of others."""
    taken = known | {address(place()) for place in model.own.values()} | objects.trained
    wrapped = objects.wrapped
    modules = [one for one in objects.modules if type(one) is model.kind]
    modules.sort(key=lambda one: id(one) not in wrapped)
    found = []
    for holder in (*modules, *objects.dicts, *objects.lists):
        held = _contents(holder, model)
        pairs = None if held is None else model.pairs({name: tensor for name, (tensor, _) in held.items()})
        if held is None or pairs is None or any(address(one) in taken for one in pairs.values()):
            continue
        if not _is_near(model, pairs):
            continue
        taken |= {address(one) for one in pairs.values()}
        is_module = isinstance(holder, nn.Module)
        plain = {_plain(name): reference for name, (_, reference) in held.items()}
        found.append(
            Copy(
                kind="AveragedModel" if id(holder) in wrapped else type(holder).__name__,
                root=root,
                container=None if is_module else id(holder),
                tensors=[
                    Held(model.names[name], model.own[name], plain[name], name in model.buffers)
                    for name in pairs
                ],
            )
        )
    return found


def _first_is_tensor(held: dict[object, object] | Sequence[object]) -> bool:
    try:
        values = dict.values(held) if isinstance(held, dict) else held
        return issubclass(type(next(iter(values))), Tensor)
    except (StopIteration, RuntimeError):  # another thread writes it
        return False


def _contents(holder: object, model: _Model) -> dict[str, tuple[Tensor, _Reference]] | None:
    """Tensors of a module, dict or list by the model's names, each with a reference that keeps nothing
    alive."""
    if isinstance(holder, nn.Module):
        return {
            ".".join(part for part in (inner, key) if part): (tensor, HeldName(child, table, key))
            for inner, child in holder.named_modules()
            for table in ("_parameters", "_buffers")
            for key, tensor in getattr(child, table).items()
            if tensor is not None and _has_numbers(tensor)
        }
    if isinstance(holder, dict):
        own = {id(place()): name for name, place in model.own.items()}
        named = {_name_of(key, own): value for key, value in dict.copy(holder).items()}
    else:
        values = cast("Sequence[object]", holder)
        names = [name for name in model.own if name not in model.buffers]
        ordered = next((one for one in (names, model.trainable) if len(one) == len(values)), ())
        named = dict(zip(ordered, values, strict=False))
    return {
        name: (value, weakref.ref(value))
        for name, value in named.items()
        if name is not None and isinstance(value, Tensor) and _has_numbers(value)
    }


def _name_of(key: object, own: Mapping[int, str]) -> str | None:
    """What a key of a dict stands for: a name, a parameter, or its identity."""
    if type(key) is str:
        return key
    return own.get(key) if type(key) is int else own.get(id(key))


def moved_of(tensors: Sequence[Held]) -> list[Held]:
    """Those whose bits are others than when they were noted, as far as samples tell; a device is waited for
    once."""
    now = [
        (one, sample)
        for one in tensors
        if (copy := one.copy()) is not None and (sample := _sampled(copy)) is not None
    ]
    flags = [(one, (sample != one.sample).any()) for one, sample in now if one.sample is not None]
    have_moved = _on_host([flag for _, flag in flags])
    return [one for (one, _), flag in zip(flags, have_moved, strict=True) if flag]


def _is_near(model: _Model, held: Mapping[str, Tensor]) -> bool:
    pairs = [
        (_sampled(own), _sampled(held[name]))
        for name in model.trainable
        if (own := model.own[name]()) is not None
    ]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not known or any(is_waiting(tensor) for tensor in held.values()):
        return False
    device = known[0][0].device
    weights, others = (torch.cat([one.to(device) for one in side]) for side in zip(*known, strict=True))
    return bool((weights - others).norm() < _NEAR * weights.norm())


def hold_the_same(pairs: Sequence[tuple[Tensor | None, Tensor | None]]) -> bool:
    """Whether copies hold the weights, as far as the copies' and the weights' dtypes can; a device is
    waited for once."""
    flags = []
    for own, other in pairs:
        one, two = (None if tensor is None else _sampled(tensor) for tensor in (own, other))
        if own is None or other is None or one is None or two is None or one.shape != two.shape:
            return False
        coarser = min(own.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
        flags.append((one.to(coarser) == two.to(coarser).to(one.device)).all())
    return all(_on_host(flags))


def _on_host(flags: Sequence[Tensor]) -> list[bool]:
    """Flags as they are on the host; a device is waited for once."""
    if not flags:
        return []
    device = flags[0].device
    values: list[bool] = torch.stack([flag.to(device) for flag in flags]).tolist()
    return values


def _sampled(tensor: Tensor) -> Tensor | None:
    """Some numbers of a tensor, as float32; of one in parts those of this process."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    if tensor.layout is not torch.strided or not tensor.numel() or is_freed(tensor):
        return None
    with torch.no_grad():
        return tensor.detach().reshape(-1)[:: -(-tensor.numel() // _SAMPLE)].float().clone()


def version_of(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _has_numbers(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not tensor.is_meta and not in_transform(tensor)


def is_waiting(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being recorded on its device: nothing may be asked."""
    return not tensor.is_cpu and is_recorded_as_graph(tensor.device)


def address(tensor: object) -> int | None:
    """Where its numbers are; None for what has none of its own."""
    if not isinstance(tensor, Tensor):
        return None
    try:
        return int(getattr(tensor, "_local_tensor", tensor).untyped_storage().data_ptr()) or None
    except (RuntimeError, NotImplementedError):
        return None
