"""Computed or kept in a coarser dtype, or only rounded in another order."""

from __future__ import annotations

from functools import partial

import numpy as np

from trueup.diagnosing.evidence import Evidence, NeighbourCall, Vectors
from trueup.diagnosing.evidence.facts import Known
from trueup.diagnosing.kinds.arguments import (
    argument_differences,
    is_cast,
    plain_name,
    relevant_calls,
    short_name,
)
from trueup.diagnosing.kinds.fitting import fit
from trueup.diagnosing.kinds.grids import ROUNDOFF, dtype_of_error, grid_of, on_grid, sample
from trueup.diagnosing.kinds.rule import Found, KindRule, origin_reason
from trueup.diagnosing.kinds.solved import solved
from trueup.diagnosing.kinds.thresholds import (
    BIAS_OF_ERROR,
    FAR_ROUNDINGS,
    FEW_NUMBERS,
    GRID_SHARE,
    ROUNDINGS_APART,
    SIGNIFICANT_Z,
    TOUCHED_SHARE,
    WITHIN_SHARE,
)
from trueup.numerics.dtypes import DTYPES
from trueup.types.arrays import Floats
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode
from trueup.types.reason import Reason, reason

_GRID_SAMPLE = 256
_EXTREMES = ("minimum", "maximum", "smallest_nonzero")
_HALF = ("bfloat16", "float16")
_OF_ONE_DTYPE = (CauseCode.OTHER_ORDER_OR_KERNEL,)
"""causes of differences between what is computed in one dtype"""


def _is_floating_case(evidence: Evidence) -> bool:
    t, r = evidence.target, evidence.reference
    return t is not None and r is not None and (t.is_floating or r.is_floating)


def _casts(evidence: Evidence) -> Found | None:
    """Calls of the module that cast to another dtype, or work on tensors of another one."""
    cast = _cast(evidence) if _is_floating_case(evidence) else None
    if cast is None or (cast.code is KindReason.WORKS_ON and _is_no_rounding(evidence)):
        return None
    sentence = origin_reason(evidence, KindReason.CAST_OTHERWISE, cast, module=evidence.surroundings.module)
    return Found(rank=EvidenceRank.STATED_NEARBY, sentence=sentence, without=_OF_ONE_DTYPE)


def _is_no_rounding(evidence: Evidence) -> bool:
    """Whether the two are further apart than the coarser dtype in the step rounds: what a call works on is of
    another dtype then because it is another tensor. A cast may do more, in the angles of a rotation say."""
    vectors, dtypes = evidence.vectors, evidence.target_run.dtypes | evidence.reference_run.dtypes
    coarsest = max((DTYPES[one].eps for one in dtypes if _floating(one)), default=evidence.roundoff)
    return vectors is not None and vectors.rel > FAR_ROUNDINGS * coarsest


def _cast(evidence: Evidence) -> Reason | None:
    for difference in argument_differences(evidence):
        values = (difference.target, difference.reference)
        if any(_dtype_word(v) is not None for v in values):
            target, reference = (_dtype_word(v) or repr(v) for v in values)
            return reason(
                KindReason.ARGUMENT,
                call=short_name(difference.call),
                argument=plain_name(difference.name),
                target=target,
                reference=reference,
            )
    calls = list(relevant_calls(evidence))
    for call in calls:
        is_unpaired = (call.target is None) != (call.reference is None) and call.arguments_recorded
        if is_unpaired and is_cast(call) and len({*call.target_dtypes, *call.reference_dtypes}) > 1:
            code = KindReason.MISSING_CALL if call.target is None else KindReason.EXTRA_CALL
            return reason(code, call=f"{short_name(call)}({', '.join(_dtypes_given(call))})")
    for call in calls:
        if call.target is None or call.reference is None:
            continue
        for a, b in zip(call.target_dtypes, call.reference_dtypes, strict=False):
            same_length = len(call.target_dtypes) == len(call.reference_dtypes)
            if same_length and a != b and _floating(a) and _floating(b):
                return reason(KindReason.WORKS_ON, call=short_name(call), target=a, reference=b)
    return None


def _dtypes_given(call: NeighbourCall) -> list[str]:
    given = call.target if call.target is not None else call.reference
    return [w for w in map(_dtype_word, (given or {}).values()) if w is not None]


