"""What the ranks of the target hold adds up (or averages) to what the reference holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trueup.diagnosing.evidence import Evidence, Vectors
from trueup.diagnosing.evidence.facts import Floats
from trueup.diagnosing.evidence.vectors import length
from trueup.diagnosing.kinds.fitting import explained, sureness, weight
from trueup.diagnosing.kinds.naming import named, subject
from trueup.types.finding import Kind


def rule(evidence: Evidence) -> Kind | None:
    """Named where the sum or the mean over (a group of) the target's ranks is the reference's value and no
    rank's own is."""
    vectors = evidence.vectors
    ranks = evidence.elsewhere.target_ranks
    if vectors is None or len(ranks) < 2 or vectors.norm == 0:
        return None
    parts = {rank: vectors.like(known) for rank, known in ranks}
    held: dict[int, Floats] = {rank: part for rank, part in parts.items() if part is not None}
    own = evidence.origin.rank
    if own not in held or len(held) < 2:
        return None
    best: tuple[float, str, list[int]] | None = None
    for group in _groups(sorted(held), own):
        for words, share in _shares(evidence, vectors, [held[r] for r in group], held[own]):
            if best is None or share > best[0] + 0.01:
                best = share, words, group
    if best is None:
        return None
    share, words, group = best
    confidence = 0.97 * sureness(share, start=0.6) * weight(vectors)
    if confidence <= 0:
        return None
    said = (
        f"{subject(evidence)} is this rank's own part: the {words} over ranks "
        f"{', '.join(map(str, group))} of the target is the reference's value{_collectives(evidence)}"
    )
    return replace(named("missing_all_reduce", confidence, said, evidence), over=tuple(group))


def _groups(ranks: list[int], own: int) -> list[list[int]]:
    """All ranks, and the regular groups that hold this one."""
    num = len(ranks)
    groups = [ranks]
    for size in range(2, num):
        if num % size == 0:
            at = ranks.index(own)
            groups.append(ranks[at - at % size : at - at % size + size])
            stride = num // size
            groups.append(ranks[at % stride :: stride])
    return groups


def _shares(
    evidence: Evidence, vectors: Vectors, parts: list[Floats], own: Floats
) -> list[tuple[str, float]]:
    differ = max(length(p - own) for p in parts)
    if differ <= 4 * vectors.rounding * length(own):
        return []
    total = np.sum(parts, axis=0)
    return [
        (words, explained(evidence, vectors, length(guess - vectors.reference)))
        for words, guess in (("sum", total), ("mean", total / len(parts)))
    ]


def _collectives(evidence: Evidence) -> str:
    t, r = evidence.target_run.collectives, evidence.reference_run.collectives
    fewer = [f"{t.get(n, 0)} calls of {n} against {r[n]}" for n in r if t.get(n, 0) < r[n]]
    return f" ({', '.join(fewer[:2])})" if fewer else ""
