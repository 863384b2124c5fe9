"""Functions over lists of gradients, which each run calls with its own groups of them.

PyTorch clips gradients by dtype and device: where one run holds some weights in another dtype, its lists are
shorter and there are more of them, and the n-th tensor of a list is another weight's. Nothing can be said of
such a pair, nor of the numbers made one by one of it on the way to the norm. Every gradient is compared as
that of its weight, before and after clipping. Lists of another number of tensors in all are left as they are:
there one run clips what the other does not.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.gradient_work import after_backward
from trueup.comparing.judgement import DIFFERENT, UNDECIDED, UNMATCHED, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.types.arrays import Bools
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.status import Status

_OF_LISTS = "_foreach_"


def _judged(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    outside = after_backward(rows) & rows.mode_is("eval")
    lists = outside & _first_of_lists(rows)
    if not lists.any():
        return judgement
    groups = [_lengths(half, lists) for half in (rows.target, rows.reference)]
    if groups[0] == groups[1] or sum(groups[0]) != sum(groups[1]):
        return judgement
    why = Reason(RecordCode.OTHER_GROUPS)
    lone = outside & ~rows.paired & (judgement.status == UNMATCHED)
    paired = outside & rows.paired & ((judgement.status == DIFFERENT) | (judgement.status == UNDECIDED))
    judgement = judgement.at(lone, bracketable=True, why=why)
    return judgement.at(paired, status=UNDECIDED, score=np.nan, difference=np.nan, bracketable=True, why=why)


def _first_of_lists(rows: StepRows) -> Bools:
    """Tensors of the first list that such a function is given."""
    words = rows.match.words
    named = np.array([_OF_LISTS in word for word in words.name] + [False])
    listed = np.array([word.startswith("input.0.") for word in words.slot] + [False])
    return np.asarray(named[rows.of_call("name")] & listed[rows.slot])


def _lengths(half: Half, inputs: Bools) -> list[int]:
    """Tensors of each list, in the order of the calls."""
    calls = half.call[inputs & (half.call >= 0) & (half.record >= 0)]
    return [int(num) for num in np.unique(calls, return_counts=True)[1]]


RULE = Rule(
    apply=_judged,
    codes=(RecordCode.OTHER_GROUPS,),
    statuses=(Status.UNDECIDED,),
    place="after all that decides whether a record differs; before where a difference starts",
    note="0085-arguments-keywords-and-groups",
)
