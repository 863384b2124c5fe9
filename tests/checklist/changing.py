"""Every single change of a configuration that should be found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trueup.checklist.check import Checklist, compared
from trueup.checklist.configuration import Configuration, configured
from trueup.checklist.fields import fields
from trueup.checklist.judging import DemandRow, DemandStatus
from trueup.checklist.settings import Setting, SettingsDocument

DTYPES = {"bfloat16": "float32", "float32": "bfloat16", "float16": "float32"}
OTHER_CHOICE = {
    "cosine": "linear",
    "constant": "cosine",
    "rope": "absolute",
    "swiglu": "gelu",
    "silu": "gelu",
    "adam": "sgd",
    "unfused": "flash",
    "flash": "eager",
    "sdpa": "eager",
    "fp32": "bf16",
}
NAMES = ("model_type", "model.name", "model.model_config.type", "deepspeed", "flavor.multiple_of")
"""keys that name a model or a file and have no second value to be set to"""


def changes_nothing(key: str, value: Any, side: Configuration) -> str:
    """Why a changed value still describes the same training, where that is so."""
    last = key.rpartition(".")[2]
    values = {name: v.value for name, v in side.values.items()}
    if last in ("sequence_parallel", "use_seq_parallel") and values["tensor_parallel"] == 1:
        return "sequence parallelism does nothing at tp 1"
    if last == "capacity_factor" and value < 0:
        return "dropless whatever the negative number"
    if last == "use_sliding_window" and (
        "sliding_window" not in values or values["sliding_window"] in (0, 32768)
    ):
        return "there is no window shorter than a sequence"
    if last in ("multiple_of", "make_vocab_size_divisible_by"):
        return "rounding up to it gives the same size"
    if last == "total_steps" and values["lr_schedule"] == "constant" and values.get("warmup_steps") == 0:
        return "a constant learning rate without warmup has no span"
    if last == "use_flash_attn" and values.get("flash_attention") is True:
        return "the transformer's implementation chooses it by itself"
    if last == "accumulate_allreduce_grads_in_fp32" and values["param_dtype"] == "float32":
        return "gradients are float32 already"
    if key.endswith("data_loader.type"):
        return "only whether the loader is one of Megatron's is read of its type"
    return ""


def changes(target: Configuration, reference: Configuration) -> Iterator[tuple[str, str, Any, Configuration]]:
    """Field, key, new value and the target with that one value changed, for all that both sides state."""
    seen: set[tuple[str, int]] = set()
    for row in compared(target, reference).rows:
        if not _both_known(row):
            continue
        for document_index, document in enumerate(target.documents):
            for key in row.target.keys:
                for index, value in enumerate(_values(document, key, row)):
                    if key not in NAMES and (place := (document.path, key, index)) not in seen:
                        seen.add(place)
                        yield row.key, key, value, _changed(target, document_index, key, value)


def found(checklist: Checklist) -> list[str]:
    """What a check says differs, the computed learning rate included."""
    rows = [
        row.key
        for row in checklist.rows
        if row.status in (DemandStatus.DIFFERENT, DemandStatus.NOT_COMPARABLE)
    ]
    return rows + (["learning rate"] if checklist.schedules.same is False else [])


def _both_known(row: DemandRow) -> bool:
    known = row.status in (DemandStatus.ALIGNED, DemandStatus.DEFAULT) and row.key in fields().all
    return known and row.reference is not None and bool(row.target.keys)


def _values(document: SettingsDocument, key: str, row: DemandRow) -> list[Any]:
    setting = document.settings.get(key)
    if setting is None or setting.place not in row.target.places:
        return []
    value = setting.value
    if isinstance(value, list) and all(isinstance(item, (int, float)) for item in value):
        return [[*value[:i], _other(item), *value[i + 1 :]] for i, item in enumerate(value)]
    return [_other(value)]


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2 if value else 1
    if isinstance(value, float):
        return value * 1.5 if value else 0.5
    if isinstance(value, list):
        return [*value, "another"]
    text = str(value)
    for word, other in (DTYPES | OTHER_CHOICE).items():
        if word in text.lower():
            return other
    try:
        return float(text) * 1.5
    except ValueError:
        return f"{text}_2"


def _changed(side: Configuration, index: int, key: str, value: Any) -> Configuration:
    documents = list(side.documents)
    old = documents[index]
    settings = dict(old.settings)
    settings[key] = Setting(key, value, settings[key].place)
    documents[index] = replace(old, settings=settings)
    return configured(documents)
