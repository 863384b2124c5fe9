"""The norm of each parameter's gradient, of all together, and clipping; alike in every process."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore
import numpy as np
from mindspore import Tensor, mint

from trueup_gpt.config.training import GradClipKwargs
from trueup_gpt.mindspore.model.numbers import number
from trueup_gpt.mindspore.parallel.collectives import all_reduce
from trueup_gpt.mindspore.parallel.mesh import Mesh
from trueup_gpt.mindspore.parallel.pieces import Piece
from trueup_gpt.parallel.mesh import AXES
from trueup_gpt.step import Norms


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
    index = {name: number for number, name in enumerate(names)}
    found = np.zeros(len(names) + len(also))
    found[len(names) :] = also
    for piece in pieces:
        counted = piece.fqn not in skip and not any(mesh.coordinate(axis) for axis in piece.copies)
        if counted and piece.gradient is not None:
            found[index[piece.fqn]] += _sum_of_squares(piece.gradient, mesh)
    if mesh.size(*AXES) > 1:
        dtype = mindspore.float64 if mesh.device == "cpu" else mindspore.float32
        found = all_reduce(Tensor(found, dtype), mesh.group(*AXES)).asnumpy().astype(np.float64)
    return Norms.of_squares(found.tolist(), names)


def _sum_of_squares(gradient: Tensor, mesh: Mesh) -> float:
    """In float64 on a CPU; an accelerator sums in float32."""
    if mesh.device != "cpu":
        return float(mint.sum(mint.square(gradient.astype(mindspore.float32))))
    values = gradient.asnumpy().astype(np.float64).ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        return float(values @ values)


def clip_gradients(pieces: Sequence[Piece], how: GradClipKwargs, total_norm: float) -> None:
    """By the norm over all parameters: times min(1, clip_value / (norm + 1e-6)); or value by value."""
    if how.grad_clip_type == "GradClipByValue":
        for piece in pieces:
            if piece.gradient is not None:
                limit = Tensor(how.clip_value, piece.gradient.dtype)
                piece.gradient = mint.maximum(mint.minimum(piece.gradient, limit), -limit)
        return
    factor = how.clip_value / (total_norm + 1e-6)
    if factor < 1.0:
        scale_gradients(pieces, factor)


def scale_gradients(pieces: Sequence[Piece], factor: float) -> None:
    """Multiply all of them."""
    for piece in pieces:
        if factor != 1.0 and piece.gradient is not None:
            piece.gradient = piece.gradient * number(factor, piece.gradient)
