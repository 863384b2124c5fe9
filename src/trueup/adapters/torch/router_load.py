"""How evenly a router spreads its tokens, from what it returns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trueup.adapters.measuring import num_experts_of, top_k_of


def load_of(module: nn.Module, outputs: list[Tensor]) -> Tensor | None:
    """Tokens of each expert over their mean, shape (E,); None where the outputs do not say.

    Told, in this order, by a map of tokens to experts (booleans, (T, E)), by the experts chosen (integers,
    (T, A)), or by the A largest of the scores ((T, E), as many as the module says, else the largest alone).
    """
    num_experts = num_experts_of(module)
    chosen = next((t for t in outputs if t.dtype is torch.bool and t.ndim >= 2), None)
    if chosen is not None:
        return _over_mean(chosen.reshape(-1, chosen.shape[-1]).sum(0))
    whole = (torch.int64, torch.int32)
    numbers = next((t for t in outputs if t.dtype in whole and t.ndim >= 2), None)
    if numbers is None:
        scores = next((t for t in outputs if t.is_floating_point() and t.ndim >= 2), None)
        if scores is None or (num_experts is not None and scores.shape[-1] != num_experts):
            return None
        num_experts = scores.shape[-1]
        top_k = min(top_k_of(module), num_experts)
        numbers = scores.detach().topk(top_k, dim=-1).indices
    if num_experts is None:
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor):
            return None
        num_experts = weight.shape[0]
    experts = torch.arange(num_experts, device=numbers.device)
    return _over_mean((numbers.reshape(-1, 1) == experts).sum(0))


def _over_mean(counts: Tensor) -> Tensor:
    wide = counts.to(torch.float32)
    return wide / wide.mean().clamp(min=1e-30)
