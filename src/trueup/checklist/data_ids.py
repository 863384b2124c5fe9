"""Ids that occur in the data a run trains on: their range, and the special ones among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from trueup.batches.indexed_dataset import IndexedDataset, files_of, prefix_of
from trueup.batches.opening import open_source
from trueup.batches.source import TOKENS
from trueup.checklist.configuration import Configuration
from trueup.checklist.dialect import CanonicalValue
from trueup.checklist.fields import fields
from trueup.checklist.judging import DemandRow, DemandSide, DemandStatus
from trueup.checklist.recommendations import Unmet
from trueup.checklist.rules import Severity
from trueup.checklist.thresholds import (
    ENDS_A_ROW,
    FEWEST_DOCUMENTS,
    PADDED_ROWS,
    PADDING_RUN,
    SHARED_END,
    UNKNOWN_SHARE,
)
from trueup.checklist.writing import setting_words
from trueup.errors import ConfigError, TraceError
from trueup.types.arrays import Array
from trueup.types.codes import ChecklistCode as Code
from trueup.types.reason import Reason, reason

INPUT_IDS = "input_ids"
"""the row of ids outside the vocabulary"""
IGNORED = "ignore_token_id"
_MOST_SEQUENCES = 4096
_MOST_PLACES = 64
_WIDEST = 2**22
"""ids apart, beyond which pairs of them are not counted; no vocabulary is larger"""
_ROLES = 4
"""of a conversation: system, user, assistant and tool"""
_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataIds:
    """What a sample of the data says of its ids; None where it does not say."""

    path: str
    num_ids: int
    least: int
    largest: int
    counts: Mapping[int, int]
    """id -> how often it occurs in the sample"""
    start: int | None = None
    """the id documents begin with"""
    end: int | None = None
    """the id documents end with"""
    padding: int | None = None
    """the id rows are filled up with"""
    before_end: int | None = None
    """the id that nearly all rows have before the one they end with: a line break may follow an end"""
    followed: Mapping[int, int] = field(default_factory=dict)
    """id -> the id that follows it nearly everywhere, and that nearly nowhere stands behind another"""
    is_whole: bool = False
    """every id of a data set was looked at, whose labels are its ids"""


def ids_of(path: Path) -> DataIds:
    """The ids of a data set (``PREFIX.bin`` and ``.idx``), of saved batches, or of a trace, from a sample.

    Raises:
        ConfigError: none of these, or it holds no ids.
    """
    try:
        if any(file.is_file() for file in files_of(prefix_of(path))):
            data = IndexedDataset(prefix_of(path))
            rows = list(_documents(data))
            found = _summed(str(path), [row for row in rows if len(row)], are_documents=True)
            return replace(found, is_whole=found.num_ids == data.num_tokens)
        source = open_source(path)
        places = source.places
        chosen = [places[at] for at in _spread(len(places), _MOST_PLACES)]
        rows = [row for place in chosen for row in np.atleast_2d(source.read(place)[TOKENS])]
        return _summed(str(path), rows, are_documents=False)
    except TraceError as error:
        raise ConfigError(f"--data {path}: expected token ids: {error}") from error


def _documents(data: IndexedDataset) -> Iterator[Array]:
    """Documents from all over the data set, their sequences end to end."""
    marks = data.documents if len(data.documents) > 1 else np.arange(len(data) + 1)
    for at in _spread(len(marks) - 1, _MOST_SEQUENCES):
        parts = [np.asarray(data[number]) for number in range(int(marks[at]), int(marks[at + 1]))]
        yield np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _spread(num: int, most: int) -> Iterable[int]:
    return np.unique(np.linspace(0, num - 1, min(num, most)).round().astype(int)).tolist() if num else ()


def _summed(path: str, rows: Sequence[Array], *, are_documents: bool) -> DataIds:
    if not rows:
        raise ConfigError(f"--data {path}: it holds no token ids")
    values, counts = np.unique(np.concatenate([row.ravel() for row in rows]), return_counts=True)
    padding = _padding(rows)
    found = dict(zip(values.tolist(), counts.tolist(), strict=True))
    ends = are_documents and len({len(row) for row in rows}) > 1
    end = _shared([int(row[-1]) for row in rows]) if ends else None
    start = _shared([int(row[0]) for row in rows]) if ends else None
    if start is not None and found[start] >= ENDS_A_ROW * len(rows):
        start = None  # it begins every turn of a conversation, or it is a word
    before = _shared([int(row[-2]) for row in rows if len(row) > 1]) if ends else None
    if not are_documents and padding is not None:
        end = _end_of_padded(rows, padding, found)
        before = _before_padding(rows, padding, 2)
    if not are_documents and padding is None:
        end = _end_within(rows)
    return DataIds(
        path=path,
        num_ids=int(counts.sum()),
        least=int(values[0]),
        largest=int(values[-1]),
        counts=found,
        start=start,
        end=end,
        before_end=before,
        padding=padding,
        followed={} if are_documents or padding is not None else _followed(rows),
    )


def _followed(rows: Sequence[Array]) -> dict[int, int]:
    """Ids that one other id follows nearly everywhere, which stands behind nearly no other and has many ids
    behind itself: in packed rows an end and the start of the next document are such. A mark of turns has a
    role behind it, one of a few."""
    flat = np.concatenate([row.ravel() for row in rows]).astype(np.int64)
    least, span = int(flat.min()), int(flat.max()) - int(flat.min()) + 1
    if span > _WIDEST:
        return {}
    pairs = [(row.ravel()[:-1] - least) * span + row.ravel()[1:] - least for row in rows if row.size > 1]
    if not pairs:
        return {}
    codes, times = np.unique(np.concatenate(pairs), return_counts=True)
    firsts, seconds = codes // span, codes % span
    before, behind = (np.bincount(one, times, minlength=span) for one in (firsts, seconds))
    tied = (times >= FEWEST_DOCUMENTS) & (firsts != seconds) & (times >= SHARED_END * before[firsts])
    tied &= times >= SHARED_END * behind[seconds]
    found = {}
    for one, other in zip(firsts[tied].tolist(), seconds[tied].tolist(), strict=True):
        commonest = np.sort(times[firsts == other])[-_ROLES:].sum()
        if commonest <= before[other] / 2:
            found[one + least] = other + least
    return found


def _shared(ids: Sequence[int]) -> int | None:
    """The id nearly all documents have at one place."""
    if len(ids) < FEWEST_DOCUMENTS:
        return None
    values, counts = np.unique(ids, return_counts=True)
    return int(values[counts.argmax()]) if counts.max() >= SHARED_END * len(ids) else None


def _padding(rows: Sequence[Array]) -> int | None:
    """The id that fills rows up: a run of it ends many of them, or begins them, and no other id's run does.
    Runs that begin all rows alike are no filling: places of an image are."""
    filled = [int(row[-1]) for row in rows if _run(row) >= PADDING_RUN]
    if len(filled) < PADDED_ROWS * len(rows):
        runs = [(_run(row[::-1]), int(row[0])) for row in rows]
        lengths = {length for length, _ in runs if length >= PADDING_RUN}
        filled = [first for length, first in runs if length >= PADDING_RUN and len(lengths) > 1]
    if len(filled) < PADDED_ROWS * len(rows) or len(set(filled)) != 1:
        return None
    return filled[0]


def _end_of_padded(rows: Sequence[Array], padding: int, counts: Mapping[int, int]) -> int | None:
    """The id that stands before the padding of nearly all rows, and nearly nowhere else.

    Conversations end with a line break after their end: it is in the text as well, and is no special id.
    """
    end = _before_padding(rows, padding, 1)
    return end if end is not None and counts[end] <= ENDS_A_ROW * len(rows) else None


def _before_padding(rows: Sequence[Array], padding: int, places: int) -> int | None:
    """The id that nearly all padded rows have so many places before their padding."""
    filled = [(row, len(row) - _run(row)) for row in rows if row[-1] == padding and _run(row) >= PADDING_RUN]
    return _shared([int(row[at - places]) for row, at in filled if at >= places])


def _end_within(rows: Sequence[Array]) -> int | None:
    """Of packed rows: the id before nearly every later place of the id that they begin with, where it stands
    nearly nowhere else. Rows begin with a document then, and so do those places."""
    start = _shared([int(row[0]) for row in rows])
    if start is None:
        return None
    before = [int(one) for row in rows for one in row[:-1][row[1:] == start]]
    end = _shared(before)
    others = (
        sum(int(np.count_nonzero(row == end)) for row in rows) - before.count(end) if end is not None else 0
    )
    return end if end != start and others <= ENDS_A_ROW * len(rows) else None


def _run(row: Array) -> int:
    """Length of the run of one id that ends a row; a row of one id alone says nothing."""
    other = np.flatnonzero(row != row[-1])
    return len(row) - 1 - int(other[-1]) if len(other) else 0


def judge_ids(
    data: Iterable[DataIds], target: Configuration, reference: Configuration | None
) -> Iterator[Unmet]:
    """Ids outside the vocabulary, and special ids that are not those the data was made with."""
    sides = {"target": target} if reference is None else {"target": target, "reference": reference}
    for found in data:
        beyond = {n: s.values["vocab_size"] for n, s in sides.items() if _is_beyond(found, s)}
        if beyond:
            ids = reason(Code.IDS_BEYOND, least=found.least, largest=found.largest, path=found.path)
            yield _unmet(INPUT_IDS, "error", beyond, ids, reason(Code.WITHIN_VOCABULARY), {})
        for key in _SPECIAL:
            wrong = {
                n: (s.values[key], mismatch)
                for n, s in sides.items()
                if (mismatch := _differs(key, s, found))
            }
            if wrong:
                how = {
                    name: setting_words(sides[name], key, wanted) for name, (_, (_, wanted)) in wrong.items()
                }
                values = {name: value for name, (value, _) in wrong.items()}
                why, wanted = next(iter(wrong.values()))[1]
                recommendation = (
                    reason(Code.ANOTHER_TOKENIZER) if wanted is None else reason(Code.WANTED, value=wanted)
                )
                yield _unmet(key, "warning", values, why, recommendation, how, value=wanted)


def ignored_label(row: DemandRow, data: Sequence[DataIds]) -> DemandRow:
    """The row of ``ignore_token_id`` with what the data says: ids that no label has make no difference."""
    own = {name: cell.value for name, cell in (("target", row.target), ("reference", row.reference)) if cell}
    ids = {name: value for name, value in own.items() if isinstance(value, int) and value >= 0}
    if row.status is not DemandStatus.DIFFERENT or not data or not ids:
        return row
    for found in data:
        for side, value in ids.items():
            if num := found.counts.get(value, 0):
                facts = {"num": num, "all": found.num_ids, "id": value}
                why = reason(Code.IGNORED_LABELS, path=found.path, side=side, **facts)
                return replace(row, reason=why)
    path, looked_for = ", ".join(found.path for found in data), [*map(str, dict.fromkeys(ids.values()))]
    if not all(found.is_whole for found in data):
        num = sum(found.num_ids for found in data)
        return replace(row, reason=reason(Code.NONE_IN_SAMPLE, all=num, path=path, ids=looked_for))
    why = reason(Code.NO_SUCH_LABEL, path=path, ids=looked_for)
    return replace(row, status=DemandStatus.ALIGNED, reason=why)


def _is_beyond(found: DataIds, side: Configuration) -> bool:
    size = side.values.get("padded_vocab_size") or side.values.get("vocab_size")
    stated = side.values.get("vocab_size")
    limit = max((value.whole for value in (size, stated) if value is not None), default=None)
    return "vocab_size" in side.values and limit is not None and not 0 <= found.least <= found.largest < limit


def _differs(key: str, side: Configuration, found: DataIds) -> tuple[Reason, int | None] | None:
    """Why the side's id is not the data's, and the data's."""
    if key not in side.values:
        return None
    own = side.values[key].whole
    in_data = {"bos_token_id": found.start, "eos_token_id": found.end, "pad_token_id": found.padding}.get(key)
    if key == "bos_token_id" and in_data is None and "eos_token_id" in side.values:
        in_data = _behind_end(found, side.values["eos_token_id"].whole, own)
    if key == "unk_token_id":
        num = found.counts.get(own, 0)
        known = (side.values[other].whole for other in _SPECIAL if other != key and other in side.values)
        other_use = (found.start, found.end, found.padding, *known)
        if own in other_use or num <= UNKNOWN_SHARE * found.num_ids:
            return None
        return reason(Code.UNKNOWN_IDS, share=num / found.num_ids, id=own, path=found.path), None
    if in_data is None or in_data == own or (key == "eos_token_id" and own == found.before_end):
        return None
    times = found.counts.get(own, 0)
    sample = {} if found.is_whole else {"sample": found.num_ids}
    return reason(Code.DATA_ID, key=key, id=in_data, own=own, times=times, path=found.path, **sample), in_data


