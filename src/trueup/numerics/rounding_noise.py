"""When a difference between two evaluations of the same operations is more than their rounding.

    ||a - e|| <= TIMES * noise * (1 + SPREAD / sqrt(numel)) + 2 u ||e||

- noise: the largest ||e' - e|| over evaluations e' in which every operation's result is moved by as much as
  rounding moves it: what another order of additions, other kernels and fused operations do.
- u: unit roundoff of the tensor's dtype, because in a few numbers the moves may all be none. Two numbers of a
  dtype that are not equal differ by its last place at least, which is up to 2 u of them.
"""

from __future__ import annotations

import math

from trueup.types.threshold import chosen, measured

TIMES = measured(
    "numerics.rounding_times",
    6.0,
    "times the noise",
    "inductor on the CPU stays below 2.9 (nanoGPT, Llama, convolutions with batch norm and a GRU; float32 "
    "and bfloat16 autocast), most often near 1; a tanh approximation of one gelu in float32 lies at 130",
    test="tests/numerics/test_rounding_noise.py::test_just_above_is_more_than_rounding",
)
SPREAD = chosen(
    "numerics.rounding_spread",
    4.0,
    "standard errors",
    "a size seen over n numbers is known to about 1/sqrt(n) of itself",
    test="tests/numerics/test_rounding_noise.py::test_a_few_numbers_are_given_more_room",
)


def allowed(*, noise: float, norm: float, numel: int, roundoff: float) -> float:
    """The largest ||a - e|| that rounding explains.

    Example:
        >>> allowed(noise=1e-6, norm=1.0, numel=10**6, roundoff=2.0**-24) < 1e-5
        True
    """
    return TIMES * noise * (1.0 + SPREAD / math.sqrt(max(numel, 1))) + 2 * roundoff * norm
