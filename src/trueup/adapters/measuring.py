"""What measuring has in common in every framework: the tables of one process, and the modules that are
watched."""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Generic

from trueup.adapters import measures
from trueup.adapters.base import ModuleT, TensorT
from trueup.adapters.measures import Measured, NameTable, Wanted

if TYPE_CHECKING:
    from trueup.adapters.engine import BaseEngine

_ROUTER = re.compile(r"(Router|TopKGate|MoEGate)$")
_ROUTER_NAMES = ("router", "gate")
_NUM_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "num_moe_experts")
_TOP_K = ("top_k", "topk", "moe_router_topk", "num_experts_per_tok")
_HOMES = ("config", "moe", "cfg")
"""attributes under which routers keep their settings"""


def never_raises(method: Callable[..., None]) -> Callable[..., None]:
    """An error is noted, and neither training nor capture hears of it."""

    @functools.wraps(method)
    def safe(self: BaseMeasures[ModuleT, TensorT], *args: object, **kwargs: object) -> None:
        try:
            with self.outside_graph(), self.engine.quiet():
                method(self, *args, **kwargs)
        except Exception as error:
            self.engine.failed(f"the monitor, {method.__name__}", error)

    return safe


class BaseMeasures(Generic[ModuleT, TensorT]):
    """The tables of one process; a framework's own fills them."""

    SCALED: tuple[str, ...] = (measures.GRADIENT, measures.LOCAL_GRADIENT)
    """kinds in units of the loss scale, where there is one"""

    def __init__(self, engine: BaseEngine[ModuleT, TensorT], wanted: Wanted) -> None:
        self.engine = engine
        self.wanted = wanted
        self.on = False
        """the step under way is measured"""
        self.watched: dict[int, tuple[weakref.ref[object], str, bool]] = {}
        """module -> itself, its name, and whether it is a router"""
        self._training = False
        self._num_taken = 0
        self._trees: dict[int, object] = {}
        self._tables: dict[str, NameTable] = {}
        self._waiting: list[tuple[str, list[str], list[int], Callable[[], list[list[float]]]]] = []
        """kind, names, numbers of elements, and what waits for norm, largest magnitude and zeros of each"""

    def widens(self, module: ModuleT) -> bool:
        """Whether it is a projection to at least as much as it gets."""
        raise NotImplementedError

    def outside_graph(self) -> AbstractContextManager[object]:
        """A context in which what is computed becomes no part of the program's graph."""
        return nullcontext()

    def to_host(self) -> None:
        """Read what was queued on devices."""
        for kind, names, numels, arrive in self._waiting:
            table = self.table(kind)
            for name, numel, (norm, most, zeros) in zip(names, numels, arrive(), strict=True):
                row = table.view(name)
                row["numel"], row["l2_norm"], row["maximum"], row["minimum"] = numel, norm, most, -most
                row["num_zero"] = numel if most == 0 else int(zeros)
                row["num_nan"], row["num_posinf"] = norm != norm, most == float("inf")
        self._waiting = []

    def choose(self, module: ModuleT, *, training: bool) -> None:
        """A forward of a root begins: which of its modules are watched?"""
        self._training = training
        if not (self.wanted.modules or self.wanted.routers) or not training:
            return
        tree = self.engine.tree_of(module)
        if tree is None or self._trees.get(id(module)) is tree:
            return
        self._trees[id(module)] = tree
        for _, child in self.engine.modules_below(module):
            name = self.engine.name_of(child, None, recompute=True)
            router = self.wanted.routers and self._is_router(name, child)
            if router or self.wanted.wants_module(name, self.engine.class_of(child)):
                self.watched[id(child)] = weakref.ref(child), name, router

    def known(self, module: object) -> tuple[str, bool] | None:
        """Name of a watched module and whether it is a router; None where nothing is measured of it now."""
        if not (self.on and self._training):
            return None
        reference, name, router = self.watched[id(module)]
        return (name, router) if reference() is module else None

    def _is_router(self, name: str, module: ModuleT) -> bool:
        """By its class or name; a projection to more than it gets is the gate of a feed-forward block."""
        named = bool(_ROUTER.search(type(module).__name__)) or name.rpartition(".")[2] in _ROUTER_NAMES
        return named and not self.widens(module)

    @property
    def moments_due(self) -> bool:
        """Whether Adam's moments are measured in the step under way."""
        every = self.wanted.moments_every
        return every > 0 and self._num_taken % every == 0

    def table(self, kind: str) -> NameTable:
        """The table of a kind."""
        table = self._tables.get(kind)
        if table is None:
            table = self._tables[kind] = NameTable()
        return table

    def take(self) -> Measured:
        """What was measured since the last time."""
        self.to_host()
        taken = {kind: rows for kind, table in self._tables.items() if (rows := table.take()) is not None}
        self._num_taken += bool(taken)
        return Measured(tables=taken, replicas=self.engine.replicas, scaled=self.SCALED)


def num_experts_of(router: object) -> int | None:
    """Experts a router chooses among, where it or its configuration says."""
    return _setting(router, _NUM_EXPERTS)


def top_k_of(router: object) -> int:
    """Experts of a token, where it says; else 1."""
    return _setting(router, _TOP_K) or 1


def _setting(module: object, names: tuple[str, ...]) -> int | None:
    for home in (module, *(getattr(module, name, None) for name in _HOMES)):
        for name in names:
            value = getattr(home, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return None
