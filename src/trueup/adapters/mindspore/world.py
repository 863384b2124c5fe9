"""Which of how many processes this one is."""

from __future__ import annotations

import os

from mindspore import communication


def place() -> tuple[int, int, int]:
    """rank, world size, local rank."""
    rank, size = int(os.environ.get("RANK_ID", 0)), int(os.environ.get("RANK_SIZE", 1))
    if communication.GlobalComm.INITED:
        rank, size = communication.get_rank(), communication.get_group_size()
    return rank, size, int(os.environ.get("LOCAL_RANK", os.environ.get("DEVICE_ID", rank)))
