"""What matrix products of a GPU round to beyond their dtypes, by the settings that both runs recorded.

- TF32: products of float32 read operands with 10 bits of mantissa, roundoff 2^-11. From the first such
  product on, both runs carry that: u is at least 2^-11. What comes before it keeps float32's.
- Reduced-precision reductions: a product whose sum is divided over several blocks may keep the blocks' sums
  in bfloat16 or float16. Then v, the roundoff of the accumulator, is that of the dtype: u.

Where one run alone allows either, nothing widens: that run computes what the other does not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from trueup.comparing.rows import Half, StepRows
from trueup.comparing.thresholds import TF32
from trueup.types.arrays import Bools, Floats
from trueup.types.trace import Manifest

_PRODUCT = re.compile(r"linear|matmul|(^|\.)b?mm$|addmm|einsum|conv\d|attention|dense", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProducts:
    """For each row."""

    roundoff: Floats
    """at least this is shared; 0 where the dtypes tell all"""
    partial: Bools
    """sums may be kept in the dtype itself"""


def device_products(rows: StepRows, target: Manifest, reference: Manifest) -> DeviceProducts | None:
    """None where neither run allows any of it, or only one does."""
    both = (target, reference)
    tf32 = all(one.get("allow_tf32") for one in both)
    bfloat16 = all(one.get("allow_bf16_reduced_precision_reduction") for one in both)
    float16 = all(one.get("allow_fp16_reduced_precision_reduction") for one in both)
    if not (tf32 or bfloat16 or float16):
        return None
    there = rows.paired & _on_gpu(rows.target) & _on_gpu(rows.reference)
    words = rows.match.words
    of_name = np.array([bool(_PRODUCT.search(word or "")) for word in words.name] + [False])
    of_type = np.array([bool(_PRODUCT.search(word or "")) for word in words.type] + [False])
    multiplied = of_name[rows.of_call("name")] | of_type[rows.of_call("type")]
    made = rows.phase_is("forward", "backward") & ~(rows.phase_is("forward") & rows.slot_starts("input"))
    products = there & made & multiplied & _has_dtype(rows, "float32")
    roundoff = np.where(np.logical_or.accumulate(products), TF32, 0.0) if tf32 else np.zeros(len(rows))
    partial = np.zeros(len(rows), bool)
    for allowed, dtype in ((bfloat16, "bfloat16"), (float16, "float16")):
        partial |= there & _has_dtype(rows, dtype) & allowed
    return DeviceProducts(roundoff=roundoff, partial=partial)


def _on_gpu(half: Half) -> Bools:
    return np.asarray(half.column("device").cast(str).str.starts_with("cuda").fill_null(False).to_numpy())


def _has_dtype(rows: StepRows, dtype: str) -> Bools:
    words = rows.match.words.dtype
    code = words.index(dtype) if dtype in words else -2
    return np.asarray((rows.target.dtype == code) & (rows.reference.dtype == code))
