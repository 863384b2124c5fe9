"""What looks like an origin on one rank, but was received from another.

Ranks are compared one by one; only when all are does it show that an error came in by a collective.
"""

from __future__ import annotations

import polars as pl

_BEYOND = pl.col("status").cast(pl.String).is_in(["origin", "propagated", "amplified"])


def without_other_ranks(found: pl.DataFrame, records: pl.LazyFrame) -> pl.DataFrame:
    """Origins without those that another rank caused; ``records`` are all of the comparison's."""
    if found["rank"].n_unique() < 2 and not records.filter(pl.col("rank") != 0).head(1).collect().height:
        return found
    return _not_received(_not_reduced(found, records), records)


def _not_reduced(found: pl.DataFrame, records: pl.LazyFrame) -> pl.DataFrame:
    """Without reduced gradients of a parameter whose local gradient exceeds its tolerance on another rank."""
    key = [pl.col("step"), pl.col("name").cast(pl.String).alias("parameter")]
    local = records.filter(_BEYOND & (pl.col("slot").cast(pl.String) == "local"))
    elsewhere = local.select(*key, pl.col("rank").alias("other")).unique().collect()
    reduced = found.with_row_index("at").filter(
        pl.col("phase").cast(pl.String).eq("param_grad") & pl.col("slot").cast(pl.String).ne("local")
    )
    joined = reduced.select("at", "rank", *key).join(elsewhere, on=["step", "parameter"])
    return _without(found, joined.filter(pl.col("rank") != pl.col("other"))["at"])


def _not_received(found: pl.DataFrame, records: pl.LazyFrame) -> pl.DataFrame:
    """Without what a collective returned, and its module after it, where the rank itself sent nothing wrong
    but another rank did."""
    call = pl.col("site").cast(pl.String).str.replace(r" · [^·]*$", "").alias("call")
    slot = pl.col("slot").cast(pl.String)
    beyond = records.filter(pl.col("phase").cast(pl.String).eq("collective") & _BEYOND)
    columns = [call, "step", "rank", "order", slot.alias("slot"), pl.col("owner").cast(pl.String)]
    apart = beyond.select(columns).collect()
    sent = apart.filter(pl.col("slot").str.starts_with("input")).select("call", "step", "rank").unique()
    came = apart.filter(pl.col("slot").str.starts_with("output"))
    came = came.join(sent, on=["call", "step", "rank"], how="anti")
    came = came.join(sent.rename({"rank": "other"}), on=["call", "step"])
    came = came.filter(pl.col("rank") != pl.col("other")).select(
        "step", "rank", "owner", pl.col("order").alias("since")
    )
    rows = found.with_row_index("at").select(
        "at", "step", "rank", "order", "phase", pl.col("owner").cast(pl.String)
    )
    rows = rows.filter(pl.col("phase").cast(pl.String).is_in(["forward", "collective"]))
    inside = rows.join(came, on=["step", "rank", "owner"], nulls_equal=True)
    its_own = (pl.col("order") == pl.col("since")) | (
        pl.col("owner").is_not_null() & (pl.col("order") > pl.col("since"))
    )
    return _without(found, inside.filter(its_own)["at"])


def _without(found: pl.DataFrame, at: pl.Series) -> pl.DataFrame:
    return found.with_row_index("at").filter(~pl.col("at").is_in(at.to_list())).drop("at")
