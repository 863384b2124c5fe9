"""Freed memory stays with the process while a run is captured.

glibc hands the end of its heap back to the system whenever enough of it is free, and the next forward faults
it in again, page by page. How often that happens hangs on the order in which tensors are freed, which capture
cannot help but move: it cost more than all statistics together. See docs/decisions/0016.
"""

from __future__ import annotations

import ctypes
import os
import sys

KEPT = 2**30
"""bytes of free memory at the end of the heap that are not given back"""
LARGEST_IN_HEAP = 32 * 2**20
"""bytes of the largest block that lies in the heap: where glibc's own moving threshold ends"""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""of mallopt(3)"""
_CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
"""environment variables by which a person decides"""


def keep_freed_memory() -> bool:
    """Ask glibc to keep up to ``KEPT`` bytes; False where there is no glibc or a person has decided."""
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _CHOSEN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, LARGEST_IN_HEAP)) and bool(mallopt(_TRIM_THRESHOLD, KEPT))
