"""A comparison of weights on the screen and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from trueup.reporting.formatting import count, elide, number, plain
from trueup.weights.comparing import PairStatus, WeightComparison, WeightPair

_NAME_WIDTH = 60
_UNMATCHED_SHOWN = 10
_WORDS = {
    PairStatus.EQUAL: "bits equal",
    PairStatus.SAME_VALUES: "same values, other dtype",
    PairStatus.ROUNDED: "rounded to another dtype",
    PairStatus.WITHIN_TOLERANCE: "within tolerance",
    PairStatus.DIFFERENT: "different",
    PairStatus.UNDECIDED: "undecided",
}


def print_weights(comparison: WeightComparison, console: Console, *, limit: int) -> None:
    """The pairs that are not equal, largest difference first, the weights without a partner, and the counts.

    Args:
        limit: most rows of the table.
    """
    open_pairs = [pair for pair in comparison.pairs if pair.status is not PairStatus.EQUAL]
    ordered = sorted(open_pairs, key=_badness, reverse=True)
    if ordered:
        console.print(_table(ordered[:limit]))
    if len(ordered) > limit:
        console.print(f"{len(ordered) - limit} more; --limit N shows N rows", markup=False)
    _print_unmatched("target", comparison.only_target, console)
    _print_unmatched("reference", comparison.only_reference, console)
    parts = [f"{_WORDS[PairStatus(key)]}: {value:,}" for key, value in comparison.counts.items() if value]
    console.print(f"{count(len(comparison.pairs), 'pair')}; {'; '.join(parts)}", markup=False)


def _badness(pair: WeightPair) -> tuple[bool, bool, float]:
    """Undecided first, then different, then by relative distance."""
    distance = pair.metrics.rel_l2 if pair.metrics is not None else None
    return (
        pair.status is PairStatus.UNDECIDED,
        pair.status is PairStatus.DIFFERENT,
        math.inf if distance is None else distance,
    )


def _table(pairs: list[WeightPair]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("weight", overflow="fold")
    for name in ("max abs", "rel L2", "cosine", "ulp"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for pair in pairs:
        m = pair.metrics
        cells = [None] * 4 if m is None else [m.max_abs_diff, m.rel_l2, m.cosine_similarity, m.max_ulp_diff]
        numbers = [number(cell, digits=7 if at == 2 else 3) for at, cell in enumerate(cells)]
        table.add_row(elide(plain(pair.name), _NAME_WIDTH), *numbers, _remark(pair))
    return table


def _remark(pair: WeightPair) -> str:
    words = [pair.reason or _WORDS[pair.status]]
    if pair.target.dtype != pair.reference.dtype:
        words.append(f"{pair.target.dtype} against {pair.reference.dtype}")
    if pair.metrics is not None and pair.metrics.num_nonfinite_mismatch:
        words.append(f"{count(pair.metrics.num_nonfinite_mismatch, 'place')} not finite on one side")
    return "; ".join(words).replace("[", "\\[")


def _print_unmatched(side: str, names: tuple[str, ...], console: Console) -> None:
    if names:
        shown = ", ".join(plain(name) for name in names[:_UNMATCHED_SHOWN])
        more = f" and {len(names) - _UNMATCHED_SHOWN} more" if len(names) > _UNMATCHED_SHOWN else ""
        console.print(f"only in the {side}: {shown}{more}", markup=False)


def weights_document(comparison: WeightComparison, *, exit_code: int) -> dict[str, Any]:
    """The comparison as plain JSON values: counts, every pair, unmatched names; infinities become null."""
    return {
        "exit_code": exit_code,
        "counts": comparison.counts,
        "rtol": comparison.rtol,
        "atol": comparison.atol,
        "pairs": [_plain_pair(pair) for pair in comparison.pairs],
        "only_target": list(comparison.only_target),
        "only_reference": list(comparison.only_reference),
    }


def _plain_pair(pair: WeightPair) -> dict[str, Any]:
    metrics = None if pair.metrics is None else asdict(pair.metrics)
    return {
        "name": pair.name,
        "status": pair.status.value,
        "reason": pair.reason,
        "target": {"dtype": pair.target.dtype, "shape": list(pair.target.shape)},
        "reference": {"dtype": pair.reference.dtype, "shape": list(pair.reference.shape)},
        "metrics": metrics and {key: _finite(value) for key, value in metrics.items()},
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
