"""Records within paired calls: by phase, slot and microbatch, then the one tensor of the same kind that is
left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trueup.matching.calls import CallPairs
from trueup.matching.codes import Codes, mix
from trueup.matching.tree import TreeSide, Words

if TYPE_CHECKING:
    from trueup.matching.layouts import CommonForm


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPairs:
    """Row numbers of ``records``: pairs in the target's execution order, and what is left on either side."""

    target: Codes
    reference: Codes
    other_slot: NDArray[np.bool_]
    """paired although the slots have different names (positional here, by keyword there)"""
    only_target: Codes
    only_reference: Codes
    layouts: tuple[CommonForm | None, ...] = ()
    """beside ``target``: what has to be undone before the two can be compared; empty: nothing anywhere"""
    pass_code: Codes | None = None
    """beside ``target``, with ``confidence``: how each pair was made; None: as its calls were"""
    confidence: NDArray[np.float32] | None = None


def match_records(target: TreeSide, reference: TreeSide, words: Words, calls: CallPairs) -> RecordPairs:
    """Pair the records of paired calls."""
    place_t, place_r = np.arange(target.num_calls), np.where(calls.target_of >= 0, calls.target_of, -1)
    call_t, call_r = place_t[target.record_call], place_r[reference.record_call]
    paired_t = calls.reference_of[target.record_call] >= 0
    candidates_t, candidates_r = np.flatnonzero(paired_t), np.flatnonzero(call_r >= 0)
    keys_t = _numbered(_keys(target, candidates_t, call_t, target.record_slot))
    keys_r = _numbered(_keys(reference, candidates_r, call_r, reference.record_slot))
    i, j = _join(keys_t, keys_r)
    t, r = candidates_t[i], candidates_r[j]
    left_t, left_r = _outside(candidates_t, t), _outside(candidates_r, r)
    more_t, more_r = _by_kind(target, reference, words, left_t, left_r, call_t, call_r)
    order = np.argsort(np.concatenate([t, more_t]), kind="stable")
    all_t, all_r = np.concatenate([t, more_t])[order], np.concatenate([r, more_r])[order]
    other = np.concatenate([np.zeros(len(t), bool), np.ones(len(more_t), bool)])[order]
    return RecordPairs(
        target=all_t,
        reference=all_r,
        other_slot=other,
        only_target=_outside(np.arange(len(target.record_call)), all_t),
        only_reference=_outside(np.arange(len(reference.record_call)), all_r),
    )


def _outside(rows: Codes, taken: Codes) -> Codes:
    """The ascending ``rows`` that are not among ``taken``."""
    free = np.ones(int(max(rows.max(initial=-1), taken.max(initial=-1))) + 1, bool)
    free[taken] = False
    return rows[free[rows]]


def _keys(side: TreeSide, rows: Codes, call: Codes, slot: Codes) -> NDArray[np.uint64]:
    return mix(call[rows], side.record_phase[rows], slot[rows], side.record_microbatch[rows])


def _numbered(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Keys made distinct by how many equal ones came before."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.ones(len(keys), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    if first.all():
        return keys
    start = np.maximum.accumulate(np.where(first, np.arange(len(keys)), 0))
    occurrence = np.empty(len(keys), np.int64)
    occurrence[order] = np.arange(len(keys)) - start
    return np.where(occurrence > 0, mix(keys, occurrence), keys)


def _join(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> tuple[Codes, Codes]:
    """Positions of equal keys; keys are distinct on each side."""
    if not len(left) or not len(right):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(right)
    at = np.minimum(np.searchsorted(right, left, sorter=order), len(right) - 1)
    hit = right[order[at]] == left
    return np.flatnonzero(hit), order[at[hit]]


def _by_kind(
    target: TreeSide,
    reference: TreeSide,
    words: Words,
    left: Codes,
    right: Codes,
    call_t: Codes,
    call_r: Codes,
) -> tuple[Codes, Codes]:
    """The only input (or output) of a shape and dtype that is left on both sides of a call; of several, those
    that one side gives by name and the other by position, in their order.

    Whole numbers of different names are different arguments: labels are no token ids.
    """
    if not len(left) or not len(right):
        return left[:0], right[:0]
    heads = sorted({word.partition(".")[0] for word in words.slot})
    head_of_slot = np.array([heads.index(word.partition(".")[0]) for word in words.slot] or [0], np.int64)

    def keys(side: TreeSide, rows: Codes, call: Codes) -> NDArray[np.uint64]:
        summary = side.record_summary[rows]
        known = summary >= 0
        at = np.maximum(summary, 0)
        if not len(side.summary_dtype):
            known = np.zeros(len(rows), bool)
            dtype = shape = np.full(len(rows), -1, np.int64)
        else:
            dtype = np.where(known, side.summary_dtype[at], -1)
            shape = np.where(known, side.summary_shape[at], -1)
        head = head_of_slot[side.record_slot[rows]]
        return mix(call[rows], side.record_phase[rows], side.record_microbatch[rows], head, dtype, shape)

    keys_t, keys_r = keys(target, left, call_t), keys(reference, right, call_r)
    named = np.array([not word.partition(".")[2][:1].isdecimal() for word in words.slot] or [False])
    named_t, named_r = named[target.record_slot[left]], named[reference.record_slot[right]]
    found, inverse = np.unique(np.concatenate([keys_t, keys_r]), return_inverse=True)
    of_t, of_r = np.split(inverse.reshape(-1), [len(keys_t)])
    count_t, count_r = (np.bincount(of, minlength=len(found)) for of in (of_t, of_r))
    by_name_t = np.bincount(of_t[named_t], minlength=len(found))
    by_name_r = np.bincount(of_r[named_r], minlength=len(found))
    turned = ((by_name_t == count_t) & (by_name_r == 0)) | ((by_name_t == 0) & (by_name_r == count_r))
    fits = (count_t == count_r) & ((count_t == 1) | turned)
    at_t, at_r = np.flatnonzero(fits[of_t]), np.flatnonzero(fits[of_r])
    i, j = _join(_numbered(keys_t[at_t]), _numbered(keys_r[at_r]))
    rows_t, rows_r = left[at_t[i]], right[at_r[j]]
    apart = named_t[at_t[i]] & named_r[at_r[j]] & _whole(target, words, rows_t)
    return rows_t[~apart], rows_r[~apart]


def _whole(side: TreeSide, words: Words, rows: Codes) -> NDArray[np.bool_]:
    """Whether records are of whole numbers, masks among them."""
    kinds = np.array([word.startswith(("int", "uint", "bool")) for word in words.dtype] + [False])
    if not len(side.summary_dtype):
        return np.zeros(len(rows), bool)
    summary = side.record_summary[rows]
    return np.asarray(kinds[side.summary_dtype[np.maximum(summary, 0)]] & (summary >= 0))
