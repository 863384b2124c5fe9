"""Other elements are masked than in the reference: which ones, told from the values or from their effect."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trueup.comparing.thresholds import MASKED_BELOW
from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.evidence.vectors import length
from trueup.diagnosing.kinds.arguments import argument_differences, is_mask
from trueup.diagnosing.kinds.fitting import close, fit, roundoff_of
from trueup.diagnosing.kinds.missing_or_extra_term import side_of_nothing
from trueup.diagnosing.kinds.permutations import same_numbers
from trueup.diagnosing.kinds.rule import EvidenceNeeds, Found, KindRule, origin_reason
from trueup.diagnosing.kinds.solved import solved
from trueup.diagnosing.kinds.thresholds import (
    CLOSE_ROUNDINGS,
    FULL_SHARE,
    HARDLY,
    MIN_NUMBERS,
    MOSTLY,
    UNEVEN_PLACES,
)
from trueup.numerics.hidden import HIDE_WHERE_TRUE
from trueup.types.arrays import Bools, Floats
from trueup.types.codes.base import Code
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason, PlacesCode
from trueup.types.finding import EvidenceRank, KindClass, KindCode
from trueup.types.reason import Reason, reason

IGNORED_LABEL = -100
_ATTENTION = ("attn", "attention", "softmax", "scaled_dot_product")
_SHOWN = 3
_MOST_RUNS = 4
"""of rows or columns, that a place names"""


def _arguments(evidence: Evidence) -> Found | None:
    """Arguments that say what is hidden."""
    differences = [d.reason for d in argument_differences(evidence) if is_mask(d)]
    if not differences:
        return None
    sentence = origin_reason(evidence, KindReason.MASK_ARGUMENTS, *differences[:_SHOWN])
    return Found(rank=EvidenceRank.STATED, sentence=sentence)


def _both(evidence: Evidence) -> tuple[Floats, Floats] | None:
    t, r = evidence.target_values, evidence.reference_values
    return None if t is None or r is None or t.shape != r.shape or t.size < MIN_NUMBERS else (t, r)


# -- hidden elements ------------------------------------------


def _hides_all(evidence: Evidence) -> Found | None:
    """A mask that hides the same elements by minus infinity on one side, by the lowest number on the other,
    where a row of it hides everything: softmax of that row is NaN on the one side alone."""
    both, known = _both(evidence), (evidence.target, evidence.reference)
    if both is None or None in known or both[0].ndim < 2:
        return None
    counted = [one.statistic("num_neginf") for one in known if one is not None]
    hidden = [np.isneginf(values) for values in both]  # also by what was a lowest number
    empty = hidden[0].all(axis=-1)
    if (
        not np.array_equal(hidden[0], hidden[1])
        or not empty.any()
        or sorted(n > 0 for n in counted) != [False, True]
    ):
        return None
    at = int(counted[1] > 0)
    number = min(one.statistic("minimum") for one in (known[1 - at],) if one is not None)
    sentence = origin_reason(
        evidence,
        KindReason.HIDES_ALL_BY_INFINITY,
        side=("target", "reference")[at],
        rows=int(empty.sum()),
        size=empty.size,
        number=number,
    )
    return Found(
        rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=(CauseCode.LOWEST_OF_OTHER_DTYPE,)
    )


# In one piece: what makes other zeros no mask, one after another, then where they are.
def _hidden(evidence: Evidence) -> Found | None:
    """Hidden elements that differ in a pattern."""
    known, both = evidence.target, _both(evidence)
    if known is None or both is None or side_of_nothing(evidence) is not None:
        return None
    t, r = both
    a, b = _masked_of_both(evidence, t, r)
    apart = (a != b) & ~(np.isnan(t) | np.isnan(r)) & ~_rounded_away(evidence, t, r)
    if not apart.any() or not _rest_is_kept(evidence, t, r, a | b):
        return None
    is_mask = _is_mask(evidence, t, r)
    if not is_mask and _moved_along(evidence, t, r, a, b):
        return None
    if is_mask and apart.all() and b.any() and not b.all():
        sentence = origin_reason(evidence, KindReason.MASK_INVERTED)
        return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=(CauseCode.TRUE_HIDES,))
    side = None if is_mask else _given_back(evidence, apart & a, apart & b)
    if side is not None:
        sentence = origin_reason(
            evidence, KindReason.ZERO_FOR_GIVEN, side=side, num=int(apart.sum()), size=apart.size
        )
        return Found(
            rank=EvidenceRank.EVERY_ELEMENT,
            sentence=sentence,
            causes=(CauseCode.LEFT_OUT_IS_LOST,),
        )
    few = apart.sum() < MIN_NUMBERS and not is_mask  # any pattern fits them
    where = None if few else _pattern(apart) or _pattern_beside(apart, a & b)
    if where is None and not few and (t == r)[~apart].all():
        where = _whole_columns(apart)
    if where is None and is_mask:
        where = reason(PlacesCode.SOME_ELEMENTS, number=int(apart.sum()), size=apart.size)
    if where is None:
        return None
    sentence = origin_reason(
        evidence,
        KindReason.HIDES_OTHER_ELEMENTS,
        where,
        more=int((apart & a).sum()),
        fewer=int((apart & b).sum()),
        share=float(apart.mean()),
    )
    rank = EvidenceRank.EVERY_ELEMENT
    infinite = (np.isneginf(t) | np.isneginf(r)).any()
    if known.is_floating and not infinite and evidence.origin.phase in ("backward", "param_grad"):
        rank = EvidenceRank.CONSISTENT  # zeros of a gradient have many reasons
    causes = () if evidence.origin.phase == "loss" else _CAUSES_OF_PLACES.get(where.code, ())
    return Found(rank=rank, sentence=sentence, causes=causes)


def _given_back(evidence: Evidence, of_target: Bools, of_reference: Bools) -> str | None:
    """The side that has zeros where the other returns, bit for bit, what the call was given: what an expert
    has no room for goes on as it is, or is lost. Zeros of one side alone; of what is left the call makes
    something else, where a mask leaves it as it is."""
    for side, zeros, others, values in (
        ("target", of_target, of_reference, evidence.reference_values),
        ("reference", of_reference, of_target, evidence.target_values),
    ):
        if others.any() or zeros.sum() < MIN_NUMBERS or values is None:
            continue
        for pair in evidence.surroundings.inputs:
            known = pair.reference
            given = None if known is None or known.shape != zeros.shape else evidence.values_of(known)
            if given is None or not (given == values)[zeros].all() or zeros.all():
                continue
            if (given != values)[~zeros].mean() > FULL_SHARE:
                return side
    return None


_CAUSES_OF_PLACES: dict[Code, tuple[CauseCode, ...]] = {
    PlacesCode.ABOVE_DIAGONAL: (CauseCode.CAUSAL_MASK,),
    PlacesCode.BELOW_DIAGONAL: (CauseCode.OTHER_WINDOW,),
    PlacesCode.WHOLE_COLUMNS: (CauseCode.BORDERS_NOT_MASKED,),
    PlacesCode.BETWEEN_DOCUMENTS: (CauseCode.BORDERS_NOT_MASKED,),
    PlacesCode.COLUMNS_OF_EACH: (CauseCode.HIDDEN_AT_RANDOM,),
}
"""of the places that other elements are hidden at: later tokens, earlier ones, padding, documents"""


def _whole_columns(apart: Bools) -> Reason | None:
    """Columns within each matrix, wherever they are: stretches of time or bands that are hidden at random. A
    function that is 0 for some numbers (ReLU, a threshold) leaves no whole columns, and dropout scales the
    rest."""
    planes = apart.reshape(-1, *apart.shape[-2:]) if apart.ndim > 1 else None
    if planes is None or planes.shape[1] < MIN_NUMBERS:
        return None
    columns = np.asarray(planes.any(axis=1))
    if columns.all() or not (planes == columns[:, None, :]).all():
        return None
    return reason(PlacesCode.COLUMNS_OF_EACH, number=int(columns.sum(axis=1).max()), size=columns.shape[1])


def _rest_is_kept(evidence: Evidence, target: Floats, reference: Floats, hidden: Bools) -> bool:
    """Whether what neither hides has one factor, of a weight's gradient: a mask changes nothing else."""
    shown = ~hidden
    if evidence.origin.phase != "param_grad" or not shown.any():
        return True
    found = fit(target[shown], reference[shown])
    return found is not None and found.residual <= HARDLY * length((target - reference).ravel())


