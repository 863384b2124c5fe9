"""The norm of each parameter's gradient, of all together, and clipping; alike in every process."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from trueup_gpt.config.training import GradClipKwargs
from trueup_gpt.step import Norms
from trueup_gpt.torch.parallel.mesh import Mesh
from trueup_gpt.torch.parallel.pieces import Piece


def gradient_norms(
    pieces: Sequence[Piece],
    names: Sequence[str],
    mesh: Mesh,
    *,
    also: Sequence[float] = (),
    skip: Sequence[str] = (),
) -> Norms:
    """Sum squares parameter by parameter over all processes, then over parameters in the order of ``names``.

    A piece that several processes have is counted by the first of them, so that nothing is counted twice, and
    the sum has the same order for any pipeline.

    Args:
        pieces: with their gradients.
        names: of all parameters of the model, in an order that all processes share.
        mesh: of the run.
        also: numbers to be summed in the same reduction.
        skip: parameters here that another stage counts.
    """
    wide = torch.float32 if mesh.device.type == "npu" else torch.float64
    index = {name: number for number, name in enumerate(names)}
    found = torch.zeros(len(names) + len(also), dtype=wide, device=mesh.device)
    found[len(names) :] = torch.tensor(also, dtype=wide)
    counted = [
        (index[piece.fqn], gradient)
        for piece in pieces
        if piece.fqn not in skip
        and not any(mesh.coordinate(axis) for axis in piece.copies)
        and (gradient := piece.gradient()) is not None
    ]
    if counted:
        squares = torch.stack([_sum_of_squares(gradient, wide) for _, gradient in counted])
        found.index_add_(0, torch.tensor([number for number, _ in counted], device=mesh.device), squares)
    if dist.is_initialized():
        dist.all_reduce(found)
    return Norms.of_squares(found.tolist(), names)


def _sum_of_squares(gradient: Tensor, wide: torch.dtype) -> Tensor:
    if gradient.dtype == wide or gradient.numel() < 1 << 16:
        return gradient.to(wide).square().sum()
    return torch.linalg.vector_norm(gradient, dtype=wide).square()


def clip_gradients(pieces: Sequence[Piece], how: GradClipKwargs, total_norm: float) -> None:
    """By the norm over all parameters: times min(1, clip_value / (norm + 1e-6)); or value by value."""
    if how.grad_clip_type == "GradClipByValue":
        for piece in pieces:
            if (gradient := piece.gradient()) is not None:
                gradient.clamp_(-how.clip_value, how.clip_value)
        return
    factor = how.clip_value / (total_norm + 1e-6)
    if factor < 1.0:
        scale_gradients(pieces, factor)


def scale_gradients(pieces: Sequence[Piece], factor: float) -> None:
    """Multiply all of them."""
    gradients = [gradient for piece in pieces if (gradient := piece.gradient()) is not None]
    if factor != 1.0 and gradients:
        torch._foreach_mul_(gradients, factor)
