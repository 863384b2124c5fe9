"""The second part of the verdict: what the guide recommends, row by row and dialect by dialect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checklist.guided import BASES, SUGGESTIONS, VIOLATIONS, write
from trueup.checklist import check
from trueup.checklist.check import Checklist
from trueup.checklist.configuration import configured
from trueup.checklist.readers import read_side
from trueup.checklist.recommendations import Unmet
from trueup.checklist.writing import setting_words
from trueup.cli.app import run
from trueup.types.codes import ChecklistCode as Code


def _keys(checklist: Checklist, *, grave: bool = True) -> list[str]:
    return [one.key for one in checklist.unmet if one.counts is grave]


def _one(checklist: Checklist, key: str) -> Unmet:
    return next(one for one in checklist.unmet if one.key == key)


@pytest.mark.parametrize("dialect", BASES)
def test_what_follows_the_guide_is_green(dialect: str, tmp_path: Path) -> None:
    one, other = write(tmp_path / "a", dialect), write(tmp_path / "b", dialect)
    pair, alone = check([one], [other]), check([one])
    assert (_keys(pair), pair.exit_code) == ([], 0)
    assert (_keys(alone), alone.exit_code) == ([], 0)


@pytest.mark.parametrize(("dialect", "row", "old", "new"), VIOLATIONS)
def test_a_recommendation_both_sides_violate(
    dialect: str, row: str, old: str, new: str, tmp_path: Path
) -> None:
    sides = [write(tmp_path / name, dialect, old, new) for name in "ab"]
    found = check(sides[:1], sides[1:])
    assert found.training == "agree"
    assert (found.advised, found.exit_code) == ("unmet", 1)
    one = _one(found, row)
    assert one.sides == ("target", "reference")
    assert one.why
    assert one.how or one.advice
    assert one.target is not None
    assert one.target.value is not None
    assert check(sides[:1], sides[1:], recommend=False).exit_code == 0
    assert row in _keys(check(sides[:1]))


@pytest.mark.parametrize(("dialect", "row", "old", "new"), VIOLATIONS)
def test_a_recommendation_one_side_violates(
    dialect: str, row: str, old: str, new: str, tmp_path: Path
) -> None:
    target, reference = write(tmp_path / "a", dialect, old, new), write(tmp_path / "b", dialect)
    found = check([target], [reference])
    assert found.exit_code == 1
    assert _one(found, row).sides == ("target",)
    assert _one(check([reference], [target]), row).sides == ("reference",)


@pytest.mark.parametrize(("dialect", "row", "old", "new"), SUGGESTIONS)
def test_a_suggestion_is_noted_and_decides_nothing(
    dialect: str, row: str, old: str, new: str, tmp_path: Path
) -> None:
    sides = [write(tmp_path / name, dialect, old, new) for name in "ab"]
    found = check(sides[:1], sides[1:])
    assert row in _keys(found, grave=False)
    assert (_keys(found), found.exit_code) == ([], 0)


@pytest.mark.parametrize(("dialect", "row", "old", "new"), VIOLATIONS)
def test_how_to_set_it_sets_it(dialect: str, row: str, old: str, new: str, tmp_path: Path) -> None:
    """What a row tells to write is a key of that file's dialect."""
    target = write(tmp_path / "a", dialect, old, new)
    one = _one(check([target]), row)
    for _, words in one.how:
        last = words.rpartition(",")[2].split("=")[0].split(":")[0].removeprefix("without").strip()
        assert last.removeprefix("export ").strip()
        assert last.startswith("--") is (dialect == "megatron" and row != "hccl_deterministic")


