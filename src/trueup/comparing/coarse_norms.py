"""Norms that one run rounds inside and the other does not.

A norm divides a row by one number, made of the whole row. Where that number is rounded to a coarse dtype, all
elements of the row are off together: by less than the dtype's rounding, so that no tolerance sees it, and not
averaged out by anything that adds the row up. Both norms are worked out again in float64, each from what its
own module was given:

    z = x / sqrt(mean x^2 + eps) w,   or (x - mean x) / sqrt(var x + eps) w + b

- One that rounds nothing but elements gives one of few results to the bit: z rounded once, or after the
  division, the product and the sum. Float32 and float64 part in one element of thousands.
- One that rounds a number of the row gives none of these, and its rows are off together: of
  ``y = z (1 + f) + e``, f fitted in each row and its error taken from what is left, ``mean (f / error)^2``
  is near 1 where elements are rounded for themselves, and grows with the width of the row where not.
- Rows of another formula are off together as well: another epsilon, one outside the root, a mean over another
  number. Then f is a smooth function of the row's size, a constant and terms in 1 / size and 1 / size^2; what
  rounding leaves follows nothing. What such a function explains is taken away first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trueup.comparing.attributes import Attributes
from trueup.comparing.first import JudgedStep
from trueup.comparing.precision_gap import PrecisionGap, gap_from
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.thresholds import NORM_COHERENT, NORM_FITS, NORM_OTHERS, NORM_ROWS, NORM_SAME
from trueup.numerics.dtypes import DTYPES, float64_from_array, rounded_to, unit_roundoffs
from trueup.store import TraceSource
from trueup.types.arrays import Floats

_EPS = ("eps", "variance_epsilon", "epsilon", "layer_norm_epsilon", "layer_norm_eps", "norm_eps")
_USUAL = (1e-5, 1e-6, 1e-8, 1e-12, 0.0)
_COARSE = ("bfloat16", "float16")
_MANTISSA_BITS = 11
"""of float16; bfloat16 has 8"""
_MOST_ROWS = 512
MOST = 4
"""modules of one class that are worked out"""


@dataclass(frozen=True, slots=True)
class NormCall:
    """What one norm of one side was given and made, in float64; ``x`` and ``y`` of shape (rows, width)."""

    x: Floats
    y: Floats
    weight: Floats | None
    bias: Floats | None
    dtype: str
    """of what it made"""
    roundoff: float


def gap_of_norms(
    judged: JudgedStep, sides: tuple[TraceSource, TraceSource], attributes: tuple[Attributes, Attributes]
) -> PrecisionGap | None:
    """The norms that one side alone rounds inside; None where there are none, or values are lacking."""
    rows = judged.rows
    both = zip((rows.target, rows.reference), judged.at, sides, attributes, strict=True)
    readers = [_Norms(rows, half, *where, source, of) for half, where, source, of in both]
    found: dict[int, tuple[str, str]] = {}
    for row in _candidates(rows):
        inside = [norms.rounds_inside(row) for norms in readers]
        coarse = rows.match.words.dtype[int(rows.target.dtype[row])]
        if inside == [True, False]:
            found[row] = coarse, "float32"
        elif inside == [False, True]:
            found[row] = "float32", coarse
    if not found:
        return None
    first = next(iter(found))
    types = Counter(rows.match.words.type[int(rows.of_call("type")[row])] for row in found)
    modules = tuple(f"{name} ({num})" for name, num in types.items())
    return gap_from(judged, first, *found[first], modules=modules)


def rounds_inside(given: NormCall, eps: Sequence[float]) -> bool | None:
    """Whether a norm rounds a number of a row; None where it is no norm, or nothing tells.

    ``eps`` are those it may have.
    """
    best = None
    for one in eps:
        for form in _forms(given, one):
            if any(_share(given.y, result) >= NORM_SAME for result in form.results(given.dtype)):
                return False
            error = float(np.linalg.norm(given.y - form.whole))
            size = float(np.linalg.norm(form.whole))
            if error <= NORM_FITS * given.roundoff * size and (best is None or error < best[0]):
                best = error, form
    if best is None:
        return None
    form = best[1]
    nearest = max(_share(given.y, result) for result in form.results(given.dtype))
    offset = form.weight if form.is_centred else None
    if nearest <= NORM_OTHERS and are_off_together(
        given.x, _without_formula(given, form), form.scaled, offset
    ):
        return True
    return None


def _without_formula(given: NormCall, form: _Form) -> Floats:
    """The norm's error, less what a smooth function of each row's size explains of it."""
    error, z = given.y - form.whole, form.scaled
    centred = given.x - given.x.mean(1, keepdims=True) if form.is_centred else given.x
    size, square = np.sqrt(np.square(centred).mean(1)), np.square(z).sum(1)
    known = (square > 0) & (size > 0)
    f = (error * z).sum(1)[known] / square[known]
    terms = np.vander(1.0 / size[known], 3)
    smooth = np.zeros(len(z))
    smooth[known] = terms @ np.linalg.lstsq(terms, f, rcond=None)[0]
    return np.asarray(error - smooth[:, None] * z)


def are_off_together(x: Floats, error: Floats, z: Floats, offset: Floats | None) -> bool | None:
    """Whether the elements of a row are off together: ``mean (f / its error)^2`` over rows that are off by
    ``z f``, or by a multiple of ``offset``. None where too few rows are off at all.

    A coarse dtype has few mantissas, and elements of one are rounded alike: their errors count as one.

    Args:
        x: what the norm was given, float64 of shape (rows, width).
        error: what it made less the exact norm.
        z: the exact norm, without bias.
        offset: what a rounded mean adds to a row, a multiple of: shape (width,); None where no mean is taken.
    """
    step = max(1, len(x) // _MOST_ROWS)
    x, error, z = x[::step], error[::step], z[::step]
    alike = np.abs(np.frexp(x)[0] * 2**_MANTISSA_BITS).astype(np.int64)
    means = []
    for shape in [z] if offset is None else [z, np.broadcast_to(offset, z.shape)]:
        sums = np.zeros((len(x), 2**_MANTISSA_BITS + 1))
        np.add.at(sums, (np.arange(len(x))[:, None], alike), error * shape)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.square(sums.sum(1)) / np.square(sums).sum(1)
        distinct = np.unique(ratios[np.isfinite(ratios)])  # equal rows tell the same
        if len(distinct) < NORM_ROWS:
            return None
        means.append(float(distinct.mean()))
    return max(means) >= NORM_COHERENT


@dataclass(frozen=True, slots=True)
class _Form:
    """One norm, worked out in float64."""

    unit: Floats
    """x over its size"""
    weight: Floats
    bias: Floats
    is_centred: bool

    @property
    def scaled(self) -> Floats:
        """Without its bias."""
        return self.unit * self.weight

    @property
    def whole(self) -> Floats:
        """As it is meant."""
        return self.scaled + self.bias

    def results(self, dtype: str) -> Iterator[Floats]:
        """What comes of it, whichever of its elementwise results are rounded."""
        for unit in (self.unit, rounded_to(self.unit, dtype)):
            for weight in (self.weight, rounded_to(self.weight, dtype)):
                for product in (unit * weight, rounded_to(unit * weight, dtype)):
                    yield rounded_to(product + self.bias, dtype)


def _forms(given: NormCall, eps: float) -> Iterator[_Form]:
    """Both norms, with the weight as it is and as what is added to 1."""
    one = np.ones(given.x.shape[1])
    bias = np.zeros_like(one) if given.bias is None else given.bias
    centred = given.x - given.x.mean(1, keepdims=True)
    for values, is_centred in ((given.x, False), (centred, True)):
        with np.errstate(divide="ignore", invalid="ignore"):
            unit = values / np.sqrt(np.square(values).mean(1, keepdims=True) + eps)
        for weight in [one] if given.weight is None else [given.weight, 1 + given.weight]:
            yield _Form(unit, weight, bias, is_centred)


def _share(a: Floats, b: Floats) -> float:
    return float((a == b).mean())


def _candidates(rows: StepRows) -> Iterator[int]:
    """First outputs of modules in one coarse dtype on both sides, a few of each class, of other bits."""
    words, calls = rows.match.words, rows.target.call
    coarse = np.array([name in _COARSE for name in words.dtype] + [False])
    made = rows.phase_is("forward") & rows.slot_is("output.0") & rows.kind_is("module") & rows.paired
    made &= coarse[rows.target.dtype] & (rows.target.dtype == rows.reference.dtype) & (calls >= 0)
    parents = rows.match.target.parent[calls[rows.kind_is("module") & (calls >= 0)]]
    leaves = np.ones(rows.match.target.num_calls + 1, bool)
    leaves[parents[parents >= 0]] = False
    seen: Counter[int] = Counter()
    types = rows.of_call("type")
    for row in np.flatnonzero(made & leaves[calls]).tolist():
        seen[int(types[row])] += 1
        if seen[int(types[row])] <= MOST:
            yield row


class _Norms:
    """The norms of one side of a step."""

    def __init__(
        self, rows: StepRows, half: Half, step: int, rank: int, source: TraceSource, attributes: Attributes
    ) -> None:
        self._rows, self._half, self._source, self._attributes = rows, half, source, attributes
        self._at = step, rank

    def rounds_inside(self, row: int) -> bool | None:
        """As ``rounds_inside``, of the module whose output stands in a row."""
        name = self._rows.match.words.name[int(self._rows.of_call("name")[row])]
        given = self._given(row, name)
        if given is None:
            return None
        known = self._attributes.get(name, {})
        stated = [float(v) for key in _EPS if isinstance(v := known.get(key), (int, float))]
        return rounds_inside(given, stated or _USUAL)

    def _given(self, row: int, name: str) -> NormCall | None:
        """What the module was given and made; None where it was given several tensors of that size, or holds
        other weights than a norm does."""
        rows, half = self._rows, self._half
        inputs = rows.phase_is("forward") & rows.slot_starts("input") & (half.call == half.call[row])
        at = np.flatnonzero(inputs & (half.numel == half.numel[row]) & (half.record >= 0))
        weights = self._weights(name)
        if len(at) != 1 or not weights.keys() <= {"weight", "bias"}:
            return None
        x, y = self._values(int(at[0])), self._values(row)
        if x is None or y is None or x.ndim < 2 or x.shape != y.shape:
            return None
        width = x.shape[-1]
        own = {key: values for key, values in weights.items() if values is not None}
        if own.keys() != weights.keys() or any(values.shape != (width,) for values in own.values()):
            return None
        dtype = rows.match.words.dtype[int(half.dtype[row])]
        sides = x.reshape(-1, width), y.reshape(-1, width)
        return NormCall(*sides, own.get("weight"), own.get("bias"), dtype, float(unit_roundoffs([dtype])[0]))

    def _weights(self, module: str) -> dict[str, Floats | None]:
        """The module's own parameters at the start of the step; None for one whose values were not kept."""
        rows, words = self._rows, self._rows.match.words.name
        at = rows.phase_is("param") & rows.slot_is("value") & (self._half.record >= 0)
        names = {row: words[int(rows.of_call("name")[row])] for row in np.flatnonzero(at).tolist()}
        return {
            name.rpartition(".")[2]: self._values(row)
            for row, name in names.items()
            if name.rpartition(".")[0] == module
        }

    def _values(self, row: int) -> Floats | None:
        half = self._half
        if half.summary[row] < 0:
            return None
        tensor = self._source.tensor(*self._at, half.tables.summary_row(int(half.summary[row])))
        if tensor is None or tensor.dtype not in DTYPES:
            return None
        values = tensor.data.view(np.dtype(DTYPES[tensor.dtype].storage))
        return float64_from_array(values, tensor.dtype).reshape(tensor.shape)
