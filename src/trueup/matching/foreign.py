"""Whether two traces are of two implementations, told from their names and classes alone."""

from __future__ import annotations

from collections import Counter

import numpy as np

from trueup.matching.tree import Side, Words

KNOWN_BY_NAME = 0.5
"""below this share of modules and weights of the same name two traces are of two implementations"""
SAME_CLASSES = 0.9
"""from this share of modules of the same class and last name on it is one program, with containers renamed"""
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
            return not _of_same_classes(target, reference, words)
    return False


def _of_same_classes(target: Side, reference: Side, words: Words) -> bool:
    here, there = (_classes(side, words) for side in (target, reference))
    return (here & there).total() >= SAME_CLASSES * max(here.total(), there.total())


def _classes(side: Side, words: Words) -> Counter[tuple[int, str]]:
    """How many module calls there are of each class and last component of a name."""
    modules = side.kind == (words.kind.index("module") if "module" in words.kind else -2)
    names = (words.name[code].rpartition(".")[2] for code in side.plain[modules].tolist())
    return Counter(zip(side.type[modules].tolist(), names, strict=True))


def _names(side: Side, words: Words, kinds: tuple[str, ...]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    wanted = np.array([word in kinds for word in words.kind] + [False])
    codes = np.unique(side.plain[wanted[side.kind]])
    return np.array([c for c in codes.tolist() if c >= 0 and words.name[c]], np.int64)
