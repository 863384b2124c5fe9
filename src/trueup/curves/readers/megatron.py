"""Megatron-LM's training log (and MindSpeed's, which is the same), with printed lists of local norms."""

from __future__ import annotations

import re

import polars as pl

from trueup.curves.columns import (
    BALANCING_LOSS,
    FLOPS_PER_DEVICE,
    GRAD_NORM,
    LOSS,
    MTP_LOSS,
    THROUGHPUT,
    Z_LOSS,
)
from trueup.curves.readers.lines import LineFormat
from trueup.curves.readers.protocol import LOCAL_NORM_SCHEMA, mentions
from trueup.curves.readers.scanning import Key

_LIST = re.compile(rb"print torch local norm:\s*(?:[^\[\n]*\[)?([^\]]*(?:\[[^\]]*\][^\]]*)*)\]")
_ITEM = re.compile(rb"[-+]?(?:nan|inf|\d+\.?\d*(?:e[-+]?\d+)?)(?=[,)\]\s]|$)")
_STEP = re.compile(rb" iteration +(\d+)/")


def _with_nan(frame: pl.DataFrame) -> pl.DataFrame:
    """Megatron leaves out a loss that is NaN and counts the step instead, also where every loss is NaN."""
    if "nan_iterations" not in frame.columns:
        return frame
    if LOSS not in frame.columns:
        frame = frame.with_columns(pl.lit(None, pl.Float64).alias(LOSS))
    missing = pl.col(LOSS).is_null() & (pl.col("nan_iterations") > 0)
    return frame.with_columns(pl.when(missing).then(float("nan")).otherwise(pl.col(LOSS)).alias(LOSS))


def local_norms(data: bytes) -> pl.DataFrame | None:
    """The lists a patched ``get_parameters`` prints: squares of L2 norms, in the optimizer's order, before
    the
    line of their step."""
    if not mentions(data, b"print torch local norm:"):
        return None
    rows: list[tuple[int, int, None, float]] = []
    for match in _LIST.finditer(data):
        step = _STEP.search(data, match.end())
        if step is None:
            continue
        items = re.sub(rb"device='[^']*'|dtype=[\w.]+|grad_fn=<\w+>", b"", match.group(1))
        squares = [float(item) for item in _ITEM.findall(items)]
        rows += [(int(step.group(1)), index, None, square**0.5) for index, square in enumerate(squares)]
    return pl.DataFrame(rows, schema=LOCAL_NORM_SCHEMA, orient="row")


FORMAT = LineFormat(
    name="megatron",
    title="Megatron-LM",
    marker=" iteration ",
    keys={
        "step": (Key(" iteration "),),
        "samples": (Key("consumed samples: "),),
        "tokens": (Key("consumed tokens: "),),
        "step_seconds": (Key("elapsed time per iteration (ms): "),),
        THROUGHPUT: (Key("throughput per GPU (TFLOP/s/GPU): "), Key("TFLOPs: ")),
        "learning_rate": (Key(" learning rate: "),),
        LOSS: (Key(" lm loss: "), Key("| loss: "), Key("| reduced_train_loss: "), Key(" sft loss: ")),
        "loss_scale": (Key(" loss scale: "),),
        GRAD_NORM: (Key(" grad norm: "),),
        "skipped": (Key("number of skipped iterations: "),),
        "nan_iterations": (Key("number of nan iterations: "),),
        BALANCING_LOSS: (Key("load_balancing_loss: "),),
        Z_LOSS: (Key(" z_loss: "),),
        MTP_LOSS: (Key(" mtp_1 loss: "), Key(" mtp_loss: ")),
    },
    scales={"step_seconds": 1e-3},
    units={THROUGHPUT: FLOPS_PER_DEVICE},
    loss_is_mean=True,
    finish=_with_nan,
    local_norms=local_norms,
)
