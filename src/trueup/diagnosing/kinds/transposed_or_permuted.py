"""The same numbers in another order or layout."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from trueup.diagnosing.evidence import Evidence, Known
from trueup.diagnosing.kinds.arguments import layout_differences
from trueup.diagnosing.kinds.fitting import close, roundoff_of
from trueup.diagnosing.kinds.permutations import along, described, equal_layout, layouts, same_numbers
from trueup.diagnosing.kinds.places_taken import places_taken
from trueup.diagnosing.kinds.rule import Found, KindRule, origin_reason, whole_origin_reason
from trueup.diagnosing.kinds.solved import solved
from trueup.diagnosing.kinds.taken import call_of, taken
from trueup.diagnosing.kinds.thresholds import (
    CHANCE_NUMBER,
    CLOSE_ROUNDINGS,
    DISTINCT_NUMBERS,
    DISTINCT_SAMPLE,
    EQUAL_STATISTICS,
    FAR_ROUNDINGS,
    MANY_NUMBERS,
    MAX_SOURCE,
    MIN_NUMBERS,
    MOSTLY,
    NEARLY,
    PROBED_INDICES,
    REPRODUCED,
    ROUNDINGS_APART,
    RUN_LENGTH,
    SOURCE_SAMPLE,
)
from trueup.matching.names import family
from trueup.numerics.activations import ACTIVATIONS
from trueup.types.arrays import Array, Bools, Floats
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason, OrderCode
from trueup.types.finding import EvidenceRank, KindClass, KindCode
from trueup.types.reason import Reason

_STATISTICS = ("minimum", "maximum", "mean", "l2_norm", "smallest_nonzero")
_COUNTS = ("num_zero", "num_nan", "num_posinf", "num_neginf")
_MAX_PAIRS = 6
"""tensors at hand that are taken for gate and up"""


def _swapped(evidence: Evidence) -> Found | None:
    """The target's tensor stands in another slot of the same call in the reference."""
    t, around = evidence.target, evidence.surroundings
    if t is None or t.numel < MIN_NUMBERS:
        return None
    head = evidence.origin.slot.partition(".")[0]
    for pair in (*around.outputs, *around.inputs):
        other = pair.reference
        if pair.slot.partition(".")[0] != head or pair.slot == evidence.origin.slot:
            continue
        if other is None or other.shape != t.shape:
            continue
        if evidence.reference is not None and other.same_bits(evidence.reference):
            continue
        if t.same_bits(other):
            here, there = evidence.reference, pair.target
            is_swapped = here is not None and there is not None and there.same_bits(here)
            code = KindReason.SLOTS_SWAPPED if is_swapped else KindReason.OF_ANOTHER_SLOT
            sentence = origin_reason(evidence, code, slot=pair.slot)
            return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=(CauseCode.EXCHANGED,))
    return None


def _of_another_call(evidence: Evidence) -> Found | None:
    """What is given on is the output of another call than in the reference, made beside it: an exchange."""
    found = taken(evidence) if evidence.origin.phase == "forward" else None
    if found is None or not found.is_beside or found.usual is None:
        return None
    sentence = origin_reason(
        evidence, KindReason.OF_ANOTHER_CALL, target=call_of(found.other), reference=call_of(found.usual)
    )
    return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=(CauseCode.EXCHANGED,))


def _of_another_microbatch(evidence: Evidence) -> Found | None:
    """A gradient of one microbatch is the one that the reference sends to another: a pipeline's order."""
    t, r = evidence.target, evidence.reference
    if evidence.origin.phase != "backward" or t is None or r is None or t.numel < MIN_NUMBERS:
        return None
    if r.same_bits(t) is not False or t.statistic("l2_norm") == 0:
        return None
    others = evidence.elsewhere.reference_microbatches
    other = next((number for number, known in others if t.same_bits(known)), None)
    if other is None:
        return _of_another_call_of_it(evidence)
    own = evidence.surroundings.microbatch
    sentence = origin_reason(evidence, KindReason.OF_ANOTHER_MICROBATCH, other=other, own=own)
    return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=(CauseCode.ORDER_OF_BACKWARDS,))


def _of_another_call_of_it(evidence: Evidence) -> Found | None:
    """The same where no microbatch is counted: several forwards, and all backwards after them."""
    found, module = taken(evidence), evidence.surroundings.module or "(root)"
    if found is None or found.other.name != f"{module}, {evidence.origin.slot}":
        return None
    sentence = origin_reason(evidence, KindReason.SENT_TO_ANOTHER_CALL, module=module)
    return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=(CauseCode.ORDER_OF_BACKWARDS,))