def _moved_along(evidence: Evidence, t: Floats, r: Floats, hidden: Bools, other: Bools) -> bool:
    """Whether zeros are elsewhere since all numbers are: as many of them, among the same numbers in another
    order (rows of tokens that go to other experts). A mask takes numbers away."""
    infinite = np.isneginf(t).any() or np.isneginf(r).any()
    return bool(not infinite and hidden.sum() == other.sum() and same_numbers(t, r, roundoff_of(evidence)))


def _rounded_away(evidence: Evidence, target: Floats, reference: Floats) -> Bools:
    """Elements of activations and gradients that are 0 but for the rounding of what the others are: a
    difference that cancels is 0 in one kernel and a remainder in another."""
    if np.isneginf(target).any() or np.isneginf(reference).any() or not evidence.roundoff:
        return np.zeros(target.shape, bool)
    rms = float(np.sqrt(np.mean(np.square(reference)))) if np.isfinite(reference).all() else 0.0
    return np.asarray(np.abs(target - reference) <= CLOSE_ROUNDINGS * evidence.roundoff * rms)


def _pattern_beside(apart: Bools, hidden: Bools) -> Reason | None:
    """Where they are, if what both sides hide (padding, later positions) is not held against the pattern."""
    if apart.ndim < 2:
        return None
    planes, both = (one.reshape(-1, *one.shape[-2:]) for one in (apart, hidden))
    columns = np.asarray(planes.any(axis=1))
    whole = np.broadcast_to(columns[:, None, :], planes.shape)
    if (planes == (whole & ~both)).all() and not columns.all() and _contiguous(columns):
        return reason(PlacesCode.WHOLE_COLUMNS, number=int(columns.sum(axis=1).max()), size=columns.shape[1])
    union = np.asarray(planes.any(axis=0))
    return _in_matrix(union) if (planes == (union[None] & ~both)).all() else None


