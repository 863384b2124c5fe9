"""Data-parallel runs that deal out the same rows otherwise: one training, or not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.capture.programs import run_trueup, write
from trueup.comparing.run import compare
from trueup.diagnosing.pipeline import diagnose
from trueup.merging.infer import replicas
from trueup.store import Trace
from trueup.types.codes import MergingCode
from trueup.types.status import Outcome

pytestmark = [pytest.mark.torch, pytest.mark.distributed]

PROGRAM = """
import os, sys, torch, torch.distributed as dist
from torch import nn

kind, rank = sys.argv[1], int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(30, 12), nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 30))
static = {"static_graph": True, "bucket_cap_mb": 0.001} if kind == "buckets" else {}
if kind.startswith("sharded"):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    net = fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
else:
    net = nn.parallel.DistributedDataParallel(model, **static)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(2):
    ids = torch.randint(0, 30, (8, 6), generator=torch.Generator().manual_seed(step))
    if kind == "other row" and step == 0:
        ids[5] = (ids[5] + 1) % 30
    own = ids[4 * rank : 4 * rank + 4] if kind in ("halves", "other row") else ids[rank::2]
    parts = own.chunk(2) if kind in ("microbatches", "lost") else [own]
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        with net.no_sync() if not last else torch.enable_grad():
            out = net(part[:, :-1])
            loss = nn.functional.cross_entropy(out.flatten(0, 1), part[:, 1:].flatten()) / len(parts)
            loss.backward()
    if kind == "lost" and rank == 1:
        model[1].weight.grad.mul_(0.5)
    if kind == "sharded, lost" and rank == 1:
        model[1].weight.grad.to_local().mul_(0.5)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def trained(folder: Path, kind: str) -> Path:
    program = write(folder.parent / "train.py", PROGRAM)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    out = run_trueup(
        "capture", "--preset", "diagnose", "-q", "-o", str(folder), "--", *launcher, str(program), kind,
        cwd=folder.parent,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr
    return folder


@pytest.fixture(scope="module")
def strided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("strided") / "run", "strided")


@pytest.mark.parametrize("kind", ["halves", "microbatches"])
def test_the_same_rows_on_other_ranks_are_one_training(kind: str, strided: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", kind)
    comparison = compare(run, strided)
    assert comparison.verdict.outcome is Outcome.AGREE
    said = [part.code for note in comparison.content.layouts for part in note.parts]
    assert said.count(MergingCode.REPLICAS) == 2
    assert diagnose(run, strided, output=tmp_path / "out").outcome is Outcome.AGREE


def test_buckets_in_another_order_are_one_training(strided: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "buckets")
    assert compare(run, strided).verdict.outcome is Outcome.AGREE


def test_weights_that_one_run_shards_are_put_together(strided: Path, tmp_path: Path) -> None:
    """FSDP2 beside DDP, of as many processes that read the same rows."""
    run = trained(tmp_path / "run", "sharded")
    assert compare(run, strided).verdict.outcome is Outcome.AGREE
    assert diagnose(run, strided, output=tmp_path / "out").outcome is Outcome.AGREE
    assert compare(trained(tmp_path / "fault", "sharded, lost"), strided).exit_code == 1


@pytest.mark.parametrize("kind", ["other row", "lost"])
def test_another_row_or_gradient_differs(kind: str, strided: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", kind)
    assert compare(run, strided).exit_code == 1
    diagnosis = diagnose(run, strided, output=tmp_path / "out")
    assert diagnosis.exit_code == 1
    assert diagnosis.findings[0].stage.value == ("data" if kind == "other row" else "reduction")


def test_of_one_rank_nothing_is_inferred(strided: Path) -> None:
    found = replicas(Trace(strided), 0)
    assert found is not None
    assert found.layout.batch == ("dp",)
    assert replicas(Trace(strided), 7) is None
