"""MindSpore's real dump beside a PyTorch run of the same network, weights and data."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.capture.programs import run_trueup, write
from trueup.comparing.run import compare

pytestmark = pytest.mark.torch

TWIN = """
import glob
import sys

import numpy as np
import torch
from torch import nn

FOLDER = {folder!r}


def dumped(pattern):
    (file,) = glob.glob(f"{{FOLDER}}/{{pattern}}")
    return torch.tensor(np.load(file))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2, self.sm = nn.Linear(8, 16), nn.{act}(), nn.Linear(16, 4), nn.Softmax(-1)

    def forward(self, x):
        return self.sm(self.fc2(self.act(self.fc1(x))))


net = Net()
with torch.no_grad():
    for name, layer in (("fc1", net.fc1), ("fc2", net.fc2)):
        layer.weight.copy_(dumped(f"MatMul.Default_*{{name}}*input.1.*"))
        layer.bias.copy_(dumped(f"BiasAdd.Default_*{{name}}*input.1.*"))
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
generator = np.random.default_rng(0)
for _ in range(2):
    x = torch.tensor(generator.standard_normal((2, 8)), dtype=torch.float32)
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), torch.tensor([1, 2])).backward()
    optimizer.step()
"""


def captured(mindspore: Path, tmp_path: Path, act: str) -> Path:
    import sys

    folder = str(mindspore / "graph_O0/rank_0/Net/0/0")
    write(tmp_path / "train.py", TWIN.format(folder=folder, act=act))
    made = run_trueup(
        "capture", "-o", "run", "--level", "mix", "--", sys.executable, "train.py", cwd=tmp_path
    )
    assert made.returncode == 0, made.stderr
    return tmp_path / "run"


def test_cells_and_weights_pair_and_agree(mindspore: Path, tmp_path: Path) -> None:
    """Forward to the root's output and the weights after the update, over two steps."""
    frame = compare(mindspore / "graph_O0", captured(mindspore, tmp_path, "ReLU")).frame()
    paired = frame.filter(pl.col("status") != "unmatched")
    forward = paired.filter(pl.col("phase") == "forward")
    assert set(forward["module"].cast(pl.String)) >= {"", "fc1", "act", "fc2", "sm"}
    assert forward.height >= 20
    assert set(forward["status"].cast(pl.String)) <= {"equal", "within_noise"}
    updated = paired.filter((pl.col("phase") == "optimizer") & (pl.col("slot") == "param"))
    assert updated.height == 8
    assert updated["rel_l2"].max() < 1e-6


def test_another_activation_is_found_in_its_cell(mindspore: Path, tmp_path: Path) -> None:
    verdict = compare(mindspore / "graph_O0", captured(mindspore, tmp_path, "GELU")).summary["verdict"]
    assert (verdict["outcome"], verdict["owner"], verdict["phase"]) == ("differ", "act", "forward")
