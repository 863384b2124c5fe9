"""Calls of a model that one run makes with gradients and the other without: ``torch.no_grad`` left out around
a teacher or a divergence, or put around what is to be trained.

A training forward is a microbatch of its step, so that one more of them is held against another batch, and
all that follows differs. What calls are given tells them apart: where every training call of one run has its
like in the other, which has more of them, and one of those is given the very inputs of a call that the first
makes without gradients, that call is meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trueup.comparing.rows import Half, StepRows
from trueup.comparing.scalars import MEASURED, ScalarPair
from trueup.types.codes import EvidenceCode, NextCode, VerdictCode
from trueup.types.reason import reason
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict

Inputs = frozenset[tuple[str, int]]
"""slot and digest of all that a call is given"""
Given = dict[str, Counter[Inputs]]
"""mode -> what its calls are given"""


def _nothing() -> Given:
    return {"train": Counter(), "eval": Counter()}


@dataclass(slots=True)
class GradedCalls:
    """What the outermost calls of both models were given, with gradients and without."""

    sides: tuple[Given, Given] = field(default_factory=lambda: (_nothing(), _nothing()))
    first: dict[Inputs, int] = field(default_factory=dict)
    """the step in which a training call is first given this"""

    def add(self, rows: StepRows, step: int) -> None:
        """Take in one step of one rank."""
        for held, half in zip(self.sides, (rows.target, rows.reference), strict=True):
            for mode, inputs in _calls(rows, half):
                if mode in held:
                    held[mode][inputs] += 1
                    self.first.setdefault(inputs, step)

    def led(self, verdict: Verdict, scalars: Sequence[ScalarPair]) -> Verdict:
        """The verdict, led by such calls where the runs do not agree: a difference where losses or gradient
        norms differ, else open, since what is made of such a call may be detached afterwards."""
        for at, side in enumerate(("target", "reference")):
            own, other = self.sides[at], self.sides[1 - at]
            more = own["train"] - other["train"]
            known = more & (other["eval"] - own["eval"])
            if not known or other["train"] - own["train"] or verdict.outcome is Outcome.AGREE:
                continue
            step = min(self.first[inputs] for inputs in more)
            if verdict.step is not None and verdict.step < step:
                return verdict
            apart = any(one.beyond for one in scalars if one.base in MEASURED)
            evidence = reason(
                EvidenceCode.GIVEN_WITHOUT_GRADIENTS, side=side, num=known.total(), total=more.total()
            )
            return replace(
                verdict,
                outcome=Outcome.DIFFER if apart else Outcome.UNDECIDED,
                headline=reason(VerdictCode.CALLS_WITH_GRADIENTS, side=side, num=more.total()),
                where=None,
                owner=None,
                step=step,
                phase="forward",
                evidence=(evidence, *verdict.evidence),
                confidence=verdict.confidence if apart else None,
                before=None,
                next=reason(NextCode.ALIGN_NO_GRAD),
            )
        return verdict


def _calls(rows: StepRows, half: Half) -> list[tuple[str, Inputs]]:
    """Mode and inputs of each outermost call of a module whose inputs are all known by their bits."""
    side, words = half.side, rows.match.words
    given: dict[int, list[tuple[str, int]]] = {}
    for record, call in enumerate(side.record_call.tolist()):
        slot = words.slot[side.record_slot[record]]
        if (
            side.parent[call] < 0
            and words.phase[side.record_phase[record]] == "forward"
            and slot.startswith("input")
        ):
            summary = int(side.record_summary[record])
            given.setdefault(call, []).append(
                (slot, int(side.summary_digest[summary]) if summary >= 0 else 0)
            )
    return [
        (words.mode[side.mode[call]], frozenset(inputs))
        for call, inputs in given.items()
        if words.kind[side.kind[call]] == "module" and all(digest for _, digest in inputs)
    ]
