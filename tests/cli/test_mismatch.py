"""``trueup mismatch`` as a person uses it: token files in, verdict, reports and exit status out."""

from __future__ import annotations

import json

import pytest

from tests.mismatch.batches import sampled, write
from trueup.cli.app import run


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "tokens.npz", sampled(), step=3)


def test_a_difference_that_nothing_explains_is_undecided(file, capsys):
    assert run(["mismatch", str(file)]) == 2
    assert "k3" in capsys.readouterr().out


def test_reports_and_document(file, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["mismatch", str(file), "-o", str(out), "--json"]) == 2
    plain = json.loads((out / "mismatch.json").read_text())
    assert json.loads(capsys.readouterr().out) == plain
    assert plain["headline_reason"]["code"] == "mismatch.unexplained"
    assert plain["steps"]["3"]["verl"]["rollout_corr/k3_kl"] == pytest.approx(plain["measures"]["k3"])
    assert {"position", "length", "class", "step"} == set(plain["by"])
    page = (out / "mismatch.html").read_text()
    assert "<svg" in page
    assert "rollout_corr/kl" in page


@pytest.mark.parametrize(("bound", "status"), [("k3=0.01", 0), ("k3=1e-9", 1), ("pearson=0.999", 0)])
def test_a_bound_decides(bound, status, file):
    assert run(["mismatch", str(file), "--bound", bound, "-q"]) == status


def test_certificate_of_zero(tmp_path):
    arrays = sampled()
    different = write(tmp_path / "different.npz", arrays)
    equal = write(tmp_path / "equal.npz", arrays | {"training_log_probs": arrays["rollout_log_probs"]})
    assert run(["mismatch", str(equal), "--exact", "-q"]) == 0
    assert run(["mismatch", str(different), "--exact", "--bound", "k3=1", "-q"]) == 1


@pytest.mark.parametrize(
    "words", [[], ["nowhere.npz"], ["--bound", "k4=1"], ["--bound", "k3=much"], ["--steps", "7-"]]
)
def test_a_mistake_is_one_line(words, file, capsys):
    given = words if not words or "nowhere" in words[0] else [str(file), *words]
    assert run(["mismatch", *given]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_folder_of_steps_and_a_tokenizer(tmp_path, capsys):
    for step in range(2):
        write(tmp_path / f"step_{step}.npz", sampled(seed=step), step=step)
    words = {"<|end|>": 0, "\u0120the": 1, "12": 2, "...": 3, "\u4f60": 4, "\u0120": 5}
    plain = {"model": {"vocab": words}, "added_tokens": [{"id": 0, "content": "<|end|>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(plain))
    assert run(["mismatch", str(tmp_path), "--tokenizer", str(tmp_path), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    names = {part["name"] for part in found["by"]["class"]}
    assert {"special", "word", "number", "punctuation", "other script", "space"} <= names
    assert [part["first"] for part in found["by"]["step"]] == [0, 1]
