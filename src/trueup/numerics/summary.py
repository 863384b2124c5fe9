"""Layout of one tensor's summary: the one structure the C kernel, torch fallback, store and comparison share.

A summary is taken over *logical* elements (row-major coordinates), for any strides. Counts cover every
element; ``minimum`` to ``smallest_nonzero`` cover the finite ones and are NaN where there is none.
"""

from __future__ import annotations

import numpy as np

SKETCH_SIZE = 64

SUMMARY_DTYPE = np.dtype(
    [
        ("numel", "<i8"),
        ("num_nan", "<i8"),
        ("num_posinf", "<i8"),
        ("num_neginf", "<i8"),
        ("num_zero", "<i8"),
        ("minimum", "<f8"),
        ("maximum", "<f8"),
        ("mean", "<f8"),
        ("l2_norm", "<f8"),
        ("smallest_nonzero", "<f8"),
        ("digest", "<u8"),
        ("crc32", "<u4"),
        ("flags", "<u4"),
        ("sketch", "<f4", (SKETCH_SIZE,)),
    ]
)
"""352 bytes, C layout without padding."""

NOT_FINITE = ("num_nan", "num_posinf", "num_neginf")
"""counts of what no statistic is taken of: a norm of 0 beside them is none of zeros"""

HAS_STATISTICS, HAS_DIGEST, HAS_SKETCH, HAS_CRC32 = 1, 2, 4, 8
"""Bits of ``flags``: which groups were computed; also what a caller asks the kernel for."""
