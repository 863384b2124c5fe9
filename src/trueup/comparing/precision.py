"""The precision table: dtypes of inputs, weights and outputs of every paired call, side by side."""

from __future__ import annotations

import json
import re

import numpy as np
import polars as pl

from trueup.comparing.rows import Half, StepRows
from trueup.comparing.sites import owner_codes
from trueup.comparing.written import note_columns
from trueup.matching.codes import Codes
from trueup.matching.tree import Words
from trueup.types.codes import NoteCode
from trueup.types.reason import Reason, reason, reason_from_json

_BY_NAME = (
    ("loss", re.compile(r"loss|cross_entropy|nll|criterion", re.I)),
    ("rotary", re.compile(r"rotary|rope", re.I)),
    ("softmax", re.compile(r"softmax", re.I)),
    ("norm", re.compile(r"norm(?!al)|(^|[._])ln(_?\d+|_f)?$", re.I)),
    ("head", re.compile(r"(^|[._])(lm_head|head|output_layer|unembed\w*)$", re.I)),
    ("embedding", re.compile(r"embed|(^|[._])(wte|wpe)$", re.I)),
)
_LINEAR = {
    "linear",
    "matmul",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "einsum",
    "rmatmul",
    "conv1d",
    "conv2d",
    "dense",
}
_ADD = {"add", "iadd", "radd"}


_WEIGHT_SLOTS = {"linear": ("input.1", "input.weight"), "embedding": ("input.1", "input.weight")}
_WEIGHT_SLOTS |= {"norm": ("input.2", "input.weight"), "head": ("input.1", "input.weight")}
_CASTS = {"to", "float", "half", "bfloat16", "double", "type", "type_as", "astype", "cast"}
_PARTS = ("input", "weight", "output")
_OF_WEIGHTS = (NoteCode.WEIGHT_NOT_CAST, NoteCode.WEIGHT_DTYPE)
_NO_ARITHMETIC = ("bool", "int32", "int64")
"""masks, ids and positions: a call that is given one computes in no other dtype for that"""
_STORED = "stored"
"""beside the parts: the dtype a weight has before casts"""


def precision_rows(rows: StepRows, rank: int) -> pl.DataFrame:
    """One row a paired call of one rank (docs/result-format.md, precision.parquet)."""
    calls = _paired_calls(rows)
    calls = calls.join(_dtypes(rows, rows.target, "target"), on="call", how="left")
    calls = calls.join(_dtypes(rows, rows.reference, "reference"), on="call", how="left")
    calls = calls.with_columns(
        pl.col(f"{s}_{p}_dtypes").fill_null("") for s in ("target", "reference") for p in (*_PARTS, _STORED)
    )
    differs = pl.any_horizontal(
        pl.col(f"target_{p}_dtypes") != pl.col(f"reference_{p}_dtypes") for p in _PARTS
    )
    calls = calls.with_columns(pl.lit(rank, pl.Int32).alias("rank"), differs.alias("differs"))
    notes = _notes(calls)
    calls = calls.with_columns(**note_columns(notes))
    columns = ["rank", "order", "module", "name", "type", "role"]
    columns += [f"{side}_{part}_dtypes" for side in ("target", "reference") for part in _PARTS]
    return calls.sort("order").select([*columns, "differs", "note", "note_code", "note_facts"])


def precision_noted(table: pl.DataFrame) -> list[Reason]:
    """A note where calls compute in other dtypes: how many, and the first, of a weight before others, and of
    modules the innermost: what is around it hands its dtype on."""
    both = (
        (pl.col(f"target_{p}_dtypes") != pl.col(f"reference_{p}_dtypes"))
        & (pl.col(f"target_{p}_dtypes") != "")
        & (pl.col(f"reference_{p}_dtypes") != "")
        for p in _PARTS
    )
    apart = table.filter(pl.any_horizontal(both))
    if not len(apart):
        return []
    of_weights = apart.filter(pl.col("note_code").is_in([code.value for code in _OF_WEIGHTS]))
    names = apart["name"].to_list()
    inmost = [bool(name) and not any(other.startswith(f"{name}.") for other in names) for name in names]
    row = next(one for one in (of_weights, apart.filter(pl.Series(inmost)), apart) if len(one)).row(
        0, named=True
    )
    where = " · ".join(dict.fromkeys(word for word in (row["module"], row["name"]) if word))
    note = reason_from_json(json.loads(row["note_facts"]))
    return [reason(NoteCode.DTYPES_DIFFER, note, calls=len(apart), site=where or "the root module")]


