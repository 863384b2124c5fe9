"""Two sets of weights compared, pair by pair, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from trueup.errors import ConfigError, NothingCompared
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.pair import PairMetrics, compare_pair
from trueup.types.arrays import Array
from trueup.weights.converting import is_vocabulary
from trueup.weights.weight_set import WeightInfo, WeightSet, rows_of_vocabulary, same_bits


class PairStatus(str, Enum):
    """What is found of one pair, best first."""

    EQUAL = "equal"
    """bits equal"""
    SAME_VALUES = "same_values"
    """dtypes differ, every value is equal"""
    ROUNDED = "rounded"
    """dtypes differ, and no value by more than rounding to them"""
    WITHIN_TOLERANCE = "within_tolerance"
    """no value differs by more than the tolerance asked for"""
    DIFFERENT = "different"
    UNDECIDED = "undecided"
    """shapes differ, or the dtypes cannot be compared"""


_LEAST_MULTIPLE, _MOST_ROWS = 64, 1024
"""of published models: Qwen2's 151,665 tokens have 151,936 rows, a multiple of 128"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPair:
    """One weight of the target and what the reference has for it. ``metrics`` is None where bits are equal or
    nothing could be compared; ``reason`` says what a status alone does not."""

    name: str
    status: PairStatus
    target: WeightInfo
    reference: WeightInfo
    metrics: PairMetrics | None = None
    reason: str = ""
    padding: int = 0
    """rows of vocabulary padding at the end of the side that has more, which were not compared"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightComparison:
    """All pairs, and the weights that have no partner."""

    pairs: tuple[WeightPair, ...]
    only_target: tuple[str, ...]
    only_reference: tuple[str, ...]
    rtol: float
    atol: float

    @property
    def counts(self) -> dict[str, int]:
        """How many pairs have each status."""
        return {status.value: sum(pair.status is status for pair in self.pairs) for status in PairStatus}

    def exit_code(self, *, allow_unmatched: bool = False) -> int:
        """0: all agree. 1: some differ. 2: none differs, but a pair is undecided or a weight unmatched."""
        statuses = {pair.status for pair in self.pairs}
        if PairStatus.DIFFERENT in statuses:
            return 1
        unmatched = (self.only_target or self.only_reference) and not allow_unmatched
        return 2 if PairStatus.UNDECIDED in statuses or unmatched else 0


def compare_weights(
    target: WeightSet, reference: WeightSet, *, rtol: float = 0.0, atol: float = 0.0
) -> WeightComparison:
    """Compare weights of the same name; a reference of other names is first put through a plan.

    Args:
        rtol: relative tolerance, as a factor of the reference's value; 0: bits, or rounding across dtypes.
        atol: absolute tolerance.

    Raises:
        NothingCompared: no name is on both sides.
        ConfigError: a negative tolerance.
    """
    if not (rtol >= 0 and atol >= 0):
        raise ConfigError(f"--rtol {rtol:g} --atol {atol:g}: expected numbers of at least 0")
    names = [name for name in target.table if name in reference.table]
    if not names:
        raise NothingCompared(
            f"no weight of {target.path} ({_some(target)}) has the name of one of {reference.path} "
            f"({_some(reference)}); pair them with --by map, --by values or --plan"
        )
    pairs = tuple(_pairs(names, target, reference, rtol, atol))
    if all(pair.status is PairStatus.UNDECIDED for pair in pairs):
        raise NothingCompared(f"not one pair could be compared; {pairs[0].name}: {pairs[0].reason}")
    return WeightComparison(
        pairs=pairs,
        only_target=tuple(name for name in target.table if name not in reference.table),
        only_reference=tuple(name for name in reference.table if name not in target.table),
        rtol=rtol,
        atol=atol,
    )


def _some(weights: WeightSet) -> str:
    return ", ".join(list(weights.table)[:2]) + ", ..."


def _pairs(
    names: Sequence[str], target: WeightSet, reference: WeightSet, rtol: float, atol: float
) -> Iterator[WeightPair]:
    vocabularies = {rows_of_vocabulary(side) for side in (target, reference)} - {None}
    vocabulary = vocabularies.pop() if len(vocabularies) == 1 else None
    for name in names:
        own, other = target.table[name], reference.table[name]
        padding = _padding(own, other, vocabulary)
        status, metrics, reason = PairStatus.UNDECIDED, None, "" if padding else _not_comparable(own, other)
        if not reason:
            actual, expected = target.read(name), reference.read(name)
            if padding and own == other and same_bits(actual, expected):
                padding = 0  # nothing needs to be left out
            elif padding:
                rows = max(own.shape[0], other.shape[0]) - padding
                actual, expected = actual[:rows], expected[:rows]
            if own.dtype == other.dtype and same_bits(actual, expected):
                status = PairStatus.EQUAL
            else:
                status, metrics = _judged(actual, expected, own.dtype, other.dtype, rtol, atol)
        yield WeightPair(
            name=name,
            status=status,
            target=own,
            reference=other,
            metrics=metrics,
            reason=reason,
            padding=padding,
        )


def _padding(target: WeightInfo, reference: WeightInfo, vocabulary: int | None) -> int:
    """Rows at the end of an embedding or output projection that are padding: those after the vocabulary,
    where a side says it, else rows that one side has more and that can only be some, the larger vocabulary
    being the smaller one made a multiple of a power of two."""
    one, other = target.shape, reference.shape
    if not one or not other or one[1:] != other[1:] or not is_vocabulary(target.name):
        return 0
    larger, smaller = max(one[0], other[0]), min(one[0], other[0])
    if vocabulary is not None and vocabulary <= smaller:
        return larger - vocabulary
    multiple = larger & -larger
    fits = larger - smaller < multiple or (multiple >= _LEAST_MULTIPLE and larger - smaller < _MOST_ROWS)
    return larger - smaller if fits else 0


def _not_comparable(target: WeightInfo, reference: WeightInfo) -> str:
    if target.shape != reference.shape:
        turned = target.shape == reference.shape[::-1]
        hint = "; is one the other transposed?" if turned else ""
        return f"shape {list(target.shape)} against {list(reference.shape)}{hint}"
    kinds = DTYPES[target.dtype].kind, DTYPES[reference.dtype].kind
    if (kinds[0] == "complex") != (kinds[1] == "complex"):
        return f"{target.dtype} against {reference.dtype}"
    return ""


def _judged(
    actual: Array, expected: Array, actual_dtype: str, expected_dtype: str, rtol: float, atol: float
) -> tuple[PairStatus, PairMetrics]:
    """The status of two weights whose bits are not equal.

    Across dtypes each side may be off by its own unit roundoff u and, below the smallest normal s, by u s.
    """
    a, b = DTYPES[actual_dtype], DTYPES[expected_dtype]
    across = actual_dtype != expected_dtype
    bound = (a.eps + b.eps, a.eps * a.smallest_normal + b.eps * b.smallest_normal) if across else (rtol, atol)
    metrics = compare_pair(actual, expected, actual_dtype, expected_dtype, rtol=bound[0], atol=bound[1])
    if across and metrics.num_bits_different == 0:
        return PairStatus.SAME_VALUES, metrics
    if across and _all_within(metrics):
        return PairStatus.ROUNDED, metrics
    if across and (rtol or atol):
        metrics = compare_pair(actual, expected, actual_dtype, expected_dtype, rtol=rtol, atol=atol)
    if (rtol or atol) and _all_within(metrics):
        return PairStatus.WITHIN_TOLERANCE, metrics
    return PairStatus.DIFFERENT, metrics


def _all_within(metrics: PairMetrics) -> bool:
    return metrics.num_nonfinite_mismatch == 0 and not metrics.fraction_above
