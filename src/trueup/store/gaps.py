"""What traces of a source never hold."""

from __future__ import annotations

from dataclasses import dataclass

from trueup.types.codes import RecordCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Records that are not there because their source does not keep them; empty fields fit any record.

    Example:
        >>> Gap(phase="param_grad", slot="clipped", code=RecordCode.ONE_GRADIENT_DUMPED).phase
        'param_grad'
    """

    phase: str = ""
    kind: str = ""
    """of the call"""
    name: str | None = None
    """of the call; ``""`` is the root module"""
    slot: str = ""
    """a regular expression that fits the whole slot"""
    code: RecordCode
