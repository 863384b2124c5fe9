"""Memory that a view shows and nothing reads is no difference of the run.

A view computes nothing: it shows a part of memory, also one that is about to be written, by the program or by
a collective that is under way. What is in it is then what was left there, of the step before or of nobody. A
copy of it says no more. Whatever computes with it is recorded with it, and is judged there. So where no other
record of one run's step has the content that a view shows, nothing follows from it; and what a view is given
counts as far as it is shown. (Of one run: zeros that were left there are found elsewhere as well.)
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.inflow import contents
from trueup.comparing.judgement import DIFFERENT, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.matching.codes import Codes
from trueup.types.arrays import Bools
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.status import Status

VIEWS = frozenset(
    [
        *("__getitem__", "T", "as_strided", "chunk", "clone", "contiguous", "detach", "diagonal", "expand"),
        *("expand_as", "flatten", "mT", "movedim", "narrow", "permute", "reshape", "select", "split"),
        *("split_with_sizes", "squeeze", "swapaxes", "swapdims", "t", "tensor_split", "to", "transpose"),
        *("unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as"),
    ]
)
"""last parts of names of functions that only show memory, or copy it as it is"""


def _unread(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    views = of_views(rows)
    differ = views & rows.paired & (judgement.status == DIFFERENT)
    if not differ.any():
        return judgement
    unread = differ & ~(_is_read(rows, rows.target, views) & _is_read(rows, rows.reference, views))
    unread &= ~_shows_first(rows, views, differ & ~unread)
    return judgement.at(
        unread, status=Status.UNDECIDED.code, bracketable=True, why=Reason(RecordCode.NOT_READ)
    )


def is_view(name: str) -> bool:
    """Whether a function of this name computes nothing."""
    return name.rpartition(".")[2] in VIEWS


def of_views(rows: StepRows) -> Bools:
    """Rows of the forward of functions that compute nothing."""
    words = np.array([is_view(word) for word in rows.match.words.name] + [False])
    return np.asarray(rows.kind_is("api") & rows.phase_is("forward") & words[rows.of_call("name")])


def _shows_first(rows: StepRows, views: Bools, read: Bools) -> Bools:
    """What views are given, a table say, of which they show a part that is read and that no record before
    has: there the difference comes from. What was written into memory is a record of its own, before."""
    shown = read & rows.slot_starts("output")
    for half in (rows.target, rows.reference):
        content = contents(half)
        order = np.where((half.record >= 0) & (content >= 0), half.record, np.iinfo(np.int64).max)
        first = np.full(int(content.max(initial=0)) + 2, np.iinfo(np.int64).max)
        np.minimum.at(first, content, order)
        shown = shown & (content >= 0) & (first[content] == half.record)
    calls = np.zeros(rows.match.target.num_calls + 1, bool)
    calls[rows.target.call[shown]] = True
    return np.asarray(views & rows.slot_starts("input") & rows.paired & calls[rows.target.call])


def _is_read(rows: StepRows, half: Half, views: Bools) -> Bools:
    known = half.column("digest").is_not_null().to_numpy()
    inputs = rows.slot_starts("input")
    return is_read(np.where(known, contents(half), -1), half.call, views & inputs, views & ~inputs)


def is_read(content: Codes, call: Codes, given: Bools, shown: Bools) -> Bools:
    """Records whose content one that no view is given, or shows, has as well; of what views show also through
    further views. ``content``: equal numbers for equal content, -1 where it is not known, which counts as
    read; ``call``: a number for each call, -1 for none; ``given``, ``shown``: what views are given, and
    show."""
    directly = np.zeros(int(content.max(initial=0)) + 2, bool)
    directly[content[~(given | shown) & (content >= 0)]] = True
    passed_on = directly.copy()
    while True:
        calls = np.zeros(int(call.max(initial=0)) + 2, bool)
        calls[call[shown & passed_on[content]]] = True
        calls[-1] = False
        more = given & (content >= 0) & calls[call] & ~passed_on[content]
        if not more.any():
            break
        passed_on[content[more]] = True
    return np.asarray(np.where(given, directly[content], passed_on[content]) | (content < 0))


RULE = Rule(
    apply=_unread,
    codes=(RecordCode.NOT_READ,),
    statuses=(Status.UNDECIDED,),
    place="after all that say that a record differs; before what it follows from, and where that starts",
    note="0017-received-is-not-made",
)
