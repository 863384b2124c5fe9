"""Parameter groups by weight decay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from typing_extensions import TypedDict

ParameterT = TypeVar("ParameterT")


class Group(TypedDict, Generic[ParameterT]):
    """Parameters of one weight decay, and their names."""

    params: list[ParameterT]
    names: list[str]
    weight_decay: float
    decays: bool


def decays(fqn: str, num_dims: int) -> bool:
    """Whether weight decay applies: not to norms, biases and one-dimensional weights.

    Example:
        >>> decays("layers.0.input_norm.weight", 1), decays("layers.0.mlp.up.weight", 2)
        (False, True)
    """
    return "norm" not in fqn and "bias" not in fqn and num_dims > 1


def weight_decay_groups(
    named: Iterable[tuple[str, ParameterT, int]],
    weight_decay: float,
    *,
    rule: Callable[[str, int], bool] = decays,
) -> list[Group[ParameterT]]:
    """Two groups, with decay and without; each knows the names of its parameters. An empty one is left out.

    Args:
        named: fqn, parameter and number of dims of the whole parameter.
        weight_decay: of the first group.
        rule: whether a parameter decays.
    """
    groups: list[Group[ParameterT]] = [
        {"params": [], "names": [], "weight_decay": weight_decay, "decays": True},
        {"params": [], "names": [], "weight_decay": 0.0, "decays": False},
    ]
    for fqn, parameter, num_dims in named:
        group = groups[0 if rule(fqn, num_dims) else 1]
        group["params"].append(parameter)
        group["names"].append(fqn)
    return [group for group in groups if group["params"]]
