"""The model all reports share."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.reporting.synthetic import write_result
from trueup.comparing.result import open_comparison
from trueup.errors import TraceError
from trueup.reporting.comparison.result import ComparisonResult, read_result
from trueup.types.codes import NextCode
from trueup.types.reason import reason
from trueup.types.status import Outcome


def test_a_folder_and_a_comparison_give_the_same_report(small: Path) -> None:
    folder, comparison = read_result(small), read_result(open_comparison(small))
    assert folder.verdict == comparison.verdict
    assert folder.records.collect().equals(comparison.records.collect())
    assert folder.num_records == comparison.num_records > 0


def test_a_folder_without_result_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"result\.json, result\.parquet, precision\.parquet missing"):
        read_result(tmp_path)


def test_a_damaged_document_is_a_trace_error(tmp_path: Path) -> None:
    folder = write_result(tmp_path, layers=1)
    (folder / "result.json").write_text('{"verdict": ')
    with pytest.raises(TraceError, match="not JSON"):
        read_result(folder)


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (("scalars", 0, "step"), math.nan, "scalars.0.step: Input should be a valid integer"),
        (("scalars", 0, "step"), "2", "scalars.0.step: Input should be a valid integer"),
        (("verdict", "outcome"), "agreed", "verdict.outcome: Input should be"),
        (("counts", "compared"), [], "counts.compared: Input should be a valid integer"),
        (("verdict", "headline_reason"), {"code": "verdict.data_differs"}, "KeyError"),
        (("verdict", "before_reason"), {"code": "given.text", "numbers": {"n": "x"}}, "ValueError"),
        (("notes_reasons",), 3, "TypeError"),
    ],
)
def test_a_value_of_another_type_is_a_trace_error(
    tmp_path: Path, at: tuple[Any, ...], value: object, said: str
) -> None:
    folder = write_result(tmp_path, layers=1)
    file = folder / "result.json"
    document = holder = json.loads(file.read_text())
    for key in at[:-1]:
        holder = holder[key]
    holder[at[-1]] = value
    file.write_text(json.dumps(document))
    for read in (read_result, open_comparison):
        with pytest.raises(TraceError, match=rf"result\.json.*{said}.*Run the comparison again"):
            read(folder)


def with_verdict(small: Path, **verdict: object) -> ComparisonResult:
    return replace(read_result(small), summary={"verdict": verdict})


def test_an_empty_summary_is_undecided(small: Path) -> None:
    assert replace(read_result(small), summary={}).verdict.outcome is Outcome.UNDECIDED
    assert with_verdict(small, outcome="agree", added_later=1).verdict.outcome is Outcome.AGREE


def test_the_next_step_is_a_command_and_what_it_is_for(small: Path) -> None:
    version_1 = with_verdict(small, next="trueup compare a b", next_note="and read it")
    assert version_1.next_step("report.html") == ("trueup compare a b", "and read it")
    assert with_verdict(small, next_note="nothing to do").next_step() == ("", "nothing to do")
    following = reason(NextCode.READ_REPORT, target="a", reference="b", step=3)
    version_2 = with_verdict(small, next="as written", next_reason=following.to_json())
    assert version_2.next_step()[0] == "trueup compare a b --steps 3 -o OUT"
    command, note = version_2.next_step("out/report.html")
    assert not command
    assert "out/report.html" in note


def test_rows_that_exceed_come_in_execution_order_of_the_named_step(small: Path) -> None:
    rows = read_result(small).exceeding(10)
    assert rows["order"].is_sorted()
    assert set(rows["step"]) == {0}
    assert rows["site"][0] == "layers.2.ln1 · torch.nn.functional.layer_norm[0] · output.0"


def test_the_first_row_is_that_of_the_verdicts_site(small: Path) -> None:
    """The first of its phase may be another, whose lines of source are not the verdict's."""
    result = read_result(small)
    rows = result.records.filter(pl.col("phase").cast(pl.String) == "forward").collect().to_dicts()
    summary = dict(result.summary, firsts={"forward": rows[0]})
    for where, found in (
        (rows[3]["site"], rows[3]),
        (rows[0]["site"], rows[0]),
        ("gone · output.0", rows[0]),
    ):
        verdict = summary["verdict"] | {"where": where, "phase": "forward"}
        verdict |= {"step": rows[3]["step"], "rank": rows[3]["rank"]}
        first = replace(result, summary=summary | {"verdict": verdict}).first()
        assert first is not None
        assert first["site"] == found["site"]


def test_records_out_of_order_are_put_in_order(small: Path) -> None:
    result = read_result(small)
    shuffled = ComparisonResult(
        summary=result.summary,
        precision=result.precision,
        records=result.records.collect().sample(fraction=1.0, shuffle=True, seed=1).lazy(),
    )
    assert shuffled.in_order.collect()["site"].to_list() == result.records.collect()["site"].to_list()


def test_counts_are_found_wherever_the_document_keeps_them(small: Path) -> None:
    summary = json.loads((small / "result.json").read_text())
    result = read_result(small)
    moved = dict(summary, counts=summary["counts"] | {key: summary[key] for key in ("by_phase", "unmatched")})
    for key in ("by_phase", "unmatched"):
        del moved[key]
    other = ComparisonResult(summary=moved, records=result.records, precision=result.precision)
    assert other.status_counts == result.status_counts
    assert other.by_phase == result.by_phase
    assert other.unmatched == result.unmatched != ()


def test_facts_mark_what_differs_and_only_that(small: Path) -> None:
    facts = {fact.name: fact for fact in read_result(small).run_facts()}
    assert facts["num_threads"].differs
    assert not facts["framework_version"].differs
    assert not facts["path"].differs, "two runs are always in two folders"
    assert facts["environment.OMP_NUM_THREADS"].reference == "2"
