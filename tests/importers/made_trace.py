"""A trace as capture writes it, made by hand: root, two blocks, API calls, a tied head, gradients, values."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from trueup.numerics.summary import HAS_CRC32, HAS_STATISTICS, SUMMARY_DTYPE
from trueup.store import RunWriter, StepColumns


class TraceMaker:
    """Collects calls and tensors of one step, then writes them."""

    def __init__(self, *, crc32: bool = True, values: bool = False) -> None:
        self._columns = StepColumns()
        self._rows: list[Any] = []
        self._stored: list[np.ndarray[Any, Any]] = []
        self._crc32 = crc32
        self._values = values
        self._counts: dict[str, int] = {}

    def call(
        self, kind: str, name: str, parent: int | None = None, *, type: str | None = None, **changed: Any
    ) -> int:
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        row = {
            "parent": parent, "kind": kind, "name": name, "type": type, "ordinal": 0, "microbatch": 0,
            "mode": "train", "opaque": False, "stack": 0, "arguments": None, "global_ordinal": number,
        }  # fmt: skip
        for column, value in (row | changed).items():
            self._columns.calls[column].append(value)
        return len(self._columns.calls["name"]) - 1

    def tensor(
        self, call: int, phase: str, slot: str, value: np.ndarray[Any, Any], dtype: str = "float32"
    ) -> None:
        """``value`` is float32, or the uint16 words of bfloat16."""
        row = np.zeros((), SUMMARY_DTYPE)
        wide = (value.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else value
        wide = wide.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        row["numel"], row["flags"] = wide.size, HAS_STATISTICS | (HAS_CRC32 if self._crc32 else 0)
        row["num_nan"] = np.isnan(wide).sum()
        row["num_posinf"], row["num_neginf"] = (wide == np.inf).sum(), (wide == -np.inf).sum()
        row["minimum"], row["maximum"] = (finite.min(), finite.max()) if finite.size else (np.nan, np.nan)
        row["mean"] = finite.mean() if finite.size else np.nan
        row["l2_norm"] = np.sqrt((finite**2).sum())
        row["crc32"] = zlib.crc32(np.ascontiguousarray(value).tobytes())
        number = len(self._rows)
        self._rows.append(row)
        self._stored.append(np.ascontiguousarray(value))
        self._columns.add_kind(dtype, value.shape)
        record = (call, phase, slot, 0, number, phase == "forward", None)
        for column, cell in zip(self._columns.records, record, strict=True):
            self._columns.records[column].append(cell)

    def write(self, root: Path, *, step: int = 0, rank: int = 0, world_size: int = 1, **facts: Any) -> Path:
        writer = RunWriter(root, rank=rank)
        manifest = {"framework": "pytorch", "level": "mix", "world_size": world_size}
        writer.begin_run(manifest | {"task": "tensor" if self._values else "statistics"})
        writer.write_rank({"rank": rank, "pid": 4711} | facts)
        self._columns.summaries = np.array(self._rows, SUMMARY_DTYPE)
        self._columns.stacks[0] = ["train.py:7 main | loss = model(x)"]
        if self._values:
            chunks = writer.chunks(step)
            for number, value in enumerate(self._stored):
                dtype = self._columns.kinds[number][0]
                data = memoryview(value.reshape(-1).view(np.uint8))
                key = f"t{number}"
                self._columns.summary_tensor[number] = (chunks.write(key, dtype, value.shape, data), key)
        writer.finish_step(step, self._columns)
        return root


def small_model(
    root: Path,
    *,
    scale: float = 1.0,
    crc32: bool = True,
    values: bool = False,
    **options: Any,
) -> Path:
    """Root, embedding, one block with an API call, a tied head; forward, backward, loss, optimizer."""
    random = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray[Any, Any]:
        return random.standard_normal(shape, dtype=np.float32)

    made = TraceMaker(crc32=crc32, values=values)
    weight = made.call("parameter", "emb.weight", stack=None)
    made.tensor(weight, "param", "value", draw(10, 4))
    root_call = made.call("module", "", type="Net")
    made.tensor(root_call, "forward", "input.0", np.abs(draw(2, 3)))
    emb = made.call("module", "emb", root_call, type="Embedding")
    made.tensor(emb, "forward", "input.0", np.abs(draw(2, 3)))
    made.tensor(emb, "forward", "output.0", draw(2, 3, 4))
    block = made.call(
        "module", "block", root_call, type="Block", arguments=json.dumps({"input.causal": True})
    )
    made.tensor(block, "forward", "input.hidden_states", draw(2, 3, 4))
    add = made.call("api", "torch.Tensor.__add__", block, arguments=json.dumps({"input.1": 2}))
    made.tensor(add, "forward", "input.0", draw(2, 3, 4))
    made.tensor(add, "forward", "output.0", scale * draw(2, 3, 4))
    made.tensor(block, "forward", "output.hidden", scale * draw(2, 3, 4))
    made.tensor(block, "forward", "output.aux.0", np.full((2, 3), 0x3F80, np.uint16), "bfloat16")
    head = made.call("module", "head", root_call, type="Linear")
    made.tensor(head, "forward", "input.0", draw(2, 3, 4))
    logits = draw(2, 3, 10)
    logits[0, 0, 0] = -np.inf
    made.tensor(head, "forward", "output.0", logits)
    made.tensor(root_call, "forward", "output.logits", logits)
    loss = made.call("loss", "loss")
    made.tensor(loss, "loss", "value", np.float32(2.5).reshape(()))
    made.tensor(head, "backward", "output.0", draw(2, 3, 10))
    made.tensor(head, "backward", "input.0", draw(2, 3, 4))
    made.tensor(block, "backward", "output.hidden", draw(2, 3, 4))
    made.tensor(block, "backward", "input.hidden_states", draw(2, 3, 4))
    made.tensor(emb, "backward", "output.0", draw(2, 3, 4))
    made.tensor(weight, "param_grad", "local", draw(10, 4))
    made.tensor(weight, "param_grad", "accumulated", draw(10, 4))
    made.tensor(weight, "param_grad", "clipped", draw(10, 4))
    made.tensor(weight, "optimizer", "param", draw(10, 4))
    plain = {"shape": [10, 4], "dtype": "float32", "requires_grad": True}
    parameters = [
        {"fqn": "emb.weight", "tied_to": None, **plain},
        {"fqn": "head.weight", "tied_to": "emb.weight", **plain},
    ]
    return made.write(root, parameters=parameters, **options)
