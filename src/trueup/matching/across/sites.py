"""Calls by the one line a person reads of them."""

from __future__ import annotations

from collections import defaultdict

from trueup.matching.tree import TreeSide, Words
from trueup.types.site import shown_name


def site_of(side: TreeSide, words: Words, call: int) -> str:
    """``layers.0.attn · torch.matmul[1]``: the enclosing module, the function, which of its calls.

    A module, or a weight, is its name.
    """
    kind = words.kind[side.kind[call]]
    name = shown_name(words.name[side.name[call]])
    if kind in ("module", "parameter"):
        return name
    ordinal = f"[{side.ordinal[call]}]" if side.ordinal[call] > 0 else ""
    if side.parent[call] < 0:
        return name + ordinal
    return f"{shown_name(words.name[side.name[side.parent[call]]])} · {name}{ordinal}"


def sites_of(side: TreeSide, words: Words) -> dict[str, list[int]]:
    """Site -> its calls, in execution order."""
    out: dict[str, list[int]] = defaultdict(list)
    for call in range(side.num_calls):
        if words.kind[side.kind[call]] != "parameter":
            out[site_of(side, words, call)].append(call)
    return out
