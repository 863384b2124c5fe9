"""While a program records a graph of a device (CUDA graphs), no thread of capture's makes a call to a device.

Most calls would end the recording with an error, those of other threads too (allocations, questions whether
an event has come), and what is not refused would become part of the graph and run with every replay. What is
called meanwhile is no step of the run: it computes nothing yet.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_GRAPHS = {"cuda": "CUDAGraph", "xpu": "XPUGraph", "npu": "NPUGraph"}
"""the class of a kind of device whose ``capture_begin`` and ``capture_end`` enclose a recording"""


class Recording:
    """Of one process: recordings exclude calls of capture's other threads, and these a recording's begin."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_calls = 0
        self.depth = 0
        """recordings under way"""

    def begin(self) -> None:
        """A recording is about to begin, as soon as no call is under way."""
        with self._changed:
            self.depth += 1
            while self._num_calls:
                self._changed.wait()

    def end(self) -> None:
        """It is over."""
        with self._changed:
            self.depth -= 1
            self._changed.notify_all()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Of a thread that does not train: waits until nothing is recorded."""
        with self._changed:
            while self.depth:
                self._changed.wait()
            self._num_calls += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_calls -= 1
                self._changed.notify_all()


RECORDING = Recording()


def install() -> None:
    """Watch the graphs of every kind of device, once a process."""
    for kind, name in _GRAPHS.items():
        module = getattr(torch, kind, None)
        graph = getattr(module, name, None)
        if module is None or graph is None:
            continue
        watch(graph)
        made = getattr(module, "make_graphed_callables", None)
        if made is not None and not hasattr(made, "__wrapped__"):
            module.make_graphed_callables = _enclosed(made)
            homes = getattr(module, "graphs", None)
            if getattr(homes, "make_graphed_callables", None) is made:
                setattr(homes, "make_graphed_callables", module.make_graphed_callables)  # noqa: B010


def watch(graph: Any) -> None:
    """Graphs of this class."""
    begin, end = graph.capture_begin, graph.capture_end
    if hasattr(begin, "__wrapped__"):
        return

    @functools.wraps(begin)
    def capture_begin(*args: Any, **kwargs: Any) -> Any:
        RECORDING.begin()
        try:
            return begin(*args, **kwargs)
        except BaseException:
            RECORDING.end()
            raise

    @functools.wraps(end)
    def capture_end(*args: Any, **kwargs: Any) -> Any:
        try:
            return end(*args, **kwargs)
        finally:
            RECORDING.end()

    graph.capture_begin, graph.capture_end = capture_begin, capture_end


def _enclosed(original: Callable[..., Any]) -> Callable[..., Any]:
    """Its forwards and backwards on sample inputs are no part of the training either."""

    @functools.wraps(original)
    def enclosed(*args: Any, **kwargs: Any) -> Any:
        RECORDING.begin()
        try:
            return original(*args, **kwargs)
        finally:
            RECORDING.end()

    return enclosed
