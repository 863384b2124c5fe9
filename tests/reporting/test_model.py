"""The model all reports share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.reporting.synthetic import write_result
from trueup.comparing.result import open_comparison
from trueup.errors import TraceError
from trueup.reporting.model import Report, Verdict, report_from, run_facts


def test_a_folder_and_a_comparison_give_the_same_report(small: Path) -> None:
    folder, comparison = report_from(small), report_from(open_comparison(small))
    assert folder.verdict == comparison.verdict
    assert folder.records.collect().equals(comparison.records.collect())
    assert folder.num_records() == comparison.num_records() > 0


def test_a_folder_without_result_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"result\.json, result\.parquet, precision\.parquet missing"):
        report_from(tmp_path)


def test_a_damaged_document_is_a_trace_error(tmp_path: Path) -> None:
    folder = write_result(tmp_path, layers=1)
    (folder / "result.json").write_text('{"verdict": ')
    with pytest.raises(TraceError, match="not JSON"):
        report_from(folder)


def test_an_empty_summary_is_undecided() -> None:
    assert Verdict.from_summary({}) == Verdict()
    assert Verdict.from_summary({"verdict": {"outcome": "agree", "added_later": 1}}).outcome == "agree"


def test_advice_joins_the_command_and_what_it_is_for() -> None:
    assert (
        Verdict(next="trueup compare a b", next_note="and read it").advice
        == "trueup compare a b, and read it"
    )
    assert Verdict(next_note="nothing to do").advice == "nothing to do"


def test_rows_beyond_come_in_execution_order_of_the_named_step(small: Path) -> None:
    rows = report_from(small).beyond(10)
    assert rows["order"].is_sorted()
    assert set(rows["step"]) == {0}
    assert rows["site"][0] == "layers.2.ln1 · torch.nn.functional.layer_norm[0] · output.0"


def test_records_out_of_order_are_put_in_order(small: Path) -> None:
    report = report_from(small)
    shuffled = Report(
        summary=report.summary,
        verdict=report.verdict,
        precision=report.precision,
        records=report.records.collect().sample(fraction=1.0, shuffle=True, seed=1).lazy(),
    )
    assert shuffled.in_order().collect()["site"].to_list() == report.records.collect()["site"].to_list()


def test_counts_are_found_wherever_the_document_keeps_them(small: Path) -> None:
    summary = json.loads((small / "result.json").read_text())
    report = report_from(small)
    moved = dict(summary, counts=summary["counts"] | {key: summary[key] for key in ("by_phase", "unmatched")})
    for key in ("by_phase", "unmatched"):
        del moved[key]
    other = Report(summary=moved, records=report.records, precision=report.precision)
    assert other.status_counts() == report.status_counts()
    assert other.by_phase() == report.by_phase()
    assert other.unmatched() == report.unmatched() != []


def test_facts_mark_what_differs_and_only_that(small: Path) -> None:
    facts = {fact["name"]: fact for fact in run_facts(report_from(small))}
    assert facts["num_threads"]["differs"]
    assert not facts["framework_version"]["differs"]
    assert not facts["path"]["differs"], "two runs always lie in two places"
    assert facts["environment.OMP_NUM_THREADS"]["reference"] == "2"