def _behind_end(found: DataIds, end: int, own: int) -> int | None:
    """The id that documents packed into rows begin with, where ``own`` occurs nowhere: the one behind nearly
    every end."""
    start = found.followed.get(end)
    return None if start in (None, found.padding) or found.counts.get(own, 0) else start


def _unmet(
    key: str,
    severity: Severity,
    values: Mapping[str, CanonicalValue],
    why: Reason,
    wanted: Reason,
    how: Mapping[str, str],
    *,
    value: object = None,
) -> Unmet:
    known = fields().all
    cells = {
        name: DemandSide(
            value=one.value,
            origin=one.origin,
            keys=tuple(s.key for s in one.settings),
            places=tuple(s.place for s in one.settings),
            says=one.says,
        )
        for name, one in values.items()
    }
    beyond = "other: input_ids check" if key == INPUT_IDS else "other: Special Words Check"
    return Unmet(
        key=key,
        section="data",
        about=known[key].about if key in known else "Ids of the data against the vocabulary",
        severity=severity,
        sides=tuple(values),
        target=cells.get("target"),
        reference=cells.get("reference"),
        wanted=wanted,
        value=value,
        why="Special ids must be those the data was made with." if key in known else _BEYOND,
        how=tuple((name, words) for name, words in how.items() if words),
        reason=why,
        sources=(beyond,),
    )


_BEYOND = "An id outside the vocabulary reads foreign memory in the embedding."
