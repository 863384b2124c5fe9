"""How far a conclusion can be relied on: a word, and how often such conclusions were right, where counted.

The counts are those of the fault collection's tuning part (``python bugzoo/calibration.py``); the scoreboard
holds them against the part that was held out. They say how often a conclusion was right *there*: on programs
and faults of other kinds it may be less, so reports print the word (docs/decisions/0026-confidence.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Word(str, Enum):
    """What a report prints, strongest first."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"

    @property
    def weaker(self) -> Word:
        """The next word below; the weakest stays."""
        return Word.LIKELY if self is Word.CERTAIN else Word.POSSIBLE


class Question(str, Enum):
    """What is right or wrong."""

    DIVERGENCE = "divergence"
    """the place where ``compare`` says that two runs first diverge"""
    PLACE = "place"
    """the place of the first finding of ``diagnose``"""
    KIND = "kind"
    """the first kind of fault of that finding"""


@dataclass(frozen=True, slots=True)
class Confidence:
    """A word, and the share of such conclusions that were right; None where too few were counted."""

    word: Word
    share: float | None = None

    def __str__(self) -> str:
        return self.word.value


MEASURED: Mapping[tuple[Question, Word], tuple[int, int]] = {
    (Question.DIVERGENCE, Word.CERTAIN): (190, 197),
    (Question.DIVERGENCE, Word.LIKELY): (8, 8),
    (Question.DIVERGENCE, Word.POSSIBLE): (1, 1),
    (Question.PLACE, Word.CERTAIN): (157, 157),
    (Question.PLACE, Word.LIKELY): (66, 66),
    (Question.PLACE, Word.POSSIBLE): (0, 0),
    (Question.KIND, Word.CERTAIN): (163, 165),
    (Question.KIND, Word.LIKELY): (26, 26),
    (Question.KIND, Word.POSSIBLE): (23, 32),
}
"""right, counted: of the tuning part"""
ENOUGH = 10
"""conclusions that must have been counted for a share"""


def confidence_of(question: Question, word: Word) -> Confidence:
    """The word with its share: the mean of Jeffreys' posterior, (right + 1/2) / (counted + 1).

    Example:
        >>> confidence_of(Question.PLACE, Word.CERTAIN).word
        <Word.CERTAIN: 'certain'>
    """
    right, counted = MEASURED.get((question, word), (0, 0))
    return Confidence(word, round((right + 0.5) / (counted + 1), 2) if counted >= ENOUGH else None)


def confidence_from_json(plain: Mapping[str, object]) -> Confidence | None:
    """Of a document; version 1 has a number without a word."""
    share, word = plain.get("confidence"), plain.get("confidence_word")
    number = float(share) if isinstance(share, (int, float)) else None
    if isinstance(word, str):
        return Confidence(Word(word), number)
    if number is None:
        return None
    bounds = ((0.9, Word.CERTAIN), (0.6, Word.LIKELY))
    return Confidence(next((word for bound, word in bounds if number >= bound), Word.POSSIBLE), number)
