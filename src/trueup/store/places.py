"""A call's place in a step as one string, the same in every run of a program: for looking up, not for
matching."""

from __future__ import annotations

import polars as pl

from trueup.types.call_place import own_part, words_given


def places(calls: pl.DataFrame) -> list[str]:
    """Place of every call: microbatch, mode and kind of the outermost call, then name#ordinal inwards.

    Capture builds the same string while the program runs (``adapters/torch/engine.py``).

    Example:
        >>> places(trace.read(0, 0).calls)[1]            # doctest: +SKIP
        '0|train|module|#0/emb#0'
    """
    found: list[str] = []
    numbers: dict[tuple[str, str], int] = {}
    columns = calls.select("parent", "kind", "name", "ordinal", "microbatch", "mode", "arguments")
    for parent, kind, name, ordinal, microbatch, mode, arguments in columns.iter_rows():
        words = words_given(kind, arguments)
        above = f"{microbatch}|{mode}|{kind}|" if parent is None else f"{found[parent]}/"
        if words:
            key = above, f"{name}({words})"
            ordinal = numbers.get(key, 0)
            numbers[key] = ordinal + 1
        found.append(above + own_part(name, words, ordinal))
    return found
