"""Train the small GPT on seeded random tokens, as it should be or with one entry of the collection planted.

A plain training program: it knows nothing of what captures it. ``--list`` shows the entries.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __package__ in (
    None,
    "",
):  # started by its path: the collection's own folder is on sys.path, not its parent
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch

from bugzoo.benign import BENIGN
from bugzoo.catalogue import Training
from bugzoo.faults import FAULTS
from bugzoo.models.gpt import GPT, GPTConfig, batch, loss_of

CHANGES = FAULTS | BENIGN


def build(config: GPTConfig, *, seed: int = 0, change: str | None = None, batch_size: int = 4) -> Training:
    """Model, optimizer and data; the same for the same seed, but for the change."""
    torch.manual_seed(seed)
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    training = Training(
        config=config,
        model=model,
        optimizer=optimizer,
        batch=lambda step: batch(config, step=step, size=batch_size),
        loss=loss_of,
    )
    if change is not None:
        CHANGES[change].plant(training)
    return training


def train_step(training: Training, step: int) -> torch.Tensor:
    """Forward, backward, update; returns the loss."""
    loss = training.loss(training.model, *training.batch(step))
    loss.backward()
    training.optimizer.step()
    training.optimizer.zero_grad()
    return loss.detach()


def arguments() -> argparse.ArgumentParser:
    """The program's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--fault", choices=sorted(FAULTS))
    chosen.add_argument("--benign", choices=sorted(BENIGN))
    chosen.add_argument("--list", action="store_true", help="show the entries and stop")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--seq", type=int, default=128)
    return parser


def main() -> None:
    """Train and print the loss of every step."""
    given = arguments().parse_args()
    if given.list:
        for kind, changes in (("fault", FAULTS), ("benign", BENIGN)):
            for change in changes.values():
                print(f"{kind:7} {change.name:16} {change.summary}")
        return
    torch.set_num_threads(given.threads)
    config = GPTConfig(hidden_size=given.hidden, seq_length=given.seq)
    training = build(config, seed=given.seed, change=given.fault or given.benign)
    for step in range(given.steps):
        print(f"step {step} loss {train_step(training, step).item():.6f}", flush=True)


if __name__ == "__main__":
    main()
