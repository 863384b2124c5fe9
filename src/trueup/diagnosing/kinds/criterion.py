"""What a loss function did, told by computing it again from its logits and labels."""

from __future__ import annotations

import math

import numpy as np

from trueup.comparing.losses.cross_entropy import CrossEntropySum, reproduced
from trueup.diagnosing.evidence import Evidence, RunFacts
from trueup.diagnosing.kinds.fitting import close
from trueup.diagnosing.kinds.rule import Found, origin_reason, whole_origin_reason
from trueup.diagnosing.kinds.solved import Solved
from trueup.diagnosing.kinds.thresholds import (
    CLOSE_ROUNDINGS,
    DRAWN_VALUES,
    FINEST_ROUNDOFF,
    HARDLY,
    LEAST_OF_SPREAD,
    MIN_NUMBERS,
    MOST_OF_SPREAD,
    MOSTLY,
    SENT_LEAST,
    SMOOTHING_APART,
    TEMPERATURE_APART,
    Z_LOSS_APART,
)
from trueup.diagnosing.thresholds import SOLVED_Z
from trueup.numerics.dtypes import DTYPES
from trueup.types.arrays import Bools, Floats, Ints
from trueup.types.codes.kinds import CauseCode, KindReason
from trueup.types.finding import Basis, EvidenceRank, KindCode, Stage

_HALVES = ("float16", "bfloat16")
_IGNORED = -100
"""the label that PyTorch's cross-entropy leaves out"""


def criterion_fault(evidence: Evidence) -> Solved | None:
    """How the target's loss differs from the reference's, where it is a known function of the same logits."""
    looks = (
        _ignored_smoothed,
        _other_positions,
        _other_form,
        _normalised_on_one_side,
        _outputs_weighed,
        _other_error,
        _in_other_dtype,
    )
    return next((found for look in looks if (found := look(evidence)) is not None), None)


def _ignored_smoothed(evidence: Evidence) -> Solved | None:
    """Positions that do not count are smoothed on one side alone: the mean over all words is taken of them,
    too. That they get a gradient is no mask then (docs/decisions/0096)."""
    if evidence.origin.stage is not Stage.LOSS:
        return None
    for microbatch, target in evidence.target_run.losses.items():
        reference = evidence.reference_run.losses.get(microbatch)
        if reference is None or target.form is None or reference.form is None:
            continue
        forms = {"target": target.form, "reference": reference.form}
        ignored = {side: form.ignored_smoothing for side, form in forms.items()}
        sides = [side for side, smoothed in ignored.items() if smoothed > SMOOTHING_APART]
        if len(sides) != 1:
            continue
        known = {
            name: 0.0
            if abs(form.smoothing) <= max(SOLVED_Z * form.smoothing_error, SMOOTHING_APART)
            else form.smoothing
            for name, form in forms.items()
        }
        sentence = whole_origin_reason(
            evidence, KindReason.SMOOTHED_IGNORED, side=sides[0], ignored=ignored[sides[0]], **known
        )
        found = Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)
        return Solved(kind=KindCode.MISSING_OR_EXTRA_TERM, found=found)
    return None


def _other_positions(evidence: Evidence) -> Solved | None:
    """Positions of the logits that the loss sends nothing back to in one run alone: a mask, ignored labels,
    or padding that counts. Whatever else differs in the loss, rounding makes no such zeros."""
    if not _is_of_loss(evidence):
        return None
    for microbatch, t in evidence.target_run.sent_back.items():
        r = evidence.reference_run.sent_back.get(microbatch)
        if r is None or r.shape != t.shape or r.ndim < 2 or not r.size:
            continue
        largest = np.abs(np.stack([t, r])).reshape(2, -1, r.shape[-1]).max(axis=2)
        counts = largest > 0
        apart, both = counts[0] != counts[1], counts.all(axis=0)
        sent = largest[:, apart].max(axis=0)
        if not apart.any() or not both.any() or sent.min() < SENT_LEAST * largest.max():
            continue
        sides = {"target": int(counts[0].sum()), "reference": int(counts[1].sum())}
        shift = labels_shifted(t, r)
        if shift is not None:
            sentence = whole_origin_reason(
                evidence, KindReason.LABELS_SHIFTED, shift=shift, total=counts.shape[1], **sides
            )
            found = Found(
                rank=EvidenceRank.EVERY_ELEMENT,
                sentence=sentence,
                causes=(CauseCode.SHIFTED_TWICE_OR_NEVER,),
            )
            return Solved(kind=KindCode.SHIFTED_BY_ONE, found=found)
        one = _one_label(t, r, counts)
        if one is not None:
            label, side = one
            facts = {"label": label, "side": side, "num": int(apart.sum()), "total": counts.shape[1]}
            sentence = whole_origin_reason(evidence, KindReason.LABEL_IGNORED, **facts)
            found = Found(
                rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=(CauseCode.IGNORE_INDEX,)
            )
            return Solved(kind=KindCode.WRONG_MASK, found=found)
        near = max(SMOOTHING_APART, CLOSE_ROUNDINGS * evidence.roundoff)
        if _each_weighed(t.reshape(-1, t.shape[-1])[both], r.reshape(-1, r.shape[-1])[both], near):
            continue
        code = KindReason.SENT_TO_OTHER_POSITIONS
        sentence = whole_origin_reason(evidence, code, total=counts.shape[1], **sides)
        one_in_other = any((counts[at] <= counts[1 - at]).all() for at in (0, 1))
        causes = (CauseCode.LABELS_COUNTED,) if one_in_other else ()
        found = Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=causes)
        return Solved(kind=KindCode.WRONG_MASK, found=found)
    return None


