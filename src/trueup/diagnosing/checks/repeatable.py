"""Two runs of the same steps, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import yaml

from trueup.comparing.rules.unread_views import is_read, is_view
from trueup.diagnosing.checks.outcome import CheckedSite, CheckOutcome, FunctionCheck, Judge, Measured
from trueup.diagnosing.checks.run import CheckedRun, place_of, site_of
from trueup.types.arrays import Bools
from trueup.types.codes import CheckCode as Code
from trueup.types.codes import code_from
from trueup.types.reason import Reason, reason

_KEY = ["place", "phase", "slot", "microbatch", "nth"]
_MAX_PLACES = 5
_KNOWN: list[dict[str, str]] = yaml.safe_load(
    (Path(__file__).parent / "nondeterministic.yaml").read_text(encoding="utf-8")
)


def _judge(run: CheckedRun, judge: Judge) -> CheckOutcome:
    if run.again is None:
        return judge.nothing(reason(Code.ONE_RUN))
    again = run.again.steps()
    shared = [(s, r) for s, ranks in run.steps.items() for r in ranks if r in again.get(s, [])]
    if not shared:
        return judge.undecided(reason(Code.NO_COMMON_STEP))
    compared = 0
    for step, rank in shared:
        joined = _joined(run, step, rank)
        compared += joined.filter(pl.col("digest") == pl.col("digest_again")).height
        apart = _without_unread(joined, joined.filter(pl.col("digest") != pl.col("digest_again")))
        if apart.height:
            return _differing(run, judge, step, rank, joined, apart)
        if _is_other(run, step, rank, joined):
            return judge.failed(
                reason(Code.OTHER_CALLS, step=step, rank=rank),
                places=_only_once(run, step, rank, joined),
            )
    if not compared:
        return judge.undecided(reason(Code.NO_DIGESTS))
    numbers: Measured = {"records": compared, "steps": len({s for s, _ in shared})}
    return judge.passed(reason(Code.REPEATS, num=compared), numbers=numbers)


def _joined(run: CheckedRun, step: int, rank: int) -> pl.DataFrame:
    """Records of the first run in execution order, with the digest and summary of the second."""
    sides = []
    for again in (False, True):
        records = run.view(step, rank, again=again).frame
        nth = pl.int_range(pl.len()).over("place", "phase", "slot", "microbatch")
        sides.append(records.with_columns(nth=nth))
    second = sides[1].select(
        *_KEY, digest_again="digest", shape_again="shape", dtype_again="dtype", found=pl.lit(True)
    )
    return sides[0].join(second, on=_KEY, how="left", maintain_order="left")


def _without_unread(joined: pl.DataFrame, apart: pl.DataFrame) -> pl.DataFrame:
    """What differs, but for arguments of functions whose results do not: of a buffer that a program reserves
    and uses in part, nobody has read the rest; and for views that nothing reads."""
    function = (pl.col("kind") == "api") & (pl.col("phase") == "forward")
    outputs = joined.filter(function & pl.col("slot").str.starts_with("output"))
    same = outputs.group_by("call").agg(
        (pl.col("digest") == pl.col("digest_again")).fill_null(False).all().alias("same")
    )
    calls = same.filter("same")["call"]
    unread = function & pl.col("slot").str.starts_with("input") & pl.col("call").is_in(calls.implode())
    read = _read(joined, "digest") & _read(joined, "digest_again")
    shown = joined.filter(pl.Series(~read))["record"]
    return apart.filter(~unread & ~pl.col("record").is_in(shown.implode()))


def _read(joined: pl.DataFrame, digest: str) -> Bools:
    """Records whose content is read in one of the two runs (``unread_views``)."""
    functions = joined["kind"].cast(pl.String).eq("api") & joined["phase"].cast(pl.String).eq("forward")
    names = joined["name"].cast(pl.String)
    views = functions.to_numpy() & np.array([is_view(name or "") for name in names], bool)
    inputs = joined["slot"].cast(pl.String).str.starts_with("input").to_numpy()
    content = joined[digest].rank("dense").fill_null(0).to_numpy().astype(np.int64) - 1
    call = joined["call"].fill_null(-1).to_numpy().astype(np.int64)
    return is_read(content, call, views & inputs, views & ~inputs)


def _differing(
    run: CheckedRun, judge: Judge, step: int, rank: int, joined: pl.DataFrame, apart: pl.DataFrame
) -> CheckOutcome:
    view = run.view(step, rank)
    first = apart.row(0, named=True)
    total = joined.filter(pl.col("digest_again").is_not_null()).height
    numbers: Measured = {"step": step, "rank": rank, "differing": apart.height, "records": total}
    equal = pl.col("digest") == pl.col("digest_again")
    before = joined.filter((pl.col("record") < first["record"]) & equal).height
    places = (place_of(view, first, _cause(first)), *_more_places(run, step, rank, joined, apart, first))
    if first["phase"] == "param" and step == min(run.steps):
        return judge.undecided(
            reason(Code.OTHER_WEIGHTS, parameter=first["name"], step=step),
            places=places,
            numbers=numbers,
            next=reason(Code.SEED_OUTSIDE),
        )
    outermost = first["kind"] == "module" and first["parent"] is None
    if first["phase"] == "forward" and outermost and first["slot"].startswith("input"):
        return judge.undecided(
            reason(Code.OTHER_BATCHES, step=step),
            places=places,
            numbers=numbers,
            next=reason(Code.SEED_OUTSIDE),
        )
    cause = places[0].detail
    is_drawn = cause is not None and cause.code is Code.RANDOM_NUMBERS
    return judge.failed(
        reason(Code.NOT_REPEATED, step=step, site=site_of(first), before=before),
        places=places[:_MAX_PLACES],
        numbers=numbers,
        next=reason(Code.SEED_OUTSIDE if is_drawn else Code.DETERMINISTIC),
    )


def _more_places(
    run: CheckedRun,
    step: int,
    rank: int,
    joined: pl.DataFrame,
    apart: pl.DataFrame,
    first: dict[str, object],
) -> list[CheckedSite]:
    """Later calls whose outputs differ though their inputs do not: often there is more than one source."""
    view = run.view(step, rank)
    forward = apart.filter((pl.col("phase") == "forward") & (pl.col("kind") == "api"))
    fed = forward.filter(pl.col("slot").str.starts_with("input"))["call"]
    later = forward.filter((pl.col("call") != first["call"]) & ~pl.col("call").is_in(fed.implode()))
    later = later.unique(subset=["call"], keep="first", maintain_order=True)
    inputs = joined.filter((pl.col("phase") == "forward") & pl.col("slot").str.starts_with("input"))
    same = (pl.col("digest") == pl.col("digest_again")).fill_null(value=False).all()
    given = set(inputs.group_by("call").agg(same.alias("same")).filter("same")["call"])
    equal = reason(Code.EQUAL_INPUTS)
    return [
        place_of(view, row, _cause(row) or (equal if row["call"] in given else None))
        for row in later.head(_MAX_PLACES).to_dicts()
    ]


def _cause(row: dict[str, object]) -> Reason | None:
    """What is known of a call's determinism."""
    for known in _KNOWN:
        if str(row["name"]).rpartition(".")[2].rstrip("_") in known["names"].split():
            where = known.get("phase")
            if where is None or where == row["phase"]:
                return reason(code_from(known["code"]))
    return None


def _is_other(run: CheckedRun, step: int, rank: int, joined: pl.DataFrame) -> bool:
    missing = joined.filter(pl.col("found").is_null()).height
    return bool(missing) or run.view(step, rank, again=True).frame.height != joined.height


def _only_once(run: CheckedRun, step: int, rank: int, joined: pl.DataFrame) -> tuple[CheckedSite, ...]:
    rows = joined.filter(pl.col("found").is_null()).head(_MAX_PLACES).to_dicts()
    return tuple(place_of(run.view(step, rank), row, reason(Code.FIRST_ONLY)) for row in rows)


CHECK = FunctionCheck("repeatable", "A step run twice is bit-identical", _judge)
