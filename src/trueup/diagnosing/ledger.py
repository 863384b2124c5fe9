"""What became of each gradient between backward and the optimizer, told from one run's own numbers: summed
over microbatches and ranks, carried over from the step before, clipped.

Two runs are then compared by what each does, so that gradients which differ for another reason neither hide
nor fake a fault here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from trueup.diagnosing.kinds.thresholds import FLOAT32_ROUNDOFF
from trueup.diagnosing.optimizer_fit import roundoff_of
from trueup.diagnosing.thresholds import (
    AT_TOP,
    CLIP_EXACT,
    CLIP_NEAR,
    ROUNDED_LEAST,
    SUM_CHANGED,
    SUM_EXPLAINED,
    SUM_HOLDS,
    SUM_UNLIKE,
)
from trueup.diagnosing.whole_gradients import is_piece, sketch_of_whole
from trueup.store import StepView
from trueup.store.view import ACCUMULATED, CLIPPED, LOCAL
from trueup.types.arrays import Floats
from trueup.types.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Summing:
    """How the accumulated gradient of one parameter came from the local ones."""

    fqn: str
    way: str
    """``own`` (this rank's, summed over microbatches), ``ranks`` (over ranks too), ``last`` (the last
    microbatch alone), ``carried`` (the step before's was still in it), ``partly`` (some microbatches over
    ranks, others this rank's), ``weighted`` (each microbatch times a number of its own), ``none`` (not
    there), ``unknown``"""
    factor: float
    """accumulated = factor * that sum; 1/ranks is an average"""
    residual: float
    """what that leaves unexplained, over the norm"""
    over: tuple[str, ...] = ()
    """axes of the mesh along which ranks are summed"""
    holding: tuple[tuple[str, float], ...] = ()
    """every way that explains it, with its factor: where ranks read the same data several do"""
    microbatches: tuple[int, ...] = ()
    """of ``partly``: those that are summed over ranks"""
    weights: tuple[float, ...] = ()
    """of ``weighted``: how often each microbatch counts"""
    in_pieces: bool = False
    """all ranks hold a piece each: it is told of all of them at once"""

    @property
    def key(self) -> str:
        """The way with its axes."""
        return f"{self.way} {' '.join(self.over)}".strip()


def summings(
    books: Sequence[StepView], at: int, before: Sequence[StepView] | None, mesh: Layout
) -> dict[str, Summing]:
    """One entry a parameter of rank ``books[at]``; ``before`` is the step before of the same ranks.

    A gradient that lies in pieces on all ranks has its entry at the first of them.
    """
    own = books[at]
    found = {}
    for fqn in own.parameters:
        in_pieces = _in_pieces(own, fqn, ACCUMULATED)
        if own.parameter(fqn, *LOCAL) is not None and (at == 0 or not in_pieces):
            found[fqn] = replace(_summing(fqn, books, at, before, mesh), in_pieces=in_pieces)
    return found


def _in_pieces(own: StepView, fqn: str, slot: tuple[str, str]) -> bool:
    return is_piece(own, own.parameter(fqn, *slot), own.parameter(fqn, *LOCAL))


def _total(books: Sequence[StepView], at: int, fqn: str, slot: tuple[str, str]) -> Floats | None:
    """The sketch of a gradient after backward, comparable with the whole one that backward gave."""
    if _in_pieces(books[at], fqn, slot):
        return sketch_of_whole(books, fqn, slot)
    return books[at].sketch(books[at].parameter(fqn, *slot))


# In one piece: one branch a way that a sum can have come, likelier ones first.
def _summing(
    fqn: str, books: Sequence[StepView], at: int, before: Sequence[StepView] | None, mesh: Layout
) -> Summing:
    own = books[at]
    if before is not None and _keeps_not_finite(fqn, own, before[at]):
        return Summing(fqn=fqn, way="carried", factor=1.0, residual=0.0)
    total = _total(books, at, fqn, ACCUMULATED)
    if total is None:  # a framework that gives gradients back shows no sum, only what the optimizer got
        seen = own.parameter(fqn, *CLIPPED) is not None or own.parameter(fqn, *ACCUMULATED) is not None
        way = "unknown" if seen else "none"
        return Summing(fqn=fqn, way=way, factor=0.0, residual=0.0)
    local = [_local(book, fqn) for book in books]
    target = local[at]
    if target is None:
        return Summing(fqn=fqn, way="unknown", factor=1.0, residual=0.0)
    ways = _ways(books, at, local, mesh)
    last = own.sketch(own.parameter(fqn, *LOCAL))
    if last is not None and len(own.parameter_records(fqn, *LOCAL)) > 1:
        ways.append(("last", (), last))
    if not np.any(total) and not any(np.any(part) for *_, part in ways):  # 0 is any multiple of 0
        return Summing(fqn=fqn, way="unknown", factor=1.0, residual=0.0)
    fits = _fits(fqn, total, ways)
    best = _best(fits)
    best = replace(best, holding=tuple((s.key, s.factor) for s in fits if s.residual < SUM_HOLDS))
    partly = _partly(fqn, books, at, total) if best.residual > SUM_HOLDS else None
    if partly is not None:
        return partly
    if best.residual > SUM_HOLDS and before is not None:
        carried = _carried(fqn, total, [part for *_, part in ways], before, at)
        if carried is not None:
            return carried
    if best.residual <= SUM_EXPLAINED and best.way != "last":
        return best
    return _with_weights(best, total, books, at, mesh)


def _with_weights(best: Summing, total: Floats, books: Sequence[StepView], at: int, mesh: Layout) -> Summing:
    """Microbatches that count differently, where that explains what ``best`` does not, or where of ``last``
    the others count after all."""
    each = (_weighted(best.fqn, total, over, parts) for over, parts in _each(best.fqn, books, at, mesh))
    weighted = next(filter(None, each), best)
    return weighted if best.residual > SUM_EXPLAINED or 0.0 not in weighted.weights else best


def _each(
    fqn: str, books: Sequence[StepView], at: int, mesh: Layout
) -> Iterator[tuple[tuple[str, ...], list[Floats]]]:
    """The gradients of single microbatches: this rank's, and their sums over the ranks along all axes."""
    known = {
        book.rank: [book.sketch(record) for record in book.parameter_records(fqn, *LOCAL)] for book in books
    }
    for axes in ((), mesh.wide_axes) if mesh.wide_axes else ((),):
        held = (
            [known.get(rank, [None]) for rank in mesh.group(books[at].rank, axes)]
            if axes
            else [known[books[at].rank]]
        )
        if len(set(map(len, held))) == 1:
            microbatches = [[part for part in of if part is not None] for of in zip(*held, strict=True)]
            if all(len(parts) == len(held) for parts in microbatches):
                yield tuple(axes), [np.sum(parts, axis=0) for parts in microbatches]


