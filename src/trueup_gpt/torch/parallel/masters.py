"""Float32 copies of weights that are held in half precision: the optimizer updates those."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from trueup_gpt.parallel.traced import MODEL
from trueup_gpt.torch.parallel.pieces import Engine, Piece


class Masters:
    """An engine whose pieces are float32; what the model computes with is rounded from them.

    Gradients are accumulated and reduced in the dtype of the model's weights, then unscaled, measured and
    clipped in float32.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.pieces = [_copy_of(piece) for piece in engine.pieces]

    def reduce(self) -> None:
        """See ``Engine``."""
        self._engine.reduce()
        for piece in self.pieces:
            gradient = _computed(piece).grad
            piece.parameter.grad = None if gradient is None else gradient.float()

    def publish(self) -> None:
        """Round, then as the engine does."""
        with torch.no_grad():
            for piece in self.pieces:
                _computed(piece).data.copy_(piece.parameter.data)
        self._engine.publish()

    def zero_grad(self) -> None:
        """See ``Engine``."""
        for piece in self.pieces:
            piece.parameter.grad = None
        self._engine.zero_grad()


def _computed(piece: Piece) -> nn.Parameter:
    assert piece.computed is not None
    return piece.computed


def _copy_of(piece: Piece) -> Piece:
    given = piece.parameter
    parameter = nn.Parameter(given.detach().float())
    own = {"name": f"{MODEL}{piece.fqn}", "flat": [0, given.numel()], "shape": list(given.shape), "axes": []}
    parameter.trueup_piece = getattr(given, "trueup_piece", own)  # type: ignore[attr-defined]
    return dataclasses.replace(piece, parameter=parameter, computed=given)
