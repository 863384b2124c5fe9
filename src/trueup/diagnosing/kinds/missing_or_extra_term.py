"""The difference is another tensor: one term of a sum too few, too many, or with another factor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trueup.diagnosing.evidence import Evidence, Known, Vectors
from trueup.diagnosing.evidence.facts import Floats
from trueup.diagnosing.evidence.vectors import length
from trueup.diagnosing.kinds.fitting import explained, fit, sureness, weight
from trueup.diagnosing.kinds.naming import named, number, subject
from trueup.diagnosing.kinds.solved import solved
from trueup.types.finding import Kind

MAX_CANDIDATES = 64
MAX_COMPARED = 6
MIN_ROWS = 3
_UNRELATED = 0.9
"""relative difference from which on the two have nothing in common"""
_ELIMINATED = 16.0
"""roundings that a difference must exceed to be called a term"""
_LIKE = 0.995
"""cosine from which a candidate is taken for the tensor itself"""


def rule(evidence: Evidence) -> Kind | None:
    """Named where t - r is a multiple of a tensor known nearby, or the same vector in every row, or where t
    is what the reference had a step before."""
    if not evidence.same_shape or evidence.vectors is None or evidence.vectors.difference == 0:
        return None
    left_out = solved(evidence, "missing_or_extra_term")
    if left_out is not None:
        return named("missing_or_extra_term", left_out.confidence, left_out.sentence, evidence)
    found = (_skipped(evidence), _whole(evidence, evidence.vectors), _broadcast(evidence))
    return max((k for k in found if k is not None), key=lambda k: k.confidence, default=None)


# -- a tensor of the same shape ------------------------------------------


def _candidates(evidence: Evidence) -> Iterator[tuple[str, Known]]:
    """Tensors of the origin's shape that a term may have been: of the module, or of the parameter."""
    own = (evidence.target, evidence.reference)
    seen: list[Known] = []
    around = evidence.surroundings
    pairs = [*around.inputs, *around.parameters, *around.nearby]
    if evidence.parameter is not None:
        facts = evidence.parameter
        pairs += [facts.before, *(p for _, p in facts.gradients), *facts.updated, *facts.state_before]
    for pair in pairs:
        for known in (pair.reference, pair.target):
            if known is None or own[0] is None or known.shape != own[0].shape or not known.is_floating:
                continue
            if any(known.same_bits(o) for o in own if o is not None) or any(known.same_bits(s) for s in seen):
                continue
            seen.append(known)
            if len(seen) > MAX_CANDIDATES:
                return
            yield known.name, known


def _whole(evidence: Evidence, vectors: Vectors) -> Kind | None:
    best: tuple[float, float, str] | None = None
    for name, known in _promising(evidence):
        x = vectors.like(known)
        if x is None or _alike(x, vectors.reference) or _alike(x, vectors.target):
            continue
        found = fit(vectors.target - vectors.reference, x)
        if found is None or (vectors.num_values == 1 and not _is_one(found.factor)):
            continue
        share = explained(evidence, vectors, found.residual, z=found.z)
        confidence = share * _plausible(found.factor)
        if best is None or confidence > best[0] * _plausible(best[1]):
            best = share, found.factor, name
    if best is None:
        return None
    share, factor, name = best
    sure = sureness(share, start=0.6) * weight(vectors) * _plausible(factor)
    if vectors.num_values == 1:
        sure = min(sure, 0.7)
    return (
        None if sure <= 0 else named("missing_or_extra_term", sure, _words(evidence, factor, name), evidence)
    )


def _promising(evidence: Evidence) -> list[tuple[str, Known]]:
    """The few candidates whose sketches lie along the difference; all where there are no sketches."""
    t, r = evidence.target, evidence.reference
    every = list(_candidates(evidence))
    if t is None or r is None or t.sketch is None or r.sketch is None or len(every) <= MAX_COMPARED:
        return every
    difference = t.sketch - r.sketch
    left = []
    for name, known in every:
        found = None if known.sketch is None else fit(difference, known.sketch)
        left.append((np.inf if found is None else found.residual, name, known))
    left.sort(key=lambda entry: entry[0])
    return [(name, known) for _, name, known in left[:MAX_COMPARED]]


def _alike(x: Floats, y: Floats) -> bool:
    sizes = length(x) * length(y)
    return len(x) > 1 and sizes > 0 and abs(float(np.dot(x, y))) > _LIKE * sizes


def _is_one(factor: float) -> bool:
    return abs(abs(factor) - 1) < 1e-4


def _plausible(factor: float) -> float:
    if abs(abs(factor) - 1) < 0.02:
        return 0.95
    simple = any(abs(abs(factor) / f - 1) < 0.005 for f in (2.0, 0.5, 0.1, 0.01, 0.001))
    return 0.8 if simple else 0.65


def _words(evidence: Evidence, factor: float, name: str) -> str:
    what = subject(evidence)
    if abs(factor + 1) < 0.02:
        return f"{what} lacks a term: it is the reference's minus {name}"
    if abs(factor - 1) < 0.02:
        return f"{what} has a term too many: it is the reference's plus {name}"
    return f"{what} is the reference's {'plus' if factor > 0 else 'minus'} {number(abs(factor))} times {name}"


