"""Time of the C kernel: microseconds a summary, nanoseconds an element of what training hands it, gigabytes a
second of a comparison; one thread, warm caches.

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


def time_of_training() -> None:
    """Tensors as attention makes them, and one too large for the caches: nanoseconds an element."""
    heads = values("float32", 4 * 128 * 768).reshape(4, 128, 768)
    half = heads[..., :256].reshape(4, 128, 8, 32).transpose(0, 2, 1, 3)[..., :16]
    masked = np.where(np.tri(128, dtype=bool), values("float32", 1 << 18).reshape(-1, 128, 128), -np.inf)
    arrays = {
        "a half of every head, read across": half,
        "keys, transposed": heads[..., 256:512].reshape(4, 128, 8, 32).transpose(0, 2, 3, 1),
        "scores, masked with -inf": masked.astype(np.float32),
        "logits, rows of 1000": values("float32", 512_000).reshape(512, 1000),
        "64 MB": values("float32", 1 << 24),
    }
    print(f"\n{'float32':>35}" + "".join(f"{title:>14}" for title in list(GROUPS)[:3]) + "   (ns an element)")
    out = np.zeros((), SUMMARY_DTYPE)
    for name, array in arrays.items():
        strides = tuple(stride // 4 for stride in array.strides)
        row = ""
        for want in list(GROUPS.values())[:3]:
            arguments = (
                array.ctypes.data,
                array.shape,
                strides,
                DTYPES["float32"].code,
                want,
                out.ctypes.data,
            )
            seconds = seconds_per_call(lambda a=arguments: kernels.summarise(*a), (1 << 20) // array.size + 1)
            row += f"{1e9 * seconds / array.size:14.3f}"
        print(f"{name:>35}{row}")


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
    time_of_training()
    buffer = values("float32", 131_072)
    address, nbytes = buffer.ctypes.data, buffer.nbytes
    print(f"\nprobe {1e9 * seconds_per_call(lambda: kernels.probe(address, nbytes), 1000):.0f} ns")
    for name in ("float32", "bfloat16", "float16", "float64"):
        time_comparison(name)


if __name__ == "__main__":
    main()
