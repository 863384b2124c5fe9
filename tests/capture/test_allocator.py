"""Freed memory that is kept: fewer page faults, and a person's own choice stands."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trueup.capture.allocator import keep_freed_memory

FAULTS = """
import ctypes, resource, sys
from trueup.capture.allocator import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def forward_and_backward():
    blocks = [libc.malloc(2**22) for _ in range(40)]
    for block in blocks:
        ctypes.memset(block, 1, 2**22)
    for block in reversed(blocks):
        libc.free(block)
for _ in range(2):
    forward_and_backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
forward_and_backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's own ways")


def faults(way: str) -> int:
    """Page faults of a third round of 160 MB."""
    said = subprocess.run([sys.executable, "-c", FAULTS, way], capture_output=True, text=True, check=True)
    return int(said.stdout)


def test_memory_that_is_kept_is_not_faulted_in_again() -> None:
    given_back, kept = faults("as it is"), faults("kept")
    assert given_back > 10_000
    assert kept < 100


def test_a_person_s_choice_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    monkeypatch.setattr("ctypes.CDLL", pytest.fail)
    assert not keep_freed_memory()