# -- a step left out ------------------------------------------


def _skipped(evidence: Evidence) -> Kind | None:
    """The target's value is, bit for bit, another tensor the reference had on its way here."""
    t, r = evidence.target, evidence.reference
    if t is None or r is None or t.numel < 4 or evidence.origin.phase not in ("forward", "backward"):
        return None
    around = evidence.surroundings
    for pair in (*around.inputs, *around.nearby):
        other = pair.reference
        if other is None or other.shape != t.shape or other.same_bits(r) is not False:
            continue
        if t.same_bits(other):
            said = f"{subject(evidence)} is what the reference has as {other.name}: what follows is left out"
            return named("missing_or_extra_term", 0.9, said, evidence)
    return None


# -- the same vector in every row ------------------------------------------


def _broadcast(evidence: Evidence) -> Kind | None:
    """t - r constant along some dimensions: a bias, a table added to every sample, one number."""
    t, r = evidence.target_values, evidence.reference_values
    vectors = evidence.vectors
    if t is None or r is None or vectors is None or t.ndim < 1 or t.size < MIN_ROWS or t.shape != r.shape:
        return None
    if evidence.target is None or not evidence.target.is_floating:
        return None
    with np.errstate(invalid="ignore"):
        d = t - r
    if not np.isfinite(d).all():
        return None
    for repeated in _repeated_dims(d.shape):
        rows = int(np.prod([d.shape[i] for i in repeated]))
        if rows < MIN_ROWS:
            continue
        mean = d.mean(axis=repeated, keepdims=True)
        residual = length((d - mean).ravel())
        effect = length(mean.ravel()) * np.sqrt(rows)
        share = explained(evidence, vectors, residual, z=_above_chance(effect, residual, mean.size, d.size))
        if share > 0.8:
            return _named(
                evidence, np.squeeze(mean), repeated, sureness(share, start=0.8) * weight(vectors), d.ndim
            )
    return None


def _above_chance(effect: float, residual: float, num_fitted: int, num: int) -> float:
    """Standard errors by which ``num_fitted`` means explain more than they would of mere scatter."""
    if residual == 0 or num_fitted * 2 > num:
        return np.inf if residual == 0 else 0.0
    with np.errstate(over="ignore"):
        ratio = float(np.square(np.float64(effect) / residual)) * (num - num_fitted)
    return float((ratio - num_fitted) / np.sqrt(2.0 * num_fitted))


def _repeated_dims(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Which dimensions the difference may be constant along, the most first."""
    num = len(shape)
    return list(dict.fromkeys([tuple(range(num)), tuple(range(num - 1)), (0,), (num - 1,)]))


def _named(
    evidence: Evidence, mean: Floats, repeated: tuple[int, ...], sure: float, ndim: int
) -> Kind | None:
    what = subject(evidence)
    if mean.ndim == 0:
        said = f"{what} differs from the reference's by {number(float(mean))} everywhere"
        return named("missing_or_extra_term", 0.85 * sure, said, evidence)
    for name, candidate in _vectors_of_shape(evidence, mean):
        found = fit(mean.ravel(), candidate.ravel())
        if found is not None and found.residual < 0.05 * length(mean.ravel()):
            said = _words(evidence, found.factor, name)
            return named(
                "missing_or_extra_term", 0.97 * sure * _plausible(found.factor) / 0.95, said, evidence
            )
    kept = [d for d in range(ndim) if d not in repeated]
    said = (
        f"{what} differs from the reference's by the same numbers at every index but dimension "
        f"{', '.join(map(str, kept))}: a bias or a table of shape {mean.shape}"
    )
    return named("missing_or_extra_term", 0.85 * sure, said, evidence)


def _vectors_of_shape(evidence: Evidence, mean: Floats) -> Iterator[tuple[str, Floats]]:
    around = evidence.surroundings
    for pair in (*around.parameters, *around.inputs, *around.nearby):
        for known in (pair.reference, pair.target):
            if known is not None and known.numel == mean.size and known.is_floating:
                values = known.values()
                if (
                    values is not None
                    and np.squeeze(values).shape == mean.shape
                    and np.isfinite(values).all()
                ):
                    yield (pair.slot if pair in around.parameters else known.name), np.squeeze(values)


def by_elimination(evidence: Evidence) -> list[Kind]:
    """What is left where no kind is seen: a guess, and said to be one."""
    vectors = evidence.vectors
    if vectors is None or evidence.origin.phase not in ("forward", "loss", "backward", "param_grad"):
        return []
    if not _ELIMINATED * vectors.rounding < vectors.rel < _UNRELATED:
        return []
    said = (
        f"{subject(evidence)} differs by {number(vectors.rel)} (relative l2), and no scale, sign, shift, "
        "order, mask or rounding turns one side into the other: most likely a term that one side alone has"
    )
    return [named("missing_or_extra_term", 0.3, said, evidence)]
