"""One GPT in PyTorch and in MindSpore, by two hands: paired, compared and replayed without a map."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.adapters.mindspore.loops import plain
from tests.matching.implementations.torch_gpt import train
from trueup import Tracer
from trueup.comparing.run import compare
from trueup.diagnosing.replay.charge import origins
from trueup.diagnosing.replay.plan import build_plan
from trueup.matching.report import match_traces
from trueup.store import Trace

pytestmark = [pytest.mark.mindspore, pytest.mark.xdist_group("torch_and_mindspore")]

PAIRS = {
    "(root)": "(root)",
    "emb": "tok_embeddings",
    "norm": "final_norm",
    "head": "output",
    **{
        f"layers.{i}{mine}": f"blocks.{i}{theirs}"
        for i in range(2)
        for mine, theirs in (
            ("", ""),
            (".norm1", ".attention_norm"),
            (".attn", ".attention"),
            (".attn.out", ".attention.wo"),
            (".norm2", ".ffn_norm"),
            (".down", ".feed_forward.w2"),
        )
    },
}
"""written by hand: every cell that has a module of its own on the other side"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(MindSpore, torch), two steps each with all values."""
    folder = tmp_path_factory.mktemp("runs")
    with Tracer(folder / "mindspore", framework="mindspore", level="mix", task="tensor", steps="0-1"):
        plain()
    with Tracer(folder / "torch", framework="torch", level="mix", task="tensor", steps="0-1"):
        train()
    return folder / "mindspore", folder / "torch"


@pytest.mark.parametrize("turned", [False, True])
def test_cells_and_modules_are_paired_without_a_map(runs: tuple[Path, Path], turned: bool) -> None:
    mine, theirs = (Trace(path) for path in (reversed(runs) if turned else runs))
    report = match_traces(mine, theirs)
    assert report.across
    found = {(one.target, one.reference) for one in report.modules if one.paired}
    expected = {(r, t) if turned else (t, r) for t, r in PAIRS.items()}
    assert found <= expected, found - expected  # none is wrong
    assert len(found) >= 0.98 * len(expected), expected - found


@pytest.mark.parametrize("turned", [False, True])
def test_equal_runs_agree(runs: tuple[Path, Path], turned: bool) -> None:
    mine, theirs = reversed(runs) if turned else runs
    result = compare(mine, theirs)
    assert result.exit_code == 0, result.summary["verdict"]
    counts = result.summary["counts"]
    assert counts["different"] == 0
    assert counts["equal"] + counts["within_noise"] > 500


def test_a_fault_is_named_in_its_cell(runs: tuple[Path, Path], tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    with Tracer(tmp_path / "eps", framework="torch", level="mix", steps="0-1"):
        train(norm_eps=1e-2)
    torch.set_num_threads(threads)
    result = compare(runs[0], tmp_path / "eps")
    assert result.exit_code == 1
    verdict = result.summary["verdict"]
    assert (verdict["owner"], verdict["phase"]) == ("layers.1.norm2", "forward"), verdict


@pytest.mark.parametrize(("eps", "owner"), [(None, None), (1e-2, "layers.1.norm2")])
def test_a_mindspore_program_is_replayed_on_a_torch_reference(
    tmp_path: Path, eps: float | None, owner: str | None
) -> None:
    for name, framework, loop in (
        ("reference", "torch", lambda: train(norm_eps=eps)),
        ("free", "mindspore", plain),
    ):
        options = {"level": "mix", "task": "tensor", "steps": "0"}
        with Tracer(tmp_path / name, framework=framework, **options):
            loop()
    reference = Trace(tmp_path / "reference")
    plan = build_plan(Trace(tmp_path / "free"), reference, tmp_path / "replay" / "plan")
    with Tracer(tmp_path / "replay", framework="mindspore", level="L0", steps="0", replay=str(plan.folder)):
        plain()
    made = Trace(tmp_path / "replay").rank_facts(0)
    assert made["num_failures"] == 0, made["failures"]
    assert made["replay"]["equal"] + made["replay"]["replaced"] > 60
    found = [one.module for one in origins(tmp_path / "replay", reference.path)]
    assert found[:1] == ([] if owner is None else [owner])
