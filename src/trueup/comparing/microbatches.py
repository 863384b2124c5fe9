"""What to say of two runs that cut a step into other numbers of microbatches."""

from __future__ import annotations

from typing import Any

from trueup.comparing.ledger import Ledger
from trueup.types import Outcome

_MERGED = "as whole tensors"
"""in the note of a side whose ranks and microbatches were put together already"""


def led_by_microbatches(
    verdict: dict[str, Any], ledger: Ledger, scalars: list[dict[str, Any]], *, target: str, reference: str
) -> dict[str, Any]:
    """The verdict, led by the number of microbatches where that differs and leaves most records uncompared.

    A microbatch of one size and one of another share no shape: what is compared nevertheless, and differs,
    names no fault. Weights that differ at the start do, so such a verdict stands.
    """
    numbers = _numbers_apart(ledger, scalars)
    total = sum(ledger.counts.values())
    if numbers is None or 2 * ledger.compared >= total or verdict["phase"] == "param":
        return verdict
    outcome = Outcome.DIFFER if verdict["outcome"] == Outcome.DIFFER.value else Outcome.UNDECIDED
    found = f"of what was compared this differs first: {verdict['where']} ({verdict['phase']})"
    return verdict | {
        "outcome": outcome.value,
        "exit_code": outcome.exit_code,
        "headline": f"The runs cut a step into {numbers[0]} and {numbers[1]} microbatches, so that most of "
        "it cannot be compared.",
        **dict.fromkeys(("where", "owner", "rank", "phase")),
        "confidence": 0.99,
        "evidence": [
            f"{total - ledger.compared:,} of {total:,} records have no counterpart, or one of another shape",
            *([found] if verdict["where"] else []),
            *verdict["evidence"],
        ],
        "before": "",
        **_next(ledger, target, reference),
    }


def _numbers_apart(ledger: Ledger, scalars: list[dict[str, Any]]) -> tuple[int, int] | None:
    """Microbatches of the first compared step in which the two runs have not as many."""
    for entry in scalars:
        if entry["name"] == "microbatches" and entry["beyond"] and entry["step"] in ledger.limits:
            return int(entry["target"]), int(entry["reference"])
    return None


def _next(ledger: Ledger, target: str, reference: str) -> dict[str, str | None]:
    if any(_MERGED in note for note in ledger.notes):
        return {"next": None, "next_note": "capture both runs with the same number of microbatches"}
    return {
        "next": f"trueup compare {target} {reference} --merge -o OUT",
        "next_note": "takes the microbatches of a step together; or capture both runs with as many",
    }