def _is_mask(evidence: Evidence, target: Floats, reference: Floats) -> bool:
    """Whether a tensor does nothing but hide: booleans, or zeros and minus infinity."""
    dtypes = [known.dtype for known in (evidence.target, evidence.reference) if known is not None]
    forms = zip((target, reference), dtypes, strict=True)
    return all(dtype == "bool" or ((v == 0) | np.isneginf(v)).all() for v, dtype in forms) and bool(
        np.isneginf(target).any() or np.isneginf(reference).any() or "bool" in dtypes
    )


def _masked_of_both(evidence: Evidence, target: Floats, reference: Floats) -> tuple[Bools, Bools]:
    """Hidden elements of either side; of a boolean mask beside an additive one those that are False, or
    True where the module hides so."""
    dtypes = [known.dtype for known in (evidence.target, evidence.reference) if known is not None]
    if len(set(dtypes)) > 1 and "bool" in dtypes:
        sides = target, reference
        hidden = [np.isneginf(values) for values in sides]
        at = dtypes.index("bool")
        hidden[at] = sides[at] == float(evidence.surroundings.called_type in HIDE_WHERE_TRUE)
        return np.asarray(hidden[0]), np.asarray(hidden[1])
    if np.isneginf(target).any() or np.isneginf(reference).any():
        return np.isneginf(target), np.isneginf(reference)
    if dtypes == ["bool", "bool"] and not _true_hides(reference, target):
        return np.asarray(target == 0), np.asarray(reference == 0)
    return _masked(target, dtypes[0]), _masked(reference, dtypes[-1])


def _true_hides(*masks: Floats) -> bool:
    """Whether True hides in a mask of booleans, as in PyTorch's padding masks, or lets be seen, as in its
    fused attention: a causal mask shows it by what it holds above the diagonal."""
    for mask in masks:
        if mask.ndim >= 2 and mask.shape[-1] == mask.shape[-2] > 1:
            above = mask[..., np.triu(np.ones(mask.shape[-2:], bool), 1)]
            if above.all() or not above.any():
                return bool(above.all())
    return True


