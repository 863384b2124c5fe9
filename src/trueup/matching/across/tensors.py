"""Tensors of one step as points that do not depend on layout: count, l2 norm, smallest, largest, mean.

Tensors of one side with the same numbers are one *content*: a reshape, transpose or copy makes no new one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trueup.matching.codes import Codes
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepTables

FAR = np.inf
_FEATURES = ("l2_norm", "minimum", "maximum", "mean")
_DIGITS = 7
_NEIGHBOURS = 3
"""contents next in size that one is compared with"""
SAME = 1e-4
"""distance below which two tensors are taken for the same, rounding of another kernel apart"""
ROUNDINGS = 4.0
"""unit roundoffs that the statistics of a coarse dtype may differ by"""
FEWEST = 8
"""numbers below which equal statistics may be chance"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All distinct contents of one side; ``of_summary`` leads from a row of ``summaries`` to them."""

    of_summary: Codes
    numel: NDArray[np.float64]
    kind: NDArray[np.str_]
    noise: NDArray[np.float64]
    """how far rounding in its dtype moves the statistics of one"""
    features: NDArray[np.float64]
    """(contents, 4): l2 norm, minimum, maximum, mean"""
    _by_size: dict[tuple[float, str], Codes] = field(default_factory=dict)

    @property
    def telling(self) -> NDArray[np.bool_]:
        """Whether equal statistics mean anything: floating, several numbers, not all one."""
        spread = self.features[:, 1] < self.features[:, 2]
        return np.asarray(spread & (self.numel >= FEWEST) & (self.kind == "f"))

    def like(self, size: float, kind: str) -> Codes:
        """Contents of so many elements of one kind."""
        if not self._by_size:
            groups: dict[tuple[float, str], list[int]] = {}
            for at, key in enumerate(zip(self.numel.tolist(), self.kind.tolist(), strict=True)):
                groups.setdefault(key, []).append(at)
            self._by_size.update({key: np.array(at, np.int64) for key, at in groups.items()})
        return self._by_size.get((size, kind), np.zeros(0, np.int64))


def contents_of(tables: StepTables) -> Contents:
    """The contents of a step."""
    frame = tables.summaries.select(
        pl.col("numel").cast(pl.Float64),
        pl.col("dtype").cast(pl.String),
        *(pl.col(name).cast(pl.Float64) for name in _FEATURES),
    )
    dtypes = frame["dtype"].to_list()
    letters = {
        name: {"float": "f", "complex": "c", "bool": "b"}.get(d.kind, "i") for name, d in DTYPES.items()
    }
    kind = np.array([letters.get(d, "?") for d in dtypes], dtype="<U1")
    features = frame.select(_FEATURES).fill_null(float("nan")).to_numpy()
    numel = frame["numel"].fill_null(-1).to_numpy()
    rounded = features.copy()
    rounded[:, 0] = _significant(features[:, 0])
    scale = features[:, 0] / np.sqrt(np.maximum(numel, 1))
    rounded[:, 3] = np.round(features[:, 3] / np.where(scale > 0, scale, 1.0), _DIGITS - 2)
    keys = np.column_stack([numel, [ord(k) for k in kind] if len(kind) else numel, np.nan_to_num(rounded)])
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    first, inverse = _merged(first, inverse.reshape(-1), numel, kind, features)
    return Contents(
        of_summary=inverse.astype(np.int64),
        numel=numel[first],
        kind=kind[first],
        noise=np.array([_noise(d) for d in dtypes])[first] if dtypes else np.zeros(0),
        features=features[first],
    )


def _merged(
    first: Codes,
    inverse: Codes,
    numel: NDArray[np.float64],
    kind: NDArray[np.str_],
    features: NDArray[np.float64],
) -> tuple[Codes, Codes]:
    """Contents that rounding to so many digits parted by chance put together again.

    ``first`` holds a row of each content, ``inverse`` the content of each row.
    """
    order = np.lexsort((features[first, 0], kind[first], numel[first]))
    leader = list(range(len(first)))
    for ahead in range(1, _NEIGHBOURS + 1):
        one, two = first[order[:-ahead]], first[order[ahead:]]
        same = (numel[one] == numel[two]) & (kind[one] == kind[two])
        scale = np.abs(features[one, 0:1]) / np.sqrt(np.maximum(numel[one, None], 1))
        unit = np.maximum(np.abs(features[one]), scale) * 10.0**-_DIGITS
        with np.errstate(invalid="ignore"):
            same &= (np.abs(features[one] - features[two]) <= unit).all(axis=1)
        for a, b in zip(order[:-ahead][same].tolist(), order[ahead:][same].tolist(), strict=True):
            leader[_leader_of(leader, b)] = _leader_of(leader, a)
    kept, new = np.unique([_leader_of(leader, k) for k in range(len(leader))], return_inverse=True)
    kept = kept.astype(np.int64)
    return first[kept], new.reshape(-1)[inverse]


def _leader_of(leader: list[int], one: int) -> int:
    while leader[one] != one:
        leader[one] = leader[leader[one]]
        one = leader[one]
    return one


def _noise(dtype: str | None) -> float:
    return max(SAME, ROUNDINGS * DTYPES[dtype].eps) if dtype in DTYPES else SAME


def _significant(values: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        power = np.where(values > 0, np.floor(np.log10(values)), 0.0)
    unit = 10.0 ** (power - _DIGITS + 1)
    return np.asarray(np.round(values / unit) * unit)


def distances(one: Contents, rows: Codes, other: Contents, columns: Codes) -> NDArray[np.float64]:
    """How far contents are from each other, (rows, columns): the largest relative difference of a statistic.

    FAR for contents of other sizes or kinds, and where a statistic is missing.
    """
    a, b = one.features[rows][:, None, :], other.features[columns][None, :, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        norm = np.maximum(a[..., 0], b[..., 0])
        extreme = np.maximum(np.abs(a[..., 1:3]).max(axis=-1), np.abs(b[..., 1:3]).max(axis=-1))
        rms = norm / np.sqrt(np.maximum(one.numel[rows], 1))[:, None]
        parts = [
            np.abs(a[..., 0] - b[..., 0]) / norm,
            np.abs(a[..., 1] - b[..., 1]) / extreme,
            np.abs(a[..., 2] - b[..., 2]) / extreme,
            np.abs(a[..., 3] - b[..., 3]) / rms,
        ]
        far = np.nanmax(np.nan_to_num(np.stack(parts), nan=0.0, posinf=FAR), axis=0)
    known = ~np.isnan(one.features[rows, 0])[:, None] & ~np.isnan(other.features[columns, 0])[None, :]
    alike = (one.numel[rows][:, None] == other.numel[columns]) & (
        one.kind[rows][:, None] == other.kind[columns]
    )
    return np.where(known & alike, far, FAR)
