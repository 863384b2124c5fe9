"""Which of a program's threads trains the run: two that train models of their own are two trainings.

A trace has one order of steps. The first thread that calls ``backward`` trains the run; another that trains
weights the first never met is left alone from its own ``backward`` on, and the trace says so. A program may
go on in other threads all the same: in those that train the same weights, or once the first ended or waits.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from trueup.adapters.torch.engine import Engine

_WAITS = {
    ("threading", "join"),
    ("concurrent.futures._base", "result"),
    ("concurrent.futures._base", "wait"),
    ("concurrent.futures.thread", "_worker"),
}
"""functions a thread is in that waits for another's work, or, as a worker of a pool, for work of its own"""
_PATIENCE = 0.1
"""seconds, once in the life of a thread"""
_MODULES = {module for module, _ in _WAITS}


class _Here(threading.local):
    """What is known of the thread that asks."""

    def __init__(self) -> None:
        self.beside = False
        """its last training forward was no part of the run"""
        self.apart = False
        """it trains: nothing it does is recorded any more"""
        self.began = False
        """it has run a training forward"""


class Threads:
    """The thread that trains the run, and the weights every thread has trained."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._here = _Here()
        self._trainer: threading.Thread | None = None
        self._ident = 0
        self._roots: dict[int, dict[int, tuple[weakref.ref[nn.Module], frozenset[int]]]] = {}
        """thread -> roots of its training forwards and the identities of what is trained in them"""

    @property
    def beside(self) -> bool:
        """Whether what this thread trains is no part of the run."""
        return self._here.beside

    @property
    def apart(self) -> bool:
        """Whether nothing is recorded of what this thread does."""
        return self._here.apart

    def forward(self, root: nn.Module) -> bool:
        """A training forward of ``root`` begins in this thread; returns whether it is the run's."""
        if self._here.apart:
            return False
        ident = threading.get_ident()
        known = self._roots.setdefault(ident, {})
        if id(root) not in known or known[id(root)][0]() is not root:
            known[id(root)] = weakref.ref(root), frozenset(_trained(self._engine, root))
        if ident != self._ident:
            self._decide(known[id(root)][1])
            if self._here.beside and not self._here.began:
                self._let_the_trainer_wait(known[id(root)][1])
        self._here.began = True
        return not self._here.beside

    def backward(self) -> bool:
        """``backward`` begins in this thread; returns whether it is the run's."""
        ident = threading.get_ident()
        if ident == self._ident:
            return True
        if self._here.apart:
            return False
        weights = self._weights(ident)
        self._decide(weights)
        if self._here.beside:
            self._stay_apart(weights)
            return False
        if self._trainer is None:
            self._trainer, self._ident = threading.current_thread(), ident
        return True

    def _stay_apart(self, weights: frozenset[int]) -> None:
        """This thread trains at the same time: for good, nothing it does is recorded."""
        assert self._trainer is not None
        self._here.apart = True
        self._engine.local.opaque += 1
        self._engine.training.forget(weights)
        self._engine.sink.limit(
            f"thread {threading.current_thread().name} trains weights of its own beside the run: nothing "
            f"of that but its beginning is recorded; the run is what thread {self._trainer.name} trains"
        )

    def _decide(self, weights: frozenset[int]) -> None:
        """Is a training of these weights, in a thread that is not the trainer's, part of the run?"""
        here = self._here
        if self._trainer is not None and (not self._trainer.is_alive() or self._has_made_way()):
            self._trainer, self._ident = None, 0
        here.beside = (
            self._trainer is not None and bool(weights) and weights.isdisjoint(self._weights(self._ident))
        )

    def _let_the_trainer_wait(self, weights: frozenset[int]) -> None:
        """A thread that was started a moment ago may be faster than the one that is to wait for it."""
        until = time.monotonic() + _PATIENCE
        while self._here.beside and time.monotonic() < until:
            time.sleep(0.001)
            self._decide(weights)

    def _weights(self, ident: int) -> frozenset[int]:
        return frozenset().union(*(weights for _, weights in self._roots.get(ident, {}).values()))

    def _has_made_way(self) -> bool:
        """The trainer waits for another thread, or in a pool for work."""
        frame = sys._current_frames().get(self._ident)
        while frame is not None and frame.f_globals.get("__name__") in _MODULES:
            if (frame.f_globals["__name__"], frame.f_code.co_name) in _WAITS:
                return True
            frame = frame.f_back
        return False


def _trained(engine: Engine, root: nn.Module) -> Iterator[int]:
    return (id(parameter) for _, parameter in engine.parameters_below(root) if parameter.requires_grad)
