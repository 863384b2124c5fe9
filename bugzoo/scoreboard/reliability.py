"""How often a conclusion with each word of confidence is right, held against what was held out."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bugzoo.entries import HELD_OUT, TUNING, Entry, entries
from bugzoo.scoreboard.answers import Answer, from_compare, from_diagnose
from bugzoo.scoreboard.judging import judge
from trueup.types.confidence import ENOUGH, Question, Word

HERE = Path(__file__).resolve().parents[1]
RELIABILITY = HERE / "reliability.json"
TABLE = HERE.parent / "src" / "trueup" / "types" / "confidence.py"
Counts = dict[str, dict[str, dict[str, list[int]]]]
"""question -> part -> word -> right, counted"""


def count(documents: Path) -> Counts:
    """Of the documents that ``zoo.py --judge`` kept, one file an entry."""
    seen: Counter[tuple[str, str, str, bool]] = Counter()
    for entry in entries().values():
        path = documents / f"{entry.name}.json"
        if not path.exists():
            continue
        for mode, document in json.loads(path.read_text(encoding="utf-8")).items():
            if document is not None:
                asked = of_compare if mode.startswith("compare") else of_diagnose
                seen.update((question, entry.part, *one) for question, *one in asked(entry, document))
    return {
        question.value: {
            part: {
                word.value: [seen[question.value, part, word.value, True], _both(seen, question, part, word)]
                for word in Word
            }
            for part in (TUNING, HELD_OUT)
        }
        for question in Question
    }


def _both(seen: Counter[tuple[str, str, str, bool]], question: Question, part: str, word: Word) -> int:
    return sum(seen[question.value, part, word.value, right] for right in (True, False))


def of_compare(entry: Entry, document: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Question, word and whether it is right, of a verdict that names a place."""
    verdict = document["verdict"]
    if verdict["outcome"] == "differ" and verdict.get("confidence_word"):
        right = _is_right(entry, from_compare(dict(document), seconds=0.0), "site")
        yield Question.DIVERGENCE.value, verdict["confidence_word"], right


def of_diagnose(entry: Entry, document: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """The same of the first finding's place, and of its first kind."""
    answer = from_diagnose(dict(document), seconds=0.0)
    if answer.outcome != "differ" or not document["findings"]:
        return
    first = document["findings"][0]
    yield Question.PLACE.value, first["confidence_word"], _is_right(entry, answer, "site")
    if first["kinds"]:
        word = first["kinds"][0]["confidence_word"]
        yield Question.KIND.value, word, _is_right(entry, answer, "kind")


def _is_right(entry: Entry, answer: Answer, what: str) -> bool:
    return not entry.is_benign and bool(getattr(judge(entry, answer), what))


def share(right: int, counted: int) -> float | None:
    """As ``confidence_of`` gives it."""
    return round((right + 0.5) / (counted + 1), 2) if counted >= ENOUGH else None


def expected_error(parts: Mapping[str, Mapping[str, list[int]]]) -> float | None:
    """Expected calibration error: |share of the tuning part - share right of the held-out part|, weighted by
    the held-out part; words without a share are left out. None where nothing is left."""
    errors, total = 0.0, 0
    for word, (right, counted) in parts[HELD_OUT].items():
        predicted = share(*parts[TUNING][word])
        if predicted is not None and counted:
            errors += abs(predicted * counted - right)
            total += counted
    return errors / total if total else None


def table(counts: Counts) -> list[str]:
    """The reliability table of the scoreboard, in Markdown."""
    lines = [
        "| conclusion | confidence | share in tuning part (predicted) | held-out part (observed) |",
        "|---|---|---|---|",
    ]
    for question, parts in counts.items():
        for word in Word:
            (right, counted), (held, of) = parts[TUNING][word.value], parts[HELD_OUT][word.value]
            predicted = share(right, counted)
            tuning = "too few" if predicted is None else f"{predicted:.0%}"
            observed = f"{held / of:.0%} ({held} of {of})" if of else "none"
            lines.append(f"| {question} | {word.value} | {tuning} ({right} of {counted}) | {observed} |")
    errors = ((question, expected_error(parts)) for question, parts in counts.items())
    words = (f"{question} {error:.3f}" for question, error in errors if error is not None)
    return [*lines, "", f"Expected calibration error on the held-out part (bar 0.05): {', '.join(words)}."]


def write(counts: Counts) -> None:
    """reliability.json, and the tuning part's counts into ``MEASURED``."""
    RELIABILITY.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    rows = [
        f"    (Question.{question.name}, Word.{word.name}): ({right}, {counted}),"
        for question in Question
        for word in Word
        for right, counted in [counts[question.value][TUNING][word.value]]
    ]
    text = TABLE.read_text(encoding="utf-8")
    pattern = r"(MEASURED: [^\n]* = )\{[^}]*\}"
    TABLE.write_text(re.sub(pattern, "\\1{\n" + "\n".join(rows) + "\n}", text), encoding="utf-8")
