"""The formats and scales that a linear layer's operands are rounded to before they are multiplied, told by
multiplying again.

``y = x w^T``, each operand rounded to 8 bits or not at all, with one scale for the tensor, for each row, or
for each block: one such recipe gives y up to the rounding of y itself, every other is off by a rounding of 8
bits, ten times as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from trueup.diagnosing.evidence import Evidence, Known
from trueup.diagnosing.evidence.facts import Window
from trueup.diagnosing.kinds.rule import Found, whole_origin_reason
from trueup.diagnosing.kinds.solved import Solved
from trueup.diagnosing.kinds.thresholds import RECIPE_FITS, RECIPE_OTHERS
from trueup.numerics.dtypes import DTYPES, rounded_to
from trueup.types.arrays import Floats
from trueup.types.codes.kinds import KindReason
from trueup.types.finding import EvidenceRank, KindCode

E4M3, E5M2, INT8 = "float8_e4m3fn", "float8_e5m2", "int8"
_BLOCKS = {"block": ((1, 128), (128, 128)), "group": ((1, 32), (1, 32))}
"""rows and columns that share a scale, of the input and of the weight"""
_LARGEST = {E4M3: 448.0, E5M2: 57344.0, INT8: 127.0}
_MANTISSA_BITS, _SMALLEST_EXPONENT = {E4M3: 3, E5M2: 2}, {E4M3: -6, E5M2: -14}
_OPERANDS = ((E4M3, E4M3), (E5M2, E5M2), (E5M2, E4M3), (E4M3, ""), ("", E4M3), (INT8, INT8), ("", INT8))
_MOST_ROWS, _MOST_FEATURES = 64, 128
"""that are multiplied: the first ones; scales are those of whole operands"""
_CUTS = (2.0, 4.0)
_TINY = 1e-12
"""in place of the largest of numbers that are all 0"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandRecipe:
    """What the two operands are rounded to."""

    given: str = ""
    """format of the input; empty where it keeps its dtype"""
    weight: str = ""
    scales: str = "tensor"
    """one for each ``tensor``, ``row`` (of the input, of the weight), ``block`` (128 numbers of a row of the
    input, 128 by 128 of the weight) or ``group`` of 32 numbers"""
    powers: bool = False
    """scales are powers of two"""
    cut: float = 1.0
    """times too large: what is above 1 / ``cut`` of the largest magnitude is cut off"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """Rows of the input or of the weight, float64 of shape (rows, in)."""

    values: Floats
    largest: float
    """magnitude in the whole tensor"""


def quantisation_fault(evidence: Evidence) -> Solved | None:
    """A linear layer whose operands the two runs round in two ways; None where it is none, both round alike,
    or nothing tells how."""
    origin = evidence.origin
    if origin.phase != "forward" or not origin.slot.startswith("output"):
        return None
    x, weight = _given(evidence), _weight(evidence)
    found = None if x is None or weight is None else _recipes_of_runs(evidence, x, weight)
    if x is None or found is None:
        return None
    target, reference = found
    facts = {"dtype": x.dtype}
    for side, recipe in (("target", target), ("reference", reference)):
        facts |= {f"{side}_given": recipe.given, f"{side}_weight": recipe.weight}
        facts |= {f"{side}_scales": recipe.scales if recipe.given or recipe.weight else ""}
    numbers: dict[str, bool | float] = {"target_powers": target.powers, "reference_powers": reference.powers}
    numbers |= {"target_cut": target.cut, "reference_cut": reference.cut}
    sentence = whole_origin_reason(evidence, KindReason.OPERANDS_ROUNDED, **facts, **numbers)
    return Solved(
        kind=KindCode.DTYPE_OR_ROUNDING, found=Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)
    )


def _recipes_of_runs(
    evidence: Evidence, x: Known, weight: Known
) -> tuple[OperandRecipe, OperandRecipe] | None:
    """The target's and the reference's, where both are known and are two."""
    t, r, shape = evidence.target, evidence.reference, (*x.shape[:-1], weight.shape[0])
    if t is None or r is None or weight.shape[1] != x.shape[-1] or not shape == t.shape == r.shape:
        return None
    rows = (*((0, 1) for _ in shape[:-2]), (0, min(_MOST_ROWS, shape[-2])))
    features = (0, min(_MOST_FEATURES, shape[-1]))
    given, taken = _operand(x, (*rows, (0, x.shape[-1]))), _operand(weight, (features, (0, x.shape[-1])))
    made = [one.values((*rows, features)) for one in (t, r)]
    if given is None or taken is None or made[0] is None or made[1] is None:
        return None
    results = [one.reshape(-1, features[1]) for one in made if one is not None]
    target, reference = recipes_of(given, taken, results, x.dtype)
    return None if target is None or reference is None or target == reference else (target, reference)


def recipes_of(x: Operand, weight: Operand, made: list[Floats], dtype: str) -> list[OperandRecipe | None]:
    """The recipe that gives each result; None where none does, or two differ too little.

    Args:
        x: rows of the input.
        weight: its first rows: as many as there are features.
        made: results, each of shape (rows, features).
        dtype: what the operands have before they are rounded to 8 bits.
    """
    sizes = [float(np.linalg.norm(one)) for one in made]
    if not all(np.isfinite(size) and size > 0 for size in sizes):
        return [None] * len(made)
    if dtype in ("bfloat16", "float16"):
        weight = replace(weight, values=rounded_to(weight.values, dtype))

    @cache
    def rounded(of_input: bool, name: str, scales: str, powers: bool, cut: float) -> Floats:
        operand = x if of_input else weight
        if not name:
            return operand.values
        block = _BLOCKS.get(scales, ((0, 0), (0, 0)))[0 if of_input else 1]
        return operand_rounded(operand, name, scales, block, powers=powers, cut=cut)

    left: list[tuple[list[float], OperandRecipe]] = []
    for recipe in _recipes():
        how = recipe.scales, recipe.powers, recipe.cut
        product = rounded(True, recipe.given, *how) @ rounded(False, recipe.weight, *how).T
        off = [float(np.linalg.norm(product - one)) / size for one, size in zip(made, sizes, strict=True)]
        left.append((off, recipe))
    return [_nearest([(off[side], recipe) for off, recipe in left]) for side in range(len(made))]


def fits(left: float) -> bool:
    """Whether a product leaves no more than a result in bfloat16 is rounded."""
    return left <= RECIPE_FITS * DTYPES["bfloat16"].eps


def _nearest(left: list[tuple[float, OperandRecipe]]) -> OperandRecipe | None:
    """The one recipe that leaves no more than the result's own rounding; the plainest of several that do."""
    least = min(off for off, _ in left)
    fitting = [recipe for off, recipe in left if is_as_near(off, least)]
    if not fits(least):
        return None
    formats = {(recipe.given, recipe.weight, recipe.cut) for recipe in fitting}
    return fitting[0] if len(formats) == 1 else None


