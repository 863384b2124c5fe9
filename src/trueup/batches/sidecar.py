"""``batches.json``: what trueup's own exports say of themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trueup.errors import TraceError

SIDECAR = "batches.json"
VERSION = 1


def read_sidecar(folder: Path, *, kind: str) -> dict[str, Any] | None:
    """What ``batches.json`` says, None where there is none or it speaks of another kind.

    Raises:
        TraceError: it cannot be read, or is of another version.
    """
    file = folder / SIDECAR
    if not file.is_file():
        return None
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TraceError(f"{file} cannot be read: {error}") from error
    if not isinstance(known, dict) or known.get("version") != VERSION:
        said = known.get("version") if isinstance(known, dict) else None
        raise TraceError(f"{file} is of version {said!r}, this trueup reads {VERSION}")
    return known if known.get("kind") == kind else None


def wrong(folder: Path, error: Exception) -> TraceError:
    """The error for a file whose content is not what trueup writes."""
    return TraceError(f"{folder / SIDECAR} is not what trueup wrote ({type(error).__name__}: {error})")
