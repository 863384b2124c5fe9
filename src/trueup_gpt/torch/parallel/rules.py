"""The five computations that differ when their tensors are cut; everything else only moves tensors.

Each takes the module, what it did before, the mesh and the axis, and gives what it does now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trueup import part_of
from trueup_gpt.torch.model.parts import CrossEntropy, Embedding, SavedTensors
from trueup_gpt.torch.parallel.mesh import Mesh
from trueup_gpt.torch.parallel.streams import own_stream

Function = Callable[..., Tensor]
"""what a module computes"""


def vocabulary_rows(module: nn.Module, inner: Function, mesh: Mesh, axis: str) -> Function:
    """Embedding of the ids whose rows this process has, zeros for the others: a term of the sum."""
    assert isinstance(module, Embedding)
    start = part_of(module.rows, mesh.size(axis), mesh.coordinate(axis))[0]

    def forward(ids_BT: Tensor) -> Tensor:
        local = ids_BT - start
        own = (local >= 0) & (local < module.weight.shape[0])
        return inner(local.where(own, 0)) * own[..., None]

    return forward


class VocabParallelCrossEntropy(torch.autograd.Function):
    """Cross entropy of logits whose vocabulary is cut: two sums and a maximum over the processes, no gather.

    loss = log sum_v exp(z_v - max z) - (z_label - max z); gradient softmax(z) - one_hot(label).
    """

    @staticmethod
    def forward(
        ctx: SavedTensors, logits_BTV: Tensor, labels_BT: Tensor, start: int, group: dist.ProcessGroup
    ) -> Tensor:
        largest_BT = logits_BTV.amax(-1)
        dist.all_reduce(largest_BT, dist.ReduceOp.MAX, group=group)
        shifted_BTV = logits_BTV - largest_BT[..., None]
        local_BT = labels_BT - start
        own_BT = (local_BT >= 0) & (local_BT < logits_BTV.shape[-1])
        local_BT = local_BT.where(own_BT, 0)
        picked_BT = shifted_BTV.gather(-1, local_BT[..., None])[..., 0] * own_BT
        exp_BTV = shifted_BTV.exp_()
        both = torch.stack((picked_BT, exp_BTV.sum(-1)))
        dist.all_reduce(both, group=group)
        picked_BT, sum_BT = both
        ctx.save_for_backward(exp_BTV.div_(sum_BT[..., None]), local_BT, own_BT)
        return sum_BT.log() - picked_BT

    @staticmethod
    def backward(ctx: SavedTensors, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        softmax_BTV, local_BT, own_BT = ctx.saved_tensors
        gradient_BTV = softmax_BTV.clone()
        gradient_BTV.scatter_add_(-1, local_BT[..., None], -own_BT[..., None].to(softmax_BTV.dtype))
        return gradient_BTV.mul_(gradients[0][..., None]), None, None, None


def vocabulary_loss(module: nn.Module, inner: Function, mesh: Mesh, axis: str) -> Function:
    """The loss of logits (B, T, V / tp); parts of the vocabulary may differ in length."""
    assert isinstance(module, CrossEntropy)
    group, total = mesh.group(axis), module.vocab_size
    start = part_of(total, mesh.size(axis), mesh.coordinate(axis))[0]

    def forward(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
        widened = module.widened(logits_BTV)
        return VocabParallelCrossEntropy.apply(widened, labels_BT, start, group)

    return forward


def shared_loss(module: nn.Module, inner: Function, mesh: Mesh, axis: str) -> Function:
    """Every process of the axis routes the same tokens: each contributes its share of the router's losses."""
    module.loss_share = 1.0 / mesh.size(axis)  # type: ignore[assignment]
    return inner


class _Exchange(Protocol):
    exchange: tuple[list[int], list[int], dist.ProcessGroup]


class _AllToAll(torch.autograd.Function):
    """Rows to the processes they belong to; backward sends them back."""

    @staticmethod
    def forward(
        ctx: _Exchange, x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.exchange = sent, received, group
        out = x.new_empty((sum(received), *x.shape[1:]))
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: _Exchange, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        sent, received, group = ctx.exchange
        return _AllToAll.apply(gradients[0], received, sent, group), None, None, None


def exchanged_tokens(module: nn.Module, inner: Function, mesh: Mesh, axis: str) -> Function:
    """Each process has E / ep experts: tokens travel to their experts, and back."""
    group, size = mesh.group(axis), mesh.size(axis)

    def forward(x_MH: Tensor, counts_E: Tensor) -> Tensor:
        from_each = torch.empty_like(counts_E)
        dist.all_to_all_single(from_each, counts_E.contiguous(), group=group)
        sent = counts_E.view(size, -1).sum(1).tolist()
        received = from_each.view(size, -1).sum(1).tolist()
        arrived_MH = _AllToAll.apply(x_MH, sent, received, group)
        order = _by_expert(from_each.view(size, -1))
        y_MH = inner(arrived_MH[order], from_each.view(size, -1).sum(0))
        return _AllToAll.apply(y_MH[order.argsort()], received, sent, group)

    return forward


def _by_expert(counts: Tensor) -> Tensor:
    """Order that sorts rows by expert; they lie by sender, then expert. counts: (senders, experts)."""
    experts = torch.arange(counts.shape[1], device=counts.device).repeat(counts.shape[0])
    return experts.repeat_interleave(counts.flatten()).argsort(stable=True)


def parted_dropout(module: nn.Module, inner: Function, mesh: Mesh, axis: str) -> Function:
    """Each process of the axis has another part: what it drops is drawn from a stream of its own."""
    place, device = mesh.coordinate(axis), mesh.device

    def forward(*args: Tensor) -> Tensor:
        if not module.training:
            return inner(*args)
        with own_stream(place, device):
            return inner(*args)

    return forward


RULES: dict[str, Callable[[nn.Module, Function, Mesh, str], Function]] = {
    "vocabulary_rows": vocabulary_rows,
    "vocabulary_loss": vocabulary_loss,
    "shared_loss": shared_loss,
    "exchanged_tokens": exchanged_tokens,
    "parted_dropout": parted_dropout,
}
