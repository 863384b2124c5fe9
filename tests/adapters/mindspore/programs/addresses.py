"""Objects passed to compiled code at the addresses of others that are gone: without capture, then with it.

Prints a JSON object: what each kind of object gave; 1 is right, 8 is what those that are gone gave last.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mutable, nn, ops

import trueup

GONE = 8
"""objects of a kind that go; those between them stay, and keep the memory for objects of that size"""
x = Tensor(np.ones(2, np.float32))
_staying: list[object] = []


@ms.jit
def divided(by: Parameter, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return values[0] / by, values[1] / by


def parameter(factor: float) -> Parameter:
    return Parameter(Tensor(1.0, ms.float32), name="by")


def of_parameter(one: Parameter, factor: float) -> float:
    found = 1 / float(divided(one, mutable((x, x)))[0].asnumpy()[0])
    if factor != 1:
        ops.assign(one, one * factor)
    return found


class Holder:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    @ms.jit
    def times(self, values: Tensor) -> Tensor:
        return values * self.factor


def of_holder(one: Holder, factor: float) -> float:
    """A jitted method reads its object."""
    return float(one.times(x).asnumpy()[0])


def function(factor: float) -> Callable[[Tensor], Tensor]:
    def times(values: Tensor) -> Tensor:
        return values * factor

    return times


def of_function(one: Callable[[Tensor], Tensor], factor: float) -> float:
    """A function whose calls are traced."""
    return float(ms.jit(one, capture_mode="trace")(x).asnumpy()[0])


Kind = tuple[Callable[[float], Any], Callable[[Any, float], float]]
KINDS: dict[str, Kind] = {
    "parameter": (parameter, of_parameter),
    "object": (Holder, of_holder),
    "function": (function, of_function),
}


def gone(kind: Kind) -> set[int]:
    """Addresses of objects that compiled code was given, and that are no more."""
    make, use = kind
    made = [make(8.0) for _ in range(GONE * GONE)]
    going = made[::GONE]
    _staying.extend(one for at, one in enumerate(made) if at % GONE)
    for one in going:
        use(one, 8.0)
    return {id(one) for one in going}


def again(kind: Kind, addresses: set[int]) -> float:
    """What an object at one of these addresses gives."""
    make, use = kind
    gc.collect()
    kept = []
    for _ in range(10_000):
        kept.append(make(1.0))
        if id(kept[-1]) in addresses:
            return use(kept[-1], 1.0)
    raise SystemExit(f"no address of {make.__name__} came again")


def main() -> None:
    ms.set_device("CPU")
    said = {"without": {name: again(kind, gone(kind)) for name, kind in KINDS.items()}}
    with trueup.Tracer(Path(sys.argv[1]), framework="mindspore", level="mix", steps="all"):
        layer = nn.Dense(2, 1)
        ms.value_and_grad(layer, None, layer.trainable_params())(x)
        said["with"] = {name: again(kind, gone(kind)) for name, kind in KINDS.items()}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
