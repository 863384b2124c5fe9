"""MindFormers' MFLossMonitor, and the local norms that it prints or that TrainingStateMonitor logs."""

from __future__ import annotations

import re

import polars as pl

from trueup.curves.columns import (
    BALANCING_LOSS,
    FLOPS_PER_DEVICE,
    GRAD_NORM,
    LOSS,
    MTP_LOSS,
    STEP,
    THROUGHPUT,
)
from trueup.curves.readers.lines import LineFormat
from trueup.curves.readers.protocol import LOCAL_NORM_SCHEMA, mentions
from trueup.curves.readers.scanning import Key

_NORM = re.compile(
    rb"Epoch:\[ *(\d+)/ *\d+\], step:\[ *(\d+)/ *(\d+)\] local_norm/(\S+): ([-+\w.]+)", re.IGNORECASE
)


_LIST = re.compile(
    rb"norm_size:[ \t]*\n?([^\n]*?)\s*\n?[^\n\[]*local_norm:\s*(\[[^\]]*\]|\([^)]*\))", re.IGNORECASE
)
"""what the training wrapper returns with ``local_norm: True``: sums of squares in the weights' order"""
_LINE = re.compile(rb"Epoch:\[ *(\d+)/ *\d+\], step:\[ *(\d+)/ *(\d+)\]", re.IGNORECASE)
_NUMBER = re.compile(rb"[-+]?(?:nan|inf|(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)(?=[\s,\])]|$)", re.IGNORECASE)
_TENSOR = re.compile(rb"Tensor\(shape=\[([\d, ]*)\],\s*dtype=\w+,\s*value=\s*\[?([^\[\]()]*)\]?\)")
"""a number of a list, or the list, as MindSpore shows a tensor"""
_SHORTENED = b"..."
"""what a list of more than a thousand numbers is printed with, in place of those in the middle"""


def _global_step(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col(STEP) + (pl.col("epoch") - 1) * pl.col("steps_per_epoch"))


def local_norms(data: bytes) -> pl.DataFrame | None:
    """Lines ``Epoch:[...], step:[...] local_norm/NAME: VALUE``, L2 norms; else lists ``norm_size: ...``,
    ``local_norm:`` and the sums of squares, before the line of their step."""
    if mentions(data, b"norm_size:"):
        return _listed(data)
    if not mentions(data, b"local_norm/"):
        return None
    rows: list[tuple[int, int, str, float]] = []
    seen: dict[int, int] = {}
    for epoch, step, steps, name, value in _NORM.findall(data):
        at = int(step) + (int(epoch) - 1) * int(steps)
        index = seen[at] = seen.get(at, -1) + 1
        rows.append((at, index, name.decode("utf-8", "replace"), float(value)))
    return pl.DataFrame(rows, schema=LOCAL_NORM_SCHEMA, orient="row")


def _plain(tensor: re.Match[bytes]) -> bytes:
    shape, values = tensor.groups()
    return values if shape in (b"", b"1") else b"[" + values + b"]"


def _listed(data: bytes) -> pl.DataFrame:
    rows: list[tuple[int, int, None, float]] = []
    data = _TENSOR.sub(_plain, data) if mentions(data, b"Tensor(shape=") else data
    for match in _LIST.finditer(data):
        line = _LINE.search(data, match.end())
        if line is None or _SHORTENED in match.group(2):
            continue
        epoch, step, steps = (int(number) for number in line.groups())
        squares = [float(number) for number in _NUMBER.findall(match.group(2))]
        at = step + (epoch - 1) * steps
        rows += [(at, index, None, square**0.5) for index, square in enumerate(squares)]
    return pl.DataFrame(rows, schema=LOCAL_NORM_SCHEMA, orient="row")


FORMAT = LineFormat(
    name="mindformers",
    title="MindFormers",
    marker="Epoch:[",
    keys={
        "epoch": (Key("Epoch:["),),
        STEP: (Key("step:["),),
        "steps_per_epoch": (Key("step:[", skip="/"),),
        LOSS: (Key(" loss:["), Key(" loss: ")),
        "step_seconds": (Key("per_step_time: "),),
        "learning_rate": (Key(" lr: "),),
        "skipped": (Key("overflow cond: "),),
        "loss_scale": (Key("loss_scale: "),),
        GRAD_NORM: (Key("global_norm: "),),
        THROUGHPUT: (Key("train_throughput_per_npu: "),),
        BALANCING_LOSS: (Key("load_balancing_loss: "),),
        MTP_LOSS: (Key(" mtp_loss: "),),
    },
    scales={"step_seconds": 1e-3, THROUGHPUT: 1e-12},
    units={THROUGHPUT: FLOPS_PER_DEVICE},
    finish=_global_step,
    local_norms=local_norms,
)
