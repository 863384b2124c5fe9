"""Programs that train on ``lazy_device``, each in a process of its own; prints what a test asks as one JSON line.

python -m tests.adapters.torch.device.on_device SCENARIO FOLDER
"""

from __future__ import annotations

import faulthandler
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import trueup
from tests.adapters.torch.device import contract, lazy_device
from tests.models.gpt import GPT, GPTConfig, batch, loss_of
from trueup.adapters.torch.device import queue
from trueup.adapters.torch.device.launching import Jobs, Variant
from trueup.adapters.torch.device.tables import Tables

TINY = GPTConfig(vocab_size=64, num_layers=2, hidden_size=32, num_heads=4, seq_length=16, dropout=0.0)
counters = lazy_device.counters
device = lazy_device.register()


def launch(
    variant: Variant,
    num_programs: int,
    job_of: torch.Tensor,
    jobs: torch.Tensor,
    rows: torch.Tensor,
    partials: torch.Tensor,
    count: torch.Tensor,
    tables: Tables,
) -> None:
    """The kernel's contract, as work of the current stream."""
    counters.kernels += 1
    specs = [lazy_device.spec_of(one) for one in (job_of, jobs, rows)]

    def work() -> None:
        contract.run(variant, *(spec.on_host() for spec in specs), lazy_device.host_address)

    lazy_device._queues[lazy_device.module.current_stream().stream_id].submit(work)


def pinned(num_bytes: int) -> torch.Tensor:
    """Host memory: every copy to and from it is asynchronous here."""
    return torch.empty(num_bytes, dtype=torch.uint8)


def with_kernel(where: torch.device) -> queue.Path:
    """As ``queue.path_for`` on a device that runs Triton."""
    return queue.Kernel(Jobs(where, launch, pinned))


def train(steps: int = 2, where: torch.device = device) -> list[float]:
    """The demo's GPT; losses are read when all is over."""
    torch.manual_seed(0)
    model = GPT(TINY).to(where)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for step in range(steps):
        inputs, labels = (one.to(where, non_blocking=True) for one in batch(TINY, step=step, size=2))
        with where:  # the model makes its positions as it goes
            loss = loss_of(model, inputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(one) for one in losses]


def captured(folder: Path, **options: Any) -> list[float]:
    """The same under capture."""
    settings = {"level": "mix", "steps": "all", "sketch": True, **options}
    with trueup.Tracer(folder, **settings):
        return train()


def same(folder: Path) -> dict[str, object]:
    """Captured on the CPU, on the device with the kernel, and not captured."""
    plain = train()
    bare = vars(counters).copy()
    trained = captured(folder / "device")
    with_capture = vars(counters).copy()
    with trueup.Tracer(folder / "cpu", level="mix", steps="all", sketch=True):
        train(where=torch.device("cpu"))
    return {"plain": plain, "captured": trained, "bare": bare, "with_capture": with_capture}


SCENARIOS: dict[str, Callable[[Path], dict[str, object]]] = {"same": same}


def main() -> None:
    """Run one."""
    faulthandler.dump_traceback_later(25, exit=True)  # a test must not wait for ever
    lazy_device.training_thread[0] = threading.get_ident()
    queue.Queue.__init__.__defaults__ = (with_kernel,)  # type: ignore[attr-defined]
    print(json.dumps(SCENARIOS[sys.argv[1]](Path(sys.argv[2]))))


if __name__ == "__main__":
    main()