def _weighted(fqn: str, total: Floats, over: tuple[str, ...], parts: Sequence[Floats]) -> Summing | None:
    """Microbatches, each times a number of its own, by least squares: what a program did to a gradient
    between two microbatches it did to those before; one that is not summed counts 0 times, one whose share is
    small against what the fit leaves over too. None where that explains no better than rounding of the sum
    allows, or all count alike."""
    norm = float(np.linalg.norm(total))
    if len(parts) < 2 or 2 * len(parts) > len(total) or not norm:
        return None
    counts, _, rank, _ = np.linalg.lstsq(np.stack(parts, axis=1), total, rcond=None)
    residual = float(np.linalg.norm(total - np.stack(parts, axis=1) @ counts)) / norm
    most = float(np.abs(counts).max())
    if rank < len(parts) or residual > SUM_EXPLAINED or float(np.ptp(counts)) <= SUM_EXPLAINED * most:
        return None
    shares = np.abs(counts) * np.linalg.norm(np.stack(parts, axis=1), axis=0) / norm
    left = max(SUM_UNLIKE * residual, FLOAT32_ROUNDOFF)  # nothing is left over where one of them is the sum
    counts[(np.abs(counts) <= SUM_EXPLAINED * most) & (shares <= left)] = 0.0
    weights = tuple(float(f"{one:.2g}") for one in counts)
    return Summing(fqn=fqn, way="weighted", factor=1.0, residual=residual, over=over, weights=weights)