def is_as_near(left: float, least: float) -> bool:
    """Whether a recipe cannot be told from the best one."""
    return left <= RECIPE_OTHERS * max(least, DTYPES["float32"].eps)


def _recipes() -> Iterator[OperandRecipe]:
    """The plain ones first."""
    yield OperandRecipe()
    for given, weight in _OPERANDS:
        for scales in ("tensor", "row", *_BLOCKS):
            for powers in (False, True):
                yield OperandRecipe(given=given, weight=weight, scales=scales, powers=powers)
    for cut in _CUTS:
        yield OperandRecipe(given=E4M3, weight=E4M3, cut=cut)


def operand_rounded(
    operand: Operand,
    name: str,
    scales: str,
    block: tuple[int, int] = (0, 0),
    *,
    powers: bool = False,
    cut: float = 1.0,
) -> Floats:
    """The numbers that 8 bits hold of an operand, scaled so that the largest fits.

    ``block``: rows and columns that share a scale, where neither the tensor nor a row does.

    Example:
        >>> row = Operand(values=np.array([[1.0, 0.3, 0.01]]), largest=1.0)
        >>> operand_rounded(row, "float8_e4m3fn", "tensor").round(6)
        array([[1.      , 0.285714, 0.010045]])
    """
    largest = np.array([[operand.largest]])
    if scales != "tensor":
        largest = _largest(np.abs(operand.values), scales, block)
    scale = cut * _LARGEST[name] / np.maximum(largest, _TINY)
    if powers:
        scale = np.exp2(np.floor(np.log2(scale)))
    return np.asarray(_in_format(operand.values * scale, name) / scale)


def _largest(sizes: Floats, scales: str, block: tuple[int, int]) -> Floats:
    """Of each number's row or block; of a shape that broadcasts."""
    if scales == "row":
        return np.asarray(sizes.max(axis=1, keepdims=True))
    (rows, width), (high, wide) = sizes.shape, block
    padded = np.zeros((-(-rows // high) * high, -(-width // wide) * wide))
    padded[:rows, :width] = sizes
    blocks = padded.reshape(-1, high, padded.shape[1] // wide, wide).max(axis=(1, 3))
    return np.asarray(blocks.repeat(high, 0).repeat(wide, 1)[:rows, :width])


def _in_format(values: Floats, name: str) -> Floats:
    """The nearest numbers of a format, ties to even; what is too large becomes its largest."""
    top = _LARGEST[name]
    held = np.clip(values, -top, top)
    if name == INT8:
        return np.asarray(np.rint(held))
    exponent = np.frexp(held)[1] - 1
    step = np.exp2(np.maximum(exponent, _SMALLEST_EXPONENT[name]) - _MANTISSA_BITS[name])
    return np.asarray(np.rint(held / step) * step)


def _given(evidence: Evidence) -> Known | None:
    """The layer's one input of floating numbers, the same in both runs."""
    pairs = [p for p in evidence.surroundings.inputs if p.given is not None and p.given.is_floating]
    if len(pairs) != 1 or pairs[0].agree is not True or pairs[0].given is None:
        return None
    known = pairs[0].given
    return known if len(known.shape) > 1 and known.dtype in ("bfloat16", "float16", "float32") else None


def _weight(evidence: Evidence) -> Known | None:
    """The layer's one parameter, a matrix that is the same in both runs."""
    pairs = evidence.surroundings.parameters
    if len(pairs) != 1 or pairs[0].agree is not True or pairs[0].given is None:
        return None
    return pairs[0].given if len(pairs[0].given.shape) == 2 else None


def _operand(known: Known, window: Window) -> Operand | None:
    """The first rows; None where values are lacking, or not finite."""
    values = known.values(window)
    largest = max(abs(known.statistic("minimum")), abs(known.statistic("maximum")))
    if values is None or not np.isfinite(values).all() or not np.isfinite(largest):
        return None
    return Operand(values=values.reshape(-1, values.shape[-1]), largest=largest)
