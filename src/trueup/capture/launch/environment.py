"""The environment a captured command runs in."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from trueup.capture.options import CaptureOptions

CAPTURE = "TRUEUP_CAPTURE"
"""options and import folders, as JSON; the start-up file does nothing without it"""
LAUNCH_ID = "TRUEUP_LAUNCH_ID"
"""the same in all processes of a run, on all nodes, so that a rank knows a folder that another rank has made;
drawn from the folder's path, because a launcher has already made sure that no other run is in it"""
_STARTUP = Path(__file__).parent / "startup"
_NEEDED = ("trueup", "numpy", "polars", "pyarrow", "safetensors")


def environment_from_options(options: CaptureOptions, *, base: Mapping[str, str]) -> dict[str, str]:
    """``base`` with the start-up file first on PYTHONPATH and everything it must know; ``base`` is unchanged.

    A seed also sets PYTHONHASHSEED and determinism CUBLAS_WORKSPACE_CONFIG, which are read before any Python
    code of the program runs; a value the person has set is kept.
    """
    environment = dict(base)
    path = [p for p in base.get("PYTHONPATH", "").split(os.pathsep) if p != str(_STARTUP)]
    environment["PYTHONPATH"] = os.pathsep.join([str(_STARTUP), *path]) if path != [""] else str(_STARTUP)
    plan = {"options": options.to_json(), "folders": _import_folders()}
    environment[CAPTURE] = json.dumps(plan, separators=(",", ":"))
    environment[LAUNCH_ID] = hashlib.sha256(str(options.output).encode()).hexdigest()[:32]
    if options.seed is not None:
        environment["PYTHONHASHSEED"] = str(options.seed)
    if options.deterministic:
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return environment


def _import_folders() -> list[str]:
    """Where trueup and what capture needs live, for a child whose own environment lacks them."""
    folders = []
    for name in _NEEDED:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            folders.append(str(Path(spec.origin).parent.parent))
    return list(dict.fromkeys(folders))
