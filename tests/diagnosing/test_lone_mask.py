"""A mask that one run alone gives its model: what attention makes without it follows from that."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trueup.cli.app import run
from trueup.diagnosing.diagnosis import Diagnosis
from trueup.diagnosing.pipeline import diagnose
from trueup.types.codes import StagesCode

pytestmark = [pytest.mark.torch, pytest.mark.slow]

PROGRAM = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x, mask=None):
        return scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), attn_mask=mask)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return INNER * self.linear(x).tanh()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(40, 16), nn.Linear(16, 40)
        self.mixes = nn.ModuleList([Attention(), Attention()])
        self.inner = Inner()

    def forward(self, input_ids, attention_mask=None):
        x = self.words(input_ids)
        mask = None if attention_mask is None else attention_mask[:, None, :].bool()
        for mix in self.mixes:
            x = x + (mix(x) if mask is None else mix(x, mask=mask))
        return self.head(x + self.inner(x))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = torch.randint(1, 40, (4, 10))
mask = (torch.arange(10) < torch.tensor([[10], [7], [8], [5]])).long()
for step in range(2):
    loss = cross_entropy(model(GIVEN).flatten(0, 1), torch.where(mask.bool(), ids, -100).flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def diagnosed(tmp_path: Path, *, given: str, inner: float = 1.0) -> Diagnosis:
    runs = {
        "target": PROGRAM.replace("GIVEN", given).replace("INNER", str(inner)),
        "reference": PROGRAM.replace("GIVEN", "ids, attention_mask=mask").replace("INNER", "1.0"),
    }
    commands = {}
    for name, text in runs.items():
        file = tmp_path / f"{name}.py"
        file.write_text(text, encoding="utf-8")
        commands[name] = [sys.executable, str(file)]
        options = ["--preset", "diagnose", "-o", str(tmp_path / name), "-q"]
        assert run(["capture", *options, "--", *commands[name]]) == 0
    folders = tmp_path / "target", tmp_path / "reference"
    return diagnose(*folders, output=tmp_path / "out", command=commands["target"])


def test_what_follows_from_a_mask_of_one_run_is_no_finding(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, given="ids")
    assert [one.headline.code for one in found.findings] == [StagesCode.INPUT_OF_ONE_SIDE]


def test_a_fault_elsewhere_is_told_beside_it(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, given="ids", inner=1.3)
    assert found.findings[0].headline.code is StagesCode.INPUT_OF_ONE_SIDE
    assert [one.module for one in found.findings[1:]] == ["inner"]