def _ways(
    books: Sequence[StepView], at: int, parts: Sequence[Floats | None], mesh: Layout
) -> list[tuple[str, tuple[str, ...], Floats]]:
    """The part of ``books[at]``, and its sums with those of the ranks along some axes of the mesh."""
    target = parts[at]
    assert target is not None
    of_rank = {book.rank: part for book, part in zip(books, parts, strict=True)}
    ways: list[tuple[str, tuple[str, ...], Floats]] = [("own", (), target)]
    wide = mesh.wide_axes
    for axes in (some for number in range(len(wide)) for some in combinations(wide, number + 1)):
        known = [of_rank.get(rank) for rank in mesh.group(books[at].rank, axes)]
        there = [part for part in known if part is not None]
        if len(there) == len(known):
            ways.append(("ranks", axes, np.sum(there, axis=0)))
    return ways


def _local(book: StepView, fqn: str) -> Floats | None:
    parts = [book.sketch(record) for record in book.parameter_records(fqn, *LOCAL)]
    known = [part for part in parts if part is not None]
    return np.sum(known, axis=0) if known and len(known) == len(parts) else None


def _partly(fqn: str, books: Sequence[StepView], at: int, total: Floats) -> Summing | None:
    """A sum in which some microbatches are summed over all ranks and others are this rank's own: what the
    ranks' parts of each microbatch count, by least squares."""
    parts = [[book.sketch(r) for r in book.parameter_records(fqn, *LOCAL)] for book in books]
    num = len(parts[at])
    known = [[part for part in of_rank if part is not None] for of_rank in parts]
    norm = float(np.linalg.norm(total))
    if len(books) < 2 or num < 2 or not norm or any(len(of_rank) != num for of_rank in known):
        return None
    others = [sum(known[r][m] for r in range(len(books)) if r != at) for m in range(num)]
    columns = np.stack([*known[at], *others], axis=1)
    if 2 * columns.shape[1] > len(total):
        return None
    counts, *_ = np.linalg.lstsq(columns, total, rcond=None)
    residual = float(np.linalg.norm(total - columns @ counts)) / norm
    own, other = np.abs(counts[:num]), np.abs(counts[num:])
    reduced = tuple(m for m in range(num) if other[m] > SUM_CHANGED * own[m])
    if residual > SUM_HOLDS or not reduced or len(reduced) == num:
        return None
    factor = float(counts[reduced[0]])
    return Summing(fqn=fqn, way="partly", factor=factor, residual=residual, microbatches=reduced)


def _fit(fqn: str, way: tuple[str, tuple[str, ...]], total: Floats, part: Floats) -> Summing:
    square, norm = float(part @ part), float(np.linalg.norm(total))
    if not square or not norm:
        same = square == norm == 0
        factor, residual = (1.0, 0.0) if same else (0.0, 1.0)
    else:
        factor = float(total @ part) / square
        residual = float(np.linalg.norm(total - factor * part)) / norm
    return Summing(fqn=fqn, way=way[0], over=way[1], factor=factor, residual=residual)


def _keeps_not_finite(fqn: str, own: StepView, before: StepView) -> bool:
    """Whether the sum holds NaN or infinities as that of the step before did, and none of its parts do."""
    sums = [book.parameter(fqn, *ACCUMULATED) for book in (before, own)]
    parts = own.parameter_records(fqn, *LOCAL)
    kept = all(book.has_not_finite(record) for book, record in zip((before, own), sums, strict=True))
    return kept and bool(parts) and not any(own.has_not_finite(part) for part in parts)


def _carried(
    fqn: str, total: Floats, parts: list[Floats], before: Sequence[StepView], at: int
) -> Summing | None:
    """Whether what the step before left in the gradient explains it."""
    norm = float(np.linalg.norm(total))
    for slot in (CLIPPED, ACCUMULATED):
        old = _total(before, at, fqn, slot)
        for part in parts:
            if old is None or not norm:
                continue
            residual = float(np.linalg.norm(total - part - old)) / norm
            if residual < SUM_HOLDS:
                return Summing(fqn=fqn, way="carried", factor=1.0, residual=residual)
    return None


