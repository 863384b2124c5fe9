"""Numpy archives: what reading a damaged one raises."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib

NPZ_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    tokenize.TokenError,  # of the head of an array, which numpy parses as Python
    NotImplementedError,  # a compression that only the file claims
    RuntimeError,  # a password that only the file claims
    MemoryError,
    OverflowError,
)