# In one piece: what makes a tensor beside the rows no sizes of their groups, one after another.
def _grouped_otherwise(evidence: Evidence) -> Found | None:
    """Rows are given to a module with the sizes of their groups (tokens of each expert), and both runs have
    as many rows in groups of other sizes: the order of rows follows from which group each belongs to."""
    t, r, origin = evidence.target, evidence.reference, evidence.origin
    if t is None or r is None or not t.is_floating or t.shape != r.shape or len(t.shape) < 2:
        return None
    if origin.phase != "forward" or not origin.slot.startswith("input"):
        return None
    for pair in evidence.surroundings.inputs:
        sizes = [
            None if k is None or k.is_floating else evidence.values_of(k)
            for k in (pair.target, pair.reference)
        ]
        own, other = sizes
        if (
            pair.slot == origin.slot
            or own is None
            or other is None
            or own.shape != other.shape
            or own.ndim != 1
        ):
            continue
        are_sizes = all((one >= 0).all() and one.sum() == t.shape[0] for one in (own, other))
        if are_sizes and len(own) < t.shape[0] and not np.array_equal(own, other):
            moved = int(np.abs(own - other).sum()) // 2
            sentence = origin_reason(
                evidence, KindReason.GROUPED_OTHERWISE, sizes=pair.slot, num=moved, total=t.shape[0]
            )
            causes = (CauseCode.GROUPS_CHOSEN_OTHERWISE,)
            return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=causes)
    return None


def _reordered(evidence: Evidence) -> Found | None:
    """The values are the reference's in another order; which order, where it can be told."""
    t, r = evidence.target, evidence.reference
    if t is None or r is None or t.numel < MIN_NUMBERS:
        return None
    if t.raw is None or r.raw is None or not _moments_agree(evidence, t, r):
        return _same_statistics(evidence, t, r)
    whole = evidence.whole_values
    return None if whole is None else _from_values(evidence, *whole)


def _moments_agree(evidence: Evidence, t: Known, r: Known) -> bool:
    """Whether norm and extremes leave room for the same numbers in another order."""
    if t.numel != r.numel:
        return False
    norm = r.statistic("l2_norm")
    size = norm / np.sqrt(max(t.numel, 1))
    slack = CLOSE_ROUNDINGS * roundoff_of(evidence)
    if not abs(t.statistic("l2_norm") - norm) <= slack * norm:
        return False
    return all(
        abs(t.statistic(n) - r.statistic(n)) <= slack * max(size, abs(r.statistic(n)))
        for n in ("minimum", "maximum")
    )


def _from_values(evidence: Evidence, t: Floats, r: Floats) -> Found | None:
    if t.size != r.size:
        return None
    rounding, vectors = evidence.roundoff, evidence.vectors
    if t.shape == r.shape and not (~close(t, r, ROUNDINGS_APART * rounding)).sum() > 1:
        return None
    if vectors is not None and vectors.rel <= FAR_ROUNDINGS * rounding:
        return None
    if not same_numbers(t, r, rounding):
        return None
    if t.shape == r.shape:
        for dim in reversed(range(t.ndim)):
            found = along(t, r, dim, rounding)
            if found is not None:
                order = described(found)
                sentence = whole_origin_reason(evidence, KindReason.REORDERED_ALONG, order, dim=dim)
                of_data = order.code is OrderCode.REORDERED and evidence.origin.phase in (
                    "forward",
                    "backward",
                )
                return Found(
                    rank=EvidenceRank.EVERY_ELEMENT,
                    sentence=sentence,
                    without=_OF_LAYOUTS if of_data else (),  # no layout: sorted by what is computed
                )
    if t.shape != r.shape and equal_layout(t, r, rounding):
        return None  # viewed in another shape, in the order in which it lies
    for layout, candidate in layouts(r, t.shape):
        if equal_layout(t, candidate, rounding):
            sentence = whole_origin_reason(evidence, KindReason.LAID_OUT_ANEW, layout)
            return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)
    distinct = len(np.unique(t.ravel()[:DISTINCT_SAMPLE]))
    many = distinct > DISTINCT_NUMBERS or distinct > t.size // 2
    rank = EvidenceRank.CONSISTENT if many else EvidenceRank.GUESS
    return Found(rank=rank, sentence=origin_reason(evidence, KindReason.SAME_NUMBERS))


