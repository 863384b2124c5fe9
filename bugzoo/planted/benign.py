"""Changes that are no fault: the same mathematics by other calls, in another order, or by a fused kernel."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bugzoo.entries import plant
from bugzoo.planted.forward import layer
from bugzoo.trainer import Trainer


@plant("repeat")
def repeat(trainer: Trainer) -> None:
    """Nothing."""


@plant("threads")
def threads(trainer: Trainer) -> None:
    """Two threads for one: sums in another order."""
    torch.set_num_threads(2)


@plant("loss-order")
def loss_order(trainer: Trainer) -> None:
    """Token losses are summed row by row."""
    criterion = trainer.model.criterion
    of_token = criterion.of_token

    def forward(logits: Tensor, labels: Tensor, mask: Tensor, denominator: Tensor) -> Tensor:
        scores = logits.float()
        if criterion.masks_padding:
            padding = torch.arange(scores.shape[-1]) >= criterion.vocab_size
            scores = scores.masked_fill(padding, -1e9)
        out: Tensor = (of_token(scores, labels) * mask).sum(dim=0).sum() / denominator
        return out

    criterion.forward = forward


@plant("linear-in-halves")
def linear_in_halves(trainer: Trainer) -> None:
    """Linear layers of every feed-forward take the batch in two halves."""
    for block in trainer.model.layers:
        for module in block.mlp.modules():
            if isinstance(module, nn.Linear):
                module.forward = lambda x, m=module: _halves(x, m)


def _halves(x: Tensor, module: nn.Linear) -> Tensor:
    return torch.cat([F.linear(part, module.weight, module.bias) for part in x.chunk(2)])


@plant("fused-attention")
def fused_attention(trainer: Trainer) -> None:
    """The fused kernel for the written-out one, or the other way round."""
    for block in trainer.model.layers:
        block.attn.fused = not block.attn.fused


@plant("fused-attention-llama")
def fused_attention_llama(trainer: Trainer) -> None:
    """The library's own switch."""
    trainer.model.set_attn_implementation("sdpa")


@plant("fused-adamw")
def fused_adamw(trainer: Trainer) -> None:
    """The fused update kernel."""
    for group in trainer.optimizer.param_groups:
        group["fused"], group["foreach"] = True, False


@plant("foreach-adamw")
def foreach_adamw(trainer: Trainer) -> None:
    """The multi-tensor update."""
    for group in trainer.optimizer.param_groups:
        group["foreach"] = True


@plant("chunk-for-split")
def chunk_for_split(trainer: Trainer) -> None:
    """Other calls, and contiguous copies."""
    for block in trainer.model.layers:
        _chunk(block.attn)


def _chunk(attention: Any) -> None:
    def heads(qkv: Tensor) -> tuple[Tensor, ...]:
        return tuple(attention.apart(part.contiguous()) for part in qkv.chunk(3, dim=-1))

    attention.heads = heads


@plant("contiguous-copies")
def contiguous_copies(trainer: Trainer) -> None:
    """Heads laid out one after another in memory."""
    for block in trainer.model.layers:
        attention, apart = block.attn, block.attn.apart
        attention.apart = lambda x, apart=apart: apart(x).contiguous()


@plant("matmul-for-linear")
def matmul_for_linear(trainer: Trainer) -> None:
    """The linear layers of every feed-forward written as a product with the transposed weight."""
    for block in trainer.model.layers:
        for module in block.mlp.modules():
            if isinstance(module, nn.Linear):
                module.forward = lambda x, m=module: _product(x, m)


def _product(x: Tensor, module: nn.Linear) -> Tensor:
    out = torch.matmul(x, module.weight.t())
    return out if module.bias is None else out + module.bias


@plant("norm-by-hand")
def norm_by_hand(trainer: Trainer) -> None:
    """The library's RMS norm for the written-out one."""
    for block in trainer.model.layers:
        for norm in (block.ln1, block.ln2):
            norm.forward = lambda x, n=norm: F.rms_norm(x, n.weight.shape, n.weight, n.eps)


@plant("softmax-by-hand")
def softmax_by_hand(trainer: Trainer) -> None:
    """Softmax as exponent over sum."""

    def probabilities(scores: Tensor, hidden: Tensor) -> Tensor:
        wide = scores.masked_fill(hidden, float("-inf")).float()
        exponent = (wide - wide.amax(-1, keepdim=True)).exp()
        return (exponent / exponent.sum(-1, keepdim=True)).to(scores.dtype)

    for block in trainer.model.layers:
        block.attn.probabilities = probabilities


@plant("scale-on-queries")
def scale_on_queries(trainer: Trainer) -> None:
    """Queries are scaled before the product, not the scores after it."""
    for block in trainer.model.layers:
        _scale_queries(block.attn)


def _scale_queries(attention: Any) -> None:
    mix, scale = attention.mix, attention.scale
    attention.scale = 1.0
    attention.mix = lambda q, k, v, hidden: mix(q * scale, k, v, hidden)


@plant("wrapped-module")
def wrapped_module(trainer: Trainer) -> None:
    """One feed-forward sits inside a wrapper."""

    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return out

    block = layer(trainer, 1)
    block.mlp = Wrapped(block.mlp)


@plant("renamed-module")
def renamed_module(trainer: Trainer) -> None:
    """Blocks under another name."""
    model: Any = trainer.model
    blocks = model.layers
    del model.layers
    model.blocks = blocks
    model.__dict__["layers"] = list(blocks)


@plant("experts-reversed")
def experts_reversed(trainer: Trainer) -> None:
    """Experts' shares are added up from the last to the first."""
    for block in trainer.model.layers:
        _reverse(block.mlp)


def _reverse(mlp: Any) -> None:
    def forward(x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        probabilities = mlp.route(tokens)
        weights, chosen = mlp.choose(probabilities)
        mlp.auxiliary = mlp.balance(probabilities, chosen)
        out = torch.zeros_like(tokens)
        for number in reversed(range(len(mlp.experts))):
            token, place = (chosen == number).nonzero(as_tuple=True)
            share = mlp.experts[number](tokens[token]) * weights[token, place, None]
            out = out.index_add(0, token, share.to(out.dtype))
        return out.view_as(x)

    mlp.forward = forward


@plant("cosine-cached")
def cosine_cached(trainer: Trainer) -> None:
    """Rotary tables computed once and kept, rightly: positions never change."""
    for block in trainer.model.layers:
        _cache(block.attn.rotary)


def _cache(rotary: Any) -> None:
    make, kept = rotary.tables, []

    def tables(positions: Tensor) -> Any:
        if not kept:
            kept.append(make(positions))
        return kept[0]

    rotary.tables = tables


@plant("reduced-as-one")
def reduced_as_one(trainer: Trainer) -> None:
    """All gradients reduced as one vector."""
    import torch.distributed as dist

    def reduce() -> None:
        gradients = [weight.grad for weight in trainer.model.parameters() if weight.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat.div_(trainer.world)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    trainer.reduce = reduce  # type: ignore[method-assign]


@plant("recompute-off")
def recompute_off(trainer: Trainer) -> None:
    """Activations kept for computed again."""
    trainer.model.through = lambda block, x, positions, documents: block(x, positions, documents)
