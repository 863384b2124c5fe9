"""The rows of result.parquet (docs/result-format.md), written one step of one rank at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trueup.comparing.arbiter import JUDGED, Arbitration
from trueup.comparing.gradient_work import shown_phase
from trueup.comparing.judgement import Judgement
from trueup.comparing.metrics import DETAILS, EVIDENCE, NONE, Metrics
from trueup.comparing.pairing import StepPair
from trueup.comparing.rows import COUNTS, STATISTICS, Half, StepRows
from trueup.comparing.sites import charged_column, module_column, site_column
from trueup.comparing.stacks import StackBook
from trueup.comparing.written import reason_columns
from trueup.matching.calls import PASSES
from trueup.matching.codes import Codes
from trueup.types.status import Status

ROW_GROUP = 1 << 15

ATTRIBUTED = ("gain", "error_in", "floor", "arbiter_target", "arbiter_reference")

STATUSES = tuple(status.value for status in Status)
_CATEGORY = pa.dictionary(pa.int32(), pa.string())


def _schema() -> pa.Schema:
    fields: list[tuple[str, pa.DataType]] = [
        ("step", pa.int32()),
        ("rank", pa.int32()),
        ("order", pa.int64()),
    ]
    fields += [
        (n, _CATEGORY)
        for n in (
            "status",
            "evidence",
            "reason",
            "reason_code",
            "reason_facts",
            "phase",
            "slot",
            "kind",
            "module",
            "name",
            "type",
            "owner",
        )
    ]
    fields += [
        ("site", pa.string()),
        ("microbatch", pa.int32()),
        ("ordinal", pa.int32()),
        ("mode", _CATEGORY),
    ]
    fields += [("target_call", pa.int32()), ("reference_call", pa.int32()), ("reference_site", pa.string())]
    fields += [("match_pass", _CATEGORY), ("confidence", pa.float32()), ("layout", _CATEGORY)]
    for column in ("dtype", "shape"):
        fields += [(f"{side}_{column}", _CATEGORY) for side in ("target", "reference")]
    fields += [("bits_equal", pa.bool_()), ("rel_l2", pa.float64())]
    fields += [(name, pa.float64()) for name in (*DETAILS, "tolerance", "score", *ATTRIBUTED)]
    for column in (*COUNTS, *STATISTICS):
        kind = pa.int64() if column in COUNTS else pa.float64()
        fields += [(f"{side}_{column}", kind) for side in ("target", "reference")]
    fields += [("inputs_equal", pa.bool_())]
    fields += [(f"{side}_requires_grad", pa.bool_()) for side in ("target", "reference")]
    for column in ("stack", "global_ordinal"):
        fields += [(f"{side}_{column}", pa.int32()) for side in ("target", "reference")]
    fields += [(f"{side}_record", pa.int32()) for side in ("target", "reference")]
    fields += [("less_accurate", _CATEGORY)]
    return pa.schema(fields)


SCHEMA = _schema()


def table_from_rows(
    pair: StepPair,
    rows: StepRows,
    metrics: Metrics,
    judgement: Judgement,
    arbitration: Arbitration | None,
    books: tuple[StackBook, StackBook],
) -> pa.Table:
    """All columns of one step on one rank."""
    words = rows.match.words
    num = len(rows)
    compared = rows.paired & (metrics.evidence != NONE)
    columns: dict[str, pa.Array] = {
        "step": _same(pair.step, num, pa.int32()),
        "rank": _same(pair.rank, num, pa.int32()),
        "order": pa.array(np.arange(num)),
        "status": _category(judgement.attribution.status, STATUSES),
        "evidence": _category(metrics.evidence, EVIDENCE),
        **reason_columns(judgement.reasons, num),
        "phase": _category(shown_phase(rows), words.phase),
        "slot": _category(rows.slot, words.slot),
        "kind": _category(rows.of_call("kind"), words.kind),
        "module": _category(*module_column(rows)),
        "name": _category(rows.of_call("name"), words.name),
        "type": _category(rows.of_call("type"), words.type),
        "owner": _category(*charged_column(rows)),
        "microbatch": _integers(rows.microbatch, pa.int32()),
        "ordinal": _integers(rows.of_call("ordinal"), pa.int32()),
        "mode": _category(rows.of_call("mode"), words.mode),
        "target_call": _integers(rows.target.call, pa.int32()),
        "reference_call": _integers(rows.reference.call, pa.int32()),
        "bits_equal": pa.array(metrics.bits_equal, mask=~(metrics.known_bits & rows.paired)),
        "rel_l2": _numbers(np.where(compared, metrics.rel_l2, np.nan)),
        "tolerance": _numbers(judgement.tolerance),
        "score": _numbers(judgement.score),
        "gain": _numbers(judgement.attribution.gain),
        "error_in": _numbers(judgement.attribution.error_in),
        "floor": _numbers(judgement.attribution.floor),
        "inputs_equal": _known(judgement.attribution.inputs_equal),
    }
    columns |= _of_arbitration(arbitration, num)
    site, reference_site = site_column(rows, rows.target), site_column(rows, rows.reference)
    here = site.is_not_null()
    columns["site"] = _strings(site.zip_with(here, reference_site))
    differs = here & (site != reference_site)
    columns["reference_site"] = _strings(reference_site.zip_with(differs, pl.Series([None], dtype=pl.String)))
    columns["match_pass"] = _category(rows.pass_code, PASSES)
    columns["confidence"] = pa.array(rows.confidence, pa.float32(), mask=~rows.paired)
    columns["layout"] = _category(rows.layout, [layout.label for layout in rows.layouts])
    shapes = [str(list(s)) for s in words.shape]
    for name, half, book in (("target", rows.target, books[0]), ("reference", rows.reference, books[1])):
        columns[f"{name}_dtype"] = _category(half.dtype, words.dtype)
        columns[f"{name}_shape"] = _category(half.shape, shapes)
        columns |= _of_half(name, half, book)
    columns |= {name: _numbers(values) for name, values in metrics.details.items()}
    return pa.Table.from_arrays([columns[f.name] for f in SCHEMA], schema=SCHEMA)


def _of_arbitration(arbitration: Arbitration | None, num: int) -> dict[str, pa.Array]:
    if arbitration is None:
        numbers = pa.nulls(num, pa.float64())
        columns = {"arbiter_target": numbers, "arbiter_reference": numbers}
        return columns | {"less_accurate": _category(np.full(num, -1), JUDGED)}
    return {
        "arbiter_target": _numbers(arbitration.target),
        "arbiter_reference": _numbers(arbitration.reference),
        "less_accurate": _category(arbitration.less_accurate, JUDGED),
    }


def _of_half(name: str, half: Half, book: StackBook) -> dict[str, pa.Array]:
    columns = {f"{name}_{k}": _counts(half.statistics[k]) for k in COUNTS}
    columns[f"{name}_record"] = _integers(half.record, pa.int32())
    columns |= {f"{name}_{k}": _numbers(half.statistics[k]) for k in STATISTICS}
    requires = half.tables.records["requires_grad"].cast(pl.Int8).fill_null(-1).to_numpy()
    stack = half.tables.calls["stack"].cast(pl.Int64).fill_null(-1).to_numpy()
    codes = (
        np.where(half.record >= 0, requires[half.record], -1)
        if len(requires)
        else np.full(len(half.record), -1)
    )
    stacks = np.where(half.call >= 0, stack[half.call], -1) if len(stack) else np.full(len(half.call), -1)
    numbers = book.numbers(half.tables.stacks)
    stacks = numbers[np.where(stacks < len(numbers), stacks, -1)]
    columns[f"{name}_requires_grad"] = _known(codes)
    columns[f"{name}_stack"] = _integers(stacks, pa.int32())
    ordinal = half.tables.calls["global_ordinal"].cast(pl.Int64).fill_null(-1).to_numpy()
    ordinals = np.where(half.call >= 0, ordinal[half.call], -1) if len(ordinal) else stacks
    columns[f"{name}_global_ordinal"] = _integers(ordinals, pa.int32())
    return columns


class ResultWriter:
    """Appends row groups to result.parquet, or keeps them where no folder was given."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: pq.ParquetWriter | None = None
        self.tables: list[pa.Table] = []

    def append(self, table: pa.Table) -> None:
        """Write one step of one rank."""
        if self._path is None:
            self.tables.append(table)
            return
        if self._file is None:
            self._file = pq.ParquetWriter(
                self._path, SCHEMA, compression="zstd", compression_level=1, write_statistics=False
            )
        self._file.write_table(table, row_group_size=ROW_GROUP)

    def close(self) -> None:
        """Finish the file."""
        if self._file is not None:
            self._file.close()


def _same(value: int, num: int, kind: pa.DataType) -> pa.Array:
    return pa.array(np.full(num, value), kind)


def _category(codes: Codes, words: Sequence[str]) -> pa.Array:
    indices = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(words), pa.string()))


def _known(codes: Codes) -> pa.Array:
    """True where a code is 1, null where it is below 0."""
    return pa.array(codes == 1, mask=codes < 0)


def _integers(values: Codes, kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind, mask=values < 0)


def _counts(values: NDArray[np.float64]) -> pa.Array:
    missing = np.isnan(values)
    return pa.array(np.where(missing, 0, values).astype(np.int64), mask=missing)


def _numbers(values: NDArray[np.float64]) -> pa.Array:
    return pa.array(values, mask=np.isnan(values))


def _strings(values: pl.Series) -> pa.Array:
    return values.to_arrow().cast(pa.string())
