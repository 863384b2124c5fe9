"""Train a small model on seeded tokens, as it should be or with one entry of the collection planted.

A plain training program: it knows nothing of what captures it. ``--list`` shows the entries. Bases of several
processes are started with torchrun.
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
    chosen.add_argument("--fault", metavar="NAME")
    chosen.add_argument("--benign", metavar="NAME")
    chosen.add_argument("--list", action="store_true", help="show the entries and stop")
    parser.add_argument(
        "--base", default="plain", help="plain, the GPT of the benchmarks (default), or a name in bases.yaml"
    )
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=256, help="of the plain base")
    parser.add_argument("--seq", type=int, default=128, help="of the plain base")
    parser.add_argument("--alone", action="store_true", help="the same training in one process")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write a checkpoint at the end")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on from a checkpoint")
    return parser


def main() -> None:
    """Train and print the loss of every step."""
    parser = arguments()
    given = parser.parse_args()
    if given.list:
        _show_all()
    elif given.base == "plain":
        _train_plain(parser, given)
    else:
        _train_base(parser, given)


def _show_all() -> None:
    from bugzoo.entries import entries

    for kind, changes in (("fault", FAULTS), ("benign", BENIGN)):
        for change in changes.values():
            print(f"{kind:7} {'plain':14} {change.name:28} {change.summary}")
    for entry in entries().values():
        kind = "benign" if entry.is_benign else "fault"
        print(f"{kind:7} {entry.base:14} {entry.name:28} {entry.summary}")


def _train_plain(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    change = given.fault or given.benign
    if change is not None and change not in (FAULTS if given.fault else BENIGN):
        parser.error(f"{change}: not one of the plain base's; --list shows all, --base says which program")
    torch.set_num_threads(given.threads)
    config = GPTConfig(hidden_size=given.hidden, seq_length=given.seq)
    training = build(config, seed=given.seed, change=change)
    for step in range(given.steps):
        print(f"step {step} loss {train_step(training, step).item():.6f}", flush=True)


def _train_base(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    from bugzoo.bases import bases
    from bugzoo.entries import entries
    from bugzoo.trainer import make_trainer, processes

    base = bases().get(given.base)
    if base is not None and given.alone:
        base = base.alone
    if base is None:
        known = ", ".join(bases())
        parser.error(f"--base {given.base}: one of plain, {known}; --alone: one of several processes")
    if base.ported:
        parser.error(
            f"--base {given.base}: runs as examples/migration/pytorch_gpt.py and bugzoo/port/train.py"
        )
    entry = entries().get(given.fault or given.benign)
    if (given.fault or given.benign) and (entry is None or entry.base != base.name):
        parser.error(f"{given.fault or given.benign}: not an entry of base {base.name}; --list shows all")
    if base.resumes_at and given.resume is None and given.save is None:
        parser.error(f"base {base.name} goes on from a checkpoint: --resume FILE, made by --save FILE")
    torch.set_num_threads(given.threads)
    with processes(base):
        trainer = make_trainer(base, seed=given.seed)
        if entry is not None:
            entry.plant(trainer)
        if given.resume is not None:
            trainer.restore(given.resume)
        for step in range(given.steps):
            loss = trainer.step()
            if trainer.rank == 0:
                print(f"step {step} loss {loss:.6f}", flush=True)
        if given.save is not None:
            trainer.save(given.save)


if __name__ == "__main__":
    main()
