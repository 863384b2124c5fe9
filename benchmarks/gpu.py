"""Everything that only a GPU can say, in one command: needs torch, the triton it brings, and this repository.

    PYTHONPATH=src python benchmarks/gpu.py [--minutes 9] [--layers 16] [--output benchmarks/results/gpu.json]

Summaries of every dtype against the definitions; what the host takes to submit one; bandwidth of the kernel
on one 1 GB bf16 tensor beside the device's own copy; a 1B-parameter Llama in bf16 at sequence 4096: step
time, memory and the host's time to submit a step, with capture off and on. It prints each row as it is
measured, and writes what there is when the time is over.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import trueup
import trueup.store
from trueup.adapters.torch.device.parts import COUNTS, EXTREMES, Whole, summaries_from_parts
from trueup.adapters.torch.device.queue import Kernel, Operations, path_for
from trueup.adapters.torch.device.queue import Path as DevicePath
from trueup.adapters.torch.memory import where_is
from trueup.numerics._native import summarise_array
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.summary import HAS_DIGEST, HAS_SKETCH, HAS_STATISTICS

ALL = HAS_STATISTICS | HAS_DIGEST | HAS_SKETCH
EXACT = ("digest", *EXTREMES, *COUNTS)
SHAPES = ((1,), (1025,), (3, 9000), (40, 3), (7, 1, 130), (513, 257), (5, 64, 3, 33))
MODES: dict[str, dict[str, Any]] = {
    "L0": {"level": "L0"},
    "mix": {"level": "mix", "digest": False},
    "mix, digest and sketch": {"level": "mix", "sketch": True},
    "L0 with values": {"level": "L0", "task": "tensor"},
}


class Layer(nn.Module):
    """A Llama layer."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, 2 * inner, bias=False), nn.Linear(inner, hidden, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Attention, then the gated feed-forward block."""
        B, T, D = x_BTD.shape
        q, k, v = (
            self.qkv(self.norm1(x_BTD)).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.out(mixed.transpose(1, 2).reshape(B, T, D))
        gate, up = self.up(self.norm2(x_BTD)).chunk(2, dim=-1)
        return x_BTD + self.down(nn.functional.silu(gate) * up)


class Llama(nn.Module):
    """1.1B parameters at 16 layers."""

    def __init__(self, layers: int, hidden: int = 2048, vocabulary: int = 32000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(Layer(hidden, 16, 8192) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Logits."""
        x_BTD = self.embedding(ids_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return self.head(self.norm(x_BTD))


def summary_on(path: DevicePath, tensor: Tensor, dtype: str, want: int = ALL) -> np.void:
    """One tensor's summary."""
    pairs = 2 if tensor.is_complex() else 1
    num_parts = path.add(tensor, where_is(tensor), dtype, want, None)
    path.launch()
    whole = Whole(
        row=0, numel=tensor.numel(), num_real=tensor.numel() * pairs, want=want, num_parts=num_parts
    )
    row: np.void = summaries_from_parts(path.taken()().parts, [whole])[0]
    return row


def random_tensor(dtype: str, shape: tuple[int, ...], generator: np.random.Generator) -> Tensor:
    """Any bits, on the host."""
    size = int(np.prod(shape)) * DTYPES[dtype].itemsize
    raw = generator.integers(0, 2 if dtype == "bool" else 256, size, dtype=np.uint8)
    return torch.from_numpy(raw).view(getattr(torch, dtype)).reshape(shape)


def wrong_summaries(path: DevicePath, device: torch.device) -> list[str]:
    """Where a summary of the device differs from the one of the same values on the host."""
    wrong, generator = [], np.random.default_rng(0)
    for dtype in DTYPES:
        for shape in SHAPES:
            for transposed in (False, True):
                host = random_tensor(dtype, shape, generator)
                there = host.to(device)
                if transposed:
                    host, there = host.transpose(0, -1), there.transpose(0, -1)
                storage = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
                kind = host.dtype if host.is_complex() else storage[host.element_size()]
                array = (host if host.is_complex() else host.view(kind)).numpy()
                if DTYPES[dtype].storage.lstrip("<|") in ("f2", "f4", "f8") or not host.is_complex():
                    array = array.view(DTYPES[dtype].storage)
                expected, found = summarise_array(array, ALL, dtype), summary_on(path, there, dtype)
                bad = [n for n in EXACT if not np.array_equal(found[n], expected[n], equal_nan=True)]
                scale = float(np.nan_to_num(expected["l2_norm"]))
                if not np.allclose(found["l2_norm"], expected["l2_norm"], rtol=1e-6, equal_nan=True):
                    bad.append("l2_norm")
                if scale < 1e30 and not np.allclose(
                    found["sketch"], expected["sketch"], rtol=1e-5, atol=1e-6 * scale, equal_nan=True
                ):
                    bad.append("sketch")
                if bad:
                    wrong.append(f"{dtype} {shape}{' transposed' if transposed else ''}: {', '.join(bad)}")
    return wrong


def seconds_of(work: Callable[[], object], times: int = 10) -> float:
    """Median seconds on the device."""
    work()
    found = []
    for _ in range(times):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1000)
    return statistics.median(found)


def bandwidth(path: DevicePath, device: torch.device, num_bytes: int = 1 << 30) -> dict[str, float]:
    """Bytes a second of a copy on the device (read and written) and of the summaries (read); their memory."""
    tensor = torch.randn(num_bytes // 2 // 4096, 4096, device=device).bfloat16()
    target = torch.empty_like(tensor)
    copied = 2 * num_bytes / seconds_of(lambda: target.copy_(tensor))
    target.resize_(0)
    found = {"copy_bytes_a_second": copied}
    for name, want in (("statistics", HAS_STATISTICS), ("statistics_digest_sketch", ALL)):

        def work(want: int = want) -> None:
            path.add(tensor, where_is(tensor), "bfloat16", want, None)
            path.launch()

        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        read = num_bytes / seconds_of(work)
        path.taken()()
        found |= {
            f"{name}_bytes_a_second": read,
            f"{name}_share_of_copy": read / copied,
            f"{name}_extra_bytes": torch.cuda.max_memory_allocated() - before,
        }
    return found


def step_seconds(
    model: nn.Module, ids: Tensor, steps: int, mark: Callable[[], None] = lambda: None
) -> tuple[list[float], list[float]]:
    """Seconds of each training step, and until the host had submitted it; nothing in a step waits."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    found, submitted = [], []
    for _ in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mark()
        submitted.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return found, submitted


def host_microseconds(path: DevicePath, device: torch.device, times: int = 400) -> dict[str, float]:
    """What it takes the host to submit the summary of a small tensor, alone and as one of two in a launch."""
    tensors = [torch.randn(64, 64, device=device) for _ in range(2)]
    found = {}
    for name, group in (("alone", tensors[:1]), ("of_two", tensors)):
        for _ in range(2):  # the first compiles
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(times):
                for tensor in group:
                    path.add(tensor, where_is(tensor), "float32", ALL, None)
                path.launch()
            found[name] = 1e6 * (time.perf_counter() - start) / (times * len(group))
            path.taken()()
    return found


def profiled(work: Callable[[], object]) -> dict[str, Any]:
    """What the kernel took of the device."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
    kernels = [event for event in profile.key_averages() if event.key == "summarise"]
    return {
        "launches": sum(event.count for event in kernels),
        "kernel_seconds": sum(event.device_time_total for event in kernels) / 1e6,
    }


def trained(layers: int, mode: dict[str, Any] | None, steps: int, device: torch.device) -> dict[str, Any]:
    """Median step time after the first two, peak memory."""
    torch.manual_seed(0)
    model = Llama(layers).to(device, torch.bfloat16)
    ids = torch.randint(0, 32000, (1, 4096), device=device)
    torch.cuda.reset_peak_memory_stats()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if mode is None:
            seconds, submitted = step_seconds(model, ids, steps)
        else:
            with trueup.Tracer(Path(folder) / "run", steps="all", **mode):
                seconds, submitted = step_seconds(model, ids, steps)
                if mode.get("task") != "tensor":
                    found = profiled(lambda: step_seconds(model, ids, 1))
            held = trueup.store.Trace(Path(folder) / "run").read(steps - 1, 0).summaries
            sizes = [DTYPES[name].itemsize for name in held["dtype"].to_list()]
            found |= {"rows": held.height, "bytes": int(np.dot(sizes, held["numel"].to_numpy()))}
    return {
        **found,
        "step_seconds": statistics.median(seconds[2:] or seconds[1:]),
        "submitted_seconds": statistics.median(submitted[2:] or submitted[1:]),
        "steps": seconds,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "num_parameters": sum(p.numel() for p in model.parameters()),
    }


def rows_of(options: argparse.Namespace, add: Callable[[str, object], None]) -> None:
    """Measure one thing after another, until the time is over."""
    end, device = time.monotonic() + 60 * options.minutes, torch.device("cuda", 0)
    path = path_for(device)
    add("path", path.name)
    for name, one in (("kernel", path), ("operations", Operations(device))):
        if isinstance(one, Kernel) or name == "operations":
            add(f"wrong_summaries_{name}", wrong_summaries(one, device))
    add("host_microseconds_a_tensor", host_microseconds(path, device))
    add("bandwidth", bandwidth(path, device))
    off = trained(options.layers, None, 8, device)
    add("capture off", off)
    for name, mode in MODES.items():
        if time.monotonic() > end - 20:
            add(f"capture {name}", "left out: no time")
            continue
        steps = 2 if "values" in name else 6
        on = trained(options.layers, mode, steps, device)
        extra = on["peak_bytes"] - off["peak_bytes"]
        add(
            f"capture {name}",
            {
                **on,
                "ratio": on["step_seconds"] / off["step_seconds"],
                "extra_bytes": extra,
                "submit_microseconds_a_tensor": 1e6
                * (on["submitted_seconds"] - off["submitted_seconds"])
                / on["rows"],
            },
        )


def main() -> int:
    """Print and write all rows; 1 where a summary is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "gpu.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu.py: torch sees no GPU; expected: a machine with one", file=sys.stderr)
        return 2
    rows: dict[str, object] = {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }

    def add(name: str, value: object) -> None:
        rows[name] = value
        print(name, json.dumps(value), flush=True)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(rows, indent=1) + "\n")

    rows_of(options, add)
    return int(any(rows.get(f"wrong_summaries_{name}") for name in ("kernel", "operations")))


if __name__ == "__main__":
    sys.exit(main())
