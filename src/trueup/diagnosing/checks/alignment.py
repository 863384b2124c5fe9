"""Labels beside the token ids they belong to, as arrays."""

from __future__ import annotations

import math

from trueup.types.arrays import Array
from trueup.types.codes import CheckCode as Code
from trueup.types.reason import Reason, reason

_SHIFTS = (1, 0, 2, -1, 3)
_SURE = 0.99
"""share of labels that must be the input so many places on"""
_FEW = 8
"""positions below which nothing is said of a shift"""


def shift_of_labels(ids: Array, labels: Array, ignore_index: int) -> tuple[int | None, Reason | None]:
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
    aligned = labels.reshape(samples, width)
    for shift in _SHIFTS:
        share, num = _agreement(ids, aligned, ignore_index, shift)
        if num < _FEW or share < _SURE:
            continue
        if shift == 1:
            return 1, None
        return shift, reason(Code.WRONG_SHIFT, shift=shift, share=share, num=num)
    return None, None


def shows_shift(ids: Array, labels: Array, ignore_index: int) -> bool:
    """Whether so many labels count, in rows as long as those of ids (B, T), that a shift would show."""
    width, rest = divmod(labels.size, ids.shape[0])
    if rest or width not in (ids.shape[1], ids.shape[1] - 1):
        return False
    return _agreement(ids, labels.reshape(ids.shape[0], width), ignore_index, 1)[1] >= _FEW


def _agreement(ids: Array, labels: Array, ignore_index: int, shift: int) -> tuple[float, int]:
    """Share of used labels that equal the input ``shift`` places on, and over how many."""
    width = labels.shape[1]
    first, last = max(0, -shift), min(width, ids.shape[1] - shift)
    if last <= first:
        return 0.0, 0
    target, reference = labels[:, first:last], ids[:, first + shift : last + shift]
    used = target != ignore_index
    num = int(used.sum())
    return (float((target[used] == reference[used]).mean()) if num else 0.0), num


def labelled_padding(mask: Array, labels: Array, ignore_index: int) -> Reason | None:
    """What is wrong where labels that are padding by the attention mask (B, T) count all the same.

    One a row is common: an end of text that is padding too.
    """
    aligned = labels.reshape(mask.shape[0], -1)
    width = min(aligned.shape[1], mask.shape[1] - 1)
    used = aligned[:, :width] != ignore_index
    num = int((used & (mask[:, 1 : width + 1] == 0)).sum())
    if num <= mask.shape[0]:
        return None
    return reason(Code.PADDING_COUNTS, num=num)


def first_loss_problem(loss: float | None, vocabulary: int | None) -> Reason | None:
    """What is wrong with a first loss above 1.5 ln(vocabulary) + 1, where chance gives ln(vocabulary)."""
    if loss is None or vocabulary is None or vocabulary < 2:
        return None
    expected = math.log(vocabulary)
    if loss <= 1.5 * expected + 1:
        return None
    return reason(Code.FIRST_LOSS_HIGH, loss=loss, vocabulary=vocabulary, expected=expected)
