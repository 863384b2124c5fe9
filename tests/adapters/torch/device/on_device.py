"""Programs that train on ``lazy_device``, each in a process of its own; prints one JSON line for a test.

python -m tests.adapters.torch.device.on_device SCENARIO FOLDER
"""

from __future__ import annotations

import faulthandler
import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import trueup
from tests.adapters.torch.device import contract, lazy_device
from tests.models.gpt import GPT, GPTConfig, batch, loss_of
from trueup.adapters.torch.device import launching, queue, recording, values
from trueup.adapters.torch.device.launching import Jobs, Launch, Room, Variant
from trueup.adapters.torch.device.values import Values
from trueup.capture import session
from trueup.store import tensors

TINY = GPTConfig(vocab_size=64, num_layers=2, hidden_size=32, num_heads=4, seq_length=16, dropout=0.0)
counters = lazy_device.counters
device = lazy_device.register()


def launch(
    variant: Variant, num_programs: int, jobs: torch.Tensor, pointer: int, row: int, room: Room
) -> None:
    """The kernel's contract, as work of the current stream."""
    counters.kernels += 1
    of, into = lazy_device.spec_of(jobs), lazy_device.spec_of(room.tensors[0])

    def work() -> None:
        address = lazy_device.host_address
        contract.run(variant, num_programs, of.on_host(), pointer, row, into.on_host(), address)

    lazy_device._queues[lazy_device.module.current_stream().stream_id].submit(work)


def pinned(num_bytes: int) -> torch.Tensor:
    """Host memory: every copy to and from it is asynchronous here."""
    return torch.empty(num_bytes, dtype=torch.uint8)


def with_kernel(where: torch.device) -> queue.Path:
    """As ``queue.path_for`` on a device that runs Triton."""
    return queue.Kernel(Jobs(where, launch, pinned), Values(where, pinned))


def with_operations(where: torch.device) -> queue.Path:
    """As ``queue.path_for`` on a device that runs none."""
    return queue.Operations(where)


class Impatient(Jobs):
    """Waits for the device at every tensor."""

    def launch(self) -> None:
        """Then wait."""
        super().launch()
        lazy_device.module.current_stream().synchronize()


class Delayed(Jobs):
    """The program's stream runs to its end before anybody looks at what was copied."""

    def taken(self) -> Any:
        """As ``Jobs.taken``."""
        parts, here = super().taken(), lazy_device.module.current_stream()

        def later() -> Any:
            lazy_device._queues[here.stream_id].run(lazy_device._queues[here.stream_id].submitted)
            return parts()

        return later


class Elsewhere(Delayed):
    """Reads on a stream of its own, after what was submitted, and the program's stream goes on after it."""

    before, after = True, True

    def launch(self) -> None:
        """There."""
        here = lazy_device.module.current_stream()
        self.side = getattr(self, "side", None) or lazy_device.Stream()
        if self.after:  # until the step is over
            self.kept = [*self.kept, *self._waiting.get(threading.get_ident(), [])]
        if self.before:
            self.side.wait_stream(here)
        with lazy_device.module.stream(self.side):
            super().launch()
        if self.after:
            here.wait_stream(self.side)

    def begin(self) -> None:
        """As ``Jobs.begin``."""
        super().begin()
        self.kept: list[Any] = []


class TooEarly(Elsewhere):
    """What it reads may not be written yet; nobody waits for it either."""

    before = after = False

    def taken(self) -> Any:
        """The copy is looked at before the program's stream has run."""
        return Jobs.taken(self)


class FreedEarly(Delayed):
    """The same, and memory is handed back while the copy still reads it."""

    def _keep_for(self, stream: Any, tensor: torch.Tensor) -> None:
        """Nobody is told."""


class Unstaged(Values):
    """Values that are read straight from the tensor, on another stream, whenever that runs."""

    def _copied(self, part: torch.Tensor, host: torch.Tensor) -> Any:
        with lazy_device.module.stream(self._stream):
            host.view(part.dtype).view(part.shape).copy_(part, non_blocking=True)
        return self._event(self._stream)


class TooLate(Elsewhere):
    """What it reads may be freed, and another tensor's, or written again."""

    after = False


PathFor = Callable[[torch.device], queue.Path]


