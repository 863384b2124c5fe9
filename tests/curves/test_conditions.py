"""Weights, settings, randomness and batches are proved from traces of real runs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trueup.curves.comparison import CurveComparison, Options, compare_curves
from trueup.curves.conditions import conditions, parse_assumptions, parse_conditions, proofs
from trueup.curves.reading import read_curve
from trueup.curves.standard import Met
from trueup.diagnosing.around import around_step
from trueup.errors import ConfigError
from trueup.types.codes import CriterionCode as Code
from trueup.types.codes import CurvesCode
from trueup.types.reason import reason

PROGRAM = """
import sys, torch
from torch import nn
decay, dropout, seed = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(seed)
model = nn.Sequential(nn.Embedding(64, 16), nn.Dropout(dropout), nn.Linear(16, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=decay)
data = torch.Generator().manual_seed(1)
for _ in range(30):
    ids = torch.randint(0, 64, (4, 9), generator=data)
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of one program: as it is, and with another seed, weight decay and dropout."""
    folder = tmp_path_factory.mktemp("traces")
    (folder / "train.py").write_text(PROGRAM)
    made = {}
    for name, given, options in (
        ("run", ["0.1", "0", "0"], ["--deterministic", "--preset", "diagnose", "--steps", "0-2"]),
        ("other", ["0.2", "0.1", "5"], ["--deterministic", "--preset", "diagnose"]),
    ):
        command = [sys.executable, "-m", "trueup", "capture", "-q", "-o", str(folder / name), *options]
        command += ["--", sys.executable, str(folder / "train.py"), *given]
        subprocess.run(command, check=True, cwd=folder, capture_output=True)
        made[name] = folder / name
    return made


def told(target: Path | None, reference: Path | None) -> dict[str, Met]:
    return {one.key: one.status for one in proofs(target, reference)}


def test_the_same_run_proves_everything(traces: dict[str, Path]) -> None:
    assert set(told(traces["run"], traces["run"]).values()) == {Met.MET}


def test_what_differs_is_named(traces: dict[str, Path]) -> None:
    found = {one.key: one for one in proofs(traces["other"], traces["run"])}
    assert (found["settings"].status, found["settings"].value) == (
        Met.NOT_MET,
        reason(Code.SETTINGS_DIFFER, keys=["weight_decay"], target=["0.2"], reference=["0.1"]),
    )
    assert (found["randomness"].status, found["randomness"].value) == (
        Met.NOT_MET,
        reason(Code.DROPOUT_ON, value=0.1),
    )
    assert (found["weights"].status, found["weights"].value) == (
        Met.NOT_MET,
        reason(Code.SOME_TENSORS, num=0, total=3),
    )
    assert (found["data"].status, found["data"].value) == (
        Met.MET,
        reason(Code.BATCHES_EQUAL, num=30),
    )


def test_without_traces_nothing_is_proved_but_may_be_stated() -> None:
    assert set(told(None, None).values()) == {Met.UNDECIDED}
    stated = {one.key: one for one in proofs(None, None, assumed=parse_assumptions(["weights,settings"]))}
    assert (stated["weights"].status, stated["weights"].value) == (
        Met.MET,
        reason(Code.STATED),
    )
    assert stated["randomness"].status is Met.UNDECIDED


def test_the_default_conditions_are_kept_or_changed(traces: dict[str, Path]) -> None:
    found = {one.key: one for one in conditions(traces["run"], {"dataset": "c4"})}
    assert (found["dataset"].state, found["dataset"].actual) == (
        "changed",
        reason(Code.AS_STATED, value="c4"),
    )
    assert (found["determinism"].state, found["cluster"].actual) == ("kept", reason(Code.PROCESSES, num=1))
    assert (found["accuracy_mode"].state, found["checkpoint"].state) == ("changed", "not told")


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="expected one of: weights, settings, randomness, data, all"):
        parse_assumptions(["weight"])
    with pytest.raises(ConfigError, match="NAME one of: dataset"):
        parse_conditions(["data=c4"])


def compared(traces: dict[str, Path], target: str) -> CurveComparison:
    curves = [read_curve(traces[name]) for name in (target, "run")]
    return compare_curves(curves[0], curves[1:], Options())


def test_the_scalars_of_a_trace_are_a_curve(traces: dict[str, Path]) -> None:
    curve = read_curve(traces["run"])
    assert (curve.format, curve.span, curve.num_steps) == ("trueup trace", (0, 29), 30)
    assert curve.frame["tokens"].to_list()[:2] == [32.0, 64.0]
    found = compared(traces, "other")
    assert found.judgement.outcome.value == "differ"
    failed = {one.place("criterion"): one for one in found.judgement.reasons}
    assert failed["weights"].code is CurvesCode.FAILED
    assert reason(Code.SOME_TENSORS, num=0, total=3) in failed["weights"].parts


def test_the_batches_and_scalars_around_a_step_are_shown(traces: dict[str, Path], tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers  # type: ignore[import-untyped,unused-ignore]
    from transformers import PreTrainedTokenizerFast  # type: ignore[import-untyped,unused-ignore]

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(tmp_path)
    found = compared(traces, "run")
    found = replace(found, judgement=replace(found.judgement, step=1))
    around = around_step(traces["run"], traces["run"], found, tokenizer=tmp_path)
    assert around["step"] == 1
    assert around["said"][0].startswith("target, step 0: loss 4.")
    assert [row["where"] for row in around["texts"][:2]] == ["step 0, row 0", "step 0, row 1"]
    assert all(word.startswith("w") for word in around["texts"][0]["text"].split())
    ids = around_step(traces["run"], None, found)["texts"][0]["text"]
    assert [f"w{number}" for number in ids.split()] == around["texts"][0]["text"].split()
