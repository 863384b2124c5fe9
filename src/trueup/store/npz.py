"""Numpy's files: what reading a damaged one raises."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib

HEADER_ERRORS = (
    EOFError,
    ValueError,
    SyntaxError,
    TypeError,
    OverflowError,
    RecursionError,
    tokenize.TokenError,
)
"""of the head of an array, which numpy parses as Python"""
NPZ_ERRORS = (
    *HEADER_ERRORS,
    OSError,
    KeyError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,  # a compression that only the file claims
    RuntimeError,  # a password that only the file claims
    MemoryError,
)
"""of an archive of arrays"""
