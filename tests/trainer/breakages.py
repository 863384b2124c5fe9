"""Mistakes that parallel trainers were found to make, made here on purpose, one at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch.distributed as dist

from tests.trainer import layouts
from trueup import Invariant, Placement
from trueup_gpt.config import Config
from trueup_gpt.parallel.layout import Layout, layout_for
from trueup_gpt.torch import boxes, checkpoint, step
from trueup_gpt.torch.parallel import apply, pieces, stages
from trueup_gpt.torch.parallel.rules import RULES

Breakage = Callable[[], Any]


def _placed(pattern: str, placement: Placement) -> Any:
    def changed(config: Config) -> Layout:
        layout = layout_for(config)
        return dataclasses.replace(layout, parameters=layout.parameters | {pattern: {"tp": placement}})

    return patch.object(stages, "layout_for", changed)


def _without_call(pattern: str) -> Any:
    def changed(config: Config) -> Layout:
        layout = layout_for(config)
        return dataclasses.replace(layout, calls=tuple(one for one in layout.calls if one.pattern != pattern))

    return patch.object(stages, "layout_for", changed)


def _kept(module: Any, inner: Any, *rest: Any) -> Any:
    return inner


def _expert_gradients_summed_again() -> Any:
    before = stages.Parallel.reduce_gradients

    def reduce(parallel: stages.Parallel) -> None:
        for fqn, parameter in parallel.parameters.items():
            if ".experts." in fqn:
                dist.all_reduce(pieces.gradient_of(parameter), group=parallel.mesh.group("ep"))
        before(parallel)

    return patch.object(stages.Parallel, "reduce_gradients", reduce)


def _replicas_counted() -> Any:
    before = step.gradient_norms

    def norms(given: Sequence[pieces.Piece], *args: Any, **kwargs: Any) -> Any:
        return before([dataclasses.replace(one, copies=()) for one in given], *args, **kwargs)

    return patch.object(step, "gradient_norms", norms)


def _same_rows() -> Any:
    before = layouts.portion

    def portion(*args: Any) -> Any:
        return dataclasses.replace(before(*args), dp_rank=0)

    return patch.object(layouts, "portion", portion)


def _decided_alone() -> Any:
    """Each process looks at its own gradients alone."""
    before = step.gradient_norms

    def norms(given: Sequence[pieces.Piece], *args: Any, **kwargs: Any) -> Any:
        found = before(given, *args, **kwargs)
        own = sum(float(one.gradient().square().sum()) for one in given if one.gradient() is not None)
        return dataclasses.replace(found, total=own**0.5)

    return patch.object(step, "gradient_norms", norms)


BREAKAGES: dict[str, Breakage] = {
    "norm gradients not summed over tp": lambda: _placed("*norm.*", Invariant()),
    "router gradient not summed over tp": lambda: _placed("layers.*.mlp.router.weight", Invariant()),
    "tied gradient not summed over stages": lambda: patch.object(stages, "_tie", lambda parallel: None),
    "router losses counted by every tp rank": lambda: patch.dict(RULES, shared_loss=_kept),
    "loss divided by own tokens": lambda: _without_call("*over_tokens"),
    "keys of own tokens only": lambda: _without_call("layers.*.attention.core"),
    "attention output not summed": lambda: _without_call("layers.*.attention.output.multiply"),
    "expert gradients summed over ep": _expert_gradients_summed_again,
    "replicas counted in the norm": _replicas_counted,
    "data-parallel ranks read the same rows": _same_rows,
    "finite decided alone": _decided_alone,
}


def _raw_parts() -> Any:
    """Each process saves its part as if it were the whole."""
    return patch.object(boxes.Boxes, "of", lambda tensor, found: pieces.local(tensor))


def _concatenated() -> Any:
    """Parts of FSDP2 and tp on one dim in the order of ranks: tp has cut first, so they lie otherwise."""
    before = checkpoint.boxes_of

    def found(place: apply.ParameterShare, tensor: Any, flat: Any = None) -> Any:
        shape, held = before(place, tensor, flat)
        tp = shape[0] // place.size[0]
        if len(held) != 1 or tp == 1 or shape[0] % (2 * tp):
            return shape, held
        rows = held[0].values.shape[0]
        of_tp, of_data = place.offset[0] // place.size[0], (held[0].offset[0] - place.offset[0]) // rows
        offset = ((of_data * tp + of_tp) * rows, *held[0].offset[1:])
        return shape, [boxes.Box(offset, held[0].values)]

    return patch.object(checkpoint, "boxes_of", found)


MISSAVED: dict[str, Breakage] = {"raw parts": _raw_parts, "parts in the order of ranks": _concatenated}


def missaved(plain: dict[str, Any], name: str) -> list[Any]:
    """In this process: train, save with the mistake; its weights."""
    from tests.trainer.resuming import trained

    with MISSAVED[name]():
        return trained(plain)[1]


def scaled_sums(plain: dict[str, Any]) -> str:
    """In this process: what FSDP2 says where gloo is left to scale a sum."""
    from torch.distributed.fsdp import FSDPModule

    with patch.object(FSDPModule, "set_force_sum_reduction_for_comms", lambda self, enable: None):
        try:
            layouts.train(plain, 1)
        except RuntimeError as error:
            return str(error)
    return ""


@contextmanager
def broken(name: str) -> Iterator[None]:
    """With that mistake."""
    assert apply.RULES is RULES
    with BREAKAGES[name]():
        yield


def train(plain: dict[str, Any], name: str, steps: int) -> tuple[list[float], list[float]]:
    """In this process, with the mistake: losses and gradient norms."""
    with broken(name):
        results, _, _ = layouts.train(plain, steps)
    return [one.loss for one in results], [one.grad_norm for one in results]


def overflow(plain: dict[str, Any], name: str | None, rank: int) -> list[tuple[bool, float]]:
    """Gradients of one process become infinite in step 1: whether each step was finite, and the scale."""
    _, mesh, parallel, one_step = layouts.start(plain)
    data, _ = layouts.open_data(one_step.config)
    before = stages.Parallel.reduce_gradients

    def reduce(self: stages.Parallel) -> None:
        before(self)
        if one_step.number == 1 and mesh.rank == rank:
            parallel.parameters["layers.1.attention.query.weight"].grad[0, 0] = float("inf")  # type: ignore[index]

    found = []
    with patch.object(stages.Parallel, "reduce_gradients", reduce):
        for number in range(3):
            batches = data.read(layouts.portion(one_step.config, mesh, number))
            if name is None:
                result = one_step(batches)
            else:
                with broken(name):
                    result = one_step(batches)
            found.append((result.finite, one_step.scale.value))
    return found


def forward_calls(plain: dict[str, Any]) -> int:
    """How often the layers of this process run forward in the first step."""
    from trueup_gpt.torch.model.gpt import Layer

    calls = 0
    before = Layer.forward

    def counted(self: Layer, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        return before(self, *args)

    with patch.object(Layer, "forward", counted):
        layouts.train(plain, 1)
    return calls