def _each_weighed(target: Floats, reference: Floats, near: float) -> bool:
    """Whether positions that count in both runs have gradients of one direction and a weight of their own: a
    ratio that is clipped sends nothing back where it is, and is no mask. Rows that are divided by their own
    length share a weight each."""
    norms = [np.linalg.norm(one, axis=1) for one in (target, reference)]
    along = np.abs((target * reference).sum(axis=1)) / (norms[0] * norms[1])
    if len(along) < MIN_NUMBERS or not (along >= 1 - near).all():
        return False
    ratios = np.sort(norms[0] / norms[1])
    return int((np.diff(ratios) > near * ratios[1:]).sum()) + 1 > len(ratios) / 2


def _normalised_on_one_side(evidence: Evidence) -> Solved | None:
    """A loss of log-probabilities is the same whatever number is added to all logits of a position, so that
    the gradient that it sends back sums to 0 there, but for rounding; of one without a log-softmax, or
    of other probabilities, it does not."""
    if not _is_of_loss(evidence):
        return None
    for microbatch, t in evidence.target_run.sent_back.items():
        r = evidence.reference_run.sent_back.get(microbatch)
        if r is None or r.shape != t.shape or r.ndim < 2 or r.shape[-1] < MIN_NUMBERS:
            continue
        sums = [_sums_of_positions(one) for one in (t, r)]
        near = CLOSE_ROUNDINGS * max(evidence.roundoff, FINEST_ROUNDOFF) * math.sqrt(r.shape[-1])
        none = [bool(len(one)) and float(one.max()) <= near for one in sums]
        whole = [len(one) >= MIN_NUMBERS and float(np.median(one)) > max(HARDLY, near) for one in sums]
        for side, lacking, other in (("target", 0, 1), ("reference", 1, 0)):
            if whole[lacking] and none[other]:
                sentence = whole_origin_reason(evidence, KindReason.LOSS_NOT_NORMALISED, side=side)
                found = Found(
                    rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=(CauseCode.LOG_SOFTMAX,)
                )
                return Solved(kind=KindCode.MISSING_OR_EXTRA_TERM, found=found)
    return None


def _sums_of_positions(sent: Floats) -> Floats:
    """|sum| over the sum of magnitudes, of every position that a gradient is sent back to."""
    rows = sent.reshape(-1, sent.shape[-1])
    size = np.abs(rows).sum(axis=1)
    return np.asarray(np.abs(rows.sum(axis=1))[size > 0] / size[size > 0])


def _is_of_loss(evidence: Evidence) -> bool:
    """Whether it is a loss, or one number that the outermost module's own code makes of the reference's
    values: a model that is given labels makes its loss itself."""
    origin, sides = evidence.origin, (evidence.target, evidence.reference)
    if origin.stage is Stage.LOSS:
        return True
    inside = origin.basis is Basis.REPLAY and origin.phase == "forward" and not origin.module
    return inside and origin.slot.startswith("output") and all(one and one.numel == 1 for one in sides)


def _one_label(target: Floats, reference: Floats, counts: Bools) -> tuple[int, str] | None:
    """The label of all positions that count in one run alone, which no position that counts in both has, and
    the run that leaves them out. Cross-entropy sends p - 1 to the label and p to all other tokens; of
    positions that were chosen by anything else, so many share no label."""
    lone = [int((counts[at] & ~counts[1 - at]).sum()) for at in (0, 1)]
    if min(lone) or max(lone) < MIN_NUMBERS:
        return None
    whose = 0 if lone[0] else 1
    width = target.shape[-1]
    rows = (target, reference)[whose].reshape(-1, width)
    if width < MIN_NUMBERS or not ((rows < 0).sum(axis=1)[counts[whose]] == 1).all():
        return None
    labels = rows.argmin(axis=1)
    own, both = labels[counts[whose] & ~counts[1 - whose]], labels[counts.all(axis=0)]
    if (own != own[0]).any() or (both == own[0]).any():
        return None
    return int(own[0]), "reference" if whose == 0 else "target"


