"""Seeds and determinism, from inside a program (``seed_all``) or from outside (``trueup capture --seed``)."""

from __future__ import annotations

import os
import random
import warnings
from importlib import import_module
from types import ModuleType

import numpy as np

from trueup import adapters
from trueup.errors import ConfigError

_LARGEST = 2**32 - 1
"""numpy takes no larger seed"""


def seed_all(
    seed: int = 1234, mode: bool = False, rm_dropout: bool = False, is_enhanced: bool = False
) -> None:
    """Seed every generator a training program draws from; a drop-in for msprobe's function of this name.

    Sets ``random``, numpy, torch on every device (CUDA and NPU), PYTHONHASHSEED for child processes, and, as
    msprobe does, cuDNN deterministic on, benchmark off. ``mode`` also asks torch for deterministic algorithms
    and switches cuDNN off; False takes the request for deterministic algorithms back. ``rm_dropout`` makes
    functional dropout keep everything from then on. ``is_enhanced`` has no effect and warns: msprobe rewinds
    every generator before every draw with it, which makes each random tensor of a kind the same.

    Raises:
        ConfigError: the seed is no whole number between 0 and 2**32 - 1, or a switch is not a bool.

    Example:
        >>> import random, trueup
        >>> trueup.seed_all(7); first = random.random()
        >>> trueup.seed_all(7); first == random.random()
        True
    """
    _check(seed)
    for name, value in (("mode", mode), ("rm_dropout", rm_dropout), ("is_enhanced", is_enhanced)):
        if not isinstance(value, bool):
            raise ConfigError(f"seed_all: {name} is {value!r}; True or False is wanted")
    _seed_python(seed)
    torch = _torch()
    torch.seed(seed)
    torch.set_deterministic(mode)
    torch.set_cudnn_deterministic(True)
    if rm_dropout:
        torch.remove_dropout()
    if is_enhanced:
        warnings.warn(
            "seed_all: is_enhanced has no effect; every generator is seeded once", UserWarning, stacklevel=2
        )


def apply(seed: int | None, deterministic: bool | None) -> None:
    """Do what ``--seed`` and ``--deterministic`` ask for, right after a program has imported torch.

    None leaves a thing as the program has it. Nothing here starts a device: a program may still choose its
    devices.
    """
    if seed is None and deterministic is None:
        return
    torch = _torch()
    if seed is not None:
        _check(seed)
        _seed_python(seed)
        torch.seed(seed)
    if deterministic is not None:
        torch.set_deterministic(deterministic)
        torch.set_cudnn_deterministic(deterministic)


def _check(seed: object) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _LARGEST:
        raise ConfigError(f"seed {seed!r}: a whole number between 0 and {_LARGEST} is wanted")


def _seed_python(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)


def _torch() -> ModuleType:
    return import_module(".determinism", adapters.load("torch").__name__)
