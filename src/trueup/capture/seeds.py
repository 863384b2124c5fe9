"""Seeds and determinism, from inside a program (``seed_all``) or from outside (``trueup capture --seed``)."""

from __future__ import annotations

import warnings
from importlib import import_module
from types import ModuleType

from trueup import adapters
from trueup.adapters.seeding import recipe, run
from trueup.capture.frameworks import frameworks_imported
from trueup.types.option import expected

_LARGEST = 2**32 - 1
"""numpy takes no larger seed"""


def seed_all(
    seed: int = 1234, mode: bool = False, rm_dropout: bool = False, is_enhanced: bool = False
) -> None:
    """Seed every generator a training program draws from; a drop-in for msprobe's function of this name.

    Sets ``random``, numpy, the frameworks the program has imported on every device (CUDA, NPU, Ascend),
    PYTHONHASHSEED for child processes, and, as msprobe does, cuDNN deterministic on, benchmark off. ``mode``
    also asks for deterministic algorithms and switches cuDNN off; False takes the request back.
    ``rm_dropout`` makes functional dropout keep everything from then on. ``is_enhanced`` has no effect and
    warns: msprobe rewinds every generator before every draw with it, which makes each random tensor of a kind
    the same.

    Raises:
        ConfigError: the seed is not an integer from 0 to 2**32 - 1, or a switch is not a bool.

    Example:
        >>> import random, trueup
        >>> trueup.seed_all(7); first = random.random()
        >>> trueup.seed_all(7); first == random.random()
        True
    """
    check_seed(seed)
    for name, value in (("mode", mode), ("rm_dropout", rm_dropout), ("is_enhanced", is_enhanced)):
        if not isinstance(value, bool):
            raise expected(f"seed_all: {name}", "True or False", value)
    _seed_python(seed)
    for framework in frameworks_imported():
        generators = _determinism(framework)
        generators.seed(seed)
        generators.set_deterministic(mode)
        generators.set_cudnn_deterministic(True)
        if rm_dropout:
            generators.remove_dropout()
    if is_enhanced:
        warnings.warn(
            "seed_all: is_enhanced has no effect; every generator is seeded once", UserWarning, stacklevel=2
        )


def apply(seed: int | None, deterministic: bool | None, *, framework: str) -> None:
    """Do what ``--seed`` and ``--deterministic`` ask for, right after a program has imported ``framework``.

    None leaves a thing as the program has it. Nothing here starts a device: a program may still choose its
    devices.
    """
    if seed is None and deterministic is None:
        return
    generators = _determinism(framework)
    if seed is not None:
        check_seed(seed)
        _seed_python(seed)
        generators.seed(seed)
    if deterministic is not None:
        generators.set_deterministic(deterministic)
        generators.set_cudnn_deterministic(deterministic)


def check_seed(seed: object) -> None:
    """Raise where it is not a seed.

    Raises:
        ConfigError: not an integer from 0 to 2**32 - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _LARGEST:
        raise expected("seed", f"an integer from 0 to {_LARGEST}", seed)


def _seed_python(seed: int) -> None:
    run(recipe("python").seed, seed=seed)


def _determinism(framework: str) -> ModuleType:
    return import_module(".determinism", adapters.load(framework).__name__)
