"""What capture on a device costs the thread that trains, apart from the device: all but the launch itself.

    PYTHONPATH=src:. python benchmarks/device_host.py

The small GPT trains on the CPU with the path of a device: tensors are queued, laid out and launched as there,
by a launch that only counts. CPU seconds of the training thread with capture on, less those with capture off,
for each tensor that was summarised: of the median step, and of the mean, in which Python's searches for
garbage are. A launch by Triton, a copy to a GPU and an event come on top.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from bugzoo.models.gpt import GPT, GPTConfig, batch, loss_of

import trueup
import trueup.store
from trueup.adapters.torch import stats
from trueup.adapters.torch.device import launching, queue
from trueup.adapters.torch.device.launching import Jobs
from trueup.adapters.torch.device.values import Values
from trueup.adapters.torch.quiet import launches
from trueup.capture.session import current

SMALL = GPTConfig(vocab_size=256, num_layers=4, hidden_size=64, num_heads=4, seq_length=32, dropout=0.0)
STEPS = 64


class NoStream:
    """One stream, on which everything has run."""

    stream_id = 0

    def wait_event(self, event: object) -> None: ...


class NoEvent:
    def record(self, stream: object) -> None: ...

    def query(self) -> bool:
        return True


class NoDevice:
    """The part of a device's module that capture uses."""

    Event = NoEvent

    def __init__(self) -> None:
        self._only = NoStream()

    def Stream(self, device: object) -> NoStream:
        return self._only

    def current_stream(self, device: object) -> NoStream:
        return self._only

    @contextlib.contextmanager
    def device(self, device: object) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        yield


class Counted(Jobs):
    """Jobs whose launches only count."""

    num_jobs = launches = 0

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, lambda *_: None, pinned)
        self._module = NoDevice()
        self._current = lambda: 0
        self._is_current = lambda: True

    def _keep_for(self, stream: object, tensor: torch.Tensor) -> None: ...

    def _start(self, variant: Any, jobs: Any) -> None:
        Counted.num_jobs += len(jobs)
        Counted.launches += 1
        super()._start(variant, jobs)


def pinned(num_bytes: int) -> torch.Tensor:
    """Ordinary memory."""
    return torch.empty(num_bytes, dtype=torch.uint8)


def path_for(device: torch.device) -> queue.Path:
    """As on a device that runs Triton."""
    return queue.Kernel(Counted(device), Values(device, pinned))


def step_seconds(options: dict[str, Any] | None) -> tuple[list[float], int, int]:
    """CPU seconds of the training thread in each step after the first ones, tensors and launches of one."""
    torch.manual_seed(0)
    model = GPT(SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    found, counts = [], []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if options is not None:
            stack.enter_context(trueup.Tracer(Path(folder) / "run", steps="all", **options))
            session = current()
            assert session is not None
            if not stats.AVAILABLE:
                launches(session.adapter._engine.summariser._queue.launch)  # type: ignore[attr-defined]
        for step in range(STEPS):
            before = Counted.num_jobs, Counted.launches
            start = time.thread_time()
            inputs, labels = batch(SMALL, step=step, size=2)
            optimizer.zero_grad()
            loss_of(model, inputs, labels).backward()
            optimizer.step()
            found.append(time.thread_time() - start)
            counts.append((Counted.num_jobs - before[0], Counted.launches - before[1]))
        stack.close()
        if options is not None:
            failures = trueup.store.Trace(Path(folder) / "run").rank_facts(0)["failures"]
            assert failures == [], failures
    return found[4:], *counts[-2]


def main() -> None:
    """Measure each level and write what was found."""
    torch.set_num_threads(1)
    stats.AVAILABLE = False
    queue.Queue.__init__.__defaults__ = (path_for,)  # type: ignore[attr-defined]
    launching.MAX_WAIT_SECONDS = 10
    rows = {}
    for name, options in {"L0": {"level": "L0"}, "mix": {"level": "mix"}}.items():
        off, _, _ = step_seconds(None)
        launches(None)
        on, tensors, started = step_seconds({**options, "sketch": True})
        rows[name] = {
            "tensors_a_step": tensors,
            "launches_a_step": started,
            "cpu_microseconds_a_tensor": 1e6 * (statistics.median(on) - statistics.median(off)) / tensors,
            "of_the_mean_step": 1e6 * (statistics.mean(on) - statistics.mean(off)) / tensors,
        }
        print(name, rows[name])
    (Path(__file__).parent / "results" / "device_host.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