def _masked(values: Floats, dtype: str) -> Bools:
    if dtype == "bool":
        return np.asarray(values != 0)
    if dtype.startswith(("int", "uint")):
        return np.asarray(values == IGNORED_LABEL)
    return np.asarray((values == 0) | _far_below(values))


def _far_below(values: Floats) -> Bools:
    """Elements that a mask has put far below all others; large numbers of a tensor that has many sizes are
    none."""
    low = np.asarray(values <= MASKED_BELOW)
    largest = np.abs(values[~low & np.isfinite(values)]).max(initial=0.0)
    return low if largest <= HARDLY * -MASKED_BELOW else np.isneginf(values)


def _pattern(apart: Bools) -> Reason | None:
    """Where in the matrix; None where the places follow no pattern."""
    if apart.ndim == 0:
        return None
    if apart.ndim == 1:
        return _run(apart)
    plane = apart.reshape(-1, *apart.shape[-2:])
    usual = np.asarray(plane.mean(axis=0) > 0.5)
    if (plane != usual).sum() <= UNEVEN_PLACES * usual.sum() * len(plane):
        found = _in_matrix(usual)
        if found is not None:
            return found
    rows, columns = (np.asarray(plane.any(axis=a)) for a in (2, 1))
    whole_columns = (plane == columns[:, None, :]).all() and not columns.all()
    if whole_columns and _contiguous(columns):
        most = int(columns.sum(axis=1).max())
        return reason(PlacesCode.WHOLE_COLUMNS, number=most, size=columns.shape[1])
    if (plane == rows[:, :, None]).all() and not rows.all():
        return reason(PlacesCode.WHOLE_ROWS, number=int(rows.sum()), size=rows.size)
    return None


def _in_matrix(where: Bools) -> Reason | None:
    """A pattern of one (rows, columns) matrix."""
    i, j = np.nonzero(where)
    if not len(i):
        return None
    off = j - i
    if _fills(where, np.subtract.outer(np.arange(where.shape[0]), np.arange(where.shape[1])) * -1, off):
        return _diagonals(int(off.min()), int(off.max()), where.shape)
    rows, columns = (np.asarray(where.any(axis=a)) for a in (1, 0))
    if (where == np.outer(rows, columns)).all():
        which = _runs(rows), _runs(columns)
        if None in which:
            return None
        if rows.all():
            return reason(PlacesCode.COLUMNS, columns=which[1])
        if columns.all():
            return reason(PlacesCode.ROWS, rows=which[0])
        return reason(PlacesCode.BLOCK, rows=which[0], columns=which[1])
    if (off < 0).all() or (off > 0).all():
        if _is_blocks(where):
            return reason(PlacesCode.BETWEEN_DOCUMENTS)
        if len(i) > 2 * where.shape[0]:
            return reason(PlacesCode.PART_OF_TRIANGLE, above=bool((off > 0).all()))
    return None


def _diagonals(first: int, last: int, shape: tuple[int, ...]) -> Reason:
    if first < last == shape[1] - 1 and first >= 1:
        return reason(PlacesCode.ABOVE_DIAGONAL)
    if 1 - shape[0] == first < last <= -1:
        return reason(PlacesCode.BELOW_DIAGONAL, distance=-last)
    return reason(PlacesCode.DIAGONALS, first=first, last=last)


def _fills(where: Bools, offsets: NDArray[np.int64], seen: NDArray[np.int64]) -> bool:
    """Whether the places are whole diagonals, one beside the other."""
    return bool((where == ((offsets >= seen.min()) & (offsets <= seen.max()))).all())


def _is_blocks(where: Bools) -> bool:
    """Row by row, everything up to a border that only moves down in steps."""
    counts = where.sum(axis=1)
    return all(where[i, : counts[i]].all() for i in range(len(counts))) and bool((np.diff(counts) >= 0).all())


def _contiguous(rows: Bools) -> bool:
    """In every row one run at the beginning or the end."""
    steps = np.diff(rows.astype(np.int8), axis=1)
    return bool((np.abs(steps).sum(axis=1) <= 1).all())


def _run(apart: Bools) -> Reason | None:
    at = np.flatnonzero(apart)
    if len(at) == at[-1] - at[0] + 1 and len(at) < len(apart):
        return reason(PlacesCode.INDICES, first=at[0], last=at[-1])
    if len(at) > len(apart) // 2:
        return None
    return reason(PlacesCode.SOME_INDICES, number=len(at), size=len(apart))


