"""A sample of what a dropout call dropped: enough to tell two random streams apart, at no cost on disk."""

from __future__ import annotations

import torch
from torch import Tensor

from trueup.adapters.torch.engine import Engine

NAMES = frozenset(
    f"torch.nn.functional.{name}" for name in ("dropout", "dropout1d", "dropout2d", "dropout3d")
) | {"torch.dropout", "torch.dropout_", "torch.feature_dropout"}
SAMPLE_SIZE = 4000
SLOT = "kept.0"
CANNOT_TELL, DROPPED, KEPT = 0, 1, 2


def note(
    engine: Engine, call: int, args: tuple[object, ...], kwargs: dict[str, object], result: object
) -> None:
    """Record, under ``kept.0``, what became of the first elements; call it with torch functions disabled.

    uint8, by element: 0 where a zero went in, so that nothing can be told, 1 dropped, 2 kept. Of a call in
    place only the result is left: its zeros count as dropped.
    """
    given = args[0] if args else kwargs.get("input")
    share = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    training = args[2] if len(args) > 2 else kwargs.get("training", True)
    if not (training and isinstance(given, Tensor) and isinstance(result, Tensor)) or not (
        isinstance(share, (int, float)) and 0 < share < 1
    ):
        return
    with torch.no_grad():
        after = result.detach().flatten()[:SAMPLE_SIZE] != 0
        sample = after.to(torch.uint8) + DROPPED
        if result is not given:
            sample *= given.detach().flatten()[:SAMPLE_SIZE] != 0
    engine.tensor(call, "forward", SLOT, sample)
