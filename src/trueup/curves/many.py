"""Many targets against the same references, read and judged one after the other in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from trueup.curves.comparison import CurveComparison, Options, compare_curves
from trueup.curves.curve import Curve
from trueup.curves.pairing import Shared
from trueup.curves.reading import read_curve
from trueup.errors import ConfigError

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
    with ThreadPoolExecutor(_THREADS) as pool:
        known: list[Curve] = list(pool.map(lambda name: read_curve(name, columns=columns), references))
        shared: Shared = {}
        yield from pool.map(
            lambda name: compare_curves(read_curve(name, columns=columns), known, options, shared=shared),
            targets,
        )
