"""``statistic.csv`` of MindSpore, with whatever columns."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from tests.importers.dumps import rows
from tests.importers.mindspore_dumps import HEADING, iteration, refusal, write_tensor
from trueup.importers import open_trace


def write_statistics(tmp_path: Path, columns: str, *lines: str, heading: str = HEADING) -> Path:
    file = iteration(tmp_path) / "statistic.csv"
    file.write_text("\n".join([f"{heading}{columns}", *lines]) + "\n")
    return file


def test_statistics_with_default_columns(tmp_path: Path) -> None:
    """Two lines as MindSpore wrote them, the comma at their end included."""
    write_statistics(
        tmp_path,
        ",Max Value,Min Value,L2Norm Value",
        'Sub,Default_Sub-op0,0,0,1733905446819790,input,0,4,float32,"()",3,3,3,',
        'Sub,Default_Sub-op0,0,0,1733905446820495,output,0,4,float32,"(2,3)",2,-1,2.5,',
    )
    for path in (tmp_path, tmp_path / "rank_0/Net/0/0/statistic.csv"):
        tables = open_trace(path).read(0, 0)
        first, second = rows(tables, "mindspore.ops.Sub")
        assert (first["slot"], first["shape"], first["maximum"], first["mean"]) == ("input.0", [], 3.0, None)
        assert (second["shape"], second["numel"], second["minimum"], second["l2_norm"]) == (
            [2, 3],
            6,
            -1.0,
            2.5,
        )
        assert second["digest"] is None
        assert open_trace(path).tensor(0, 0, second) is None


@pytest.mark.parametrize("case", [str.lower, str.upper, str.title])
def test_statistics_in_any_order_and_spelling(tmp_path: Path, case: object) -> None:
    digits = hashlib.md5(b"x").hexdigest()
    columns = (
        ",MD5,Zero Count,NaN Count,Avg Value,Positive Inf Count,Negative Inf Count,Negative Zero Count,Count"
    )
    write_statistics(
        tmp_path,
        case(columns),  # type: ignore[operator]
        f'Add,Default_Add-op0,0,0,5,output,1,8,BFloat16,"(2,2)",{digits},1,2,0.5,3,4,1,4,',
        heading=HEADING.replace("IO", "Input/Output"),
    )
    (row,) = rows(open_trace(tmp_path).read(0, 0), "mindspore.ops.Add")
    assert (row["slot"], row["dtype"], row["mean"], row["maximum"]) == ("output.1", "bfloat16", 0.5, None)
    assert (row["num_zero"], row["num_nan"], row["num_posinf"], row["num_neginf"]) == (1, 2, 3, 4)
    assert row["source_digest"] == f"md5:{digits}"
    assert json.loads(row["source_extra"]) == {"negative zero count": "1"}


def test_statistics_beside_values_add_what_they_know(tmp_path: Path) -> None:
    file = write_tensor(iteration(tmp_path), "Default/Add-op0", "output.0", np.ones(2), timestamp=5)
    write_statistics(tmp_path, ",Max Value,MD5", "Add,Default_Add-op0,0,0,5,output,0,16,float64,(2),7,abc,")
    (row,) = rows(open_trace(tmp_path).read(0, 0), "mindspore.ops.Add")
    assert row["tensor"] == file.name
    assert row["maximum"] == 1.0, "of the values themselves"
    assert row["source_digest"] == "md5:abc"


def test_infinities_and_truth_values(tmp_path: Path) -> None:
    write_statistics(
        tmp_path,
        ",Max Value,Min Value",
        "A,Default_A-op0,0,0,1,output,0,1,bool,(1),True,False,",
        "A,Default_A-op1,0,0,2,output,0,4,float32,(1),inf,-inf,",
        "A,Default_A-op2,0,0,3,output,0,4,float32,(1),nan,,",
    )
    found = rows(open_trace(tmp_path).read(0, 0), "mindspore.ops.A")
    assert [(r["maximum"], r["minimum"]) for r in found[:2]] == [(1.0, 0.0), (np.inf, -np.inf)]
    assert np.isnan(found[2]["maximum"])
    assert found[2]["minimum"] is None


def test_a_shape_without_quotes(tmp_path: Path) -> None:
    write_statistics(tmp_path, ",Max Value", "A,Default_A-op0,0,0,1,output,0,1,float32,(2,3,4),9,")
    (row,) = rows(open_trace(tmp_path).read(0, 0), "mindspore.ops.A")
    assert (row["shape"], row["maximum"]) == ([2, 3, 4], 9.0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("A,Default_A-op0,0,0,1,output,0,1,float3", "line 2: 9 cells where the heading has 11"),
        ("A,Default_A-op0,0,0,soon,output,0,1,float32,(1),9,", "timestamp is 'soon', not a whole number"),
        ("A,Default_A-op0,0,0,1,sideways,0,1,float32,(1),9,", "IO is 'sideways'"),
        ("A,Default_A-op0,0,0,1,output,0,1,float32,(1),much,", "maximum is 'much', not a number"),
    ],
)
def test_damaged_lines_are_named(tmp_path: Path, line: str, words: str) -> None:
    file = write_statistics(tmp_path, ",Max Value", line)
    message = refusal(tmp_path)
    assert f"{file}, line 2" in message
    assert words in message
    assert "--steps" in message


def test_an_empty_table_and_one_without_heading(tmp_path: Path) -> None:
    file = write_statistics(tmp_path, "")
    file.write_text("")
    assert "statistic.csv is empty" in refusal(tmp_path)
    file.write_text("1,2,3\n")
    assert "has no column 'op type'" in refusal(tmp_path)


def test_statistics_under_the_names_of_the_configuration(tmp_path: Path) -> None:
    line = 'Add,Default_Add-op0,0,0,5,output,0,8,Float32,"(2,2)"'
    write_statistics(tmp_path, ",max,min,avg,l2norm", f"{line},3,-1,0.5,4,")
    (row,) = rows(open_trace(tmp_path).read(0, 0), "mindspore.ops.Add")
    assert [row[name] for name in ("maximum", "minimum", "mean", "l2_norm")] == [3.0, -1.0, 0.5, 4.0]


def test_a_table_without_any_known_statistic_is_refused(tmp_path: Path) -> None:
    line = 'Add,Default_Add-op0,0,0,5,output,0,8,Float32,"(2,2)"'
    write_statistics(tmp_path, ",Largest,Skew", f"{line},3,-1,")
    assert "'largest', 'skew'" in refusal(tmp_path)