PAIRS: tuple[tuple[str, tuple[str, str, str], tuple[str, str, str], str], ...] = (
    (
        "flash_attention",
        ("mindformers", "use_flash_attention: true", "use_flash_attention: false"),
        ("megatron", "", ""),
        "warning",
    ),
    (
        "data_files",
        ("mindformers", "/data/wiki_text_document", "/data/books_text_document"),
        ("megatron", "", ""),
        "warning",
    ),
    (
        "rope_fusion",
        (
            "mindformers",
            "use_flash_attention: true",
            "use_flash_attention: true\n    apply_rope_fusion: false",
        ),
        ("megatron", "", ""),
        "warning",
    ),
    (
        "norm_fusion",
        ("mindformers", "fused_rms_norm: true", "fused_rms_norm: false"),
        ("megatron", "--bf16", "--bf16 --use-fused-rmsnorm"),
        "warning",
    ),
    (
        "operator_precision",
        (
            "mindformers",
            "ascend_config: {",
            "ascend_config: {ge_options: {global: {ge.opSelectImplmode: high_precision}}, ",
        ),
        ("mindformers", "", ""),
        "warning",
    ),
)


@pytest.mark.parametrize(("row", "first", "second", "severity"), PAIRS, ids=[p[0] for p in PAIRS])
def test_what_the_guide_wants_the_same_on_both_sides(
    row: str, first: tuple[str, str, str], second: tuple[str, str, str], severity: str, tmp_path: Path
) -> None:
    target, reference = write(tmp_path / "a", *first), write(tmp_path / "b", *second)
    found = check([target], [reference])
    assert _one(found, row).wanted.code is Code.SAME_ON_BOTH
    assert _one(found, row).severity == severity
    assert found.exit_code == 1
    assert row not in _keys(check([target], [target]))


def test_ten_at_once_are_ten_rows(tmp_path: Path) -> None:
    changes = [(old, new) for dialect, _, old, new in VIOLATIONS if dialect == "mindformers"][:10]
    rows = {row for dialect, row, *_ in VIOLATIONS if dialect == "mindformers"}
    name, text = BASES["mindformers"]
    for old, new in changes:
        text = text.replace(old, new)
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    found = check([str(tmp_path / "a" / name)], [str(tmp_path / "b" / name)])
    assert found.training == "agree"
    assert len(set(_keys(found)) & rows) >= 8
    assert found.exit_code == 1


def test_a_vocabulary_that_is_padded_is_kept(tmp_path: Path) -> None:
    """Megatron pads 50257 to 50304 rows: the matrix product does not see the odd number."""
    target = write(tmp_path / "a", "megatron", "--vocab-size 32000", "--vocab-size 50257")
    assert "vocab_size" not in _keys(check([target], [target]))


