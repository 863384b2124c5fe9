"""Time of the C kernel: microseconds a summary, gigabytes a second of a comparison; one thread, warm caches.

python benchmarks/kernel.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from trueup.numerics._native import AVAILABLE, kernels
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.pair import compare_pair
from trueup.numerics.summary import HAS_CRC32, HAS_DIGEST, HAS_SKETCH, HAS_STATISTICS, SUMMARY_DTYPE

SIZES = (16, 256, 4096, 131_072, 1 << 20)
GROUPS = {
    "statistics": HAS_STATISTICS,
    "+ digest": HAS_STATISTICS | HAS_DIGEST,
    "+ sketch": HAS_STATISTICS | HAS_DIGEST | HAS_SKETCH,
    "crc32": HAS_CRC32,
}


def seconds_per_call(call: Callable[[], object], repeats: int) -> float:
    """The best of several rounds: what the machine's other work adds is not the kernel's."""
    best = float("inf")
    for _ in range(15):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


def values(name: str, size: int) -> np.ndarray:  # type: ignore[type-arg]
    """Random normal values, held as the dtype is."""
    drawn = np.random.default_rng(0).standard_normal(size).astype(np.float32) * 3
    if name == "bfloat16":
        return (drawn.view(np.uint32) >> 16).astype(np.uint16)
    return drawn.astype(DTYPES[name].storage)


def aligned(array: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """A copy that starts at a cache line, as the memory of frameworks does and numpy's does not."""
    buffer = np.empty(array.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    copy = buffer[start : start + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


def time_summaries(name: str) -> None:
    """One line a size, one column a group of numbers."""
    print(f"\n{name:>10}" + "".join(f"{title:>14}" for title in GROUPS) + "   (us a call)")
    out = np.zeros((), SUMMARY_DTYPE)
    for size in SIZES:
        array = aligned(values(name, size))
        row = ""
        for want in GROUPS.values():
            arguments = (array.ctypes.data, (size,), None, DTYPES[name].code, want, out.ctypes.data)
            seconds = seconds_per_call(lambda a=arguments: kernels.summarise(*a), 200_000 // size + 1)
            row += f"{1e6 * seconds:14.2f}"
        print(f"{size:>10}{row}")


def time_comparison(name: str) -> None:
    """Bytes of one of the two tensors a second."""
    expected = values(name, 1 << 22)
    actual = np.roll(expected, 1)
    seconds = seconds_per_call(lambda: compare_pair(actual, expected, name, name, rtol=1e-3), 1)
    print(f"compare_pair {name:>10} {expected.nbytes / seconds / 1e9:6.2f} GB/s")


def main() -> None:
    if not AVAILABLE:
        raise SystemExit("the C kernel is not built: pip install -e .")
    print(f"AVX-512: {bool(kernels.HAS_AVX512)}")
    for name in ("float32", "bfloat16", "float16", "float64"):
        time_summaries(name)
    buffer = values("float32", 131_072)
    address, nbytes = buffer.ctypes.data, buffer.nbytes
    print(f"\nprobe {1e9 * seconds_per_call(lambda: kernels.probe(address, nbytes), 1000):.0f} ns")
    for name in ("float32", "bfloat16", "float16", "float64"):
        time_comparison(name)


if __name__ == "__main__":
    main()
