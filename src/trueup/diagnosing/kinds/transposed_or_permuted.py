"""The same numbers in another order or layout."""

from __future__ import annotations

import numpy as np

from trueup.diagnosing.evidence import Evidence, Known
from trueup.diagnosing.evidence.facts import Floats
from trueup.diagnosing.kinds.arguments import layout_differences
from trueup.diagnosing.kinds.fitting import close
from trueup.diagnosing.kinds.naming import named, subject
from trueup.diagnosing.kinds.permutations import along, described, equal_layout, layouts, same_numbers
from trueup.diagnosing.kinds.solved import solved
from trueup.types.finding import Kind

MIN_NUMBERS = 4
MAX_SOURCE = 1 << 20
_SAMPLE = 4096
_STATISTICS = ("minimum", "maximum", "mean", "l2_norm", "smallest_nonzero", "num_zero", "num_nan")


def rule(evidence: Evidence) -> Kind | None:
    """Named where the target's numbers are the reference's in another order, and says which where it can."""
    t, r = evidence.target, evidence.reference
    if t is None or r is None or t.numel < MIN_NUMBERS:
        return None
    swapped = _swapped(evidence, t)
    if swapped is not None:
        return swapped
    turned = solved(evidence, "transposed_or_permuted")
    if turned is not None:
        return named("transposed_or_permuted", turned.confidence, turned.sentence, evidence)
    found = _from_statistics(evidence, t, r)
    if t.raw is not None and r.raw is not None and _moments_agree(evidence, t, r):
        whole = evidence.whole_values
        found = None if whole is None else _from_values(evidence, *whole)
    return found or _other_elements(evidence) or _gate_and_up(evidence) or _layout_calls(evidence)


def _swapped(evidence: Evidence, t: Known) -> Kind | None:
    """The target's tensor stands in another slot of the same call in the reference."""
    around = evidence.surroundings
    head = evidence.origin.slot.partition(".")[0]
    for pairs in (around.outputs, around.inputs):
        for pair in pairs:
            if pair.slot.partition(".")[0] != head:
                continue
            other = pair.reference
            if pair.slot == evidence.origin.slot or other is None or other.shape != t.shape:
                continue
            if evidence.reference is not None and other.same_bits(evidence.reference):
                continue
            if t.same_bits(other):
                said = f"{subject(evidence)} {evidence.origin.slot} is the reference's {pair.slot}: swapped"
                return named("transposed_or_permuted", 0.97, said, evidence)
    return None


def _moments_agree(evidence: Evidence, t: Known, r: Known) -> bool:
    """Whether norm and extremes leave room for the same numbers in another order."""
    if t.numel != r.numel:
        return False
    size = max(r.statistic("l2_norm"), 1e-300) / np.sqrt(max(t.numel, 1))
    slack = 8 * max(evidence.roundoff, 1e-9)
    if not abs(t.statistic("l2_norm") - r.statistic("l2_norm")) <= slack * r.statistic("l2_norm"):
        return False
    return all(
        abs(t.statistic(n) - r.statistic(n)) <= slack * max(size, abs(r.statistic(n)))
        for n in ("minimum", "maximum")
    )


def _from_values(evidence: Evidence, t: Floats, r: Floats) -> Kind | None:
    if t.size != r.size:
        return None
    rounding = evidence.roundoff
    if t.shape == r.shape and float(close(t, r, 4 * rounding).mean()) > 1 - 1.5 / t.size:
        return None
    vectors = evidence.vectors
    if vectors is not None and vectors.rel <= 64 * rounding:
        return None
    if not same_numbers(t, r, rounding):
        return None
    what = subject(evidence)
    if t.shape == r.shape:
        for dim in reversed(range(t.ndim)):
            found = along(t, r, dim, rounding)
            if found is not None:
                said = f"{what} holds the reference's numbers, dimension {dim} {described(found)}"
                return named("transposed_or_permuted", 0.95, said, evidence, whole=True)
    for words, candidate in layouts(r, t.shape):
        if equal_layout(t, candidate, rounding):
            said = f"{what} is the reference's with {words}"
            return named("transposed_or_permuted", 0.96, said, evidence, whole=True)
    if t.shape != r.shape and equal_layout(t, r, rounding):
        return None
    distinct = len(np.unique(t.ravel()[:4096]))
    confidence = 0.8 if distinct > 64 or distinct > t.size // 2 else 0.4
    return named(
        "transposed_or_permuted",
        confidence,
        f"{what} holds the reference's numbers in another order",
        evidence,
    )


