"""What is said of a run that was changed on purpose."""

from __future__ import annotations

import json
from pathlib import Path

from trueup.capture.options import CaptureOptions


def changes(options: CaptureOptions) -> list[str]:
    """A sentence a change that was asked for.

    Example:
        >>> changes(CaptureOptions(output=Path("run"), learning_rate=0.0))
        ['the learning rate is held at 0: no weight is updated']
    """
    found = []
    rate, only, skip = options.learning_rate, options.only_batch, options.skip_batch
    if rate is not None:
        effect = ": no weight is updated" if rate == 0 else ", the schedule has no effect"
        found.append(f"the learning rate is held at {rate:g}{effect}")
    if only is not None:
        found.append(f"batch {only} is given at every step")
    if skip is not None:
        found.append(f"batch {skip} is left out")
    return found


def change_sentences(options: CaptureOptions) -> list[str]:
    """What to tell the person once the run is over."""
    asked = changes(options)
    return [f"this run was changed on purpose: {'; '.join(asked)}"] if asked else []


def unkept(output: Path) -> list[str]:
    """Changes that were asked for and did not happen, as the ranks noted them, each once."""
    found: dict[str, None] = {}
    for path in sorted((output / "ranks").glob("rank_*.json")):
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        found |= dict.fromkeys(str(sentence) for sentence in facts.get("unkept") or [])
    return list(found)