def _paired_calls(rows: StepRows) -> pl.DataFrame:
    side, words = rows.match.target, rows.match.words
    first = np.full(side.num_calls, -1, np.int64)
    there = np.flatnonzero(rows.target.call >= 0)[::-1]
    first[rows.target.call[there]] = there
    kinds = np.array([word in ("module", "api", "loss") for word in words.kind] + [False])
    calls = np.flatnonzero((rows.match.calls.reference_of >= 0) & kinds[side.kind] & (first >= 0))
    owners, vocabulary = owner_codes(side, words)
    bias = _adds_vector(rows)
    names = [words.name[c] if c >= 0 else "" for c in side.name[calls].tolist()]
    types = [words.type[c] if c >= 0 else None for c in side.type[calls].tolist()]
    kind = [words.kind[c] for c in side.kind[calls].tolist()]
    described: dict[tuple[str, str, str | None, bool], str] = {}
    roles = []
    for key in zip(kind, names, types, bias[calls].tolist(), strict=True):
        if key not in described:
            described[key] = role_of(key[0], key[1], key[2], bias=key[3])
        roles.append(described[key])
    module = [vocabulary[c] if c >= 0 else None for c in owners[calls].tolist()]
    return pl.DataFrame(
        {"call": calls, "order": first[calls], "module": module, "name": names, "type": types, "role": roles},
        schema_overrides={"type": pl.String, "module": pl.String, "role": pl.String, "name": pl.String},
    )