def _from_statistics(evidence: Evidence, t: Known, r: Known) -> Kind | None:
    """Every statistic equal, the order-sensitive digest or sketch not."""
    if t.numel != r.numel or t.same_bits(r) is not False:
        return None
    size = max(r.statistic("l2_norm"), 1e-300)
    for name in _STATISTICS:
        a, b = t.statistic(name), r.statistic(name)
        if not (abs(a - b) <= 1e-10 * size or (np.isnan(a) and np.isnan(b))):
            return None
    if not r.statistic("maximum") > r.statistic("minimum"):
        return None
    said = f"{subject(evidence)} has every statistic of the reference's, but not its order"
    return named("transposed_or_permuted", 0.8 if t.numel >= 16 else 0.5, said, evidence)


def _other_elements(evidence: Evidence) -> Kind | None:
    """Both sides are made of the numbers of one tensor nearby, but of other ones or in another place."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or evidence.origin.phase != "forward":
        return None
    step = max(t.size // _SAMPLE, 1)
    a, b = t.ravel()[::step], r.ravel()[::step]
    if len(np.unique(b)) < len(b) / 4 or float(close(a, b, evidence.roundoff).mean()) > 0.9:
        return None
    around = evidence.surroundings
    for pair in (*around.inputs, *around.nearby):
        x = pair.given
        if not pair.agree or x is None or x.numel < t.size or x.dtype != (evidence.target or x).dtype:
            continue
        values = None if x.numel > MAX_SOURCE else x.values()
        if values is None or values.size > 64 * t.size:
            continue
        flat = np.sort(values.ravel())
        if all(float(_among(part, flat).mean()) > 0.99 for part in (a, b)):
            said = f"{subject(evidence)} takes other numbers out of {x.name} than the reference"
            return named("transposed_or_permuted", 0.93, said, evidence)
    return None


def _among(values: Floats, ordered: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.asarray(ordered[at] == values)


def _gate_and_up(evidence: Evidence) -> Kind | None:
    """act(a) * b against act(b) * a, of two halves or two tensors at hand."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.ndim < 2 or not evidence.target:
        return None
    wanted = t.shape
    parts: list[tuple[Floats, Floats]] = []
    near = [
        p.given
        for p in (*evidence.surroundings.inputs, *evidence.surroundings.nearby)
        if p.agree is not False
    ]
    same = [
        v
        for v in (evidence.values_of(k) for k in near if k is not None and k.shape == wanted)
        if v is not None
    ]
    parts += [(a, b) for i, a in enumerate(same[:6]) for b in same[i + 1 : 6]]
    for known in near:
        if known is not None and known.shape == (*wanted[:-1], 2 * wanted[-1]) and evidence.window is None:
            both = evidence.values_of(known)
            if both is not None:
                parts.append((both[..., : wanted[-1]], both[..., wanted[-1] :]))
    for a, b in parts[:8]:
        if _is_gated(a, b, t, r) or _is_gated(b, a, t, r):
            said = "the activation is applied to the other of gate and up: the two halves are swapped"
            return named("transposed_or_permuted", 0.95, said, evidence)
    return None


def _is_gated(gate: Floats, up: Floats, t: Floats, r: Floats) -> bool:
    from trueup.diagnosing.kinds.functions import ACTIVATIONS

    def near(x: Floats, y: Floats) -> bool:
        return bool(np.linalg.norm(x - y) <= 0.01 * np.linalg.norm(y))

    probe = tuple(slice(0, 64) for _ in range(gate.ndim - 1))
    for function in ACTIVATIONS.values():
        if near(function(gate[probe]) * up[probe], r[probe]):
            return near(function(up[probe]) * gate[probe], t[probe])
    return False


def _layout_calls(evidence: Evidence) -> Kind | None:
    """Nothing in the values says so, but the module's own code lays its tensors out in another way."""
    found = layout_differences(evidence)
    if not found:
        return None
    said = f"{evidence.surroundings.module or 'the root'} lays its tensors out in another way: {found[0]}"
    return named("transposed_or_permuted", 0.72, said, evidence)
