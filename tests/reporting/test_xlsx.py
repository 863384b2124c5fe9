"""The workbook, read back with another library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import polars as pl
import pytest

from tests.reporting.synthetic import EVIL
from trueup.reporting.comparison.report import compare_report
from trueup.reporting.comparison.result import read_result
from trueup.reporting.document import Document, Mark, On, Plot, Plots, Section, Series, Tone
from trueup.reporting.render.xlsx import write

# The header of `msprobe compare` 26.2.0 for statistics, as it writes it.
MSPROBE = [
    "NPU Name",
    "Bench Name",
    "NPU Dtype",
    "Bench Dtype",
    "NPU Tensor Shape",
    "Bench Tensor Shape",
    "NPU Requires_grad",
    "Bench Requires_grad",
    "Max diff",
    "Min diff",
    "Mean diff",
    "L2norm diff",
    "MaxRelativeErr",
    "MinRelativeErr",
    "MeanRelativeErr",
    "NormRelativeErr",
    "NPU max",
    "NPU min",
    "NPU mean",
    "NPU l2norm",
    "Bench max",
    "Bench min",
    "Bench mean",
    "Bench l2norm",
    "Requires_grad Consistent",
    "Result",
    "Err_message",
    "NPU_Stack_Info",
]
MSPROBE_TENSOR = [
    "Cosine",
    "EucDist",
    "MaxAbsErr",
    "MaxRelativeErr",
    "One Thousandth Err Ratio",
    "Five Thousandths Err Ratio",
]


def rows(path: Path, sheet: int = 0) -> Iterator[dict[str, Any]]:
    book = openpyxl.load_workbook(path)
    lines = book.worksheets[sheet].iter_rows(values_only=True)
    head = next(lines)
    for line in lines:
        yield dict(zip(head, line, strict=True))


@pytest.fixture(scope="module")
def workbook(hostile: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("book") / "result.xlsx"
    write(compare_report(read_result(hostile)), path)
    return path


def test_columns_are_msprobes_then_ours(workbook: Path) -> None:
    sheet = openpyxl.load_workbook(workbook).worksheets[0]
    head = [cell.value for cell in sheet[1]]
    assert head[: len(MSPROBE)] == MSPROBE
    assert {"Status", "Site", "Rel L2", "× tolerance"} <= set(head[len(MSPROBE) :])
    assert sheet.freeze_panes == "B2"
    assert sheet.auto_filter.ref == sheet.dimensions


def test_compared_values_bring_the_columns_for_tensors(small: Path, tmp_path: Path) -> None:
    result = read_result(small)
    records = result.records.with_columns(evidence=pl.lit("values").cast(pl.Categorical))
    path = tmp_path / "values.xlsx"
    write(compare_report(replace(result, records=records)), path)
    head = list(next(rows(path)))
    assert head[8:14] == MSPROBE_TENSOR
    compared = [row for row in rows(path) if row["Status"] not in ("unmatched", "undecided")]
    assert compared
    for row in compared:
        assert None not in [row[title] for title in MSPROBE_TENSOR]
        assert row["One Thousandth Err Ratio"] <= row["Five Thousandths Err Ratio"] <= 1


def test_every_record_is_a_row_with_its_numbers(hostile: Path, workbook: Path) -> None:
    records = read_result(hostile).records.collect()
    written = list(rows(workbook))
    assert len(written) == records.height
    for row, record in zip(written[:400], records.head(400).iter_rows(named=True), strict=True):
        assert row["Status"] == record["status"]
        assert row["Site"] == record["site"]
        if record["target_mean"] is not None:
            assert row["NPU mean"] == pytest.approx(record["target_mean"], rel=1e-12)


def test_names_are_msprobes_where_the_numbers_are_known(workbook: Path) -> None:
    names = [row["NPU Name"] for row in rows(workbook)]
    assert "Module.layers.0.ln1.LayerNorm.forward.0.input.0" in names
    assert "Functional.layer_norm.0.forward.output.0" in names
    assert "Module.layers.0.ln1.LayerNorm.parameters_grad.0.weight" in names
    by_site = {(row["Site"], row["Phase"]): row["NPU Name"] for row in rows(workbook)}
    # msprobe's backward input is the gradient that arrives at the output.
    assert (
        by_site["layers.1.ln1 · output.0", "backward"] == "Module.layers.1.ln1.LayerNorm.backward.0.input.0"
    )


def test_without_global_numbers_the_site_stands_there(small: Path, tmp_path: Path) -> None:
    result = read_result(small)
    records = result.records.drop("target_global_ordinal", "reference_global_ordinal")
    write(compare_report(replace(result, records=records)), tmp_path / "x.xlsx")
    first = next(rows(tmp_path / "x.xlsx"))
    assert first["NPU Name"] == first["Site"]


def test_a_name_never_becomes_a_formula(workbook: Path) -> None:
    sheet = openpyxl.load_workbook(workbook).worksheets[0]
    types = {
        cell.value: cell.data_type
        for line in sheet.iter_rows()
        for cell in line
        if isinstance(cell.value, str)
    }
    assert types["=1+1 · output.0"] in ("s", "inlineStr")
    assert "f" not in types.values()
    assert f"{EVIL} · output.0" in types


def test_nan_and_infinities_are_text_and_nulls_are_empty(workbook: Path) -> None:
    written = list(rows(workbook))
    assert written[22]["Rel L2"] == "NaN"
    assert written[22]["NPU max"] == "inf"
    assert written[22]["NPU min"] == "-inf"
    assert written[24]["Bench max"] is None
    assert written[24]["Result"] == "unmatched"
    assert written[25]["NPU Name"] is None


def test_differences_are_coloured_and_equal_rows_are_not(workbook: Path) -> None:
    sheet = openpyxl.load_workbook(workbook).worksheets[0]
    status = [cell.value for cell in sheet[1]].index("Status")
    fills = {line[status].value: line[0].fill.fgColor.rgb for line in sheet.iter_rows(min_row=2, max_row=500)}
    assert fills["different"] == "FFFBE3DB"
    assert len({fills["different"], fills["undecided"], fills["unmatched"], fills["equal"]}) == 4


def test_a_long_result_continues_on_the_next_sheet(small: Path, tmp_path: Path) -> None:
    result = read_result(small)
    write(compare_report(result), tmp_path / "x.xlsx", max_sheet_rows=500)
    book = openpyxl.load_workbook(tmp_path / "x.xlsx")
    assert book.sheetnames == [
        "compare_result",
        "compare_result_2",
        "compare_result_3",
        "verdict",
        "precision",
    ]
    assert sum(sheet.max_row - 1 for sheet in book.worksheets[:3]) == result.num_records


def test_verdict_and_precision_have_sheets(workbook: Path) -> None:
    book = openpyxl.load_workbook(workbook)
    text = [str(cell.value) for line in book["verdict"].iter_rows() for cell in line]
    assert "differ" in text
    assert any("every input of this call" in cell for cell in text)
    assert book["precision"].max_row > 50


def test_no_heading_is_cut(workbook: Path) -> None:
    for sheet in openpyxl.load_workbook(workbook).worksheets:
        widths = {
            number: group.width
            for group in sheet.column_dimensions.values()
            for number in range(group.min, group.max + 1)
        }
        if sheet.freeze_panes is None:
            continue  # a page of text
        cut = [c.value for c in sheet[1] if c.value and len(str(c.value)) > widths.get(c.column, 8)]
        assert not cut, sheet.title


def test_the_heading_of_a_drawing_s_numbers_stays(tmp_path: Path) -> None:
    line = Series(name="learning_rate of the reference", role="raw", x=np.arange(3.0), y=np.arange(3.0))
    plot = Plot(key="rates", title="rates", y_title="rate", lines=(line,))
    page = Section(key="rates", title="Rates", blocks=(Plots(items=(plot,), on=On.BOOK),), on=On.BOOK)
    mark = Mark(glyph="=", words="agree", tone=Tone.GOOD)
    write(Document(title="t", mark=mark, headline="h", blocks=(page,)), tmp_path / "plot.xlsx")
    sheet = openpyxl.load_workbook(tmp_path / "plot.xlsx")["rates"]
    assert sheet.freeze_panes == "B2"
    assert sheet.column_dimensions["B"].width > len(line.name)
