"""The report of a comparison of weights, and its JSON document."""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import partial

from trueup.reporting.document import (
    OUTCOMES,
    Column,
    Document,
    Fact,
    Facts,
    Mark,
    Row,
    Table,
    Tone,
    fact,
    facts,
)
from trueup.reporting.formatting import count, number, plain
from trueup.types.reason import Json
from trueup.types.status import Outcome
from trueup.weights.comparing import PairStatus, WeightComparison, WeightPair

_UNMATCHED_SHOWN = 10
_MARKS = {
    PairStatus.EQUAL: Mark("=", "bit-identical", Tone.GOOD),
    PairStatus.SAME_VALUES: Mark("=", "same values, different dtype", Tone.GOOD),
    PairStatus.ROUNDED: Mark("≈", "rounded to a different dtype", Tone.GOOD),
    PairStatus.WITHIN_TOLERANCE: Mark("≈", "within tolerance", Tone.GOOD),
    PairStatus.DIFFERENT: Mark("≠", "different", Tone.BAD),
    PairStatus.UNDECIDED: Mark("?", "undecided", Tone.WARN),
}
_COLUMNS = (
    Column(title="weight", fit=True, code=True),
    Column(title="rel L2", show=number),
    Column(title="max abs diff", show=number),
    Column(title="cosine similarity", show=partial(number, digits=7)),
    Column(title="max ulp diff", show=number),
    Column(title="status", grow=True, below=True),
)


def weights_report(comparison: WeightComparison, *, exit_code: int, limit: int) -> Document:
    """The pairs that are not bit-identical, largest difference first; weights without a partner; the counts.

    Args:
        exit_code: of the comparison, as its options have it.
        limit: most rows of the table.
    """
    pairs = [pair for pair in comparison.pairs if pair.status is not PairStatus.EQUAL]
    rows = tuple(map(_row, sorted(pairs, key=_badness, reverse=True)))
    hidden = count(len(rows) - limit, "more pair")
    outcome = next(outcome for outcome in Outcome if outcome.exit_code == exit_code)
    return Document(
        title="Weights",
        mark=OUTCOMES[outcome],
        headline=_headline(comparison, outcome),
        blocks=(
            Table(columns=_COLUMNS, rows=rows, limit=limit, more=f"{hidden}; --limit N shows N rows"),
            _closing(comparison),
        ),
    )


def _headline(comparison: WeightComparison, outcome: Outcome) -> str:
    pairs = count(len(comparison.pairs), "pair")
    different = comparison.counts[PairStatus.DIFFERENT.value]
    if outcome is Outcome.AGREE:
        return f"The weights agree: {pairs} compared."
    if outcome is Outcome.DIFFER:
        return f"{different:,} of {pairs} {'differs' if different == 1 else 'differ'}."
    return f"No difference in {pairs}, but not every weight could be compared."


def _closing(comparison: WeightComparison) -> Facts:
    counts = [
        f"{value:,} {_MARKS[PairStatus(key)].words}" for key, value in comparison.counts.items() if value
    ]
    padded = [pair for pair in comparison.pairs if pair.padding]
    return facts(
        [
            _unmatched("target", comparison.only_target),
            _unmatched("reference", comparison.only_reference),
            Fact(label="padding", lines=tuple(map(_padding, padded)), limit=_UNMATCHED_SHOWN),
            fact("pairs", "; ".join(counts)),
        ]
    )


def _padding(pair: WeightPair) -> str:
    """Which rows were left out of a comparison."""
    rows = {"target": pair.target.shape[0], "reference": pair.reference.shape[0]}
    compared = max(rows.values()) - pair.padding
    after = [f"{count(num - compared, 'row')} ({side})" for side, num in rows.items() if num > compared]
    return f"{pair.name}: compared up to row {compared:,}; vocabulary padding follows: {', '.join(after)}"


def _unmatched(side: str, names: tuple[str, ...]) -> Fact:
    return Fact(label=f"{side} only", lines=names, limit=_UNMATCHED_SHOWN, flow=True)


def _badness(pair: WeightPair) -> tuple[bool, bool, float]:
    """Undecided first, then different, then by relative distance."""
    distance = pair.metrics.rel_l2 if pair.metrics is not None else None
    return (
        pair.status is PairStatus.UNDECIDED,
        pair.status is PairStatus.DIFFERENT,
        math.inf if distance is None else distance,
    )


def _row(pair: WeightPair) -> Row:
    m = pair.metrics
    cells = (None,) * 4 if m is None else (m.rel_l2, m.max_abs_diff, m.cosine_similarity, m.max_ulp_diff)
    mark = _MARKS[pair.status]
    return Row(cells=(pair.name, *cells, _remark(pair)), mark=mark, loud=mark.tone is Tone.BAD)


def _remark(pair: WeightPair) -> str:
    words = [plain(pair.reason) if pair.reason else _MARKS[pair.status].words]
    if pair.target.dtype != pair.reference.dtype:
        words.append(f"{pair.target.dtype} (target) vs {pair.reference.dtype} (reference)")
    if pair.metrics is not None and pair.metrics.num_nonfinite_mismatch:
        words.append(f"{count(pair.metrics.num_nonfinite_mismatch, 'element')} not finite on one side only")
    return "; ".join(words)


def weights_json(comparison: WeightComparison, *, exit_code: int) -> dict[str, Json]:
    """The comparison as plain JSON values: counts, every pair, unmatched names; infinities become null."""
    return {
        "exit_code": exit_code,
        "counts": dict(comparison.counts),
        "rtol": comparison.rtol,
        "atol": comparison.atol,
        "pairs": [_plain_pair(pair) for pair in comparison.pairs],
        "only_target": list(comparison.only_target),
        "only_reference": list(comparison.only_reference),
    }


def _plain_pair(pair: WeightPair) -> Json:
    metrics = None if pair.metrics is None else asdict(pair.metrics)
    return {
        "name": pair.name,
        "status": pair.status.value,
        "reason": pair.reason,
        "padding": pair.padding,
        "target": {"dtype": pair.target.dtype, "shape": list(pair.target.shape)},
        "reference": {"dtype": pair.reference.dtype, "shape": list(pair.reference.shape)},
        "metrics": metrics and {key: _finite(value) for key, value in metrics.items()},
    }


def _finite(value: Json) -> Json:
    return None if isinstance(value, float) and not math.isfinite(value) else value
