"""Which labels count in the loss of one run alone: padding at the ends of rows, a prompt, a few ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trueup.types.arrays import Bools, Ints
from trueup.types.codes import BatchCode as Batches
from trueup.types.codes.kinds import CauseCode
from trueup.types.reason import Reason, reason


def counted_in_one_run(
    ids: Ints, other: Ints, counts: Sequence[Bools]
) -> tuple[Reason, tuple[Reason, ...] | None]:
    """The headline of a loss mask that differs, and its causes where they are known.

    Args:
        ids: (rows, positions), labels of the target; any other shape has no rows to tell by.
        other: the same of the reference.
        counts: where those of the target and those of the reference count.
    """
    if (ends := _ends_counted(ids, other, counts)) is not None:
        return ends, (Reason(CauseCode.PADDING_COUNTED),)
    if (starts := _starts_counted(counts)) is not None:
        return starts
    if (named := _ids_counted(ids, other, counts)) is not None:
        return named, (Reason(CauseCode.ID_TAKEN_FOR_PADDING),)
    return reason(Batches.MASK_DIFFERS), None


def _ends_counted(ids: Ints, other: Ints, counts: Sequence[Bools]) -> Reason | None:
    """One id that fills the ends of rows and counts on one side alone: padding of the labels. Not one that
    stands there once a row at most, as an end token does."""
    apart = counts[0] != counts[1]
    side, own = ("target", ids) if (counts[0] & apart).any() else ("reference", other)
    is_more = counts[0 if side == "target" else 1] | ~apart
    different = np.unique(own[apart])
    if ids.ndim < 2 or not is_more.all() or len(different) != 1 or apart.sum(axis=-1).max() < 2:
        return None
    if not (own[np.logical_or.accumulate(apart, axis=-1)] == different[0]).all():
        return None
    return reason(Batches.ENDS_COUNTED, side=side, label=int(different[0]))


_MOST_IDS = 3
"""ids that one rule leaves out: those of special tokens"""


def _ids_counted(ids: Ints, other: Ints, counts: Sequence[Bools]) -> Reason | None:
    """A few ids of which every label counts on one side and none on the other: a rule that goes by the id, as
    one that leaves out padding does where the end token is its id too. Twice as many labels as ids at least:
    a single label has one id in any case."""
    apart = counts[0] != counts[1]
    more, fewer = (0, 1) if (counts[0] & apart).any() else (1, 0)
    own, rest = (ids, other)[more][apart], (other, ids)[more][counts[fewer]]
    different = np.unique(own)
    few = len(different) <= _MOST_IDS and len(own) >= 2 * len(different)
    if not few or (apart & counts[fewer]).any() or np.isin(rest, different).any():
        return None
    side = ("target", "reference")[more]
    return reason(Batches.IDS_COUNTED, side=side, ids=[str(one) for one in different.tolist()])


def _starts_counted(counts: Sequence[Bools]) -> tuple[Reason, tuple[Reason, ...]] | None:
    """Whether one run alone counts the first labels of rows, up to the first that both count: a prompt. Of n
    labels more and m of both, an order that knows nothing of prompts has the n first once in (n + m choose n)
    rows."""
    apart = counts[0] != counts[1]
    side = "target" if (counts[0] & apart).any() else "reference"
    both, more = counts[0] & counts[1], counts[0 if side == "target" else 1]
    if both.ndim < 2 or not (more | ~apart).all():
        return None
    rows = apart.any(axis=-1)
    is_after = np.logical_or.accumulate(both, axis=-1) & apart
    if is_after.any() or not both[rows].any(axis=-1).all() or rows.sum() < 2:
        return None
    is_prompt = apart.sum() > rows.sum()  # else a token that every row begins with
    cause = CauseCode.PROMPT_COUNTED if is_prompt else CauseCode.LABELS_COUNTED
    return reason(Batches.STARTS_COUNTED, side=side), (Reason(cause),)
