"""Many targets against the same references, read and judged one after the other in bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from threadpoolctl import threadpool_limits

from trueup.curves.columns import GRAD_NORM, LEARNING_RATE, LOSS, STEP
from trueup.curves.comparison import CurveComparison, Options, compare_curves
from trueup.curves.curve import Curve
from trueup.curves.pairing import CurveSide, Shared
from trueup.curves.reading import read_curve
from trueup.errors import ConfigError

_DRAWN = (LOSS, GRAD_NORM, LEARNING_RATE)
_FEW = 8
"""targets that are kept in full"""
_THREADS = 2
"""Reading is one core's work, and the scanner lets another thread run meanwhile."""


def compare_many(
    targets: Sequence[str],
    references: Sequence[str],
    *,
    columns: Mapping[str, str] | None = None,
    options: Options | None = None,
) -> Iterator[CurveComparison]:
    """Read the references once, then judge target by target, in the order given.

    Raises:
        ConfigError: a reference is given twice, or is a target.
        TraceError: a log cannot be read.
        NothingCompared: a target has nothing in common with the references.
    """
    for name in references:
        if list(references).count(name) > 1:
            raise ConfigError(
                f"--reference {name} is given twice: a repeat is another run of the same program"
            )
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(_THREADS) as pool:  # two logs at once are enough
        known: list[Curve] = list(pool.map(lambda name: read_curve(name, columns=columns), references))
        shared: Shared = {}
        own = threading.local()

        def judged(name: str) -> CurveComparison:
            room = own.__dict__.setdefault("room", bytearray())
            target = read_curve(name, columns=columns, room=room)
            found = compare_curves(target, known, options, shared=shared)
            return found if len(targets) <= _FEW else _slim(found)

        yield from pool.map(judged, targets)


def _slim(comparison: CurveComparison) -> CurveComparison:
    """The comparison with no more columns of its target than reports draw."""
    target, paired = comparison.target, comparison.paired
    frame = target.frame.select(name for name in target.frame.columns if name in (STEP, *_DRAWN))
    side = CurveSide(
        columns={name: values for name, values in paired.target.columns.items() if name in _DRAWN}
    )
    return replace(comparison, target=replace(target, frame=frame), paired=replace(paired, target=side))
