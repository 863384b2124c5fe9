"""Traces made by hand, of real numbers, through the store's own writer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueup.numerics._native import summarise_array
from trueup.numerics.summary import HAS_DIGEST, HAS_SKETCH, HAS_STATISTICS, SUMMARY_DTYPE
from trueup.store import RunWriter, StepColumns, Trace

EVERYTHING = HAS_STATISTICS | HAS_DIGEST | HAS_SKETCH


class Recorder:
    """Collects one step; ordinals count themselves."""

    def __init__(self, *, want: int = EVERYTHING) -> None:
        self.step = StepColumns()
        self.want = want
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._summaries: list[Any] = []
        self.values: dict[int, NDArray[Any]] = {}

    def call(
        self, kind: str, name: str, parent: int | None = None, type_: str | None = None, **more: Any
    ) -> int:
        """Add a call and return its number."""
        calls = self.step.calls
        key = (parent, kind, name, more.get("microbatch", 0))
        row = {"parent": parent, "kind": kind, "name": name, "type": type_, "ordinal": self._seen[key]}
        row |= {"microbatch": 0, "mode": "train", "opaque": False, "stack": None, "arguments": None}
        row |= {"global_ordinal": len(calls["name"]), **more}
        self._seen[key] += 1
        for column, value in row.items():
            calls[column].append(value)
        return len(calls["name"]) - 1

    def record(self, call: int, phase: str, slot: str, array: NDArray[Any] | None, **more: Any) -> None:
        """Add a tensor at a site; None: there is none, with a reason."""
        summary = None
        if array is not None:
            summary = len(self._summaries)
            self._summaries.append(summarise_array(array, self.want))
            self.step.add_kind(array.dtype.name, array.shape)
            self.values[summary] = array
        row = {"call": call, "phase": phase, "slot": slot, "microbatch": 0, "summary": summary}
        row |= {"requires_grad": None, "reason": None, **more}
        for column, value in row.items():
            self.step.records[column].append(value)

    def api(self, parent: int | None, name: str, *outputs: NDArray[Any], **more: Any) -> int:
        """An API call with its outputs."""
        call = self.call("api", name, parent, **more)
        for index, output in enumerate(outputs):
            self.record(call, "forward", f"output.{index}", output)
        return call

    def write(
        self, path: Path, *, step: int = 0, rank: int = 0, values: bool = False, **manifest: Any
    ) -> Trace:
        """Write the step of a rank into the trace at ``path``."""
        rows = np.zeros(len(self._summaries), SUMMARY_DTYPE)
        for index, summary in enumerate(self._summaries):
            rows[index] = summary
        self.step.summaries = rows
        writer = RunWriter(path, rank=rank)
        run = {"framework": "pytorch", "level": "mix", "task": "statistics", **manifest}
        writer.begin_run(None if rank else run)
        if values:
            chunks = writer.chunks(step)
            for row, array in self.values.items():
                data = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
                name = f"t{row}"
                chunk = chunks.write(name, array.dtype.name, array.shape, data)
                self.step.summary_tensor[row] = (chunk, name)
        writer.finish_step(step, self.step)
        return Trace(path)


def of_two_ranks(first: Recorder, path: Path, second: Recorder) -> None:
    """Write a step of each of two ranks into the trace at ``path``."""
    for rank, one in enumerate((first, second)):
        one.write(path, rank=rank, world_size=2)


Change = Callable[[str, NDArray[np.float32]], NDArray[Any]]


def unchanged(site: str, array: NDArray[np.float32]) -> NDArray[Any]:
    """The reference."""
    return array


def scaled(name: str, factor: float) -> Change:
    """Multiply the tensor at one site."""

    def change(site: str, array: NDArray[np.float32]) -> NDArray[Any]:
        return (array * np.float32(factor)).astype(np.float32) if site == name else array

    return change


def network(
    change: Change = unchanged,
    *,
    layers: int = 3,
    want: int = EVERYTHING,
    prefix: str = "",
    loss: bool = True,
    lone: str | None = None,
) -> Recorder:
    """A step of a small network, from weights to update. Nothing is propagated, so that where the ``loss`` is
    shown nothing comes of a change inside. ``lone``: one more parameter of this name."""
    out = Recorder(want=want)
    generator = np.random.default_rng(0)

    def draw(site: str, *shape: int) -> NDArray[Any]:
        drawn = np.asarray(generator.standard_normal(shape), np.float32)
        return np.asarray(change(site, drawn))

    parameters = {}
    for layer in range(layers):
        name = f"{prefix}layers.{layer}.weight"
        parameters[layer] = out.call("parameter", name)
        out.record(parameters[layer], "param", "value", draw(f"param.{layer}", 8, 8))
    if lone is not None:
        out.record(out.call("parameter", lone), "param", "value", np.ones((3, 8), np.float32))
    root = out.call("module", "", type_="Net") if not prefix else out.call("module", "", type_="Wrapper")
    inner = root if not prefix else out.call("module", prefix.rstrip("."), root, "Net")
    out.record(inner, "forward", "input.0", draw("input", 4, 8))
    modules = {}
    for layer in range(layers):
        modules[layer] = out.call("module", f"{prefix}layers.{layer}", inner, "Linear")
        out.record(modules[layer], "forward", "input.0", draw(f"in.{layer}", 4, 8))
        out.api(modules[layer], "torch.nn.functional.linear", draw(f"linear.{layer}", 4, 8))
        out.record(modules[layer], "forward", "output.0", draw(f"out.{layer}", 4, 8))
    out.record(inner, "forward", "output.0", draw("output", 4, 8))
    value = draw("loss")
    if loss:
        out.record(out.call("loss", "loss"), "loss", "value", value)
    for layer in reversed(range(layers)):
        out.record(modules[layer], "backward", "output.0", draw(f"gout.{layer}", 4, 8))
        out.record(modules[layer], "backward", "input.0", draw(f"gin.{layer}", 4, 8))
        out.record(parameters[layer], "param_grad", "accumulated", draw(f"grad.{layer}", 8, 8))
    for layer in range(layers):
        out.record(parameters[layer], "optimizer", "param", draw(f"new.{layer}", 8, 8))
    return out