def _same_statistics(evidence: Evidence, t: Known, r: Known) -> Found | None:
    """Every statistic equal, the order-sensitive digest or sketch not."""
    if t.numel != r.numel or t.dtype != r.dtype or t.same_bits(r) is not False:
        return None
    size = r.statistic("l2_norm")
    if any(np.nan_to_num(t.statistic(name) - r.statistic(name)) for name in _COUNTS):
        return None
    for name in _STATISTICS:
        a, b = t.statistic(name), r.statistic(name)
        if not (abs(a - b) <= EQUAL_STATISTICS * size or (np.isnan(a) and np.isnan(b))):
            return None
    if not r.statistic("maximum") > r.statistic("minimum"):
        return None
    rank = EvidenceRank.CONSISTENT if t.numel >= MANY_NUMBERS else EvidenceRank.GUESS
    return Found(rank=rank, sentence=origin_reason(evidence, KindReason.SAME_STATISTICS))


def _other_elements(evidence: Evidence) -> Found | None:
    """Both sides are made of the numbers of one tensor nearby, but of other ones or in another place."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or evidence.origin.phase != "forward":
        return None
    if t.size < MIN_NUMBERS:
        return None
    step = max(t.size // SOURCE_SAMPLE, 1)
    a, b = t.ravel()[::step], r.ravel()[::step]
    if 4 * len(np.unique(b)) < len(b) or float(close(a, b, evidence.roundoff).mean()) > MOSTLY:
        return None
    around = evidence.surroundings
    for pair in (*around.inputs, *around.nearby):
        x = pair.given
        if not pair.agree or x is None or x.numel < t.size or x.dtype != (evidence.target or x).dtype:
            continue
        values = None if x.numel > MAX_SOURCE else x.values()
        if values is None or values.size > 64 * t.size:
            continue
        of_numbers = tells_numbers_apart(values)
        if made_of((a, b), values) if of_numbers else made_of(_runs(t, r), _every_run(values)):
            sentence = origin_reason(evidence, KindReason.OTHER_ELEMENTS, source=x.name)
            return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)
    return None


def tells_numbers_apart(source: Floats) -> bool:
    """Whether a number that is found among these tells where it was taken from.

    A coarse dtype has so few numbers that a large tensor holds nearly all of its size: any number is among
    them. Of n numbers drawn from G, n / 2 G repeat another, and a number made elsewhere is one of them
    with chance n / G: twice the share that repeats.
    """
    numbers = source[(source != 0) & np.isfinite(source)]
    return bool(numbers.size) and 2 * (1 - len(np.unique(numbers)) / numbers.size) <= CHANCE_NUMBER


def made_of(sides: Sequence[Array], source: Array) -> bool:
    """Whether nearly all numbers of each side are among those of ``source``; all of one dtype, in any
    shape."""
    flat = np.sort(source.ravel())
    if not flat.size or not all(one.size for one in sides):
        return False
    return all(float(_among(one, flat).mean()) > NEARLY for one in sides)


def _runs(*tensors: Floats) -> list[Array]:
    """Neighbors along the last dimension, taken together, of a sample of each tensor's rows."""
    step = max(tensors[0].size // (RUN_LENGTH * SOURCE_SAMPLE), 1)
    found = []
    for tensor in tensors:
        whole = tensor.shape[-1] // RUN_LENGTH * RUN_LENGTH
        found.append(_as_one(tensor[..., :whole].reshape(-1, RUN_LENGTH)[::step]))
    return found


def _every_run(source: Floats) -> Array:
    """All runs of neighbors along the last dimension, at any place."""
    if source.ndim == 0 or source.shape[-1] < RUN_LENGTH:
        return _as_one(np.zeros((0, RUN_LENGTH)))
    windows = np.lib.stride_tricks.sliding_window_view(source, RUN_LENGTH, axis=-1)
    return _as_one(windows.reshape(-1, RUN_LENGTH))


def _as_one(runs: Floats) -> Array:
    """Each run of float64 as one thing that has an order; a negative zero as zero."""
    held = np.ascontiguousarray(runs.astype(np.float32) + 0.0)
    return held.view(f"V{held.itemsize * RUN_LENGTH}").ravel()


def _among(values: Array, ordered: Array) -> Bools:
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.asarray(ordered[at] == values)


# In one piece: one search over the tensors at hand.
def _gate_and_up(evidence: Evidence) -> Found | None:
    """act(a) * b against act(b) * a, of two halves or two tensors at hand."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.ndim < 2 or not evidence.target:
        return None
    shape = t.shape
    pairs = (*evidence.surroundings.inputs, *evidence.surroundings.nearby)
    near = [k for p in pairs if p.agree is not False and (k := p.given) is not None]
    alike = (evidence.values_of(k) for k in near if k.shape == shape)
    same = [values for values in alike if values is not None][:_MAX_PAIRS]
    parts = [(a, b) for i, a in enumerate(same) for b in same[i + 1 :]]
    for known in near:
        if known.shape == (*shape[:-1], 2 * shape[-1]) and evidence.window is None:
            both = evidence.values_of(known)
            if both is not None:
                parts.append((both[..., : shape[-1]], both[..., shape[-1] :]))
    for a, b in parts[: _MAX_PAIRS + 2]:
        if _is_gated(a, b, t, r) or _is_gated(b, a, t, r):
            sentence = origin_reason(evidence, KindReason.GATE_AND_UP_SWAPPED)
            without = (CauseCode.VIEW_FOR_TRANSPOSE,)
            return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, without=without)
    return None


def _is_gated(gate: Floats, up: Floats, t: Floats, r: Floats) -> bool:
    def near(x: Floats, y: Floats) -> bool:
        size = np.linalg.norm(y)
        return bool(0 < size < np.inf and np.linalg.norm(x - y) <= REPRODUCED * size)

    probe = tuple(slice(0, PROBED_INDICES) for _ in range(gate.ndim - 1))
    for function in ACTIVATIONS.values():
        if near(function(gate[probe]) * up[probe], r[probe]):
            return near(function(up[probe]) * gate[probe], t[probe])
    return False


def _layout_calls(evidence: Evidence) -> Found | None:
    """Nothing in the values says so, but the module's own code lays its tensors out in another way."""
    t = evidence.target
    found = layout_differences(evidence) if t is not None and t.numel >= MIN_NUMBERS else []
    if not found:
        return None
    module = evidence.surroundings.module
    taken_here = [one for one in map(_range_of, found) if one is not None]
    if len(taken_here) == len(found):
        own, other = taken_here[0]
        sentence = origin_reason(evidence, KindReason.OTHER_RANGE, module=module, target=own, reference=other)
        return Found(rank=EvidenceRank.CONSISTENT, sentence=sentence, causes=(CauseCode.RANGE_OF_TOKENS,))
    sentence = origin_reason(evidence, KindReason.OTHER_LAYOUT_CALLS, found[0], module=module)
    return Found(rank=EvidenceRank.CONSISTENT, sentence=sentence)


_SLICE = re.compile(r"slice\((-?\d+|None), (-?\d+|None), (-?\d+|None)\)")


def _range_of(difference: Reason) -> tuple[str, str] | None:
    """Both ranges, as Python writes them, of an index that takes numbers from one place to another, where the
    two begin or end elsewhere; None for another step, which is another layout."""
    if difference.code is not KindReason.ARGUMENT or family(str(difference.facts["call"])) != "getitem":
        return None
    sides = [_SLICE.fullmatch(str(difference.facts[side]).strip("'")) for side in ("target", "reference")]
    if None in sides:
        return None
    (start, stop, step), other = ([n or "" for n in one.groups()] for one in sides if one is not None)
    if step != other[2]:
        return None
    own, usual = (
        f"{'0' if begin == '' else begin}:{'' if end == 'None' else end}"
        for begin, end in ((start, stop), other[:2])
    )
    return (own, usual) if own != usual else None


_OF_LAYOUTS = (CauseCode.OTHER_LAYOUT, CauseCode.VIEW_FOR_TRANSPOSE, CauseCode.CONVERTED_FOR_ANOTHER_LAYOUT)

RULE = KindRule(
    code=KindCode.TRANSPOSED_OR_PERMUTED,
    family=KindClass.MODEL,
    looks=(
        _swapped,
        _of_another_call,
        _of_another_microbatch,
        solved(KindCode.TRANSPOSED_OR_PERMUTED),
        _grouped_otherwise,
        _reordered,
        places_taken(shifted=False),
        _other_elements,
        _gate_and_up,
        _layout_calls,
    ),
    causes=_OF_LAYOUTS,
    advice=AdviceCode.COMPARE_LAYOUTS,
    place="after the shift, which is a permutation as well",
)
