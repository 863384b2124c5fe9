"""A training program for the command line: ``python program.py cpu|lazy none|eps|rate``."""

from __future__ import annotations

import sys

import torch
from bugzoo.models.gpt import GPT, GPTConfig, batch, loss_of

SMALL = GPTConfig(vocab_size=64, num_layers=2, hidden_size=32, num_heads=4, seq_length=16, dropout=0.0)


def device_named(name: str) -> torch.device:
    """The CPU, or the simulated device with the kernel's contract in place of the kernel."""
    if name == "cpu":
        return torch.device("cpu")
    from tests.adapters.torch.device import on_device
    from trueup.capture.session import current

    on_device.queue.Queue.__init__.__defaults__ = (on_device.with_kernel,)  # type: ignore[attr-defined]
    session = current()
    if session is not None:  # begun when torch was imported
        session.adapter._engine.summariser._queue._path_for = on_device.with_kernel  # type: ignore[attr-defined]
    return on_device.device


def main(where: str, fault: str) -> None:
    """Two steps."""
    device = device_named(where)
    torch.manual_seed(0)
    model = GPT(SMALL).to(device)
    if fault == "eps":
        model.layers[1].ln2.eps = 1e-2
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3 if fault == "rate" else 1e-3)
    for step in range(2):
        inputs, labels = (one.to(device) for one in batch(SMALL, step=step, size=2))
        optimizer.zero_grad()
        with device:
            loss = loss_of(model, inputs, labels)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