def labels_shifted(target: Floats, reference: Floats) -> int | None:
    """By how many positions the target's labels lie behind the reference's, where each position that counts,
    and the label it counts with, is another position's of the reference. Cross-entropy sends p - 1 to the
    label and p to all other tokens: the label is where the gradient is lowest (or, of a loss that is turned
    around, in no one's place). A mask that is longer or shorter keeps each position's label.

    Args:
        target: gradient that the loss sends back to the logits, (..., T, V); None below three dimensions.
        reference: likewise, of the same shape.
    """
    if target.ndim < 3 or target.shape != reference.shape:
        return None
    counts = np.asarray(np.stack([target, reference]).any(axis=-1))
    labels = target.argmin(axis=-1), reference.argmin(axis=-1)
    both = counts.all(axis=0)
    if both.any() and 2 * (labels[0] == labels[1])[both].mean() > 1:  # of few classes some agree by chance
        return None
    length = target.shape[-2]
    for shift in (1, -1, 2, -2):
        own = np.arange(max(shift, 0), length + min(shift, 0))
        at, behind = (..., own), (..., own - shift)
        counted = counts[1][behind]
        if not np.array_equal(counts[0][at], counted) or counted.sum() < MIN_NUMBERS:
            continue
        if (labels[0][at] == labels[1][behind])[counted].mean() > MOSTLY:
            return shift
    return None


_Coefficient = tuple[float, float]
"""a number of a loss's form, and its standard error"""


def _other_form(evidence: Evidence) -> Solved | None:
    """Logits over a temperature, smoothed labels, or a z-loss, on one side: the gradients of both sides'
    logits say so."""
    if not _is_of_loss(evidence):
        return None
    for microbatch, target in evidence.target_run.losses.items():
        reference = evidence.reference_run.losses.get(microbatch)
        if reference is None or target.form is None or reference.form is None:
            continue
        t, r = target.form, reference.form
        divided = (t.temperature, t.temperature_error), (r.temperature, r.temperature_error)
        if _differ(*divided, least=TEMPERATURE_APART):
            sides = (t.temperature, 0.0), (r.temperature, 0.0)  # never nothing, however well it is known
            return _solved(evidence, KindCode.CONSTANT_ARGUMENT, KindReason.LOGIT_TEMPERATURE, *sides)
        smoothed = (t.smoothing, t.smoothing_error), (r.smoothing, r.smoothing_error)
        if _differ(*smoothed, least=SMOOTHING_APART):
            return _solved(evidence, KindCode.CONSTANT_ARGUMENT, KindReason.LABEL_SMOOTHING, *smoothed)
        added = (t.z_loss, t.z_loss_error), (r.z_loss, r.z_loss_error)
        if _differ(*added, least=Z_LOSS_APART):
            return _solved(evidence, KindCode.MISSING_OR_EXTRA_TERM, KindReason.Z_LOSS, *added)
    return None


def _outputs_weighed(evidence: Evidence) -> Solved | None:
    """A number that the model returns, such as a balance loss, counts in the loss with another weight: the
    loss's derivative by it is another one, while what it sends back to the model's first output agrees."""
    if evidence.origin.stage is not Stage.LOSS:
        return None
    own, other = evidence.target_run, evidence.reference_run
    near = CLOSE_ROUNDINGS * FINEST_ROUNDOFF
    for (microbatch, slot), weight in own.weighed.items():
        wanted = other.weighed.get((microbatch, slot))
        if wanted is None or not _sent_alike(own, other, microbatch):
            continue
        if abs(weight - wanted) <= near * max(abs(weight), abs(wanted)):
            continue
        if _is_all_of_it(evidence, weight, wanted):
            continue
        sides = {"target": weight, "reference": wanted}
        sentence = whole_origin_reason(evidence, KindReason.OUTPUT_WEIGHED, output=slot, **sides)
        found = Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)
        return Solved(kind=KindCode.CONSTANT_ARGUMENT, found=found)
    return None


