"""What of a document must not change: outcomes, places, codes and numbers, no text.

The only reader of documents here. Documents of schema version 1 and 2 give the same facts: what version 2
adds is not looked at, what it renames is put back in this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from bugzoo.scoreboard import facts

Document = dict[str, Any]
Facts = dict[str, Any]
MOST_ROWS = 12
DIGITS = 7
CLOSE = 2e-6
"""relative; the order of a sum may change the last digits"""
_BEYOND = ("origin", "amplified", "propagated", "unmatched", "undecided")


def read_compare(document: Document, out: Path) -> Facts:
    """Verdict, counts, the first rows that are not in order, scalars."""
    scalars = [one for one in document["scalars"] if one["beyond"]]
    keys = ("step", "rank", "name", "abs_diff", "rel_diff")
    return facts.of_compare(document, out / "result.parquet") | {
        "by_phase": {
            phase: {k: v for k, v in counts.items() if v}
            for phase, counts in document["counts"]["by_phase"].items()
        },
        "bracketed": document["bracketed"],
        "constants": _plain(document["tolerance"]["constants"]),
        "scalars": [_plain([one[key] for key in keys]) for one in scalars],
        "beyond": _rows(out / "result.parquet"),
    }


def _rows(result: Path) -> list[Any]:
    columns = (*facts.ROW, "rel_l2", "tolerance", "score")
    frame = pl.read_parquet(result, columns=list(columns), glob=False)
    frame = frame.with_columns(pl.col(pl.Categorical).cast(pl.String)).filter(pl.col("status").is_in(_BEYOND))
    frame = frame.sort("step", "order", "rank", "phase", "slot").head(MOST_ROWS)
    return [_plain([value for value in row if value is not None]) for row in frame.iter_rows()]


def read_diagnose(document: Document, out: Path) -> Facts:
    """Verdict, findings with the numbers of their origins and kinds, stages."""
    return facts.of_diagnose(document) | {"numbers": [_numbers_of(one) for one in document["findings"]]}


def _numbers_of(finding: Document) -> Facts:
    origin = finding["origin"] or {}
    keys = ("score", "rel_l2", "tolerance", "from_equals", "basis")
    return {
        "origin": _plain({key: origin[key] for key in keys if key in origin}),
        "kinds": [_plain([kind["factor"], kind["over"]]) for kind in finding["kinds"]],
    }


def read_check(document: Document, out: Path) -> Facts:
    """Outcome, counts, rows that are not aligned with both values, schedules."""
    schedules = document["schedules"] or {}
    gaps = ("same", "learning_rate_gap", "weight_decay_gap", "first_step_apart")
    return {
        "outcome": document["outcome"],
        "exit": document["exit_code"],
        "counts": document["counts"],
        "rows": {
            row["key"]: [row["status"], row["severity"], row["matters"], row["open"], *_values(row)]
            for row in document["rows"]
            if row["status"] not in ("aligned", "framework_default", "not_configurable", "by_hand")
        },
        "aligned": " ".join(row["key"] for row in document["rows"] if row["status"] == "aligned"),
        "training": (document["verdict"]["same_training"] or {}).get("outcome"),
        "recommendations": {
            one["key"]: [one["severity"], *one["sides"], _plain(one["recommended_value"])]
            for one in document["recommendations"]
        },
        "schedules": _plain({key: schedules.get(key) for key in gaps}),
    }


def _values(row: Document) -> list[Any]:
    return [None if row[side] is None else _plain(row[side]["value"]) for side in ("target", "reference")]


def read_curves(document: Document, out: Path) -> Facts:
    """Each comparison's outcome, case, step, criteria with their numbers, statistics."""
    return {
        "exit": document["exit_code"],
        "comparisons": [
            {
                "outcome": one["outcome"],
                "exit": one["exit_code"],
                "case": one["judgement"]["case"],
                "step": one["judgement"]["step"],
                "num_steps": one["num_steps"],
                "offsets": [aligned["offset"] for aligned in one["alignments"]],
                "criteria": {
                    c["key"]: [c["status"], c["decisive"], _plain(c["numbers"])] for c in one["criteria"]
                },
                "conditions": {c["key"]: c["state"] for c in one["conditions"]},
                "statistics": _plain(one["statistics"]),
            }
            for one in document["comparisons"]
        ],
    }


def read_accept(document: Document, out: Path) -> Facts:
    """Outcome, counts, the state of every item."""
    items = [item for part in document["parts"] for item in part["items"]]
    return {
        "outcome": document["outcome"],
        "exit": document["exit_code"],
        "counts": document["counts"],
        "items": {item["key"]: [item["state"], item["binding"]] for item in items},
    }


def read_check_run(document: Document, out: Path) -> Facts:
    """The verdict of every check, with its numbers and how many places it names."""
    return {
        "exit": document["exit_code"],
        "checks": {
            one["name"]: [one["verdict"], _plain(one["numbers"]), len(one["places"])]
            for one in document["checks"]
        },
    }


def read_monitor(document: Document, out: Path) -> Facts:
    """Alarms with what raised them."""
    return {
        "steps": document["steps"],
        "alarms": [
            [
                alarm["rule"],
                alarm["step"],
                alarm["rank"],
                [[s["name"], s["value"]] for s in alarm["subjects"]],
            ]
            for alarm in document["alarms"]
        ],
    }


READERS: dict[str, Callable[[Document, Path], Facts]] = {
    "compare": read_compare,
    "diagnose": read_diagnose,
    "check": read_check,
    "curves": read_curves,
    "accept": read_accept,
    "check-run": read_check_run,
    "monitor": read_monitor,
}


def _plain(value: Any) -> Any:
    """Numbers with few digits, infinities as JSON has them; sequences as lists."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return facts.rounded(value, DIGITS) if math.isfinite(value) else str(value)
    return value


def differences(now: Any, then: Any, where: str = "") -> list[str]:
    """A line for each leaf that is not as it was; numbers may differ by rounding. Places worded otherwise are
    no difference."""
    if isinstance(now, dict) and isinstance(then, dict):
        keys = [key for key in dict.fromkeys([*then, *now]) if key not in facts.TEXTS]
        return [
            line
            for key in keys
            for line in differences(now.get(key), then.get(key), f"{where} {key}".strip())
        ]
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        pairs = enumerate(zip(now, then, strict=True))
        return [line for at, (one, other) in pairs for line in differences(one, other, f"{where}[{at}]")]
    if _is_number(now) and _is_number(then) and math.isclose(now, then, rel_tol=CLOSE, abs_tol=1e-12):
        return []
    return [] if now == then else [f"{where}: {now!r} (golden: {then!r})"]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
