"""The computations that differ when their tensors are cut; everything else only moves tensors.

Each takes the cell, what it did before, the mesh and the axis, and gives what it does now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mindspore import Tensor, _Function, mint, nn, ops

from trueup import part_of
from trueup_gpt.mindspore.model.parts import CrossEntropy, Embedding
from trueup_gpt.mindspore.parallel.collectives import all_reduce, exchange
from trueup_gpt.mindspore.parallel.mesh import Group, Mesh

Function = Callable[..., Tensor]
"""what a cell computes"""


def vocabulary_rows(cell: nn.Cell, inner: Function, mesh: Mesh, axis: str) -> Function:
    """Embedding of the ids whose rows this process has, zeros for the others: a term of the sum."""
    assert isinstance(cell, Embedding)
    start = part_of(cell.rows, mesh.size(axis), mesh.coordinate(axis))[0]

    def construct(ids_BT: Tensor) -> Tensor:
        local = ids_BT - start
        own = ops.logical_and(local >= 0, local < cell.weight.shape[0])
        rows = inner(local * own.astype(local.dtype))
        return rows * own.expand_dims(-1).astype(rows.dtype)

    return construct


class VocabParallelCrossEntropy(_Function):
    """Cross entropy of logits whose vocabulary is cut: two sums and a maximum over the processes, no gather.

    loss = log sum_v exp(z_v - max z) - (z_label - max z); gradient softmax(z) - one_hot(label).
    """

    @staticmethod
    def forward(ctx: _Function, logits_BTV: Tensor, labels_BT: Tensor, start: int, group: Group) -> Tensor:
        largest_BT = all_reduce(mint.amax(logits_BTV, -1), group, largest=True)
        shifted_BTV = logits_BTV - largest_BT.expand_dims(-1)
        local_BT = labels_BT - start
        own_BT = ops.logical_and(local_BT >= 0, local_BT < logits_BTV.shape[-1])
        local_BT1 = (local_BT * own_BT.astype(local_BT.dtype)).expand_dims(-1)
        own_BT = own_BT.astype(logits_BTV.dtype)
        picked_BT = mint.gather(shifted_BTV, -1, local_BT1).reshape(labels_BT.shape) * own_BT
        exp_BTV = mint.exp(shifted_BTV)
        both = all_reduce(ops.stack((picked_BT, mint.sum(exp_BTV, -1))), group)
        ctx.save_for_backward(exp_BTV / both[1].expand_dims(-1), local_BT1, own_BT)
        return mint.log(both[1]) - both[0]

    @staticmethod
    def backward(ctx: _Function, gradient: Tensor) -> tuple[Tensor | None, ...]:
        softmax_BTV, local_BT1, own_BT = ctx.saved_tensors
        picked = ops.tensor_scatter_elements(
            ops.zeros_like(softmax_BTV), local_BT1, own_BT.expand_dims(-1), softmax_BTV.ndim - 1
        )
        return (softmax_BTV - picked) * gradient.expand_dims(-1), None, None, None


def vocabulary_loss(cell: nn.Cell, inner: Function, mesh: Mesh, axis: str) -> Function:
    """The loss of logits (B, T, V / tp); parts of the vocabulary may differ in length."""
    assert isinstance(cell, CrossEntropy)
    group = mesh.group(axis)
    start = part_of(cell.vocab_size, mesh.size(axis), mesh.coordinate(axis))[0]

    def construct(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
        return VocabParallelCrossEntropy.apply(cell.widened(logits_BTV), labels_BT, start, group)

    return construct


def shared_loss(cell: nn.Cell, inner: Function, mesh: Mesh, axis: str) -> Function:
    """Every process of the axis routes the same tokens: each contributes its share of the router's losses."""
    cell.loss_share = 1.0 / mesh.size(axis)
    return inner


class _AllToAll(_Function):
    """Rows to the processes they belong to; backward sends them back."""

    @staticmethod
    def forward(ctx: _Function, x: Tensor, sent: list[int], received: list[int], group: Group) -> Tensor:
        ctx.exchange = sent, received, group
        return _exchanged(x, sent, received, group)

    @staticmethod
    def backward(ctx: _Function, gradient: Tensor) -> tuple[Tensor | None, ...]:
        sent, received, group = ctx.exchange
        return _exchanged(gradient, received, sent, group), None, None, None


def _exchanged(x: Tensor, sent: Sequence[int], received: Sequence[int], group: Group) -> Tensor:
    ends = np.cumsum(sent).tolist()
    parts = [
        x[end - size : end] if size else ops.zeros((0, *x.shape[1:]), x.dtype)
        for size, end in zip(sent, ends, strict=True)
    ]
    arrived = exchange(parts, [(size, *x.shape[1:]) for size in received], group)
    return mint.cat(arrived, 0)


def exchanged_tokens(cell: nn.Cell, inner: Function, mesh: Mesh, axis: str) -> Function:
    """Each process has E / ep experts: tokens travel to their experts, and back."""
    group, size = mesh.group(axis), mesh.size(axis)

    def construct(x_MH: Tensor, counts_E: Tensor) -> Tensor:
        to_each = counts_E.reshape(size, -1)
        rows = [to_each[number] for number in range(size)]
        from_each = np.stack([one.asnumpy() for one in exchange(rows, [one.shape for one in rows], group)])
        sent, received = to_each.asnumpy().sum(1).tolist(), from_each.sum(1).tolist()
        arrived_MH = _AllToAll.apply(x_MH, sent, received, group)
        order = _by_expert(from_each)
        y_MH = inner(_in_order(arrived_MH, order), Tensor(from_each.sum(0)))
        return _AllToAll.apply(_in_order(y_MH, np.argsort(order)), received, sent, group)

    return construct


def _in_order(x_MH: Tensor, order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Tensor:
    """The rows in an order. With no rows a gather has no gradient in MindSpore 2.10."""
    return ops.gather(x_MH, Tensor(order), 0) if len(order) else x_MH


def _by_expert(
    counts: np.ndarray[tuple[int, int], np.dtype[np.int64]],
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Order that sorts rows by expert; they lie by sender, then expert. counts: (senders, experts)."""
    experts = np.tile(np.arange(counts.shape[1]), counts.shape[0])
    return np.argsort(np.repeat(experts, counts.ravel()), kind="stable")


RULES: dict[str, Callable[[nn.Cell, Function, Mesh, str], Function]] = {
    "vocabulary_rows": vocabulary_rows,
    "vocabulary_loss": vocabulary_loss,
    "shared_loss": shared_loss,
    "exchanged_tokens": exchanged_tokens,
}
