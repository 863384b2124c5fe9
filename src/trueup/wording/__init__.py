"""What every code says in English: the only place that holds sentences. Used by reporting alone.

A room has one module here, named as in ``types/codes``: a dict from code to ``Phrase``.
"""

from trueup.wording.catalogue import (
    advice,
    command,
    headline,
    phrase_of,
    phrases,
    text,
    texts,
)
from trueup.wording.documents import document, refuse_unreadable

__all__ = [
    "advice",
    "command",
    "document",
    "headline",
    "phrase_of",
    "phrases",
    "refuse_unreadable",
    "text",
    "texts",
]
