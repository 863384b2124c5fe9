"""What a trace says of its run besides tensors: where it came from, and the numbers of each step."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

from trueup import __version__
from trueup.adapters.base import Adapter
from trueup.capture.claim import role_of
from trueup.capture.declared import declared_layout
from trueup.capture.long_run import changes
from trueup.capture.options import CaptureOptions
from trueup.store.layout import MANIFEST
from trueup.types.trace import ScalarLine

_ENVIRONMENT = (
    "OMP_",
    "MKL_",
    "CUDA_",
    "CUBLAS_",
    "NCCL_",
    "HCCL_",
    "ASCEND_",
    "LCCL_",
    "MS_",
    "TORCH_",
    "PYTHONHASHSEED",
    "NVIDIA_TF32",
)


def manifest_of(
    options: CaptureOptions, adapter: Adapter, *, framework: str, world_size: int
) -> dict[str, object]:
    """The manifest of a run that begins now."""
    layout = declared_layout()
    return {
        "framework": {"torch": "pytorch"}.get(framework, framework),
        "trueup_version": __version__,
        "run_id": uuid.uuid4().hex,
        "launch": launch_id(),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": _command(),
        "python_version": platform.python_version(),
        "platform": platform.platform(),
        "world_size": world_size,
        "level": options.level.value,
        "task": options.task.value,
        "seed": options.seed,
        "deterministic": options.deterministic,
        "options": options.to_json(),
        "changed_on_purpose": changes(options),
        "layout": None if layout is None or layout.size != world_size else layout.to_plain(),
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_ENVIRONMENT)},
        **adapter.manifest(),
    }


def scalar_line(
    noted: Mapping[str, Any], adapter: Adapter, *, step: int, rank: int, microbatches: int
) -> ScalarLine:
    """One line of ``scalars``: what was noted of a step, as plain numbers."""

    def item(value: object) -> float | None:
        """None too where a tensor has no value to give: on the meta device, fake, inside a transform."""
        try:
            return adapter.item(value)
        except Exception:
            return None

    losses = [item(v) for v in noted.get("losses", [])]
    known = [v for v in losses if v is not None]
    batches = noted.get("_batches", [])
    line: dict[str, Any] = {"step": step, "rank": rank, "time": time.time()}
    line["loss"] = sum(known) / len(known) if known else None
    line["losses"] = losses
    line["microbatches"] = microbatches
    line |= _of_batches(batches, item)
    for name, value in noted.items():
        if not name.startswith("_") and name != "losses":
            line[name] = item(value) if not isinstance(value, (dict, list, bool, str)) else value
    for key in ("buffers", "buffers_before"):
        if f"_{key}" in noted:
            names, (norms, sums) = noted[f"_{key}"]
            line[key] = dict(zip(names, norms.tolist(), strict=True))
            line[key.replace("buffers", "buffer_sums")] = dict(zip(names, sums.tolist(), strict=True))
    received = [n for n in map(item, noted.get("_received_norms", [])) if n is not None]
    if received:
        line.setdefault("grad_norm", sum(n * n for n in received) ** 0.5)
    updates = list(noted.get("_updates", ()))
    if len(updates) > 1:
        line["updates"] = updates
    replicas = line.pop("data_parallel_size", None)
    line["global_batch_size"] = None if replicas is None else int(replicas) * line.get("batch_size", 0)
    return cast(ScalarLine, line)


def _of_batches(
    batches: Sequence[tuple[int, int, int, object]], item: Callable[[object], float | None]
) -> dict[str, object]:
    """What the roots were given: a digest, tokens and samples, which may have been counted on a device."""
    found: dict[str, object] = {"batch_digest": _combined([item(digest) for *_, digest in batches])}
    if batches:
        found["tokens"] = item(sum(tokens for _, tokens, _, _ in batches))
        samples = item(sum(samples for _, _, samples, _ in batches))
        found["batch_size"] = int(samples) if isinstance(samples, float) else samples
    return found


def _combined(digests: list[float | None]) -> str | None:
    known = [digest for digest in digests if digest is not None]
    if not known or len(known) < len(digests):
        return None
    total = 0
    for digest in known:
        total = (total * 0x9E3779B97F4A7C15 + int(digest)) % (1 << 64)
    return f"{total:016x}"


def ray_facts() -> dict[str, str]:
    """Node and actor class of a worker of Ray; nothing elsewhere."""
    ray = sys.modules.get("ray")
    if ray is None:
        return {}
    try:
        worker = ray._private.worker.global_worker
        actor = worker.actors.get(worker.actor_id)
    except Exception:  # another version of Ray
        return {}
    if actor is None:
        return {}
    return {"node": socket.gethostname(), "actor": type(actor).__name__, "role": role_of(os.environ)}


def _command() -> list[str]:
    """What starts the whole run again: what was captured, with its launcher, else this process."""
    given = os.environ.get("TRUEUP_COMMAND")
    return [str(word) for word in json.loads(given)] if given else list(sys.orig_argv)


def launch_id() -> str:
    """The same for all ranks of one launch, on every node; differs from launch to launch."""
    environment = os.environ
    given = environment.get("TRUEUP_LAUNCH_ID")
    if given:
        return given
    for host, port in (("MASTER_ADDR", "MASTER_PORT"), ("MS_SCHED_HOST", "MS_SCHED_PORT")):
        if environment.get(host) or environment.get(port):
            return f"{environment.get(host, '')}:{environment.get(port, '')}"
    return f"{environment.get('TORCHELASTIC_RUN_ID', '')}-{os.getppid()}"


def same_launch(output: Path) -> bool:
    """Whether the run already in ``output`` is this very launch: another rank was first."""
    try:
        return bool(json.loads((output / MANIFEST).read_text(encoding="utf-8")).get("launch") == launch_id())
    except (OSError, ValueError):
        return False
