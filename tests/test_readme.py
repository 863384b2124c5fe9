"""The README does what it says: its commands run, its Python runs, what it points to exists."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.capture.programs import TRAIN, environment, write
from tests.importers.conftest import dumps
from tests.mismatch.batches import sampled
from tests.mismatch.batches import write as write_tokens
from tests.warm import COLD

__all__ = ["dumps"]

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
ELSEWHERE = ("make ", "pip ")
"""what sets up or takes minutes: run by CI itself"""
EXPECTED = "runs/expected"
"""the reference of the README's second story; its first is of other runs"""

PRELUDE = """
import json, torch
from torch import nn
from pathlib import Path
config = {"task": "statistics", "dump_path": "runs/debugger", "level": "L0", "rank": [], "step": []}
Path("config.json").write_text(json.dumps(config))
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
batches = [torch.ones(5, 4), torch.zeros(5, 4)]
def train_step(batch):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
def train():
    for batch in batches:
        train_step(batch)
"""


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def commands(run: str) -> list[list[str]]:
    """Every shell command of the blocks that speak of this run, or of all others, comments left out."""
    chosen = [block for block in blocks("bash") if (EXPECTED in block) == (run == EXPECTED)]
    lines = (line for block in chosen for line in block.splitlines())
    found = [words for line in lines if (words := shlex.split(line, comments=True))]
    return [words for words in found if not " ".join(words).startswith(ELSEWHERE)]


def environment_with_trueup() -> dict[str, str]:
    """Where ``trueup`` is the one under test, and ``python`` has PyTorch at hand."""
    folders = [str(Path(program).parent) for program in (sys.executable, COLD)]
    return environment(PATH=os.pathsep.join([*folders, os.environ["PATH"]]))


def run_all(run: str, folder: Path) -> None:
    """Run the commands in order; those that compare end with 1, because the runs differ."""
    write(folder / "train.py", TRAIN)
    write(folder / "train_ported.py", TRAIN.replace("nn.GELU()", 'nn.GELU(approximate="tanh")'))
    assert len(commands(run)) >= 6
    for words in commands(run):
        allowed = (1,) if words[:2] in (["trueup", "compare"], ["trueup", "diagnose"]) else (0,)
        done = subprocess.run(
            words, cwd=folder, env=environment_with_trueup(), capture_output=True, text=True, timeout=120
        )
        assert done.returncode in allowed, (
            f"{shlex.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        )


@pytest.mark.torch
@pytest.mark.slow
def test_commands_run(tmp_path: Path, dumps: Path) -> None:
    (tmp_path / "dumps").mkdir()
    tokens = sampled()
    write_tokens(tmp_path / "tokens.npz", tokens | {"training_log_probs": tokens["rollout_log_probs"]})
    kind = "L0_statistics_statistics"
    for name, dump in (("reference", dumps / "base" / kind), ("target", dumps / "rope_bf16" / kind)):
        (tmp_path / "dumps" / name).symlink_to(dump, target_is_directory=True)
    run_all("runs/reference", tmp_path)
    verdict = json.loads((tmp_path / "runs" / "report" / "result.json").read_text())["verdict"]
    assert verdict["owner"] == "1"
    assert (tmp_path / "runs" / "report" / "report.html").is_file()
    assert (tmp_path / "runs" / "mismatch" / "mismatch.html").is_file()
    assert list((tmp_path / "dumps" / "exported").glob("step*/*/dump.json"))


@pytest.mark.torch
@pytest.mark.slow
def test_commands_of_a_diagnosis_run(tmp_path: Path) -> None:
    run_all(EXPECTED, tmp_path)
    findings = json.loads((tmp_path / "runs" / "diagnosis" / "diagnosis.json").read_text())["findings"]
    assert findings[0]["module"] == "1"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python_runs(tmp_path: Path, number: int) -> None:
    script = write(tmp_path / "script.py", PRELUDE + blocks("python")[number])
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=environment_with_trueup(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    steps = list((tmp_path / "runs").glob("*/step_*"))
    assert len(steps) == 2


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`?\bmake (\w+)", README))
    assert {"demo", "test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)", text) + re.findall(r"(?:src|srcset)=\"([^\"]+)\"", text)
    lost = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not lost


def test_plain_paths_in_the_text_exist() -> None:
    named = re.findall(r"`((?:benchmarks|bugzoo|docs|examples|scripts)/[\w./-]+)`", README)
    assert [path for path in named if not (ROOT / path).exists()] == []