def _adds_vector(rows: StepRows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Calls with an input of one dimension more or less than another: the shape of a bias addition."""
    dims = np.array([len(s) for s in rows.match.words.shape] + [-1])[rows.target.shape]
    inputs = rows.phase_is("forward") & rows.slot_starts("input") & (rows.target.call >= 0)
    vector = np.zeros(rows.match.target.num_calls, bool)
    vector[rows.target.call[inputs & (dims == 1)]] = True
    return vector


def _dtypes(rows: StepRows, half: Half, name: str) -> pl.DataFrame:
    """Distinct dtypes of inputs, weights and outputs per call, comma-separated, keyed by the target's
    call."""
    words = rows.match.words
    to_target = np.arange(half.side.num_calls) if half is rows.target else rows.match.calls.target_of
    losses = rows.phase_is("loss") & rows.slot_is("value")  # labels and masks are computed by no call
    forward = (rows.phase_is("forward") | losses) & (half.call >= 0) & (half.dtype >= 0)
    part = np.where(rows.slot_starts("output") | losses, 2, 0)[forward]
    weights = _weights(rows, half, to_target)
    call = np.concatenate([to_target[half.call[forward]], weights[:, 0]])
    part = np.concatenate([part, weights[:, 1]])
    dtype = np.concatenate([half.dtype[forward], weights[:, 2]])
    computes = np.array([word not in _NO_ARITHMETIC for word in words.dtype], bool)
    known = (call >= 0) & computes[dtype]
    seen = np.zeros((rows.match.target.num_calls, len(_PARTS) + 1), np.uint64)
    np.bitwise_or.at(
        seen, (call[known], part[known]), np.uint64(1) << np.minimum(dtype[known], 63).astype(np.uint64)
    )
    masks, inverse = np.unique(seen, return_inverse=True)
    dtype_lists = [",".join(w for bit, w in enumerate(words.dtype) if int(mask) >> bit & 1) for mask in masks]
    labels = pl.Series(dtype_lists, dtype=pl.String)
    at = inverse.reshape(seen.shape)
    columns = {
        f"{name}_{label}_dtypes": labels.gather(pl.Series(at[:, i]))
        for i, label in enumerate((*_PARTS, _STORED))
    }
    return pl.DataFrame({"call": np.arange(len(seen)), **columns})


def _weights(rows: StepRows, half: Half, to_target: Codes) -> Codes:
    """Call, part and dtype: parameters of each module, by name; the weight argument of functions that take
    one; and any weight that went into a function as it is, or through casts alone (then what it was cast
    to, and the dtype it is stored in)."""
    side, words = half.side, rows.match.words
    values = np.flatnonzero(rows.phase_is("param") & (half.call >= 0) & (half.dtype >= 0))
    by_module: dict[str, list[int]] = {}
    for row in values.tolist():
        owner = words.name[side.plain[half.call[row]]].rpartition(".")[0]
        by_module.setdefault(owner, []).append(int(half.dtype[row]))
    kinds = {word: code for code, word in enumerate(words.kind)}
    modules = np.flatnonzero(side.kind == kinds.get("module", -2))
    weight, stored = 1, len(_PARTS)
    found: list[tuple[int, int, int]] = []
    for call in modules.tolist():
        dtypes = dict.fromkeys(by_module.get(words.name[side.plain[call]], []))
        found += [(int(to_target[call]), part, dtype) for dtype in dtypes for part in (weight, stored)]
    role_of_name = np.array([role_of("api", w, None) for w in words.name] + ["other"])
    slots = np.array([*words.slot, ""])
    api = np.flatnonzero(
        rows.phase_is("forward") & (half.call >= 0) & (half.dtype >= 0) & rows.kind_is("api")
    )
    roles, slot = role_of_name[side.name[half.call[api]]], slots[rows.slot[api]]
    argument = np.zeros(len(api), bool)
    for role, wanted in _WEIGHT_SLOTS.items():
        argument |= (roles == role) & np.isin(slot, wanted)
    found += [
        (int(to_target[half.call[row]]), weight, int(half.dtype[row])) for row in api[argument].tolist()
    ]
    known = _cast_weights(rows, half, api)
    taken = api[rows.slot_starts("input")[api] & ~_casts(words)[side.name[half.call[api]]]]
    for row in taken[np.isin(half.summary[taken], list(known))].tolist():
        call, (own, cast) = int(to_target[half.call[row]]), known[int(half.summary[row])]
        found.append((call, stored, own))
        found += [(call, weight, dtype) for dtype in cast or (own,)]
    return np.array(found, np.int64).reshape(-1, 3)


def is_cast(name: str) -> bool:
    """Whether a function of this name gives its tensor another dtype, and nothing else."""
    return name.rpartition(".")[2].lower() in _CASTS


def _casts(words: Words) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([is_cast(word) for word in words.name] + [False])


def _cast_weights(rows: StepRows, half: Half, api: Codes) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Summary of a weight, or of what casts made of it -> its own dtype, and those it has been cast to.

    Capture summarises a tensor once: what has the summary of a parameter is that parameter.
    """
    values = rows.phase_is("param") & (half.summary >= 0)
    own = zip(half.summary[values].tolist(), half.dtype[values].tolist(), strict=True)
    known: dict[int, tuple[int, tuple[int, ...]]] = {summary: (dtype, ()) for summary, dtype in own}
    through = api[_casts(rows.match.words)[half.side.name[half.call[api]]]]
    is_input = rows.slot_starts("input")
    given: dict[int, int] = {}
    for row in through[np.argsort(half.record[through])].tolist():
        call, summary = int(half.call[row]), int(half.summary[row])
        if is_input[row]:
            given.setdefault(call, summary)
        elif (source := given.get(call, -1)) in known and summary != source:
            stored, cast = known[source]
            known[summary] = (stored, (*cast, int(half.dtype[row])))
    return known


def _notes(calls: pl.DataFrame) -> list[Reason | None]:
    """The note of every call whose dtypes differ; calls with the same dtypes share one."""
    dtypes = calls.select(pl.col("^.*_dtypes$"))
    known: dict[tuple[str, ...], Reason] = {}
    notes: list[Reason | None] = [None] * len(calls)
    for row in np.flatnonzero(calls["differs"].to_numpy()).tolist():
        words = dtypes.row(row)
        if words not in known:
            known[words] = _note(dict(zip(dtypes.columns, words, strict=True)))
        notes[row] = known[words]
    return notes


def _casts_weight(row: dict[str, str], side: str) -> bool:
    """Whether the weight is used in another dtype than it is stored in; where that is not known, whether it
    has the dtype of the input."""
    used, stored = row[f"{side}_weight_dtypes"], row[f"{side}_{_STORED}_dtypes"]
    return used != stored if stored else row[f"{side}_input_dtypes"].endswith(used)


def _note(row: dict[str, str]) -> Reason:
    target, reference = row["target_weight_dtypes"], row["reference_weight_dtypes"]
    if target != reference and target and reference:
        for side, other in (("target", "reference"), ("reference", "target")):
            if not _casts_weight(row, side) and _casts_weight(row, other):
                cast = ",".join(
                    sorted(set(row[f"{other}_weight_dtypes"].split(",")) - {row[f"{side}_weight_dtypes"]})
                )
                return reason(NoteCode.WEIGHT_NOT_CAST, side=side, dtypes=cast)
        return reason(NoteCode.WEIGHT_DTYPE, target=target, reference=reference)
    parts = ((NoteCode.INPUT_DTYPE, "input"), (NoteCode.OUTPUT_DTYPE, "output"))
    apart = [_of_part(code, row, part) for code, part in parts if _differ(row, part)]
    known = [one for one in apart if one.place("target") and one.place("reference")]
    if known or apart:
        return (known or apart)[0]
    return _of_part(NoteCode.WEIGHT_DTYPE, row, "weight")  # of a side that shows no weight


def _differ(row: dict[str, str], part: str) -> bool:
    return row[f"target_{part}_dtypes"] != row[f"reference_{part}_dtypes"]


def _of_part(code: NoteCode, row: dict[str, str], part: str) -> Reason:
    return reason(code, target=row[f"target_{part}_dtypes"], reference=row[f"reference_{part}_dtypes"])


def role_of(kind: str, name: str, type_: str | None, *, bias: bool = False) -> str:
    """One of ``embedding head norm softmax rotary residual bias_add loss linear other``.

    ``bias``: one of an addition's inputs is a vector. A module's last name component and its class are both
    looked at.

    Example:
        >>> role_of("api", "torch.nn.functional.layer_norm", None)
        'norm'
    """
    short = name.rsplit(".", 1)[-1]
    if kind == "loss":
        return "loss"
    for role, pattern in _BY_NAME:
        if pattern.search(short) or (type_ is not None and pattern.search(type_)):
            return role
    plain = short.strip("_").lower()
    if kind == "api" and plain in _ADD:
        return "bias_add" if bias else "residual"
    if plain in _LINEAR or (type_ is not None and re.search(r"linear|dense|conv", type_, re.I)):
        return "linear"
    return "other"