def path_of(kind: type[Jobs], values: type[Values] = Values, start: Launch = launch) -> PathFor:
    """The kernel with other jobs, or other ways of values to the host."""
    return lambda where: queue.Kernel(kind(where, start, pinned), values(where, pinned))


marks: list[int] = []
"""waits of the training thread before each step, and at the end"""


def train(
    steps: int = 2,
    *,
    side: bool = False,
    graph: lazy_device.Graph | None = None,
    halved: bool = False,
    averaged: bool = False,
) -> list[float]:
    """The demo's GPT; losses are read when all is over. ``side``: forward and backward on another stream;
    ``graph``: those of the third step are recorded into it; ``halved``: so is every gradient after backward,
    by what counts no version; ``averaged``: a copy of the weights follows them."""
    torch.manual_seed(0)
    model = GPT(TINY).to(device)
    average = [one.detach().clone() for one in model.parameters()] if averaged else []
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    main = lazy_device.module.current_stream()
    other = lazy_device.Stream() if side else main
    losses = []
    marks.clear()
    for step in range(steps):
        marks.append(counters.synchronisations)
        other.wait_stream(main)
        with lazy_device.module.stream(other):
            inputs, labels = (one.to(device, non_blocking=True) for one in batch(TINY, step=step, size=2))
            optimizer.zero_grad()
            if graph is not None and step == 2:
                graph.capture_begin()
            with device:  # the model makes its positions as it goes
                loss = loss_of(model, inputs, labels)
            loss.backward()
            if graph is not None and step == 2:
                graph.capture_end()
            losses.append(loss.detach())
        main.wait_stream(other)
        for parameter in model.parameters() if halved else ():
            assert parameter.grad is not None
            with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(parameter.grad):
                parameter.grad.mul_(0.5)
        optimizer.step()
        for mean, parameter in zip(average, model.parameters(), strict=False):
            mean.mul_(0.9).add_(parameter.detach(), alpha=0.1)
    marks.append(counters.synchronisations)
    return [float(one) for one in losses]


def measured(side: bool = False, steps: int = 2, averaged: bool = False) -> dict[str, object]:
    """Train; losses, and what it cost."""
    before = vars(counters).copy()
    counters.begin()
    losses = train(steps, side=side, averaged=averaged)
    lazy_device.module.synchronize()
    cost = {name: value - before[name] for name, value in vars(counters).items()}
    cost["most_bytes"] = counters.most_bytes - before["bytes_in_use"]
    return {"losses": losses, "cost": cost, "waits": [b - a for a, b in pairwise(marks)]}


def captured(
    folder: Path,
    path: PathFor = with_kernel,
    *,
    side: bool = False,
    num_steps: int = 2,
    averaged: bool = False,
    **options: Any,
) -> dict[str, object]:
    """The same under capture."""
    queue.Queue.__init__.__defaults__ = (path,)  # type: ignore[attr-defined]
    with trueup.Tracer(folder, **{"level": "mix", "steps": "all", "sketch": True, **options}):
        return measured(side, num_steps, averaged)


def runs(folder: Path) -> dict[str, object]:
    """Captured as it should be: every way there is."""
    found: dict[str, object] = {"bare": measured(), "kernel": captured(folder / "kernel")}
    found["operations"] = captured(folder / "operations", with_operations, num_steps=1)
    found["modules"] = captured(folder / "modules", level="L0")
    found["side"] = captured(folder / "side", side=True)
    found["elsewhere"] = captured(folder / "elsewhere", path_of(Elsewhere))
    found["averaged"] = captured(folder / "averaged", level="L0", num_steps=4, averaged=True)
    found["scalars"] = captured(folder / "scalars", steps="7")
    found |= {"graph": in_graph(folder / "graph"), **offloaded(folder / "offloaded")}
    found |= recorded(folder / "recorded")
    with trueup.Tracer(folder / "halved", level="L0", steps="all"):
        train(1, halved=True)
    found["values"] = captured(folder / "values", task="tensor")
    found["slow"] = with_slow_disk(folder / "slow")
    return found


def in_graph(folder: Path) -> dict[str, object]:
    """All is recorded into a graph: whatever capture adds would be replayed with it."""
    lazy_device.module.is_current_stream_capturing = lambda: True  # type: ignore[attr-defined]
    try:
        return captured(folder)
    finally:
        del lazy_device.module.is_current_stream_capturing  # type: ignore[attr-defined]


