"""What a step tells."""

from __future__ import annotations

from dataclasses import dataclass, field

from trueup.errors import TrueupError


class GradientNotFinite(TrueupError):
    """A gradient is infinite or not a number, and ``check_for_nan_in_grad`` asks to end there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step tells; the same in every process."""

    step: int
    loss: float
    """over all microbatches and data-parallel ranks, as ``loss_reduction`` says"""
    num_tokens: float
    """that counted in the loss"""
    grad_norm: float
    """over all parameters, before clipping"""
    finite: bool
    """whether all gradients were; else nothing was updated"""
    loss_scale: float
    """that of this step"""
    learning_rates: tuple[float, ...]
    """of the parameter groups"""
    local_norms: dict[str, float] = field(default_factory=dict, repr=False)
    """L2 norm of each parameter's gradient, before clipping"""
