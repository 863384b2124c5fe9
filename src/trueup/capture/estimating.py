"""What a capture will cost, before it is made.

The program's first steps are captured with their values counted and not written, two more run without
capture, and the program is ended. A model on the meta device is counted as one on an accelerator would be, a
row a tensor; nothing is known of its time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trueup.capture.launch import environment_from_options
from trueup.capture.launch.command import check_command
from trueup.capture.launch.process import run_command
from trueup.capture.options import CaptureOptions, Level, StepSet
from trueup.errors import ConfigError
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.summary import SKETCH_SIZE, SUMMARY_DTYPE
from trueup.store.layout import MANIFEST, rank_dir, scalars_file
from trueup.store.reader import StepTables, Trace
from trueup.store.tensors import WAITING_BYTES, file_bytes

if TYPE_CHECKING:
    import polars as pl

_CAPTURED, _LAST = 2, 3
"""steps that are captured, and the last one that is run"""
_PROBE_BYTES = 1 << 27
_ROWS_IN_MEMORY = 3
"""a step's rows and cells are held as collected, as columns, and as what is being written"""
_CELL_BYTES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """One step of one rank. ``memory_bytes``: of the host, at most."""

    num_records: int
    num_tensors: int
    table_bytes: int
    value_bytes: int
    smaller: dict[tuple[str, ...], int]
    """bytes of values under other options"""
    memory_bytes: int

    @property
    def num_bytes(self) -> int:
        """On disk."""
        return self.table_bytes + self.value_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A smaller capture: options to add, and bytes of the whole trace."""

    words: tuple[str, ...]
    num_bytes: int


_STATISTICS = "statistics alone, without --preset and --task"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Of a whole capture; by rank, the first captured step and any later one."""

    options: CaptureOptions
    first: dict[int, StepCost]
    later: dict[int, StepCost]
    fixed_bytes: int
    seconds_off: float | None
    """a step without capture, and with it, values not counted; None where it is not known"""
    seconds_on: float | None
    disk_bytes_a_second: float
    free_bytes: int

    @property
    def num_steps(self) -> int | None:
        """Steps that are captured; None without end."""
        ranges = self.options.steps.ranges
        return None if ranges is None else sum(last - first + 1 for first, last in ranges)

    @property
    def num_bytes(self) -> int:
        """On disk, of all ranks and steps; where there is no end, of the first step and one more."""
        return self._bytes_of(())

    @property
    def write_seconds(self) -> float:
        """That a later step's values take to be written, of all ranks on one disk."""
        return sum(cost.value_bytes for cost in self.later.values()) / self.disk_bytes_a_second

    @property
    def room_bytes(self) -> int:
        """What there is: ``--max-bytes``, or what is free on the disk."""
        return self.free_bytes if self.options.max_bytes is None else self.options.max_bytes

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Smaller captures, what loses least first: fewer steps or ranks, then fewer values, then both."""
        ranges = self.options.steps.ranges or ((0, 0),)
        one_step = () if self.num_steps == 1 else (f"--steps {ranges[0][0]}",)
        found = [Choice(words=one_step, num_bytes=self._bytes_of((), 1))]
        if len(self.first) > 1:
            share = (self.num_bytes - self.fixed_bytes) // len(self.first) + self.fixed_bytes
            found.append(Choice(words=("--sample-ranks 1",), num_bytes=share))
        for words in next(iter(self.first.values())).smaller:
            found.append(Choice(words=words, num_bytes=self._bytes_of(words)))
            if len(words) > 1 and one_step:
                found.append(Choice(words=(*one_step, *words), num_bytes=self._bytes_of(words, 1)))
        return tuple(one for one in found if one.words and one.num_bytes < self.num_bytes)

    @property
    def advice(self) -> Choice | None:
        """The first of the smaller captures that fits; None where the one asked for does, or none fits."""
        if self.num_bytes <= self.room_bytes:
            return None
        return next((choice for choice in self.choices if choice.num_bytes <= self.room_bytes), None)

    def _bytes_of(self, words: tuple[str, ...], steps: int | None = None) -> int:
        def in_one(costs: dict[int, StepCost]) -> int:
            return sum(
                cost.table_bytes + cost.smaller.get(words, cost.value_bytes) for cost in costs.values()
            )

        later = (steps or self.num_steps or 2) - 1
        return self.fixed_bytes + in_one(self.first) + later * in_one(self.later)


def estimate(options: CaptureOptions, command: Sequence[str]) -> Estimate:
    """Run the first steps of ``command`` and say what ``options`` will cost; leaves nothing behind.

    Raises:
        ConfigError: the command cannot be run, or no step of it was captured.
    """
    program = check_command(command)
    beside = next(
        path for path in (options.output.absolute(), *options.output.absolute().parents) if path.is_dir()
    )
    with tempfile.TemporaryDirectory(prefix=".trueup-estimate-", dir=beside) as folder:
        output = Path(folder) / "run"
        tried = replace(
            options, output=output, estimate=True, steps=StepSet(((0, _CAPTURED - 1),)), max_bytes=None
        )
        environment = environment_from_options(tried, base=os.environ)
        status = run_command(
            command, program=program, environment=environment, enough=partial(_enough, output)
        )
        if not (output / MANIFEST).exists() or not Trace(output).steps():
            raise ConfigError(
                f"no step was captured (the program ended with exit status {status}); "
                "expected: a program that trains a step. trueup capture without --estimate says more"
            )
        return _read(
            Trace(output), options, rate=_disk_rate(Path(folder)), free=shutil.disk_usage(beside).free
        )


def _enough(output: Path) -> bool:
    """Whether every rank is through its last step."""
    try:
        world_size = int(json.loads((output / MANIFEST).read_text(encoding="utf-8"))["world_size"])
        lines = [scalars_file(output, rank).read_text(encoding="utf-8") for rank in range(world_size)]
    except (OSError, ValueError, KeyError):
        return False
    return all(text.count("\n") > _LAST for text in lines)


def _disk_rate(folder: Path) -> float:
    """Bytes a second of one large file, until it is on the disk."""
    block, path = os.urandom(1 << 22), folder / "probe"
    start = time.monotonic()
    with path.open("wb") as file:
        for _ in range(_PROBE_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.monotonic() - start
    path.unlink()
    return _PROBE_BYTES / seconds


# -- from what the program left ------------------------------------------


def _read(trace: Trace, options: CaptureOptions, *, rate: float, free: int) -> Estimate:
    steps = trace.steps()
    ranks = steps[min(steps)]
    first = {rank: _cost(trace, min(steps), rank, options) for rank in ranks}
    later = {rank: _cost(trace, max(steps), rank, options) for rank in ranks}
    fixed = sum(p.stat().st_size for p in trace.path.rglob("*.json*") if p.is_file())
    seconds_off, seconds_on = _seconds(trace, ranks[0])
    return Estimate(
        options=options,
        first=first,
        later=later,
        fixed_bytes=fixed,
        seconds_off=seconds_off,
        seconds_on=seconds_on,
        disk_bytes_a_second=rate,
        free_bytes=free,
    )


def _seconds(trace: Trace, rank: int) -> tuple[float | None, float | None]:
    """Between the ends of steps: one without capture, and one with it."""
    ends = {line["step"]: line["time"] for line in trace.scalars(rank)}

    def between(step: int) -> float | None:
        return ends[step] - ends[step - 1] if step in ends and step - 1 in ends else None

    return between(_LAST), between(_CAPTURED - 1)


def _cost(trace: Trace, step: int, rank: int, options: CaptureOptions) -> StepCost:
    tables = trace.read(step, rank)
    stored = _stored(tables)
    folder = rank_dir(trace.path, step, rank)
    on_meta = int((tables.summaries["device"].cast(str) == "meta").sum())
    row_bytes = SUMMARY_DTYPE.itemsize - (0 if options.sketch else 4 * SKETCH_SIZE)
    num_cells = sum(len(table.columns) * len(table) for table in (tables.records, tables.calls))
    sizes: list[int] = stored["bytes"].to_list()
    waiting = min(sum(sizes), max([WAITING_BYTES, *sizes]))
    rows = SUMMARY_DTYPE.itemsize * len(tables.summaries) + _CELL_BYTES * num_cells
    return StepCost(
        num_records=len(tables.records),
        num_tensors=len(tables.summaries),
        table_bytes=sum(p.stat().st_size for p in folder.glob("*.parquet")) + row_bytes * on_meta,
        value_bytes=_on_disk(stored),
        smaller=dict(_smaller(tables, stored, options)),
        memory_bytes=_ROWS_IN_MEMORY * rows + waiting,
    )


def _stored(tables: StepTables) -> pl.DataFrame:
    """Rows with values, and the bytes of each."""
    import polars as pl

    sizes = {name: spec.itemsize for name, spec in DTYPES.items()}
    size = pl.col("dtype").cast(str).replace_strict(sizes, default=1, return_dtype=pl.Int64)
    numel = pl.col("shape").list.eval(pl.element().product()).list.first().fill_null(1)
    return tables.summaries.filter(pl.col("chunk").is_not_null()).with_columns(bytes=numel * size)


def _on_disk(stored: pl.DataFrame) -> int:
    rows = stored.select("tensor", "shape", "bytes").rows()
    return file_bytes((name, len(shape), num_bytes) for name, shape, num_bytes in rows)


# -- smaller captures ------------------------------------------


def _smaller(
    tables: StepTables, stored: pl.DataFrame, options: CaptureOptions
) -> Iterator[tuple[tuple[str, ...], int]]:
    """How each is asked for, and the bytes of the values that are left."""
    import polars as pl

    if not len(stored):
        return
    calls = tables.calls.select("call", pl.col("kind", "name").cast(str))
    records = tables.records.select("call", "summary", pl.col("phase").cast(str)).join(
        calls, on="call", how="left"
    )

    def left(*kept: pl.Expr) -> int:
        rows = records.filter(pl.all_horizontal(*kept).fill_null(False)).select("summary").unique()
        return _on_disk(stored.join(rows, on="summary", how="semi"))

    phase = pl.col("phase")
    filters = {
        "--no-gradients": phase != "param_grad",
        "--no-backward": phase != "backward",
        "--no-optimizer": phase != "optimizer",
    }
    if options.level is not Level.L0:
        filters["--level L0"] = pl.col("kind") != "api"
    half = None
    if options.scope is None and not options.names:
        half = _half(calls.filter(pl.col("kind") == "module")["name"].to_list())
    if half is not None:
        words, pattern, last = half
        number = pl.col("name").str.extract(pattern, 1).cast(pl.Int64)
        filters[words] = phase.is_in(["param", "loss"]) | (number <= last)
    for words, kept in filters.items():
        yield (words,), left(kept)
    smallest = list(filters)[-2:] if half is None else ["--no-optimizer", list(filters)[-1]]
    yield tuple(smallest), left(*(filters[one] for one in smallest))
    yield (_STATISTICS,), 0


def _half(names: list[str]) -> tuple[str, str, int] | None:
    """The first half of the longest list of layers: its option, how layers are numbered, its last number."""
    lists: dict[str, set[int]] = {}
    for name in names:
        found = re.match(r"(.*?)(?:^|\.)(\d+)(?:\.|$)", name or "")
        if found is not None:
            lists.setdefault(found[1], set()).add(int(found[2]))
    if not lists:
        return None
    prefix = max(lists, key=lambda one: len(lists[one]))
    numbers = sorted(lists[prefix])
    if len(numbers) < 2:
        return None
    middle = numbers[(len(numbers) - 1) // 2]
    dotted = f"{prefix}." if prefix else ""
    return f"--scope {dotted}{numbers[0]} {dotted}{middle}", rf"^{re.escape(dotted)}(\d+)(?:\.|$)", middle
