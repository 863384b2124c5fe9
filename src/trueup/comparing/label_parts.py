"""Labels and loss masks that one run gave its loss in one tensor and the other in several: the same numbers
cut elsewhere are one quantity.

A loss worked out in chunks (of the tokens, or of every row's tokens) is made with as many label tensors, and
ranks that share the tokens of a row have a piece each.
What counts is all of them together; only stored values tell, and capture keeps those of labels. Labels at the
end of every row that do not count are no part of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trueup.batches.labels import same_but_for_ignored, same_parts
from trueup.comparing.pairing import StepPair
from trueup.comparing.rows import Half, StepRows
from trueup.matching.layouts import CommonForm
from trueup.merging.trace import MergedTrace
from trueup.numerics.dtypes import DTYPES
from trueup.store import TraceSource
from trueup.types.arrays import Array, Bools

PARTS = CommonForm(label="all that counts in the loss together", known=False)
_WORDS = ("labels", "mask")


def with_joined_parts(
    rows: StepRows, target: TraceSource, reference: TraceSource, pair: StepPair
) -> StepRows:
    """The rows with both sides' statistics alike wherever the parts of a loss call hold the same numbers."""
    of_calls = _calls(rows)
    joined = np.zeros(len(rows), bool)
    ranks = _num_ranks(target), _num_ranks(reference)
    for at in of_calls:
        paired = at[rows.paired[at]]
        sides = _recorded(rows.target, at), _recorded(rows.reference, at)
        recut = max(map(len, sides)) > 1 or (rows.target.numel != rows.reference.numel)[paired].any()
        recut = recut or max(ranks) > 1
        if len(paired) and recut and not _alike(rows, at):
            parts = (
                _values(rows.target, sides[0], target, pair.step, pair.rank),
                _values(rows.reference, sides[1], reference, pair.reference_step, pair.reference_rank),
            )
            if parts[0] and parts[1]:  # not where none could be put together from ranks
                cut = _of_ranks(parts[0], ranks[0]), _of_ranks(parts[1], ranks[1])
                joined[paired] = (
                    same_parts(parts[0], parts[1])
                    or same_parts(*cut)
                    or same_but_for_ignored(parts[0], parts[1])
                )
    return _as_reference(rows, joined) if joined.any() else rows


def _num_ranks(source: TraceSource) -> int:
    return source.layout.size if isinstance(source, MergedTrace) else 1


def _of_ranks(parts: list[Array], num: int) -> list[Array]:
    """What each of the ranks had that a part was put together of. Where they share the tokens of every row
    and flatten their labels before the loss, one rank after the other is another order of the same labels."""
    if num == 1 or len(parts) != 1 or parts[0].size % num:
        return parts
    return np.split(parts[0].ravel(), num)


def _calls(rows: StepRows) -> list[np.ndarray]:
    """Rows of the labels, and of the masks, of each loss call; a call of both runs is one."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    reference_of = rows.match.calls.reference_of
    for word in _WORDS:
        for row in np.flatnonzero(rows.phase_is("loss") & rows.slot_starts(word)).tolist():
            call = int(rows.target.call[row])
            found[word, int(rows.reference.call[row]) if call < 0 else int(reference_of[call])].append(row)
    return [np.array(at) for (_, call), at in found.items() if call >= 0]


def _recorded(half: Half, at: np.ndarray) -> list[int]:
    """Summaries of a side's parts, in the order of the run."""
    there = at[(half.record[at] >= 0) & (half.summary[at] >= 0)]
    return [int(half.summary[row]) for row in there[np.argsort(half.record[there])]]


def _alike(rows: StepRows, at: np.ndarray) -> bool:
    """Whether the parts are cut alike and hold the same, by their digests."""
    t, r = rows.target, rows.reference
    if not rows.paired[at].all() or (t.shape[at] != r.shape[at]).any():
        return False
    digests = [half.tables.summaries["digest"].gather(half.summary[at]).to_list() for half in (t, r)]
    return None not in digests[0] and digests[0] == digests[1]


def _values(
    half: Half, summaries: Sequence[int], source: TraceSource, step: int, rank: int
) -> list[Array] | None:
    found = []
    for number in summaries:
        stored = source.tensor(step, rank, half.tables.summary_row(number))
        if stored is None or stored.dtype not in DTYPES:
            return None
        found.append(stored.data.view(np.dtype(DTYPES[stored.dtype].storage)).reshape(stored.shape))
    return found


def _as_reference(rows: StepRows, joined: Bools) -> StepRows:
    t, r = rows.target, rows.reference
    statistics = {name: np.where(joined, r.statistics[name], t.statistics[name]) for name in t.statistics}
    target = replace(t, statistics=statistics, numel=np.where(joined, r.numel, t.numel))
    layouts = (*rows.layouts, PARTS)
    return replace(
        rows, target=target, layout=np.where(joined, len(layouts) - 1, rows.layout), layouts=layouts
    )
