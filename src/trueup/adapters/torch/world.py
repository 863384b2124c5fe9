"""Which of how many processes this one is."""

from __future__ import annotations

import os

import torch.distributed as dist


def place() -> tuple[int, int, int]:
    """rank, world size, local rank."""
    local = int(os.environ.get("LOCAL_RANK", 0))
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size(), local
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), local
