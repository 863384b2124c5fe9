"""Sequences packed into rows without padding: dealt to one process or two, packed otherwise or padded, one
training; a sequence that sees another, or a gradient that counts otherwise, is a difference."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.capture.programs import run_trueup, write
from trueup.comparing.run import compare
from trueup.diagnosing.pipeline import diagnose
from trueup.types.codes import NoteCode
from trueup.types.finding import Stage
from trueup.types.status import Outcome

pytestmark = [pytest.mark.torch, pytest.mark.distributed]

PROGRAM = """
import os, sys, torch, torch.distributed as dist
from torch import nn
from torch.nn import functional as F

kind = sys.argv[1]
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos = nn.Embedding(40, 16), nn.Embedding(16, 16)
        self.norm, self.qkv, self.head = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 40)

    def forward(self, ids, positions, mask=None):
        x = self.emb(ids) + self.pos(positions)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        seen = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()[None]
        if mask is not None:
            seen = seen & mask[:, None, :].bool()
        elif kind != "across":
            sequence = (positions == 0).cumsum(1)
            seen = seen & (sequence[:, None] == sequence[..., None])
        scores = (q @ k.transpose(1, 2) / 4).masked_fill(~seen, torch.finfo(q.dtype).min)
        return self.head(x + scores.softmax(-1) @ v)


model = Model().to(torch.bfloat16 if kind.endswith("bf16") else torch.float32)
if kind == "eps":
    model.norm.eps = 1e-3
net = nn.parallel.DistributedDataParallel(model) if world > 1 else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    make = torch.Generator().manual_seed(step)
    rows = [torch.randint(1, 40, (n,), generator=make) for n in (9, 5, 7, 4, 8, 6)]
    if kind == "token" and step == 0:
        rows[3][1] = rows[3][1] % 39 + 1
    total = sum(len(row) - 1 for row in rows)
    order = [4, 0, 5, 2, 1, 3] if kind == "turned" else range(6)
    own = [rows[at] for at in order][rank::world]
    size = len(own) if kind == "one" or world > 1 else 3
    parts = [own[at : at + size] for at in range(0, len(own), size)]
    for part in parts:
        if kind == "padded":
            width = max(map(len, part))
            ids = torch.stack([F.pad(row, (0, width - len(row))) for row in part])
            mask = torch.stack([torch.arange(width) < len(row) for row in part]).long()
            positions = torch.arange(width).expand(len(part), -1) * mask
            out = net(ids=ids, positions=positions, mask=mask)
            logits = torch.cat([o[: len(row) - 1] for o, row in zip(out, part)])
        else:
            ids = torch.cat(part)[None]
            positions = torch.cat([torch.arange(len(row)) for row in part])[None]
            split = net(ids=ids, positions=positions)[0].split([len(row) for row in part])
            logits = torch.cat([o[:-1] for o in split])
        labels = torch.cat([row[1:] for row in part])
        loss = F.cross_entropy(logits, labels, reduction="sum") / total
        (loss * (1 if kind == "unscaled" else world)).backward()
    optimizer.step()
    optimizer.zero_grad()
if world > 1:
    dist.destroy_process_group()
"""


def trained(folder: Path, kind: str, processes: int = 1) -> Path:
    program = write(folder.parent / "train.py", PROGRAM)
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = ["capture", "-q", "--task", "tensor", "-o", str(folder), "--", *launcher, str(program), kind]
    out = run_trueup(*command, cwd=folder.parent)
    assert out.returncode == 0, out.stderr
    return folder


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("packed") / "run", "packed")


@pytest.mark.parametrize(
    ("kind", "processes"), [("turned", 1), ("padded", 1), ("one", 1), ("packed", 2), ("turned", 2)]
)
def test_the_same_sequences_are_one_training(kind: str, processes: int, packed: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", kind, processes)
    for target, reference in ((run, packed), (packed, run)):
        comparison = compare(target, reference)
        assert comparison.verdict.outcome is Outcome.AGREE, comparison.verdict
        noted = any(note.code is NoteCode.ROWS_LAID_OTHERWISE for note in comparison.content.notes)
        assert noted or kind == "one"  # whose rows are in the same order
        diagnosis = diagnose(target, reference, output=tmp_path / f"out-{target.parent.name}")
        assert diagnosis.outcome is Outcome.AGREE, diagnosis.findings


@pytest.mark.parametrize(
    ("kind", "processes", "stage"),
    [
        ("token", 1, Stage.DATA),
        ("across", 1, Stage.FORWARD),
        ("across", 2, Stage.FORWARD),
        ("eps", 2, Stage.FORWARD),
    ],
)
def test_another_token_or_a_sequence_that_sees_another_differs(
    kind: str, processes: int, stage: Stage, packed: Path, tmp_path: Path
) -> None:
    run = trained(tmp_path / "run", kind, processes)
    assert compare(run, packed).exit_code == 1
    diagnosis = diagnose(run, packed, output=tmp_path / "out")
    assert (diagnosis.exit_code, diagnosis.findings[0].stage) == (1, stage)


def test_rows_of_two_processes_that_are_not_those_of_one_are_no_agreement(
    packed: Path, tmp_path: Path
) -> None:
    """They are not put together, so that nothing says which token is another."""
    run = trained(tmp_path / "run", "token", 2)
    assert compare(run, packed).exit_code == 1
    assert diagnose(run, packed, output=tmp_path / "out").outcome is not Outcome.AGREE


def test_gradients_that_two_processes_make_half_as_large_differ(packed: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "unscaled", 2)
    comparison = compare(run, packed)
    assert (comparison.exit_code, comparison.verdict.phase) == (1, "param_grad")


def test_of_statistics_alone_nothing_is_said_of_rows_that_cannot_be_found(tmp_path: Path) -> None:
    """The rounding of a coarse dtype that only records without a summary show is no difference."""
    program = write(tmp_path / "train.py", PROGRAM)
    run = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for name, launcher in (("alone", []), ("two", ["-m", *run])):
        command = ["capture", "-q", "-o", str(tmp_path / name), "--", sys.executable, *launcher, str(program)]
        assert run_trueup(*command, "bf16", cwd=tmp_path).returncode == 0
    comparison = compare(tmp_path / "two", tmp_path / "alone")
    assert comparison.verdict.outcome is Outcome.UNDECIDED, comparison.verdict
