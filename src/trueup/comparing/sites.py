"""What a person reads of a call: the module that owns it, and the site as one line."""

from __future__ import annotations

import numpy as np
import polars as pl

from trueup.comparing.rows import Half, StepRows
from trueup.matching.codes import Codes
from trueup.matching.tree import TreeSide, Words

_PHASES_SHOWN = {
    "backward": "gradient of ",
    "param_grad": "gradient ",
    "optimizer": "after update ",
    "loss": "",
}


def owner_codes(side: TreeSide, words: Words) -> tuple[Codes, list[str]]:
    """For each call the module that owns it, as codes of the returned list: a module itself, the enclosing
    module of other calls, a parameter's module."""
    owners = list(words.name)
    index = {word: code for code, word in enumerate(owners)}
    kinds = {word: code for code, word in enumerate(words.kind)}
    modules = side.kind == kinds.get("module", -2)
    parent = np.maximum(side.parent, 0)
    enclosing = np.where((side.parent >= 0) & modules[parent], side.name[parent], -1)
    out = np.where(modules, side.name, enclosing)
    for call in np.flatnonzero(side.kind == kinds.get("parameter", -2)).tolist():
        fqn = words.name[side.name[call]].rpartition(".")[0]
        out[call] = index.setdefault(fqn, len(index))
        if out[call] == len(owners):
            owners.append(fqn)
    return out, owners


def module_column(rows: StepRows) -> tuple[Codes, list[str]]:
    """Owning module of every row: the target's name for it where there is one."""
    words = rows.match.words
    of_target, owners = owner_codes(rows.match.target, words)
    of_reference, more = owner_codes(rows.match.reference, words)
    index = {word: code for code, word in enumerate(owners)}
    table = np.array([index.setdefault(word, len(index)) for word in more] + [-1], np.int64)
    codes = np.full(len(rows), -1, np.int64)
    here = rows.target.call >= 0
    codes[here] = of_target[rows.target.call[here]]
    codes[~here] = table[of_reference[rows.reference.call[~here]]]
    return codes, list(index)


def charged_column(rows: StepRows) -> tuple[Codes, list[str]]:
    """The module charged with a difference at every row (``owner.owner_of_row``), -1 outside every module.

    Inputs of a module call, and gradients arriving at its outputs, are charged to the module around it.
    """
    codes, vocabulary = module_column(rows)
    module = rows.kind_is("module")
    inputs, outputs = rows.slot_starts("input"), rows.slot_starts("output")
    outside = module & ((rows.phase_is("forward") & inputs) | (rows.phase_is("backward") & outputs))
    index = {word: code for code, word in enumerate(vocabulary)}
    words = rows.match.words
    table = np.array([index[word] for word in words.name] + [-1], np.int64)
    parent = rows.of_call("parent")
    here = rows.target.call >= 0
    name = np.full(len(rows), -1, np.int64)
    for half, chosen in ((rows.target, outside & here), (rows.reference, outside & ~here)):
        at = chosen & (parent >= 0)
        name[at] = half.side.name[parent[at]]
    return np.where(outside, table[name], codes), vocabulary


def site_column(rows: StepRows, half: Half) -> pl.Series:
    """``layers.0.attn · torch.matmul[1] · output.0`` for every row of one side; null where it has nothing."""
    words, side = rows.match.words, half.side
    owners, vocabulary = owner_codes(side, words)
    kinds = np.array([*words.kind, ""])
    calls = pl.DataFrame(
        {
            "owner": _words(owners, vocabulary),
            "name": _words(side.name, words.name),
            "kind": pl.Series(kinds[side.kind].tolist(), dtype=pl.String),
            "ordinal": side.ordinal,
            "mode": _words(side.mode, words.mode),
        }
    )
    module, parameter = pl.col("kind") == "module", pl.col("kind") == "parameter"
    owner, name = _shown("owner"), _shown("name")
    ordinal = pl.when(pl.col("ordinal") > 0).then(pl.format("[{}]", "ordinal")).otherwise(pl.lit(""))
    mode = (
        pl.when(pl.col("mode").is_in(["eval", "recompute"]))
        .then(pl.format(" ({})", "mode"))
        .otherwise(pl.lit(""))
    )
    where = pl.when(module | parameter | pl.col("owner").is_null()).then(name).otherwise(owner + " · " + name)
    labels = calls.select((where + ordinal + mode).alias("site"))["site"]
    phases = [_PHASES_SHOWN.get(word, "") for word in words.phase]
    slots = np.array([p + s for p in phases for s in words.slot] or [""])
    own = rows.slot
    if rows.match.bridge is not None:  # the two sides may name their slots differently
        own = np.where(half.record >= 0, side.record_slot[np.maximum(half.record, 0)], rows.slot)
    slot = slots[rows.phase * len(words.slot) + own]
    present = pl.Series(half.record >= 0)
    at = pl.Series(np.maximum(half.call, 0))
    if not len(labels):
        return pl.Series([None] * len(rows), dtype=pl.String)
    frame = pl.DataFrame(
        {"site": labels.gather(at), "slot": pl.Series(slot.tolist(), dtype=pl.String), "there": present}
    )
    return frame.select(pl.when("there").then(pl.col("site") + " · " + pl.col("slot")).alias("s"))["s"]


def _shown(column: str) -> pl.Expr:
    """As :func:`~trueup.types.site.shown_name`."""
    name = pl.col(column)
    blank = pl.when(name.str.strip_chars() == "").then(pl.format("'{}'", name)).otherwise(name)
    return pl.when(name == "").then(pl.lit("(root)")).otherwise(blank)


def _words(codes: Codes, vocabulary: list[str]) -> pl.Series:
    words = pl.Series([*vocabulary, None], dtype=pl.String)
    return words.gather(pl.Series(np.where(codes >= 0, codes, len(vocabulary))))
