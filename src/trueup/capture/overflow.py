"""What task ``overflow_check`` has to say."""

from __future__ import annotations

import json
from pathlib import Path


def overflow_sentence(found: dict[str, object]) -> str:
    """One origin, as a person reads it.

    Example:
        >>> overflow_sentence({"step": 3, "site": "mlp · torch.log · output.0", "how": "made", "num_nan": 2})
        'NaN is made in step 3 at mlp · torch.log · output.0'
    """
    what = "NaN" if found.get("num_nan") else "an infinity"
    verb = "is made" if found.get("how") == "made" else "is first seen"
    source = f" ({found['source']})" if found.get("source") else ""
    return f"{what} {verb} in step {found['step']} at {found['site']}{source}"


def overflow_sentences(output: Path, *, num_steps: int, shown: str) -> list[str]:
    """What came of a run, first origin first."""
    found = []
    for path in sorted((output / "ranks").glob("rank_*.json")):
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        found += [(one["step"], facts.get("rank", 0), one) for one in facts.get("overflows") or []]
    steps = f"{num_steps:,} step{'' if num_steps == 1 else 's'}"
    if not found:
        return [f"no value that is not finite reached a loss, gradient or weight in {steps}"]
    found.sort(key=lambda one: one[:2])
    step, rank, first = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return [
        f"{overflow_sentence(first)}, rank {rank}{more}",
        f"its step is in {shown}, with the values that went in and came out; "
        f"next: trueup inspect {shown} --step {step} --rank {rank}",
    ]
