"""The page as a file: what it carries, that it is whole, that no name becomes markup."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import shutil
import struct
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from tests.reporting.synthetic import EVIL
from trueup.errors import ConfigError
from trueup.reporting import write_reports
from trueup.reporting.comparison.page.payload import encode_table
from trueup.reporting.comparison.report import compare_report
from trueup.reporting.comparison.result import ComparisonResult, read_result, to_json
from trueup.reporting.document import reason_text
from trueup.reporting.render import write


def page(folder: Path, tmp_path: Path) -> str:
    return write_reports(folder, output=tmp_path, formats={"html"})["html"].read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Elements of a page: tag names with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_verdict_and_evidence_are_text_of_the_document(small: Path, tmp_path: Path) -> None:
    text = page(small, tmp_path)
    verdict = read_result(small).verdict
    assert f"<h1>{reason_text(verdict.headline)}</h1>" in text
    assert verdict.evidence
    for evidence in verdict.evidence:
        assert reason_text(evidence) in text


def test_nothing_is_loaded_from_elsewhere(small: Path, tmp_path: Path) -> None:
    text = page(small, tmp_path)
    for tag, attributes in Tags(text).found:
        assert "src" not in attributes, (tag, attributes)
        assert not (attributes.get("href") or "#").startswith("http")
    assert not re.search(r"url\((?!#|data:)", text)


def test_names_never_become_elements(hostile: Path, tmp_path: Path) -> None:
    text = page(hostile, tmp_path)
    scripts = [attributes for tag, attributes in Tags(text).found if tag == "script"]
    assert len(scripts) == 6, "data, four tables, one program"
    assert "<script>window.pwned" not in text
    assert "onerror=window" not in text
    assert "&lt;script&gt;window.pwned=1" in text, "shown, as text"
    data = re.search(r'<script id="report" type="application/json">(.*?)</script>', text, re.S)
    assert data is not None
    assert "<" not in data[1]
    assert EVIL in json.dumps(json.loads(data[1]), ensure_ascii=False) or "layers.2" in data[1]


def test_only_the_programs_own_script_may_run(small: Path, tmp_path: Path) -> None:
    policy = next(
        attributes["content"] or ""
        for tag, attributes in Tags(page(small, tmp_path)).found
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_a_table_survives_the_journey() -> None:
    table = pl.DataFrame(
        {
            "x": [1.5, None, float("nan"), float("inf"), 1 / 3],
            "word": ["b", None, "a<", "b", ""],
            "n": [1, 2, 3, 4, 2**40],
        }
    )
    raw = gzip.decompress(base64.b64decode(encode_table(table.lazy())))
    (length,) = struct.unpack_from("<I", raw)
    head = json.loads(raw[4 : 4 + length])
    assert head["rows"] == 5
    x, word, n = head["columns"]
    planes = raw[4 + length : 4 + length + x["bytes"]]
    values = [
        struct.unpack("<d", bytes(planes[plane * 5 + row] for plane in range(8)))[0] for row in range(5)
    ]
    assert values[0] == 1.5
    assert values[2] != values[2]
    assert values[3] == float("inf")
    assert values[4] == pytest.approx(1 / 3, rel=2**-32)
    assert list(raw[4 + length + x["bytes"] :][: x["nulls"]]) == [0, 1, 0, 0, 0]
    assert word["words"] == ["b", "a<", ""]
    assert n["kind"] == "float"


def test_a_page_of_a_longer_result_keeps_the_worst_and_says_so(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.html"
    write(compare_report(read_result(small), page_rows=1000), path)
    assert "This page has the 1,000 worst records" in path.read_text(encoding="utf-8")
    write(compare_report(read_result(small)), path)
    assert "This page has the" not in path.read_text(encoding="utf-8")


def test_an_empty_result_still_makes_a_page(small: Path, tmp_path: Path) -> None:
    result = read_result(small)
    empty = ComparisonResult(records=result.records.clear(), precision=result.precision.clear())
    write(compare_report(empty), tmp_path / "empty.html")
    assert "Undecided" in (tmp_path / "empty.html").read_text(encoding="utf-8")


def test_names_that_are_no_text_do_not_stop_any_report(small: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small, tmp_path / "broken"))
    text = (folder / "result.json").read_text().replace("layers.3", "layers.\\udc80")
    summary = json.loads(text)
    summary["verdict"] |= {
        "owner": "\udcff",
        "headline": "in \udcff\x00",
        "next": "go \udcff",
        "evidence": ["\udcff"],
    }
    (folder / "result.json").write_text(json.dumps(summary))
    stream = io.StringIO()
    written = write_reports(
        folder, output=tmp_path, formats={"html", "xlsx", "advisor"}, console=Console(file=stream, width=100)
    )
    for text in (stream.getvalue(), to_json(summary), written["html"].read_text("utf-8")):
        text.encode("utf-8")


def test_an_unknown_format_is_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got 'pdf'"):
        write_reports(small, output=tmp_path, formats={"pdf"})
