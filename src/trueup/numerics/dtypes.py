"""What every element type is: its code in the C kernel, size, kind, and the limits of its values.

Frameworks spell these names alike, so the name is the key everywhere. numpy has no bfloat16 and no fp8: such
arrays travel as uint16 and uint8 holding the raw bits, with the name beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trueup.types.arrays import Array

Kind = Literal["float", "int", "uint", "bool", "complex"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dtype:
    """One element type.

    Attributes:
        code: number the C kernel knows it by.
        itemsize: bytes of one element (both parts, for complex).
        eps: unit roundoff, half the gap between 1 and the next value; 0 for integers and bool.
        smallest_normal: smallest positive normal value; 1 for integers and bool.
        max: largest finite value (of each part, for complex).
        storage: numpy dtype its raw bits are held in.
    """

    name: str
    code: int
    itemsize: int
    kind: Kind
    eps: float
    smallest_normal: float
    max: float
    storage: str


def _dtype(
    name: str, code: int, kind: Kind, storage: str, eps: float, smallest_normal: float, largest: float
) -> Dtype:
    return Dtype(
        name=name,
        code=code,
        itemsize=np.dtype(storage).itemsize,
        kind=kind,
        eps=eps,
        smallest_normal=smallest_normal,
        max=largest,
        storage=storage,
    )


_F32_MAX = float(np.finfo(np.float32).max)
_F64_MAX = float(np.finfo(np.float64).max)

DTYPES: dict[str, Dtype] = {
    entry.name: entry
    for entry in (
        _dtype("float64", 0, "float", "<f8", 2.0**-53, 2.0**-1022, _F64_MAX),
        _dtype("float32", 1, "float", "<f4", 2.0**-24, 2.0**-126, _F32_MAX),
        _dtype("float16", 2, "float", "<f2", 2.0**-11, 2.0**-14, 65504.0),
        _dtype("bfloat16", 3, "float", "<u2", 2.0**-8, 2.0**-126, 255 * 2.0**120),
        _dtype("float8_e4m3fn", 4, "float", "|u1", 2.0**-4, 2.0**-6, 448.0),
        _dtype("float8_e5m2", 5, "float", "|u1", 2.0**-3, 2.0**-14, 57344.0),
        _dtype("float8_e4m3fnuz", 6, "float", "|u1", 2.0**-4, 2.0**-7, 240.0),
        _dtype("float8_e5m2fnuz", 7, "float", "|u1", 2.0**-3, 2.0**-15, 57344.0),
        _dtype("int8", 8, "int", "|i1", 0.0, 1.0, 2.0**7 - 1),
        _dtype("int16", 9, "int", "<i2", 0.0, 1.0, 2.0**15 - 1),
        _dtype("int32", 10, "int", "<i4", 0.0, 1.0, 2.0**31 - 1),
        _dtype("int64", 11, "int", "<i8", 0.0, 1.0, 2.0**63),
        _dtype("uint8", 12, "uint", "|u1", 0.0, 1.0, 2.0**8 - 1),
        _dtype("uint16", 13, "uint", "<u2", 0.0, 1.0, 2.0**16 - 1),
        _dtype("uint32", 14, "uint", "<u4", 0.0, 1.0, 2.0**32 - 1),
        _dtype("uint64", 15, "uint", "<u8", 0.0, 1.0, 2.0**64),
        _dtype("bool", 16, "bool", "|b1", 0.0, 1.0, 1.0),
        _dtype("complex64", 17, "complex", "<c8", 2.0**-24, 2.0**-126, _F32_MAX),
        _dtype("complex128", 18, "complex", "<c16", 2.0**-53, 2.0**-1022, _F64_MAX),
    )
}
"""Every supported element type by name."""

REAL_PART = {"complex64": "float32", "complex128": "float64"}
"""Element type of the interleaved (real, imaginary) view of a complex tensor."""


def dtype_from_name(name: str) -> Dtype:
    """The entry of one element type.

    Raises:
        ValueError: the name is not in the table.
    """
    try:
        return DTYPES[name]
    except KeyError:
        raise ValueError(f"unsupported dtype {name!r}; supported: {', '.join(DTYPES)}") from None


def dtype_of(array: Array, name: str | None = None) -> Dtype:
    """The element type an array holds: `name` where numpy has none of its own, else the array's.

    Raises:
        ValueError: no such dtype, or the array's items are of another size.
    """
    entry = dtype_from_name(array.dtype.name if name is None else name)
    if array.dtype.itemsize != entry.itemsize:
        raise ValueError(
            f"{entry.name} has {entry.itemsize} bytes an element, the array {array.dtype.itemsize}"
        )
    return entry


def real_view(array: Array, entry: Dtype) -> tuple[Array, Dtype]:
    """A complex array as its interleaved parts, shape (..., 2); any other array unchanged."""
    if entry.kind != "complex":
        return array, entry
    part = DTYPES[REAL_PART[entry.name]]
    parts = np.ascontiguousarray(array).view(np.dtype(part.storage)).reshape(*array.shape, 2)
    return parts, part


def bits_from_array(array: Array) -> NDArray[np.uint64]:
    """Raw bits of real elements of 1, 2, 4 or 8 bytes, zero-extended to 64."""
    unsigned = np.dtype(f"u{array.dtype.itemsize}")
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    bits: NDArray[np.uint64] = contiguous.view(unsigned).astype(np.uint64)
    return bits


def float64_from_array(array: Array, name: str | None = None) -> NDArray[np.float64]:
    """Real elements as float64: exact for all but 64-bit integers, which are rounded; bool gives 0 and 1."""
    entry = dtype_of(array, name)
    if entry.name == "bfloat16":
        shifted = array.view(np.uint16).astype(np.uint32) << np.uint32(16)
        array, entry = np.asarray(shifted).view(np.float32), DTYPES["float32"]
    if entry.name.startswith("float8"):
        decoded: NDArray[np.float64] = _FLOAT8[entry.name][array.view(np.uint8)]
        return decoded
    if entry.kind == "bool":
        flags: NDArray[np.float64] = (array.view(np.uint8) != 0).astype(np.float64)
        return flags
    with np.errstate(invalid="ignore"):  # a signalling NaN
        values: NDArray[np.float64] = array.view(np.dtype(entry.storage)).astype(np.float64)
    return values


def rounded_to(values: NDArray[np.float64], dtype: str) -> NDArray[np.float64]:
    """The nearest values of ``float16`` or ``bfloat16``, as float64; ties to even, by way of float32."""
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return np.asarray(values.astype(np.float16), np.float64)
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    kept = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return np.asarray(kept.astype(np.uint32).view(np.float32), np.float64)


def _float8_values(mantissa_bits: int, bias: int, suffix: str) -> NDArray[np.float64]:
    """The 256 values of an 8-bit format. `fn`: one NaN, no infinity; `fnuz`: NaN for -0; else as IEEE."""
    byte = np.arange(256)
    magnitude, sign = byte & 0x7F, np.where(byte & 0x80, -1.0, 1.0)
    exponent, mantissa = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    normal = np.ldexp(mantissa + float(1 << mantissa_bits), exponent - bias - mantissa_bits)
    values = sign * np.where(exponent > 0, normal, np.ldexp(mantissa.astype(float), 1 - bias - mantissa_bits))
    if suffix == "fnuz":
        values[0x80] = np.nan
    elif suffix == "fn":
        values[magnitude == 0x7F] = np.nan
    else:
        values[exponent == 31] = np.nan
        values[magnitude == 0x7C] = sign[magnitude == 0x7C] * np.inf
    return np.asarray(values, np.float64)


_FLOAT8 = {
    "float8_e4m3fn": _float8_values(3, 7, "fn"),
    "float8_e5m2": _float8_values(2, 15, ""),
    "float8_e4m3fnuz": _float8_values(3, 8, "fnuz"),
    "float8_e5m2fnuz": _float8_values(2, 16, "fnuz"),
}


def unit_roundoffs(names: list[str]) -> NDArray[np.float64]:
    """Unit roundoff of each dtype of a vocabulary; NaN for what is not real floating point. One more entry
    for code -1."""
    floating = ("float", "complex")
    known = [DTYPES[n].eps if n in DTYPES and DTYPES[n].kind in floating else np.nan for n in names]
    return np.array([*known, np.nan])
