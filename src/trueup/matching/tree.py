"""The call trees of two traces as arrays of integers over shared vocabularies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.matching import names as rules
from trueup.matching.asked import microbatches
from trueup.matching.codes import Codes, Hashes, integers, mix, shape_codes, shared_codes, sum_by
from trueup.store import StepTables
from trueup.store.pipelined import by_backward


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Vocabularies the codes of both trees index."""

    kind: list[str]
    name: list[str]
    type: list[str]
    mode: list[str]
    phase: list[str]
    slot: list[str]
    dtype: list[str]
    shape: list[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSide:
    """One trace's calls and records. Calls are numbered as in the table; ``parent`` is -1 at top level.

    ``exact`` is what a call is within its parent (kind, relative name, mode, at top level also microbatch),
    ``family`` the same with functions reduced to their family, ``shapes`` hashes the shapes of its
    tensors, ``details`` also their dtypes and its arguments.
    """

    parent: Codes
    kind: Codes
    name: Codes
    plain: Codes
    """name without wrappers, over the vocabulary of names"""
    type: Codes
    mode: Codes
    microbatch: Codes
    ordinal: Codes
    exact: Hashes
    family: Hashes
    shapes: Hashes
    details: Hashes
    arguments: Codes
    """plain arguments as one text, over a vocabulary of both trees"""
    wrapper: NDArray[np.bool_]
    """a module call that only passes on to the one call below it of the same plain name"""
    wrapped_by: Codes
    """the wrapper directly around a call, else -1"""
    record_call: Codes
    record_phase: Codes
    record_slot: Codes
    record_microbatch: Codes
    record_summary: Codes
    summary_dtype: Codes
    summary_shape: Codes
    summary_digest: Hashes
    """of the content; 0 where there is none"""

    @property
    def num_calls(self) -> int:
        """Number of calls."""
        return len(self.parent)


def build(target: StepTables, reference: StepTables) -> tuple[TreeSide, TreeSide, Words]:
    """Both trees over common vocabularies, ready to be compared as integers."""
    both = (target, reference)
    calls = [t.calls for t in both]
    kind = shared_codes(calls[0]["kind"], calls[1]["kind"])
    name = shared_codes(calls[0]["name"], calls[1]["name"])
    type_ = shared_codes(calls[0]["type"], calls[1]["type"])
    mode = shared_codes(calls[0]["mode"], calls[1]["mode"])
    arguments = shared_codes(calls[0]["arguments"], calls[1]["arguments"])
    phase = shared_codes(target.records["phase"], reference.records["phase"])
    slot = shared_codes(target.records["slot"], reference.records["slot"])
    dtype = shared_codes(target.summaries["dtype"], reference.summaries["dtype"])
    shape, shapes = shape_codes([target.summaries["shape"], reference.summaries["shape"]])
    words_of_names = list(name.words)
    index_of_name = {word: code for code, word in enumerate(words_of_names)}
    words = Words(
        kind=kind.words,
        name=words_of_names,
        type=type_.words,
        mode=mode.words,
        phase=phase.words,
        slot=slot.words,
        dtype=dtype.words,
        shape=shapes,
    )
    sides = []
    asked = microbatches(target, reference)
    pipelined = by_backward(target, reference)
    one_sided = _kinds_of_one_side(*kind.codes)
    plains = [
        _plain_names(kind.codes[which], name.codes[which], kind.words, words_of_names, index_of_name)
        for which in range(2)
    ]
    for which, tables in enumerate(both):
        microbatch, records = asked[which], _record_columns(tables, asked[which])
        if pipelined is not None:
            microbatch = np.where(microbatch < 0, microbatch, pipelined[which].calls)
            records = records[0], pipelined[which].records, records[2]
        parent = integers(tables.calls["parent"])
        parent = _without(parent, np.isin(kind.codes[which], one_sided))
        plain, module = plains[which], _code_of(kind.words, "module")
        if both[1 - which].gaps:
            parent = _without(parent, _not_held(plains, [codes == module for codes in kind.codes], which))
        parent, wrapper, wrapped_by = _skip_wrappers(parent, kind.codes[which], plain, module)
        exact, family = _tokens(
            parent,
            kind.codes[which],
            plain,
            mode.codes[which],
            microbatch,
            words_of_names,
            kind.words,
            module,
        )
        shape_hash, dtype_hash = _tensor_hashes(
            records,
            phase.codes[which],
            slot.codes[which],
            dtype.codes[which],
            shape[which],
            words,
            len(parent),
        )
        sides.append(
            TreeSide(
                parent=parent,
                kind=kind.codes[which],
                name=name.codes[which],
                plain=plain,
                type=type_.codes[which],
                mode=mode.codes[which],
                microbatch=microbatch,
                ordinal=integers(tables.calls["ordinal"]),
                exact=exact,
                family=family,
                shapes=shape_hash,
                details=mix(arguments.codes[which], shape_hash, dtype_hash),
                arguments=arguments.codes[which],
                wrapper=wrapper,
                wrapped_by=wrapped_by,
                record_call=records[0],
                record_phase=phase.codes[which],
                record_slot=slot.codes[which],
                record_microbatch=records[1],
                record_summary=records[2],
                summary_dtype=dtype.codes[which],
                summary_shape=shape[which],
                summary_digest=tables.summaries["digest"].fill_null(0).to_numpy(),
            )
        )
    return sides[0], sides[1], words


def _record_columns(tables: StepTables, microbatch: Codes) -> tuple[Codes, Codes, Codes]:
    """Call, microbatch and summary of each record; a microbatch later where its call is."""
    records = tables.records
    call, recorded = integers(records["call"]), integers(records["microbatch"])
    later = microbatch - integers(tables.calls["microbatch"])
    return call, recorded + np.where(call >= 0, later[call], 0), integers(records["summary"])


def _code_of(vocabulary: list[str], word: str) -> int:
    return vocabulary.index(word) if word in vocabulary else -2


def _kinds_of_one_side(target: Codes, reference: Codes) -> Codes:
    """Kinds of call that only one trace has, say modules where the other is at level L1: never taken for
    parents."""
    return np.asarray(np.setxor1d(np.unique(target), np.unique(reference)), np.int64)


def _not_held(plains: Sequence[Codes], modules: Sequence[NDArray[np.bool_]], which: int) -> NDArray[np.bool_]:
    """Modules of one trace that a dump, which holds no other module than the trace does, does not hold: its
    calls below them stand where they do."""
    own, other = (np.unique(plains[side][modules[side]]) for side in (which, 1 - which))
    if not len(other) or not np.isin(other, own).all():
        return np.zeros(len(plains[which]), bool)
    return np.asarray(modules[which] & ~np.isin(plains[which], other))


def _without(parent: Codes, left_out: NDArray[np.bool_]) -> Codes:
    """Parents with some calls taken out of the tree: what was below moves up."""
    while True:
        again = (parent >= 0) & left_out[parent]
        if not again.any():
            return parent
        parent = np.where(again, parent[parent], parent)


def _plain_names(
    kind: Codes, name: Codes, kinds: list[str], words: list[str], index: dict[str, int]
) -> Codes:
    plain: Codes = name.copy()
    for which in ("module", "parameter"):
        rows = kind == _code_of(kinds, which)
        codes = np.unique(name[rows & (name >= 0)])
        leading = rules.common_wrappers([words[c] for c in codes])
        table = np.arange(len(words))
        for code in codes:
            word = rules.normalised(words[code], leading=leading)
            if word not in index:
                index[word] = len(words)
                words.append(word)
            table[code] = index[word]
        plain[rows] = np.where(name[rows] >= 0, table[name[rows]], -1)
    return plain


def _skip_wrappers(
    parent: Codes, kind: Codes, plain: Codes, module: int
) -> tuple[Codes, NDArray[np.bool_], Codes]:
    inner = (parent >= 0) & (kind == module) & (kind[parent] == module) & (plain == plain[parent])
    wrapper = np.zeros(len(parent), bool)
    wrapper[parent[inner]] = True
    return _without(parent, wrapper), wrapper, np.where(inner, parent, -1)


def _tokens(
    parent: Codes,
    kind: Codes,
    plain: Codes,
    mode: Codes,
    microbatch: Codes,
    words: list[str],
    kinds: list[str],
    module: int,
) -> tuple[Hashes, Hashes]:
    """Hashes of (kind, name, mode) within the parent: module names relative to it, functions also by
    family."""
    top = parent < 0
    parent_name = np.where(top, -1, plain[parent])
    is_module = kind == module
    pairs, inverse = np.unique(
        np.stack([parent_name[is_module], plain[is_module]], 1), axis=0, return_inverse=True
    )
    relative = [
        _word_hash(rules.relative(words[n] if n >= 0 else "", words[p] if p >= 0 else "")) for p, n in pairs
    ]
    name_hash = np.array([_word_hash(w) for w in words] or [0], np.uint64)[np.maximum(plain, 0)]
    family_hash = np.array([_word_hash(rules.family(w)) for w in words] or [0], np.uint64)[
        np.maximum(plain, 0)
    ]
    if len(pairs):
        name_hash[is_module] = family_hash[is_module] = np.array(relative, np.uint64)[inverse.reshape(-1)]
    kind_hash = np.array([_word_hash(w) for w in kinds] or [0], np.uint64)[np.maximum(kind, 0)]
    place = np.where(top, microbatch, -1)
    return mix(kind_hash, name_hash, mode, place), mix(kind_hash, family_hash, mode, place)


def _word_hash(word: str) -> int:
    return hash(("trueup", word)) & 0xFFFFFFFFFFFFFFFF


def _tensor_hashes(
    records: tuple[Codes, Codes, Codes],
    phase: Codes,
    slot: Codes,
    dtype: Codes,
    shape: Codes,
    words: Words,
    num_calls: int,
) -> tuple[Hashes, Hashes]:
    """Per call, a hash of slot and shape of its forward tensors, and one of slot and dtype."""
    call, _, summary = records
    forward = np.isin(phase, [_code_of(words.phase, p) for p in ("forward", "loss", "collective", "param")])
    forward &= (summary >= 0) & (call >= 0)
    rows = summary[forward]
    return (
        sum_by(call[forward], mix(slot[forward], shape[rows]), num_calls),
        sum_by(call[forward], mix(slot[forward], dtype[rows]), num_calls),
    )
