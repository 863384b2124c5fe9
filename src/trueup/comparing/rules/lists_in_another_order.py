"""Lists of single numbers that a function outside the model is given in another order, all the same numbers.

A program that works out the norm of all gradients itself puts the norms of single weights in a row, in the
order in which the model has its weights. Modules that are made in another order, each as before, leave
another order here and nothing else: what is given, and the row that is made of it, are nothing to hold
against each other, while all that is made of the row is compared. An order that counts shows there.

The numbers are the same where their digests are, as often on both sides; the row holds as many, with the
same extremes, and so does what is made of it element by element.
"""

from __future__ import annotations

import re

import numpy as np

from trueup.comparing.inflow import given_on
from trueup.comparing.judgement import DIFFERENT, UNDECIDED, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import StepRows
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.types.arrays import Bools
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.status import Status

_OF_A_LIST = re.compile(r"input\.\d+\.\d+")


def _reordered(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    outside = rows.paired & rows.kind_is("api") & (rows.of_call("parent") < 0) & rows.phase_is("forward")
    listed = np.array([_OF_A_LIST.fullmatch(word) is not None for word in rows.match.words.slot] + [False])
    given = outside & listed[rows.slot] & (rows.target.numel == 1) & (rows.reference.numel == 1)
    differ = judgement.status == DIFFERENT
    if not (given & differ).any():
        return judgement
    made = outside & rows.slot_starts("output") & differ & _of_one_extent(rows)
    digests = [half.column("digest").to_list() for half in (rows.target, rows.reference)]
    chosen = np.zeros(len(rows), bool)
    for call in np.unique(rows.target.call[given & differ]).tolist():
        of_call = np.flatnonzero(given & (rows.target.call == call)).tolist()
        held = [[column[row] for row in of_call] for column in digests]
        if any(None in side for side in held) or sorted(held[0]) != sorted(held[1]):
            continue
        chosen[of_call] = True
    inputs, num = outside & rows.slot_starts("input"), 0
    while num < (num := int(chosen.sum())):
        chosen |= made & _of_chosen(rows, chosen, inputs & differ)
        chosen |= given_on(rows, chosen & made, inputs)
    why = Reason(RecordCode.ANOTHER_ORDER)
    return judgement.at(chosen & differ, status=UNDECIDED, score=np.nan, bracketable=True, why=why)


def _of_chosen(rows: StepRows, chosen: Bools, inputs: Bools) -> Bools:
    """Rows of calls whose inputs that differ are all chosen: each element is made of one of them."""
    num = rows.match.target.num_calls + 1
    any_chosen, all_chosen = np.zeros(num, bool), np.ones(num, bool)
    any_chosen[rows.target.call[inputs & chosen]] = True
    all_chosen[rows.target.call[inputs & ~chosen]] = False
    return np.asarray((any_chosen & all_chosen)[rows.target.call])


def _of_one_extent(rows: StepRows) -> Bools:
    """Rows whose two sides hold as many numbers, with the same extremes."""
    same = rows.target.numel == rows.reference.numel
    for name in ("minimum", "maximum"):
        same &= rows.target.statistics[name] == rows.reference.statistics[name]
    return np.asarray(same)


RULE = Rule(
    apply=_reordered,
    codes=(RecordCode.ANOTHER_ORDER,),
    statuses=(Status.UNDECIDED,),
    place="after within_bound and exact: it needs what differs; before what is an origin is looked for",
    note="0125-what-makes-it",
)
