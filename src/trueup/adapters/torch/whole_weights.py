"""The whole weights that FSDP2 computes with, in place of the shards that the optimizer holds.

A gradient reaches the whole weight and is then reduced and scattered; the shard only ever shows the result.
FSDP2 makes the tensor of a whole weight at its first all-gather and keeps it, though not its memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn


def whole_weights(root: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """(weight as the optimizer holds it, the one that a forward pass computed with) below ``root``.

    FSDP2 hands them out nowhere: they are read from its own state of each module, as torch 2.6 to 2.13 keeps
    it. Nothing where another version keeps it otherwise.
    """
    for module in root.modules():
        ask = getattr(module, "_get_fsdp_state", None)
        if ask is None:
            continue
        for group in _groups(ask()):
            for one in getattr(group, "fsdp_params", ()):
                sharded, whole = getattr(one, "sharded_param", None), getattr(one, "_unsharded_param", None)
                if isinstance(sharded, Tensor) and isinstance(whole, Tensor):
                    yield sharded, whole


def _groups(state: object) -> list[object]:
    """Parts of a module's weights that are gathered together; older versions know one alone."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [getattr(state, "_fsdp_param_group", None)]
    return list(groups)
