"""What an entry does to a run: where it first differs from the clean one, in bits and by how much.

``python -m bugzoo.proof --base NAME [--out FILE]`` prints one JSON object; bases of several processes are
started with torchrun.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from bugzoo.bases import Base, bases
from bugzoo.entries import Entry, entries
from bugzoo.trainer import make_trainer, processes

STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One step: loss, gradients as the optimizer got them, weights and moments after it."""

    loss: float
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    moments: list[Tensor]


class Watch:
    """Trains and keeps what every step did."""

    def __init__(self, base: Base, entry: Entry | None, checkpoint: Path | None) -> None:
        torch.set_num_threads(1)
        self.trainer = make_trainer(base)
        if entry is not None:
            entry.plant(self.trainer)
        if checkpoint is not None:
            self.trainer.restore(checkpoint)

    def steps(self, count: int) -> list[Seen]:
        """Train that many steps."""
        try:
            return [self._step() for _ in range(count)]
        finally:
            self.trainer.close()

    def _step(self) -> Seen:
        trainer, gradients = self.trainer, dict[str, Tensor]()
        update = trainer.update

        def noting() -> None:
            for name, weight in trainer.named_weights():
                if weight.grad is not None:
                    gradients[_plain_name(name)] = _held(weight.grad)
            update()

        trainer.update = noting  # type: ignore[method-assign]
        loss = trainer.step()
        trainer.update = update  # type: ignore[method-assign]
        named = trainer.model.named_parameters()
        weights = {_plain_name(name): _held(weight) for name, weight in named}
        states = trainer.optimizer.state.values()
        moments = [_held(x) for state in states for x in state.values() if isinstance(x, Tensor)]
        return Seen(loss=loss, gradients=gradients, weights=weights, moments=moments)


def same_bits(one: Seen, other: Seen) -> bool:
    """Whether two steps agree to the last bit, in everything."""
    return (
        one.loss == other.loss
        and _same(one.gradients, other.gradients)
        and _same(one.weights, other.weights)
        and len(one.moments) == len(other.moments)
        and all(_equal(a, b) for a, b in zip(one.moments, other.moments, strict=True))
    )


def largest_difference(one: Seen, other: Seen) -> dict[str, float]:
    """Relative difference of the loss, and of all gradients and weights as one vector each."""
    return {
        "loss": abs(one.loss - other.loss) / abs(other.loss),
        "gradients": _relative(one.gradients, other.gradients),
        "weights": _relative(one.weights, other.weights),
    }


def _held(tensor: Tensor) -> Tensor:
    """A copy of what this process has of a tensor."""
    own = tensor.detach()
    return (own.to_local() if isinstance(own, DTensor) else own).clone()


def _plain_name(name: str) -> str:
    """A weight's name where nothing was renamed or wrapped."""
    return name.replace("blocks.", "layers.").replace(".inner.", ".")


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(_equal(x, other[name]) for name, x in one.items())


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _relative(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    if one.keys() != other.keys():
        return float("inf")
    vectors = [torch.cat([side[name].flatten().double() for name in other]) for side in (one, other)]
    return ((vectors[0] - vectors[1]).norm() / vectors[1].norm()).item()


def prove(base: Base) -> dict[str, Any]:
    """For every entry of a base: first step that differs (None: none does), and by how much in step 0."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if base.resumes_at:
            checkpoint = Path(folder) / "checkpoint.pt"
            before = make_trainer(base)
            for _ in range(base.resumes_at):
                before.step()
            before.save(checkpoint)
        clean = Watch(base, None, checkpoint).steps(STEPS)
        again = Watch(base, None, checkpoint).steps(STEPS)
        said: dict[str, Any] = {"": _said(again, clean)}
        for entry in entries().values():
            if entry.base == base.name:
                said[entry.name] = _said(Watch(base, entry, checkpoint).steps(STEPS), clean)
    return said


def _said(given: list[Seen], clean: list[Seen]) -> dict[str, Any]:
    apart = [not same_bits(one, other) for one, other in zip(given, clean, strict=True)]
    first = apart.index(True) if any(apart) else len(apart)
    if dist.is_initialized():
        least = torch.tensor(first)
        dist.all_reduce(least, dist.ReduceOp.MIN)
        first = int(least)
    finite = all(torch.isfinite(torch.tensor(one.loss)) for one in given)
    at_start = largest_difference(given[0], clean[0])
    return {"first": first if first < STEPS else None, "finite": finite, "in_first_step": at_start}


def main() -> None:
    """Prove one base's entries."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", required=True, choices=sorted(bases()))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    base = bases()[given.base]
    with processes(base):
        said = prove(base)
        if not dist.is_initialized() or dist.get_rank() == 0:
            text = json.dumps(said, indent=1)
            if given.out:
                given.out.write_text(text)
            else:
                print(text)


if __name__ == "__main__":
    main()