def _dtype_word(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    word = value.removeprefix("torch.")
    return word if word in DTYPES else None


def _floating(dtype: str) -> bool:
    return dtype in DTYPES and DTYPES[dtype].kind in ("float", "complex")


def _dtypes(evidence: Evidence) -> Found | None:
    """The two records are of different dtypes."""
    t, r, vectors = evidence.target, evidence.reference, evidence.vectors
    if t is None or r is None or t.dtype == r.dtype or not (_floating(t.dtype) and _floating(r.dtype)):
        return None
    rel = _apart(vectors)
    if rel is not None and rel > FAR_ROUNDINGS * evidence.roundoff:
        return None  # another tensor
    fits = rel is not None and rel <= ROUNDINGS_APART * evidence.roundoff
    sentence = origin_reason(
        evidence,
        KindReason.DTYPES_DIFFER,
        target=t.dtype,
        reference=r.dtype,
        rel_l2=rel,
        roundoff=evidence.roundoff,
    )
    rank = EvidenceRank.EVERY_ELEMENT if fits else EvidenceRank.CONSISTENT
    return Found(rank=rank, sentence=sentence, without=_OF_ONE_DTYPE)


def _apart(vectors: Vectors | None) -> float | None:
    """By how much they differ; None where that is not known, or not finite on one side alone."""
    return None if vectors is None or vectors.one_sided else vectors.rel


def _grid(evidence: Evidence) -> Found | None:
    """The values of one side lie on a coarser dtype's grid than they are kept in, the other's do not."""
    t, r, vectors = evidence.target_values, evidence.reference_values, evidence.vectors
    if not _is_floating_case(evidence) or t is None or r is None or t.shape != r.shape:
        return None
    for values, others, side in ((t, r, "target"), (r, t, "reference")):
        grid = grid_of(values) if t.size >= FEW_NUMBERS else None
        distinct = len(np.unique(sample(values)[:_GRID_SAMPLE]))
        if grid is None or grid == "float32" or distinct < FEW_NUMBERS:
            continue
        seen = sample(others)
        if not seen.size or float(on_grid(seen, grid).mean()) > GRID_SHARE:
            continue
        rel = _apart(vectors)
        if rel is not None and rel > FAR_ROUNDINGS * ROUNDOFF[grid]:
            continue  # another tensor
        fits = rel is not None and rel <= ROUNDINGS_APART * ROUNDOFF[grid]
        sentence = origin_reason(
            evidence,
            KindReason.ON_A_GRID,
            side=side,
            dtype=grid,
            rel_l2=rel,
            roundoff=ROUNDOFF[grid],
        )
        rank = EvidenceRank.EVERY_ELEMENT if fits else EvidenceRank.GUESS
        return Found(rank=rank, sentence=sentence, without=_OF_ONE_DTYPE)
    return None


def _grid_of_extremes(evidence: Evidence) -> Found | None:
    """Where values were not kept: the smallest, the largest and the least magnitude of one side lie on a
    coarser dtype's grid, none of the other's does, and they are as far apart as that dtype rounds.

    A float32 number is on the grid of bfloat16 by chance once in 2^16: three, once in 2^48.
    """
    vectors, sides = evidence.vectors, (evidence.target, evidence.reference)
    if not _is_floating_case(evidence) or any(one is None or one.raw is not None for one in sides):
        return None
    t, r = (_extremes(one) for one in sides if one is not None)
    rel = _apart(vectors)
    if rel is None:
        return None
    for numbers, others, side in ((t, r, "target"), (r, t, "reference")):
        grid = grid_of(numbers) if len(set(numbers.tolist())) == len(_EXTREMES) else None
        if (
            grid is not None
            and grid in _HALF
            and not on_grid(others, grid).any()
            and rel <= ROUNDINGS_APART * ROUNDOFF[grid]
        ):
            sentence = origin_reason(
                evidence,
                KindReason.ON_A_GRID,
                side=side,
                dtype=grid,
                rel_l2=rel,
                roundoff=ROUNDOFF[grid],
                of_extremes=True,
            )
            return Found(rank=EvidenceRank.FITTED, sentence=sentence, without=_OF_ONE_DTYPE)
    return None


def _extremes(known: Known) -> Floats:
    """Those that are numbers other than zero."""
    return sample(np.array([known.statistic(name) for name in _EXTREMES]))


def _size(evidence: Evidence) -> Found | None:
    """The error is as large as a dtype's rounding, and of no direction."""
    vectors = evidence.vectors
    if vectors is None or vectors.num_values < FEW_NUMBERS or not vectors.rel > 0:
        return None
    if not _is_floating_case(evidence):
        return None
    dtype = dtype_of_error(vectors.rel, partial(may_compute_in, evidence))
    if dtype is None:
        return None
    if vectors.rel > ROUNDOFF[dtype] and _was_equal(evidence):
        return None  # the same dtypes and sums made the same bits before: what was zero then has come in
    bias = fit(vectors.target - vectors.reference, vectors.reference)
    small = ROUNDOFF[dtype] / 2 if dtype == "float32" else vectors.rel * BIAS_OF_ERROR
    if bias is None or (bias.z >= SIGNIFICANT_Z and abs(bias.factor) > small):
        return None
    fine = dtype == "float32"
    like_rounding = fine or _spread_like_rounding(vectors, ROUNDOFF[dtype])
    sentence = origin_reason(
        evidence, KindReason.SIZE_OF_ROUNDING, dtype=dtype, rel_l2=vectors.rel, roundoff=ROUNDOFF[dtype]
    )
    # where both runs compute in it, as well another order of sums as a coarser one on one side
    runs = evidence.target_run, evidence.reference_run
    both = all(dtype in run.dtypes for run in runs)
    return Found(
        rank=EvidenceRank.CONSISTENT if like_rounding else EvidenceRank.GUESS,
        sentence=sentence,
        causes=_OF_ROUNDINGS.get(dtype, ()),
        without=() if both else _OF_ONE_DTYPE,
    )


_OF_ROUNDINGS = {"float32": (CauseCode.ORDER_OF_SUMS,), "tf32": (CauseCode.TF32_ON_ONE_SIDE,)}
"""causes of errors as large as a dtype rounds, of those that no tensor is coarser than or held in"""


def _was_equal(evidence: Evidence) -> bool:
    """Whether both runs made the same numbers here in an earlier step, not zeros and not today's."""
    reference, elsewhere = evidence.reference, evidence.elsewhere
    earlier = dict(elsewhere.reference_earlier)
    return any(
        known.same_bits(earlier[step])
        and known.statistic("l2_norm") > 0
        and not (reference and reference.same_bits(known))
        for step, known in elsewhere.target_earlier
        if step in earlier
    )


def may_compute_in(evidence: Evidence, dtype: str) -> bool:
    """Whether anything may have computed in the dtype: a record of either run is in it, or the code that
    differs at the place names it on one side alone; no CPU has tf32."""
    runs = evidence.target_run, evidence.reference_run
    if dtype.startswith("float8"):
        return _uses_float8(evidence)
    if dtype == "tf32":
        return not all(run.on_cpu for run in runs)
    held = dtype == "float32" or any(dtype in run.dtypes or not run.dtypes for run in runs)
    return held or dtype in evidence.dtypes_in_code


def _uses_float8(evidence: Evidence) -> bool:
    """Errors of a tenth have many other reasons: something must say that float8 is about."""
    around = evidence.surroundings
    pairs = (evidence.pair, *around.inputs, *around.outputs)
    kept = [k.dtype for p in pairs for k in (p.target, p.reference) if k is not None]
    seen = [d for c in around.neighbours for d in (*c.target_dtypes, *c.reference_dtypes)]
    return any(d.startswith("float8") for d in (*kept, *seen))


def _spread_like_rounding(vectors: Vectors, roundoff: float) -> bool:
    """Over a good part of the elements, each about in proportion to its size."""
    if not vectors.exact:
        return False
    difference, size = np.abs(vectors.target - vectors.reference), np.abs(vectors.reference)
    touched = float((difference > 0).mean())
    within = float((difference <= 2 * roundoff * size).mean())
    return touched >= TOUCHED_SHARE and within >= WITHIN_SHARE


RULE = KindRule(
    code=KindCode.DTYPE_OR_ROUNDING,
    family=KindClass.NUMERICAL,
    looks=(
        _dtypes,
        solved(KindCode.DTYPE_OR_ROUNDING, without=_OF_ONE_DTYPE),
        _grid,
        _grid_of_extremes,
        _casts,
        _size,
    ),
    causes=(CauseCode.COARSER_ON_ONE_SIDE, CauseCode.UPCAST_LEFT_OUT, CauseCode.OTHER_ORDER_OR_KERNEL),
    advice=AdviceCode.CAST_TO_FLOAT32,
    place="after all that explains the error element by element: a rounding explains its size",
)