def handovers(
    books: Sequence[StepView], at: int, clipped_by: float | None, mesh: Layout
) -> dict[str, Summing]:
    """How each gradient the optimizer of rank ``books[at]`` got came from the accumulated ones (where no sum
    was recorded, the local ones of all microbatches): this rank's, or those of several ranks, where a program
    reduces after backward. The factor of clipping is taken out; where it is not known, the factor that all
    gradients have in common."""
    own = books[at]
    every = {fqn: _fits_of(fqn, books, at, mesh) for fqn in own.parameters_with(*CLIPPED)}
    fits = {fqn: found for fqn, found in every.items() if found}
    best = {fqn: _best(found) for fqn, found in fits.items()}
    usual = float(np.median([abs(s.factor) for s in best.values()])) if best else 1.0
    keys = {s.key for found in fits.values() for s in found}
    if clipped_by is None and len({s.key for s in best.values()}) > 1 and is_average(usual, len(books)):
        clipped_by = 1.0  # what some gradients, summed over ranks or not, are divided by is no clipping
    common = {key: clipped_by or _in_common(key, fits) or usual or 1.0 for key in keys}
    return {fqn: _without(s, fits[fqn], common) for fqn, s in best.items()}


def is_average(factor: float, num_ranks: int) -> bool:
    """Whether gradients with this factor are divided by the number of ranks, or not multiplied at all."""
    return min(abs(factor - 1), abs(factor * num_ranks - 1)) <= CLIP_EXACT


def _fits_of(fqn: str, books: Sequence[StepView], at: int, mesh: Layout) -> list[Summing]:
    """The ways in which one gradient can have come; none where its sums are not known, or are 0."""
    own = books[at]
    parts = [_accumulated(book, fqn) for book in books]
    total = own.sketch(own.parameter(fqn, *CLIPPED))
    if own.parameter(fqn, *ACCUMULATED) is None and _in_pieces(own, fqn, CLIPPED):
        total = sketch_of_whole(books, fqn, CLIPPED) if at == 0 else None
    if total is None or parts[at] is None or not np.any(total):
        return []
    fits = _fits(fqn, total, _ways(books, at, parts, mesh))
    if mesh.wide_axes and min(fit.residual for fit in fits) > SUM_HOLDS:
        return _of_values(fqn, books, at, mesh) or fits
    return fits


def _in_common(key: str, fits: Mapping[str, Sequence[Summing]]) -> float | None:
    """The factor of the gradients that may have come this way, if most may. Where ranks hold the same
    gradients already, their sum has another factor than one of them, and both hold."""
    holds = [
        abs(s.factor) for found in fits.values() for s in found if s.key == key and s.residual < SUM_HOLDS
    ]
    return float(np.median(holds)) if 2 * len(holds) > len(fits) else None


def _accumulated(book: StepView, fqn: str) -> Floats | None:
    recorded = book.parameter(fqn, *ACCUMULATED)
    return _local(book, fqn) if recorded is None else book.sketch(recorded)


def _best(fits: Sequence[Summing]) -> Summing:
    """The way that explains most; of several that explain all, as where ranks read the same data, the sum
    over most axes. Ranks whose gradients are nearly the same are told apart by what another way leaves over
    alone: it would be a rounding otherwise."""
    all_explained = min(SUM_HOLDS, min(s.residual for s in fits) + ROUNDED_LEAST)
    return min(fits, key=lambda s: (0.0, -len(s.over)) if s.residual < all_explained else (s.residual, 0))


def _of_values(fqn: str, books: Sequence[StepView], at: int, mesh: Layout) -> list[Summing]:
    """The same from stored values: sketches of parts at different places of a whole do not add up."""
    total = books[at].value(books[at].parameter(fqn, *CLIPPED))
    parts = [book.value(book.parameter(fqn, *ACCUMULATED)) for book in books]
    if total is None or parts[at] is None or any(p is not None and p.shape != total.shape for p in parts):
        return []
    flat = [None if part is None else part.reshape(-1) for part in parts]
    return _fits(fqn, total.reshape(-1), _ways(books, at, flat, mesh))


def _fits(fqn: str, total: Floats, ways: list[tuple[str, tuple[str, ...], Floats]]) -> list[Summing]:
    return [_fit(fqn, (way, over), total, part) for way, over, part in ways]


def common_factor(books: Sequence[StepView], at: int, mesh: Layout) -> float | None:
    """The factor that most gradients of rank ``books[at]`` have on their way from their sum to the optimizer;
    None where too few are such a multiple."""
    found = [s for s in handovers(books, at, 1.0, mesh).values() if s.residual < SUM_HOLDS]
    if not found or len(found) < len(books[at].parameters_with(*CLIPPED)) / 2:
        return None
    return float(np.median([s.factor for s in found]))


