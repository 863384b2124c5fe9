"""A sum over ranks that one run alone makes, directly before its first other bits.

An update that divides by the size of its gradients forgets their factor: with a norm of one rank's part in
place of all ranks' the weights of the first steps stay within rounding of their dtype. Bits tell. Everything
up to the lone reduction is bit-identical in both runs and what follows is not; on a host a kernel makes the
same bits of the same bits, so that something of the program made the others. Where the call is the only
statement in which the two programs differ, and what it returns is not what it was given, it is that call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trueup.comparing.first import First, JudgedStep, first_of_rows
from trueup.comparing.judgement import UNMATCHED
from trueup.comparing.rows import Half
from trueup.matching.codes import Codes
from trueup.types.arrays import Bools, Floats
from trueup.types.codes import EvidenceCode
from trueup.types.reason import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class LoneReduction:
    """What one run alone reduces, and its norm before and after."""

    at: First
    side: str
    function: str
    """without the library's name"""
    given: float
    made: float
    site_after: str
    """the first record with other bits"""

    def is_all_of(self, code: Sequence[Reason]) -> bool:
        """Whether the call is the only statement in which the programs differ."""
        if len(code) != 1 or code[0].code is not EvidenceCode.CODE_DIFFERS:
            return False
        other = "reference" if self.side == "target" else "target"
        text = str(code[0].place(self.side) or "")
        calls = re.fullmatch(rf"(\w+ = )?(\w+\.)*{re.escape(self.function)}\([^;]*\)", text)
        return not code[0].place(other) and calls is not None


def lone_reduction(judged: JudgedStep, row: int, before: int) -> LoneReduction | None:
    """The reduction in place that stands between ``before`` and ``row``, the last record of equal bits and
    the first of others, where one side alone has records there, all of one collective."""
    rows = judged.rows
    between = np.arange(before + 1, row)
    between = between[judged.judgement.status[between] == UNMATCHED]
    if not len(between) or not rows.phase_is("collective")[between].all():
        return None
    for side, half in (("target", rows.target), ("reference", rows.reference)):
        if not (half.record[between] >= 0).all() or len(np.unique(half.call[between])) != 1:
            continue
        given, made = (_norms(rows.slot_starts(head)[between], half, between) for head in ("input", "output"))
        if len(given) != 1 or len(made) != 1 or not np.isfinite([*given, *made]).all() or given[0] == made[0]:
            return None
        name = rows.match.words.name[half.side.plain[half.call[between[0]]]]
        return LoneReduction(
            at=first_of_rows(judged, int(between[0])),
            side=side,
            function=name.rpartition(".")[2],
            given=float(given[0]),
            made=float(made[0]),
            site_after=str(judged.table["site"][row].as_py()),
        )
    return None


def _norms(chosen: Bools, half: Half, between: Codes) -> Floats:
    return half.statistics["l2_norm"][between[chosen]]
