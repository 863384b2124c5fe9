"""``trueup export --format batches`` and ``--format megatron``: recorded batches, for others to read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trueup.batches.megatron import NAME, write_megatron
from trueup.batches.mindformers import FILE, dataset_yaml
from trueup.batches.npy_folder import check_rows, write_npy_folder
from trueup.batches.recorded import RecordedBatches
from trueup.batches.sidecar import Sidecar
from trueup.batches.source import LABELS, LOSS_MASK, TOKENS, Arrays, BatchPlace
from trueup.batches.trace_batches import TraceBatches
from trueup.store import TraceSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedBatches:
    """What was written."""

    num_batches: int
    """microbatches of all ranks"""
    num_folders: int
    """``step_N`` folders; 0 for an indexed dataset"""
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    rows: int
    """of the largest microbatch"""
    dtype: str
    """of the token ids that were written"""
    yaml: str | None
    """the dataset section of a MindFormers configuration, also in ``mindformers.yaml``"""
    prefix: Path | None
    """of the indexed dataset"""
    notes: tuple[str, ...]
    """what a reader of the files must know"""


@dataclass(slots=True)
class _Survey:
    """What a recording holds, so that it can then be written one batch at a time."""

    rows: dict[BatchPlace, int] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, recorded: RecordedBatches, *, by_row: bool = False) -> _Survey:
        found = cls()
        for place, arrays in recorded:
            if by_row:
                check_rows(place, arrays)
            found.rows[place] = len(arrays[TOKENS])
            found.names |= set(arrays)
            found.dtypes.add(str(arrays[TOKENS].dtype))
        return found


def export_batches(trace: TraceSource, folder: Path, *, by_row: bool = False) -> ExportedBatches:
    """Write ``step_N/rank_R/{tokens,labels,loss_mask,attention_mask,...}.npy``, labels shifted by one.

    A loss mask that was not recorded is made from the labels: float32, 0 where they are ignored. Folders are
    one a microbatch, or one a row with ``by_row``; see ``docs/batches.md``.

    Raises:
        TraceError: the trace holds no values of batches.
        ConfigError: rows cannot be written apart.
    """
    recorded = RecordedBatches(TraceBatches(trace))
    survey = _Survey.of(recorded, by_row=by_row)
    folder.mkdir(parents=True, exist_ok=True)
    batches = ((place, _with_mask(arrays, recorded)) for place, arrays in recorded)
    num = write_npy_folder(folder, batches, survey.rows, by_row=by_row, facts=_facts(recorded))
    notes = _notes(recorded, survey)
    rows = max(survey.rows.values())
    dropped = None
    if rows > 1 and not by_row:
        dropped = (
            f"microbatches have {rows} rows; the guide's NumpyDataset reads only the first of each folder: "
            "give it folders of one row (--per row), or use trueup.ReplayDataset"
        )
        notes.append(dropped)
    columns = ["input_ids", *(["labels"] if LABELS in survey.names else [])]
    yaml = dataset_yaml(folder.absolute(), batch_size=rows if by_row else 1, columns=columns, note=dropped)
    (folder / FILE).write_text(yaml, encoding="utf-8")
    dtype = ", ".join(sorted(survey.dtypes))
    return _outcome(recorded, rows=rows, num_folders=num, dtype=dtype, yaml=yaml, notes=notes)


def export_megatron(trace: TraceSource, folder: Path) -> ExportedBatches:
    """Write the rows as Megatron's indexed dataset, ``batches_text_document.bin`` and ``.idx``.

    Raises:
        TraceError: the trace holds no values of batches.
        ConfigError: they have labels or masks that such a dataset cannot hold.
    """
    recorded = RecordedBatches(TraceBatches(trace))
    survey = _Survey.of(recorded)
    dtype = write_megatron(folder, recorded, facts=_facts(recorded))
    rows = max(survey.rows.values())
    notes = _notes(recorded, survey)
    others = sorted(survey.names - {TOKENS, LABELS, LOSS_MASK})
    if others:
        notes.append(f"left out, an indexed dataset holds token ids alone: {', '.join(others)}")
    notes.append(
        "Megatron's GPTDataset cuts and shuffles what it reads; to get these rows in this order read the "
        "sequences themselves, or use trueup.ReplayDataset"
    )
    return _outcome(recorded, rows=rows, dtype=str(dtype), prefix=folder / NAME, notes=notes)


def _outcome(
    recorded: RecordedBatches,
    *,
    rows: int,
    dtype: str,
    notes: list[str],
    num_folders: int = 0,
    yaml: str | None = None,
    prefix: Path | None = None,
) -> ExportedBatches:
    return ExportedBatches(
        num_batches=len(recorded),
        steps=tuple(recorded.steps),
        ranks=tuple(recorded.ranks),
        notes=tuple(notes),
        num_folders=num_folders,
        rows=rows,
        dtype=dtype,
        yaml=yaml,
        prefix=prefix,
    )


def _facts(recorded: RecordedBatches) -> Sidecar:
    return {
        "source": str(recorded.source.path),
        "label_form": recorded.form.value,
        "label_shift_recorded": recorded.label_shift,
        "ignore_index": recorded.source.ignore_index,
    }


def _with_mask(arrays: Arrays, recorded: RecordedBatches) -> Arrays:
    labels = arrays.get(LABELS)
    if labels is not None and LOSS_MASK not in arrays:
        arrays[LOSS_MASK] = (labels != recorded.source.ignore_index).astype(np.float32)
    return arrays


def _notes(recorded: RecordedBatches, survey: _Survey) -> list[str]:
    notes = []
    if LABELS not in survey.names:
        notes.append("the trace holds no labels: capture with --preset diagnose, or let the model make them")
    elif recorded.label_shift == 0:
        notes.append("the recorded labels were not moved yet; they are written moved by one")
    elif recorded.label_shift != 1:
        notes.append("the labels are not the next tokens; they are written as they were recorded")
    source = recorded.source
    if isinstance(source, TraceBatches) and source.without_tokens:
        ranks = ", ".join(map(str, source.without_tokens))
        notes.append(f"no token ids went into the root of ranks {ranks}: they have no batches")
    return notes