def _without(best: Summing, fits: list[Summing], common: Mapping[str, float]) -> Summing:
    holding = tuple((s.key, s.factor / common[s.key]) for s in fits if s.residual < SUM_HOLDS)
    return replace(best, factor=best.factor / common[best.key], holding=holding)


# -- clipping ------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipping:
    """What one run did to all its gradients between accumulating them and the optimizer."""

    way: str
    """``none norm value own each``, and ``later`` where gradients are reduced between backward and clipping;
    ``own``: each gradient by its own norm"""
    norm: float
    """L2 norm over all gradients before, loss scale taken out"""
    clipped_norm: float
    """and as the optimizer got them"""
    factor: float
    """their common factor, loss scale taken out"""
    limit: float | None
    """the largest magnitude of any element, where values were cut one by one; the norm, where each gradient
    was cut to it"""
    reported: float | None
    """the norm as the program's own clipping returned it"""
    uneven: tuple[tuple[str, float], ...]
    """parameters whose factor is not the common one"""
    largest: float | None = None
    """the largest magnitude of any element before, loss scale taken out"""
    rounding: float = 0.0
    """how far the common factor may be off, of gradients that are multiplied in a coarse dtype"""

    @property
    def reports_largest(self) -> bool:
        """Whether the program's norm is the largest element: clipping by the infinity norm."""
        if None in (self.reported, self.largest) or not self.largest:
            return False
        return abs((self.reported or 0.0) / self.largest - 1) <= AT_TOP and self.largest < self.norm


# In one piece: one measurement: later numbers are made of earlier ones, and any may be missing.
def clipping(
    book: StepView, *, loss_scale: float | None, reported: float | None, num_ranks: int = 1
) -> Clipping | None:
    """None where the run recorded no gradient both before and after, and where those that the program does
    not reduce between are averaged over ranks."""
    scale = loss_scale or 1.0
    pairs = [
        (fqn, _measured(book, fqn, ACCUMULATED), _measured(book, fqn, CLIPPED)) for fqn in book.parameters
    ]
    norms = [(f, book.norm(a) or 0.0, book.norm(c) or 0.0, a, c) for f, a, c in pairs if a is not None]
    before = float(np.sqrt(sum(n[1] ** 2 for n in norms))) / scale
    norms = [n for n in norms if n[4] is not None]
    after = float(np.sqrt(sum(n[2] ** 2 for n in norms)))
    if not norms or not before:
        return None
    fits = {f: _proportion(book, a, c) for f, n, _, a, c in norms if n > 0}
    limit = _value_limit(book, [(a, c) for *_, a, c in norms], scale)
    if limit is None and np.median([residual for _, residual in fits.values()]) > SUM_UNLIKE * SUM_HOLDS:
        return _reduced_later(after, reported)
    multiples = {f: fit for f, fit in fits.items() if fit[1] <= SUM_EXPLAINED}
    # the others are reduced between backward and clipping: by no factor
    some_reduced = len(fits) / 2 < len(multiples) < len(fits)
    factors = {f: factor * scale for f, (factor, _) in (multiples if some_reduced else fits).items()}
    common = float(np.median(list(factors.values()))) if factors else 1.0
    if some_reduced and num_ranks > 1 and is_average(common, num_ranks):
        return None
    rounding = factor_rounding(book)
    way, uneven = way_of(factors, common, rounding)
    if limit is not None:
        way = "value"
    elif way == "each" and len(factors) == len(fits):
        limit = _own_limit([(n / scale, c) for _, n, c, *_ in norms])
        way = way if limit is None else "own"
    if common and (some_reduced or any(a is None and c is not None for _, a, c in pairs)):
        # not every gradient was recorded before, or as clipping got it: what the optimizer got tells the norm
        after = float(np.sqrt(sum((book.norm(c) or 0.0) ** 2 for *_, c in pairs if c is not None)))
        before = after / abs(common)
    elif way == "norm":  # a parameter in no optimizer is clipped too, and seen by nobody
        after = common * before
    return Clipping(
        way=way,
        norm=before,
        clipped_norm=after,
        factor=common,
        limit=limit,
        reported=reported,
        uneven=uneven,
        largest=max((_largest(book, a) for *_, a, _ in norms), default=0.0) / scale or None,
        rounding=float(np.median(list(rounding.values()))) if rounding else 0.0,
    )


