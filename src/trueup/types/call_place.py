"""What a call is looked up by within the call around it: its name and its number.

A program that calls a module once for each word of a set ("full_attention", "sliding_attention") makes these
calls in another order in each process, whose hashes of words are its own: a module's calls that are given
words are numbered among those that are given the same ones.
"""

from __future__ import annotations

import json
from functools import lru_cache


def own_part(name: str, words: str, number: int) -> str:
    """The last part of a place; ``number``: among the calls of that name, and of those words."""
    return f"{name}({words})#{number}" if words else f"{name}#{number}"


@lru_cache(maxsize=4096)
def words_given(kind: str, arguments: str | None) -> str:
    """The words among the plain arguments of a module's call (``calls.arguments``), separated by commas."""
    if kind != "module" or not arguments or '"' not in arguments:
        return ""
    given = json.loads(arguments)
    values = given.values() if isinstance(given, dict) else ()
    return ",".join(value for value in values if isinstance(value, str) and value.isidentifier())
