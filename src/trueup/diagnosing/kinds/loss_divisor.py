"""A loss is a sum over tokens, divided by something: by what each run divides.

The losses of all microbatches are known, and how much each was made of. Where the target's over the
reference's is, in every microbatch, the quotient of two such numbers, the two are named: the tokens of the
step for the mean over microbatches of the mean over tokens, all positions for those that count. A quotient
leaves a common factor open; the gradient of the logits does not: its steepest entry is (1 - p) / d.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.evidence.facts import LossFacts, RunFacts
from trueup.diagnosing.kinds.rule import Found, whole_origin_reason
from trueup.diagnosing.kinds.thresholds import (
    FACTOR_AT_LEAST,
    FACTOR_AT_MOST,
    FACTOR_ERRORS,
    FLOAT32_ROUNDOFF,
    LEAST_SURPRISE,
    MOST_SURPRISE,
    NEAR_ONE,
)
from trueup.types.codes.kinds import CauseCode, DivisorCode, KindReason
from trueup.types.finding import EvidenceRank, Stage
from trueup.types.reason import Reason, reason

_OF_MEAN = (DivisorCode.COUNTED, DivisorCode.COUNTED_TIMES)
"""what a function that takes the mean divides by"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Divisor:
    """What a run may divide by, in every microbatch."""

    code: DivisorCode
    of: Mapping[int, float]

    def reason(self, microbatch: int) -> Reason:
        """With its number in one microbatch."""
        return reason(self.code, number=self.of[microbatch])


# In one piece: one rule; what must hold is asked in the order in which it becomes known.
def divided_otherwise(evidence: Evidence) -> Found | None:
    """By what target and reference divide the sum over tokens, where every loss of the step says the same."""
    target, reference = evidence.target_run, evidence.reference_run
    if evidence.origin.stage is not Stage.LOSS or not target.losses:
        return None
    known = {m: one for m, one in target.losses.items() if _is_alike(one, reference.losses.get(m))}
    if len(known) < len(target.losses) or len(known) < len(reference.losses):
        return None
    quotients = {m: one.value / reference.losses[m].value for m, one in known.items()}
    near = min(max(FACTOR_ERRORS * evidence.roundoff, FACTOR_AT_LEAST), FACTOR_AT_MOST)
    pairs = [
        (one, other)
        for one in _divisors(target)
        for other in _divisors(reference)
        if one.code is not other.code
        and all(abs(q * one.of[m] / other.of[m] - 1) <= near for m, q in quotients.items())
    ]
    if all(abs(q - 1) <= near for q in quotients.values()):
        return None
    if not pairs:  # a loss may have another term as well: that of experts, of a prior
        return _by_gradients(evidence)
    if any(map(_is_no_sum, (target, reference))):
        return None
    if any(all(abs(q * size - 1) <= near for q in quotients.values()) for size in _processes(target)):
        return None  # as likely a number of processes: the rule of factors names both
    one, other = pairs[0]
    at = evidence.origin.microbatch if evidence.origin.microbatch in known else min(known)
    sent_back = all(
        loss.form is not None or loss.steepest is not None
        for run in (target, reference)
        for loss in run.losses.values()
    )
    others = {(tuple(a.of.values()), tuple(b.of.values())) for a, b in pairs[1:]}
    is_only_pair = not others and (sent_back or len(set(quotients.values())) > 1)
    return Found(
        rank=EvidenceRank.EVERY_ELEMENT if is_only_pair else EvidenceRank.FITTED,
        sentence=whole_origin_reason(
            evidence,
            KindReason.LOSS_DIVISORS,
            one.reason(at),
            other.reason(at),
            microbatches=len(known),
            pairs=1 + len(others),
        ),
        causes=(CauseCode.LOSS_DIVIDED,),
        factor=quotients[at],
    )


def _is_no_sum(run: RunFacts) -> bool:
    """Whether the gradient that a loss sends back was kept, and is not that of a sum over tokens: another
    term beside it (Dice, a penalty) hides by what the sum is divided: a quotient of losses is a factor."""
    return any(loss.form is None and m in run.sent_back for m, loss in run.losses.items())