def _own_limit(norms: Sequence[tuple[float, float]]) -> float | None:
    """The norm that two gradients or more were each cut to, from norms before and after; None where one is
    cut to another norm, made larger, or left above it."""
    limit = max(after for _, after in norms)
    cut = [(before, after) for before, after in norms if after < before * (1 - CLIP_NEAR)]
    left = [(before, after) for before, after in norms if after >= before * (1 - CLIP_NEAR)]
    is_one = all(abs(after / limit - 1) <= CLIP_NEAR for _, after in cut)
    is_left = all(after <= before * (1 + CLIP_NEAR) for before, after in left)
    return limit if len(cut) > 1 and is_one and is_left else None


def _largest(book: StepView, record: int | None) -> float:
    """Largest magnitude of any element."""
    row = book.summary(record)
    return 0.0 if row is None else max(abs(row["minimum"] or 0.0), abs(row["maximum"] or 0.0))


def _measured(book: StepView, fqn: str, slot: tuple[str, str]) -> int | None:
    """A gradient whose norm is known: of terms of several ranks it may not be."""
    record = book.parameter(fqn, *slot)
    return None if book.norm(record) is None else record


def way_of(
    factors: Mapping[str, float],
    common: float,
    rounding: Mapping[str, float] | None = None,
    *,
    unchanged: float = CLIP_EXACT,
) -> tuple[str, tuple[tuple[str, float], ...]]:
    """How gradients were clipped, by the factor of each parameter: ``none``, ``norm`` or ``each``; and those
    whose factor is not the common one, by more than multiplying rounds in the dtype that holds them.
    ``unchanged``: how far a common factor of 1 may seem to be off."""
    least, known = max(abs(common), 1e-12), rounding or {}
    uneven = tuple(
        (f, v) for f, v in factors.items() if abs(v - common) > max(CLIP_NEAR, known.get(f, 0.0)) * least
    )
    return "each" if uneven else "none" if abs(common - 1) < unchanged else "norm", uneven


def factor_rounding(book: StepView) -> dict[str, float]:
    """How far the factor of each gradient that the optimizer got may be off: no weighted mean of its
    elements' factors is off by more than one of them, which unscaling and clipping round once each."""
    return {
        f: 2 * roundoff_of(book.dtype(book.parameter(f, *CLIPPED))) for f in book.parameters_with(*CLIPPED)
    }


def _reduced_later(after: float, reported: float | None) -> Clipping:
    """Gradients are reduced between backward and clipping: of the norm before only the program knows."""
    norm = after if reported is None else reported
    factor = after / norm if norm else 1.0
    return Clipping(
        way="later", norm=norm, clipped_norm=after, factor=factor, limit=None, reported=reported, uneven=()
    )


def _proportion(book: StepView, accumulated: int | None, clipped: int | None) -> tuple[float, float]:
    """Factor between two gradients, and what it leaves unexplained."""
    a, c = book.sketch(accumulated), book.sketch(clipped)
    if a is not None and c is not None and a @ a > 0:
        factor, norm = float(a @ c) / float(a @ a), float(np.linalg.norm(c))
        return factor, float(np.linalg.norm(c - factor * a)) / norm if norm else 0.0
    before, after = book.norm(accumulated), book.norm(clipped)
    return ((after or 0.0) / before if before else 1.0), 0.0


def _value_limit(
    book: StepView, gradients: list[tuple[int | None, int | None]], scale: float
) -> float | None:
    """The magnitude that each element was cut at: the largest of every gradient that had a larger one before,
    loss scale taken out, and of which no other had."""
    most = [(_largest(book, before) / scale, _largest(book, after)) for before, after in gradients]
    cut = [after for before, after in most if after < before * (1 - AT_TOP)]
    top = max(cut, default=0.0)
    left = [before for before, after in most if after >= before * (1 - AT_TOP)]
    alike = all(top - after <= AT_TOP * top for after in cut) and max(left, default=0.0) <= top * (1 + AT_TOP)
    return top if top and len(cut) > 1 and alike else None
