"""What looks like an origin on one rank, but was received from another.

Ranks are compared one by one; only when all are does it show that an error came in by a collective.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from trueup.comparing.rows import StepRows
from trueup.types.arrays import Bools

_RECEIVES = ("recv", "irecv")
_BEYOND = pl.col("status").cast(pl.String).is_in(["origin", "propagated", "amplified"])


def received_inputs(rows: StepRows) -> Bools:
    """What the program gives the model and has just received from another process, as stages of a pipeline
    do: the last call before the model's is one that receives. What comes before the first call of a step is
    not recorded: the model's first is given what all its later calls are given."""
    words = rows.match.words
    receiving = np.array([word.rpartition(".")[2] in _RECEIVES for word in words.name] + [False])
    calls = rows.kind_is("module") | rows.phase_is("collective")
    receives = calls & receiving[rows.of_call("name")]
    found = np.zeros(len(rows), bool)
    given = rows.kind_is("module") & rows.phase_is("forward") & rows.slot_starts("input")
    given &= rows.of_call("parent") < 0
    if not receives.any() or not given.any():
        return found
    before, call = -1, -1
    for row in np.flatnonzero(calls).tolist():
        own = int(rows.target.call[row])
        if given[row] and before >= 0:
            found[row] = receives[before] or (own == call and found[before])
        before, call = row, own
    at = int(np.flatnonzero(given)[0])
    first = given & (rows.target.call == rows.target.call[at])
    later = given & ~first
    if later.any() and found[later].all() and not calls[:at].any():
        found |= first
    return found


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
