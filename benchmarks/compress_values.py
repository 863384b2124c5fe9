"""Whether compressing stored values pays: what zstd makes of those of a real capture, bytes shuffled and not.

    PYTHONPATH=src:. python benchmarks/compress_values.py [TRACE]

Without TRACE the small GPT is trained in bfloat16 and captured. Of each kind of tensor: how many times
smaller it gets, and megabytes a second of one core. A quicker disk than that writes a step sooner as it is.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import torch
from bugzoo.models.gpt import GPT, GPTConfig, batch, loss_of

import trueup
from trueup.numerics.dtypes import DTYPES
from trueup.store import Trace
from trueup.types.arrays import Bytes

MODEL = GPTConfig(vocab_size=4096, num_layers=4, hidden_size=256, num_heads=4, seq_length=128, dropout=0.0)


def trained(folder: Path) -> Path:
    """A capture of a bfloat16 model after a few steps."""
    torch.manual_seed(0)
    model = GPT(MODEL).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with trueup.Tracer(folder, level="L0", task="tensor", steps="4"):
        for step in range(5):
            inputs, labels = batch(MODEL, step=step, size=4)
            optimizer.zero_grad()
            loss_of(model, inputs, labels).backward()
            optimizer.step()
    return folder


def kinds_of(trace: Trace) -> dict[str, list[tuple[Bytes, int]]]:
    """Phase and dtype -> the bytes of each stored tensor, with its item size."""
    step = max(trace.steps())
    tables = trace.read(step, 0)
    stored = tables.summaries.filter(pl.col("chunk").is_not_null())
    phases = dict(tables.records.select("summary", pl.col("phase").cast(str)).iter_rows())
    found: dict[str, list[tuple[Bytes, int]]] = defaultdict(list)
    for row in stored.to_dicts():
        tensor = trace.tensor(step, 0, row)
        if tensor is not None and len(tensor.data):
            item = DTYPES[tensor.dtype].itemsize
            found[f"{phases[row['summary']]} {tensor.dtype}"].append((np.array(tensor.data), item))
    return found


def measured(tensors: list[tuple[Bytes, int]], *, shuffled: bool) -> dict[str, float]:
    """Ratio and speed of zstd at level 1."""
    codec = pa.Codec("zstd", 1)
    start, before, after = time.perf_counter(), 0, 0
    for data, item in tensors:
        laid = np.ascontiguousarray(data.reshape(-1, item).T) if shuffled else data
        before += data.nbytes
        after += len(codec.compress(laid.tobytes()))
    return {"ratio": before / after, "megabytes_a_second": before / (time.perf_counter() - start) / 1e6}


def main() -> None:
    """Measure and write what was found."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[1]) if len(sys.argv) > 1 else trained(Path(folder) / "run")
        rows = {}
        kinds = kinds_of(Trace(path))
        large = {kind: held for kind, held in kinds.items() if sum(data.nbytes for data, _ in held) > 1e6}
        for kind, tensors in sorted(large.items()):
            rows[kind] = {
                "megabytes": sum(data.nbytes for data, _ in tensors) / 1e6,
                "plain": measured(tensors, shuffled=False),
                "shuffled": measured(tensors, shuffled=True),
            }
            print(kind, json.dumps(rows[kind]))
    out = Path(__file__).parent / "results" / "compress_values.json"
    out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