def recorded(folder: Path) -> dict[str, object]:
    """The third of four steps is recorded into a graph, while the steps before are still on their way."""
    recording.watch(lazy_device.Graph)
    found = {}
    for name in ("recorded_bare", "recorded"):
        queue.Queue.__init__.__defaults__ = (with_kernel,)  # type: ignore[attr-defined]
        tracer = trueup.Tracer(folder, level="mix", steps="all", sketch=True)
        graph = lazy_device.Graph()
        with tracer if name == "recorded" else nullcontext():
            losses = train(4, graph=graph)
        lazy_device.module.synchronize()
        found[name] = {"losses": losses, "held": graph.held}
    return found


def offloaded(folder: Path) -> dict[str, object]:
    """What backward needs is kept on the host meanwhile."""
    with torch.autograd.graph.save_on_cpu():
        return {"offloaded_bare": measured(), "offloaded": captured(folder)}


def with_slow_disk(folder: Path) -> dict[str, object]:
    """Values through a ring of 64 KB to a disk that takes 2 ms for each piece."""
    values.RING_BYTES, values.PIECE_BYTES, session._SLOW_SECONDS = 1 << 16, 1 << 12, 0.05
    write, most, take = tensors._write_all, [0], values.Ring.take

    def slow(file: Any, data: Any) -> None:
        time.sleep(0.002)
        write(file, data)

    def noted(ring: values.Ring, num_bytes: int) -> int:
        start = take(ring, num_bytes)
        with ring._room:  # the thread that writes gives room back meanwhile
            most[0] = max(most[0], sum(end - begin for begin, end, _ in ring._taken))
        return start

    tensors._write_all, values.Ring.take = slow, noted  # type: ignore[method-assign]
    found = captured(folder, task="tensor")
    tensors._write_all, values.Ring.take = write, take  # type: ignore[method-assign]
    return {**found, "most_waiting": most[0]}


def twins(folder: Path) -> dict[str, object]:
    """Captured as it should not be."""
    kinds = {"impatient": Impatient, "too_early": TooEarly, "too_late": TooLate}
    kinds |= {"delayed": Delayed, "freed_early": FreedEarly}
    found = {name: captured(folder / name, path_of(kind), num_steps=3) for name, kind in kinds.items()}
    found["unstaged"] = captured(folder / "unstaged", path_of(Jobs, Unstaged), task="tensor")
    return found


def broken(*_: object) -> None:
    """A kernel that does not start."""
    raise RuntimeError("no kernel image is available for execution on the device")


def faults(folder: Path) -> dict[str, object]:
    """Memory that runs out at one allocation after another, a kernel that raises, a stream that is stuck."""
    found: dict[str, object] = {"bare": measured()}
    found["memory"] = captured(folder / "memory", path_of(scarce(5)))
    found["kernel"] = captured(folder / "kernel", path_of(Jobs, start=broken))
    launching.MAX_WAIT_SECONDS = 0.2
    found["stuck"] = captured(folder / "stuck", path_of(Stuck))
    return found


def scarce(every: int) -> type[Jobs]:
    """Jobs for which memory runs out at every so many launches."""

    class Scarce(Jobs):
        def _start_here(self, variant: Variant, jobs: Any) -> None:
            if self.num_launches % every == every - 1:
                self.num_launches += 1
                lazy_device.fail_at[0] = counters.allocations
            try:
                torch.empty(1, device=self._device)
            finally:
                lazy_device.fail_at[0] = -1
            super()._start_here(variant, jobs)

    return Scarce


class Stuck(Jobs):
    """Its copies never come."""

    def _send(self) -> None:
        super()._send()
        lazy_device.stuck.add(self._copy_stream.stream_id)


SCENARIOS = {"runs": runs, "twins": twins, "faults": faults}


def main() -> None:
    """Run one."""
    faulthandler.dump_traceback_later(280, exit=True)  # a test must not wait for ever
    lazy_device.training_thread[0] = threading.get_ident()
    print(json.dumps(SCENARIOS[sys.argv[1]](Path(sys.argv[2]))))


if __name__ == "__main__":
    main()
