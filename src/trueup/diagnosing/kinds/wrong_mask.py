"""Other elements are masked than in the reference: which ones, told from the values or from their effect."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.evidence.facts import Floats
from trueup.diagnosing.kinds.arguments import argument_differences, is_mask
from trueup.diagnosing.kinds.fitting import close
from trueup.diagnosing.kinds.naming import named, percent, subject
from trueup.diagnosing.kinds.solved import solved
from trueup.types.finding import Kind

Bools = NDArray[np.bool_]

MASKED_BELOW = -1e4
"""Scores below this are as good as hidden."""
IGNORED_LABEL = -100
_ATTENTION = ("attn", "attention", "softmax", "scaled_dot_product")
_EVEN = 0.02


def rule(evidence: Evidence) -> Kind | None:
    """The strongest of: arguments that say what is hidden, hidden elements that differ in a pattern,
    positions that a mask alone tells apart."""
    found = [_arguments(evidence)]
    attended = solved(evidence, "wrong_mask")
    if attended is not None:
        found.append(named("wrong_mask", attended.confidence, attended.sentence, evidence))
    t, r = evidence.target_values, evidence.reference_values
    if t is not None and r is not None and t.shape == r.shape and t.size >= 4:
        found += [_hidden(evidence, t, r), _positions(evidence, t, r)]
    return max((k for k in found if k is not None), key=lambda k: k.confidence, default=None)


def _arguments(evidence: Evidence) -> Kind | None:
    said = [d.sentence for d in argument_differences(evidence) if is_mask(d)]
    if not said:
        return None
    return named("wrong_mask", 0.965, f"another mask is asked for: {'; '.join(said[:3])}", evidence)


# -- hidden elements ------------------------------------------


def _hidden(evidence: Evidence, t: Floats, r: Floats) -> Kind | None:
    known = evidence.target
    if known is None:
        return None
    a, b = _masked(t, known.dtype), _masked(r, known.dtype)
    apart = a != b
    share = float(apart.mean())
    if not apart.any() or not (a.any() or b.any()):
        return None
    where = _pattern(apart)
    if where is None:
        return None
    more = int((a & ~b).sum()), int((b & ~a).sum())
    said = (
        f"{subject(evidence)} hides other elements: {more[0]} more and {more[1]} fewer than the reference's, "
        f"{percent(share)} of all, {where}"
    )
    agreeing = close(t[~apart], r[~apart], max(evidence.roundoff, 1e-9))
    plain = known.dtype == "bool" or not known.is_floating
    confidence = 0.95 if plain and agreeing.all() else 0.92
    if known.is_floating and not (np.isneginf(t) | np.isneginf(r)).any() and _is_gradient(evidence):
        confidence = 0.75
    return named("wrong_mask", confidence, said, evidence)


def _is_gradient(evidence: Evidence) -> bool:
    return evidence.origin.phase in ("backward", "param_grad")


def _masked(values: Floats, dtype: str) -> Bools:
    if dtype == "bool":
        return np.asarray(values != 0)
    if dtype.startswith(("int", "uint")):
        return np.asarray(values == IGNORED_LABEL)
    return np.asarray((values == 0) | (values <= MASKED_BELOW))


def _pattern(apart: Bools) -> str | None:
    """Where in the matrix, in words; None where the places follow no pattern."""
    if apart.ndim == 0:
        return None
    if apart.ndim == 1:
        return _run(apart)
    plane = apart.reshape(-1, *apart.shape[-2:])
    mean = plane.mean(axis=0)
    if float(((mean > _EVEN) & (mean < 1 - _EVEN)).mean()) <= _EVEN:
        found = _in_matrix(mean > 0.5)
        if found is not None:
            return found
    rows, columns = (np.asarray(plane.any(axis=a)) for a in (2, 1))
    whole_columns = (plane == columns[:, None, :]).all() and not columns.all()
    if whole_columns and _contiguous(columns):
        return (
            f"in whole columns (up to {int(columns.sum(axis=1).max())} of {columns.shape[1]}), as padding is"
        )
    if (plane == rows[:, :, None]).all() and not rows.all():
        return f"in whole rows ({int(rows.sum())} of {rows.size})"
    return None


def _in_matrix(where: Bools) -> str | None:
    """A pattern of one (rows, columns) matrix."""
    i, j = np.nonzero(where)
    if not len(i):
        return None
    off = j - i
    if _fills(where, np.subtract.outer(np.arange(where.shape[0]), np.arange(where.shape[1])) * -1, off):
        if off.min() == off.max():
            names = {0: "on the diagonal", 1: "on the first diagonal above the main one"}
            return names.get(int(off[0]), f"on diagonal {int(off[0])}")
        if off.min() >= 1:
            return "above the diagonal (later positions)"
        if off.max() <= -1:
            return f"{-int(off.max())} or more places below the diagonal (a window)"
        return f"on diagonals {int(off.min())} to {int(off.max())}"
    rows, columns = (np.asarray(where.any(axis=a)) for a in (1, 0))
    if (where == np.outer(rows, columns)).all():
        if rows.all():
            return f"in columns {_first_last(columns)}"
        if columns.all():
            return f"in rows {_first_last(rows)}"
        return f"in the block of rows {_first_last(rows)} and columns {_first_last(columns)}"
    if (off < 0).all() or (off > 0).all():
        if _is_blocks(where):
            return "between blocks on the diagonal, as the documents of a packed sequence are"
        above = "above" if (off > 0).all() else "below"
        return f"in part of the triangle {above} the diagonal" if len(i) > 2 * where.shape[0] else None
    return None


def _fills(where: Bools, offsets: NDArray[np.int64], seen: NDArray[np.int64]) -> bool:
    """Whether the places are whole diagonals."""
    return bool((where == np.isin(offsets, np.unique(seen))).all())


def _is_blocks(where: Bools) -> bool:
    """Row by row, everything up to a border that only moves down in steps."""
    counts = where.sum(axis=1)
    return all(where[i, : counts[i]].all() for i in range(len(counts))) and bool((np.diff(counts) >= 0).all())


def _contiguous(rows: Bools) -> bool:
    """In every row one run at the beginning or the end."""
    steps = np.diff(rows.astype(np.int8), axis=1)
    return bool((np.abs(steps).sum(axis=1) <= 1).all())


def _run(apart: Bools) -> str | None:
    at = np.flatnonzero(apart)
    if len(at) == at[-1] - at[0] + 1 and len(at) < len(apart):
        return f"at indices {at[0]} to {at[-1]}"
    return f"at {len(at)} of {len(apart)} indices" if len(at) <= len(apart) // 2 else None


def _first_last(flags: Bools) -> str:
    at = np.flatnonzero(flags)
    return f"{at[0]} to {at[-1]}" if len(at) > 1 else str(at[0])


# -- the effect on positions ------------------------------------------


def _positions(evidence: Evidence, t: Floats, r: Floats) -> Kind | None:
    """(..., positions, width) out of attention: which positions a wrong mask leaves untouched."""
    if t.ndim < 3 or not _is_attention(evidence) or evidence.origin.phase != "forward" or t.shape[-2] < 4:
        return None
    if np.isnan(t).any() and not np.isnan(r).any():
        empty = np.isnan(t).all(axis=-1)
        said = f"{int(empty.sum())} of {empty.size} rows are NaN: the mask hides everything they could see"
        return named("wrong_mask", 0.93, said, evidence) if empty.any() else None
    same = close(t, r, max(evidence.roundoff, 1e-9)).mean(axis=-1) > 0.9
    if same.all():
        return None
    rows = same.reshape(-1, same.shape[-1])
    length = rows.shape[1]
    if rows[:, -1].all() and float(rows[:, :-1].mean()) < 0.1:
        said = "every position but the last differs: positions see what comes after them"
        return named("wrong_mask", 0.9, said, evidence)
    heads = np.argmin(rows, axis=1)
    heads[rows.all(axis=1)] = length
    changed = heads < length
    tails = np.array([not rows[k, h:].any() for k, h in enumerate(heads) if h < length])
    if changed.any() and tails.mean() > 0.95 and heads[changed].min() >= 2:
        at = sorted(set(heads[changed].tolist()))
        said = (
            f"positions agree up to {', '.join(map(str, at[:4]))} and differ from there on: "
            "a window or a border between documents is not the same"
        )
        return named("wrong_mask", 0.8, said, evidence)
    return None


def _is_attention(evidence: Evidence) -> bool:
    around = evidence.surroundings
    words = [around.module, around.name, around.type or "", *(c.name for c in around.neighbours)]
    return any(a in w.lower() for w in words for a in _ATTENTION)
