"""Calls of a model that one run makes with gradients and the other without: ``torch.no_grad`` left out around
a teacher or a divergence, or put around what is to be trained.

A training forward is a microbatch of its step, so that one more of them is held against another batch, and
all that follows differs. What calls are given tells them apart: where, in the first step that has more of
them in one run, every training call of the other has its like, and one of those that are more is given the
very inputs of a call that the other makes without gradients, that call is meant. Of the first step the latter
has no record where it comes before the first training forward; that of a later step is among the records of
the step before. In later steps weights are others, and with them what a call is given that the model made
itself, so that these are held to their counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trueup.comparing.rows import Half, StepRows
from trueup.comparing.scalars import MEASURED, ScalarPair
from trueup.types.codes import EvidenceCode, NextCode, VerdictCode
from trueup.types.reason import reason
from trueup.types.status import Outcome, Status
from trueup.types.verdict import Verdict

Inputs = frozenset[tuple[str, int]]
"""slot and digest of all that a call is given"""
Given = dict[str, Counter[Inputs]]
"""mode -> what its calls are given"""

_EXCEEDING = (Status.ORIGIN, Status.AMPLIFIED, Status.PROPAGATED)


_OF_CALLS = ("batch_size", "global_batch_size", "batch_digest", "tokens")
"""scalars that count what calls with gradients are given"""


def _nothing() -> Given:
    return {"train": Counter(), "eval": Counter()}


@dataclass(slots=True)
class GradedCalls:
    """What the outermost calls of both models were given, with gradients and without."""

    steps: dict[int, tuple[Given, Given]] = field(default_factory=dict)
    """step -> those of the target and of the reference"""

    def add(self, rows: StepRows, step: int) -> None:
        """Take in one step of one rank."""
        sides = self.steps.setdefault(step, (_nothing(), _nothing()))
        for held, half in zip(sides, (rows.target, rows.reference), strict=True):
            for mode, inputs in _calls(rows, half):
                if mode in held:
                    held[mode][inputs] += 1

    def _more_of(self, side: int) -> tuple[int, int, int] | None:
        """First step, number of training calls that one run makes more often, and how many of them are seen
        to be given what the other gives to calls without gradients; None where something else differs."""
        pairs = {step: (self.steps[step][side], self.steps[step][1 - side]) for step in sorted(self.steps)}
        first = next((step for step, (own, other) in pairs.items() if own["train"] != other["train"]), None)
        if first is None or pairs[first][1]["train"] - pairs[first][0]["train"]:
            return None
        counts = [own["train"].total() - other["train"].total() for own, other in pairs.values()]
        more, without = Counter[Inputs](), Counter[Inputs]()
        for own, other in pairs.values():
            more += own["train"] - other["train"]
            without.update(other["eval"])
            without.subtract(own["eval"])
        known = (more & without).total()
        return None if min(counts) < 0 or not known else (first, sum(counts), known)

    def led(
        self, verdict: Verdict, scalars: Sequence[ScalarPair], counts: Mapping[tuple[str, Status], int]
    ) -> Verdict:
        """The verdict, led by such calls where the runs do not agree: a difference where losses, gradient
        norms or weights' gradients differ, else open, since what is made of such a call may be detached
        afterwards.

        Args:
            counts: (phase, status) -> records.
        """
        for at, side in enumerate(("target", "reference")):
            found = None if verdict.outcome is Outcome.AGREE else self._more_of(at)
            if found is None:
                continue
            step, more, known = found
            if verdict.step is not None and verdict.step < step:
                return verdict
            apart = any(one.beyond for one in scalars if one.base in MEASURED) or any(
                counts.get(("param_grad", status), 0) for status in _EXCEEDING
            )
            counted = {"num": known, "total": more, "steps": len(self.steps)}
            evidence = reason(EvidenceCode.GIVEN_WITHOUT_GRADIENTS, side=side, **counted)
            others = [one for one in verdict.evidence if one.place("name") not in _OF_CALLS]
            return replace(
                verdict,
                outcome=Outcome.DIFFER if apart else Outcome.UNDECIDED,
                headline=reason(VerdictCode.CALLS_WITH_GRADIENTS, side=side, num=more),
                where=None,
                owner=None,
                step=step,
                phase="forward",
                evidence=(evidence, *others),
                confidence=verdict.confidence if apart else None,
                before=None,
                next=reason(NextCode.ALIGN_NO_GRAD),
            )
        return verdict


def _calls(rows: StepRows, half: Half) -> list[tuple[str, Inputs]]:
    """Mode and inputs of each outermost call of a module whose inputs are all known by their bits."""
    side, words = half.side, rows.match.words
    digests: list[int | None] = half.tables.summaries["digest"].to_list()
    given: dict[int, list[tuple[str, int | None]]] = {}
    for record, call in enumerate(side.record_call.tolist()):
        slot = words.slot[side.record_slot[record]]
        if (
            side.parent[call] < 0
            and words.phase[side.record_phase[record]] == "forward"
            and slot.startswith("input")
        ):
            summary = int(side.record_summary[record])
            given.setdefault(call, []).append((slot, digests[summary] if summary >= 0 else None))
    return [
        (words.mode[side.mode[call]], frozenset((slot, bits) for slot, bits in inputs if bits is not None))
        for call, inputs in given.items()
        if words.kind[side.kind[call]] == "module" and all(bits is not None for _, bits in inputs)
    ]
