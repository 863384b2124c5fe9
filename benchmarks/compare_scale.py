"""How long comparing two large traces takes, from process start, and how much memory: ``python
benchmarks/compare_scale.py``.

Writes two synthetic traces (a deep transformer at level mix, forward and backward, optimizer) through the
store's own writer, the second with rounding-sized differences and some calls spelled otherwise, then runs the
comparison in a new process.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from trueup.numerics.summary import HAS_DIGEST, HAS_SKETCH, HAS_STATISTICS, SUMMARY_DTYPE
from trueup.store import RunWriter, StepColumns

_OPS = (
    "linear",
    "Tensor.view",
    "Tensor.transpose",
    "matmul",
    "Tensor.__mul__",
    "softmax",
    "dropout",
    "matmul",
    "Tensor.__add__",
)


def columns(num_calls: int, *, perturb: float, respelled: bool, seed: int = 0) -> StepColumns:
    """One step with about ``num_calls`` calls and three records a call."""
    step = StepColumns()
    calls, records = step.calls, step.records
    shapes: list[tuple[int, ...]] = []

    def call(parent: int | None, kind: str, name: str, type_: str | None, ordinal: int) -> int:
        number = len(calls["name"])
        row = {
            "parent": parent,
            "kind": kind,
            "name": name,
            "type": type_,
            "ordinal": ordinal,
            "microbatch": 0,
        }
        row |= {"mode": "train", "opaque": False, "stack": None, "arguments": None, "global_ordinal": number}
        for column, value in row.items():
            calls[column].append(value)
        return number

    def record(number: int, phase: str, slot: str, shape: tuple[int, ...]) -> None:
        row = {"call": number, "phase": phase, "slot": slot, "microbatch": 0, "summary": len(shapes)}
        row |= {"requires_grad": True, "reason": None}
        for column, value in row.items():
            records[column].append(value)
        shapes.append(shape)

    num_layers = max(num_calls // 46, 1)
    parameters = {}
    for layer in range(num_layers):
        for part in ("attn", "mlp"):
            fqn = f"layers.{layer}.{part}.proj.weight"
            parameters[fqn] = call(None, "parameter", fqn, None, 0)
            record(parameters[fqn], "param", "value", (64, 64))
    root = call(None, "module", "", "GPT", 0)
    record(root, "forward", "input.0", (4, 128))
    backward = []
    for layer in range(num_layers):
        block = call(root, "module", f"layers.{layer}", "Block", 0)
        record(block, "forward", "input.0", (4, 128, 64))
        for part in ("attn", "mlp"):
            module = call(block, "module", f"layers.{layer}.{part}", part.title(), 0)
            record(module, "forward", "input.0", (4, 128, 64))
            seen: dict[str, int] = {}
            for turn in range(21):
                op = _OPS[turn % len(_OPS)]
                if respelled and op == "Tensor.__add__" and layer % 7 == 3:
                    op = "add"
                if respelled and turn == 5 and layer % 11 == 5:
                    extra = call(module, "api", "torch.Tensor.contiguous", None, 0)
                    record(extra, "forward", "output.0", (4, 128, 64))
                number = call(module, "api", f"torch.{op}", None, seen.get(op, 0))
                seen[op] = seen.get(op, 0) + 1
                record(number, "forward", "input.0", (4, 128, 64))
                record(number, "forward", "output.0", (4, 128, 64))
                backward.append(number)
            record(module, "forward", "output.0", (4, 128, 64))
        record(block, "forward", "output.0", (4, 128, 64))
    record(root, "forward", "output.0", (4, 128, 1000))
    for number in reversed(backward):
        record(number, "backward", "output.0", (4, 128, 64))
    for number in parameters.values():
        record(number, "param_grad", "accumulated", (64, 64))
    for number in parameters.values():
        record(number, "optimizer", "param", (64, 64))
    step.summaries = _summaries(shapes, perturb, seed)
    for shape in shapes:
        step.add_kind("float32", shape)
    return step


def _summaries(shapes: list[tuple[int, ...]], perturb: float, seed: int) -> np.ndarray:
    num = len(shapes)
    generator, noise = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    rows = np.zeros(num, SUMMARY_DTYPE)
    rows["numel"] = [int(np.prod(s)) for s in shapes]
    rows["l2_norm"] = np.sqrt(rows["numel"])
    rows["minimum"], rows["maximum"], rows["smallest_nonzero"] = -4.0, 4.0, 1e-6
    rows["mean"] = generator.standard_normal(num) * 1e-3
    rows["sketch"] = generator.standard_normal((num, 64)) * rows["l2_norm"][:, None]
    rows["digest"] = generator.integers(0, 2**63, num)
    rows["flags"] = HAS_STATISTICS | HAS_DIGEST | HAS_SKETCH
    if perturb:
        rows["digest"] += np.arange(num, dtype=np.uint64) % np.uint64(2)
        rows["sketch"] += noise.standard_normal((num, 64)) * rows["l2_norm"][:, None] * perturb
        rows["l2_norm"] *= 1 + perturb * 1e-2
    return rows


def write_trace(path: Path, num_calls: int, *, perturb: float = 0.0, respelled: bool = False) -> int:
    """Write a synthetic one-step trace and return its number of records."""
    step = columns(num_calls, perturb=perturb, respelled=respelled)
    writer = RunWriter(path, rank=0)
    writer.begin_run({"framework": "pytorch", "level": "mix", "task": "statistics", "world_size": 1})
    writer.write_rank({"rank": 0})
    writer.finish_step(0, step)
    return len(step.records["call"])


def main() -> None:
    """Print seconds and peak memory of one comparison in a fresh process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=56_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        num_records = write_trace(root / "reference", arguments.calls)
        write_trace(root / "target", arguments.calls, perturb=1e-7, respelled=True)
        program = (
            "from pathlib import Path; from trueup.comparing.run import compare; from "
            "trueup.comparing.options import "
            f"CompareOptions as O; c = compare(Path({str(root / 'target')!r}), "
            f"Path({str(root / 'reference')!r}), "
            f"output=Path({str(root / 'out')!r}), options=O()); print(c.summary['verdict']['headline'])"
        )
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True)
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"{arguments.calls} calls, {num_records} records a side: {seconds:.2f} s, peak {peak:.0f} MiB")


if __name__ == "__main__":
    main()
