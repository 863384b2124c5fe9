"""Seeds and determinism of MindSpore. Starts no device that the program has not started."""

from __future__ import annotations

import os

import mindspore

from trueup.adapters.seeding import recipe, run

_RECIPE = recipe("mindspore")
_contrary: dict[str, str] = {}


def seed(number: int) -> None:
    """Seed MindSpore's generators, on the host and on the device."""
    run(_RECIPE.seed, seed=number)


def set_deterministic(on: bool) -> None:
    """Ask MindSpore for deterministic kernels, or no longer.

    When ``on``, the variables that HCCL and the other Ascend libraries read when they start are set, where
    the person has not set them.
    """
    if on:
        _note_contrary()
    run(_RECIPE.deterministic, mode=on)


def _note_contrary() -> None:
    """MindSpore overwrites some of the variables: what the person had set is noted before it does."""
    for step in _RECIPE.deterministic:
        name, wanted = step.environment, str(step.to).lower()
        given = None if name is None else os.environ.get(name)
        if name is not None and given is not None and given.lower() not in (wanted, "strict"):
            _contrary.setdefault(
                name, f"{name} was set to {given!r}, where determinism on Ascend needs {wanted!r}"
            )


def contrary() -> list[str]:
    """A sentence for each variable that the person had set against the determinism asked for."""
    return list(_contrary.values())


def set_cudnn_deterministic(on: bool) -> None:
    """Nothing to do: MindSpore has one switch for all its kernels."""
    run(_RECIPE.cudnn, mode=on)


def remove_dropout() -> None:
    """Make dropout keep every element from now on, in cells and in functions."""
    from mindspore import mint, nn, ops

    for cell in (nn.Dropout, mint.nn.Dropout):
        cell.construct = lambda self, x, *_: x
    for home in (ops, mint.nn.functional):
        original = getattr(home, "dropout", None)
        if original is not None:
            home.dropout = _keeping(original)


def _keeping(original: object) -> object:
    def dropout(input: mindspore.Tensor, *_: object, **__: object) -> mindspore.Tensor:
        return input

    dropout.__doc__ = getattr(original, "__doc__", None)
    return dropout
