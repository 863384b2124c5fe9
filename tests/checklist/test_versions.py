"""Versions that belong together, and those nobody knows of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trueup.checklist import check
from trueup.checklist.versions import judge_versions, table
from trueup.types.codes import ChecklistCode

SETS = table()["sets"]


@pytest.mark.parametrize("row", SETS, ids=lambda row: row["mindformers"])
def test_a_row_of_the_table_belongs_together(row: dict[str, str]) -> None:
    verdict = judge_versions(dict(row))
    assert verdict is not None
    assert verdict.together is True


def test_versions_of_two_rows_do_not() -> None:
    verdict = judge_versions({"mindspore": SETS[2]["mindspore"], "cann": SETS[3]["cann"]})
    assert verdict is not None
    assert verdict.together is False
    assert verdict.sentence.code is ChecklistCode.NO_SET
    assert any(SETS[2]["cann"] in one for one in verdict.sentence.place("sets") or ())


def test_what_is_not_in_the_table_is_unknown_not_wrong() -> None:
    verdict = judge_versions({"mindspore": "99.1", "cann": SETS[3]["cann"]})
    assert verdict is not None
    assert verdict.together is None
    assert verdict.sentence.code is ChecklistCode.UNKNOWN_VERSIONS


def test_one_version_alone_says_nothing() -> None:
    assert judge_versions({"mindspore": "2.4.10"}) is None


@pytest.mark.parametrize(
    ("mindspore", "cann", "together"),
    [
        ("2.4.0", "8.0.rc3.beta1", True),
        ("2.4.0+cpu", "8.0.RC3", True),
        ("2.4.0.post1", "v8.0-RC3", True),
        ("2.4.0rc1", "8.0.RC3", None),
        ("2.4.0+cpu", "8.0.RC2", False),
    ],
)
def test_suffixes_do_not_matter(mindspore: str, cann: str, together: bool | None) -> None:
    verdict = judge_versions({"mindspore": mindspore, "cann": cann})
    assert (None if verdict is None else verdict.together) is together


def test_the_table_is_dated() -> None:
    assert re.fullmatch(r"20\d\d-\d\d", table()["as_of"])


def test_a_check_judges_the_versions_of_each_side(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mindspore==2.4.10\nCANN_VERSION=8.1.RC1\nmindformers==1.3.2\n")
    (tmp_path / "b.txt").write_text("torch==2.7.1\n")
    found = check([str(tmp_path / "a.txt")], [str(tmp_path / "b.txt")]).versions
    assert list(found) == ["target"]
    assert found["target"].together is False