def _is_all_of_it(evidence: Evidence, weight: float, wanted: float) -> bool:
    """Whether both losses are the output itself, times its weight: a loss that the model makes, scaled."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.size != 1 or r.size != 1:
        return False
    products = float(t.ravel()[0]) * wanted, float(r.ravel()[0]) * weight
    near = CLOSE_ROUNDINGS * max(evidence.roundoff, FINEST_ROUNDOFF)
    return abs(products[0] - products[1]) <= near * max(map(abs, products))


def _sent_alike(own: RunFacts, other: RunFacts, microbatch: int) -> bool:
    sent, expected = own.sent_back.get(microbatch), other.sent_back.get(microbatch)
    if sent is None or expected is None:
        return microbatch in own.sent_as_reference
    return sent.shape == expected.shape and bool(close(sent, expected, FINEST_ROUNDOFF).all())


def _other_error(evidence: Evidence) -> Solved | None:
    """An absolute error, or one that is limited (Huber, smooth L1), on one side: what it sends back has the
    other side's signs, and one size: everywhere, or wherever the other side's is larger."""
    if evidence.origin.stage is not Stage.LOSS:
        return None
    for microbatch, t in evidence.target_run.sent_back.items():
        r = evidence.reference_run.sent_back.get(microbatch)
        if r is None or r.shape != t.shape or r.size < DRAWN_VALUES:
            continue
        if not (np.isfinite(t).all() and np.isfinite(r).all()):  # infinities all have one size
            continue
        near = CLOSE_ROUNDINGS * FINEST_ROUNDOFF
        for side, limited, other in (("target", t.ravel(), r.ravel()), ("reference", r.ravel(), t.ravel())):
            code = _limited(limited, other, near)
            if code is not None:
                sentence = origin_reason(evidence, code, side=side)
                found = Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)
                return Solved(kind=KindCode.MISSING_OR_EXTRA_TERM, found=found)
    return None


def _limited(limited: Floats, other: Floats, near: float) -> KindReason | None:
    """How a gradient is another one of the same signs, cut at one size."""
    size, live = np.abs(limited), other != 0
    top = float(size.max(initial=0.0))
    at_top = size >= top * (1 - near)
    if not top or not (np.sign(limited)[live] == np.sign(other)[live]).all():
        return None
    if int(at_top.sum()) < MIN_NUMBERS or _alike(np.abs(other)[at_top], near):  # one size on both sides
        return None
    below = live & ~at_top
    if not below.any():
        return KindReason.ABSOLUTE_ERROR
    ratios = limited[below] / other[below]
    if int(below.sum()) < MIN_NUMBERS or not _alike(ratios, near):
        return None
    held = np.abs(other)[at_top] * float(np.median(ratios)) >= top * (1 - near)
    return KindReason.LIMITED_ERROR if held.all() else None


def _alike(numbers: Floats, near: float) -> bool:
    middle = float(np.median(numbers))
    return bool((np.abs(numbers - middle) <= near * abs(middle)).all())


def _differ(target: _Coefficient, reference: _Coefficient, *, least: float) -> bool:
    chance = SOLVED_Z * math.hypot(target[1], reference[1])
    return abs(target[0] - reference[0]) > max(chance, least)


def _solved(
    evidence: Evidence, kind: KindCode, code: KindReason, target: _Coefficient, reference: _Coefficient
) -> Solved:
    known = [0.0 if abs(value) <= SOLVED_Z * error else value for value, error in (target, reference)]
    sentence = whole_origin_reason(evidence, code, target=known[0], reference=known[1])
    return Solved(kind=kind, found=Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence))


def _in_other_dtype(evidence: Evidence) -> Solved | None:
    """In which dtype the target's log-probabilities are kept; None where the site is no cross-entropy that
    the reference takes of the very same logits, or no dtype's rounding is as large as the difference."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.size != 1 or r.size != 1 or not evidence.origin.slot.startswith("output"):
        return None
    expected = float(r.ravel()[0])
    apart = abs(float(t.ravel()[0]) - expected)
    held = _reproduced(evidence, expected)
    if held is None:
        return None
    loss, dtype_given = held
    for dtype in (dtype_given,) if dtype_given in _HALVES else _HALVES:
        spread = loss.spread(DTYPES[dtype].eps)
        if LEAST_OF_SPREAD * spread <= apart <= MOST_OF_SPREAD * spread:
            sentence = origin_reason(
                evidence, KindReason.ROUNDED_LOSS, reference=expected, apart=apart, spread=spread, dtype=dtype
            )
            found = Found(rank=EvidenceRank.CONSISTENT, sentence=sentence)
            return Solved(kind=KindCode.DTYPE_OR_ROUNDING, found=found)
    return None


def _reproduced(evidence: Evidence, value: float) -> tuple[CrossEntropySum, str] | None:
    given = [p.given for p in evidence.surroundings.inputs if p.agree is not False and p.given is not None]
    held = [(known, found) for known in given if (found := evidence.values_of(known)) is not None]
    wholes: list[Ints] = [found.astype(int) for known, found in held if "int" in known.dtype]
    numbers = [float(found.ravel()[0]) for _, found in held if found.size == 1]
    floating = [(known, found) for known, found in held if known.is_floating and found.size > 1]
    for known, logits in floating:
        for labels in wholes:
            if logits.ndim < 2 or labels.size * logits.shape[-1] != logits.size:
                continue
            masks = [other for _, other in floating if other.size == labels.size]
            loss = reproduced(value, logits, labels, ignore_index=_IGNORED, masks=masks, numbers=numbers)
            if loss is not None:
                return loss, known.dtype
    return None
