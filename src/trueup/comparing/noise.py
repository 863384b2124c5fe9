"""How far the reference is from itself: its noise profile, read, written, and looked up record by record.

``RUN/noise/profile.parquet`` holds one row a (step, rank, place, phase, slot, microbatch) of the reference,
``RUN/noise/profile.json`` says how it was measured (docs/trace-format.md, "Noise profile").
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from typing_extensions import TypedDict  # pydantic reads typing's from Python 3.12 on

from trueup.comparing.rows import StepRows
from trueup.errors import TraceError
from trueup.store import StepTables
from trueup.store.checked import document_from_file
from trueup.store.parquet import damage_named, frame_from_parquet
from trueup.store.places import places
from trueup.store.writer import write_text
from trueup.types.arrays import Floats, Ints
from trueup.types.codes import NoteCode
from trueup.types.reason import Reason, reason

SCHEMA_VERSION = 1
FOLDER = "noise"
TABLE, FACTS = "profile.parquet", "profile.json"
_AGAIN = "measure it again with trueup noise, or compare with --no-noise"
KEY = ("place", "phase", "slot", "microbatch")
MEASURES = ("repeat", "perturbed", "gain", "bias")
SCHEMA: Mapping[str, type[pl.DataType]] = {
    "step": pl.Int32,
    "rank": pl.Int32,
    "place": pl.String,
    "phase": pl.String,
    "slot": pl.String,
    "microbatch": pl.Int32,
    "repeat": pl.Float64,
    "perturbed": pl.Float64,
    "gain": pl.Float64,
    "bias": pl.Float64,
    "num_runs": pl.Int32,
}


class NoiseFacts(TypedDict, total=False):
    """``profile.json``: what was measured, and on which run."""

    schema_version: int
    run_id: str | None
    created: str
    trueup_version: str
    command: Sequence[str]
    level: str | None
    num_repeats: int
    num_perturbed: int
    steps: list[int]
    ranks: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNoise:
    """Columns beside Rows; NaN where nothing was measured."""

    repeat: Floats
    """largest relative difference over plain repeats"""
    perturbed: Floats
    """largest over reruns changed by rounding"""
    gain: Floats
    """output noise over input noise of the call, largest over reruns"""

    bias: Floats
    """largest |a - 1|, a = <t, r> / <r, r>: how far a rerun was the reference times a common factor"""

    @property
    def size(self) -> Floats:
        """The larger of both; NaN where neither was measured."""
        return np.fmax(self.repeat, self.perturbed)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseProfile:
    """A measured profile.

    Example:
        >>> NoiseProfile.read(Path("runs/reference")).num_runs      # doctest: +SKIP
        4
    """

    table: pl.DataFrame
    facts: NoiseFacts = field(default_factory=NoiseFacts)
    path: Path | None = None

    @property
    def num_runs(self) -> int:
        """Reruns it was measured on, plain and perturbed."""
        return int(self.facts.get("num_repeats", 0)) + int(self.facts.get("num_perturbed", 0))

    def summary(self) -> list[Reason]:
        """What was measured."""
        noisy = self.table.select("repeat", "perturbed").fill_nan(None)
        repeat, perturbed = noisy["repeat"].drop_nulls(), noisy["perturbed"].drop_nulls()
        found = []
        if len(repeat):
            moved = repeat.filter(repeat > 0)
            equal = len(repeat) - len(moved)
            found.append(reason(NoteCode.NOISE_REPEATS, equal=equal, total=len(repeat), **_spread(moved)))
        if (perturbed > 0).any():
            moved = perturbed.filter(perturbed > 0)
            counts = {"moved": len(moved), "total": len(perturbed)}
            found.append(reason(NoteCode.NOISE_PERTURBED, **counts, **_spread(moved)))
        return [*found, reason(NoteCode.NOISE_PROFILE, num=self.table.height, path=str(self.path))]

    @classmethod
    def read(cls, path: Path, *, of_run: Mapping[str, object] | None = None) -> NoiseProfile:
        """Read a profile from its folder, or from the run it lies in.

        ``of_run`` is the manifest of the run it must have been measured on.

        Raises:
            TraceError: there is none, it is damaged, of another version, or of an earlier run of the folder.
        """
        folder = _folder(path)
        facts = _read_facts(folder)
        if of_run is not None and facts.get("run_id") != of_run.get("run_id"):
            raise TraceError(
                f"{folder} was measured on another run (id {facts.get('run_id')}) than the one now in "
                f"{folder.parent} (id {of_run.get('run_id')}). Measure it again: trueup noise --reference "
                f"{folder.parent} -- COMMAND; or compare with --no-noise."
            )
        return cls(table=_read_table(folder / TABLE), facts=facts, path=folder)

    def write(self, run: Path) -> Path:
        """Write it beside a run, each file by one rename, and return the folder."""
        folder = run / FOLDER
        folder.mkdir(exist_ok=True)
        temporary = folder / f"{TABLE}.writing-{os.getpid()}"
        self.table.write_parquet(temporary, compression="zstd")
        temporary.replace(folder / TABLE)
        write_text(folder / FACTS, json.dumps(dict(self.facts), indent=1))
        return folder

    def of_rows(self, rows: StepRows, step: int, rank: int) -> StepNoise | None:
        """The noise of every row of a comparison, by the reference's place; None where the profile has
        nothing of this step and rank, or the reruns were the reference again by then."""
        here = self.table.filter((pl.col("step") == step) & (pl.col("rank") == rank))
        if here.is_empty() or self._is_lost_in(here):
            return None
        keys = keys_of_records(rows.reference.tables).with_row_index("record")
        found = keys.join(here, on=list(KEY), how="left", maintain_order="left").unique(
            "record", keep="first", maintain_order=True
        )
        at = rows.reference.record
        columns = {name: _column(found[name], at) for name in MEASURES}
        return StepNoise(**columns)

    def _is_lost_in(self, step: pl.DataFrame) -> bool:
        """Whether nothing of a step's forward shows what the reruns were changed by, where an earlier one
        does: a program that writes its own copies of the weights back (masters, a rate of 0) undoes the
        change, and nothing was measured."""
        return not _is_moved(step) and _is_moved(self.table.filter(pl.col("step") < step["step"].min()))


def _is_moved(table: pl.DataFrame) -> bool:
    table = table.filter(pl.col("phase") == "forward")
    return bool((table["perturbed"].fill_nan(None).drop_nulls() > 0).any())


def keys_of_records(tables: StepTables) -> pl.DataFrame:
    """KEY for every record of one step on one rank."""
    names = pl.Series(places(tables.calls), dtype=pl.String)
    records = tables.records
    return pl.DataFrame(
        {
            "place": names.gather(records["call"]) if records.height else pl.Series([], dtype=pl.String),
            "phase": records["phase"].cast(pl.String),
            "slot": records["slot"].cast(pl.String),
            "microbatch": records["microbatch"].cast(pl.Int32),
        }
    )


def _column(values: pl.Series, at: Ints) -> Floats:
    known = values.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    if not len(known):
        return np.full(len(at), np.nan)
    return np.where(at >= 0, known[np.maximum(at, 0)], np.nan)


def _spread(values: pl.Series) -> dict[str, float | None]:
    found = values.to_numpy()
    return {"median": float(np.median(found)), "most": float(found.max())} if len(found) else {"most": None}


def _folder(path: Path) -> Path:
    for folder in (path, path / FOLDER):
        if (folder / FACTS).exists() or (folder / TABLE).exists():
            return folder
    raise TraceError(
        f"no noise profile in {path}. Measure one with: trueup noise --reference {path} -- python train.py"
    )


def _read_facts(folder: Path) -> NoiseFacts:
    if not (folder / FACTS).exists():
        raise TraceError(f"{folder} has no {FACTS}: measuring it was broken off; {_AGAIN}")
    return document_from_file(folder / FACTS, NoiseFacts, versions=(SCHEMA_VERSION,), remedy=_AGAIN)


def _read_table(path: Path) -> pl.DataFrame:
    frame = frame_from_parquet(path, remedy=_AGAIN)
    missing = [name for name in SCHEMA if name not in frame.columns]
    if missing:
        raise TraceError(f"{path} lacks the columns {missing}: it is no noise profile of version 1; {_AGAIN}")
    with damage_named(path, remedy=_AGAIN):
        return frame.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
