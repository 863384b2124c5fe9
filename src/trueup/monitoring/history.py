"""What rules remember of earlier steps."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trueup.monitoring.thresholds import ENOUGH
from trueup.types.arrays import Floats


class Window:
    """The last values of a curve."""

    def __init__(self, size: int) -> None:
        self._ring: Floats = np.zeros(max(size, ENOUGH))
        self._added = 0

    def add(self, value: float) -> None:
        """One more step."""
        self._ring[self._added % len(self._ring)] = value
        self._added += 1

    def clear(self) -> None:
        """Begin anew."""
        self._added = 0

    @property
    def is_full_enough(self) -> bool:
        """Whether it says anything of what is usual."""
        return self._added >= ENOUGH

    @property
    def mean(self) -> float:
        """Over the window; NaN where it is empty."""
        return float(self._ring[: self._added].mean()) if self._added else math.nan

    @property
    def deviation(self) -> float:
        """Standard deviation over the window (of the population)."""
        return float(self._ring[: self._added].std()) if self._added else math.nan


class _ByName:
    """Arrays whose place belongs to a name; names may come and go."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._numbers: dict[str, int] = {}
        self._places: NDArray[np.int64] = np.zeros(0, np.int64)

    def places(self, names: tuple[str, ...]) -> NDArray[np.int64]:
        """The places of these names; new ones are added at the end."""
        if names != self._names:
            for name in names:
                self._numbers.setdefault(name, len(self._numbers))
            self._names = names
            self._places = np.asarray([self._numbers[name] for name in names], np.int64)
            self.grow(len(self._numbers))
        return self._places

    def grow(self, size: int) -> None:
        """Make room for so many names."""
        raise NotImplementedError


class Largest(_ByName):
    """The largest value of each name so far, from the 16th on."""

    def __init__(self) -> None:
        super().__init__()
        self._largest: Floats = np.zeros(0)
        self._times: NDArray[np.int64] = np.zeros(0, np.int64)

    def grow(self, size: int) -> None:
        """New names have none."""
        self._largest = np.concatenate([self._largest, np.zeros(size - len(self._largest))])
        self._times = np.concatenate([self._times, np.zeros(size - len(self._times), np.int64)])

    def before(self, names: tuple[str, ...], values: Floats) -> Floats:
        """What it was before this step, infinite while too little is known; then takes this step in."""
        places = self.places(names)
        largest = self._largest[places]
        known = (self._times[places] >= ENOUGH) & (largest > 0)
        finite = np.isfinite(values)
        self._largest[places] = np.where(finite, np.fmax(largest, values), largest)
        self._times[places] += finite
        return np.where(known, largest, np.inf)


class Baselines(_ByName):
    """The median of each name's first values."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = max(size, 1)
        self._first: Floats = np.zeros((self._size, 0))
        self._times: NDArray[np.int64] = np.zeros(0, np.int64)
        self._median: Floats = np.zeros(0)

    def grow(self, size: int) -> None:
        """New names have none."""
        more = size - self._first.shape[1]
        self._first = np.concatenate([self._first, np.zeros((self._size, more))], axis=1)
        self._times = np.concatenate([self._times, np.zeros(more, np.int64)])
        self._median = np.concatenate([self._median, np.full(more, np.nan)])

    def of(self, names: tuple[str, ...], values: Floats) -> Floats:
        """The baselines, NaN for names that have not been seen often enough; takes this step in."""
        places = self.places(names)
        open_ = places[(self._times[places] < self._size) & np.isfinite(values)]
        if len(open_):
            value_of = dict(zip(places.tolist(), values.tolist(), strict=True))
            self._first[self._times[open_], open_] = [value_of[place] for place in open_.tolist()]
            self._times[open_] += 1
            whole = open_[self._times[open_] == self._size]
            if len(whole):
                self._median[whole] = np.median(self._first[:, whole], axis=0)
        return self._median[places]
