"""Versions that belong together, and those nobody knows of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trueup.checklist import check
from trueup.checklist.document import training_headline
from trueup.checklist.readers import environment, read_side
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


SHOWN = """\
Name: mindspore
Version: 2.4.10
Requires: numpy
---
Name: mindformers
Version: 1.3.2
"""
COLLECTED = """\
PyTorch version: 2.6.0+cpu
Is debug build: False
OS: Ubuntu 22.04
Versions of relevant libraries:
[pip3] mindspore==2.4.10
[conda] mindformers 1.3.2 py310
"""
CONDA = """\
name: ms
channels:
  - defaults
dependencies:
  - python=3.10
  - mindspore=2.4.10=py310_0
  - pip:
      - mindformers==1.3.2
"""
LOCK = """\
version = 1
[[package]]
name = "mindspore"
version = "2.4.10"
dependencies = [{ name = "numpy" }]

[[package]]
name = "mindformers"
version = "1.3.2"
"""
REQUIRED = """\
-r base.txt
--extra-index-url https://x.y/simple
mindspore==2.4.10 ; python_version >= "3.9"
mindformers[full]==1.3.2 \\
    --hash=sha256:00
"""
WHEELS = """\
absl-py==2.1.0
mindspore @ file:///home/u/mindspore-2.4.10-cp310-cp310-linux_aarch64.whl#sha256=ab
mindformers @ https://x.y/mindformers-1.3.2-py3-none-any.whl
"""


@pytest.mark.parametrize("text", [SHOWN, COLLECTED, CONDA, LOCK, REQUIRED, WHEELS])
def test_lists_of_packages_of_every_tool(text: str, tmp_path: Path) -> None:
    path = tmp_path / "packages"
    path.write_text(text)
    (found,) = read_side([str(path)])
    assert found.settings["mindspore"].value == "2.4.10"
    assert found.settings["mindformers"].value == "1.3.2"
    assert found.dialect == "environment"
    line = int(found.settings["mindformers"].place.rpartition(":")[2])
    assert "1.3.2" in text.splitlines()[line - 1]


@pytest.mark.parametrize(
    "text",
    [
        "name: run\ndependencies: none\nnum_layers: 2\n",
        "model:\n  name: llama\n  version: 3.1\n",
        "[package]\nname = 'x'\n[optimizer]\nlr = 0.1\n",
    ],
)
def test_a_configuration_is_no_list_of_packages(text: str) -> None:
    assert not environment.looks_like(text)


@pytest.mark.parametrize(
    ("target", "reference", "training", "code"),
    [
        ("foo: 1\n", "foo: 1\n", "undecided", ChecklistCode.NOTHING_READ),
        ("lr: 0.1\n", "foo: 1\n", "undecided", ChecklistCode.OPEN),
        ("lr: 0.1\n", "lr: 0.1\n", "agree", ChecklistCode.SAME_TRAINING),
        ("mindspore==2.4.10\n", "mindspore==2.5.0\n", "agree", ChecklistCode.SAME_ENVIRONMENT),
    ],
)
def test_nothing_compared_is_no_agreement(
    target: str, reference: str, training: str, code: ChecklistCode, tmp_path: Path
) -> None:
    files = [tmp_path / name for name in ("target.yaml", "reference.yaml")]
    for file, text in zip(files, (target, reference), strict=True):
        file.write_text(text)
    found = check([str(files[0])], [str(files[1])])
    assert (found.training, training_headline(found).code) == (training, code)
    alone = check([str(files[0])])
    assert alone.exit_code == (2 if target.startswith("foo") else 0)
