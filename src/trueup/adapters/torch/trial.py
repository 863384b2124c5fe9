"""How a trial changes a torch program (``adapters.trial``)."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from trueup.adapters.trial import Trial

if TYPE_CHECKING:
    from trueup.adapters.torch.engine import Engine, ModuleFrame

_COARSE = (torch.float16, torch.bfloat16)
_CASTS = frozenset({"to", "type", "type_as", "float", "double", "half", "bfloat16"})
_IN_PLACE = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__set__")
_PRODUCTS = ("linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "einsum")
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_LOWERED_BY_AUTOCAST = frozenset({*_PRODUCTS, *_CONVOLUTIONS, "scaled_dot_product_attention"})
TreeT = TypeVar("TreeT")


class TrialRun:
    """One trial in one process."""

    def __init__(self, engine: Engine, trial: Trial) -> None:
        self._engine = engine
        self._trial = trial
        self._raised: MutableMapping[Tensor, torch.dtype] = WeakIdKeyDictionary()
        """float32 tensors of a module's own code -> the dtype they would have"""
        self.tried: set[str] = set()
        """modules that were changed, or whose own code ran otherwise"""

    def given(self, parent: ModuleFrame | None, arguments: TreeT) -> TreeT:
        """What a module is called with: in the dtypes that the code around it would have used."""
        return self.lowered(arguments) if self.is_raised(parent) else arguments

    def run(
        self,
        frame: ModuleFrame,
        original: Callable[..., object],
        module: nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        """The module's call, with the trial's changes."""
        if len(frame.path) == 1:
            self._set(module, frame.name)
        if not self.is_raised(frame):
            return original(module, *args, **kwargs)
        with _InFloat32(self, self._engine):
            result = original(module, *args, **kwargs)
        self.tried.add(frame.name)
        return self.lowered(result)

    def is_raised(self, frame: ModuleFrame | None) -> bool:
        """Whether the own code of this call runs in float32."""
        return frame is not None and frame.name in self._trial.in_float32

    def raised(self, tensors: TreeT) -> TreeT:
        """The same in float32."""
        found: TreeT = tree_map_only(Tensor, lambda t: t.float() if t.dtype in _COARSE else t, tensors)
        return found

    def would_be(self, tensors: object) -> torch.dtype | None:
        """The coarse dtype that one of them has, or would have."""
        leaves = (leaf for leaf in tree_flatten(tensors)[0] if isinstance(leaf, Tensor))
        known = (t.dtype if t.dtype in _COARSE else self._raised.get(t) for t in leaves)
        return next((dtype for dtype in known if dtype is not None), None)

    def note(self, result: object, dtype: torch.dtype | None) -> None:
        """Remember what dtype a result would have had."""
        if dtype is None:
            return
        for leaf in tree_flatten(result)[0]:
            if isinstance(leaf, Tensor) and leaf.dtype == torch.float32:
                self._raised[leaf] = dtype

    def lowered(self, tensors: TreeT) -> TreeT:
        """The same in the dtypes they would have had."""
        found: TreeT = tree_map_only(
            Tensor, lambda t: t if (dtype := self._raised.get(t)) is None else t.to(dtype), tensors
        )
        return found

    def _set(self, root: nn.Module, prefix: str) -> None:
        for inner, module in self._engine.modules_below(root):
            name = ".".join(part for part in (prefix, inner) if part)
            for attribute, value in self._trial.settings.get(name, {}).items():
                put(module, attribute, value)
                self.tried.add(name)


class _InFloat32(TorchFunctionMode):
    """Functions that a module's own code calls work on float32, and give it on. What is written in place, and
    what a cast asks for, keeps its dtype."""

    def __init__(self, trial: TrialRun, engine: Engine) -> None:
        super().__init__()
        self._trial, self._engine = trial, engine

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if not self._trial.is_raised(self._engine.enclosing()) or _keeps_dtype(name, kwargs):
            return func(*args, **kwargs)
        dtype = self._trial.would_be((args, kwargs))
        if name == "__get__":
            result = func(*args, **kwargs)
            self._trial.note(result, dtype)
            return result
        kind = next((t.device.type for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)), "cpu")
        if torch.is_autocast_enabled(kind) and name in _LOWERED_BY_AUTOCAST:
            dtype = torch.get_autocast_dtype(kind)
        with torch.autocast(kind, enabled=False):
            args, kwargs = self._trial.raised((args, kwargs))
            result = func(*args, **kwargs)
        self._trial.note(result, dtype)
        return result


def _keeps_dtype(name: str, kwargs: dict[str, object]) -> bool:
    in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    return name in _CASTS or in_place or "out" in kwargs


def put(module: nn.Module, attribute: str, value: object) -> None:
    """Set an attribute, or a key of one, to a value that capture wrote; keeps the kind of what is there."""
    name, _, key = attribute.partition(".")
    held = getattr(module, name, None)
    if key and isinstance(held, dict):
        held[key] = _of_kind(held.get(key), value)
    else:
        setattr(module, attribute, _of_kind(held, value))


def _of_kind(held: object, value: object) -> object:
    if isinstance(held, torch.dtype) and isinstance(value, str):
        return getattr(torch, value)
    if isinstance(held, float) and isinstance(value, str):
        return float(value)
    return tuple(value) if isinstance(held, tuple) and isinstance(value, list) else value
