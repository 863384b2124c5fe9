"""From the reduced configuration back to the whole job, one feature a rung."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from trueup.checklist.configuration import configured
from trueup.checklist.dialect import Origin, dialects, writes
from trueup.checklist.prepare import (
    Change,
    Reduced,
    Rung,
    not_reached,
    reduction,
    write_environment,
    write_rung,
)
from trueup.checklist.readers import read_side
from trueup.checklist.settings import Document
from trueup.checklist.writing import writable

_BATCH = frozenset({"data_parallel", "global_batch_size", "gradient_accumulation"})
RUNGS: tuple[tuple[str, frozenset[str]], ...] = (
    ("full size", frozenset({"num_layers", "first_dense_layers", "num_mtp_layers"})),
    ("learning-rate schedule", frozenset({"lr_schedule", "warmup_steps", "adam_eps"})),
    ("data parallel, whole batch", _BATCH),
    ("tensor parallel", frozenset({"tensor_parallel"})),
    ("sequence parallel", frozenset({"sequence_parallel"})),
    ("pipeline parallel", frozenset({"pipeline_parallel", "virtual_pipeline"})),
    ("expert parallel", frozenset({"expert_parallel"})),
    ("context parallel", frozenset({"context_parallel"})),
    ("optimizer parallel", frozenset({"optimizer_parallel", "zero_level"})),
    ("micro-batch interleaving", frozenset({"micro_batch_interleave"})),
    ("recomputation", frozenset({"recompute"})),
    (
        "load balancing and randomness",
        frozenset(
            {
                *("aux_loss_factor", "router_jitter", "shuffle"),
                *("hidden_dropout", "attention_dropout", "embedding_dropout", "lora_dropout"),
            }
        ),
    ),
)
_WHOLE = "whole job"
_MESH = ("data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel")


def expanded(documents: Sequence[Document], output: Path) -> Reduced:
    """Write every rung into a numbered folder of ``output``: first the reduced one, last the whole job.

    Raises:
        ConfigError: none of the documents can be written.
    """
    changes, wanted = reduction(documents)
    rungs = [_rung(0, "reduced", documents, changes, output, ())]
    left = list(changes)
    for name, names in RUNGS:
        gone = [change for change in left if change.field in names and change.before != change.after]
        if not gone:
            continue
        left = [change for change in left if change.field not in names]
        adds = tuple(f"{c.field}: {c.after} → {c.before}" for c in gone if c.before is not None)
        rungs.append(_rung(len(rungs), name, documents, left, output, adds))
    adds = tuple(
        f"{c.field}: {c.after} → {c.before}" for c in left if c.before is not None and c.before != c.after
    )
    rungs.append(_rung(len(rungs), _WHOLE, documents, [], output, adds))
    environment = write_environment(configured(documents), output)
    return Reduced(
        rungs=tuple(rungs),
        changes=tuple(changes),
        environment=environment,
        unreachable=not_reached(documents, wanted, rungs[0]),
    )


def _rung(
    number: int,
    name: str,
    documents: Sequence[Document],
    changes: Sequence[Change],
    output: Path,
    adds: tuple[str, ...],
) -> Rung:
    folder = output / f"{number:02d}_{name.replace(',', '').replace(' ', '_').replace('-', '_')}"
    rung = write_rung(name, documents, changes, folder, adds=adds)
    fields = {change.field for change in changes}
    fitted = [change for change in changes if change.field != "num_devices"]
    if "num_devices" in fields:
        fitted += _set("num_devices", _devices(rung, documents), documents)
    if "gradient_accumulation" not in fields:
        fitted += _whole_batch(rung, documents)
    return write_rung(name, documents, fitted, folder, adds=adds)


def _set(field: str, value: object, documents: Sequence[Document]) -> list[Change]:
    """The changes that give a field its value, in every document that can."""
    found = (
        (i, writes(dialects()[d.dialect], d, field, value)) for i, d in enumerate(documents) if writable(d)
    )
    return [Change(field=field, before=None, after=value, document=i, keys=keys) for i, keys in found if keys]


def _whole_batch(rung: Rung, documents: Sequence[Document]) -> list[Change]:
    """What keeps the whole batch where its microbatches belong to a pipeline that is not back yet."""
    now, whole = (
        side.values.get("gradient_accumulation")
        for side in (configured(read_side([str(path) for path in rung.files])), configured(documents))
    )
    if now is None or whole is None or now.origin is Origin.DERIVED or now.value == whole.value:
        return []
    return _set("gradient_accumulation", whole.value, documents)


def _devices(rung: Rung, documents: Sequence[Document]) -> int:
    """Devices the rung's strategy needs; replicas as the whole job has them once they are back."""
    now = configured(read_side([str(path) for path in rung.files]))
    whole = configured(documents)
    restored = "data_parallel" not in {key for key in now.values if now.values[key].origin.value == "derived"}
    sizes = {name: now.values[name].whole if name in now.values else 1 for name in _MESH}
    if not restored:
        batch = {
            name: side.values.get("global_batch_size") for name, side in (("now", now), ("whole", whole))
        }
        same_batch = (
            batch["now"] is not None
            and batch["whole"] is not None
            and batch["now"].value == batch["whole"].value
        )
        sizes["data_parallel"] = (
            whole.values["data_parallel"].whole if same_batch and "data_parallel" in whole.values else 1
        )
    return math.prod(sizes.values())
