"""Other random numbers were drawn."""

from __future__ import annotations

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.evidence.facts import Floats
from trueup.diagnosing.kinds.fitting import close
from trueup.diagnosing.kinds.naming import named, percent, rule_book, subject
from trueup.matching.names import family
from trueup.types.finding import Kind

MIN_VALUES = 32
_FEW = 4
_CHANCE = 5.0
"""standard errors that two rates may lie apart"""


def rule(evidence: Evidence) -> Kind | None:
    """The strongest of: dropout masks of the same rate at other places, a recomputation with another mask,
    one stream on ranks that draw their own, two draws from one distribution."""
    found = (_recomputed(evidence), _dropout(evidence), _one_stream(evidence), _draws(evidence))
    return max((k for k in found if k is not None), key=lambda k: k.confidence, default=None)


def _dropout(evidence: Evidence) -> Kind | None:
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.size < MIN_VALUES:
        return _dropout_statistics(evidence)
    a, b = t == 0, r == 0
    mine, theirs, both = int((a & ~b).sum()), int((b & ~a).sum()), ~a & ~b
    # What is zero on both sides may be masked for good: rates are those among what is not.
    if min(mine, theirs) < _FEW or int(both.sum()) < _FEW:
        return None
    if abs(mine - theirs) > _CHANCE * np.sqrt(mine + theirs):
        return None
    agreeing = float(close(t[both], r[both], max(evidence.roundoff, 1e-9)).mean())
    if agreeing < 0.95:
        return None
    rate = mine / (mine + int(both.sum()))
    said = (
        f"about {percent(rate)} of the elements are dropped on either side, but not the same ones "
        f"({mine} only in the target, {theirs} only in the reference); the others agree"
    )
    return named("randomness", 0.96, said, evidence)


def _dropout_statistics(evidence: Evidence) -> Kind | None:
    """A random function whose zeros are as many, give or take chance."""
    t, r = evidence.target, evidence.reference
    if t is None or r is None or not evidence.same_shape or not _is_random(evidence) or t.numel < MIN_VALUES:
        return None
    p, q = t.statistic("num_zero") / t.numel, r.statistic("num_zero") / r.numel
    if not (0 < p < 1 and abs(p - q) <= _CHANCE * np.sqrt(2 * p * (1 - p) / t.numel)):
        return None
    said = (
        f"{evidence.surroundings.name} draws at random; its rates agree ({percent(p)} and {percent(q)} zeros)"
    )
    return named("randomness", 0.7, said, evidence)


def _is_random(evidence: Evidence) -> bool:
    around = evidence.surroundings
    short = (around.type or "").lower() if around.kind == "module" else family(around.name)
    return any(word in short for word in rule_book().random)


def _recomputed(evidence: Evidence) -> Kind | None:
    """Recomputation in backward gave other values than the forward it repeats."""
    if evidence.origin.phase not in ("backward", "param_grad"):
        return None
    apart = [p for p in evidence.elsewhere.recomputed if p.agree is False]
    if not apart or apart[0].target is None:
        return None
    said = f"recomputed in backward, {apart[0].target.name} differs from what the forward had"
    return named(
        "randomness", 0.95, said, evidence, causes=("the random state is not restored for recomputation",)
    )


def _one_stream(evidence: Evidence) -> Kind | None:
    """Ranks that should draw their own numbers drop the same elements."""
    elsewhere = evidence.elsewhere
    if not _is_random(evidence) or len(elsewhere.target_ranks) < 2 or len(elsewhere.reference_ranks) < 2:
        return None
    mine, theirs = (
        [evidence.values_of(k) for _, k in ranks[:2]]
        for ranks in (elsewhere.target_ranks, elsewhere.reference_ranks)
    )
    if any(v is None or v.size < MIN_VALUES for v in (*mine, *theirs)):
        return None
    if _same_zeros(mine) and not _same_zeros(theirs):
        said = "two ranks of the target drop the same elements; the reference's drop different ones"
        return named("randomness", 0.955, said, evidence, causes=("one random stream shared by the ranks",))
    return None


def _same_zeros(ranks: list[Floats | None]) -> bool:
    a, b = ranks
    return a is not None and b is not None and a.shape == b.shape and bool(((a == 0) == (b == 0)).all())


def _draws(evidence: Evidence) -> Kind | None:
    """Unlike element by element, alike as a whole: two draws from one distribution."""
    t, r, vectors = evidence.target, evidence.reference, evidence.vectors
    if t is None or r is None or vectors is None or t.numel < MIN_VALUES or not t.is_floating:
        return None
    random = _is_random(evidence)
    if evidence.origin.phase != "param" and not random:
        return None
    if vectors.norm == 0 or vectors.target_norm == 0:
        return None
    mean_t, mean_r = t.statistic("mean"), r.statistic("mean")
    std_t, std_r = (
        np.sqrt(max(k.statistic("l2_norm") ** 2 / k.numel - k.statistic("mean") ** 2, 0.0)) for k in (t, r)
    )
    if not (std_t > 0 and std_r > 0):
        return None
    alike = abs(std_t / std_r - 1) < _CHANCE / np.sqrt(t.numel) * 2
    alike = alike and abs(mean_t - mean_r) < _CHANCE * std_r * np.sqrt(2 / t.numel)
    cosine = float(np.dot(vectors.target, vectors.reference)) / (vectors.norm * vectors.target_norm)
    centre = mean_t * mean_r * t.numel / (t.statistic("l2_norm") * r.statistic("l2_norm"))
    if not alike or abs(cosine - centre) > _CHANCE / np.sqrt(min(t.numel, vectors.size)):
        return None
    said = (
        f"{subject(evidence)} has the reference's mean and spread ({std_t:.3g} and {std_r:.3g}), "
        f"but shares nothing with it (cosine {cosine:.2g}): another draw from the same distribution"
    )
    return named("randomness", 0.88 if vectors.exact else 0.8, said, evidence)