def given_divisor(evidence: Evidence) -> Found | None:
    """Which numbers of the step the two are that target and reference are given, where that is known of both:
    a model that makes its loss is given by what it divides. A replay keeps no labels that are the
    reference's."""
    numbers = numbers_given(evidence)
    at = evidence.origin.microbatch or 0
    reference = evidence.reference_run
    target = evidence.target_run if evidence.target_run.losses else reference
    if numbers is None or not all(at in run.losses for run in (target, reference)):
        return None
    near = max(evidence.roundoff, FLOAT32_ROUNDOFF)
    named: list[dict[DivisorCode, Reason]] = [{}, {}]
    for side, number, run in zip(named, numbers, (target, reference), strict=True):
        likeliest = sorted(_candidates(run.losses), key=lambda one: one[0] is DivisorCode.COUNTED_TIMES)
        for code, of in (*likeliest, *_of_ranks(run)):  # a number that is given is of the step, and whole
            if of[at] > 1 and abs(number / of[at] - 1) <= near:
                side[code] = reason(code, number=number)
    pairs = [(one, other) for one, a in named[0].items() for other, b in named[1].items() if one is not other]
    if not pairs:
        return None
    parts = named[0][pairs[0][0]], named[1][pairs[0][1]]
    return Found(
        rank=EvidenceRank.STATED,
        sentence=whole_origin_reason(evidence, KindReason.DIVISORS_GIVEN, *parts, name=name_given(evidence)),
        causes=(CauseCode.LOSS_DIVIDED,),
        factor=numbers[0] / numbers[1],
    )


def numbers_given(evidence: Evidence) -> tuple[float, float] | None:
    """The number that the model is given in the target and in the reference, where an input is one number
    and no batch."""
    origin, sides = evidence.origin, (evidence.target, evidence.reference)
    if origin.phase != "forward" or origin.module or not origin.slot.startswith("input"):
        return None
    if any(one is None or one.numel != 1 for one in sides):
        return None
    target, reference = (one.statistic("mean") for one in sides if one is not None)
    return (target, reference) if target and reference and target != reference else None


def name_given(evidence: Evidence) -> str:
    """As what the model is given it."""
    return evidence.origin.slot.partition(".")[2]


def _by_gradients(evidence: Evidence) -> Found | None:
    """By what target and reference divide, as the gradients of the logits show it in every microbatch; where
    the losses themselves have more than this sum, they tell nothing."""
    target, reference = evidence.target_run, evidence.reference_run
    if any(loss.form is None for run in (target, reference) for loss in run.losses.values()):
        return None
    at = evidence.origin.microbatch
    at = at if at is not None and at in target.losses else min(target.losses)
    one, other = (named_divisor(run.losses, at) for run in (target, reference))
    if one is None or other is None or one.code is other.code:
        return None
    sentence = whole_origin_reason(
        evidence, KindReason.LOSS_DIVISORS, one, other, microbatches=len(target.losses)
    )
    return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=(CauseCode.LOSS_DIVIDED,))


def sends_back_alike(evidence: Evidence, factor: float) -> bool:
    """Whether every loss of the step, and the gradient it sends back to its logits, is the reference's times
    one factor: then it is a scale, though a loss is one number; a term that is added sends back another.

    Without the labels, the gradient of the model's output tells it alone: its norm, minimum and maximum.
    """
    target, reference = evidence.target_run.losses, evidence.reference_run.losses
    near = min(max(FACTOR_ERRORS * evidence.roundoff, FACTOR_AT_LEAST), FACTOR_AT_MOST)
    if evidence.origin.stage is not Stage.LOSS:
        return False
    if set(target) != set(reference) or not all(_is_alike(one, reference[m]) for m, one in target.items()):
        return False
    if (
        factor < 0
    ):  # the steepest entry is of the other kind: one of a label in one run, of no label in the other
        return _sizes_are_scaled(evidence, factor, near)
    quotients = []
    for one, other in ((one, reference[m]) for m, one in target.items()):
        if not one.steepest or not other.steepest:
            return _sizes_are_scaled(evidence, factor, near)
        quotients += [one.value / other.value, one.steepest / other.steepest]
    if not quotients:
        return _sizes_are_scaled(evidence, factor, near)
    return all(abs(quotient / factor - 1) <= near for quotient in quotients)


def is_negative_loss(evidence: Evidence, factor: float) -> bool:
    """Whether the loss is the reference's times a factor below 0, and what it sends back shows the same."""
    vectors = evidence.vectors
    single = vectors is not None and vectors.num_values == 1
    return single and factor < 0 and sends_back_alike(evidence, factor)


