"""How evenly a router spreads its tokens, from what it returns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_NUM_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "num_moe_experts")
_TOP_K = ("top_k", "topk", "moe_router_topk", "num_experts_per_tok")
_HOMES = ("config", "moe", "cfg")
"""attributes under which routers keep their settings"""


def load_of(module: nn.Module, outputs: list[Tensor]) -> Tensor | None:
    """Tokens of each expert over their mean, shape (E,); None where the outputs do not say.

    Told, in this order, by a map of tokens to experts (booleans, (T, E)), by the experts chosen (integers,
    (T, A)), or by the A largest of the scores ((T, E), as many as the module says, else the largest alone).
    """
    num_experts = _setting(module, _NUM_EXPERTS)
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
        top_k = min(_setting(module, _TOP_K) or 1, num_experts)
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


def _setting(module: nn.Module, names: tuple[str, ...]) -> int | None:
    for home in (module, *(getattr(module, name, None) for name in _HOMES)):
        for name in names:
            value = getattr(home, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return None
