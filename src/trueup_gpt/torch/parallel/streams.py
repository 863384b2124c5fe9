"""Random streams of dropout: alike where processes hold the same values, their own where they hold parts.

The framework's default stream is seeded alike in the processes of a tp group (``session.seed_streams``) and
drawn from alike. What tp has cut draws from a stream made for that call: seeded by a number of the default
stream, which a layer that is run again meets again, and by the process's place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor


def random_state(device: torch.device) -> Tensor:
    """Of the default stream on the device."""
    return torch.get_rng_state() if device.type == "cpu" else _of(device).get_rng_state(device)


def set_random_state(state: Tensor, device: torch.device) -> None:
    """As it was."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        _of(device).set_rng_state(state, device)


def _of(device: torch.device) -> ModuleType:
    return torch.get_device_module(device)


@contextmanager
def own_stream(place: int, device: torch.device) -> Iterator[None]:
    """Draw from a stream of this process's; the default stream has moved by one number on the CPU."""
    seed = int(torch.randint(2**62, ())) + place
    before = random_state(device)
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        _of(device).manual_seed(seed)
    try:
        yield
    finally:
        set_random_state(before, device)
