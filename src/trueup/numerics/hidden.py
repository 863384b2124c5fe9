"""Elements that a mask hides: so low that a softmax gives them exactly 0, whatever they are.

Programs hide positions in many ways: False, minus infinity, the lowest number of a dtype, -1e9, and sums of
these with scores. All mean the same. As numbers they would be nonsense: their norm hides every other element,
and one rounding of them is larger than any error.
"""

from __future__ import annotations

import numpy as np

from trueup.numerics.dtypes import DTYPES, float64_from_array
from trueup.types.arrays import Array, Bools, Floats
from trueup.types.threshold import derived

HIDE_WHERE_TRUE = (
    *("MultiheadAttention", "Transformer", "TransformerEncoder", "TransformerDecoder"),
    *("TransformerEncoderLayer", "TransformerDecoderLayer"),
)
"""modules of torch.nn whose masks of booleans hide where they are True; those of its functions show there"""
HIDDEN = derived(
    "numerics.hidden",
    -0.9e9,
    "score",
    "-1e9, the least extreme mask in use, plus a score of 1e8: no activation that trains comes near, and a "
    "softmax in float64 gives exactly 0 below -746",
    test="tests/numerics/test_hidden.py::test_a_number_just_above_is_a_number",
)
_LOWEST_OF_FLOAT16 = -65504.0
"""what masks of float16 hold: nothing is lower"""


def lowest_visible(dtype: str) -> float:
    """The largest number that hides an element of this dtype."""
    return _LOWEST_OF_FLOAT16 if dtype == "float16" else HIDDEN


def with_hidden_as_infinite(values: Floats, dtype: str) -> Floats:
    """float64 values of a tensor of ``dtype``, hidden elements as minus infinity; the same array where none
    is hidden."""
    if dtype not in DTYPES or DTYPES[dtype].kind != "float":
        return values
    with np.errstate(invalid="ignore"):
        hidden = values <= lowest_visible(dtype)
    return np.where(hidden, -np.inf, values) if hidden.any() else values


def in_common_form(
    target: Array, target_dtype: str, reference: Array, reference_dtype: str, *, true_hides: bool = False
) -> Form | None:
    """Two tensors of one shape where either is a mask, as float64 of the same meaning.

    An additive mask keeps its visible elements, hidden ones become minus infinity. A mask of booleans, or of
    zeros and ones beside one of them, hides where it is 0: beside an additive mask it becomes one. Booleans
    hide where they are False in fused attention, and where they are True in ``nn.MultiheadAttention``. None
    where neither hides anything, or what a side holds is no mask.

    Args:
        target: raw values, bfloat16 as uint16.
        target_dtype: its element type by name.
        reference: the same of the other side.
        reference_dtype: its element type.
        true_hides: whether the module that is given the masks hides where booleans are True.
    """
    sides = [(target, target_dtype), (reference, reference_dtype)]
    if any(dtype not in DTYPES or DTYPES[dtype].kind == "complex" for _, dtype in sides):
        return None
    plain = [float64_from_array(values, dtype) for values, dtype in sides]
    wide = [with_hidden_as_infinite(values, sides[at][1]) for at, values in enumerate(plain)]
    if any(np.isneginf(values).any() for values in wide):
        forms = [_additive(values, sides[at][1], true_hides=true_hides) for at, values in enumerate(wide)]
    elif target_dtype != reference_dtype and "bool" in (target_dtype, reference_dtype):
        forms = [values if _is_flags(values) else None for values in plain]
        if _show_all(plain, (target_dtype, reference_dtype)):
            forms = [np.zeros_like(values) for values in plain]
    else:
        return None
    return None if forms[0] is None or forms[1] is None else (forms[0], forms[1])


Form = tuple[Floats, Floats]


def _additive(values: Floats, dtype: str, *, true_hides: bool) -> Floats | None:
    if DTYPES[dtype].kind == "float":
        return values
    hiding = float(true_hides and dtype == "bool")
    return np.where(values == hiding, -np.inf, 0.0) if _is_flags(values) else None


def _show_all(plain: list[Floats], dtypes: tuple[str, str]) -> bool:
    """Whether an additive mask of zeros stands beside booleans that are one value: neither hides anything."""
    kinds = [DTYPES[dtype].kind for dtype in dtypes]
    constant = all(len(np.unique(values)) == 1 for values in plain)
    return constant and any(kind == "float" and not plain[at].any() for at, kind in enumerate(kinds))


def _is_flags(values: Floats) -> bool:
    flags: Bools = (values == 0) | (values == 1)
    return bool(flags.all())


def in_form_of(
    like: Array, like_dtype: str, values: Array, dtype: str, *, true_hides: bool = False
) -> Array | None:
    """A mask in the form another has: booleans for an additive one, or the reverse.

    Args:
        like: raw values of the tensor whose form is needed; what hides in it hides in the result.
        like_dtype: its element type by name.
        values: raw values of the mask, of the same number of elements.
        dtype: its element type; one of the two is ``bool``.
        true_hides: as of ``in_common_form``.

    Returns:
        Raw values of ``like_dtype``; None where either is no mask.
    """
    if (
        dtype not in DTYPES
        or like_dtype not in DTYPES
        or "complex" in {DTYPES[d].kind for d in (dtype, like_dtype)}
    ):
        return None
    mask, other = float64_from_array(values, dtype), float64_from_array(like, like_dtype)
    if like_dtype == "bool":
        if DTYPES[dtype].kind == "float" and (not mask.any() or (mask <= lowest_visible(dtype)).any()):
            visible = mask > lowest_visible(dtype)
            shown = ~visible if true_hides else visible
            return shown.astype(np.bool_) if (mask[visible] == 0).all() else None
        return (mask != 0).astype(np.bool_) if _is_flags(mask) else None
    lowest = other.min(initial=0.0)
    if DTYPES[like_dtype].kind == "float" and lowest <= lowest_visible(like_dtype):
        hides = like.reshape(-1)[int(np.argmin(other.reshape(-1)))]
        return np.where(
            (mask != 0) != (true_hides and dtype == "bool"), np.zeros((), like.dtype), hides
        ).astype(like.dtype)
    if not _is_flags(other) or like_dtype.startswith(("bfloat", "float8")):
        return None
    return mask.astype(like.dtype)
