"""Flat tensors that hold a model's weights one after the other, whole or a part on each process."""

from __future__ import annotations

from collections.abc import Sequence


def covers(sizes: Sequence[int], num_weights: int, ways: int) -> bool:
    """Whether flat tensors of these sizes can be one process's part of all weights.

    ``torch.chunk`` of n numbers in w parts leaves its last part at least (n - (w - 1)^2) / w of them;
    padding, and tensors that are not cut, only make them more. Twice as many hold something else beside.

    Example:
        >>> covers([5, 2], 13, 2), covers([5], 13, 2), covers([26], 13, 2)
        (True, False, False)
    """
    held = sum(sizes)
    return 0 < held < 2 * num_weights and held * ways >= num_weights - len(sizes) * (ways - 1) ** 2
