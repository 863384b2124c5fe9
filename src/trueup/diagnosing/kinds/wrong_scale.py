"""One factor between target and reference: a = <t, r> / <r, r> with nothing left over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from trueup.diagnosing.evidence import Evidence, RunFacts, Vectors
from trueup.diagnosing.kinds.fitting import explained, fit, sureness, weight
from trueup.diagnosing.kinds.naming import named, number, percent, rule_book, subject
from trueup.types.finding import Kind

_STATISTICS = ("l2_norm", "minimum", "maximum", "mean")
_CALL_IT_ONE = 1e-12


def rule(evidence: Evidence) -> Kind | None:
    """Named where t = a r with a > 0 explains the difference, and says which factor a is.

    A single number proves nothing but a factor that the run knows (1/2, ranks, microbatches, tokens).
    """
    vectors = evidence.vectors
    if vectors is None:
        return _from_statistics(evidence)
    if vectors.norm == 0 or vectors.target_norm == 0 or vectors.num_values == 0:
        return None
    found = fit(vectors.target - vectors.reference, vectors.reference)
    if found is None:
        return None
    scale = 1.0 + found.factor
    if scale <= 0 or abs(found.factor) < _CALL_IT_ONE:
        return None
    share = explained(evidence, vectors, found.residual, z=found.z)
    sure = sureness(share, start=0.6, full=0.95) * weight(vectors)
    error = found.residual / vectors.norm / np.sqrt(vectors.size)
    return _kind(evidence, scale, error, sure, single=vectors.num_values == 1, vectors=vectors)


def _kind(
    evidence: Evidence, scale: float, error: float, sure: float, *, single: bool, vectors: Vectors | None
) -> Kind | None:
    labels = known_factors(evidence, scale, error)
    if sure <= 0 or (single and not labels):
        return None
    confidence = sure * (0.95 if labels else 0.9)
    if single:
        confidence = 0.6
    what = subject(evidence)
    said = f"{what} is {number(scale)} times the reference's"
    if abs(scale - 1) < 0.05:
        size = "large" if scale > 1 else "small"
        said = f"{what} is {percent(abs(scale - 1))} too {size} (times {scale:.9g})"
    if labels:
        said += f" ({', or '.join(labels)})"
    return replace(named("wrong_scale", confidence, said, evidence), factor=scale)


def known_factors(evidence: Evidence, scale: float, error: float) -> list[str]:
    """What the run holds that equals a scale, best first; ``error`` is one standard error of the scale,
    relative to the reference."""
    tolerance = min(max(4 * error / scale, 4 * evidence.roundoff, 2e-6), 2e-2)
    for source in ((*_quantities(evidence), *rule_book().factors), _sizes(evidence)):
        found = [label for value, label in source if value > 0 and abs(scale / value - 1) <= tolerance]
        if found:
            return list(dict.fromkeys(found))[:4]
    return []


def _quantities(evidence: Evidence) -> Iterator[tuple[float, str]]:
    target, reference = evidence.target_run, evidence.reference_run
    for attribute, words in (
        ("world_size", "number of ranks"),
        ("data_parallel_size", "data-parallel size"),
        ("microbatches", "number of microbatches"),
        ("loss_scale", "loss scale"),
    ):
        for side in dict.fromkeys((getattr(target, attribute), getattr(reference, attribute))):
            if side and side > 1:
                yield from _both_ways(float(side), f"the {words} {number(float(side))}")
    yield from _ratios(target, reference)
    yield from _clipping(evidence)


def _ratios(target: RunFacts, reference: RunFacts) -> Iterator[tuple[float, str]]:
    if target.tokens and reference.tokens and target.tokens != reference.tokens:
        yield from _both_ways(target.tokens / reference.tokens, "the ratio of the tokens of both runs")
    if target.grad_norm and reference.grad_norm:
        yield from _both_ways(
            target.grad_norm / reference.grad_norm, "the ratio of the gradient norms clipped by"
        )
    if len(target.rank_tokens) > 1 and target.tokens:
        total = sum(target.rank_tokens)
        yield from _both_ways(total / target.tokens, "all tokens over this rank's own")
    if target.learning_rate and reference.learning_rate and reference.learning_rate[0]:
        ratio = target.learning_rate[0] / reference.learning_rate[0]
        if ratio != 1:
            yield ratio, "the ratio of the learning rates"


def _clipping(evidence: Evidence) -> Iterator[tuple[float, str]]:
    """What clipping did to this parameter's gradient, on either side."""
    facts = evidence.parameter
    if facts is None or evidence.origin.slot != "clipped":
        return
    before = [p for _, p in facts.gradients if p.slot == "accumulated"]
    after = [p for _, p in facts.gradients if p.slot == "clipped"]
    if not before or not after:
        return
    factors = {}
    for side in ("target", "reference"):
        a, b = getattr(before[-1], side), getattr(after[-1], side)
        if a is None or b is None or not a.statistic("l2_norm") > 0:
            return
        factors[side] = b.statistic("l2_norm") / a.statistic("l2_norm")
    t, r = factors["target"], factors["reference"]
    if r > 0 and t > 0 and abs(t / r - 1) > 1e-6:
        yield t / r, f"clipping times {number(t)} against {number(r)} in the reference"


def _sizes(evidence: Evidence) -> Iterator[tuple[float, str]]:
    known = evidence.target
    if known is None:
        return
    shapes = [known.shape, *(p.target.shape for p in evidence.surroundings.inputs if p.target is not None)]
    for size in dict.fromkeys(n for shape in shapes for n in shape if n > 1):
        yield from _both_ways(float(size), f"the size {size}")
        yield from _both_ways(float(np.sqrt(size)), f"the square root of the size {size}")


def _both_ways(value: float, label: str) -> Iterator[tuple[float, str]]:
    yield value, label
    yield 1.0 / value, f"1 over {label}"


def _from_statistics(evidence: Evidence) -> Kind | None:
    """All of norm, extremes and mean scaled alike."""
    t, r = evidence.target, evidence.reference
    if t is None or r is None or t.shape != r.shape or t.numel < 4:
        return None
    scale = t.statistic("l2_norm") / r.statistic("l2_norm") if r.statistic("l2_norm") > 0 else float("nan")
    rms = r.statistic("l2_norm") / np.sqrt(max(t.numel, 1))
    if not np.isfinite(scale) or scale <= 0 or not abs(scale - 1) > 64 * max(evidence.roundoff, 1e-7):
        return None
    for name in _STATISTICS[1:]:
        if not abs(t.statistic(name) - scale * r.statistic(name)) <= 16 * max(evidence.roundoff, 1e-7) * max(
            rms * scale, abs(t.statistic(name))
        ):
            return None
    return _kind(evidence, scale, evidence.roundoff, 0.75, single=False, vectors=None)
