"""A call's place in a step as one string, the same in every run of a program: for looking up, not for
matching."""

from __future__ import annotations

import polars as pl


def places(calls: pl.DataFrame) -> list[str]:
    """Place of every call: microbatch, mode and kind of the outermost call, then name#ordinal inwards.

    Capture builds the same string while the program runs (``adapters/torch/engine.py``).

    Example:
        >>> places(trace.read(0, 0).calls)[1]            # doctest: +SKIP
        '0|train|module|#0/emb#0'
    """
    found: list[str] = []
    columns = calls.select("parent", "kind", "name", "ordinal", "microbatch", "mode")
    for parent, kind, name, ordinal, microbatch, mode in columns.iter_rows():
        own = f"{name}#{ordinal}"
        found.append(f"{microbatch}|{mode}|{kind}|{own}" if parent is None else f"{found[parent]}/{own}")
    return found
