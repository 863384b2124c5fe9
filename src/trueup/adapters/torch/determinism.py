"""Seeds, deterministic algorithms and dropout of torch. Starts no device that the program has not started."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F

from trueup.adapters.seeding import recipe, run

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d")
_RECIPE = recipe("torch")
_switched_off: list[str] = []


def seed(number: int) -> None:
    """Seed torch's generators on the host and on every device, devices not started yet included."""
    run(_RECIPE.seed, seed=number)


def set_deterministic(on: bool) -> None:
    """Ask torch for deterministic algorithms (an operation that has none then raises), or no longer.

    When ``on``, cuDNN is switched off and the variables that cuBLAS and the NPU's libraries read when they
    start are set, where the person has not set them; values as msprobe 26.2.0 sets them.
    """
    run(_RECIPE.deterministic, mode=on)
    _switch_cudnn(off=on)


def _switch_cudnn(*, off: bool) -> None:
    """Switch cuDNN off, or back on where it was switched off here; a program's own choice stays."""
    if off and torch.backends.cudnn.enabled:
        torch.backends.cudnn.enabled = False
        _switched_off.append("cudnn")
    elif not off and _switched_off:
        torch.backends.cudnn.enabled = True
        _switched_off.clear()


def set_cudnn_deterministic(on: bool) -> None:
    """Keep cuDNN from choosing algorithms by timing them, and from those whose sums change order."""
    run(_RECIPE.cudnn, mode=on)


def remove_dropout() -> None:
    """Make ``torch.nn.functional``'s dropouts, hence the dropout modules, keep every element from now on.

    Dropout inside fused attention (``dropout_p``) is an argument of the program's own call and stays.
    """
    for name in _DROPOUTS:
        original = getattr(F, name)
        if not hasattr(original, "_keeps_everything"):
            setattr(F, name, _keeping(original))


def _keeping(dropout: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(dropout)
    def keep(
        input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        return dropout(input, 0.0, training, inplace)

    keep._keeps_everything = True  # type: ignore[attr-defined]
    return keep
