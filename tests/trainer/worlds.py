"""Groups of gloo processes that live as long as the tests and run many layouts: starting them is the cost."""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

from torch.distributed import TCPStore

PRELOADED = [
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "tests.trainer.layouts",
    "tests.trainer.frozen",
]
SECONDS = 120


class World:
    """``size`` processes that have joined one process group."""

    def __init__(self, size: int) -> None:
        self.size = size
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._workers: list[tuple[Any, Connection]] = []
        before = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = "1"
        try:
            for rank in range(size):
                ours, theirs = context.Pipe()
                worker = context.Process(
                    target=_work, args=(theirs, rank, size, self._store.port), daemon=True
                )
                worker.start()
                self._workers.append((worker, ours))
        finally:
            if before is None:
                del os.environ["OMP_NUM_THREADS"]
            else:
                os.environ["OMP_NUM_THREADS"] = before

    def run(self, function: str, *args: Any) -> list[Any]:
        """Call ``module:function`` in every process; the results in order of rank, or the first error."""
        for _, connection in self._workers:
            connection.send((function, args))
        found: dict[int, Any] = {}
        ends = time.monotonic() + SECONDS
        while len(found) < self.size:
            waiting = {
                connection: rank for rank, (_, connection) in enumerate(self._workers) if rank not in found
            }
            for connection in wait(list(waiting), max(0.0, ends - time.monotonic())):
                kind, value = connection.recv()  # type: ignore[union-attr]
                if kind == "error":
                    self.close()  # the others may wait for it for ever
                    raise RuntimeError(value)
                found[waiting[connection]] = value  # type: ignore[index]
            if time.monotonic() > ends:
                self.close()
                raise TimeoutError(f"ranks {sorted(waiting.values())} of {self.size} are stuck in {function}")
        return [found[rank] for rank in range(self.size)]

    def close(self) -> None:
        """End the processes."""
        for worker, connection in self._workers:
            connection.close()
            worker.kill()
            worker.join()


def _work(connection: Connection, rank: int, size: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "TRUEUP_DEVICE": "cpu",
    }
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    while True:
        try:
            function, args = connection.recv()
        except EOFError:
            os._exit(0)
        module, _, name = function.partition(":")
        faulthandler.dump_traceback_later(SECONDS - 20)  # a process that is stuck says where
        try:
            connection.send(("ok", getattr(importlib.import_module(module), name)(*args)))
        except Exception:
            connection.send(("error", f"rank {rank}: {traceback.format_exc()}"))
        faulthandler.cancel_dump_traceback_later()


_OPEN: dict[int, World] = {}


def world(size: int) -> World:
    """The processes of that number; started once."""
    if size not in _OPEN or not _OPEN[size]._workers[0][0].is_alive():
        _OPEN[size] = World(size)
    return _OPEN[size]


@contextmanager
def worlds_closed() -> Iterator[None]:
    """Afterwards no process is left."""
    yield
    while _OPEN:
        _OPEN.popitem()[1].close()
