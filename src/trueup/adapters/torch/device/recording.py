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


def is_recorded_as_graph(device: torch.device) -> bool:
    """Whether what is called now is recorded to run later (CUDA graphs): capture must add nothing."""
    return RECORDING.depth > 0 or asks_whether_recorded(device)()


@functools.lru_cache(maxsize=64)
def asks_whether_recorded(device: torch.device) -> Callable[[], bool]:
    """Asks the device itself: not every recording begins where ``RECORDING`` sees it."""
    if device.type == "cuda" and hasattr(torch._C, "_cuda_isCurrentStreamCapturing"):
        asked: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing
        return asked
    module = torch.get_device_module(device)
    return lambda: bool(getattr(module, "is_current_stream_capturing", bool)())


def install() -> None:
    """Watch the graphs of every kind of device, once a process."""
    for kind, name in _GRAPHS.items():
        module = getattr(torch, kind, None)
        graph = getattr(module, name, None)
        if module is None or graph is None:
            continue
        watch(graph)
        homes = (module, getattr(module, "graphs", None))
        _replace([home for home in homes if home is not None], _CALLABLES, begins=True, ends=True)


_CALLABLES = "make_graphed_callables"
"""its forwards and backwards on sample inputs are no part of the training either"""


def watch(graph: type) -> None:
    """Graphs of this class."""
    _replace([graph], "capture_begin", begins=True)
    _replace([graph], "capture_end", ends=True)


def _replace(homes: list[object], name: str, *, begins: bool = False, ends: bool = False) -> None:
    """Have a function begin a recording, unless it raises, or end one, or enclose one."""
    original = getattr(homes[0], name, None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def watched(*args: object, **kwargs: object) -> object:
        if begins:
            RECORDING.begin()
        done = False
        try:
            result = original(*args, **kwargs)
            done = True
            return result
        finally:
            if ends or not done:
                RECORDING.end()

    for home in homes:
        if getattr(home, name, None) is original:
            setattr(home, name, watched)
