"""Rows of the tables ``calls`` and ``records`` (docs/trace-format.md), cells in schema order."""

from __future__ import annotations

from typing import NamedTuple


class CallRow(NamedTuple):
    """Its number is its place in the table."""

    parent: int | None
    kind: str
    name: str
    type: str | None
    ordinal: int
    microbatch: int
    mode: str
    opaque: bool
    stack: int | None
    arguments: str | None
    global_ordinal: int


class RecordRow(NamedTuple):
    """One tensor at one site."""

    call: int
    phase: str
    slot: str
    microbatch: int
    summary: int | None
    requires_grad: bool | None
    reason: str | None
