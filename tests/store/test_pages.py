"""Page headers of Parquet files: what any writer makes is accepted, and damage never ends the process."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trueup.store.pages import DamagedPage, refuse_damaged_pages


def table(rows: int) -> pa.Table:
    """Every kind of column of a trace, with nulls."""
    numbers = range(rows)
    words = pa.array([None if n % 3 == 0 else f"word {n % 5}" for n in numbers], pa.string())
    return pa.table(
        {
            "whole": pa.array([None if n % 4 == 0 else n for n in numbers], pa.int64()),
            "word": words.dictionary_encode(),
            "number": pa.array([float(n) for n in numbers], pa.float64()),
            "flag": pa.array([n % 2 == 0 for n in numbers], pa.bool_()),
            "sizes": pa.array([[n] * (n % 4) for n in numbers], pa.list_(pa.int64())),
            "raw": pa.array([None if n % 2 else b"x" * (n % 7) for n in numbers], pa.binary()),
            "nothing": pa.array([None] * rows, pa.int32()),
        }
    )


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 300),
    version=st.sampled_from(["1.0", "2.0"]),
    compression=st.sampled_from(["none", "zstd", "snappy"]),
    dictionary=st.booleans(),
    page=st.sampled_from([64, 1 << 20]),
    group=st.sampled_from([7, 1000]),
    checksum=st.booleans(),
)
def test_what_arrow_writes_is_accepted(
    rows: int, version: str, compression: str, dictionary: bool, page: int, group: int, checksum: bool
) -> None:
    file = io.BytesIO()
    pq.write_table(
        table(rows), file, data_page_version=version, compression=compression, use_dictionary=dictionary,
        data_page_size=page, row_group_size=group, write_page_checksum=checksum,
    )  # fmt: skip
    refuse_damaged_pages(file)


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(0, 300), compression=st.sampled_from(["uncompressed", "zstd", "lz4"]))
def test_what_polars_writes_is_accepted(rows: int, compression: str) -> None:
    file = io.BytesIO()
    frame = pl.from_arrow(table(rows))
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(file, compression=compression, data_page_size=64, row_group_size=50)  # type: ignore[arg-type]
    refuse_damaged_pages(file)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_table_of_no_rows_is_accepted(rows: int) -> None:
    file = io.BytesIO()
    pq.write_table(table(rows), file, compression="zstd")
    refuse_damaged_pages(file)


def test_a_page_that_claims_more_values_than_its_column_has() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"a": pa.array([1, 2, 3], pa.int64())}), file, use_dictionary=False)
    content = bytearray(file.getvalue())
    column = pq.read_metadata(io.BytesIO(bytes(content))).row_group(0).column(0)
    at = content.index(b"\x06", column.data_page_offset + 7)  # 3, as Thrift writes a whole number
    for number, held in ((6, True), (8, False), (5, False)):  # 3, 4, -3
        content[at] = number
        if held:
            refuse_damaged_pages(io.BytesIO(bytes(content)))
        else:
            with pytest.raises(DamagedPage, match="values, at most 3"):
                refuse_damaged_pages(io.BytesIO(bytes(content)))


_EVERY_BYTE = """
import resource, sys
from pathlib import Path
from trueup.errors import TraceError
from trueup.store.parquet import frame_from_parquet

file = Path(sys.argv[1])
content = file.read_bytes()
frame_from_parquet(file, remedy="")
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), resource.RLIM_INFINITY))
refused = 0
for at in (*range(4, 40), *range(len(content) - 300, len(content))):
    for other in (0xFF, 0x80, 0x01, content[at] ^ 0x40, content[at] ^ 0x01):
        file.write_bytes(content[:at] + bytes([other]) + content[at + 1 :])
        try:
            frame_from_parquet(file, remedy="")
        except TraceError:
            refused += 1
print(refused)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory as Linux does")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("dictionary", [True, False])
def test_no_byte_of_a_header_or_footer_ends_the_process(tmp_path: Path, dictionary: bool) -> None:
    file = tmp_path / "table.parquet"
    pq.write_table(table(100).select(["whole", "word"]), file, use_dictionary=dictionary, compression="none")
    command = [sys.executable, "-c", _EVERY_BYTE, str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert int(ran.stdout) > 20
