"""What of a result must not change when code is rearranged: outcomes, places, kinds and numbers, no text.

The only reader of documents here; documents of schema version 1 and 2 give the same facts.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

from bugzoo.scoreboard.answers import from_compare

TEXTS = ("where", "sites")
"""facts that name a place in words: they may be worded otherwise, what they mean is in the other facts"""
ROW = ("step", "rank", "order", "phase", "module", "slot", "name", "owner", "status")
DIGITS = 5
"""of scores and tolerances; the order of a sum may change the last ones"""


def of_compare(document: dict[str, Any], result: Path | None = None) -> dict[str, Any]:
    """Facts of ``compare --json``, and of result.parquet where its path is given."""
    verdict = document["verdict"]
    named = from_compare(document, seconds=0.0).named
    keys = ("where", "owner", "step", "rank", "phase")
    facts = {
        "outcome": verdict["outcome"],
        "exit": verdict["exit_code"],
        **({"stage": named[0].stage} if named else {}),
        **{key: verdict[key] for key in keys if verdict[key] is not None},
        "counts": {k: v for k, v in document["counts"].items() if isinstance(v, int) and v},
    }
    return facts if result is None else facts | {"rows": rows_digest(result)}


def of_diagnose(document: dict[str, Any]) -> dict[str, Any]:
    """Facts of ``diagnose --json``: every finding's stage, site, kinds in order, axis and ranks."""
    return {
        "outcome": document["outcome"],
        "exit": document["exit_code"],
        "findings": [_of_finding(finding) for finding in document["findings"]],
        "sites": [finding["site"] for finding in document["findings"]],
        "stages": {one["stage"]: one["status"] for one in document["stages"] if one["status"] != "passed"},
    }


def _of_finding(finding: dict[str, Any]) -> list[Any]:
    """``[stage, phase, step, rank, module or else the parameter or scalar, kinds, axis, ranks]``."""
    module, site = finding["module"], finding["site"]
    place = module if module is not None else (site or "").partition(" · ")[0].partition(", ")[0]
    kinds = [_name_of(kind) for kind in finding["kinds"]]
    seen = [finding["phase"], finding["step"], finding["rank"]]
    return [finding["stage"], *seen, place, kinds, finding.get("axis"), finding.get("ranks") or []]


def _name_of(kind: dict[str, Any]) -> str:
    return str(kind["name"] if "name" in kind else kind["code"])


def rows_digest(result: Path) -> str:
    """Of status, owner, score and tolerance of every record, in whatever order they stand."""
    import polars as pl

    frame = pl.read_parquet(result, columns=[*ROW, "score", "tolerance"], glob=False)
    rows = sorted("|".join(map(_plain, row)) for row in frame.iter_rows())
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:12]


def rounded(value: float, digits: int = DIGITS) -> float:
    """To so many significant digits."""
    return float(f"{value:.{digits - 1}e}") if math.isfinite(value) else value


def _plain(value: Any) -> str:
    return f"{value:.{DIGITS - 1}e}" if isinstance(value, float) else str(value)
