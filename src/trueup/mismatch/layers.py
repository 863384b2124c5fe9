"""Why: the two forwards of the same tokens, layer by layer, against the rounding of their dtypes or measured
noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trueup.mismatch.needed import dtype_needed
from trueup.mismatch.reading import TokenFile, bit_equal, layer
from trueup.mismatch.thresholds import AMPLIFICATION, NOISE, ROUNDINGS
from trueup.numerics.dtypes import DTYPES
from trueup.types.arrays import Array, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerError:
    """One layer's output: rollout against training, over the tokens of all files."""

    name: str
    num_tokens: int
    num_equal: int
    """tokens with bit-identical features"""
    rel_l2: float
    """root mean square over tokens of |rollout - training| / |training|"""
    max_rel_l2: float
    noise: float | None
    """the same of the benign variant against training"""
    dtype: str
    """the coarser of the two that the values need"""
    shape_differs: bool = False

    @property
    def is_equal(self) -> bool:
        """Bit for bit."""
        return not self.shape_differs and self.num_equal == self.num_tokens

    def bound(self, before: float) -> float:
        """The error that is explained, where preceding layers have at most the error ``before``."""
        if self.noise is not None:
            return NOISE * self.noise
        return ROUNDINGS * DTYPES[self.dtype].eps + AMPLIFICATION * before


def layer_errors(files: Sequence[TokenFile]) -> list[LayerError]:
    """Every layer that all files have, in the order of the first."""
    names = [n for n in (files[0].layers if files else ()) if all(n in file.layers for file in files)]
    return [_error(files, name) for name in names]


def first_beyond(errors: Sequence[LayerError], times: float = 1.0) -> tuple[LayerError, float] | None:
    """The first layer whose error exceeds ``times`` what is explained, with the latter."""
    before = 0.0
    for one in errors:
        bound = one.bound(before)
        if one.shape_differs or not one.rel_l2 <= times * bound:
            return one, bound
        before = max(before, one.rel_l2)
    return None


def _error(files: Sequence[TokenFile], name: str) -> LayerError:
    sums, noise, equal, names, differs = [], [], 0, {"float64"}, False
    for file in files:
        rollout, training = (layer(file, side, name) for side in ("rollout", "training"))
        if rollout is None or training is None or rollout.shape != training.shape:
            differs = True
            continue
        equal += int(bit_equal(rollout, training).all(axis=1).sum())
        names |= {dtype_needed(rollout), dtype_needed(training)}
        sums.append(_relative(rollout, training))
        again = layer(file, "noise", name)
        if again is not None and again.shape == training.shape:
            noise.append(_relative(again, training))
    errors = np.concatenate(sums) if sums else np.zeros(0)
    variant = np.concatenate(noise) if noise else np.zeros(0)
    return LayerError(
        name=name,
        num_tokens=len(errors),
        num_equal=equal,
        rel_l2=_rms(errors),
        max_rel_l2=float(errors.max(initial=0.0)),
        noise=_rms(variant) if variant.any() else None,
        dtype=max(names, key=lambda one: DTYPES[one].eps),
        shape_differs=differs,
    )


def _relative(actual: Array, expected: Array) -> Floats:
    """|actual - expected| / |expected| of each token; infinite where a side alone is not finite."""
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        apart: Floats = np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)
    same = ((a == b) | (np.isnan(a) & np.isnan(b))).all(axis=1)
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


def _rms(values: Floats) -> float:
    return float(np.sqrt((values * values).mean())) if len(values) else 0.0
