"""From the reduced configuration back to the whole job, one feature a rung."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from trueup.checklist.configuration import Configuration, configured
from trueup.checklist.dialect import ValueOrigin, dialects, writes
from trueup.checklist.prepare import (
    FieldChange,
    Reduced,
    Rung,
    deterministic_names,
    not_reached,
    on_devices,
    reduction,
    write_environment,
    write_rung,
)
from trueup.checklist.readers import read_side
from trueup.checklist.settings import SettingsDocument
from trueup.checklist.writing import writable

_BATCH = frozenset(
    {"data_parallel", "global_batch_size", "micro_batch_size", "gradient_accumulation", "batch_rampup"}
)
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
_DATA_PARALLEL = RUNGS[2][0]
NUMBERS = {name: at for at, name in enumerate(("reduced", *(name for name, _ in RUNGS), _WHOLE))}
"""number of every rung, the same on both sides, whichever of them are written"""
_STEPS = ("train_steps", "decay_steps", "warmup_steps")
_SHARED = ("tensor_parallel", "pipeline_parallel", "context_parallel")


def expanded(
    documents: Sequence[SettingsDocument],
    output: Path,
    *,
    also: Container[str] = (),
    shared: Mapping[str, object] | None = None,
) -> Reduced:
    """Write every rung into a numbered folder of ``output``: first the reduced one, last the whole job.

    A rung that changes nothing is left out, unless ``also`` names it: the other side may have it. ``shared``
    are values that both sides of a pair get while they are reduced.

    Raises:
        ConfigError: none of the documents can be written.
    """
    changes, wanted = reduction(documents, shared or {})
    ladder = _Ladder(documents, output)
    rungs = [ladder.write("reduced", changes, ())]
    left = list(changes)
    for name, names in RUNGS:
        gone = [change for change in left if change.field in names and change.before != change.after]
        ladder.whole_batch = ladder.whole_batch or name == _DATA_PARALLEL
        more_devices = name == _DATA_PARALLEL and ladder.replicas > 1
        if not gone and not more_devices and name not in also:
            continue
        left = [change for change in left if change.field not in names]
        rungs.append(ladder.write(name, left, _added(gone)))
    rungs.append(ladder.write(_WHOLE, [], _added([c for c in left if c.before != c.after])))
    return Reduced(
        rungs=tuple(rungs),
        changes=tuple(changes),
        environment=write_environment(documents, output),
        unreachable=not_reached(documents, wanted, rungs[0]),
    )


def rung_names(documents: Sequence[SettingsDocument], shared: Mapping[str, object]) -> frozenset[str]:
    """The rungs that change something on this side.

    Raises:
        ConfigError: none of the documents can be written.
    """
    changed = {change.field for change in reduction(documents, shared)[0] if change.before != change.after}
    found = frozenset(name for name, names in RUNGS if changed & names)
    replicas = configured(documents).values.get("data_parallel")
    return found | {_DATA_PARALLEL} if replicas is not None and replicas.whole > 1 else found


def _added(gone: Sequence[FieldChange]) -> tuple[str, ...]:
    return tuple(f"{c.field}: {c.after} → {c.before}" for c in gone if c.before is not None)


class _Ladder:
    """The rungs of one side, fitted to what is back on each."""

    def __init__(self, documents: Sequence[SettingsDocument], output: Path) -> None:
        self.documents = documents
        self.output = output
        self.whole = configured(documents)
        self.whole_batch = False
        """whether the replicas and the batch of the whole job are back"""

    @property
    def replicas(self) -> int:
        """Replicas of the whole job, as far as it says; one where its devices are too few for one."""
        found = self.whole.values.get("data_parallel")
        return max(1, found.whole) if found is not None else 1

    def write(self, name: str, changes: Sequence[FieldChange], adds: tuple[str, ...]) -> Rung:
        """One rung: the changes that are left, and what follows from them."""
        folder = (
            self.output / f"{NUMBERS[name]:02d}_{name.replace(',', '').replace(' ', '_').replace('-', '_')}"
        )
        without = deterministic_names(self.documents) if name != _WHOLE else ()
        rung = write_rung(name, self.documents, changes, folder, adds=adds, without=without)
        if name == _WHOLE:
            return rung
        fields = {change.field for change in changes}
        fitted = [change for change in changes if change.field != "num_devices"]
        devices = self._devices(rung)
        fitted += self._set("num_devices", devices) if "num_devices" in fields else []
        fitted += on_devices(devices, self.documents)
        if "gradient_accumulation" not in fields:
            fitted += self._kept(rung, ("gradient_accumulation",))
        if "warmup_steps" not in fields:
            fitted += self._kept(rung, _STEPS)
        return write_rung(name, self.documents, fitted, folder, adds=adds, without=without)

    def _read(self, rung: Rung) -> Configuration:
        return configured(read_side([str(path) for path in rung.files]))

    def _set(self, field: str, value: object) -> list[FieldChange]:
        """The changes that give a field its value, in every document that can."""
        found = (
            (i, writes(dialects()[d.dialect], d, field, value))
            for i, d in enumerate(self.documents)
            if writable(d)
        )
        return [
            FieldChange(field=field, before=None, after=value, document=i, keys=keys)
            for i, keys in found
            if keys
        ]

    def _kept(self, rung: Rung, fields: Sequence[str]) -> list[FieldChange]:
        """Fields that must be as in the whole job, and are not: they follow from others that are not back.

        Microbatches may belong to a pipeline, and steps may be samples over the batch.
        """
        now, whole = self._read(rung).values, self.whole.values
        known = [field for field in fields if field in now and field in whole]
        moved = [
            field
            for field in known
            if now[field].value != whole[field].value and now[field].origin is not ValueOrigin.DERIVED
        ]
        return [change for field in known if moved for change in self._set(field, whole[field].value)]

    def _devices(self, rung: Rung) -> int:
        """Devices the rung's strategy needs; replicas as the whole job has them once they are back."""
        now = self._read(rung).values
        shared = math.prod(now[name].whole for name in _SHARED if name in now)
        found = now.get("data_parallel")
        if self.whole_batch:
            return shared * self.replicas
        stated = found is not None and found.origin is not ValueOrigin.DERIVED
        return shared * (found.whole if stated and found is not None else 1)
