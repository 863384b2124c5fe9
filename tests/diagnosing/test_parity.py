"""``trueup check-run --compile-parity -- COMMAND``: compiled against eager, from one command."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.capture.programs import environment, run_trueup, write
from trueup.types.codes import CheckCode

pytestmark = [pytest.mark.torch, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
import torch
from torch import nn
from torch.nn import functional as F

kind, backend = sys.argv[1], sys.argv[2]
torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)
        self.drop = nn.Dropout(0.1 if kind == "dropout" else 0.0)

    def forward(self, x):
        if kind == "break":
            torch._dynamo.graph_break()
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(1 if kind == "dropout" else 2))

    def forward(self, ids, labels):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        scores = self.head(x)
        return scores, F.cross_entropy(scores.flatten(0, 1), labels.flatten())

def wrong(graph, inputs):
    found = [node for node in graph.graph.nodes if getattr(node.target, "__name__", "") == "gelu"]
    if found:
        found[-1].kwargs = {"approximate": "tanh"}
    graph.recompile()
    return graph.forward

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
how = wrong if backend == "wrong" else backend
compiled = model if backend == "none" else torch.compile(model, backend=how)
draw = torch.Generator().manual_seed(1)
for step in range(2):
    ids = torch.randint(32, (4 + step * (kind == "shapes"), 8), generator=draw)
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        _, loss = compiled(ids, ids.roll(-1, 1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex(), file=sys.stderr)
"""


def check(folder: Path, *words: str, out: str = "out") -> tuple[int, dict[str, dict[str, Any]], str]:
    """Exit status, outcomes by name, standard error."""
    program = write(folder / "train.py", PROGRAM)
    options = ["check-run", "--compile-parity", "--json", "--to-the-end", "-o", out]
    done = run_trueup(
        *options, "--", sys.executable, program, *words,
        cwd=folder, env=environment(PYTHONPATH=str(ROOT)),
    )  # fmt: skip
    assert done.stdout.startswith("{"), done.stderr
    document = json.loads(done.stdout)
    return done.returncode, {one["name"]: one for one in document["checks"]}, done.stderr


@pytest.mark.parametrize("kind", ["plain", "break", "autocast"])
def test_compiled_and_eager_agree(kind: str, tmp_path: Path) -> None:
    status, outcomes, said = check(tmp_path, kind, "aot_eager")
    assert (status, {one["verdict"] for one in outcomes.values()}) == (0, {"passed"}), outcomes
    counts = outcomes["compilation"]["numbers"]
    assert (counts["graph_breaks"] > 0) == (kind == "break")
    assert outcomes["regions"]["numbers"]["measured"] == counts["regions"]
    assert "failed" not in said


def test_the_wrong_operation_is_named(tmp_path: Path) -> None:
    status, outcomes, _ = check(tmp_path, "plain", "wrong")
    assert status == 1
    outcome = outcomes["regions"]
    assert (outcome["verdict"], outcome["sentence_reason"]["code"]) == ("failed", CheckCode.REGION_DIFFERS)
    place = outcome["places"][0]
    assert (place["site"], place["step"], place["rank"]) == ("blocks.1", 0, 0)
    assert "F.gelu(self.up(" in place["source"]
    facts = place["detail_reason"]["places"]
    assert (facts["operation"], facts["phase"], facts["region"]) == ("gelu", "forward", "0/0")
    assert outcomes["compiled_run"]["verdict"] == "failed"


def test_nothing_compiled_is_nothing_to_check(tmp_path: Path) -> None:
    status, outcomes, said = check(tmp_path, "plain", "none")
    assert (status, {one["verdict"] for one in outcomes.values()}) == (2, {"nothing to check"})
    assert said.count("of 4") == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_with_dropout_agrees_and_names_its_source(tmp_path: Path) -> None:
    status, outcomes, said = check(tmp_path, "dropout", "inductor")
    assert (status, {one["verdict"] for one in outcomes.values()}) == (0, {"passed"}), outcomes
    facts = json.loads((tmp_path / "out" / "compiled" / "ranks" / "rank_00000.json").read_text())
    code = facts["compiled"]["regions"][0]["code"]
    assert code
    assert all(Path(one).exists() for one in code)
    losses = [line for line in said.splitlines() if line.startswith("0x")]
    assert len(set(losses[:2])) == 2


def test_recompiles_are_counted(tmp_path: Path) -> None:
    _, outcomes, _ = check(tmp_path, "shapes", "aot_eager")
    assert outcomes["compilation"]["numbers"] == {"regions": 2, "graph_breaks": 0, "recompiles": 1}