def test_versions_of_two_sets_are_a_warning_in_the_verdict(tmp_path: Path) -> None:
    base = write(tmp_path / "a", "mindformers")
    (tmp_path / "bad.txt").write_text("mindspore==2.4.10\nCANN_VERSION=8.1.RC1\nmindformers==1.3.2\n")
    (tmp_path / "good.txt").write_text("mindspore==2.6.0\nCANN_VERSION=8.1.RC1\nmindformers==1.5.0\n")
    (tmp_path / "unknown.txt").write_text("mindspore==9.6.0\nCANN_VERSION=8.1.RC1\n")
    results = {n: check([f"{base},{tmp_path / n}.txt"], [base]) for n in ("bad", "good", "unknown")}
    assert _one(results["bad"], "versions").sides == ("target",)
    assert {name: one.exit_code for name, one in results.items()} == {"bad": 1, "good": 0, "unknown": 0}
    ignored = check([f"{base},{tmp_path / 'bad.txt'}"], [base], ignore=["versions"])
    assert ignored.exit_code == 0


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = [write(tmp_path / n, "mindformers", "max_grad_norm: 1.0", "max_grad_norm: 5.0") for n in "ab"]
    assert run(["check", *sides, "--json"]) == 1
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["verdict"]["same_training"]["outcome"] == "agree"
    assert document["verdict"]["recommendations"]["outcome"] == "unmet"
    (row,) = [one for one in document["recommendations"] if one["severity"] != "note"]
    assert (row["key"], row["target"]["value"], row["recommended_value"]) == ("clip_grad", 5.0, 1.0)
    assert "runner_wrapper.max_grad_norm: 1.0" in row["set_with"]["target"]
    assert run(["check", *sides, "--no-recommendations", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"]["recommendations"]["outcome"] == "off"
    assert document["recommendations"] == []
    assert run(["check", *sides, "--ignore", "clip_grad", "-q"]) == 0
    assert run(["check", sides[0], "--no-recommendations"]) == 2


EMBEDDING: tuple[tuple[tuple[str, str, str], tuple[str, str, str], tuple[str, str]], ...] = (
    (("mindformers", "", ""), ("megatron", "", ""), ("float32", "bfloat16")),
    (
        ("mindformers", "compute_dtype: bfloat16", "compute_dtype: float16"),
        ("megatron", "--bf16", "--fp16"),
        ("float32", "float16"),
    ),
    (("megatron", "", ""), ("hf", "", ""), ("bfloat16", "float32")),
    (("pynative", "", ""), ("torchtitan", "", ""), ("float32", "bfloat16")),
    (("lightning", "", ""), ("deepspeed", "", ""), ("float32", "bfloat16")),
)


@pytest.mark.parametrize(("first", "second", "dtypes"), EMBEDDING)
def test_an_embedding_in_another_dtype_is_a_suspect(
    first: tuple[str, str, str], second: tuple[str, str, str], dtypes: tuple[str, str], tmp_path: Path
) -> None:
    """The cause of the guide's own case, from two configurations alone."""
    target, reference = write(tmp_path / "a", *first), write(tmp_path / "b", *second)
    (row,) = check([target], [reference]).suspects
    assert row.reference is not None
    assert (row.key, row.target.value, row.reference.value) == ("embedding_dtype", *dtypes)
    assert not row.matters
    (back,) = check([reference], [target]).suspects
    assert back.target.value == dtypes[1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            ("mindformers", "embedding_init_type: float32", "embedding_init_type: bfloat16"),
            ("megatron", "", ""),
        ),
        (("mindformers", "", ""), ("megatron", "--bf16", "")),
        (("mindformers", "", ""), ("hf", "", "")),
        (("megatron", "", ""), ("deepspeed", "", "")),
        (("megatron", "", ""), ("megatron", "", "")),
        (("mindformers", "", ""), ("hf_model", "", "")),
    ],
)
def test_an_embedding_in_one_dtype_is_none(
    first: tuple[str, str, str], second: tuple[str, str, str], tmp_path: Path
) -> None:
    assert check([write(tmp_path / "a", *first)], [write(tmp_path / "b", *second)]).suspects == []


def test_a_suspect_is_seen_without_being_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = write(tmp_path / "a", "mindformers", " deterministic: 'ON',", "")
    reference = write(tmp_path / "b", "megatron")
    assert run(["check", target, reference]) == 0
    assert capsys.readouterr().out.count("embedding_dtype") >= 2
    assert run(["check", target, reference, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["suspects"] == ["embedding_dtype"]


@pytest.mark.parametrize(
    ("flag", "field", "value", "words"),
    [
        ("--use-distributed-optimizer", "optimizer_parallel", False, "without --use-distributed-optimizer"),
        ("--clip-grad 5.0", "clip_grad", 1.0, "--clip-grad 1.0"),
        ("--no-rope-fusion", "rope_fusion", True, "without --no-rope-fusion"),
        ("--moe-input-jitter-eps 0.01", "router_jitter", 0.0, "without --moe-input-jitter-eps"),
    ],
)
def test_how_megatron_sets_it(flag: str, field: str, value: object, words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a", "megatron", "--bf16", f"--bf16 {flag}")
    side = configured(read_side([path]))
    assert setting_words(side, field, value) == words
