"""Tells what kind of recording a path is."""

from __future__ import annotations

from pathlib import Path

from trueup.batches.indexed_dataset import files_of, prefix_of
from trueup.batches.megatron import open_megatron
from trueup.batches.npy_folder import NpyBatches, is_npy_folder
from trueup.batches.sidecar import read_sidecar
from trueup.batches.source import BatchSource
from trueup.batches.trace_batches import TraceBatches
from trueup.errors import ConfigError, TraceError
from trueup.importers import open_trace
from trueup.store import layout


def open_source(path: Path, **counts: int | None) -> BatchSource:
    """The recording at ``path``; ``counts`` are those of ``RecordedBatches.open``.

    Raises:
        ConfigError: a count has no place with this kind of recording.
        TraceError: nothing there, nothing that is read, or damaged.
    """
    if any(file.is_file() for file in files_of(prefix_of(path))) or _exported_dataset(path):
        return open_megatron(
            path,
            seq_length=counts.get("seq_length"),
            micro_batch_size=counts.get("micro_batch_size"),
            num_ranks=counts.get("num_ranks"),
            num_microbatches=counts.get("num_microbatches"),
        )
    if not path.exists():
        raise TraceError(f"no such recording of batches: {path}")
    wrong = [name for name, count in counts.items() if count is not None and name != "num_microbatches"]
    if wrong:
        raise ConfigError(f"{', '.join(wrong)}: only of an indexed dataset (.bin, .idx), which {path} is not")
    if not (path / layout.MANIFEST).is_file() and is_npy_folder(path):
        return NpyBatches(path, num_microbatches=counts.get("num_microbatches"))
    if counts.get("num_microbatches") is not None:
        raise ConfigError(
            f"num_microbatches has no place with a trace, which says how many there were: {path}"
        )
    try:
        trace = open_trace(path)
    except TraceError as error:
        looked = "step_N/rank_R/tokens.npy, PREFIX.bin with PREFIX.idx, or a trace"
        raise TraceError(f"{path} is no recording of batches ({looked}): {error}") from error
    return TraceBatches(trace)


def _exported_dataset(path: Path) -> bool:
    return path.is_dir() and read_sidecar(path, kind="megatron") is not None
