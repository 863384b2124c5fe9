"""What a program says of its own parallel layout, for the trace."""

from __future__ import annotations

from collections.abc import Mapping

from trueup.types.layout import Layout, layout_from_plain

_declared: list[Layout] = []


def declare_layout(layout: Mapping[str, object]) -> None:
    """Say how the tensors of this program lie on its processes; every process says the same, before it
    trains.

    A trace then holds it, and ``trueup compare`` merges the parts of all ranks into whole tensors. Nothing
    happens where nothing is captured. The keys are those of ``layout`` in docs/trace-format.md.

    Example:
        >>> row = {"name": "*.up.weight", "tp": "shard(0)"}
        >>> declare_layout({"version": 1, "mesh": {"tp": 2}, "parameters": [row]})

    Raises:
        ConfigError: not of that form.
    """
    found = layout_from_plain(layout)
    _declared[:] = [found]


def withdraw_layout() -> None:
    """Nothing is declared any more, for the next program of this process."""
    _declared.clear()


def declared_layout() -> Layout | None:
    """What was declared last."""
    return _declared[0] if _declared else None
