"""The configuration that verl prints at the head of its console log, resolved, as Python writes a dictionary.

Each line may begin with what Ray puts before it (a colour, the actor and its process), and other processes
may print in between.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ACTOR = re.compile(r"^\((\w+(?: pid=\d+)?(?:, ip=[\w.:]+)?)\) ?")
_BEGIN = re.compile(r"^\{'(actor_rollout_ref|algorithm|critic|data)': \{")
_HEAD_LINES = 20_000
_MOST_LINES = 5_000
"""of a configuration"""


def configuration_of(path: Path) -> str | None:
    """The configuration as JSON; None where the file prints none in its first 20,000 lines."""
    lines: list[str] = []
    speaker: str | None = None
    with path.open(encoding="utf-8", errors="replace") as stream:
        for number, line in enumerate(stream):
            actor, printed = _split(line)
            if not lines and _BEGIN.match(printed):
                speaker = actor
                lines.append(printed)
            elif lines and actor == speaker:
                lines.append(printed)
            if lines and actor == speaker and printed.rstrip().endswith("}"):
                found = _read("\n".join(lines))
                if found is not None:
                    return found
            if len(lines) > _MOST_LINES or (not lines and number > _HEAD_LINES):
                return None
    return None


def _split(line: str) -> tuple[str, str]:
    """Who printed a line, and what."""
    plain = _COLOUR.sub("", line.rstrip("\n"))
    actor = _ACTOR.match(plain)
    return ("", plain) if actor is None else (actor[1], plain[actor.end() :])


def _read(text: str) -> str | None:
    if text.count("{") != text.count("}"):
        return None
    try:
        return json.dumps(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
