"""Which of several launchers this one is: a job may start ``trueup capture`` once a node, or once a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_RANKS = (
    "RANK",
    "NODE_RANK",
    "GROUP_RANK",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "MV2_COMM_WORLD_RANK",
)
"""set by schedulers and by the launchers above this one; 0 is the first"""
_FLAGS = ("--node-rank", "--node_rank", "--machine-rank", "--machine_rank")


def is_first(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether this launcher is the one that looks after the folder and speaks for the run.

    The others of a job find the folder in use by their own run, and must neither refuse it nor clear it.

    Example:
        >>> is_first(["torchrun", "--nnodes=2", "--node-rank=1", "train.py"], {})
        False
    """
    return not any(_is_later(number) for number in [*map(environment.get, _RANKS), *_flag_values(command)])


def _flag_values(command: Sequence[str]) -> list[str]:
    """Values of node-rank flags, written ``--flag N`` or ``--flag=N``."""
    values = []
    for word, after in zip(command, [*command[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        if flag in _FLAGS:
            values.append(value if equals else after)
    return values


def _is_later(number: str | None) -> bool:
    return number is not None and number.isdigit() and int(number) > 0