def _sizes_are_scaled(evidence: Evidence, factor: float, near: float) -> bool:
    """Of the microbatch whose loss differs: the others' losses are not known here."""
    at = evidence.origin.microbatch or 0
    target, reference = (run.sent_sizes.get(at) for run in (evidence.target_run, evidence.reference_run))
    if target is None or reference is None or not all(reference):
        return False
    norm, low, high = reference
    turned = (-norm, high, low) if factor < 0 else (norm, low, high)
    return all(abs(one / other / factor - 1) <= near for one, other in zip(target, turned, strict=True))


def named_divisor(losses: Mapping[int, LossFacts], microbatch: int) -> Reason | None:
    """What the gradients of the logits say that the sum over tokens is divided by, in one microbatch; None
    where they do not tell, or no number of the step is it."""
    forms = {m: loss.form for m, loss in losses.items()}
    for code, of in _candidates(losses):
        fits = (
            form is not None and abs(form.divisor / of[m] - 1) <= NEAR_ONE
            for m, form in forms.items()
            if of[m]
        )
        if all(of.values()) and all(fits):
            return reason(code, number=of[microbatch])
    return None


def _processes(run: RunFacts) -> Iterator[float]:
    """Numbers of processes, and one over each."""
    for size in (run.world_size, run.data_parallel_size):
        if size and size > 1:
            yield from (float(size), 1.0 / size)


def _is_alike(one: LossFacts, other: LossFacts | None) -> bool:
    """Whether two losses were made of as many tokens, and have a quotient."""
    if other is None or not one.value or not other.value:
        return False
    return (one.counted, one.positions) == (other.counted, other.positions)


def _divisors(run: RunFacts) -> Iterator[_Divisor]:
    """Likeliest first; of two that are one number the first."""
    seen: set[tuple[float, ...]] = set()
    for code, of in (*_candidates(run.losses), *_of_ranks(run)):
        fits = (run.reduction != "mean" or code in _OF_MEAN) and all(of.values())
        if (
            fits
            and tuple(of.values()) not in seen
            and all(_sends_back(run.losses[m], d) for m, d in of.items())
        ):
            seen.add(tuple(of.values()))
            yield _Divisor(code=code, of=of)


def _sends_back(loss: LossFacts, divisor: float) -> bool:
    """Whether the gradient of the logits is one of a loss divided by this: it says so where it was kept;
    else, by its extremes, some token is hardly expected."""
    if loss.form is not None:
        return abs(loss.form.divisor / divisor - 1) <= NEAR_ONE
    if loss.steepest is None:
        return True
    return LEAST_SURPRISE <= loss.steepest * divisor <= MOST_SURPRISE


def _of_ranks(run: RunFacts) -> Iterator[tuple[DivisorCode, dict[int, float]]]:
    """Tokens of the step on all ranks; gradients averaged over ranks are multiplied by their number."""
    if run.rank_counted:
        every = float(sum(run.rank_counted))
        yield DivisorCode.COUNTED_OF_RANKS, dict.fromkeys(run.losses, every)
        yield DivisorCode.COUNTED_BY_RANK, dict.fromkeys(run.losses, every / len(run.rank_counted))


def _candidates(losses: Mapping[int, LossFacts]) -> Iterator[tuple[DivisorCode, dict[int, float]]]:
    num = float(len(losses))
    counted = {m: float(one.counted) for m, one in losses.items()}
    positions = {m: float(one.positions) for m, one in losses.items()}
    rows = {m: float(one.rows or 0) for m, one in losses.items()}
    yield DivisorCode.COUNTED, counted
    yield DivisorCode.COUNTED_TIMES, {m: n * num for m, n in counted.items()}
    yield DivisorCode.COUNTED_OF_STEP, dict.fromkeys(losses, sum(counted.values()))
    yield DivisorCode.POSITIONS, positions
    yield DivisorCode.POSITIONS_OF_STEP, dict.fromkeys(losses, sum(positions.values()))
    yield DivisorCode.ROWS, rows
    yield DivisorCode.ROWS_OF_STEP, dict.fromkeys(losses, sum(rows.values()))
    yield DivisorCode.NOTHING, dict.fromkeys(losses, 1.0)
    yield DivisorCode.MICROBATCHES, dict.fromkeys(losses, num)
