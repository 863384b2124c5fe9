"""Reads the curve of a run from a log, a folder of logs, several of them, or a trueup trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from trueup.curves import files
from trueup.curves.columns import LOSS, SCHEMA, SKIPPED, STEP, TOKENS
from trueup.curves.curve import Curve
from trueup.curves.merging import in_order, merge
from trueup.curves.readers import READERS, LogRows, Reader
from trueup.curves.readers.protocol import LOCAL_NORM_SCHEMA
from trueup.curves.readers.tables import JsonLines
from trueup.errors import TraceError
from trueup.store import layout
from trueup.store.series import SeriesReader
from trueup.types.codes import CurvesCode
from trueup.types.reason import reason

_MOST_NORMS = 5_000_000
SEPARATOR = ","
"""between the files of one run"""


def read_curve(
    source: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    name: str | None = None,
    room: bytearray | None = None,
) -> Curve:
    """The curve of one run.

    Args:
        source: a log, packed or not; several, separated by commas; a folder of them; or a trueup trace.
        columns: column -> its name in the file, where that is not a known one.
        name: what reports call it; default: the path.
        room: memory that is used anew with every file that is read with it.

    Raises:
        TraceError: nothing there, or nothing in it that is known; says what was looked for.
    """
    paths = _paths(str(source))
    chosen = dict(columns or {})
    if len(paths) == 1 and (paths[0] / layout.MANIFEST).is_file():
        return _of_trace(paths[0], chosen, name or str(source))
    if len(paths) == 1 and paths[0].is_dir():
        return _of_folder(paths[0], chosen, name or str(source))
    read = [_read_file(path, chosen, room) for path in paths]
    return curve_from_rows(name or str(source), paths[0], read)


def _paths(source: str) -> list[Path]:
    if Path(source).exists():
        return [Path(source)]
    paths = [Path(part.strip()) for part in source.split(SEPARATOR) if part.strip()]
    for path in paths or [Path(source)]:
        if not path.exists():
            near = path.parent
            there = sorted(p.name for p in near.iterdir() if p.name[0] != ".")[:8] if near.is_dir() else []
            raise TraceError(f"no such log: {path}" + (f"; {near} holds {', '.join(there)}" if there else ""))
    return paths


def _read_file(
    path: Path, chosen: Mapping[str, str], room: bytearray | None = None
) -> tuple[Path, Reader, LogRows]:
    data = files.contents(path, room)
    reader = files.reader_for(path, data)
    if reader is None:
        known = ", ".join(reader.title for reader in READERS)
        raise TraceError(
            f"{path} is no training log of a kind that is read here ({known}): no line tells of a step "
            "with a "
            "loss or gradient norm"
        )
    return path, reader, reader.read(data, path, chosen)


def _of_folder(folder: Path, chosen: Mapping[str, str], name: str) -> Curve:
    """Of all logs below a folder those of the format and place that know most steps."""
    groups: dict[tuple[str, Path], list[tuple[Path, Reader, LogRows]]] = {}
    for path in files.candidates(folder):
        try:
            read = _read_file(path, chosen)
        except TraceError:
            continue
        if read[2].frame.height:
            groups.setdefault((read[1].name, _place(path, read[1])), []).append(read)
    if not groups:
        raise TraceError(f"{folder} holds no training log that is known; name the log itself")
    best = max(groups, key=lambda key: (_num_steps(groups[key]), key[0] != "trainer_console", str(key[1])))
    curve = curve_from_rows(name, folder, groups[best])
    others = [f"{where.relative_to(folder) if where != folder else '.'} ({kind})" for kind, where in groups]
    others.remove(f"{best[1].relative_to(folder) if best[1] != folder else '.'} ({best[0]})")
    if others:
        note = reason(CurvesCode.OTHER_LOGS, num=len(groups), left_out=others)
        curve = replace(curve, notes=(*curve.notes, note))
    return curve


def _place(path: Path, reader: Reader) -> Path:
    """Files of one place are one run: its folder, and of checkpoints the folder they lie in."""
    return path.parent.parent if reader.name == "trainer_state" and "-" in path.parent.name else path.parent


def _num_steps(group: Sequence[tuple[Path, Reader, LogRows]]) -> int:
    return pl.concat([rows.frame.select(STEP) for _, _, rows in group]).n_unique()


def curve_from_rows(name: str, path: Path, read: Sequence[tuple[Path, Reader, LogRows]]) -> Curve:
    """The curve of the files of one run.

    Raises:
        TraceError: they hold no step with a loss or gradient norm.
    """
    pieces = in_order([(file.stat().st_mtime, rows.frame) for file, _, rows in read])
    frame, restarts = merge(pieces)
    if not frame.height:
        raise TraceError(f"{path} has no step with a loss or gradient norm")
    norms = [rows.local_norms for _, _, rows in read if rows.local_norms is not None]
    kinds = dict.fromkeys(reader.title for _, reader, _ in read)
    return Curve(
        name=name,
        path=path,
        frame=_tidy(frame),
        format=", ".join(kinds),
        files=tuple(str(file) for file, _, _ in read),
        restarts=restarts,
        notes=tuple(dict.fromkeys(note for _, _, rows in read for note in rows.notes)),
        units={column: unit for _, _, rows in read for column, unit in rows.units.items()},
        loss_is_mean=any(rows.loss_is_mean for _, _, rows in read),
        local_norms=pl.concat(norms).unique(["step", "index"], keep="last").sort("step", "index")
        if norms
        else None,
    )


def _tidy(frame: pl.DataFrame) -> pl.DataFrame:
    """The columns somebody logged, in their order."""
    return frame.select(
        pl.col(column).cast(kind)
        for column, kind in SCHEMA.items()
        if column in frame.columns and frame[column].null_count() < frame.height
    )


def _of_trace(path: Path, chosen: Mapping[str, str], name: str) -> Curve:
    """The scalars of a trace: the mean loss of the ranks that have one, the rest from the first rank."""
    reader = JsonLines()
    frames = []
    for rank in sorted(layout.ranks(path)):
        file = layout.scalars_file(path, rank)
        if file.exists() and file.stat().st_size:
            frames.append(reader.read(file.read_bytes(), file, chosen).frame)
    if not frames:
        raise TraceError(f"{path} is a trace without scalars: no step was finished")
    frame, restarts = merge([frames[0]])
    if TOKENS in frame.columns:
        frame = frame.with_columns(pl.col(TOKENS).cum_sum() * len(frames))
    if len(frames) > 1:
        every = pl.concat([f.select(STEP, LOSS) for f in frames if LOSS in f.columns])
        mean = every.group_by(STEP).agg(pl.col(LOSS).mean())
        frame = frame.drop(LOSS, strict=False).join(mean, on=STEP, how="left").sort(STEP)
    if SKIPPED in frame.columns:
        frame = frame.with_columns(pl.col(SKIPPED).cast(pl.Float64))
    return Curve(
        name=name,
        path=path,
        frame=_tidy(frame),
        format="trueup trace",
        files=(str(path),),
        restarts=restarts,
        local_norms=_of_monitor(path),
        trace=path,
    )


def _of_monitor(path: Path) -> pl.DataFrame | None:
    """The local norms of a run that was monitored, of its first rank; of a long run those of some steps."""
    for rank in sorted(layout.ranks(path)):
        series = SeriesReader(layout.series_dir(path, rank)).series("gradient", "l2_norm")
        if series is None:
            continue
        every = max(1, series.values.size // _MOST_NORMS)
        steps, values = series.steps[::every], series.values[::every]
        num = len(series.names)
        frame = pl.DataFrame(
            {
                "step": steps.repeat(num),
                "index": list(range(num)) * len(steps),
                "name": list(series.names) * len(steps),
                "local_norm": values.reshape(-1).astype("float64"),
            },
            schema=LOCAL_NORM_SCHEMA,
        )
        return frame.filter(pl.col("local_norm").is_not_nan())
    return None