def _runs(flags: Bools) -> str | None:
    """Which are set, such as "0 to 3, 7"; None where they are more runs than one reads."""
    at = np.flatnonzero(flags)
    runs = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
    if len(runs) > _MOST_RUNS:
        return None
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


# -- the effect on positions ------------------------------------------


def _positions(evidence: Evidence) -> Found | None:
    """(..., positions, width) out of attention: which positions a wrong mask leaves untouched."""
    both = _both(evidence) if evidence.origin.phase == "forward" and _is_attention(evidence) else None
    if both is None or both[0].ndim < 3 or both[0].shape[-2] < MIN_NUMBERS:
        return None
    t, r = both
    if np.isnan(t).any() and not np.isnan(r).any():
        empty = np.isnan(t).all(axis=-1)
        sentence = origin_reason(evidence, KindReason.ROWS_EMPTY, rows=int(empty.sum()), size=empty.size)
        return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence) if empty.any() else None
    same = close(t, r, roundoff_of(evidence)).mean(axis=-1) > MOSTLY
    if same.all() or _hide_alike(t, r):
        return None
    rows = same.reshape(-1, same.shape[-1])
    differ = 1 - float(rows[:, :-1].mean())
    if rows[:, -1].all() and differ > 1 - HARDLY:
        sentence = origin_reason(evidence, KindReason.LAST_POSITION_AGREES, differ=differ)
        return Found(rank=EvidenceRank.FITTED, sentence=sentence)
    heads = np.argmin(rows, axis=1)
    heads[rows.all(axis=1)] = rows.shape[1]
    changed = heads < rows.shape[1]
    tails = np.array([not rows[k, h:].any() for k, h in enumerate(heads) if h < rows.shape[1]])
    seen = heads - _hidden_ahead(evidence, len(heads))
    if changed.any() and tails.mean() > FULL_SHARE and seen[changed].min() >= 2:
        at = sorted(set(heads[changed].tolist()))
        sentence = origin_reason(
            evidence, KindReason.POSITIONS_AGREE_UP_TO, positions=[str(n) for n in at[:4]]
        )
        return Found(rank=EvidenceRank.CONSISTENT, sentence=sentence)
    return None


def _hidden_ahead(evidence: Evidence, num_rows: int) -> NDArray[np.int64]:
    """Tokens of padding at the left of each row (of each head): they, and the first that is shown, see one
    token at most, and are alike whatever the scores are."""
    leading = evidence.reference_run.leading.get(evidence.surroundings.microbatch, ())
    if not leading or num_rows % len(leading):
        return np.zeros(num_rows, np.int64)
    return np.repeat(np.array(leading, np.int64), num_rows // len(leading))


def _hide_alike(t: Floats, r: Floats) -> bool:
    """Whether both are scores or weights of attention, of tokens by tokens, that hide the same elements."""
    hidden = (r == 0) | _far_below(r)
    square = t.shape[-1] == t.shape[-2] and bool(hidden.any())
    return square and np.array_equal((t == 0) | _far_below(t), hidden)


def _is_attention(evidence: Evidence) -> bool:
    around = evidence.surroundings
    words = [around.module, around.name, around.type or "", *(c.name for c in around.neighbours)]
    return any(a in w.lower() for w in words for a in _ATTENTION)


RULE = KindRule(
    code=KindCode.WRONG_MASK,
    family=KindClass.MODEL,
    needs=EvidenceNeeds.NOTHING,
    looks=(_hides_all, _arguments, solved(KindCode.WRONG_MASK), _hidden, _positions),
    causes=(CauseCode.CAUSAL_MASK, CauseCode.BORDERS_NOT_MASKED, CauseCode.LABELS_COUNTED),
    in_phases={
        CauseCode.CAUSAL_MASK: ("forward", "backward", "param_grad"),
        CauseCode.LABELS_COUNTED: ("loss", "backward", "param_grad"),
    },
    advice=AdviceCode.PRINT_MASKS,
    place="infinities and NaN of a mask are no overflow, and its zeros are no shift",
)
