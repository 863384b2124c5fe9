"""``Epoch:0, Step:5, Loss: ...``: MindFormers' dynamic-graph trainer, and trueup_gpt."""

from __future__ import annotations

import polars as pl

from trueup.curves.columns import GRAD_NORM, LOSS, STEP, THROUGHPUT, TOKENS_PER_SECOND
from trueup.curves.readers.lines import LineFormat
from trueup.curves.readers.scanning import Key


def _global_step(frame: pl.DataFrame) -> pl.DataFrame:
    """The dynamic-graph trainer counts steps within an epoch, trueup_gpt through all of them."""
    if "finite" in frame.columns:
        frame = frame.with_columns((1 - pl.col("finite")).alias("skipped"))
    if "epoch" not in frame.columns:
        return frame
    ends = frame.group_by("epoch").agg(low=pl.col(STEP).min(), high=pl.col(STEP).max()).sort("epoch")
    if ends.height < 2 or (ends["low"][1:] > ends["high"][:-1]).all():
        return frame
    before = ends.select("epoch", before=pl.col("high").cum_sum() - pl.col("high"))
    frame = frame.join(before, on="epoch", how="left", maintain_order="left")
    return frame.with_columns(pl.col(STEP) + pl.col("before")).drop("before")


FORMAT = LineFormat(
    name="epoch_step",
    title="MindFormers dynamic graph or trueup_gpt",
    marker="Step:",
    keys={
        "epoch": (Key("Epoch:"),),
        STEP: (Key("Step:"),),
        LOSS: (Key(" Loss: "), Key(" Loss:")),
        "finite": (Key("Finite_grads: "), Key("Finite_grads:")),
        "loss_scale": (Key("Loss_scale: "), Key("Loss_scale:")),
        "learning_rate": (Key("Learning_rate: "), Key("Learning_rate:")),
        GRAD_NORM: (Key("Grad_norm: "), Key("Grad_norm:"), Key("Global_norm: ")),
        "tokens": (Key(" Tokens: "), Key("Consumed_tokens: ")),
        THROUGHPUT: (Key("Tokens_per_second: "), Key("Throughput: ")),
        "step_seconds": (Key(" Time: "),),
    },
    scales={"step_seconds": 1e-3},
    units={THROUGHPUT: TOKENS_PER_SECOND},
    finish=_global_step,
    appendable=False,
)
