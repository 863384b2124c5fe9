"""Memory that a view shows and nothing reads is no difference of the run.

A view computes nothing: it shows a part of memory, also one that is about to be written, by the program or by
a collective that is under way. What is in it is then what was left there, of the step before or of nobody. A
copy of it says no more. Whatever reads it is recorded with it, and is
judged there. So where nothing of one run's step takes the content of a view but other views whose results
nothing takes, nothing follows from what it shows. (Of one run: zeros that were left there are found elsewhere
as well.)
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.inflow import contents
from trueup.comparing.judgement import DIFFERENT, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import Half, Rows
from trueup.comparing.rules.rule import Rule, StepContext
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
    return judgement.at(
        unread, status=Status.UNDECIDED.code, bracketable=True, why=Reason(RecordCode.NOT_READ)
    )


def of_views(rows: Rows) -> Bools:
    """Rows of the forward of functions that compute nothing."""
    words = np.array([word.rpartition(".")[2] in VIEWS for word in rows.match.words.name] + [False])
    return np.asarray(rows.kind_is("api") & rows.phase_is("forward") & words[rows.of_call("name")])


def _is_read(rows: Rows, half: Half, views: Bools) -> Bools:
    """Rows of views whose content something else of this side has as well, or whose result is read; where no
    digest tells contents apart, all."""
    content = contents(half)
    known = half.column("digest").is_not_null().to_numpy()
    of_content = np.zeros(int(content.max(initial=0)) + 2, bool)
    of_content[content[~views & (half.record >= 0)]] = True
    of_content[-1] = False
    given = views & rows.slot_starts("input") & (content >= 0)
    shown = views & rows.slot_starts("output")
    while True:
        call = np.zeros(half.side.num_calls + 1, bool)
        call[half.call[shown & of_content[content]]] = True
        call[-1] = False
        more = given & call[half.call] & ~of_content[content]
        if not more.any():
            return np.asarray(of_content[content] | ~known)
        of_content[content[more]] = True


RULE = Rule(
    apply=_unread,
    codes=(RecordCode.NOT_READ,),
    statuses=(Status.UNDECIDED,),
    place="after all that say that a record differs; before what it follows from, and where that starts",
    note="0017-received-is-not-made",
)
