"""Recordings made by hand, and a training program whose data can be its own or a recording's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueup.batches.source import Arrays, BatchPlace

VOCABULARY = 97

TRAIN = """
import os, sys
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

STEPS, MICROBATCHES, ROWS, LENGTH = 3, 2, 4, 12
rank = int(os.environ.get("RANK", 0))
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(97, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 97))
if "WORLD_SIZE" in os.environ:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)

def own():
    generator = torch.Generator().manual_seed(1000 + rank)
    while True:
        ids = torch.randint(0, 97, (ROWS, LENGTH + 1), generator=generator)
        labels = ids[:, 1:].clone()
        labels[:, :2] = -100
        yield ids[:, :-1], labels

def replayed(path):
    import trueup
    dataset = trueup.ReplayDataset(path, columns=("tokens", "labels"))
    yield from torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1)

batches = replayed(sys.argv[1]) if len(sys.argv) > 1 else own()
for step in range(STEPS):
    for _ in range(MICROBATCHES):
        tokens, labels = next(batches)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten()) / MICROBATCHES
        loss.backward()
        sys.stdout.write(f"loss {rank} {step} {loss.item().hex()}\\n")  # whole lines: ranks share the stream
        sys.stdout.flush()
    optimizer.step()
    optimizer.zero_grad()
if dist.is_initialized():
    dist.destroy_process_group()
"""


def losses(text: str) -> list[str]:
    """Its lines that hold losses, rank after rank, those of a rank in their order."""
    lines = [line for line in text.splitlines() if line.startswith("loss ")]
    return sorted(lines, key=lambda line: int(line.split()[1]))


def ids(seed: int, rows: int, length: int, dtype: str = "int64") -> NDArray[Any]:
    """Token ids."""
    return np.random.default_rng(seed).integers(1, VOCABULARY, (rows, length)).astype(dtype)


def arrays(seed: int = 0, rows: int = 2, length: int = 8, *, shift: int | None = 1) -> Arrays:
    """One microbatch; labels ``shift`` places on, None: none at all."""
    stream = ids(seed, rows, length + 4)
    found = {"tokens": stream[:, :length]}
    return found if shift is None else found | {"labels": stream[:, shift : length + shift]}


def recording(
    steps: int = 2, microbatches: int = 2, ranks: int = 2, *, rows: int = 2, length: int = 8
) -> dict[BatchPlace, Arrays]:
    """Batches of several steps and ranks."""
    places = [BatchPlace(s, m, r) for s in range(steps) for m in range(microbatches) for r in range(ranks)]
    return {place: arrays(seed, rows, length) for seed, place in enumerate(places)}


def saved_by_hand(folder: Path, batches: list[Arrays], *, rank: int = 0) -> Path:
    """What a program leaves that saves what each forward was given."""
    for number, found in enumerate(batches):
        at = folder / f"step_{number}" / f"rank_{rank}"
        at.mkdir(parents=True)
        for name, array in found.items():
            np.save(at / f"{name}.npy", array)
    return folder


def same(one: Arrays, other: Arrays) -> bool:
    """The same names, bits and dtypes."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name]) for name in one
    )
