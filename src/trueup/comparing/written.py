"""How conclusions are written and read: their text beside their codes, in tables and in result.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from trueup.store.checked import as_written, document_from_file
from trueup.types.reason import Json, Reason, given, reason_from_json
from trueup.types.result import ResultDocument
from trueup.wording import document, refuse_unreadable, text

__all__ = ["AGAIN", "document", "note_columns", "read_document", "reason_columns", "reason_of_row"]

AGAIN = "Run the comparison again"
_READ = (1, 2)
"""versions of result.json"""


@dataclass(slots=True)
class _Vocabulary:
    """Distinct reasons in the order they were met."""

    of: dict[Reason, int] = field(default_factory=dict)
    _seen: dict[int, int] = field(default_factory=dict)
    """by identity, which is faster: most rows share one object"""

    def number(self, one: Reason) -> int:
        """Of a reason; a new one where it was not met before."""
        known = self._seen.get(id(one))
        if known is None:
            known = self._seen[id(one)] = self.of.setdefault(one, len(self.of))
        return known

    def columns(self) -> dict[str, list[str]]:
        """Text, code and facts of each."""
        return {
            "reason": [text(one) for one in self.of],
            "reason_code": [one.code.value for one in self.of],
            "reason_facts": [_facts(one) for one in self.of],
        }


def reason_columns(reasons: Mapping[int, Reason], num: int) -> dict[str, pa.Array]:
    """``reason``, ``reason_code`` and ``reason_facts`` of ``num`` rows."""
    vocabulary = _Vocabulary()
    codes = np.full(num, -1, np.int32)
    for row, one in reasons.items():
        codes[row] = vocabulary.number(one)
    columns = {}
    for name, words in vocabulary.columns().items():
        distinct = list(dict.fromkeys(words))
        index = {word: at for at, word in enumerate(distinct)}
        table = np.array([*(index[word] for word in words), -1], np.int32)
        indices = pa.array(table[codes], mask=codes < 0)
        columns[name] = pa.DictionaryArray.from_arrays(indices, pa.array(distinct, pa.string()))
    return columns


def note_columns(notes: Sequence[Reason | None]) -> dict[str, pl.Series]:
    """``note``, ``note_code`` and ``note_facts``."""
    distinct = {one: (text(one), one.code.value, _facts(one)) for one in notes if one is not None}
    columns = zip(*(distinct[one] if one is not None else (None,) * 3 for one in notes), strict=True)
    names = "note", "note_code", "note_facts"
    found = list(columns) or [()] * 3
    return {name: pl.Series(name, values, dtype=pl.String) for name, values in zip(names, found, strict=True)}


def reason_of_row(row: Mapping[str, object]) -> Reason | None:
    """The reason of a row of result.parquet; of version 1 its text."""
    facts = row.get("reason_facts")
    if facts is not None:
        return reason_from_json(json.loads(str(facts)))
    return given(str(row["reason"])) if row.get("reason") else None


def read_document(folder: Path) -> ResultDocument:
    """The result.json of a result folder.

    Raises:
        TraceError: it is not there, damaged, or of another version.
    """
    path = folder / "result.json"
    found = document_from_file(path, ResultDocument, versions=_READ, remedy=AGAIN)
    with as_written(path, remedy=AGAIN):
        refuse_unreadable(found)
    return found


def _facts(one: Reason) -> str:
    """Without text: a line of JSON."""
    plain: dict[str, Json] = one.to_json()
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
