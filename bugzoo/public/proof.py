"""What an entry does to a run, without trueup: the step in which it first differs, and by how much.

Every run is a fork, as entries change modules that others use. ``python -m bugzoo.public.proof [NAME ...]``.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from bugzoo.public.entries import PublicEntry, plants, public_entries
from bugzoo.public.programs import PROGRAMS

STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One process: losses, and all weights after each step as one vector."""

    losses: list[float]
    weights: list[Tensor]


def seen(base: str, entry: PublicEntry | None, number: int) -> list[Seen]:
    """Train in that many forked processes.

    Raises:
        RuntimeError: one of them failed; says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(number):
            child = os.fork()
            if child == 0:
                _child(base, entry, rank, number, Path(folder))
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        found = [pickle.loads((Path(folder) / f"{rank}").read_bytes()) for rank in range(number)]
    failed = [one for one in found if isinstance(one, str)]
    if failed:
        raise RuntimeError(failed[0])
    return found


def _child(base: str, entry: PublicEntry | None, rank: int, number: int, folder: Path) -> None:
    result: Any
    try:
        if number > 1:
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=number
            )
        result = _train(base, entry, rank, number)
        if number > 1:
            dist.barrier()
    except Exception:
        result = traceback.format_exc()[-2000:]
    (folder / f"{rank}").write_bytes(pickle.dumps(result))
    os._exit(0)


def _train(base: str, entry: PublicEntry | None, rank: int, number: int) -> Seen:
    torch.set_num_threads(1)
    run: Any = PROGRAMS[base]()
    run.rank, run.world = rank, number
    if entry is not None:
        plants()[entry.name](run)
    run.build()
    losses, weights = [], []
    for step in range(STEPS):
        losses.append(run.step(step))
        weights.append(_vector(run.model))
    return Seen(losses=losses, weights=weights)


def _vector(model: Any) -> Tensor:
    """Weights and buffers sorted by name; a tied weight counts once."""
    own = {name: x.detach() for name, x in (*model.named_parameters(), *model.named_buffers())}
    parts = [x.full_tensor() if isinstance(x, DTensor) else x for _, x in sorted(own.items())]
    return torch.cat([part.flatten().double() for part in parts])


def difference(one: Tensor, other: Tensor) -> float:
    """Relative, or by the sorted values where weights are stored otherwise."""
    if one.shape != other.shape:
        return float("inf")
    direct = ((one - other).norm() / other.norm()).item()
    in_order = ((one.sort().values - other.sort().values).norm() / other.norm()).item()
    return min(direct, in_order)


def prove(entry: PublicEntry, clean: list[Seen]) -> dict[str, Any]:
    """First step that differs in a bit of weights or loss; relative differences after each step."""
    planted = seen(entry.base, entry, entry.target_processes or entry.processes)
    apart = [difference(planted[0].weights[step], clean[0].weights[step]) for step in range(STEPS)]
    losses = [
        sum(one.losses[step] for one in side) / len(side)
        for side in (planted, clean)
        for step in range(STEPS)
    ]
    loss_apart = [
        abs(losses[step] - losses[STEPS + step]) / abs(losses[STEPS + step]) for step in range(STEPS)
    ]
    first = next((step for step in range(STEPS) if apart[step] or loss_apart[step]), None)
    finite = all(torch.isfinite(torch.tensor(losses)))
    return {"first": first, "weights": apart, "loss": loss_apart, "finite": bool(finite)}


def wrong(entry: PublicEntry, found: dict[str, Any]) -> str | None:
    """What does not hold of an entry; None where all does."""
    if not found["finite"]:
        return "the loss is not finite"
    if entry.is_benign:
        most = MOST[entry.dtype]
        return f"more than rounding: {found['weights']}" if max(found["weights"]) > most else None
    return (
        None if found["first"] == entry.step else f"first differs in step {found['first']}, not {entry.step}"
    )


MOST = {"fp32": 1e-4, "bf16": 3e-3, "fp16": 1e-3}
"""relative difference of weights after two steps that rounding may make: Adam's first steps are as large as
the learning rate, however small a gradient is"""


def main() -> None:
    """A line of JSON an entry; names are those of entries or programs."""
    plants()
    names = sys.argv[1:]
    cleans: dict[str, list[Seen]] = {}
    for entry in public_entries().values():
        if names and entry.name not in names and entry.base not in names:
            continue
        try:
            if entry.base not in cleans:
                cleans[entry.base] = seen(entry.base, None, entry.processes)
            found = prove(entry, cleans[entry.base])
        except RuntimeError as error:
            print(json.dumps({"entry": entry.name, "wrong": str(error)}), flush=True)
            continue
        print(json.dumps({"entry": entry.name, "wrong": wrong(entry, found)} | found), flush=True)


if __name__ == "__main__":
    main()
