"""Statistics of tensors that a mask is in: of what it lets be seen.

A norm that holds the lowest numbers of a dtype is 1e38 whatever else the tensor holds, and so is a sketch.
Where the minimum hides (``numerics.hidden``), the norm is that of elements as large as the largest visible
one, which it is at most where scores are of either sign, and there is no sketch. Minimum and mean stay as
they were captured.
"""

from __future__ import annotations

import polars as pl

from trueup.numerics.hidden import lowest_visible

CAPTURED = "captured_l2_norm"
"""beside ``l2_norm`` where a step has such tensors: over all elements"""


def with_visible_norms(summaries: pl.DataFrame) -> pl.DataFrame:
    """The table of summaries with such norms; the same where no tensor hides anything."""
    needed = {"dtype", "minimum", "maximum", "l2_norm", "numel"}
    if not summaries.height or not needed <= set(summaries.columns):
        return summaries
    hides = hiding()
    if not summaries.select(hides.any()).item():
        return summaries
    largest = pl.when(pl.col("maximum") > lowest_visible("")).then(pl.col("maximum").abs()).otherwise(0.0)
    norm = (largest * pl.col("numel").cast(pl.Float64).sqrt()).cast(summaries.schema["l2_norm"])
    changed = [pl.when(hides).then(norm).otherwise(pl.col("l2_norm")).alias("l2_norm")]
    if CAPTURED not in summaries.columns:
        changed.append(pl.col("l2_norm").alias(CAPTURED))
    if "sketch" in summaries.columns:
        changed.append(pl.when(hides).then(None).otherwise(pl.col("sketch")).alias("sketch"))
    return summaries.with_columns(changed)


def hiding() -> pl.Expr:
    """Whether a tensor's smallest element is hidden."""
    dtype = pl.col("dtype").cast(pl.String)
    floating = dtype.str.starts_with("float") | dtype.str.starts_with("bfloat")
    limit = pl.when(dtype == "float16").then(lowest_visible("float16")).otherwise(lowest_visible(""))
    return (floating & pl.col("minimum").is_finite() & (pl.col("minimum") <= limit)).fill_null(False)
