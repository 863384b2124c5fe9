"""Whether two traces are of two implementations, told from their names alone."""

from __future__ import annotations

import numpy as np

from trueup.matching.tree import Side, Words

KNOWN_BY_NAME = 0.5
"""below this share of modules and weights of the same name two traces are of two implementations"""
FEWEST = 4
"""names below which nothing is concluded"""


def are_foreign(target: Side, reference: Side, words: Words) -> bool:
    """Whether the traces are of two implementations: names of modules and weights do not match, or the
    functions are of two frameworks."""
    for kinds in (("module", "parameter"), ("api",)):
        here, there = (_names(side, words, kinds) for side in (target, reference))
        fewest = min(len(here), len(there))
        if fewest < FEWEST:
            continue
        if kinds == ("api",):
            packages = [{words.name[c].partition(".")[0] for c in names.tolist()} for names in (here, there)]
            if not packages[0] & packages[1]:
                return True
        elif len(np.intersect1d(here, there)) < KNOWN_BY_NAME * fewest:
            return True
    return False


def _names(side: Side, words: Words, kinds: tuple[str, ...]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    wanted = np.array([word in kinds for word in words.kind] + [False])
    codes = np.unique(side.plain[wanted[side.kind]])
    return np.array([c for c in codes.tolist() if c >= 0 and words.name[c]], np.int64)
