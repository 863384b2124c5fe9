"""Labels laid beside the token ids they belong to, as arrays."""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

_SHIFTS = (1, 0, 2, -1, 3)
_SURE = 0.99
"""share of labels that must be the input so many places on"""
_FEW = 8
"""positions below which nothing is said of a shift"""


def shift_of_labels(
    ids: NDArray[Any], labels: NDArray[Any], ignore_index: int
) -> tuple[int | None, str | None]:
    """By how many places the labels are ahead of the inputs, and what is wrong with that.

    Args:
        ids: token ids, (B, T).
        labels: B * T or B * (T - 1) of them, in any shape; those with ``ignore_index`` do not count.

    Example:
        >>> shift_of_labels(np.arange(32).reshape(2, 16), np.arange(1, 33), -100)
        (1, None)
    """
    samples, length = ids.shape
    width, rest = divmod(labels.size, samples)
    if rest or width not in (length, length - 1):
        return None, None
    laid = labels.reshape(samples, width)
    for shift in _SHIFTS:
        share, num = _agreement(ids, laid, ignore_index, shift)
        if num < _FEW or share < _SURE:
            continue
        if shift == 1:
            return 1, None
        wrong = {
            0: "not shifted: the model predicts the token it is given",
            -1: "shifted the wrong way: the model predicts the token before",
        }.get(shift, f"shifted {shift} times: the model predicts the token {shift} places on")
        return shift, f"labels are {wrong} ({share:.1%} of {num:,} positions)"
    return None, None


def _agreement(ids: NDArray[Any], labels: NDArray[Any], ignore_index: int, shift: int) -> tuple[float, int]:
    """Share of used labels that equal the input ``shift`` places on, and over how many."""
    width = labels.shape[1]
    first, last = max(0, -shift), min(width, ids.shape[1] - shift)
    if last <= first:
        return 0.0, 0
    mine, theirs = labels[:, first:last], ids[:, first + shift : last + shift]
    used = mine != ignore_index
    num = int(used.sum())
    return (float((mine[used] == theirs[used]).mean()) if num else 0.0), num


def labelled_padding(mask: NDArray[Any], labels: NDArray[Any], ignore_index: int) -> str | None:
    """What is wrong where labels that are padding by the attention mask (B, T) count all the same.

    One a row is common: an end of text that is padding too.
    """
    laid = labels.reshape(mask.shape[0], -1)
    width = min(laid.shape[1], mask.shape[1] - 1)
    used = laid[:, :width] != ignore_index
    num = int((used & (mask[:, 1 : width + 1] == 0)).sum())
    if num <= mask.shape[0]:
        return None
    return f"{num:,} labels are padding by the attention mask and are not ignored"


def first_loss_problem(loss: float | None, vocabulary: int | None) -> str | None:
    """Beyond one and a half times ln(vocabulary) and 1 a model is surer of wrong tokens than chance."""
    if loss is None or vocabulary is None or vocabulary < 2:
        return None
    expected = math.log(vocabulary)
    if loss <= 1.5 * expected + 1:
        return None
    return (
        f"the first loss is {loss:.4g}, a model that knows nothing has ln({vocabulary}) = {expected:.4g}: "
        "look at the initial weights, the labels' alignment, or how the loss is reduced"
    )
