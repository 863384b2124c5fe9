"""What goes wrong on the way back, while everything forward is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bugzoo.entries import plant
from bugzoo.models.ranks import GatherForAll
from bugzoo.planted.forward import layer
from bugzoo.trainer import Trainer


class Backward(torch.autograd.Function):
    """The identity, with any function of the gradient on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """The same values."""
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Changed."""
        return ctx.change(gradients[0]), None


@plant("gradient-scale")
def gradient_scale(trainer: Trainer, path: str, factor: float) -> None:
    """A kernel whose weight gradient counts some tokens twice."""
    trainer.model.get_parameter(path).register_hook(lambda gradient: gradient * factor)


@plant("gradient-bf16")
def gradient_bf16(trainer: Trainer) -> None:
    """A kernel that accumulates its weight gradient in bfloat16."""
    weight = layer(trainer, 1).attn.qkv.weight
    weight.register_hook(lambda gradient: gradient.to(torch.bfloat16).to(gradient.dtype))


@plant("gradient-transposed")
def gradient_transposed(trainer: Trainer) -> None:
    """A square weight's gradient comes out transposed."""
    layer(trainer, 2).attn.proj.weight.register_hook(lambda gradient: gradient.t().contiguous())


@plant("gradient-bit-flip")
def gradient_bit_flip(trainer: Trainer) -> None:
    """One bit of one weight's gradient on the last rank."""

    def flip(gradient: Tensor) -> Tensor:
        changed = gradient.clone()
        changed.view(-1).view(torch.int32)[123] ^= 1 << 27
        return changed

    if trainer.rank == trainer.world - 1:
        layer(trainer, 1).mlp.up.weight.register_hook(flip)


@plant("frozen")
def frozen(trainer: Trainer, path: str) -> None:
    """One weight was frozen for an experiment, and stayed so."""
    trainer.model.get_parameter(path).requires_grad_(False)


@plant("keys-detached")
def keys_detached(trainer: Trainer) -> None:
    """Keys go through a cache that cuts the graph."""
    attention = layer(trainer, 1).attn
    heads = attention.heads

    def cut(qkv: Tensor) -> tuple[Tensor, ...]:
        q, k, v = heads(qkv)
        return q, k.detach(), v

    attention.heads = cut


@plant("rotary-backward-sign")
def rotary_backward_sign(trainer: Trainer) -> None:
    """A hand-written rotary kernel turns the gradient the wrong way."""
    rotary = layer(trainer, 1).attn.rotary
    forward = rotary.forward

    def wrong(x: Tensor, positions: Tensor) -> Tensor:
        exact = forward(x, positions)
        return _values_of(exact.detach(), forward(x, -positions))

    rotary.forward = wrong


@plant("norm-backward-term")
def norm_backward_term(trainer: Trainer) -> None:
    """A hand-written norm takes its own scale for a constant on the way back."""
    norm = layer(trainer, 2).ln1

    def forward(x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps).detach()
        return (wide * scale).to(x.dtype) * norm.weight.to(x.dtype)

    norm.forward = forward


@plant("gradient-sign")
def gradient_sign(trainer: Trainer) -> None:
    """The gate's gradient has the wrong sign."""
    mlp = layer(trainer, 1).mlp
    mlp.gated = lambda gate, up: F.silu(Backward.apply(gate, torch.neg)) * up


@plant("groups-averaged")
def groups_averaged(trainer: Trainer) -> None:
    """Gradients of a key head are averaged over its queries instead of summed."""
    attention = layer(trainer, 0).attn
    repeat = attention.repeat
    attention.repeat = lambda x: repeat(Backward.apply(x, lambda gradient: gradient / 2))


@plant("embedding-by-frequency")
def embedding_by_frequency(trainer: Trainer) -> None:
    """Embedding gradients are divided by how often an id occurs."""
    trainer.model.emb.scale_grad_by_freq = True


@plant("recompute-random-state")
def recompute_random_state(trainer: Trainer) -> None:
    """Activation checkpointing draws other dropout the second time."""

    def through(block: Any, x: Tensor, positions: Tensor, documents: Tensor | None) -> Tensor:
        out: Tensor = checkpoint(
            block, x, positions, documents, use_reentrant=False, preserve_rng_state=False
        )
        return out

    trainer.model.through = through


@plant("input-gradient-lost")
def input_gradient_lost(trainer: Trainer) -> None:
    """A column-parallel layer does not add up its input's gradient over ranks."""
    from bugzoo.models import feed_forward

    mlp = layer(trainer, 1).mlp
    whole = mlp.forward

    def forward(x: Tensor) -> Tensor:
        kept = feed_forward.gather
        feed_forward.gather = lambda part, dim: GatherForAll.apply(part, dim)
        try:
            out: Tensor = whole(x)
        finally:
            feed_forward.gather = kept
        return out

    mlp.forward = forward


@plant("auxiliary-scaled")
def auxiliary_scaled(trainer: Trainer) -> None:
    """The balance loss's gradient is multiplied by the number of ranks."""
    for block in trainer.model.layers:
        block.mlp.balance = _scaled(block.mlp.balance, trainer.world)


@plant("half-underflow")
def half_underflow(trainer: Trainer) -> None:
    """Gradients too small for float16 become zero in one layer: the loss scale is taken off too early."""
    down = layer(trainer, 1).mlp.down
    forward = down.forward

    def small(gradient: Tensor) -> Tensor:
        return (gradient.float() / 4096.0).to(torch.float16).to(gradient.dtype) * 4096.0

    down.forward = lambda x: Backward.apply(forward(x), small)


@plant("value-gradient-scale")
def value_gradient_scale(trainer: Trainer) -> None:
    """The gradient of one projection's input in Llama is a little too large."""
    proj = trainer.model.model.layers[1].self_attn.v_proj
    forward = proj.forward
    proj.forward = lambda x: forward(Backward.apply(x, lambda gradient: gradient * 1.5))


def _values_of(values: Tensor, graph: Tensor) -> Tensor:
    """Bit-equal values, with the gradients of something else."""

    class Instead(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, other: Tensor) -> Tensor:
            return values.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0]

    out: Tensor = Instead.apply(graph)
    return out


def _scaled(balance: Callable[..., Tensor], factor: float) -> Callable[..., Tensor]:
    return lambda *given: Backward.apply(balance(*given), lambda gradient: gradient * factor)
