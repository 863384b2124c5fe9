"""Lines that name their numbers, in whatever way: the last reader that is asked.

``steps: 10 loss: 2.31``, ``Iter: 10, Loss: 2.31``, ``Step 10 | loss:2.31 lr:2e-5``, JSON behind a time
stamp, a progress bar with ``loss=2.31``, and blocks of lines of which the first has the step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import polars as pl

from trueup.curves.columns import GRAD_NORM, LEARNING_RATE, LOSS, SCHEMA, STEP
from trueup.curves.readers.protocol import LogRows

_NUMBER = (
    r"([-+]?(?:nan|inf(?:inity)?|(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?))"
)
_NAMES = {
    STEP: r"(?:global|train|training|current)?[_ ]?step|steps|iteration|iter|num_updates",
    LOSS: r"(?:train(?:ing)?[/_ ]|lm[_ ]|avg[_ ]|reduced_train_)?loss|loss/train|train/CrossEntropyLoss",
    GRAD_NORM: r"(?:optim/)?(?:total_|global_)?grad(?:ient)?[_ ]?norm|gnorm",
    LEARNING_RATE: r"lr|learning[_ ]rate",
}
_OTHERS = "".join(
    rf"(?<!{word}[ _/])"
    for word in ("val", "valid", "validation", "eval", "test", "dev", "aux", "mtp", "moe", "z")
)
_PATTERNS = {
    column: re.compile(
        rf"(?<![\w/.]){_OTHERS}(?:{names})[\"']?\s*[:=]?\s*[\"'\[(]*{_NUMBER}(?![\w.])", re.IGNORECASE
    )
    for column, names in _NAMES.items()
}
_BAR = re.compile(r"\|\s*(\d+)/\d+ \[")
"""the counter of a progress bar"""
_LINE = re.compile(r"[\r\n]+")
_FEWEST = 2
"""a sentence may name a step and a loss; two with steps that rise are a log"""


class NamedNumbers:
    """A log of which only this is known: a line, or a block of lines, names a step and a loss."""

    name = "words"
    title = "lines that name a step and a loss"
    appendable = False

    def recognises(self, head: bytes, path: Path) -> bool:
        """Whether two steps with a loss follow each other."""
        if re.search(rb"loss", head, re.IGNORECASE) is None or b"\0" in head[:1024]:
            return False
        steps = [row[STEP] for row in _rows(head.decode("utf-8", "replace"))]
        return len(set(steps)) >= _FEWEST and all(first <= second for first, second in pairwise(steps[:100]))

    def read(self, data: bytes, path: Path, chosen: Mapping[str, str]) -> LogRows:
        """The rows of the lines, or blocks, that have a step and a loss."""
        rows = _rows(data.decode("utf-8", "replace"))
        schema = {column: SCHEMA[column] for column in (STEP, LOSS, GRAD_NORM, LEARNING_RATE)}
        frame = pl.DataFrame({name: [row.get(name) for row in rows] for name in schema}, strict=False)
        return LogRows(frame=frame.select(pl.col(name).cast(kind) for name, kind in schema.items()))


def _rows(text: str) -> list[dict[str, float]]:
    named = [_numbers(line) for line in _LINE.split(text)]
    whole = [row for row in named if STEP in row and LOSS in row]
    return whole if len(whole) >= _FEWEST else list(_blocks(named))


def _numbers(line: str) -> dict[str, float]:
    found = {column: match[1] for column, pattern in _PATTERNS.items() if (match := pattern.search(line))}
    bar = _BAR.search(line) if STEP not in found else None
    if bar is not None:
        found[STEP] = bar[1]
    return {column: float(number.replace(",", "")) for column, number in found.items()}


def _blocks(named: list[dict[str, float]]) -> Iterator[dict[str, float]]:
    """What stands between one step and the next, as one."""
    block: dict[str, float] = {}
    for row in (*named, {STEP: 0.0}):
        if STEP in row:
            if STEP in block and LOSS in block:
                yield block
            block = {}
        block = {**row, **block}
